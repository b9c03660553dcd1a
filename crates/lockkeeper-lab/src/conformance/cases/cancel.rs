//! R5: whatever is dropped, at whatever poll, leaves nothing behind.

use std::future::{Future, IntoFuture};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper::test_util::residue;
use lockkeeper::{Kind, Locks};

use crate::conformance::quiet;
use crate::conformance::trial::{HANGS, Trial, note, until, within};

/// Polls a future so many times and drops it; answers what it came to, if it did.
async fn polled<T>(future: impl Future<Output = T>, polls: u32) -> Option<T> {
    let mut future = pin!(future);
    for poll in 0..polls {
        let step = std::future::poll_fn(|context| {
            Poll::Ready(match future.as_mut().poll(context) {
                Poll::Ready(value) => Some(value),
                Poll::Pending => None,
            })
        });
        if let Some(value) = step.await {
            return Some(value);
        }
        if poll + 1 < polls {
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }
    None
}

/// Runs a scenario for one poll more each time, until its future is ready.
async fn at_every_poll<F: Future<Output = bool>>(mut scenario: impl FnMut(u32) -> F) {
    for polls in 1..8 {
        if scenario(polls).await {
            return;
        }
    }
}

pub(super) async fn r5_an_upgrade_dropped_at_any_poll_leaves_the_guard_as_it_was(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    for beside_reader in [true, false] {
        let name = t.name(if beside_reader { "beside a reader" } else { "alone" });
        let reader = if beside_reader {
            Some(two.rwlock(&name).read().await.expect("it is free"))
        } else {
            None
        };
        let mut up = one.rwlock(&name).upgradable().await.expect("it is free");
        for polls in 1..6 {
            let upgraded = polled(up.upgrade().into_future(), polls).await;
            let done = upgraded.is_some();
            drop(upgraded);
            assert!(!(done && beside_reader), "a reader is there");
            // As it was: other readers come in, writers do not, and it can still upgrade.
            let beside = within(HANGS, "readers come in", two.rwlock(&name).read().into_future())
                .await
                .expect("it is shared");
            assert!(two.rwlock(&name).try_write().await.expect("it can be tried").is_none());
            assert!(beside.release().await.is_clean());
            up.check().expect("the guard is as it was");
            if done {
                break;
            }
        }
        drop(reader);
        let writing =
            within(HANGS, "it upgrades", up.upgrade().into_future()).await.expect("nobody reads");
        drop(writing);
        assert!(up.release().await.is_clean());
        t.until_free(&two, Kind::Lock, &name, 0).await;
    }
}

pub(super) async fn r5_an_upgrade_dropped_while_it_is_granted_is_taken_back(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let mut up = one.rwlock(&name).upgradable().await.expect("it is free");
    for round in 0..t.times(40) {
        let reader = two
            .rwlock(&name)
            .read()
            .timeout(HANGS)
            .await
            .unwrap_or_else(|e| panic!("round {round}: readers come in: {e}"));
        {
            let mut upgrade = up.upgrade().into_future();
            assert!(
                std::future::poll_fn(|cx| Poll::Ready(upgrade.as_mut().poll(cx).is_pending()))
                    .await,
                "a reader is there"
            );
            drop(reader);
            // Somewhere on this way the grant comes.
            tokio::time::sleep(Duration::from_micros(u64::from(round % 10) * 30)).await;
        }
        up.check().expect("the guard is as it was");
    }
    assert!(up.release().await.is_clean());
}

pub(super) async fn r5_a_downgrade_dropped_at_any_poll_gives_the_lock_back(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    at_every_poll(|polls| {
        let (write, two, name) = (one.rwlock(&name).write(), two.clone(), name.clone());
        async move {
            let write = write.await.expect("it is free");
            let read = polled(write.downgrade(), polls).await;
            let done = read.is_some();
            drop(read);
            let next = within(HANGS, "it was given back", two.rwlock(&name).write().into_future())
                .await
                .expect("it is free");
            assert!(next.release().await.is_clean());
            done
        }
    })
    .await;
}

pub(super) async fn r5_several_locks_dropped_at_any_poll_leave_nothing(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let rest = t.at_rest(&one).await;
    let names = [t.name("a"), t.name("b"), t.name("c")];
    for busy in [None, Some(1)] {
        at_every_poll(|polls| {
            let (one, two, names) = (one.clone(), two.clone(), names.clone());
            async move {
                let held = match busy {
                    Some(at) => Some(two.mutex(&names[at]).lock().await.expect("it is free")),
                    None => None,
                };
                let all = polled(
                    one.all(names.each_ref().map(|name| one.mutex(name).lock())).into_future(),
                    polls,
                )
                .await;
                let done = all.is_some();
                drop((all, held));
                for name in &names {
                    let next =
                        within(HANGS, "nothing is left", two.mutex(name).lock().into_future())
                            .await
                            .expect("it is free");
                    assert!(next.release().await.is_clean());
                }
                done
            }
        })
        .await;
    }
    for name in &names {
        t.until_nothing_is_left(&one, &two, Kind::Lock, name, rest).await;
    }
}

pub(super) async fn r5_waiting_for_a_latch_dropped_at_any_poll_leaves_no_watch(t: Arc<Trial>) {
    let locks = t.open().await;
    let latch = locks.latch(t.name("a"));
    assert!(latch.set(1).await.expect("it can be set"));
    for polls in 1..6 {
        assert!(polled(latch.wait().into_future(), polls).await.is_none(), "it is closed");
    }
    until("no watch is left", || async { residue(&locks).watches == 0 }).await;
    assert!(latch.count_down().await.expect("it can be counted down"));
    within(HANGS, "it is open", latch.wait().into_future()).await.expect("it is open");
    until("no watch is left", || async { residue(&locks).watches == 0 }).await;
}

pub(super) async fn r5_watching_dropped_at_any_poll_leaves_no_watch(t: Arc<Trial>) {
    let locks = t.open().await;
    for polls in 1..6 {
        let prefix = t.name("");
        let following = async {
            let mut watch = locks.watch(&prefix).await.expect("it can be watched");
            watch.next().await.expect("the state is told");
            watch.next().await.expect("nothing changes")
        };
        assert!(polled(following, polls).await.is_none(), "nothing changes");
    }
    until("no watch is left", || async { residue(&locks).watches == 0 }).await;
}

pub(super) async fn r5_cancels_at_random_instants_lose_nothing(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let rest = (t.at_rest(&one).await, t.at_rest(&two).await);
    // Half of them have the time that a free lock takes here, and every instant in it is one of
    // theirs.
    let began = std::time::Instant::now();
    let free = one.mutex(&name).lock().await.expect("it is free");
    let (least, most) = (Duration::from_micros(400), Duration::from_millis(20));
    let longest = began.elapsed().saturating_mul(2).clamp(least, most);
    let longest = u32::try_from(longest.as_micros()).expect("it took less than an hour");
    assert!(free.release().await.is_clean());
    let mut tasks = Vec::new();
    let rounds = t.times(500);
    for task in 0..8u64 {
        let (locks, name) = (if task % 2 == 0 { one.clone() } else { two.clone() }, name.clone());
        tasks.push(tokio::spawn(async move {
            // A schedule of its own for each task, the same in every run.
            let mut dice = lockkeeper_testkit::dice::Dice::new(task);
            let mut got = 0;
            for _ in 0..rounds {
                let patience = Duration::from_micros(dice.below(longest.into()));
                if let Ok(guard) =
                    tokio::time::timeout(patience, locks.mutex(&name).lock().into_future()).await
                {
                    let guard = guard.expect("a claim is granted or waits");
                    got += 1;
                    if dice.below(3) == 0 {
                        tokio::task::yield_now().await;
                    }
                    drop(guard);
                }
            }
            got
        }));
    }
    let mut got = 0;
    for task in tasks {
        got += within(HANGS, "no claim is lost", task).await.expect("no panic");
    }
    assert!(got > 0, "somebody got it");
    let last = within(HANGS, "it is free", one.mutex(&name).lock().into_future())
        .await
        .expect("it is free");
    assert!(last.release().await.is_clean());
    t.until_nothing_is_left(&one, &two, Kind::Lock, &name, rest.0).await;
    t.until_nothing_is_left(&two, &one, Kind::Lock, &name, rest.1).await;
}

pub(super) async fn r5_a_released_guard_leaves_nothing(t: Arc<Trial>) {
    let locks = t.open().await;
    let rest = t.at_rest(&locks).await;
    for round in 0..10 {
        let guard = t.lock(&locks, &t.name(&round.to_string())).await.expect("it is free");
        if round % 2 == 0 {
            assert!(guard.release().await.is_clean());
        } else {
            drop(guard);
        }
    }
    until("nothing is left of any name", || async {
        let kept = residue(&locks);
        note(format!("{kept:?}, before it {rest:?}"));
        kept.names == rest.names && kept.claims == 0 && kept.leases == 0 && kept.tasks <= rest.tasks
    })
    .await;
}

pub(super) async fn r5_nothing_is_left_of_many_waiters(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let rest = (t.at_rest(&one).await, t.at_rest(&two).await);
    let before = quiet::at_rest().await;
    let names: Vec<String> = (0..t.times(40)).map(|n| t.name(&n.to_string())).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(t.lock(&one, name).await.expect("it is free"));
    }
    let mut waiting: Vec<Pin<Box<dyn Future<Output = _> + Send>>> = Vec::new();
    for name in &names {
        let mut future = Box::pin(t.lock(&two, name).into_future());
        assert!(
            std::future::poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
        );
        waiting.push(future);
    }
    if let Some(last) = names.last() {
        t.until_waiting(&one, Kind::Lock, last, 1).await;
    }
    drop(waiting);
    for guard in held {
        assert!(guard.release().await.is_clean());
    }
    for name in &names {
        t.until_nothing_is_left(&two, &one, Kind::Lock, name, rest.1).await;
    }
    t.until_nothing_is_left(&one, &two, Kind::Lock, &names[0], rest.0).await;
    // A client may keep what it has opened until it is closed, but no thread.
    quiet::until_threads_as_before(&before).await;
}

pub(super) async fn r5_opening_dropped_at_any_poll_leaves_nothing(t: Arc<Trial>) {
    let before = quiet::at_rest().await;
    at_every_poll(|polls| {
        let t = t.clone();
        async move {
            let opened: Option<Locks> = polled(t.open(), polls).await;
            let done = opened.is_some();
            drop(opened);
            done
        }
    })
    .await;
    quiet::until_as_before(&before).await;
}
