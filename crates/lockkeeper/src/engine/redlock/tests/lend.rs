//! Callers that read the answers of all members themselves, while the keeper's thread does nothing,
//! and what a free lock costs a member.

use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::server::RedisServer;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::runtime::{Builder, Runtime};

use super::super::Redlock;
use super::super::options::RedlockOptions;
use super::support::{Quorum, SHORT, SOME_AWAY};
use crate::engine::redis::tests::support::{PATIENCE, until};
use crate::engine::{
    self, Answer, Attempt, BoxFuture, Common, End, Engine, EventSink, Line, Query, Spawner,
};
use crate::open::url::EngineUrl;
use crate::words::claim::{Claim, Identity, Mode};
use crate::words::clock::Clock;
use crate::words::name::{Kind, Name};

/// No turn is so late that it is over before.
const LEASE: Duration = Duration::from_secs(8);

/// An engine whose runtime runs only while it is told to.
struct AtRest {
    runtime: Runtime,
    engine: Redlock,
    who: Arc<Identity>,
    /// What is begun is dropped, as where its runtime ends.
    drops: Arc<AtomicBool>,
}

impl AtRest {
    fn of(quorum: &Quorum) -> Self {
        // What nobody hears of is forgotten after its lease and two of the last.
        Self::at(&quorum.url_with("max_ttl=24h&server_timeout=30s&request_timeout=5s"))
    }

    fn at(url: &str) -> Self {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let url = &mut EngineUrl::parse(url).unwrap();
        let options = RedlockOptions::take(url, &Common::new(SHORT, 100), Some(SHORT)).unwrap();
        let (engine, drops) = (Redlock::new(options), Arc::new(AtomicBool::new(false)));
        let (first, second, dropping) =
            (runtime.handle().clone(), runtime.handle().clone(), drops.clone());
        let spawner = Spawner::new(move |task| drop(first.spawn(task))).beginning(move |task| {
            if !dropping.load(Ordering::Relaxed) {
                drop(second.spawn(task));
            }
        });
        let (clock, who) = (Clock::real(), Identity::of_test("host"));
        let events = EventSink::new(|_| ());
        let context = engine::Context { clock, events, spawner, who: who.clone() };
        runtime.block_on(later(engine.open(context))).unwrap();
        let at_rest = Self { runtime, engine, who, drops };
        // The scripts are there, and every connection as well.
        for _ in 0..2 {
            at_rest.turn();
            at_rest.until_forgotten();
        }
        at_rest
    }

    /// Takes a lock and gives it back while the runtime runs.
    fn turn(&self) {
        let mine = self.claim("a");
        let got = self.runtime.block_on(later(self.engine.attempt(&mine, Line::Join)));
        assert!(matches!(got, Attempt::Granted(_)), "{got:?}");
        let released = self.runtime.block_on(later(self.engine.release(&[mine.id], None)));
        assert!(matches!(released.ends[..], [End::Freed]));
    }

    fn until_forgotten(&self) {
        let quorum = self.engine.opened().unwrap();
        until("what is over is forgotten", || {
            self.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
            quorum.state().claims.is_empty()
        });
    }

    fn claim(&self, name: &str) -> Claim {
        Claim { ttl: LEASE, ..Claim::of_test(name, Mode::Exclusive, self.who.clone()) }
    }

    /// Asks in this thread, which reads whatever comes until it is answered.
    fn read_until_done<T: Send + 'static>(&self, ask: impl FnOnce(&dyn Engine) -> Answer<T>) -> T {
        let _entered = self.runtime.enter();
        let (begun, mut answer) = (Instant::now(), pin!(later(ask(&self.engine))));
        loop {
            let polled = answer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            if let Poll::Ready(value) = polled {
                return value;
            }
            assert!(begun.elapsed() < PATIENCE, "no answer came");
            let inlet = self.engine.inlet().unwrap();
            let mut socket = [PollFd::new(inlet.socket().unwrap().as_fd(), PollFlags::POLLIN)];
            poll(&mut socket, PollTimeout::from(1_000u16)).unwrap();
            inlet.take(true);
        }
    }
}

fn later<T: Send + 'static>(answer: Answer<T>) -> BoxFuture<T> {
    match answer {
        Answer::Now(value) => Box::pin(std::future::ready(value)),
        Answer::Later(answer) => answer,
    }
}

#[test]
fn a_caller_takes_a_lock_and_gives_it_back_while_the_keepers_thread_does_nothing() {
    let quorum = Quorum::of(3);
    let one = AtRest::of(&quorum);
    for _ in 0..3 {
        let mine = one.claim("a");
        let got = one.read_until_done(|engine| engine.attempt(&mine, Line::Join));
        assert!(matches!(got, Attempt::Granted(_)), "{got:?}");
        let released = one.read_until_done(|engine| engine.release(&[mine.id], None));
        assert!(matches!(released.ends[..], [End::Freed]));
    }
}

#[test]
fn a_look_ends_where_members_are_silent_and_asked_for_no_longer_than_a_request_lasts() {
    let quorum = Quorum::of(3);
    let one = AtRest::at(&quorum.url_with(SOME_AWAY));
    quorum.0[..2].iter().for_each(RedisServer::stop);
    let query = Query::One(Kind::Lock, Name::new("a").unwrap());
    let told = one.runtime.block_on(later(one.engine.read(&query)));
    assert!(told.is_err(), "one of three is not enough");
    quorum.0[..2].iter().for_each(RedisServer::go_on);
}

#[test]
fn what_is_over_is_forgotten_though_nobody_hears_the_last_answers() {
    let quorum = Quorum::of(3);
    let one = AtRest::of(&quorum);
    quorum.0[2].stop();
    one.drops.store(true, Ordering::Relaxed);
    one.turn();
    quorum.0[2].go_on();
    one.until_forgotten();
}

#[test]
fn a_free_lock_costs_a_member_six_commands_and_its_release_four() {
    let quorum = Quorum::of(3);
    // Each knows the scripts, whichever is late to what follows.
    quorum.warm(&quorum.process());
    quorum.until_clean("warm");
    let one = AtRest::of(&quorum);
    quorum.0.iter().for_each(|server| drop(server.command(&["CONFIG", "RESETSTAT"])));
    let mine = one.claim("a");
    one.read_until_done(|engine| engine.attempt(&mine, Line::Join));
    one.read_until_done(|engine| engine.release(&[mine.id], None));
    for member in &quorum.0 {
        let mut calls = Vec::new();
        // One answer may be on its way still.
        until("it was asked for both", || {
            let info = member.command(&["INFO", "commandstats"]).concat();
            let of = |line: &str| {
                let (command, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
                let calls: u32 = rest.split(',').next()?.parse().ok()?;
                Some((command.to_owned(), calls))
            };
            calls = info.lines().filter_map(of).collect();
            calls.iter().any(|(command, calls)| command == "evalsha" && *calls == 2)
        });
        calls.retain(|(command, _)| {
            // `top` is written once a second.
            !matches!(&**command, "evalsha" | "hset" | "info" | "ping") && !command.contains('|')
        });
        calls.sort_unstable();
        let due = [
            ("del", 1),
            ("exists", 2),
            ("get", 2),
            ("hmget", 1),
            ("publish", 1),
            ("set", 2),
            ("time", 1),
        ];
        assert_eq!(calls, due.map(|(command, calls)| (command.to_owned(), calls)));
    }
}
