//! The public API on the memory engine, as its first user.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lockkeeper::{ErrorKind, Kind, Locks, Lost, Owner, Released};

/// Only what hangs takes longer than this.
const HANGS: Duration = Duration::from_secs(120);

#[tokio::test]
async fn an_uncontended_lock_is_taken_and_given_back() {
    let locks = Locks::open("memory:").await.unwrap();
    let stock = locks.mutex("stock");
    let first = stock.lock().await.unwrap();
    let token = first.token().unwrap();
    assert!(stock.try_lock().await.unwrap().is_none());
    assert!(first.release().await.is_clean());
    let second = stock.try_lock().await.unwrap().unwrap();
    assert!(second.token().unwrap() > token, "BROKEN LOCK: a token went back");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn ten_tasks_and_two_locks_of_one_name_exclude_each_other() {
    let inside = Arc::new(AtomicU32::new(0));
    let mut tasks = Vec::new();
    for client in 0..2 {
        let locks = Locks::open("memory:ten").await.unwrap();
        for _ in 0..10 {
            let (locks, inside) = (locks.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                let stock = locks.mutex("stock");
                let mut last = None;
                for _ in 0..100 {
                    let guard = stock.lock().await.unwrap();
                    assert_eq!(
                        inside.fetch_add(1, Ordering::SeqCst),
                        0,
                        "client {client}: BROKEN LOCK: two holders"
                    );
                    tokio::task::yield_now().await;
                    let token = guard.token().unwrap();
                    assert!(last.is_none_or(|last| last < token), "BROKEN LOCK: a token went back");
                    last = Some(token);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            }));
        }
    }
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_timeout_names_the_holder_and_leaves_nothing() {
    let locks = Locks::open("memory:").await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    let error = locks.mutex("a").lock().timeout(Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert_eq!(error.holder().and_then(|h| h.pid), Some(std::process::id()));
    assert!(guard.release().await.is_clean());
    let entry = locks.status(Kind::Lock, "a").await.unwrap();
    assert!(entry.holders.is_empty() && entry.waiters.is_empty());
}

#[tokio::test]
async fn r5_an_offer_that_nobody_polls_moves_on_after_a_second() {
    let one = Locks::open("memory:r5").await.unwrap();
    let two = Locks::open("memory:r5").await.unwrap();
    let held = one.mutex("a").lock().await.unwrap();
    let waiting = two.mutex("a");
    let mut parked = Box::pin(std::future::IntoFuture::into_future(waiting.lock()));
    assert!(
        std::future::poll_fn(|cx| std::task::Poll::Ready(parked.as_mut().poll(cx).is_pending()))
            .await
    );
    let three = Locks::open("memory:r5").await.unwrap();
    let third = tokio::spawn(async move { three.mutex("a").lock().await.unwrap().release().await });
    tokio::task::yield_now().await;
    drop(held);
    let got = tokio::time::timeout(HANGS, third)
        .await
        .expect("the offer to the parked future moved on")
        .unwrap();
    assert!(got.is_clean());
    let guard =
        tokio::time::timeout(HANGS, parked).await.expect("the parked future asks anew").unwrap();
    assert!(guard.release().await.is_clean());
}

#[tokio::test]
async fn readers_share_writers_do_not_and_an_upgrade_waits_for_the_readers() {
    let locks = Locks::open("memory:").await.unwrap();
    let lock = locks.rwlock("catalog");
    let one = lock.read().await.unwrap();
    let mut up = lock.upgradable().await.unwrap();
    assert!(lock.try_write().await.unwrap().is_none());
    assert_eq!(
        up.upgrade().timeout(Duration::from_millis(20)).await.unwrap_err().kind(),
        ErrorKind::TimedOut
    );
    let before = up.token().unwrap();
    drop(one);
    let writing = up.upgrade().timeout(HANGS).await.unwrap();
    assert!(writing.token().unwrap() > before, "BROKEN LOCK: a token went back");
    assert!(lock.try_read().await.unwrap().is_none());
    drop(writing);
    let beside = lock.read().timeout(HANGS).await.unwrap();
    drop((beside, up));
    let write = lock.write().await.unwrap();
    let read = write.downgrade().await.unwrap();
    assert!(lock.try_read().await.unwrap().is_some());
    drop(read);
}

#[tokio::test]
async fn permits_are_weighted_and_the_limit_is_stored() {
    let locks = Locks::open("memory:").await.unwrap();
    let mut gpu = locks.semaphore("gpu", 3);
    let two = gpu.acquire(2).await.unwrap();
    assert_eq!(two.token().unwrap_err().kind(), ErrorKind::NoToken);
    assert!(gpu.try_acquire(2).await.unwrap().is_none());
    assert!(gpu.try_acquire(1).await.unwrap().is_some());
    assert_eq!(
        locks.semaphore("gpu", 4).acquire(1).await.unwrap_err().kind(),
        ErrorKind::LimitMismatch
    );
    assert_eq!(gpu.acquire(4).await.unwrap_err().kind(), ErrorKind::InvalidArgument);
    gpu.resize(4).await.unwrap();
    assert!(gpu.try_acquire(2).await.unwrap().is_some());
    drop(two);
}

#[tokio::test]
async fn r8_owners_enter_again_and_never_wait_for_themselves() {
    let locks = Locks::open("memory:").await.unwrap();
    let (me, stock) = (Owner::new(), locks.mutex("stock"));
    let outer = stock.lock().owner(&me).await.unwrap();
    let inner = me.scope(async { stock.lock().await }).await.unwrap();
    assert_eq!(outer.token().unwrap(), inner.token().unwrap());
    drop(outer);
    assert!(stock.try_lock().await.unwrap().is_none(), "one guard is left");
    drop(inner);
    assert!(stock.try_lock().await.unwrap().is_some());

    let strict = Owner::strict();
    let _guard = stock.lock().owner(&strict).await.unwrap();
    assert_eq!(stock.lock().owner(&strict).await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
    let reader = locks.rwlock("r").read().owner(&me).await.unwrap();
    assert_eq!(
        locks.rwlock("r").write().owner(&me).await.unwrap_err().kind(),
        ErrorKind::WouldDeadlock
    );
    drop(reader);
}

#[tokio::test]
async fn all_is_all_or_nothing() {
    let locks = Locks::open("memory:").await.unwrap();
    let (a, b) = (locks.mutex("a"), locks.mutex("b"));
    let both = locks.all([b.lock(), a.lock()]).await.unwrap();
    assert_eq!(both.guards().len(), 2);
    assert_eq!(both.guards()[0].held().name().as_str(), "b");
    assert!(a.try_lock().await.unwrap().is_none());
    drop(both);
    let held = b.lock().await.unwrap();
    let error =
        locks.all([a.lock(), b.lock()]).timeout(Duration::from_millis(30)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(a.try_lock().await.unwrap().is_some(), "nothing is left of the half that was obtained");
    drop(held);
    assert_eq!(locks.all([a.lock(), a.lock()]).await.unwrap_err().kind(), ErrorKind::WouldDeadlock);
}

#[tokio::test]
async fn a_latch_opens_and_an_election_is_seen() {
    let locks = Locks::open("memory:").await.unwrap();
    let latch = locks.latch("import");
    assert!(latch.set(2).await.unwrap());
    assert!(!latch.set(2).await.unwrap());
    let waiting = tokio::spawn({
        let latch = latch.clone();
        async move { latch.wait().timeout(HANGS).await }
    });
    assert!(!latch.count_down().await.unwrap());
    assert!(latch.count_down().await.unwrap());
    waiting.await.unwrap().unwrap();

    let election = locks.election("scheduler");
    let mut seen = election.observe().await.unwrap();
    assert_eq!(seen.next().await.unwrap(), None);
    let led = tokio::spawn({
        let election = election.clone();
        async move { election.run("host-a", |term| async move { term.token().unwrap() }).await }
    });
    assert!(led.await.unwrap().is_ok());
    let term = election.stand("host-b").await.unwrap();
    loop {
        if seen.next().await.unwrap().is_some_and(|leader| leader.id == "host-b") {
            break;
        }
    }
    drop(term);
}

#[tokio::test]
async fn r6_close_makes_guards_lost_and_refuses_new_claims() {
    let locks = Locks::open("memory:").await.unwrap();
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(locks.close().await.unknown, []);
    assert_eq!(guard.lost().await, Lost::Closed);
    assert!(matches!(guard.release().await, Released::AlreadyLost(Lost::Closed)));
    assert_eq!(locks.mutex("a").lock().await.unwrap_err().kind(), ErrorKind::Closed);
}

#[test]
fn threads_wait_without_a_runtime_and_never_for_themselves() {
    let locks = lockkeeper::blocking::Locks::open("memory:").unwrap();
    let guard = locks.mutex("a").lock().run().unwrap();
    assert_eq!(locks.mutex("a").lock().run().unwrap_err().kind(), ErrorKind::WouldDeadlock);
    let other = std::thread::spawn({
        let locks = locks.clone();
        move || locks.mutex("a").lock().run().map(|g| g.release().is_clean())
    });
    assert!(guard.release().is_clean());
    assert!(other.join().unwrap().unwrap());
}

#[tokio::test]
async fn r16_a_turn_ends_when_it_is_held_too_long() {
    let locks = Locks::open("memory:").await.unwrap();
    let stuck = locks.mutex("a").lock().hold_at_most(Duration::from_millis(30)).await.unwrap();
    let next = locks.mutex("a").lock().timeout(HANGS).await.unwrap();
    assert_eq!(stuck.lost().await, Lost::HeldTooLong);
    drop((next, stuck));
}

#[tokio::test]
async fn r6_close_ends_watches_and_latch_waits() {
    let locks = Locks::open("memory:").await.unwrap();
    let latch = locks.latch("never");
    latch.set(1).await.unwrap();
    let waiting = tokio::spawn(async move { latch.wait().await });
    let mut watch = locks.watch("").await.unwrap();
    watch.next().await.unwrap();
    let _ = locks.close().await;
    let closed = tokio::time::timeout(HANGS, watch.next()).await.expect("a closed watch ends");
    assert_eq!(closed.unwrap_err().kind(), ErrorKind::Closed);
    let ended = tokio::time::timeout(HANGS, waiting).await.expect("a closed wait ends").unwrap();
    assert_eq!(ended.unwrap_err().kind(), ErrorKind::Closed);
}

#[tokio::test]
async fn r2_a_reentrant_acquire_on_a_lost_hold_fails_until_its_guard_is_gone() {
    let locks = Locks::open("memory:").await.unwrap();
    let me = Owner::new();
    let lost = locks.mutex("a").lock().owner(&me).await.unwrap();
    assert!(locks.force_release(Kind::Lock, "a").await.unwrap());
    assert_eq!(lost.lost().await, Lost::TakenAway);
    assert_eq!(locks.mutex("a").lock().owner(&me).await.unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(lost.release().await, Released::AlreadyLost(Lost::TakenAway)));
    assert!(locks.mutex("a").lock().owner(&me).await.is_ok());
}

#[tokio::test]
async fn r7_tokens_rise_also_within_one_tick_of_the_clock() {
    let locks = Locks::open("memory:").await.unwrap();
    let stock = locks.mutex("stock");
    let mut last = None;
    for _ in 0..2_000 {
        let token = stock.lock().await.unwrap().token().unwrap();
        assert!(last.is_none_or(|last| last < token), "BROKEN LOCK: {last:?} then {token:?}");
        last = Some(token);
    }
}

#[tokio::test]
async fn only_a_random_word_is_swept() {
    let locks = Locks::open("memory:").await.unwrap();
    for wrong in [
        "",
        "bench",
        "bench-*",
        "0123456789ab",
        "-0123456789ab",
        "bench-0123456789/",
        "bench-0123456789a",
        "bench-0123456789abc",
        "bench-0123456789AB",
        "bench-000000000000",
        "nightly-backup-of-all",
        "orders-import",
        "bench-x-0123456789ab",
        "*-0123456789ab",
        "a/b/c/d/e/f/g",
        "[a-z]-0123456789ab",
    ] {
        assert_eq!(
            locks.sweep(wrong).await.unwrap_err().kind(),
            ErrorKind::InvalidArgument,
            "{wrong:?}"
        );
    }
    let word = Locks::sweep_word("bench");
    assert_ne!(word, Locks::sweep_word("bench"));
    assert!(!locks.sweep(&word).await.unwrap(), "memory keeps nothing");
}

#[tokio::test]
async fn r15_a_closed_locks_looks_for_no_other_layouts() {
    let locks = Locks::open("memory:").await.unwrap();
    assert!(locks.other_layouts("x").await.unwrap().is_empty());
    assert!(locks.other_layouts("").await.is_err(), "no name");
    let _ = locks.close().await;
    let error = locks.other_layouts("x").await.unwrap_err();
    assert_eq!(error.kind(), lockkeeper::ErrorKind::Closed);
}
