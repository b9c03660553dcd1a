//! What mutual exclusion is, for whatever gives it: a mutex, a writer, the only permit, the last
//! permit.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lockkeeper::{Ability, ErrorKind, Locks};

use crate::conformance::awaited::Awaited;
use crate::conformance::grip::Way;
use crate::conformance::occupancy::Occupancy;
use crate::conformance::trial::{HANGS, Timer, Trial, until, within};

pub(super) async fn one_holds_it_and_the_next_waits(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let (one, two) = (t.open().await, t.open().await);
    let first = way.lock(&t, &one, &name).await.expect("it is free");
    assert!(
        way.try_lock(&t, &two, &name).await.expect("it can be tried").is_none(),
        "somebody holds it"
    );
    let next = tokio::spawn(way.lock(&t, &two, &name));
    t.until_waiting(&one, way.kind(), &name, 1).await;
    assert!(!next.is_finished());
    assert!(first.release().await.is_clean());
    let second =
        within(HANGS, "the next gets it", next).await.expect("no panic").expect("it is free");
    assert!(!second.is_lost());
    assert!(second.release().await.is_clean());
    drop(beside);
}

pub(super) async fn a_dropped_guard_frees_it(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let (one, two) = (t.open().await, t.open().await);
    for _ in 0..3 {
        drop(way.lock(&t, &one, &name).await.expect("it is free"));
        let there = within(HANGS, "a dropped guard frees it", way.lock(&t, &two, &name))
            .await
            .expect("it is free");
        drop(there);
        drop(
            within(HANGS, "a dropped guard frees it", way.lock(&t, &one, &name))
                .await
                .expect("it is free"),
        );
    }
    drop(beside);
}

pub(super) async fn a_timeout_names_the_holder_and_leaves_nothing(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let (one, two) = (t.open().await, t.open().await);
    let held = way.lock(&t, &one, &name).await.expect("it is free");
    for (locks, here) in [(&one, true), (&two, false)] {
        let mut patience = Duration::from_millis(60);
        // On a busy machine the engine may not be heard within that.
        let (error, holder) = loop {
            let error =
                way.lock_with(locks, &name, Some(patience)).await.err().expect("somebody holds it");
            assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
            match error.holder().cloned() {
                Some(holder) => break (error, Some(holder)),
                // Nobody wrote down who it is (C19).
                None if !here && !t.about().can.has(Ability::Identity) && !t.shows_locks() => {
                    break (error, None);
                }
                None => patience *= 2,
            }
            assert!(patience < HANGS, "a timeout names the holder");
        };
        let Some(holder) = holder else { continue };
        // A client knows its own holders, whatever the layout writes down.
        if here || t.about().can.has(Ability::Identity) {
            assert_eq!(holder.pid, Some(std::process::id()), "{error}");
        } else {
            // What the layout writes down about it, and nothing else.
            assert!(holder.label.is_some() && holder.pid.is_none(), "{holder:?}");
        }
    }
    t.until_shows(&one, way.kind(), &name, usize::from(beside.is_some()) + 1, 0).await;
    assert!(held.release().await.is_clean());
    t.until_free(&one, way.kind(), &name, usize::from(beside.is_some())).await;
}

pub(super) async fn a_try_does_not_wait_and_leaves_nothing(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let (one, two) = (t.open().await, t.open().await);
    let held = way.try_lock(&t, &one, &name).await.expect("it can be tried").expect("it is free");
    for _ in 0..5 {
        assert!(way.try_lock(&t, &one, &name).await.expect("it can be tried").is_none());
        assert!(way.try_lock(&t, &two, &name).await.expect("it can be tried").is_none());
    }
    assert!(t.shown(&two, way.kind(), &name).await.is_none_or(|entry| entry.waiters.is_empty()));
    assert!(held.release().await.is_clean());
    t.until_free(&one, way.kind(), &name, usize::from(beside.is_some())).await;
    drop(way.try_lock(&t, &two, &name).await.expect("it can be tried").expect("it is free"));
}

pub(super) async fn g17_every_task_gets_its_turns_and_never_two_at_once(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let occupancy =
        Arc::new(Occupancy::open(&dir.path().join("count")).expect("the count can be opened"));
    let rounds = u64::from(t.times(30));
    let mut tasks = Vec::new();
    for _ in 0..2 {
        let locks = t.open().await;
        for _ in 0..8 {
            let (t, locks, name) = (t.clone(), locks.clone(), name.clone());
            let occupancy = occupancy.clone();
            tasks.push(tokio::spawn(async move {
                for _ in 0..rounds {
                    let turn = way.lock(&t, &locks, &name).await;
                    let turn = turn.expect("every claim is granted at last");
                    let token = if way.has_token() { turn.token().ok() } else { None };
                    occupancy.alone(token, tokio::task::yield_now()).await;
                    drop(turn);
                }
            }));
        }
    }
    for task in tasks {
        within(HANGS, "every task gets its turns", task).await.expect("no panic");
    }
    assert_eq!(occupancy.violations(), 0, "BROKEN LOCK: two holders");
    assert_eq!(occupancy.turns(), 16 * rounds);
    drop(beside);
}

pub(super) async fn r5_g18_an_acquisition_dropped_at_any_poll_leaves_nothing(
    t: Arc<Trial>,
    way: Way,
) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let others = usize::from(beside.is_some());
    let (one, two) = (t.open().await, t.open().await);
    let rest = t.at_rest(&one).await;
    for situation in ["free", "held there", "held here", "freed meanwhile"] {
        for delay_us in [0, 100, 2_000] {
            for polls in 1.. {
                let holder = match situation {
                    "free" => None,
                    "held here" => Some(way.lock(&t, &one, &name).await.expect("it is free")),
                    _ => Some(way.lock(&t, &two, &name).await.expect("it is free")),
                };
                let claim = way.lock(&t, &one, &name);
                let freed = (situation == "freed meanwhile")
                    .then(|| holder.map(|holder| tokio::spawn(holder.release())));
                let granted = poll_times(claim, polls, Duration::from_micros(delay_us)).await;
                if let Some(Some(freed)) = freed {
                    assert!(freed.await.expect("no panic").is_clean());
                }
                t.until_free(&two, way.kind(), &name, others).await;
                // Whoever comes next finds it free, here and there.
                assert!(
                    within(HANGS, "it is free", way.lock(&t, &two, &name))
                        .await
                        .expect("it is free")
                        .release()
                        .await
                        .is_clean()
                );
                assert!(
                    within(HANGS, "it is free", way.lock(&t, &one, &name))
                        .await
                        .expect("it is free")
                        .release()
                        .await
                        .is_clean()
                );
                if granted || polls >= 4 {
                    break;
                }
            }
        }
    }
    t.until_free(&two, way.kind(), &name, others).await;
    until("the client keeps nothing", || async {
        let kept = lockkeeper::test_util::residue(&one);
        (kept.claims, kept.leases, kept.names) == (rest.claims, rest.leases, rest.names)
            && kept.tasks <= rest.tasks
    })
    .await;
}

/// Polls a future so many times, waiting a little for its wake-up in between, and drops it; answers
/// whether it was ready.
async fn poll_times<T>(
    mut future: std::pin::Pin<Box<impl Future<Output = T> + ?Sized>>,
    polls: u32,
    pause: Duration,
) -> bool {
    for poll in 0..polls {
        let ready =
            std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready()))
                .await;
        if ready {
            return true;
        }
        if poll + 1 < polls {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    if pause > Duration::ZERO {
        tokio::time::sleep(pause).await;
    }
    false
}

pub(super) async fn r5_an_offer_that_nobody_polls_moves_on_after_a_second(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let (one, two, three) = (t.open().await, t.open().await, t.open().await);
    let held = way.lock(&t, &one, &name).await.expect("it is free");
    let mut parked = way.lock(&t, &two, &name);
    let mut context = Context::from_waker(Waker::noop());
    assert!(parked.as_mut().poll(&mut context).is_pending());
    t.until_waiting(&one, way.kind(), &name, 1).await;
    // Behind the parked future: one of its own process, then one of another.
    let take = |locks: &Locks| {
        let claim = way.lock(&t, locks, &name);
        tokio::spawn(async move {
            let turn = claim.await.expect("it is granted");
            let got = Instant::now();
            assert!(turn.release().await.is_clean());
            got
        })
    };
    let (next, last) = (take(&two), take(&three));
    t.until_waiting(&one, way.kind(), &name, 2).await;
    let began = Instant::now();
    assert!(held.release().await.is_clean());
    let next = within(HANGS, "the offer moves on to the next of its process", next)
        .await
        .expect("no panic");
    let last = within(HANGS, "and to others", last).await.expect("no panic");
    // Without an order between processes, the other one may come first; within its own, the offer
    // is before it.
    let waited =
        if t.about().can.is_fair(way.kind()) { next.min(last) } else { next }.duration_since(began);
    assert!(
        waited > Duration::from_millis(700),
        "an offer waits a second, and this one {waited:?}"
    );
    let late = within(HANGS, "whoever was parked asks anew", parked).await.expect("it is granted");
    assert!(late.release().await.is_clean());
    drop(beside);
}

pub(super) async fn closing_the_client_frees_it(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let (one, two) = (t.open().await, t.open().await);
    let held = way.lock(&t, &one, &name).await.expect("it is free");
    let next = tokio::spawn(way.lock(&t, &two, &name));
    t.until_waiting(&two, way.kind(), &name, 1).await;
    assert_eq!(within(HANGS, "it closes", one.close()).await.unknown, []);
    assert!(held.is_lost());
    drop(within(HANGS, "closing frees it", next).await.expect("no panic").expect("it is granted"));
    drop(beside);
}

pub(super) async fn two_processes_exclude_each_other(t: Arc<Trial>, way: Way) {
    let name = t.name("a");
    let beside = way.prepare(&t, &name).await;
    let (locks, there) = (t.open().await, t.helper().await);
    let held = way.lock(&t, &locks, &name).await.expect("it is free");
    assert_eq!(there.try_lock(way.mode(), &name).await, Ok(None));
    let refused = there.lock(way.mode(), &name, Duration::from_millis(80)).await;
    assert_eq!(refused.map_err(|e| e.kind), Err("timed-out".to_owned()));
    assert!(held.release().await.is_clean());
    let turn = there.lock(way.mode(), &name, HANGS).await.expect("it is free");
    assert!(way.try_lock(&t, &locks, &name).await.expect("it can be tried").is_none());
    assert_eq!(there.release(turn).await.as_deref(), Ok("clean"));
    assert!(way.lock(&t, &locks, &name).await.expect("it is free").release().await.is_clean());
    drop(beside);
}

pub(super) async fn r14_a_killed_holder_frees_it_within_the_promised_time(t: Arc<Trial>, way: Way) {
    let locks = t.open().await;
    let held = Awaited::of(&t, way, &locks).await;
    let promised = held.about.recovery;
    let timer = Timer::start();
    held.there.kill();
    let got = within(promised + HANGS, "the lock of a killed holder is free", held.next)
        .await
        .expect("no panic")
        .expect("it is granted");
    timer.keeps(promised);
    assert!(got.release().await.is_clean());
}
