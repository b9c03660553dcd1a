//! A directory of a ZooKeeper server or ensemble, as a subject of the suite.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use lockkeeper_lab::conformance::Subject;
use lockkeeper_testkit::zookeeper::client::{Client, Kind};
use lockkeeper_testkit::zookeeper::proxy::Proxy;
use lockkeeper_testkit::zookeeper::server::{Ensemble, Server, Settings};

use super::{HELPER, PATIENT};

/// What tests share that run at the same time; gone with the last of them.
struct Pool<T>(Mutex<Weak<T>>);

impl<T> Pool<T> {
    const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    fn get(&self, make: impl FnOnce() -> T) -> Arc<T> {
        let mut pooled = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        pooled.upgrade().unwrap_or_else(|| {
            let made = Arc::new(make());
            *pooled = Arc::downgrade(&made);
            made
        })
    }
}

/// The sessions of a row, and those whose end is waited for.
pub const SESSIONS: [&str; 2] = ["session_timeout=20s", "session_timeout=4s"];

/// Servers whose sessions may be as long.
fn settings() -> Settings {
    Settings { lines: vec!["maxSessionTimeout=60000".to_owned()], ..Settings::default() }
}

/// Servers start slowly, so that every test has a directory of its own and not a server.
pub fn single() -> Arc<Ensemble> {
    static POOL: Pool<Ensemble> = Pool::new();
    let single = || Ensemble {
        servers: vec![Server::start(settings()).expect("Debian's package zookeeper")],
    };
    POOL.get(single)
}

pub fn ensemble() -> Arc<Ensemble> {
    static POOL: Pool<Ensemble> = Pool::new();
    POOL.get(|| Ensemble::start(3, &settings()).expect("Debian's package zookeeper"))
}

pub fn zookeeper(ensemble: Arc<Ensemble>, options: &str) -> Subject {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let chroot = format!("/t{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let ports: Vec<u16> = ensemble.servers.iter().map(Server::port).collect();
    let client =
        move || Client::connect(*ports.first().expect("a server")).expect("the server serves");
    client().create(&chroot, b"", Kind::Persistent).expect("a fresh directory");
    let proxies: Vec<Proxy> =
        ensemble.servers.iter().map(|s| Proxy::start(s.port()).expect("a free port")).collect();
    let addresses: Vec<String> =
        proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let addresses = addresses.join(",");
    let [url, brief] =
        SESSIONS.map(|session| format!("zk://{addresses}{chroot}?{session}&{PATIENT}&{options}"));
    let proxies = Arc::new(proxies);
    let hold = move |hold: bool| {
        let proxies = proxies.clone();
        move || {
            proxies.iter().for_each(|proxy| proxy.hold_requests(hold));
            std::future::ready(())
        }
    };
    Subject::url(options, url)
        .briefly(brief)
        .helper(HELPER)
        .effort(20)
        .foreign()
        .kinds_apart()
        .wiped_by(move || {
            let mut client = client();
            for name in client.children(&chroot).expect("it was made") {
                client.delete_all(&format!("{chroot}/{name}")).expect("it can be deleted");
            }
            std::future::ready(())
        })
        .cut_by(hold.clone()(true), hold(false))
        .keeping(ensemble)
}
