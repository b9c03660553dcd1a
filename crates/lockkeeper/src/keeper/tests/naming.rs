//! A claim whose time is over is told who holds it, also when the engine has not said so by then.

use super::*;

type Waiting = std::pin::Pin<Box<crate::acquire::Acquired<crate::Guard>>>;

/// An engine that has said to a number of claims of a second that they stand in line, and nothing else; their time is over.
async fn overdue(claims: usize) -> (Locks, Arc<Stub>, Clock, Vec<Waiting>) {
    let stub = Stub { slow_reads: true, ..Stub::default() };
    of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
    let (locks, stub, clock) = open(stub).await;
    let mut waits: Vec<_> =
        (0..claims).map(|_| Box::pin(locks.mutex("name").lock().timeout(Duration::from_secs(1)).into_future())).collect();
    assert!(waits.iter_mut().all(|waits| futures_poll(waits.as_mut()).is_none()));
    clock.advance(Duration::from_secs(1));
    until("the engine is asked", || of(&stub.reading).len() == 1).await;
    assert!(waits.iter_mut().all(|waits| futures_poll(waits.as_mut()).is_none()), "its answer is waited for");
    (locks, stub, clock, waits)
}

fn held_by(pid: u32) -> Vec<Entry> {
    let mut entry = Entry::new(Kind::Lock, Name::new("name").unwrap());
    entry.holders.push(Holder { host: Some("other".into()), pid: Some(pid), ..Holder::default() });
    vec![entry]
}

#[tokio::test]
async fn whose_time_is_over_before_the_engine_has_said_who_holds_it_asks_once_for_all_and_names_it() {
    let (locks, stub, _clock, waits) = overdue(3).await;
    of(&stub.reading).remove(0).send(held_by(7)).unwrap();
    for waits in waits {
        let error = soon("it is told", waits).await.unwrap_err();
        assert_eq!((error.kind(), error.holder().and_then(|holder| holder.pid)), (ErrorKind::TimedOut, Some(7)), "{error}");
        assert!(error.message().ends_with("held by other (pid 7)"), "{error}");
    }
    assert_eq!(of(&stub.reading).len(), 0, "once");
    assert_eq!(of(&stub.withdrawn).len(), 1, "the place was left at once");
    until("nothing is left", || crate::test_util::residue(&locks).claims == 0).await;
}

#[tokio::test]
async fn an_engine_that_does_not_say_who_holds_it_is_waited_for_for_a_quarter_of_a_second() {
    let (_locks, _stub, clock, mut waits) = overdue(1).await;
    clock.advance(Duration::from_millis(249));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(futures_poll(waits[0].as_mut()).is_none(), "not before");
    clock.advance(Duration::from_millis(1));
    let error = soon("it is told", waits.remove(0)).await.unwrap_err();
    assert_eq!((error.kind(), error.holder()), (ErrorKind::TimedOut, None), "{error}");
    assert!(error.message().contains("has not said who holds it"), "{error}");
}

#[tokio::test]
async fn who_leaves_while_the_holders_name_is_asked_for_leaves_nothing() {
    let (locks, stub, _clock, waits) = overdue(2).await;
    drop(waits);
    of(&stub.reading).remove(0).send(held_by(7)).unwrap();
    until("nothing is left", || {
        let left = crate::test_util::residue(&locks);
        (left.claims, left.tasks) == (0, 0)
    })
    .await;
}

#[tokio::test]
async fn closing_does_not_wait_for_a_holders_name() {
    let (locks, _stub, _clock, mut waits) = overdue(1).await;
    assert!(locks.close().await.unknown.is_empty());
    let error = soon("it is told", waits.remove(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
}
