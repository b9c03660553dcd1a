//! The engine against real servers: driven through the engine's contract, with an event sink and a
//! runtime of the test's.

mod barriers;
mod convert;
mod faults;
mod foreign;
mod gates;
mod leases;
mod lend;
mod lost_replies;
mod lost_servers;
mod margins;
pub(super) mod model;
mod mutual;

mod partition;
mod permits;
mod prefixes;
mod recheck;
mod refusals;
mod shared;
mod stale;
mod steps;
mod tls;
mod writes;

use std::collections::VecDeque;
use std::future::{Future, IntoFuture};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use lockkeeper_testkit::zookeeper::proxy::Proxy;
use lockkeeper_testkit::zookeeper::server::{Ensemble, Server, Settings};
use tokio::sync::Notify;

use super::options::Options;
use super::proto::{Create, Reply, Request};
use super::state::Fault;
use super::{ZooKeeper, inspect};
use crate::engine::{
    Answer, Attempt, Change, Context, End, Engine, Event, EventSink, Grant, Line, Number, Query,
    Spawner, Standing, Which,
};
use crate::open::url::EngineUrl;
use crate::words::claim::{Claim, Entry, Identity, Mode, Through};
use crate::words::clock::Clock;
use crate::words::error::{Error, Result};
use crate::words::id::ClaimId;
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// How long anything may take that should happen at once: only what hangs takes longer.
const SOON: Duration = Duration::from_secs(120);

/// Runs one test on a runtime of its own, and not for ever.
pub(super) fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(SOON * 5, test).await.expect("the test hangs") });
}

/// The server that all tests share which do not hurt it; stopped when the last of them is done.
fn shared_server() -> Arc<Server> {
    static SERVER: Mutex<Weak<Server>> = Mutex::new(Weak::new());
    let mut shared = SERVER.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    if let Some(server) = shared.upgrade() {
        return server;
    }
    let server = Arc::new(Server::start(Settings::default()).unwrap());
    *shared = Arc::downgrade(&server);
    server
}

/// A directory of a test's own on a server.
pub(super) struct Place {
    _server: Arc<Server>,
    port: u16,
    chroot: String,
}

impl Place {
    pub(super) async fn new() -> Self {
        Self::on(shared_server()).await
    }

    async fn on(server: Arc<Server>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let chroot = format!("/test-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let port = server.port();
        let admin = Client::open(&format!("zk://127.0.0.1:{port}")).await.unwrap();
        admin.create(&chroot, b"", Create::Persistent).await;
        admin.close().await;
        Self { _server: server, port, chroot }
    }

    fn url(&self, options: &str) -> String {
        self.url_at(self.port, options)
    }

    /// Who opens it waits for an answer however late it is, unless the options say how long.
    fn url_at(&self, port: u16, options: &str) -> String {
        let unless_said = |option: &str, time: &str| {
            if options.contains(option) { String::new() } else { format!("&{option}={time}") }
        };
        let patience = unless_said("connect_timeout", "2m") + &unless_said("request_timeout", "4m");
        format!("zk://127.0.0.1:{port}{}?{options}{patience}", self.chroot)
    }

    async fn client(&self) -> Client {
        Client::open(&self.url("")).await.unwrap()
    }

    pub(super) async fn client_with(&self, options: &str) -> Client {
        Client::open(&self.url(options)).await.unwrap()
    }

    async fn client_behind_a_proxy(&self, options: &str) -> (Proxy, Client) {
        let proxy = Proxy::start(self.port).unwrap();
        let client = Client::open(&self.url_at(proxy.port(), options)).await.unwrap();
        (proxy, client)
    }

    async fn clients<const N: usize>(&self, options: &str) -> [Client; N] {
        let mut all = Vec::new();
        for _ in 0..N {
            all.push(self.client_with(options).await);
        }
        all.try_into().unwrap_or_else(|_| unreachable!("as many as were opened"))
    }
}

/// One process, as the ensemble sees it.
pub(super) struct Client {
    pub(super) engine: ZooKeeper,
    clock: Clock,
    events: Arc<Events>,
}

#[derive(Default)]
struct Events {
    queue: Mutex<VecDeque<Event>>,
    arrived: Notify,
}

async fn answer<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(future) => future.await,
    }
}

impl Client {
    async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, Spawner::new(|task| drop(tokio::spawn(task)))).await
    }

    async fn open_with(url: &str, spawner: Spawner) -> Result<Self> {
        let patient = !url.contains("request_timeout");
        let mut url = EngineUrl::parse(url)?;
        let mut options = Options::from_url(&mut url, 100)?;
        url.finish()?;
        if patient {
            options.request_timeout = SOON * 2;
        }
        let events = Arc::new(Events::default());
        let sink = events.clone();
        let clock = Clock::real();
        let context = Context {
            clock: clock.clone(),
            events: EventSink::new(move |event| {
                sink.queue.lock().unwrap().push_back(event);
                sink.arrived.notify_one();
            }),
            spawner,
            who: identity(),
        };
        let engine = ZooKeeper::new(options);
        answer(engine.open(context)).await?;
        Ok(Self { engine, clock, events })
    }

    pub(super) async fn close(&self) {
        answer(self.engine.close()).await;
    }

    /// The next event that `pick` wants; others are dropped.
    async fn event<T>(&self, mut pick: impl FnMut(Event) -> Option<T>) -> T {
        let wait = async {
            loop {
                let arrived = self.events.arrived.notified();
                while let Some(event) = { self.events.queue.lock().unwrap().pop_front() } {
                    if let Some(found) = pick(event) {
                        return found;
                    }
                }
                arrived.await;
            }
        };
        tokio::time::timeout(SOON, wait).await.expect("no such event came")
    }

    async fn granted(&self, claim: ClaimId) -> Grant {
        self.event(|event| match event {
            Event::Granted { claim: id, grant } if id == claim => Some(grant),
            _ => None,
        })
        .await
    }

    async fn lost(&self, hold: ClaimId) -> Lost {
        self.event(|event| match event {
            Event::Ended { which: Which::Hold(id), why } if id == hold => Some(why),
            Event::Ended { which: Which::Lease(_) | Which::All, why } => Some(why),
            _ => None,
        })
        .await
    }

    /// Why a claim that had a place failed.
    async fn refused(&self, claim: ClaimId) -> Error {
        self.event(|event| match event {
            Event::Failed { claim: id, error } if id == claim => Some(error),
            Event::Granted { claim: id, .. } if id == claim => panic!("it was granted"),
            _ => None,
        })
        .await
    }

    /// No event about a claim has come so far.
    fn is_quiet_about(&self, claim: ClaimId) -> bool {
        let queue = self.events.queue.lock().unwrap();
        !queue.iter().any(|e| {
            matches!(
                e,
                Event::Granted { claim: id, .. } | Event::Failed { claim: id, .. } if *id == claim
            )
        })
    }

    async fn attempt(&self, claim: &Claim, line: Line) -> Attempt {
        answer(self.engine.attempt(claim, line)).await
    }

    async fn join(&self, claim: &Claim) -> Attempt {
        self.attempt(claim, Line::Join).await
    }

    /// Waits in line until it has it.
    async fn lock(&self, claim: &Claim) -> Grant {
        match self.join(claim).await {
            Attempt::Granted(grant) => grant,
            Attempt::InLine(_) => self.granted(claim.id).await,
            other => panic!("{other:?}"),
        }
    }

    /// Asks again while it is not known, as the keeper does.
    async fn lock_stubbornly(&self, claim: &Claim) {
        loop {
            match self.join(claim).await {
                Attempt::Granted(_) => return,
                Attempt::InLine(_) => {
                    self.granted(claim.id).await;
                    return;
                }
                Attempt::Unknown(_) | Attempt::Failed(_) => {
                    tokio::time::sleep(Duration::from_millis(50)).await
                }
                Attempt::Busy(_) => panic!("a place in line is never busy"),
            }
        }
    }

    async fn release(&self, claim: &Claim) -> End {
        let mut released = answer(self.engine.release(&[claim.id], None)).await;
        released.ends.remove(0)
    }

    async fn withdraw(&self, claim: &Claim) -> End {
        answer(self.engine.withdraw(claim.id)).await
    }

    /// Where a claim stands, as soon as that is known.
    async fn recheck(&self, claim: &Claim) -> Standing {
        loop {
            match answer(self.engine.recheck(&[claim.id])).await.remove(0) {
                Standing::Unknown(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                known => return known,
            }
        }
    }

    async fn read(&self, kind: Kind, name: &str) -> Entry {
        answer(self.engine.read(&Query::One(kind, Name::new(name).unwrap())))
            .await
            .unwrap()
            .remove(0)
    }

    async fn list(&self, prefix: &str) -> Vec<Entry> {
        answer(self.engine.read(&Query::Prefix(prefix.to_owned()))).await.unwrap()
    }

    pub(super) async fn ask(&self, request: Request) -> std::result::Result<Reply, Fault> {
        inspect::ask(&self.engine.shared().unwrap(), request).await
    }

    pub(super) fn path(&self, name: &str) -> String {
        if name.is_empty() {
            self.engine.options.root()
        } else {
            format!("{}/{name}", self.engine.options.chroot)
        }
    }

    /// Creates a node as somebody else would; answers its path.
    pub(super) async fn create(&self, path: &str, data: &[u8], how: Create) -> String {
        let request = Request::Create {
            path: path.to_owned(),
            data: data.to_vec(),
            acl: self.engine.options.acl.clone(),
            how,
        };
        match self.ask(request).await {
            Ok(Reply::Created { path, .. }) => path,
            other => panic!("{path}: {other:?}"),
        }
    }

    async fn delete(&self, path: &str) {
        self.ask(Request::Delete { path: path.to_owned(), version: -1 }).await.unwrap();
    }

    async fn children(&self, name: &str) -> Vec<String> {
        match self.ask(Request::GetChildren { path: self.path(name) }).await {
            Ok(Reply::Children(names)) => names,
            Err(Fault::Code(super::proto::Code::NO_NODE)) => Vec::new(),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn session(&self) -> i64 {
        self.engine.shared().unwrap().lock().session.as_ref().map_or(0, |s| s.key.id)
    }
}

fn identity() -> Arc<Identity> {
    Identity::of_test("testhost")
}

fn claim(name: &str) -> Claim {
    claim_in(Kind::Lock, name, Mode::Exclusive)
}

pub(super) fn claim_in(kind: Kind, name: &str, mode: Mode) -> Claim {
    Claim { kind, ..Claim::of_test(name, mode, identity()) }
}

fn number(grant: &Grant) -> u64 {
    match grant.number {
        Number::Ours(number) => number,
        other => panic!("{other:?}"),
    }
}

fn failed(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Failed(error) => error,
        other => panic!("{other:?}"),
    }
}

/// Waits until something is so.
pub(super) async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let begun = Instant::now();
    while !holds().await {
        assert!(begun.elapsed() < SOON, "{what}: not so after {SOON:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until a server of an ensemble leads; answers which.
async fn leader_of(ensemble: &Ensemble) -> usize {
    let mut leader = None;
    until("one leads", || {
        leader = ensemble.leader();
        std::future::ready(leader.is_some())
    })
    .await;
    leader.expect("one leads")
}

async fn change(client: &Client, change: Change) -> Result<bool> {
    answer(client.engine.write(&change)).await
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}
