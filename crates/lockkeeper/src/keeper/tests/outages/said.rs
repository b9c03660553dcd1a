//! What who waits is told of a silence, and of nobody who held it before.

use super::*;

#[tokio::test]
async fn an_upgrade_that_nobody_answers_in_time_says_what_a_lock_does() {
    let (locks, stub, clock) = open(Stub::default()).await;
    let mut hold = locks.rwlock("stock").upgradable().await.unwrap();
    let mut upgrade = Box::pin(hold.upgrade().timeout(Duration::from_secs(1)).into_future());
    assert!(futures_poll(upgrade.as_mut()).is_none());
    until("the upgrade is asked for", || of(&stub.converting).len() == 1).await;
    of(&stub.converting).remove(0).1.send(Attempt::Unknown(lost_reply())).unwrap();
    let entry = locks.keeper.all_entries().remove(0);
    until("the answer is read", || entry.state.lock().unwrap().last_error.is_some()).await;
    clock.advance(Duration::from_secs(1));
    let error = soon("its time is over", upgrade).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unreachable, "the reply was lost"));
}

/// What an upgrade of a hold comes to that is asked for while another client reads, once its second
/// is over.
async fn upgrade_that_ends(
    locks: &Locks,
    clock: &Clock,
    hold: &mut UpgradableGuard,
    meanwhile: impl AsyncFnOnce(),
) -> Error {
    knows_a_reader(locks);
    let mut upgrade = Box::pin(hold.upgrade().timeout(Duration::from_secs(1)).into_future());
    assert!(futures_poll(upgrade.as_mut()).is_none());
    meanwhile().await;
    clock.advance(Duration::from_secs(1));
    soon("its time is over", upgrade).await.map(drop).unwrap_err()
}

fn reader(host: &str) -> Option<Box<Holder>> {
    Some(Box::new(Holder { host: Some(host.into()), ..Holder::default() }))
}

/// Somebody was said to hold it before.
fn knows_a_reader(locks: &Locks) {
    let entry = locks.keeper.all_entries().remove(0);
    entry.lock().state.last_holder = reader("web-3");
}

/// The engine answers the upgrade that it waits for this reader, and that is read.
async fn reader_is_before(locks: &Locks, stub: &Stub, host: &str) {
    let place = Place { holder: reader(host), ..Place::default() };
    of(&stub.converting).remove(0).1.send(Attempt::InLine(place)).unwrap();
    let entry = locks.keeper.all_entries().remove(0);
    until("the answer is read", || {
        let state = entry.state.lock().unwrap();
        state.last_holder.as_ref().is_some_and(|holder| holder.host.as_deref() == Some(host))
    })
    .await;
}

fn says_for_how_long(error: &Error) {
    assert!(error.kind() == ErrorKind::TimedOut && error.holder().is_none(), "{error}");
    let message = error.message();
    assert!(message.contains("not answered for 1s") && !message.contains("held by"), "{message}");
}

#[tokio::test]
async fn w7_an_upgrade_during_a_silence_says_so_and_names_no_holder_of_before() {
    let (locks, stub, clock) = open(Stub::default()).await;
    let mut hold = locks.rwlock("stock").upgradable().await.unwrap();
    // Nothing comes at all.
    says_for_how_long(&upgrade_that_ends(&locks, &clock, &mut hold, async || {}).await);
    // It was said that it waits, and then the link broke.
    of(&stub.converting).clear();
    let broken = async || {
        until("the upgrade is asked for", || of(&stub.converting).len() == 1).await;
        reader_is_before(&locks, &stub, "web-4").await;
        tell(&stub, Event::Link { up: false });
        until("the reason is known", || locks.keeper.claims.any_silent()).await;
    };
    let error = upgrade_that_ends(&locks, &clock, &mut hold, broken).await;
    says_for_how_long(&error);
    assert!(error.message().ends_with(": the reply was lost"), "{error}");
}

#[tokio::test]
async fn w7_an_upgrade_ends_in_time_while_the_way_back_from_the_one_before_is_not_answered() {
    let (locks, stub, clock) = open(Stub::default()).await;
    let mut hold = locks.rwlock("stock").upgradable().await.unwrap();
    let (writing, ()) = tokio::join!(hold.upgrade().into_future(), async {
        until("the upgrade is asked for", || of(&stub.converting).len() == 1).await;
        of(&stub.converting).remove(0).1.send(granted()).unwrap();
    });
    drop(writing.unwrap());
    assert_eq!(of(&stub.converting).len(), 1, "the way back is asked for");
    says_for_how_long(&upgrade_that_ends(&locks, &clock, &mut hold, async || {}).await);
}

#[tokio::test]
async fn w7_an_upgrade_that_another_reader_is_in_the_way_of_names_that_one_and_not_itself() {
    let (locks, stub, clock) = open(Stub::default()).await;
    let mut hold = locks.rwlock("stock").upgradable().await.unwrap();
    for timeout in [Duration::from_secs(1), Duration::ZERO] {
        let mut upgrade = Box::pin(hold.upgrade().timeout(timeout).into_future());
        assert!(futures_poll(upgrade.as_mut()).is_none());
        until("the upgrade is asked for", || of(&stub.converting).len() == 1).await;
        let reader = if timeout.is_zero() { "web-4" } else { "web-3" };
        reader_is_before(&locks, &stub, reader).await;
        clock.advance(Duration::from_secs(1));
        let error = soon("its time is over", upgrade).await.map(drop).unwrap_err();
        let host = error.holder().and_then(|holder| holder.host.as_deref());
        assert_eq!((error.kind(), host), (ErrorKind::TimedOut, Some(reader)), "{error}");
        assert!(error.message().contains(&format!("held by {reader}")), "{error}");
    }
}

#[tokio::test]
async fn w7_a_lock_that_nobody_answers_for_says_so_and_names_no_holder_of_before() {
    let stub = Stub { slow_attempts: true, ..Stub::default() };
    let (locks, stub, clock) = open(stub).await;
    let mutex = locks.mutex("stock");
    let wait = |seconds| Box::pin(mutex.lock().timeout(Duration::from_secs(seconds)).into_future());
    // A busy one first, so that a holder is known.
    let mut busy = wait(9);
    assert!(futures_poll(busy.as_mut()).is_none());
    let answer = Attempt::Busy(reader("web-3"));
    of(&stub.attempting).remove(0).1.send(answer).unwrap();
    soon("it is busy", busy).await.map(drop).unwrap_err();

    let (mut first, mut behind) = (wait(1), wait(1));
    assert!(futures_poll(first.as_mut()).is_none() && futures_poll(behind.as_mut()).is_none());
    clock.advance(Duration::from_secs(1));
    for late in [first, behind] {
        says_for_how_long(&soon("its time is over", late).await.map(drop).unwrap_err());
    }
}

#[tokio::test]
async fn w7_a_silence_is_as_long_as_the_question_is_old_and_not_as_the_wait_behind_this_process() {
    for (held_for, asked_for, silent) in [(30_900, 100, false), (20_000, 11_000, true)] {
        let stub = Stub { slow: true, slow_attempts: true, ..Stub::default() };
        let (locks, stub, clock) = open(stub).await;
        let mutex = locks.mutex("stock");
        let mut first = Box::pin(mutex.lock().into_future());
        assert!(futures_poll(first.as_mut()).is_none());
        of(&stub.attempting).remove(0).1.send(granted()).unwrap();
        let held = soon("it is granted", first).await.unwrap();
        let timeout = Duration::from_millis(held_for + asked_for);
        let mut behind = Box::pin(mutex.lock().timeout(timeout).into_future());
        assert!(futures_poll(behind.as_mut()).is_none());
        clock.advance(Duration::from_millis(held_for));
        drop(held);
        assert_eq!(of(&stub.releasing).len(), 1, "the next one is asked for in the same message");
        clock.advance(Duration::from_millis(asked_for));
        let error = soon("its time is over", behind).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut, "{error}");
        let message = error.message();
        assert_eq!(message.contains("has not answered"), silent, "{message}");
        assert!(!silent || message.contains("not answered for 11s"), "{message}");
        of(&stub.releasing).remove(0).1.send(End::Freed).unwrap();
        until("the place is left", || !of(&stub.leaving).is_empty()).await;
        of(&stub.leaving).remove(0).send(End::Freed).unwrap();
        until("nothing is kept", || crate::test_util::residue(&locks).claims == 0).await;
    }
}

#[tokio::test]
async fn w7_a_timeout_during_a_silence_says_so_and_names_no_holder_of_before() {
    let stub = Stub::default();
    let holder = Some(Box::new(Holder { host: Some("web-3".into()), ..Holder::default() }));
    of(&stub.attempts).push_back(Attempt::InLine(Place { holder, ..Place::default() }));
    let (locks, stub, clock) = open(stub).await;
    let mutex = locks.mutex("stock");
    let wait = || Box::pin(mutex.lock().timeout(Duration::from_secs(2)).into_future());
    let mut first = wait();
    assert!(futures_poll(first.as_mut()).is_none());
    clock.advance(Duration::from_secs(2));
    let error = soon("its time is over", first).await.map(drop).unwrap_err();
    assert!(error.kind() == ErrorKind::TimedOut && error.holder().is_some(), "{error}");

    of(&stub.attempts).push_back(in_line());
    let (mut second, mut third) = (wait(), wait());
    assert!(futures_poll(second.as_mut()).is_none() && futures_poll(third.as_mut()).is_none());
    tell(&stub, Event::Link { up: false });
    until("the reason is asked for", || !of(&stub.rechecked).is_empty()).await;
    until("it is known", || locks.silence(Kind::Lock, &Name::new("stock").unwrap()).is_some())
        .await;
    clock.advance(Duration::from_secs(2));
    for late in [second, third] {
        let error = soon("its time is over", late).await.map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.holder().is_none(), "{error}");
        let message = error.message();
        assert!(message.contains("not answered for") && !message.contains("held by"), "{message}");
    }
}
