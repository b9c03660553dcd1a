//! The time of day is set forward, and the clocks that leases are counted on say nothing (N2).

use super::*;
use crate::Owner;

const TTL: Duration = Duration::from_secs(30);
/// Where an engine does not say it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
const HOUR: Duration = Duration::from_secs(3_600);

fn leased() -> Stub {
    Stub {
        leases: true,
        lease: Some(TTL),
        slow_renewals: true,
        slow_rechecks: true,
        ..Stub::default()
    }
}

fn extended() -> Vec<Renewal> {
    vec![Renewal::Extended { ttl: TTL, since: None }]
}

/// A temporary error that says so.
fn is_in_doubt<T>(answer: crate::Result<T>) -> bool {
    answer.is_err_and(|error| {
        error.kind() == ErrorKind::Unknown
            && error.is_temporary()
            && error.message().contains("in doubt: the time of day stepped by 1h")
    })
}

async fn asked(stub: &Stub, count: usize) {
    until("the engine is asked", || of(&stub.renewing).len() == count).await;
}

#[tokio::test]
async fn n2_a_hold_is_in_doubt_until_a_renewal_is_answered_that_was_sent_after_the_step() {
    let (locks, stub, clock) = open(leased()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    let (token, held) = (guard.token().unwrap(), guard.held());
    let loss = tokio::spawn(async move { held.lost().await });
    clock.advance(TTL / 3);
    asked(&stub, 1).await;
    clock.step_time_of_day(HOUR);
    assert!(is_in_doubt(guard.check()) && is_in_doubt(guard.token()));
    assert!(!guard.is_lost() && guard.held().why_lost().is_none());
    asked(&stub, 2).await;
    // The first was on its way while the machine may have stood still.
    let old = of(&stub.renewing).remove(0);
    let before = guard.remaining().unwrap();
    old.send(extended()).unwrap();
    until("it is read", || guard.remaining().unwrap() > before).await;
    assert!(is_in_doubt(guard.check()), "any renewal resolves it");
    let new = of(&stub.renewing).remove(0);
    new.send(extended()).unwrap();
    until("it is proven", || guard.check().is_ok()).await;
    assert_eq!(guard.token().unwrap(), token);
    assert!(!loss.is_finished(), "nobody heard of a loss");
    loss.abort();
    assert!(guard.release().await.is_clean());
}

#[tokio::test]
async fn n2_a_hold_that_no_answer_proves_within_the_request_timeout_is_lost_by_the_step() {
    let (locks, stub, clock) = open(leased()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    clock.step_time_of_day(HOUR);
    asked(&stub, 1).await;
    clock.advance(REQUEST_TIMEOUT - Duration::from_nanos(1));
    assert!(is_in_doubt(guard.check()) && !guard.is_lost());
    clock.advance(Duration::from_nanos(1));
    assert_eq!(soon("it is lost", guard.lost()).await, Lost::ClockStepped);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(matches!(guard.release().await, How::AlreadyLost(Lost::ClockStepped)));
}

#[tokio::test]
async fn n2_a_hold_whose_deadline_comes_first_is_lost_then() {
    let (locks, _stub, clock) = open(leased()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    // 3 s are the allowance for drift.
    clock.advance(TTL - Duration::from_secs(4));
    clock.step_time_of_day(HOUR);
    assert!(is_in_doubt(guard.check()));
    clock.advance(Duration::from_secs(1));
    assert!(guard.is_lost(), "the guard reads the clocks first");
    assert_eq!(guard.held().why_lost(), Some(Lost::ClockStepped));
}

#[tokio::test]
async fn n2_the_steady_clocks_end_a_hold_as_before_without_a_step() {
    let (locks, _stub, clock) = open(leased()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    clock.advance(TTL);
    assert_eq!(guard.held().why_lost(), Some(Lost::Expired));
}

#[tokio::test]
async fn n2_a_fixed_hold_is_asked_about_once_and_not_renewed() {
    let (locks, stub, clock) = open(leased()).await;
    let guard = locks.mutex("a").lock().no_renew().await.unwrap();
    let before = guard.remaining().unwrap();
    clock.step_time_of_day(HOUR);
    assert!(is_in_doubt(guard.check()));
    until("it is asked about", || of(&stub.rechecking).len() == 1).await;
    let hold = guard.cell().hold;
    let answer = of(&stub.rechecking).remove(0);
    answer.send(vec![granted_with(1, hold, TTL).into()]).unwrap();
    until("it is proven", || guard.check().is_ok()).await;
    let left = guard.remaining().unwrap();
    assert!(left <= before && before - left < Duration::from_millis(1), "it is no longer by that");
    assert!(of(&stub.renewing).is_empty());
    // The next question is not sent before the first may have been answered.
    clock.step_time_of_day(HOUR);
    clock.advance(REQUEST_TIMEOUT);
    until("it is asked about", || of(&stub.rechecking).len() == 1).await;
    clock.advance(REQUEST_TIMEOUT);
    assert_eq!(soon("nobody says anything", guard.lost()).await, Lost::ClockStepped);
}

#[tokio::test]
async fn n2_verify_asks_the_engine_also_in_doubt() {
    let (locks, stub, clock) = open(leased()).await;
    let guard = locks.mutex("a").lock().await.unwrap();
    clock.step_time_of_day(HOUR);
    let held = guard.held();
    let verified = tokio::spawn(async move { held.verify().await });
    until("it is asked about", || of(&stub.rechecking).len() == 1).await;
    let answer = of(&stub.rechecking).remove(0);
    answer.send(vec![granted_with(1, guard.cell().hold, TTL).into()]).unwrap();
    soon("it is answered", verified).await.unwrap().unwrap();
}

#[tokio::test]
async fn n2_an_owner_that_enters_again_in_doubt_is_told_so_and_may_try_again() {
    let (locks, stub, clock) = open(leased()).await;
    let (mutex, me) = (locks.mutex("a"), Owner::new());
    let outer = mutex.lock().owner(&me).await.unwrap();
    clock.step_time_of_day(HOUR);
    assert!(is_in_doubt(mutex.lock().owner(&me).await));
    asked(&stub, 1).await;
    of(&stub.renewing).remove(0).send(extended()).unwrap();
    until("it is proven", || outer.check().is_ok()).await;
    let inner = mutex.lock().owner(&me).await.unwrap();
    assert_eq!(inner.token().unwrap(), outer.token().unwrap());
}

#[tokio::test]
async fn n2_r9_a_hold_in_doubt_is_handed_to_nobody() {
    for steps in [false, true] {
        let (locks, stub, clock) = open(leased()).await;
        let mutex = locks.mutex("a");
        let guard = mutex.lock().await.unwrap();
        let next = tokio::spawn({
            let mutex = mutex.clone();
            async move { mutex.lock().await }
        });
        let entry = guard.cell().entry.clone();
        let waits = || entry.state.lock().unwrap().waiting.values().count() == 1;
        until("another task waits", waits).await;
        if steps {
            clock.step_time_of_day(HOUR);
        }
        let first = guard.cell().hold;
        drop(guard);
        let next = as_time_goes_by(&clock, Box::pin(next)).await.unwrap().unwrap();
        assert_eq!(of(&stub.released).contains(&first), steps);
        assert_eq!(next.cell().hold != first, steps);
    }
}

#[tokio::test]
async fn n2_a_grant_that_was_asked_for_before_the_step_is_asked_for_again() {
    let (locks, stub, clock) = open(Stub { slow_attempts: true, ..leased() }).await;
    let lock = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    let attempting = |count| {
        let stub = stub.clone();
        async move { until("it is asked for", || of(&stub.attempted).len() == count).await }
    };
    attempting(1).await;
    clock.step_time_of_day(HOUR);
    let (claim, answer) = of(&stub.attempting).remove(0);
    answer.send(granted_with(1, claim, TTL)).unwrap();
    let asks_again = async {
        while of(&stub.attempted).len() < 2 {
            clock.advance(Duration::from_millis(50));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    soon("it is asked for again", asks_again).await;
    let (again, answer) = of(&stub.attempting).remove(0);
    assert_eq!(again, claim, "with the same claim (R3)");
    answer.send(granted_with(1, claim, TTL)).unwrap();
    soon("it is granted", lock).await.unwrap().unwrap().check().unwrap();
}

#[tokio::test]
async fn n2_a_push_that_is_dated_before_the_step_is_a_reason_to_ask() {
    let (locks, stub, clock) = open(leased()).await;
    of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
    let lock = tokio::spawn({
        let mutex = locks.mutex("a");
        async move { mutex.lock().await }
    });
    until("it stands in line", || of(&stub.attempted).len() == 1).await;
    let claim = of(&stub.attempted)[0];
    let since = Some(clock.now());
    clock.step_time_of_day(HOUR);
    let lease = Lease { id: claim.into(), ttl: TTL, since, confirm: true };
    let grant = Grant { number: Number::Ours(1), lease: Some(lease) };
    stub.context.get().unwrap().events.send(Event::Granted { claim, grant });
    let guard = soon("it is asked for", lock).await.unwrap().unwrap();
    assert_eq!(of(&stub.attempted)[..], [claim, claim]);
    guard.check().unwrap();
}

#[tokio::test]
async fn n2_a_sessions_hold_is_in_doubt_from_its_grant_if_its_proof_is_of_before_the_step() {
    let (locks, stub, clock) = open(leased()).await;
    let since = Some(clock.now());
    clock.step_time_of_day(HOUR);
    let lease = Lease { id: LeaseId(7), ttl: TTL, since, confirm: false };
    let grant = Grant { number: Number::Ours(1), lease: Some(lease) };
    of(&stub.attempts).push_back(Attempt::Granted(grant));
    let guard = locks.mutex("a").lock().await.unwrap();
    assert!(is_in_doubt(guard.check()));
    asked(&stub, 1).await;
    of(&stub.renewing).remove(0).send(extended()).unwrap();
    until("it is proven", || guard.check().is_ok()).await;
}
