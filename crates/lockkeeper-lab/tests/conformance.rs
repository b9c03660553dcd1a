//! The matrix: a row an engine and layout, a test a rule.

#![allow(clippy::expect_used, reason = "a test panics when it fails")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use lockkeeper::config::file_url;
use lockkeeper_lab::conformance::Subject;
use lockkeeper_lab::servers::redis::RedisServer;
use lockkeeper_lab::servers::zookeeper::{Ensemble, Server, Settings};
use lockkeeper_lab::servers::zookeeper_client::{Client, Kind};
use lockkeeper_lab::servers::zookeeper_proxy::Proxy;

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// A directory of its own.
fn file() -> Subject {
    let home = tempfile::tempdir().expect("a temporary directory");
    let dir = home.path().join("locks");
    Subject::url("file", file_url(&dir))
        .helper(HELPER)
        .wiped_by(move || {
            let dir = dir.clone();
            async move { std::fs::remove_dir_all(&dir).expect("the directory can be deleted") }
        })
        .keeping(home)
}

lockkeeper_lab::conformance!(memory, Subject::memory());
lockkeeper_lab::conformance!(file, file());

lockkeeper_lab::conformance!(redis, redis("redis", ""));
lockkeeper_lab::conformance!(redis_plain, redis("redis, layout=plain", "&layout=plain").foreign());
lockkeeper_lab::conformance!(redisson, redis("redis, layout=redisson", "&layout=redisson").foreign());
lockkeeper_lab::conformance!(redisson_fenced, redis("redis, layout=redisson&lock=fenced", "&layout=redisson&lock=fenced").foreign());
lockkeeper_lab::conformance!(redisson_fair, redis("redis, layout=redisson&lock=fair", "&layout=redisson&lock=fair").foreign());
lockkeeper_lab::conformance!(redisson_rw, redis("redis, layout=redisson&lock=rw", "&layout=redisson&lock=rw").foreign());

/// A server of its own that keeps everything on disk.
fn redis(row: &str, options: &str) -> Subject {
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let port = server.port();
    let server = Arc::new(Mutex::new(server));
    let with = |deed: fn(&mut RedisServer)| {
        let server = server.clone();
        move || {
            let server = server.clone();
            async move { deed(&mut server.lock().expect("no test panics while it has it")) }
        }
    };
    Subject::url(row, format!("redis://127.0.0.1:{port}?ttl=2s{options}"))
        .helper(HELPER)
        .effort(20)
        .wiped_by(with(|server| drop(server.command(&["FLUSHALL"]))))
        .restarted_by(with(RedisServer::restart))
        .cut_by(with(|server| server.stop()), with(|server| server.go_on()))
        .keeping(server)
}

lockkeeper_lab::conformance!(zookeeper_curator, zookeeper(single(), "layout=curator"));
lockkeeper_lab::conformance!(zookeeper_kazoo, zookeeper(single(), "layout=kazoo").electing_by_lock());
lockkeeper_lab::conformance!(zookeeper_plain, zookeeper(single(), "layout=plain"));
lockkeeper_lab::conformance!(zookeeper_ensemble, zookeeper(ensemble(), "layout=curator"));

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

/// Servers start slowly, so that every test has a directory of its own and not a server.
fn single() -> Arc<Ensemble> {
    static POOL: Pool<Ensemble> = Pool::new();
    let single = || Ensemble { servers: vec![Server::start(Settings::default()).expect("Debian's package zookeeper")] };
    POOL.get(single)
}

fn ensemble() -> Arc<Ensemble> {
    static POOL: Pool<Ensemble> = Pool::new();
    POOL.get(|| Ensemble::start(3, &Settings::default()).expect("Debian's package zookeeper"))
}

fn zookeeper(ensemble: Arc<Ensemble>, options: &str) -> Subject {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let chroot = format!("/t{}", COUNT.fetch_add(1, Ordering::Relaxed));
    let ports: Vec<u16> = ensemble.servers.iter().map(Server::port).collect();
    let client = move || Client::connect(*ports.first().expect("a server")).expect("the server serves");
    client().create(&chroot, b"", Kind::Persistent).expect("a fresh directory");
    let proxies: Vec<Proxy> = ensemble.servers.iter().map(|s| Proxy::start(s.port()).expect("a free port")).collect();
    let addresses: Vec<String> = proxies.iter().map(|proxy| format!("127.0.0.1:{}", proxy.port())).collect();
    let url = format!("zk://{}{chroot}?session_timeout=4s&{options}", addresses.join(","));
    let proxies = Arc::new(proxies);
    let hold = move |hold: bool| {
        let proxies = proxies.clone();
        move || {
            proxies.iter().for_each(|proxy| proxy.hold_requests(hold));
            std::future::ready(())
        }
    };
    Subject::url(options, url)
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
