//! What an observer is told, so that a history says what was done and not only what came of it.

use super::*;

const TTL: Duration = Duration::from_secs(9);

/// The words for what is told, in its order.
#[derive(Default)]
struct Words(Mutex<Vec<String>>);

impl Observer for Words {
    fn seen(&self, _: Ticks, _: Kind, _: &Name, what: &Seen) {
        let word = match what {
            Seen::Asked { claim, .. } => format!("asked {claim}"),
            Seen::Got { claim, .. } => format!("got {claim}"),
            Seen::Renewing { .. } => "renewing".to_owned(),
            Seen::Renewed { .. } => "renewed".to_owned(),
            Seen::NotRenewed { gone, .. } => {
                format!("not renewed, {}", if *gone { "gone" } else { "unknown" })
            }
            Seen::Releasing { claim, .. } => format!("releasing {claim}"),
            Seen::GivingBack { again, .. } => {
                format!("giving back{}", if *again { " again" } else { "" })
            }
            Seen::Released { end, .. } => format!("released {end}"),
            Seen::Lost { claim, .. } => format!("lost {claim}"),
            _ => return,
        };
        of(&self.0).push(word);
    }
}

impl Words {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *of(&self.0))
    }
}

async fn told(stub: Stub) -> (Locks, Arc<Stub>, Clock, Arc<Words>) {
    let (clock, stub, words) =
        (Clock::virtual_at(Duration::from_secs(1)), Arc::new(stub), Arc::new(Words::default()));
    let locks = Locks::builder()
        .clock(clock.clone())
        .observer(words.clone())
        .with_engine(Shared(stub.clone()))
        .await
        .unwrap();
    (locks, stub, clock, words)
}

fn leased() -> Attempt {
    let lease = Lease { id: LeaseId(7), ttl: TTL, since: None, confirm: false };
    Attempt::Granted(Grant { number: Number::Ours(5), lease: Some(lease) })
}

#[tokio::test]
async fn a_renewal_is_told_before_it_is_sent_and_what_came_of_it_after_those_who_lost_by_it() {
    let (locks, stub, clock, words) = told(Stub { leases: true, ..Stub::default() }).await;
    of(&stub.attempts).push_back(leased());
    let extended = Renewal::Extended { ttl: TTL, since: None };
    of(&stub.renewals).extend([
        extended,
        Renewal::Unknown(lost_reply()),
        Renewal::Gone(Lost::TakenAway),
    ]);
    let guard = locks.mutex("a").lock().await.unwrap();
    assert_eq!(words.take(), ["asked 1", "got 1"]);
    clock.advance(TTL / 3);
    until("it is renewed", || of(&words.0).len() == 2).await;
    assert_eq!(words.take(), ["renewing", "renewed"]);
    clock.advance(TTL / 3);
    until("that is not answered", || of(&words.0).len() == 2).await;
    assert_eq!(words.take(), ["renewing", "not renewed, unknown"]);
    clock.advance(TTL / 12);
    assert_eq!(soon("it is told", guard.lost()).await, Lost::TakenAway);
    until("all is told", || of(&words.0).len() == 3).await;
    assert_eq!(words.take(), ["renewing", "lost 1", "not renewed, gone"]);
}

#[tokio::test]
async fn the_release_of_a_hold_that_was_lost_is_told_too_and_so_is_one_that_is_repeated() {
    let (locks, stub, clock, words) = told(Stub { leases: true, ..Stub::default() }).await;
    of(&stub.attempts).push_back(leased());
    of(&stub.ends).extend([End::Unknown(lost_reply()), End::NotOurs]);
    let guard = locks.mutex("a").lock().await.unwrap();
    words.take();
    clock.advance(TTL);
    assert_eq!(soon("its lease is over", guard.lost()).await, Lost::Expired);
    until("it is given back", || of(&words.0).iter().any(|word| word.starts_with("released")))
        .await;
    let all = words.take();
    let at = all.iter().position(|word| word == "lost 1").expect("it was lost");
    assert_eq!(all[at + 1..at + 3], ["giving back", "released unknown"], "{all:?}");
    drop(guard);
    let (slow, stub, clock, words) = told(Stub { slow: true, ..Stub::default() }).await;
    drop(slow.mutex("b").lock().await.unwrap());
    not_answered(&stub, &clock).await;
    assert_eq!(
        words.take(),
        ["asked 1", "got 1", "releasing 1", "giving back", "giving back again"]
    );
}

/// A release whose answer is lost, until it is repeated.
async fn not_answered(stub: &Stub, clock: &Clock) {
    until("it is released", || of(&stub.releasing).len() == 1).await;
    of(&stub.releasing).remove(0).1.send(End::Unknown(lost_reply())).unwrap();
    until("it is released again", || {
        clock.advance(Duration::from_millis(10));
        of(&stub.releasing).len() == 1
    })
    .await;
}

#[tokio::test]
async fn r4_a_repeated_release_that_finds_nothing_is_no_illegal_one() {
    let (locks, stub, clock, words) = told(Stub { slow: true, ..Stub::default() }).await;
    let ends = |word: &str| of(&words.0).last().is_some_and(|last| last == word);
    // Answered at once: it was not ours.
    drop(locks.mutex("a").lock().await.unwrap());
    until("it is released", || of(&stub.releasing).len() == 1).await;
    of(&stub.releasing).remove(0).1.send(End::NotOurs).unwrap();
    until("that is told", || ends("released not-ours")).await;
    // Not answered, and found by nobody when it is repeated: the first one may have freed it.
    drop(locks.mutex("b").lock().await.unwrap());
    not_answered(&stub, &clock).await;
    of(&stub.releasing).remove(0).1.send(End::NotOurs).unwrap();
    until("that is told", || ends("released unknown")).await;
}

#[tokio::test]
async fn c7_the_release_of_a_hold_whose_lease_ended_on_the_way_is_already_lost_and_no_illegal_one()
{
    let released_after = async |passes: Duration, end: End| {
        let (locks, stub, clock, _words) =
            told(Stub { slow: true, leases: true, ..Stub::default() }).await;
        of(&stub.attempts).push_back(leased());
        let released = tokio::spawn(locks.mutex("a").lock().await.unwrap().release());
        until("the release is under way", || of(&stub.releasing).len() == 1).await;
        clock.advance(passes);
        of(&stub.releasing).remove(0).1.send(end).unwrap();
        soon("it is answered", released).await.unwrap()
    };
    let late = released_after(TTL, End::NotOurs).await;
    assert!(matches!(late, crate::Released::AlreadyLost(Lost::Expired)), "{late:?}");
    let early = released_after(Duration::ZERO, End::NotOurs).await;
    assert!(matches!(early, crate::Released::NotOurs), "somebody took it: {early:?}");
    let partly = released_after(Duration::ZERO, End::Gone(Lost::TakenAway)).await;
    assert!(matches!(partly, crate::Released::AlreadyLost(Lost::TakenAway)), "{partly:?}");
}

#[tokio::test]
async fn how_a_release_ended_is_decided_when_the_engine_answers_and_not_when_somebody_looks() {
    let (locks, stub, clock, words) =
        told(Stub { slow: true, leases: true, ..Stub::default() }).await;
    of(&stub.attempts).push_back(leased());
    let mut released = Box::pin(locks.mutex("a").lock().await.unwrap().release());
    assert!(futures_poll(released.as_mut()).is_none());
    until("the release is under way", || of(&stub.releasing).len() == 1).await;
    of(&stub.releasing).remove(0).1.send(End::NotOurs).unwrap();
    until("the log has it", || of(&words.0).last().is_some_and(|last| last == "released not-ours"))
        .await;
    clock.advance(TTL);
    let late = soon("it is answered", released).await;
    assert!(
        matches!(late, crate::Released::NotOurs),
        "the log called it somebody else's: {late:?}"
    );
}

#[tokio::test]
async fn r4_what_is_answered_once_more_while_a_hold_is_given_back_says_nothing_of_how_that_ended() {
    // The grant, or the place that it had before.
    for once_more in [granted(), Attempt::InLine(Place::default())] {
        answered_once_more(once_more).await;
    }
}

/// One that waits, and whose place is asked about by the net.
async fn waits_and_is_rechecked(
    locks: &Locks,
    stub: &Stub,
    clock: &Clock,
) -> (std::pin::Pin<Box<crate::primitives::acquire::Acquired<crate::Guard>>>, ClaimId) {
    of(&stub.attempts).push_back(Attempt::InLine(Place::default()));
    let mut waiting = Box::pin(locks.mutex("name").lock().into_future());
    assert!(futures_poll(waiting.as_mut()).is_none());
    clock.advance(Duration::from_secs(5));
    until("the place is re-checked", || of(&stub.rechecking).len() == 1).await;
    let claim = of(&stub.attempted)[0];
    (waiting, claim)
}

async fn answered_once_more(once_more: Attempt) {
    let (locks, stub, clock, words) =
        told(Stub { slow: true, slow_rechecks: true, ..Stub::default() }).await;
    let (waiting, claim) = waits_and_is_rechecked(&locks, &stub, &clock).await;
    stub.context
        .get()
        .unwrap()
        .events
        .send(Event::Granted { claim, grant: Grant { number: Number::None, lease: None } });
    let guard = soon("it is granted", waiting).await.unwrap();
    let released = tokio::spawn(guard.release());
    until("the release is under way", || of(&stub.releasing).len() == 1).await;

    // The re-check found the grant that is being given back. It may have been made anew, so it is
    // given back once more, for nobody; and behind the first release, so that it cannot take from
    // that what it would have freed.
    of(&stub.rechecking).remove(0).send(vec![once_more.into()]).unwrap();
    let entry = locks.keeper.all_entries().remove(0);
    let echoed = || {
        let locked = entry.lock();
        let ends = locked.state.ends.as_ref();
        ends.is_some_and(|ends| ends.under_way.values().any(|under_way| under_way.echoed))
    };
    until("the re-check is understood", echoed).await;
    assert_eq!((of(&stub.releasing).len(), of(&stub.withdrawn).len()), (1, 0), "one at a time");
    of(&stub.releasing).remove(0).1.send(End::Freed).unwrap();
    assert!(soon("it is released", released).await.unwrap().is_clean());
    until("it is given back once more", || of(&stub.releasing).len() == 1).await;
    of(&stub.releasing).remove(0).1.send(End::NotOurs).unwrap();
    assert!(locks.close().await.unknown.is_empty());
    let all = words.take();
    assert_eq!(
        all[all.len() - 3..],
        ["releasing 1", "giving back", "released freed"],
        "the second one is sent for nobody: {all:?}"
    );
}

#[tokio::test]
async fn r7_a_place_that_is_found_granted_has_the_number_that_was_found() {
    let (locks, stub, clock, _words) =
        told(Stub { fenced: true, slow: true, slow_rechecks: true, ..Stub::default() }).await;
    let (waiting, claim) = waits_and_is_rechecked(&locks, &stub, &clock).await;
    let grant = Grant { number: Number::Ours(7), lease: None };
    of(&stub.rechecking).remove(0).send(vec![Standing::Held(grant.clone())]).unwrap();
    let guard = soon("it is granted", waiting).await.unwrap();
    // Its push comes behind, and changes nothing.
    stub.context.get().unwrap().events.send(Event::Granted { claim, grant });
    assert_eq!(guard.token().ok(), crate::Token::of(7, 0), "the one that was found");
}

#[tokio::test]
async fn r4_a_place_that_a_check_misses_is_not_refused_while_it_is_asked_for_anew() {
    let (locks, stub, clock, _words) =
        told(Stub { slow: true, slow_rechecks: true, ..Stub::default() }).await;
    let (waiting, claim) = waits_and_is_rechecked(&locks, &stub, &clock).await;
    // A hint makes it ask anew, and that answer is lost.
    of(&stub.attempts).push_back(Attempt::Unknown(lost_reply()));
    stub.context.get().unwrap().events.send(Event::Wake { claim });
    until("it is asked for anew", || of(&stub.attempted).len() == 2).await;
    of(&stub.rechecking).remove(0).send(vec![Standing::Gone(gone())]).unwrap();
    let granted = as_time_goes_by(&clock, waiting).await;
    drop(granted.expect("what was asked before refuses nobody"));
}
