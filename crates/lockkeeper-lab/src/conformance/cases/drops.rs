//! R6: a drop never blocks, panics or spawns; close ends everything.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::observe::{Observer, Seen};
use lockkeeper::{ErrorKind, Kind, Lost, Name, Released, Ticks};

use crate::conformance::quiet;
use crate::conformance::trial::{HANGS, Trial, within};

pub(super) async fn r6_a_guard_dropped_without_a_runtime_is_given_back(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let guard = t.lock(&one, &name).await.expect("it is free");
    // Where the engine can be cut off it is: who waited for an answer would wait for ever.
    t.cut_if_it_can_be().await;
    let dropped = tokio::task::spawn_blocking(|| std::thread::spawn(move || drop(guard)).join());
    let joined = within(HANGS, "a drop does not wait", dropped).await.expect("no panic");
    joined.expect("a drop does not panic");
    t.mend_if_it_was_cut().await;
    let next = within(HANGS, "it is given back", t.lock(&two, &name).into_future())
        .await
        .expect("it is free");
    assert!(next.release().await.is_clean());
}

pub(super) async fn r6_a_panicking_holder_gives_the_lock_back(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let guard = t.lock(&one, &name).await.expect("it is free");
    let holder = tokio::spawn(async move {
        let _kept = guard;
        std::panic::resume_unwind(Box::new("the work fails"));
    });
    assert!(holder.await.is_err());
    let next = within(HANGS, "it is given back", t.lock(&two, &name).into_future())
        .await
        .expect("it is free");
    assert!(next.release().await.is_clean());
}

struct Panics;

impl Observer for Panics {
    fn seen(&self, _: Ticks, _: Kind, _: &Name, _: &Seen) {
        std::panic::resume_unwind(Box::new("the observer fails"));
    }
}

pub(super) async fn r6_a_panicking_observer_stops_nothing(t: Arc<Trial>) {
    let name = t.name("a");
    let one = t.open_with(|builder| builder.observer(Arc::new(Panics))).await;
    let two = t.open().await;
    for _ in 0..3 {
        let guard = t.lock(&one, &name).await.expect("it is free");
        let next = tokio::spawn(t.lock(&two, &name).into_future());
        t.until_waiting(&two, Kind::Lock, &name, 1).await;
        assert!(guard.release().await.is_clean());
        let next = within(HANGS, "the next gets it", next)
            .await
            .expect("no panic")
            .expect("it is granted");
        assert!(next.release().await.is_clean());
    }
}

pub(super) async fn r6_close_makes_guards_lost_and_refuses_new_claims(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let guard = t.lock(&one, &name).await.expect("it is free");
    assert_eq!(within(HANGS, "it closes", one.close()).await.unknown, []);
    assert_eq!(within(HANGS, "the loss is announced", guard.lost()).await, Lost::Closed);
    assert!(matches!(guard.release().await, Released::AlreadyLost(Lost::Closed)));
    assert_eq!(t.lock(&one, &name).await.map(drop).map_err(|e| e.kind()), Err(ErrorKind::Closed));
    assert_eq!(
        one.mutex(&name).try_lock().await.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::Closed)
    );
    assert_eq!(
        one.status(Kind::Lock, &name).await.map(drop).map_err(|e| e.kind()),
        Err(ErrorKind::Closed)
    );
    let next = within(HANGS, "it is free for others", t.lock(&two, &name).into_future())
        .await
        .expect("it is free");
    assert!(next.release().await.is_clean());
    assert_eq!(within(HANGS, "closing again does nothing", one.close()).await.unknown, []);
}

pub(super) async fn r6_close_refuses_those_who_wait(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let held = t.lock(&one, &name).await.expect("it is free");
    let waiting: Vec<_> = (0..3).map(|_| tokio::spawn(t.lock(&two, &name).into_future())).collect();
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    drop(within(HANGS, "it closes", two.close()).await);
    for waiting in waiting {
        let refused = within(HANGS, "whoever waits is refused", waiting).await.expect("no panic");
        assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::Closed));
    }
    // It is left, and not given up as that of a dead process.
    within(HANGS, "the place is left", t.until_shows(&one, Kind::Lock, &name, 1, 0)).await;
    assert!(held.release().await.is_clean());
}

/// Does a little of everything with a client.
async fn use_it(t: &Trial, locks: &lockkeeper::Locks) {
    let other = t.open().await;
    let name = t.name("used");
    let held = t.lock(locks, &name).await.expect("it is free");
    let next = tokio::spawn(t.lock(&other, &name).into_future());
    t.until_waiting(&other, Kind::Lock, &name, 1).await;
    assert!(held.release().await.is_clean());
    let next =
        within(HANGS, "the next gets it", next).await.expect("no panic").expect("it is granted");
    let abandoned = t.lock(locks, &name).timeout(Duration::from_millis(30)).await;
    assert_eq!(abandoned.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
    assert!(next.release().await.is_clean());
    drop(t.lock(locks, &name).await.expect("it is free"));
    drop(other.close().await);
}

pub(super) async fn r6_nothing_is_left_of_a_closed_client(t: Arc<Trial>) {
    let before = quiet::at_rest().await;
    let locks = t.open().await;
    use_it(&t, &locks).await;
    drop(locks.close().await);
    drop(locks);
    quiet::until_as_before(&before).await;
}

pub(super) async fn r6_nothing_is_left_of_a_client_that_was_only_dropped(t: Arc<Trial>) {
    let before = quiet::at_rest().await;
    let locks = t.open().await;
    use_it(&t, &locks).await;
    drop(locks);
    quiet::until_as_before(&before).await;
}
