//! A server whose address may be another one at each dial.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;

use super::server::RedisServer;
use super::support::{PATIENCE, Process, granted, number, options, until};
use crate::engine::redis::options::{Address, Layout, RedisOptions, RedissonLock, Resolve};
use crate::engine::redis::wire::Link;
use crate::engine::{Attempt, BoxFuture, Event, Number, Renewal};
use crate::words::claim::Mode;
use crate::words::clock::Clock;
use crate::words::error::{Error, ErrorKind, Result};

/// Says where the test says that it is; `None`: nobody knows.
#[derive(Debug)]
struct Told(watch::Sender<Option<u16>>, AtomicUsize);

impl Told {
    fn new(port: Option<u16>) -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(port), AtomicUsize::new(0)))
    }

    fn tell(&self, port: Option<u16>) {
        self.0.send_replace(port);
    }

    /// Who asks is told from now on, and nobody else.
    fn moves_silently(&self, port: u16) {
        self.0.send_if_modified(|told| {
            *told = Some(port);
            false
        });
    }
}

fn address(port: u16) -> Address {
    Address::Tcp("127.0.0.1".into(), port)
}

fn options_of(told: &Arc<Told>) -> RedisOptions {
    // Nobody is ever at the address that the options name.
    let mut options = options(1);
    options.resolve = Some(told.clone());
    options
}

impl Resolve for Told {
    fn resolve(self: Arc<Self>) -> BoxFuture<Result<Address>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        let port = *self.0.borrow();
        let nobody = || Error::new(ErrorKind::Unreachable, "nobody knows the master");
        let found = port.map(address).ok_or_else(nobody);
        Box::pin(std::future::ready(found))
    }

    fn moved(&self, from: &Address) -> BoxFuture<String> {
        let (mut at, from) = (self.0.subscribe(), from.clone());
        Box::pin(async move {
            let elsewhere = |port: &Option<u16>| port.is_some_and(|port| address(port) != from);
            at.wait_for(elsewhere).await.expect("the test goes on");
            "the server moved".into()
        })
    }
}

/// What a server says that would give an older number than the one before it.
fn refused(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Failed(error) => error,
        Attempt::Granted(grant) => panic!("BROKEN LOCK: a token went back: {grant:?}"),
        other => panic!("not refused but {other:?}"),
    }
}

#[test]
fn an_address_is_resolved_before_each_dial() {
    let (mut first, second) = (RedisServer::start(), RedisServer::start());
    let told = Told::new(None);
    let options = options_of(&told);
    let error = Process::try_with(options.clone()).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("nobody knows the master"), "{error}");

    told.tell(Some(first.port()));
    let process = Process::with(options);
    process.take("a", Mode::Exclusive);
    assert_eq!(first.command(&["EXISTS", "lockkeeper:{lock:a}"]), ["1"]);

    told.tell(Some(second.port()));
    first.kill();
    let up = |e: &Event| matches!(e, Event::Link { up: true }).then_some(());
    assert!(process.event_within(PATIENCE, &mut { up }).is_some(), "it dials anew");
    process.take("a", Mode::Exclusive);
    assert_eq!(second.command(&["EXISTS", "lockkeeper:{lock:a}"]), ["1"]);
    until("no connection is left behind", || {
        second.command(&["CLIENT", "LIST"]).join("").matches("lockkeeper:").count() == 1
    });
}

#[test]
fn a_connection_to_a_server_that_moved_ends_at_once_also_when_that_one_does_not_answer() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let told = Told::new(Some(first.port()));
    let mut options = options_of(&told);
    // Whoever waits for this one waits for longer than the test.
    options.request_timeout = PATIENCE * 5;
    let process = Process::with(options);
    let (held, _) = process.take("a", Mode::Exclusive);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    first.stop();
    let asked = process.exclusive("b");
    let answer = process.engine.attempt(&asked, crate::engine::Line::Join);
    told.tell(Some(second.port()));
    drop(process.wait(answer));
    let up = |e: &Event| matches!(e, Event::Link { up: true }).then_some(());
    assert!(process.event_within(PATIENCE, &mut { up }).is_some());
    // The renewals' connection goes, too: nothing is extended where nobody looks.
    until("it is gone", || match process.renew(held.id) {
        Renewal::Gone(_) => true,
        // It went with that connection.
        Renewal::Unknown(_) => false,
        Renewal::Extended { .. } => panic!("it was extended"),
    });
    granted(process.attempt_until(&asked));
    first.go_on();
}

#[test]
fn a_server_that_became_a_replica_is_left_and_what_it_refused_is_asked_of_the_next() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let told = Told::new(Some(first.port()));
    let process = Process::with(options_of(&told));
    process.take("a", Mode::Exclusive);
    // No connection ends by itself.
    first.command(&["REPLICAOF", "127.0.0.1", &second.port().to_string()]);
    told.moves_silently(second.port());
    granted(process.attempt(&process.exclusive("b")));
    assert_eq!(second.command(&["EXISTS", "lockkeeper:{lock:b}"]), ["1"]);
}

#[test]
fn what_a_replica_refused_before_does_not_end_the_connection_to_the_server_after_it() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let told = Told::new(Some(first.port()));
    let process = Process::with(options_of(&told));
    process.take("a", Mode::Exclusive);
    first.command(&["REPLICAOF", "127.0.0.1", &second.port().to_string()]);
    told.moves_silently(second.port());
    first.command(&["CONFIG", "RESETSTAT"]);
    // Both are refused before anybody looks at an answer.
    let asked = ["b", "c"].map(|name| process.exclusive(name));
    let answers =
        asked.each_ref().map(|claim| process.engine.attempt(claim, crate::engine::Line::Join));
    until("both are refused", || {
        let errors = first.command(&["INFO", "errorstats"]).concat();
        errors.contains("errorstat_READONLY:count=2")
    });
    let [one, two] = answers;
    granted(process.wait(one));
    let connection = || {
        let clients = second.command(&["CLIENT", "LIST"]).concat();
        let ours = clients.lines().find(|line| line.contains("name=lockkeeper:"));
        ours.and_then(|line| line.split(' ').next()).map(str::to_owned)
    };
    let before = connection();
    assert!(before.is_some());
    granted(process.wait(two));
    assert_eq!(connection(), before, "it is the same one");
}

#[test]
fn a_replica_is_not_taken_for_the_server_that_was_to_be_there() {
    let first = RedisServer::start();
    let port = first.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    let error = Process::try_with(options_of(&Told::new(Some(replica.port()))));
    let error = error.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "it is a matter of time: {error}");
    assert!(error.message().contains("is a replica"), "{error}");
}

#[test]
fn r7_a_number_that_went_back_with_its_server_is_no_token_and_is_given_back() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let told = Told::new(Some(first.port()));
    let process = Process::with(options_of(&told));
    // Its clock was ahead: the second server would give less.
    first.command(&["SET", "lockkeeper:{lock:a}:last", "9000000000000"]);
    let (held, grant) = process.take("a", Mode::Exclusive);
    assert_eq!(number(&grant), 9_000_000_000_001);
    told.tell(Some(second.port()));
    let up = |e: &Event| matches!(e, Event::Link { up: true }).then_some(());
    assert!(process.event_within(PATIENCE, &mut { up }).is_some());
    assert!(matches!(process.renew(held.id), Renewal::Gone(_)));
    let error = refused(process.attempt(&process.exclusive("a")));
    assert_eq!((error.kind(), error.is_temporary()), (ErrorKind::Refused, true));
    assert!(error.message().contains("and gave 9000000000001 before"), "{error}");
    let record = "lockkeeper:{lock:a}";
    until("it is given back", || second.command(&["EXISTS", record]) == ["0"]);
    // Other names never had one, and this one has it once the server's numbers are above it.
    process.take("b", Mode::Exclusive);
    second.command(&["SET", "lockkeeper:{lock:a}:last", "9000000000001"]);
    process.take("a", Mode::Exclusive);
}

#[test]
fn r7_a_new_connection_is_announced_before_anybody_can_ask_over_it() {
    let server = RedisServer::start();
    let options = Arc::new(options(server.port()));
    let link = Link::new(options, Clock::real(), "lockkeeper:test".into(), Arc::new(|_, _| {}));
    let (weak, seen) = (Arc::downgrade(&link), Arc::new(Mutex::new(Vec::new())));
    let sees = seen.clone();
    link.before_each(move || {
        let can_ask = weak.upgrade().is_some_and(|link| link.inlet().is_some());
        sees.lock().unwrap().push(can_ask);
    });
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.spawn(link.clone().keep(None::<std::future::Pending<String>>, |_| {}));
    for connections in 1..3 {
        until("it is connected", || link.inlet().is_some());
        assert_eq!(*seen.lock().unwrap(), vec![false; connections]);
        server.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        until("it is connected anew", || seen.lock().unwrap().len() > connections);
    }
    link.close();
}

#[test]
fn r7_a_counter_of_redisson_that_went_back_with_its_server_is_no_token_and_is_given_back() {
    let (first, second) = (RedisServer::start(), RedisServer::start());
    let told = Told::new(Some(first.port()));
    let mut options = options_of(&told);
    (options.layout, options.redisson) = (Layout::Redisson, RedissonLock::Fenced);
    let process = Process::with(options);
    first.command(&["SET", "redisson_lock_token:{a}", "1"]);
    let (_, grant) = process.take("a", Mode::Exclusive);
    assert_eq!(grant.number, Number::Raw(2));
    told.tell(Some(second.port()));
    let up = |e: &Event| matches!(e, Event::Link { up: true }).then_some(());
    assert!(process.event_within(PATIENCE, &mut { up }).is_some());
    // The counter of the second server is at 1, then at 2, which is somebody's already.
    for at in ["is at 1, and was at 2", "is at 2, and was at 2"] {
        let asked = process.exclusive("a");
        let error = refused(process.attempt(&asked));
        assert!(error.kind() == ErrorKind::Refused && error.message().contains(at), "{error}");
        until("it is given back", || second.command(&["EXISTS", "a"]) == ["0"]);
    }
    let (_, grant) = process.take("a", Mode::Exclusive);
    assert_eq!(grant.number, Number::Raw(3));
}

#[test]
fn a_master_that_moved_to_where_nobody_can_be_reached_is_dialled_with_pauses() {
    let server = RedisServer::start();
    let told = Told::new(Some(server.port()));
    let process = Process::with(options_of(&told));
    // Nobody listens there.
    told.tell(Some(1));
    let down = |e: &Event| matches!(e, Event::Link { up: false }).then_some(());
    assert!(process.event_within(PATIENCE, &mut { down }).is_some(), "it left");
    let before = told.1.load(Ordering::Relaxed);
    let tried = || told.1.load(Ordering::Relaxed) - before;
    until("it was tried again", || tried() >= 3);
    std::thread::sleep(std::time::Duration::from_secs(1));
    // After 20 ms, and twice that each time.
    assert!(tried() <= 14, "{} times in a good second", tried());
}
