//! An engine that says nothing about a place: what is told, what ends, and what is kept.

mod said;

use super::logged::{Log, heard_by};
use super::*;
use crate::primitives::rwlock::UpgradableGuard;
use tracing::Level;

/// What was told about outages.
#[derive(Default)]
struct Told(Mutex<Vec<Seen>>);

impl Observer for Told {
    fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
        if matches!(what, Seen::Unreachable { .. } | Seen::Reachable { .. }) {
            of(&self.0).push(what.clone());
        }
    }
}

fn in_line() -> Attempt {
    Attempt::InLine(Place::default())
}

/// The first who asks stands in line.
async fn open_in_line() -> (Locks, Arc<Stub>, Clock) {
    let stub = Stub::default();
    of(&stub.attempts).push_back(in_line());
    open(stub).await
}

/// With somebody who is told of outages.
async fn open_told(stub: Stub) -> (Locks, Arc<Stub>, Clock, Arc<Told>) {
    let (clock, told) = (Clock::virtual_at(Duration::from_secs(1)), Arc::new(Told::default()));
    let stub = Arc::new(stub);
    let builder = Locks::builder().clock(clock.clone()).observer(told.clone());
    let locks = builder.with_engine(Shared(stub.clone())).await.unwrap();
    (locks, stub, clock, told)
}

/// What the engine tells unasked.
fn tell(stub: &Stub, event: Event) {
    stub.context.get().unwrap().events.send(event);
}

/// Somebody's transaction is in the way of what was asked for this claim.
fn hinder(stub: &Stub, name: &str, claim: ClaimId, since: Ticks) {
    let why = Error::new(ErrorKind::Refused, "somebody stands on it");
    let name = Name::new(name).unwrap();
    tell(stub, Event::Hindered { kind: Kind::Lock, name, claim, since, why });
}

/// Two names at once, of which nobody answers for any; and their claims.
async fn several_unanswered() -> (Locks, Arc<Stub>, Clock, oneshot::Sender<Vec<Attempt>>) {
    let stub = Stub::default();
    let (answers, told) = oneshot::channel();
    (*of(&stub.together), *of(&stub.together_later)) = (Some(Vec::new()), Some(told));
    let (locks, stub, clock) = open(stub).await;
    (locks, stub, clock, answers)
}

fn claim_for(locks: &Locks, name: &str) -> ClaimId {
    let entries = locks.keeper.all_entries();
    let entry = entries.iter().find(|entry| entry.name.as_str() == name).unwrap();
    entry.lock().state.line.claim().unwrap()
}

#[tokio::test]
async fn an_acquisition_ends_as_unreachable_once_the_engine_is_silent_for_its_patience() {
    let (locks, stub, clock) = open_in_line().await;
    let mutex = locks.mutex("stock");
    let mut patient =
        Box::pin(mutex.lock().unreachable_after(Duration::from_secs(7)).into_future());
    assert!(futures_poll(patient.as_mut()).is_none());
    // The net asks after five seconds, and nobody answers.
    clock.advance(Duration::from_secs(5));
    until("the net has asked", || of(&stub.rechecked).len() == 1).await;
    clock.advance(Duration::from_millis(6_990));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(futures_poll(patient.as_mut()).is_none(), "its patience is not over");
    // A look is at most so late.
    clock.advance(Duration::from_millis(40));
    let error = soon("its patience is over", patient).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unreachable, "the reply was lost"));
    assert_eq!(*of(&stub.withdrawn), *of(&stub.attempted), "it leaves the line (R5)");
    until("nothing is kept", || crate::test_util::residue(&locks).claims == 0).await;
}

#[tokio::test]
async fn one_that_began_to_wait_during_an_outage_has_its_own_patience() {
    let (locks, stub, clock) = open_in_line().await;
    let mutex = locks.mutex("stock");
    let mut first = Box::pin(mutex.lock().unreachable_after(Duration::from_secs(10)).into_future());
    assert!(futures_poll(first.as_mut()).is_none());
    tell(&stub, Event::Link { up: false });
    clock.advance(Duration::from_secs(8));
    let mut second =
        Box::pin(mutex.lock().unreachable_after(Duration::from_secs(10)).into_future());
    assert!(futures_poll(second.as_mut()).is_none());
    clock.advance(Duration::from_millis(2_040));
    let error = soon("the first ends", first).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(of(&stub.withdrawn).is_empty(), "the second has the place now");
    clock.advance(Duration::from_millis(7_900));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(futures_poll(second.as_mut()).is_none());
    clock.advance(Duration::from_millis(200));
    soon("the second ends", second).await.map(drop).unwrap_err();
}

#[tokio::test]
async fn one_who_comes_while_the_place_of_one_before_is_still_being_left_has_its_patience_too() {
    let stub = Stub::default();
    of(&stub.attempts).push_back(in_line());
    of(&stub.withdrawals).extend((0..1_000).map(|_| End::Unknown(lost_reply())));
    let (locks, stub, clock, told) = open_told(stub).await;
    let mutex = locks.mutex("stock");
    let mut first = Box::pin(mutex.lock().unreachable_after(Duration::from_secs(2)).into_future());
    assert!(futures_poll(first.as_mut()).is_none());
    tell(&stub, Event::Link { up: false });
    clock.advance(Duration::from_millis(2_040));
    let error = soon("the first ends", first).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);

    let mut second = Box::pin(mutex.lock().unreachable_after(Duration::from_secs(9)).into_future());
    assert!(futures_poll(second.as_mut()).is_none());
    let error = soon("a try ends", mutex.try_lock().into_future()).await.map(drop).unwrap_err();
    assert_eq!(
        (error.kind(), error.message()),
        (ErrorKind::Unreachable, "the reply was lost"),
        "nobody said that it is busy"
    );
    clock.advance(Duration::from_millis(8_000));
    until("it is told", || !of(&told.0).is_empty()).await;
    assert!(futures_poll(second.as_mut()).is_none(), "its patience is not over");
    clock.advance(Duration::from_millis(1_040));
    let error = soon("the second ends", second).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.message()), (ErrorKind::Unreachable, "the reply was lost"));

    // The server is back.
    of(&stub.withdrawals).clear();
    let third = Box::pin(mutex.lock().into_future());
    clock.advance(Duration::from_millis(250));
    drop(soon("it is granted", third).await.unwrap());
    until("the end of the silence is told", || of(&told.0).len() == 2).await;
    until("nothing is kept", || crate::test_util::residue(&locks).claims == 0).await;
    assert!(!locks.keeper.claims.any_silent());
}

#[tokio::test]
async fn an_older_question_that_stays_unanswered_begins_no_silence_after_a_newer_answer() {
    let (locks, stub, clock) = open_in_line().await;
    let before = clock.now();
    clock.advance(Duration::from_secs(1));
    let mut waiting = Box::pin(locks.mutex("stock").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let (claim, entry) = (of(&stub.attempted)[0], locks.keeper.all_entries().remove(0));
    entry.unanswered(claim, before, &lost_reply());
    assert!(!locks.keeper.claims.any_silent(), "the engine has answered since");
    entry.unanswered(claim, clock.now(), &lost_reply());
    assert!(locks.keeper.claims.any_silent());
}

#[tokio::test]
async fn what_is_in_the_way_is_a_reason_and_ends_no_patience_with_an_engine_that_answers() {
    let (locks, stub, clock) = open(Stub { slow_attempts: true, ..Stub::default() }).await;
    let mutex = locks.mutex("stock");
    let patient = || mutex.lock().unreachable_after(Duration::from_secs(2));
    let mut first = Box::pin(patient().timeout(Duration::from_secs(6)).into_future());
    assert!(futures_poll(first.as_mut()).is_none());
    let (claim, since) = (of(&stub.attempted)[0], clock.now());
    hinder(&stub, "stock", claim, since);
    until("that is known", || locks.keeper.claims.any_silent()).await;
    locks.keeper.tell_outages(clock.now());
    clock.advance(Duration::from_secs(3));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(futures_poll(first.as_mut()).is_none(), "the engine answers");
    clock.advance(Duration::from_secs(3));
    let error = soon("its time is over", first).await.map(drop).unwrap_err();
    let says = "the engine has refused it for 6s: somebody stands on it";
    assert!(error.kind() == ErrorKind::TimedOut && error.message().contains(says), "{error}");
}

#[tokio::test]
async fn who_waits_behind_several_names_is_told_what_is_in_the_way_of_them() {
    let (locks, stub, clock, _answers) = several_unanswered().await;
    let mut several =
        Box::pin(locks.all([locks.mutex("a").lock(), locks.mutex("b").lock()]).into_future());
    assert!(futures_poll(several.as_mut()).is_none());
    let a = locks.mutex("a");
    let mut behind = Box::pin(a.lock().timeout(Duration::from_secs(6)).into_future());
    assert!(futures_poll(behind.as_mut()).is_none());
    hinder(&stub, "a", claim_for(&locks, "a"), clock.now());
    until("that is known", || locks.keeper.claims.any_silent()).await;
    clock.advance(Duration::from_secs(6));
    let error = soon("its time is over", behind).await.map(drop).unwrap_err();
    let says = "the engine has refused it for 6s: somebody stands on it";
    assert!(error.kind() == ErrorKind::TimedOut && error.message().contains(says), "{error}");
}

#[tokio::test]
async fn several_names_for_which_nobody_answers_end_with_their_time_and_say_why() {
    for (hindered, named) in [(&[][..], Some("a")), (&["b"], Some("b")), (&["a", "b"], None)] {
        let (locks, stub, clock, answers) = several_unanswered().await;
        let both = [locks.mutex("a").lock(), locks.mutex("b").lock()];
        let all = locks.all(both).timeout(Duration::from_secs(3));
        let mut several = Box::pin(all.into_future());
        assert!(futures_poll(several.as_mut()).is_none());
        for name in hindered {
            let claim = claim_for(&locks, name);
            hinder(&stub, name, claim, clock.now());
            until("that is known", || locks.keeper.silence(claim).is_some()).await;
        }
        let says = match hindered.len() {
            0 => "and stub://here has not answered for 3.1s",
            1 => "the engine has refused it for 3.1s: somebody stands on it",
            // Of which of them it is true nobody says.
            _ => "the engine has refused one of them for 3.1s: somebody stands on it",
        };
        // An engine that ends the message by itself may still say why.
        clock.advance(Duration::from_millis(3_050));
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(futures_poll(several.as_mut()).is_none());
        clock.advance(Duration::from_millis(50));
        let error = soon("its time is over", several).await.map(drop).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.message().contains(says), "{error}");
        assert_eq!(error.lock_name().map(Name::as_str), named);
        answers.send(vec![granted(), granted()]).unwrap();
        until("both are given back (R5)", || of(&stub.released).len() == 2).await;
        until("nothing is kept", || crate::test_util::residue(&locks).claims == 0).await;
    }
}

#[tokio::test]
async fn a_link_that_breaks_is_the_reason_and_no_more_what_was_in_the_way_before() {
    let stub = Stub { slow_rechecks: true, ..Stub::default() };
    of(&stub.attempts).push_back(in_line());
    let (locks, stub, clock) = open(stub).await;
    let mutex = locks.mutex("stock");
    let mut waiting = Box::pin(mutex.lock().timeout(Duration::from_secs(6)).into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    hinder(&stub, "stock", of(&stub.attempted)[0], clock.now());
    until("that is known", || locks.keeper.claims.any_silent()).await;
    tell(&stub, Event::Link { up: false });
    until("the reason is asked for", || of(&stub.rechecking).len() == 1).await;
    clock.advance(Duration::from_secs(6));
    let error = soon("its time is over", waiting).await.map(drop).unwrap_err();
    let says = "has not answered for 6s: ";
    assert!(error.message().contains(says), "{error}");
    assert!(error.message().ends_with("the connection broke"), "{error}");
}

#[tokio::test]
async fn a_server_that_refuses_is_told_and_logged_as_one_that_answers() {
    let stub = Stub::default();
    of(&stub.attempts).push_back(in_line());
    let (locks, stub, clock, told) = open_told(stub).await;
    let log = Log::from(Level::WARN);
    let _logged = heard_by(&log);
    let mut waiting = Box::pin(locks.mutex("stock").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    hinder(&stub, "stock", of(&stub.attempted)[0], clock.now());
    until("that is known", || locks.keeper.claims.any_silent()).await;
    tracing::callsite::rebuild_interest_cache();
    locks.keeper.tell_outages(clock.now().plus(Duration::from_secs(10)));
    let said = log.take();
    assert!(said.iter().any(|line| line.contains("refused; waiting on")), "{said:?}");
    let told = of(&told.0);
    assert!(matches!(told[..], [Seen::Unreachable { refused: true, .. }]), "{told:?}");
}

#[tokio::test]
async fn a_server_that_answers_what_is_in_the_way_is_silent_no_more() {
    let stub = Stub { slow_rechecks: true, ..Stub::default() };
    of(&stub.attempts).push_back(in_line());
    let (locks, stub, clock) = open(stub).await;
    let mutex = locks.mutex("stock");
    let patient = mutex.lock().unreachable_after(Duration::from_secs(7));
    let mut waiting = Box::pin(patient.timeout(Duration::from_secs(9)).into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let claim = of(&stub.attempted)[0];
    let why = || locks.keeper.silence(claim).map(|(_, why)| why.kind());
    tell(&stub, Event::Link { up: false });
    until("it is silent", || why() == Some(ErrorKind::Unreachable)).await;
    clock.advance(Duration::from_secs(4));
    hinder(&stub, "stock", claim, clock.now());
    until("it answers", || why() == Some(ErrorKind::Refused)).await;
    clock.advance(Duration::from_millis(4_500));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(futures_poll(waiting.as_mut()).is_none(), "it was silent for 4 s, not for 7");
    clock.advance(Duration::from_millis(500));
    let error = soon("its time is over", waiting).await.map(drop).unwrap_err();
    let says = "the engine has refused it for 5s: somebody stands on it";
    assert!(error.kind() == ErrorKind::TimedOut && error.message().contains(says), "{error}");
}

#[tokio::test]
async fn a_refusal_beside_a_silence_has_a_line_of_its_own_in_the_log() {
    let stub = Stub::default();
    of(&stub.attempts).extend([in_line(), in_line()]);
    let (locks, stub, clock) = open(stub).await;
    let log = Log::from(Level::WARN);
    let _logged = heard_by(&log);
    let mut waiting = ["a", "b"].map(|name| Box::pin(locks.mutex(name).lock().into_future()));
    for waiting in &mut waiting {
        assert!(futures_poll(waiting.as_mut()).is_none());
    }
    let (a, b) = (claim_for(&locks, "a"), claim_for(&locks, "b"));
    hinder(&stub, "a", a, clock.now());
    until("one is refused", || locks.keeper.silence(a).is_some()).await;
    let entries = locks.keeper.all_entries();
    let entry = entries.iter().find(|entry| entry.name.as_str() == "b").unwrap();
    entry.unanswered(b, clock.now(), &lost_reply());
    tracing::callsite::rebuild_interest_cache();
    locks.keeper.tell_outages(clock.now().plus(Duration::from_secs(10)));
    let said = log.take();
    for does in ["no answer; waiting on", "refused; waiting on"] {
        let says = |line: &&String| line.contains(does) && line.contains("names=1");
        assert_eq!(said.iter().filter(says).count(), 1, "{said:?}");
    }
}

#[tokio::test]
async fn a_place_is_kept_through_any_number_of_questions_without_an_answer() {
    let stub = Stub::default();
    of(&stub.attempts).push_back(in_line());
    of(&stub.attempts).extend((0..30).map(|_| Attempt::Unknown(lost_reply())));
    of(&stub.attempts)
        .extend((0..30).map(|_| Attempt::Failed(Error::new(ErrorKind::Unreachable, "it is down"))));
    let (locks, stub, clock) = open(stub).await;
    let mut waiting = Box::pin(locks.mutex("stock").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let claim = of(&stub.attempted)[0];
    tell(&stub, Event::Wake { claim });
    for asked in 2..=62 {
        until("it is asked again", || {
            clock.advance(Duration::from_millis(100));
            of(&stub.attempted).len() >= asked
        })
        .await;
    }
    drop(soon("it is granted", waiting).await.unwrap());
    assert!(of(&stub.attempted).iter().all(|id| *id == claim) && of(&stub.withdrawn).is_empty());
}

#[tokio::test]
async fn a_silence_is_told_after_10_s_with_the_reason_and_its_end_once() {
    let stub = Stub { slow_rechecks: true, ..Stub::default() };
    of(&stub.attempts).push_back(in_line());
    let (locks, stub, clock, told) = open_told(stub).await;
    let mut waiting = Box::pin(locks.mutex("stock").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let claim = of(&stub.attempted)[0];
    tell(&stub, Event::Link { up: false });
    until("the reason is asked for", || of(&stub.rechecking).len() == 1).await;
    clock.advance(Duration::from_secs(5));
    of(&stub.rechecking).remove(0).send(vec![Standing::Unknown(lost_reply())]).unwrap();
    let why = || locks.keeper.silence(claim).map(|(_, why)| why.message().to_owned());
    until("the reason is known", || why().as_deref() == Some("the reply was lost")).await;
    clock.advance(Duration::from_millis(4_990));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(of(&told.0).is_empty());
    clock.advance(Duration::from_millis(10));
    until("it is told", || !of(&told.0).is_empty()).await;
    let (silent_for, why) = (Duration::from_secs(10), "the reply was lost".to_owned());
    assert_eq!(of(&told.0)[0], Seen::Unreachable { place: claim, refused: false, silent_for, why });
    tell(&stub, Event::Link { up: true });
    until("the net asks again", || !of(&stub.rechecking).is_empty()).await;
    for asked in std::mem::take(&mut *of(&stub.rechecking)) {
        asked.send(vec![in_line().into()]).unwrap();
    }
    until("its end is told", || of(&told.0).len() == 2).await;
    assert_eq!(of(&told.0)[1], Seen::Reachable { place: claim });
}

#[tokio::test]
async fn a_silence_and_its_end_are_logged() {
    let (locks, stub, clock) = open_in_line().await;
    let log = Log::from(Level::WARN);
    let _logged = heard_by(&log);
    let mut waiting = Box::pin(locks.mutex("stock").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    let claim = of(&stub.attempted)[0];
    tell(&stub, Event::Link { up: false });
    // Another test that came to the place before there was any log may have closed it meanwhile.
    tracing::callsite::rebuild_interest_cache();
    // Told by this thread, whose log hears it.
    locks.keeper.tell_outages(clock.now().plus(Duration::from_secs(10)));
    let said = log.take();
    let words = ["no answer", "engine=\"stub\"", "stock", "silent_for=10s", "why=\""];
    let warned = |line: &String| words.iter().all(|word| line.contains(word));
    assert!(said.iter().any(warned), "{said:?}");
    tell(&stub, Event::Granted { claim, grant: Grant { number: Number::None, lease: None } });
    drop(soon("it is granted", waiting).await.unwrap());
    let said = log.take();
    assert!(
        said.iter().any(|line| line.contains("the engine answers again") && line.contains("stock")),
        "{said:?}"
    );
}

#[tokio::test]
async fn a_timeout_of_zero_asks_once_and_a_free_lock_is_had() {
    let stub = Stub::default();
    let (locks, stub, _clock) = open(stub).await;
    let mutex = locks.mutex("stock");
    let guard = mutex.lock().timeout(Duration::ZERO).await.unwrap();
    let error = mutex.lock().timeout(Duration::ZERO).await.map(drop).unwrap_err();
    assert_eq!((error.kind(), error.holder().is_some()), (ErrorKind::TimedOut, true), "{error}");
    assert_eq!(of(&stub.attempted).len(), 1);
    drop(guard);
    of(&stub.attempts).push_back(Attempt::Busy(None));
    let error = mutex.lock().timeout(Duration::ZERO).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::TimedOut);
}

#[tokio::test]
async fn an_answer_that_is_nonsense_is_no_reason_to_ask_again() {
    let stub = Stub::default();
    of(&stub.attempts)
        .push_back(Attempt::Unknown(Error::new(ErrorKind::Corrupt, "it says OK to everything")));
    let (locks, stub, _clock) = open(stub).await;
    let error = locks.mutex("stock").lock().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    assert_eq!(*of(&stub.attempted), *of(&stub.withdrawn), "it may stand there all the same (R4)");
}
