//! When places are asked about: at their time, and by the net (R10).

use super::*;

fn in_line(ask_at: Ticks) -> Place {
    Place { ask_at: Some(ask_at), ..Place::default() }
}

#[tokio::test]
async fn r10_a_place_is_asked_about_when_it_said_and_what_is_free_then_is_had() {
    let stub = Stub { slow_rechecks: true, ..Stub::default() };
    let began = Clock::virtual_at(Duration::from_secs(1)).now();
    let after = |ms| began.plus(Duration::from_millis(ms));
    of(&stub.attempts).push_back(Attempt::InLine(in_line(after(1_500))));
    let (locks, stub, clock) = open(stub).await;
    assert_eq!(clock.now(), began);
    let mut waiting = Box::pin(locks.mutex("name").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let claim = of(&stub.attempted)[0];
    let asked = || of(&stub.rechecked).len();
    let answer = |standing| of(&stub.rechecking).remove(0).send(vec![standing]).unwrap();

    clock.advance(Duration::from_millis(1_499));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(asked(), 0, "not before");
    clock.advance(Duration::from_millis(1));
    until("it is asked about", || asked() == 1).await;
    // The answer says another time.
    answer(Standing::InLine(in_line(after(2_500))));
    clock.advance(Duration::from_secs(1));
    until("it is asked about at the new time", || asked() == 2).await;
    // What is not answered is asked again.
    answer(Standing::Unknown(lost_reply()));
    until("its silence is noted", || locks.keeper.claims.any_silent()).await;
    clock.advance(Duration::from_secs(1));
    until("it is asked about once more", || asked() == 3).await;
    // The engine says when, and then that it is free.
    answer(Standing::InLine(Place::default()));
    let told = Event::AskAt { claim, at: after(3_700) };
    stub.context.get().unwrap().events.send(told);
    tokio::time::sleep(Duration::from_millis(20)).await;
    clock.advance(Duration::from_millis(200));
    until("it is asked about when it was told to", || asked() == 4).await;
    answer(Standing::Held(Grant { number: Number::None, lease: None }));
    drop(soon("it is granted", waiting).await.unwrap());
    assert_eq!(of(&stub.attempted).len(), 1, "the place was kept all the time");
    assert!(of(&stub.rechecked).iter().all(|ids| *ids == [claim]));
}

#[tokio::test]
async fn r10_the_net_is_cast_every_five_seconds_or_two_claim_leases_if_that_is_shorter() {
    let pushed = || Stub { leases: true, ..Stub::default() };
    let looked_at = || Stub { never_pushes: true, ..pushed() };
    for (stub, ttl, every) in [
        (Stub::default(), 30_000, 5_000),
        (pushed(), 30_000, 4_000),
        (pushed(), 3_000, 2_000),
        (pushed(), 300, 200),
        // Where no grant is pushed: by the lease, and never more often than every 250 ms.
        (looked_at(), 30_000, 5_000),
        (looked_at(), 3_000, 2_000),
        (looked_at(), 300, 250),
    ] {
        of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
        let (locks, stub, clock) = open(stub).await;
        let mut waiting =
            Box::pin(locks.mutex("place").lock().ttl(Duration::from_millis(ttl)).into_future());
        assert!(futures_poll(waiting.as_mut()).is_none());
        for round in 1..=3 {
            clock.advance(Duration::from_millis(every - 1));
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert_eq!(of(&stub.rechecked).len(), round - 1, "ttl {ttl} ms: not before");
            clock.advance(Duration::from_millis(1));
            until("the places are re-checked", || of(&stub.rechecked).len() == round).await;
        }
        assert!(of(&stub.rechecked).iter().all(|ids| ids.len() == 1));
    }
}
