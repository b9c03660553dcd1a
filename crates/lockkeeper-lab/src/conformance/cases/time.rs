//! R16 and R1: how long a turn lasts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Guard, Kind, Lost, Released};

use crate::conformance::trial::{HANGS, Trial, within};

/// Until when a lease lasts: the latest of a few looks, as a pause makes one too early and none too
/// late.
fn lasts_until(guard: &Guard) -> Instant {
    (0..5).filter_map(|_| guard.deadline()).max().expect("it has a lease")
}

pub(super) async fn r16_g11_a_turn_that_is_held_too_long_ends(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let stuck =
        one.mutex(&name).lock().hold_at_most(Duration::from_millis(80)).await.expect("it is free");
    let next = within(HANGS, "the next gets it", two.mutex(&name).lock().into_future())
        .await
        .expect("it is granted");
    assert_eq!(within(HANGS, "the loss is announced", stuck.lost()).await, Lost::HeldTooLong);
    assert!(matches!(stuck.release().await, Released::AlreadyLost(Lost::HeldTooLong)));
    next.check().expect("the newer grant stands");
    assert!(next.release().await.is_clean());
    let brief = one.mutex(&name).lock().hold_at_most(HANGS).await.expect("it is free");
    assert!(brief.release().await.is_clean());
}

pub(super) async fn r16_a_fixed_lease_ends_at_its_time(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let ttl = Duration::from_millis(600);
    let guard = one.mutex(&name).lock().ttl(ttl).no_renew().await.expect("it is free");
    let end = guard.deadline().expect("it has a lease");
    assert!(guard.remaining().is_some_and(|left| left <= ttl), "{:?}", guard.remaining());
    let next = tokio::spawn(two.mutex(&name).lock().into_future());
    assert_eq!(within(HANGS, "the loss is announced", guard.lost()).await, Lost::Expired);
    assert!(Instant::now() >= end, "it was asked for this long");
    let next =
        within(HANGS, "the next gets it", next).await.expect("no panic").expect("it is granted");
    assert!(matches!(guard.release().await, Released::AlreadyLost(Lost::Expired)));
    next.check().expect("the newer grant stands");
    assert!(next.release().await.is_clean());
}

pub(super) async fn r16_a_fixed_lease_that_was_waited_for_lasts_its_whole_time(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let ttl = Duration::from_secs(8);
    let held = one.mutex(&name).lock().await.expect("it is free");
    let waiting = tokio::spawn(two.mutex(&name).lock().ttl(ttl).no_renew().into_future());
    t.until_waiting(&one, Kind::Lock, &name, 1).await;
    assert!(held.release().await.is_clean());
    let freed = Instant::now();
    let guard =
        within(HANGS, "it is granted", waiting).await.expect("no panic").expect("it is granted");
    // Whoever is granted a place by word alone has at most a third of it until that is confirmed.
    within(HANGS, "it is confirmed", async {
        while lasts_until(&guard) < freed + ttl * 3 / 4 {
            guard.check().expect("it was asked for longer");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    // Nothing renews it any more: where it would be, it does not last longer than before.
    let end = lasts_until(&guard);
    tokio::time::sleep(ttl * 2 / 5).await;
    assert!(lasts_until(&guard) < end + Duration::from_millis(100), "it is fixed");
    assert!(guard.release().await.is_clean());
}

pub(super) async fn r16_a_lease_that_ran_out_is_followed_by_its_delay(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, there) = (t.open().await, t.open().await);
    let (ttl, delay) = (Duration::from_millis(500), Duration::from_millis(1500));
    // Given back: nobody waits for the delay, which is longer than they wait.
    let guard = one.mutex(&name).lock().lock_delay(HANGS).await.expect("it is free");
    assert!(guard.release().await.is_clean());
    let next = there.mutex(&name).lock().timeout(HANGS / 2).await.expect("it is free");
    assert!(next.release().await.is_clean());
    // Forgotten by a client that cannot give it back any more: its lease runs out, then the delay.
    let asked = crate::conformance::ask::Asked::of(&one);
    let mut claim = crate::conformance::ask::Asked::claim(&name, lockkeeper::Mode::Exclusive);
    (claim.ttl, claim.renew, claim.lock_delay) = (ttl, false, delay);
    let began = Instant::now();
    asked.granted(&claim).await;
    let next = there.mutex(&name).lock().timeout(HANGS).await.expect("it runs out");
    let took = began.elapsed();
    assert!(took >= ttl + delay - Duration::from_millis(100), "{took:?}");
    assert!(next.release().await.is_clean());
}

pub(super) async fn r1_a_lease_is_renewed_for_as_long_as_the_guard_lives(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let ttl = Duration::from_secs(8);
    let guard = one.mutex(&name).lock().ttl(ttl).await.expect("it is free");
    let first = lasts_until(&guard);
    within(HANGS, "it is renewed", async {
        while lasts_until(&guard) < first + ttl / 4 {
            guard.check().expect("it is renewed");
            assert!(guard.remaining().is_some_and(|left| left > Duration::ZERO && left <= ttl));
            assert!(two.mutex(&name).try_lock().await.expect("it can be tried").is_none());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    })
    .await;
    assert!(guard.release().await.is_clean());
}

pub(super) async fn a_timeout_ends_in_time(t: Arc<Trial>) {
    let name = t.name("a");
    let (one, two) = (t.open().await, t.open().await);
    let held = one.mutex(&name).lock().await.expect("it is free");
    for locks in [&one, &two] {
        let began = Instant::now();
        let refused = locks.mutex(&name).lock().timeout(Duration::from_millis(250)).await;
        assert!(began.elapsed() >= Duration::from_millis(240), "{:?}", began.elapsed());
        assert_eq!(refused.map(drop).map_err(|e| e.kind()), Err(ErrorKind::TimedOut));
    }
    // It is held still: nobody was told because it became free.
    assert!(held.release().await.is_clean());
}
