//! The keeper with its threads in every order that shuttle can think of: renewal, release, loss,
//! conversion, hand-off, close.
//!
//! `LOCKKEEPER_SCHEDULES=N` explores N orders of each instead of a few; a failure prints the one
//! that failed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shuttle::future::block_on;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::thread;

use super::server::{Server, TTL, Tasks};
use crate::observe::{Observer, Seen};
use crate::open::locks::Locks;
use crate::primitives::guard::Released;
use crate::sync::explored::explore;
use crate::test_util::residue;
use crate::words::claim::Mode;
use crate::words::clock::{Clock, Ticks};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// The same in every run, so that a failure comes again.
const SEED: u64 = 0x10c_4ee9;

/// Explores orders drawn at random, and ones that a bug of a few steps cannot hide from for long.
fn in_every_order(scenario: impl Fn() + Send + Sync + Clone + 'static) {
    let count =
        std::env::var("LOCKKEEPER_SCHEDULES").ok().and_then(|n| n.parse().ok()).unwrap_or(300);
    let ran = explore(RandomScheduler::new_from_seed(SEED, count), scenario.clone())
        + explore(PctScheduler::new_from_seed(SEED, 3, count), scenario);
    println!("{ran} orders");
    assert_eq!(ran, 2 * count);
}

/// A server, its clock, and what the keeper told.
struct World {
    server: Server,
    clock: Clock,
    locks: Locks,
    told: Arc<Told>,
}

/// What became of each turn.
#[derive(Default)]
struct Told(Mutex<HashMap<u64, Vec<&'static str>>>);

impl Observer for Told {
    fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
        let (claim, word) = match what {
            Seen::Got { claim, .. } => (*claim, "got"),
            Seen::Releasing { claim, .. } => (*claim, "released"),
            Seen::Lost { claim, .. } => (*claim, "lost"),
            _ => return,
        };
        self.0.lock().unwrap().entry(claim).or_default().push(word);
    }
}

impl World {
    fn new() -> Self {
        let clock = Clock::virtual_at(Duration::from_secs(1));
        let (server, told) = (Server::new(clock.clone()), Arc::new(Told::default()));
        let builder = Locks::builder()
            .clock(clock.clone())
            .observer(told.clone())
            .host(Arc::new(Tasks(clock.clone())));
        let locks = block_on(builder.with_engine(server.clone())).unwrap();
        Self { server, clock, locks, told }
    }

    /// Moves the clock in thirds of a lease, so that renewals are due.
    fn time_passes(&self, thirds: u32) -> thread::JoinHandle<()> {
        let clock = self.clock.clone();
        thread::spawn(move || {
            for _ in 0..thirds {
                clock.advance(TTL / 3);
                thread::yield_now();
            }
        })
    }

    /// Lets everything that is under way end, and sees that nothing is left behind.
    fn is_tidy(&self) {
        for _ in 0..200 {
            let left = residue(&self.locks);
            if (left.claims, left.leases, self.server.holders()) == (0, 0, 0) {
                break;
            }
            // The net, and releases that are repeated, go by the clock.
            self.clock.advance(Duration::from_millis(500));
            for _ in 0..20 {
                thread::yield_now();
            }
        }
        let left = residue(&self.locks);
        assert_eq!((left.claims, left.leases, self.server.holders()), (0, 0, 0), "{left:?}");
        for (claim, words) in self.told.0.lock().unwrap().iter() {
            assert!(
                matches!(words.as_slice(), ["got", "released" | "lost"]),
                "claim {claim} was told of as {words:?}"
            );
        }
    }
}

/// Looks at a turn again and again: what is lost stays lost, for the same reason (R2).
fn watched(held: crate::primitives::guard::Held) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut gone: Option<Lost> = None;
        for _ in 0..6 {
            let now = held.why_lost();
            assert!(gone.is_none() || gone == now, "{gone:?} became {now:?}");
            gone = now;
            thread::yield_now();
        }
    })
}

#[test]
fn g9_a_renewal_that_meets_a_release_revives_nothing_and_leaves_nothing() {
    in_every_order(|| {
        let world = World::new();
        let guard = block_on(async { world.locks.mutex("a").lock().await }).unwrap();
        let held = guard.held();
        let (time, view) = (world.time_passes(4), watched(held.clone()));
        let released = block_on(guard.release());
        assert!(held.is_lost(), "whoever still looks is told that it is over");
        assert_eq!(residue(&world.locks).leases, 0, "nobody renews it any more");
        assert!(
            matches!(
                released,
                Released::Clean | Released::AlreadyLost(Lost::Expired) | Released::NotOurs
            ),
            "{released:?}"
        );
        time.join().unwrap();
        view.join().unwrap();
        world.is_tidy();
    });
}

#[test]
fn r2_a_loss_that_meets_a_renewal_and_a_release_is_told_once_and_is_final() {
    in_every_order(|| {
        let world = World::new();
        let guard = block_on(async { world.locks.mutex("a").lock().await }).unwrap();
        let (time, view, server) =
            (world.time_passes(2), watched(guard.held()), world.server.clone());
        let operator = thread::spawn(move || server.take_away("a"));
        let released = block_on(guard.release());
        let known = [Lost::TakenAway, Lost::Expired];
        assert!(
            !matches!(&released, Released::AlreadyLost(why) if !known.contains(why)),
            "{released:?}"
        );
        assert!(!matches!(released, Released::Unknown(_)), "{released:?}");
        time.join().unwrap();
        view.join().unwrap();
        operator.join().unwrap();
        world.is_tidy();
    });
}

#[test]
fn r7_whoever_sees_the_mode_of_a_conversion_sees_its_token() {
    in_every_order(|| {
        let world = World::new();
        let mut guard = block_on(async { world.locks.rwlock("a").upgradable().await }).unwrap();
        let (before, cell) = (guard.token().unwrap(), guard.cell().clone());
        let view = thread::spawn(move || {
            let (mut last, mut changes) = (Mode::Upgradable, 0);
            for _ in 0..16 {
                let (mode, token) = (cell.mode(), cell.token().unwrap());
                changes += u64::from(mode != last);
                last = mode;
                // Every conversion has a number of its own, and a token is a number and six bits.
                let numbers = (token.get() >> 6) - (before.get() >> 6);
                assert!(numbers >= changes, "it is {mode:?} with the token that it had before");
            }
        });
        for _ in 0..2 {
            let writing = block_on(async { guard.upgrade().await }).unwrap();
            assert!(writing.token().unwrap() > before, "BROKEN LOCK: a token went back");
        }
        drop(guard);
        view.join().unwrap();
        world.is_tidy();
    });
}

#[test]
fn an_upgrade_that_meets_a_loss_ends_and_says_so() {
    in_every_order(|| {
        let world = World::new();
        let mut guard = block_on(async { world.locks.rwlock("a").upgradable().await }).unwrap();
        let (time, view, server) =
            (world.time_passes(1), watched(guard.held()), world.server.clone());
        let operator = thread::spawn(move || server.take_away("a"));
        block_on(async {
            match guard.upgrade().await {
                Ok(writing) => drop(writing),
                Err(error) => assert_eq!(error.kind(), crate::ErrorKind::Lost, "{error}"),
            }
        });
        drop(guard);
        time.join().unwrap();
        view.join().unwrap();
        operator.join().unwrap();
        world.is_tidy();
    });
}

#[test]
fn a_turn_is_one_tasks_at_a_time_whoever_leaves_the_line() {
    in_every_order(|| {
        let world = World::new();
        let inside = Arc::new(Mutex::new(0));
        let tasks: Vec<_> = (0..2)
            .map(|_| {
                let (locks, inside) = (world.locks.clone(), inside.clone());
                thread::spawn(move || {
                    let guard = block_on(async { locks.mutex("a").lock().await }).unwrap();
                    if !guard.is_lost() {
                        *inside.lock().unwrap() += 1;
                        assert_eq!(*inside.lock().unwrap(), 1, "two have the lock");
                        thread::yield_now();
                        *inside.lock().unwrap() -= 1;
                    }
                    drop(block_on(guard.release()));
                })
            })
            .collect();
        let locks = world.locks.clone();
        let leaver = thread::spawn(move || {
            let mut lock = Box::pin(async move { locks.mutex("a").lock().await });
            // Polled a few times and then dropped, also with an offer in its hands (R5).
            block_on(async {
                for _ in 0..4 {
                    if futures_once(&mut lock).await.is_some() {
                        break;
                    }
                    shuttle::future::yield_now().await;
                }
            });
        });
        tasks.into_iter().for_each(|task| task.join().unwrap());
        leaver.join().unwrap();
        world.is_tidy();
    });
}

/// One poll; what it gave is dropped.
async fn futures_once<F: Future + Unpin>(future: &mut F) -> Option<()> {
    std::future::poll_fn(|context| {
        std::task::Poll::Ready(match std::pin::Pin::new(&mut *future).poll(context) {
            std::task::Poll::Ready(_) => Some(()),
            std::task::Poll::Pending => None,
        })
    })
    .await
}

#[test]
fn r6_a_close_that_meets_a_renewal_and_a_release_ends_and_leaves_nothing() {
    in_every_order(|| {
        let world = World::new();
        let guard = block_on(async { world.locks.mutex("a").lock().await }).unwrap();
        let (time, view) = (world.time_passes(2), watched(guard.held()));
        let holder = thread::spawn(move || drop(block_on(guard.release())));
        let closed = block_on(world.locks.close());
        holder.join().unwrap();
        time.join().unwrap();
        view.join().unwrap();
        let left = residue(&world.locks);
        assert_eq!(left.leases, 0, "{left:?} {closed:?}");
    });
}
