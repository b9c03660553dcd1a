//! The layouts that belong to other programs: what a request takes for a caller who has left is
//! given back.

use std::sync::Arc;
use std::time::Duration;

use super::super::foreign::Foreign;
use super::super::opened::{Acquires, Opened, Server};
use super::super::options::{Address, RedisOptions, RedissonLock};
use super::super::plain::Plain;
use super::interop::{plain, redisson};
use super::proxy::{Proxy, Way};
use super::server::RedisServer;
use super::support::{PATIENCE, Process, until};
use crate::engine::{Answer, Attempt, End, Event, Line, Renewal};
use crate::words::claim::{Claim, Mode};

/// What is on its way is in time for five seconds.
fn behind(proxy: &Proxy, options: RedisOptions) -> RedisOptions {
    let address = Address::Tcp("127.0.0.1".into(), proxy.port());
    RedisOptions { address, request_timeout: Duration::from_secs(5), ..options }
}

/// The server learns the scripts, so that a fault meets the call that it is meant for.
fn warm(process: &Process) {
    let (held, _) = process.take("warm", Mode::Exclusive);
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn g6_what_a_late_request_takes_for_nobody_is_given_back_once_no_copy_is_in_time_any_more() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    for options in [
        plain(&server),
        redisson(&server, RedissonLock::Plain),
        redisson(&server, RedissonLock::Fair),
    ] {
        let process = Process::with(behind(&proxy, options));
        warm(&process);
        proxy.hold_present(Way::Up);
        // Its lease would keep it for longer than the test.
        let claim = Claim { ttl: PATIENCE * 5, ..process.exclusive("a") };
        let asked = process.engine.attempt(&claim, Line::Join);
        until("the request is on its way", || proxy.held(Way::Up) > 0);
        proxy.cut_client();
        assert!(matches!(process.wait(asked), Attempt::Unknown(_)));
        process.link(true);
        assert!(matches!(process.withdraw(claim.id), End::NotOurs));
        proxy.heal();
        until("the late request has arrived, and locks for nobody", || {
            server.command(&["EXISTS", "a"]) == ["1"]
        });
        until("it is free", || server.command(&["EXISTS", "a"]) == ["0"]);
        // Nothing of it comes later: whoever takes it from now on has it.
        let (held, _) = process.take("a", Mode::Exclusive);
        assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
        assert!(matches!(process.release(held.id), End::Freed));
    }
}

#[test]
fn r5_who_leaves_while_it_is_asked_for_again_leaves_no_lock_that_the_question_takes() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    for options in [plain(&server), redisson(&server, RedissonLock::Plain)] {
        let (process, other) =
            (Process::with(behind(&proxy, options.clone())), Process::with(options));
        warm(&process);
        let (held, _) = other.take("a", Mode::Exclusive);
        let claim = process.queue("a", Mode::Exclusive);
        // A wake-up asks, and so does the net; the lock becomes free between the two.
        let answers = proxy.passed(Way::Down);
        let woken = process.engine.attempt(&claim, Line::Join);
        until("the first question is answered", || proxy.passed(Way::Down) > answers);
        proxy.hold(Way::Up);
        let net = process.engine.recheck(&[claim.id]);
        until("the second is on its way", || proxy.held(Way::Up) > 0);
        let told = process.wait(woken);
        assert!(matches!(told, Attempt::InLine(_)), "{told:?}");
        assert!(matches!(other.release(held.id), End::Freed));
        let leaving = process.engine.withdraw(claim.id);
        proxy.heal();
        let (end, late) = (process.wait(leaving), process.wait(net));
        until(&format!("nobody has it, after {end:?} and {late:?}"), || {
            server.command(&["EXISTS", "a"]) == ["0"]
        });
        assert!(matches!(end, End::Freed), "the question took it: {end:?}");
    }
}

/// A claim whose caller leaves while a request of it is made and not sent yet: the server hears of
/// both in the other order.
struct Crossing {
    process: Process,
    foreign: Arc<Foreign>,
    claim: Claim,
    request: <Foreign as Acquires>::Request,
}

impl Crossing {
    fn new(server: &RedisServer, options: RedisOptions) -> Self {
        let dialect = Arc::new(Plain::new(&options));
        let engine = Arc::new(Server::<Foreign>::new(options, None, dialect));
        let process = Process::around(engine.clone()).expect("the server can be used");
        let foreign = engine.opened().expect("it is open").clone();
        warm(&process);
        server.command(&["SET", "a", "theirs"]);
        let claim = process.queue("a", Mode::Exclusive);
        server.command(&["DEL", "a"]);
        // The word of that has come: nothing else is on its way to us when the connection is cut.
        process.event("a wake-up", |e| {
            matches!(e, Event::Wake { claim: id } if *id == claim.id).then_some(())
        });
        let request = foreign.again(claim.id).expect("it waits");
        assert!(matches!(process.withdraw(claim.id), End::NotOurs), "nothing of it is there");
        assert!(foreign.again(claim.id).is_none(), "it is forgotten");
        Self { process, foreign, claim, request }
    }

    /// Sends the request; `meanwhile` happens before anybody looks at what came of it.
    fn send(self, meanwhile: impl FnOnce()) -> Process {
        let Self { process, foreign, claim, request } = self;
        let started = foreign.links().main.start(&[request.as_ref()]);
        meanwhile();
        let told =
            process.wait(Answer::later(foreign.asked(claim.id, request, started, Duration::ZERO)));
        assert!(!matches!(told, Attempt::Granted(_)), "nobody waits for it: {told:?}");
        process
    }
}

#[test]
fn r5_a_request_that_is_sent_behind_the_word_that_its_caller_has_left_takes_nothing() {
    let server = RedisServer::start();
    let process = Crossing::new(&server, plain(&server))
        .send(|| until("it has the lock", || server.command(&["EXISTS", "a"]) == ["1"]));
    until("it is given back", || server.command(&["EXISTS", "a"]) == ["0"]);
    drop(process);
}

#[test]
fn g6_a_request_that_is_sent_behind_the_word_that_its_caller_has_left_and_lost_with_its_connection_takes_nothing()
 {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let crossing = Crossing::new(&server, behind(&proxy, plain(&server)));
    proxy.hold_present(Way::Up);
    let process = crossing.send(|| {
        until("the request is on its way", || proxy.held(Way::Up) > 0);
        proxy.cut_client();
    });
    process.link(true);
    proxy.heal();
    until("the late request has arrived, and locks for nobody", || {
        server.command(&["EXISTS", "a"]) == ["1"]
    });
    until("it is given back", || server.command(&["EXISTS", "a"]) == ["0"]);
}

#[test]
fn r4_what_was_taken_for_nobody_is_given_back_again_when_the_answer_to_that_is_lost() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let crossing = Crossing::new(&server, behind(&proxy, plain(&server)));
    let process = crossing.send(|| {
        until("it has the lock", || server.command(&["EXISTS", "a"]) == ["1"]);
        proxy.hold(Way::Up);
    });
    until("it is being given back", || proxy.held(Way::Up) > 0);
    // What is held is lost.
    proxy.cut();
    proxy.heal();
    until("it is given back", || server.command(&["EXISTS", "a"]) == ["0"]);
    drop(process);
}
