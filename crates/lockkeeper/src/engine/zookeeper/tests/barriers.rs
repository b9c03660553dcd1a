//! Double barriers, and asking a holder to let go.

use super::faults::end_session;
use super::*;
use crate::engine::Membership;
use crate::{ErrorKind, Locks};

async fn step(client: &Client, member: ClaimId, step: Membership) -> Result<bool> {
    answer(client.engine.barrier(&name("b/x"), member, step)).await
}

#[test]
fn nobody_begins_before_all_are_in_and_nobody_goes_before_all_have_finished() {
    run(async {
        let place = Place::new().await;
        for layout in ["layout=curator", "layout=kazoo"] {
            let (one, two) = (
                Locks::open(&place.url(layout)).await.unwrap(),
                Locks::open(&place.url(layout)).await.unwrap(),
            );
            for round in 0..2 {
                let barrier = two.double_barrier(layout, 3);
                let late = one
                    .double_barrier(layout, 3)
                    .enter()
                    .timeout(Duration::from_millis(200))
                    .await
                    .unwrap_err();
                assert_eq!(late.kind(), ErrorKind::TimedOut, "round {round}");
                let first = tokio::spawn(one.double_barrier(layout, 3).enter().into_future());
                let second = tokio::spawn(barrier.enter().into_future());
                assert!(!first.is_finished() && !second.is_finished());
                let third = barrier.enter().await.unwrap();
                let (first, second) =
                    (first.await.unwrap().unwrap(), second.await.unwrap().unwrap());
                let leaving = [
                    tokio::spawn(first.leave().into_future()),
                    tokio::spawn(third.leave().into_future()),
                ];
                tokio::time::sleep(Duration::from_millis(100)).await;
                assert!(leaving.iter().all(|l| !l.is_finished()), "one has not finished");
                second.leave().await.unwrap();
                for leaving in leaving {
                    leaving.await.unwrap().unwrap();
                }
            }
            let looks = place.client_with(layout).await;
            assert!(
                looks.children(layout).await.is_empty(),
                "a barrier that all have left leaves nothing behind"
            );
        }
    });
}

#[test]
fn r5_a_member_that_is_dropped_goes() {
    run(async {
        let place = Place::new().await;
        let (locks, looks) = (Locks::open(&place.url("")).await.unwrap(), place.client().await);
        let barrier = locks.double_barrier("x", 2);
        drop(tokio::time::timeout(Duration::from_millis(300), barrier.enter().into_future()).await);
        until("whoever gave up has gone", || async { looks.children("x").await.is_empty() }).await;
        let (one, two) = tokio::join!(barrier.enter().into_future(), barrier.enter().into_future());
        assert_eq!(looks.children("x").await.len(), 3, "two, and `ready`");
        drop(one.unwrap());
        two.unwrap().leave().await.unwrap();
        assert!(looks.children("x").await.is_empty());
    });
}

#[test]
fn r5_who_withdraws_while_it_comes_in_does_not_come_in() {
    run(async {
        let place = Place::new().await;
        let one = place.client().await;
        let a = ClaimId(0x10);
        let coming = one.engine.barrier(&name("b/x"), a, Membership::Enter(2));
        let going = one.engine.barrier(&name("b/x"), a, Membership::Withdraw);
        assert!(answer(going).await.unwrap());
        assert_eq!(answer(coming).await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(one.children("b/x").await.is_empty());
        // The same with the request on its way already.
        let coming = one.engine.barrier(&name("b/x"), a, Membership::Enter(2));
        let Answer::Later(mut coming) = coming else { panic!("it asks the server") };
        while one.children("b/x").await.is_empty() {
            let came = std::future::poll_fn(|context| {
                std::task::Poll::Ready(coming.as_mut().poll(context).is_ready())
            })
            .await;
            assert!(!came, "it looks again first");
        }
        assert!(step(&one, a, Membership::Withdraw).await.unwrap());
        drop(coming);
        assert!(one.children("b/x").await.is_empty());
    });
}

#[test]
fn every_step_may_be_sent_twice_and_the_first_by_name_is_the_last_to_go() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (a, b) = (ClaimId(0x10), ClaimId(0x20));
        for _ in 0..2 {
            assert!(!step(&one, a, Membership::Enter(2)).await.unwrap());
        }
        for _ in 0..2 {
            assert!(step(&two, b, Membership::Enter(2)).await.unwrap());
            assert!(step(&one, a, Membership::Enter(2)).await.unwrap());
        }
        for _ in 0..2 {
            assert!(
                !step(&one, a, Membership::Leave).await.unwrap(),
                "Curator's members wait for its end"
            );
        }
        assert_eq!(one.children("b/x").await.len(), 3);
        for _ in 0..2 {
            assert!(!step(&two, b, Membership::Leave).await.unwrap());
        }
        assert_eq!(one.children("b/x").await.len(), 2);
        assert!(step(&one, a, Membership::Leave).await.unwrap());
        assert!(step(&two, b, Membership::Leave).await.unwrap());
        assert!(one.children("b/x").await.is_empty());
        assert!(step(&one, a, Membership::Withdraw).await.unwrap(), "gone already");
    });
}

#[test]
fn a_member_whose_session_ends_is_counted_no_more_and_is_told_so() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let (a, b) = (ClaimId(0x10), ClaimId(0x20));
        assert!(!step(&one, a, Membership::Enter(2)).await.unwrap());
        end_session(&one).await;
        assert!(!step(&two, b, Membership::Enter(2)).await.unwrap(), "it is alone");
        assert!(step(&one, a, Membership::Enter(2)).await.unwrap(), "the first one comes in again");
        end_session(&one).await;
        assert_eq!(step(&one, a, Membership::Leave).await.unwrap_err().kind(), ErrorKind::Lost);
        assert!(step(&two, b, Membership::Leave).await.unwrap());
    });
}

#[test]
fn what_members_that_died_left_behind_opens_no_barrier() {
    run(async {
        let place = Place::new().await;
        let [one, two] = place.clients("").await;
        let [a, b, c, d] = [1u128, 2, 3, 4].map(ClaimId);
        assert!(!step(&one, a, Membership::Enter(2)).await.unwrap());
        assert!(step(&one, b, Membership::Enter(2)).await.unwrap());
        one.close().await;
        until("the dead are gone", || async { two.children("b/x").await == ["ready"] }).await;
        assert!(!step(&two, c, Membership::Enter(2)).await.unwrap());
        assert!(step(&two, d, Membership::Enter(2)).await.unwrap());
    });
}

#[test]
fn what_a_barrier_cannot_be_is_refused() {
    run(async {
        let place = Place::new().await;
        let locks = Locks::open(&place.url("")).await.unwrap();
        for members in [0, 1025] {
            assert_eq!(
                locks.double_barrier("x", members).enter().await.unwrap_err().kind(),
                ErrorKind::InvalidArgument
            );
        }
        assert_eq!(
            locks.double_barrier("a//b", 2).enter().await.unwrap_err().kind(),
            ErrorKind::InvalidName
        );
        let plain = Locks::open(&place.url("layout=plain")).await.unwrap();
        assert_eq!(
            plain.double_barrier("x", 2).enter().await.unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        let memory = Locks::open("memory:").await.unwrap();
        assert_eq!(
            memory.double_barrier("x", 2).enter().await.unwrap_err().kind(),
            ErrorKind::Unsupported
        );
        assert_eq!(memory.ask(Kind::Lock, "x").await.unwrap_err().kind(), ErrorKind::Unsupported);
    });
}

#[test]
fn whoever_holds_a_lock_is_asked_to_let_go_by_whoever_needs_it() {
    run(async {
        let place = Place::new().await;
        let (one, two) = (
            Locks::open(&place.url("")).await.unwrap(),
            Locks::open(&place.url("")).await.unwrap(),
        );
        assert!(!two.ask(Kind::Lock, "x").await.unwrap(), "nobody holds it");
        let guard = one.mutex("x").lock().await.unwrap();
        assert!(two.ask(Kind::Lock, "x").await.unwrap());
        tokio::time::timeout(SOON, guard.held().asked()).await.unwrap();
        assert!(!guard.is_lost(), "it is the holder's to decide");
        assert_eq!(two.ask(Kind::Election, "x").await.unwrap_err().kind(), ErrorKind::Unsupported);
    });
}
