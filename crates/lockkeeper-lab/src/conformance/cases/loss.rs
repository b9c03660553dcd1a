//! R2: loss is pushed, free and final.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper::{Error, ErrorKind, Kind, Lost, Owner, Released};

use crate::conformance::trial::{HANGS, Trial, ran_out, within};

pub(super) async fn r2_a_lock_taken_away_is_announced_and_stays_lost(t: Arc<Trial>) {
    let (one, two) = (t.open().await, t.open().await);
    let (begun, mut names) = (Instant::now(), (0..).map(|n| t.name(&format!("a{n}"))));
    let (name, guard, next) = loop {
        let name = names.next().expect("there is one");
        let guard = one.mutex(&name).lock().await.expect("it is free");
        let mut end = guard.deadline();
        let next = tokio::spawn(t.lock(&two, &name).into_future());
        let held = tokio::select! {
            _ = guard.lost() => false,
            () = t.until_waiting(&one, Kind::Lock, &name, 1) => true,
        };
        let mut forced = false;
        if held {
            end = guard.deadline();
            forced = two.force_release(Kind::Lock, &name).await.expect("it can be forced");
        }
        let why = within(HANGS, "the loss is announced", guard.lost()).await;
        if forced && why == Lost::TakenAway {
            break (name, guard, next);
        }
        ran_out(why, end);
        assert!(begun.elapsed() < HANGS, "it is noticed before the lease is over");
    };
    let turn =
        within(HANGS, "the next gets it", next).await.expect("no panic").expect("it is granted");
    assert!(guard.is_lost());
    assert_eq!(guard.check().map_err(|e| e.kind()), Err(ErrorKind::Lost));
    assert_eq!(guard.token().map_err(|e| e.kind()), Err(ErrorKind::Lost));
    assert_eq!(guard.verify().await.map_err(|e| e.kind()), Err(ErrorKind::Lost));
    assert!(matches!(guard.release().await, Released::AlreadyLost(Lost::TakenAway)));
    assert!(
        one.mutex(&name).try_lock().await.expect("it can be tried").is_none(),
        "the late release touched nothing"
    );
    assert!(turn.release().await.is_clean());
}

pub(super) async fn r2_entering_a_lost_hold_again_fails(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let me = Owner::new();
    let guard = one.mutex(&name).lock().owner(&me).await.expect("it is free");
    two.force_release(Kind::Lock, &name).await.expect("it can be forced");
    within(HANGS, "the loss is announced", guard.lost()).await;
    let again = one.mutex(&name).lock().owner(&me).timeout(HANGS).await;
    assert_eq!(again.map(drop).map_err(|e| e.kind()), Err(ErrorKind::Lost));
    let scoped = me.scope(async { one.mutex(&name).try_lock().await }).await;
    assert_eq!(scoped.map(drop).map_err(|e| e.kind()), Err(ErrorKind::Lost));
    drop(guard);
    let anew = one
        .mutex(&name)
        .lock()
        .owner(&me)
        .timeout(HANGS)
        .await
        .expect("once the lost guard is gone, it is acquired anew");
    assert!(anew.release().await.is_clean());
}

pub(super) async fn r2_verify_asks_the_engine_now(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let guard = t.lock(&one, &name).await.expect("it is free");
    guard.verify().await.expect("it is held");
    assert!(two.force_release(Kind::Lock, &name).await.expect("it can be forced"));
    assert_eq!(
        guard.verify().await.map_err(|e| e.kind()),
        Err(ErrorKind::Lost),
        "whether or not it was announced yet"
    );
    assert!(guard.is_lost(), "what the engine says is final");
}

pub(super) async fn r2_work_is_dropped_when_its_lock_is_lost(t: Arc<Trial>) {
    struct Dropped(Arc<AtomicBool>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let dropped = Arc::new(AtomicBool::new(false));
    let (mutex, work) = (one.mutex(&name), Dropped(dropped.clone()));
    let (began, begun) = tokio::sync::oneshot::channel();
    let working = tokio::spawn(async move {
        let work = move |held: lockkeeper::Held| async move {
            let _kept = work;
            began.send(held.token().ok()).expect("the test waits");
            std::future::pending::<Result<(), Error>>().await
        };
        mutex.with(work).await
    });
    begun.await.expect("the work begins");
    two.force_release(Kind::Lock, &name).await.expect("it can be forced");
    let ended = within(HANGS, "the work ends", working).await.expect("no panic");
    assert_eq!(ended.map_err(|e| e.kind()), Err(ErrorKind::Lost));
    assert!(dropped.load(Ordering::SeqCst), "the work was dropped");
}

pub(super) async fn r2_a_store_wiped_under_a_holder_is_noticed(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let begun = Instant::now();
    let (guard, token) = loop {
        let guard = locks.mutex(&name).lock().await.expect("it is free");
        let (token, end) = (guard.token().ok(), guard.deadline());
        t.wipe().await;
        let why = within(HANGS, "the loss is announced", guard.lost()).await;
        if why != Lost::Expired {
            break (guard, token);
        }
        ran_out(why, end);
        assert!(begun.elapsed() < HANGS, "it is noticed before the lease is over");
    };
    assert!(!guard.release().await.is_clean());
    let fresh = t.open().await;
    let next = fresh.mutex(&name).lock().timeout(HANGS).await.expect("it is free");
    if t.about().fenced {
        assert!(next.token().ok() > token, "BROKEN LOCK: a wiped store gave an old token");
    }
}

pub(super) async fn r2_g19_loss_is_announced_at_the_deadline_while_every_call_hangs(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let guard = locks.mutex(&name).lock().ttl(Duration::from_secs(1)).await.expect("it is free");
    t.cut().await;
    // Nothing is answered before it is announced.
    let why = within(HANGS, "the loss is announced", guard.lost()).await;
    assert_eq!(why, Lost::Expired);
    t.mend().await;
    drop(guard);
    let again = locks.mutex(&name).lock().timeout(HANGS).await.expect("it can be had again");
    assert!(!again.is_lost());
}
