//! R3: one id per claim; what is sent twice has the effect of one. Said in the engine's own words.

use std::sync::Arc;

use lockkeeper::engine::{Attempt, Change, ClaimId, End, LeaseId, Line, Renewal};
use lockkeeper::{Kind, Mode, Name};

use crate::conformance::ask::Asked;
use crate::conformance::trial::Trial;

async fn until_holders(
    t: &Trial,
    locks: &lockkeeper::Locks,
    name: &str,
    holders: usize,
    waiters: usize,
) {
    t.until_shows(locks, Kind::Lock, name, holders, waiters).await;
}

pub(super) async fn r3_an_attempt_sent_twice_holds_once(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let asked = Asked::of(&locks);
    let claim = Asked::claim(&name, Mode::Exclusive);
    let first = asked.granted(&claim).await;
    let again = asked.granted(&claim).await;
    assert_eq!(first.number, again.number, "the same grant");
    until_holders(&t, &locks, &name, 1, 0).await;
    assert!(matches!(asked.release(claim.id).await, End::Freed));
    until_holders(&t, &locks, &name, 0, 0).await;
    let next = Asked::claim(&name, Mode::Exclusive);
    asked.granted(&next).await;
    assert!(matches!(asked.release(next.id).await, End::Freed));
}

pub(super) async fn r3_a_place_taken_twice_is_one_place(t: Arc<Trial>) {
    let name = t.name("a");
    let (here, there) = (t.open().await, t.open().await);
    let held = t.lock(&here, &name).await.expect("it is free");
    let asked = Asked::of(&there);
    let claim = Asked::claim(&name, Mode::Exclusive);
    for _ in 0..3 {
        let answer = asked.attempt(&claim, Line::Join).await;
        assert!(matches!(answer, Attempt::InLine(_)), "{answer:?}");
    }
    until_holders(&t, &here, &name, 1, 1).await;
    assert!(matches!(asked.withdraw(claim.id).await, End::Freed));
    until_holders(&t, &here, &name, 1, 0).await;
    assert!(held.release().await.is_clean());
    until_holders(&t, &here, &name, 0, 0).await;
}

pub(super) async fn r3_a_release_sent_twice_frees_only_its_own_grant(t: Arc<Trial>) {
    let name = t.name("a");
    let (here, there) = (t.open().await, t.open().await);
    let (one, two) = (Asked::of(&here), Asked::of(&there));
    let first = Asked::claim(&name, Mode::Exclusive);
    one.granted(&first).await;
    assert!(matches!(one.release(first.id).await, End::Freed));
    let second = Asked::claim(&name, Mode::Exclusive);
    two.granted(&second).await;
    let again = one.release(first.id).await;
    assert!(matches!(again, End::NotOurs), "the hold was given back before: {again:?}");
    assert!(matches!(one.withdraw(first.id).await, End::NotOurs));
    let third = Asked::claim(&name, Mode::Exclusive);
    let busy = one.attempt(&third, Line::Try).await;
    assert!(matches!(busy, Attempt::Busy(_)), "the newer grant stands: {busy:?}");
    assert!(matches!(two.release(second.id).await, End::Freed));
}

pub(super) async fn r3_a_withdrawal_gives_a_grant_back_and_touches_no_other(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let asked = Asked::of(&locks);
    let claim = Asked::claim(&name, Mode::Exclusive);
    asked.granted(&claim).await;
    assert!(matches!(asked.withdraw(ClaimId::fresh()).await, End::NotOurs));
    until_holders(&t, &locks, &name, 1, 0).await;
    assert!(
        matches!(asked.withdraw(claim.id).await, End::Freed),
        "a grant that the caller never took"
    );
    until_holders(&t, &locks, &name, 0, 0).await;
}

pub(super) async fn r3_a_try_that_finds_it_busy_leaves_nothing(t: Arc<Trial>) {
    let name = t.name("a");
    let (here, there) = (t.open().await, t.open().await);
    let held = t.lock(&here, &name).await.expect("it is free");
    let asked = Asked::of(&there);
    let claim = Asked::claim(&name, Mode::Exclusive);
    let answer = asked.attempt(&claim, Line::Try).await;
    assert!(matches!(answer, Attempt::Busy(_)), "{answer:?}");
    assert!(matches!(asked.withdraw(claim.id).await, End::NotOurs), "nothing of it is left");
    until_holders(&t, &here, &name, 1, 0).await;
    assert!(held.release().await.is_clean());
}

pub(super) async fn r3_a_release_and_the_next_claim_go_in_one_message(t: Arc<Trial>) {
    let name = t.name("a");
    let (here, there) = (t.open().await, t.open().await);
    let asked = Asked::of(&here);
    let (first, again) =
        (Asked::claim(&name, Mode::Exclusive), Asked::claim(&name, Mode::Exclusive));
    asked.granted(&first).await;
    let next = tokio::spawn(t.lock(&there, &name).into_future());
    t.until_waiting(&here, Kind::Lock, &name, 1).await;
    let released = asked.answer(asked.engine.release(&[first.id], Some(&again))).await;
    assert!(matches!(released.ends.as_slice(), [End::Freed]), "{released:?}");
    assert!(
        matches!(released.again, Some(Attempt::InLine(_))),
        "behind the one who waited: {released:?}"
    );
    let turn = next.await.expect("no panic").expect("it is granted");
    assert!(matches!(asked.withdraw(again.id).await, End::Freed));
    assert!(turn.release().await.is_clean());
    until_holders(&t, &here, &name, 0, 0).await;
}

pub(super) async fn r3_renewing_what_is_gone_says_so(t: Arc<Trial>) {
    let locks = t.open().await;
    let asked = Asked::of(&locks);
    let claim = Asked::claim(&t.name("a"), Mode::Exclusive);
    let lease = asked.granted(&claim).await.lease.expect("it has a lease").id;
    assert!(matches!(asked.release(claim.id).await, End::Freed));
    // A session's lease lives on; a hold's is gone with it.
    let leases =
        [if lease == LeaseId::from(claim.id) { lease } else { LeaseId(ClaimId::fresh().0) }];
    let renewed = asked.answer(asked.engine.renew(&leases)).await;
    assert!(matches!(renewed.as_slice(), [Renewal::Gone(_)]), "{renewed:?}");
}

pub(super) async fn r3_a_latch_counted_down_twice_with_one_id_counts_once(t: Arc<Trial>) {
    let name = t.name("a");
    let locks = t.open().await;
    let asked = Asked::of(&locks);
    assert!(locks.latch(&name).set(2).await.expect("it can be set"));
    let (latch, id) = (Name::new(&name).expect("a good name"), ClaimId::fresh());
    for _ in 0..3 {
        let open =
            asked.answer(asked.engine.write(&Change::LatchCountDown(latch.clone(), id))).await;
        assert!(!open.expect("it can be counted down"), "one is left");
    }
    assert_eq!(locks.latch(&name).count().await.ok(), Some(1));
    assert!(locks.latch(&name).count_down().await.expect("it can be counted down"), "open now");
}
