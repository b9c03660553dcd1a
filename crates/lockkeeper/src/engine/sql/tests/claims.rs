//! The claims of one process: what a withdrawal says, and what comes of a push.

use std::time::Duration;

use super::{START, claim};
use crate::engine::sql::ask::Reply;
use crate::engine::sql::claims::{Claims, Leaving, Rules, Verdict};
use crate::engine::sql::push::Push;
use crate::engine::sql::record::Us;
use crate::engine::{Attempt, Event, Line};
use crate::words::claim::Mode;
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;

const TIMEOUT: Duration = Duration::from_secs(2);
const NOW: Ticks = Ticks(1_000_000_000_000);

fn claims() -> Claims {
    let mut claims = Claims::new(Rules {
        channel: "c".to_owned(),
        drift_permille: 100,
        request_timeout: TIMEOUT,
    });
    claims.heard(START, NOW);
    claims
}

fn asking(claims: &mut Claims) -> ClaimId {
    let claim = claim(Mode::Exclusive);
    claims.ask(NOW, &claim, Line::Join, None);
    claim.id
}

/// Until when a request is refused that arrives behind the withdrawal.
fn refuses(claims: &mut Claims, id: ClaimId) -> Us {
    match claims.leave(NOW, id) {
        Some(Leaving::Asking { refuse, .. } | Leaving::Held { refuse, .. }) => refuse,
        None => panic!("it is known"),
    }
}

fn stands(claims: &mut Claims) -> ClaimId {
    let id = asking(claims);
    claims.request(NOW, id).expect("it is wanted");
    let reply = Reply::InLine { ahead: 0, rest: 1_000_000, holder: None, turn: Some(0) };
    let verdict = claims.answered(NOW, NOW, id, 7, reply);
    assert!(matches!(verdict, Verdict::Tell(Attempt::InLine(_))), "{verdict:?}");
    id
}

fn fails(claims: &mut Claims, id: ClaimId) -> Attempt {
    let error = Error::new(ErrorKind::Unreachable, "somebody's transaction stands there");
    claims.unanswered(NOW, id, true, error)
}

fn push(id: ClaimId) -> Push {
    Push::Granted { claim: id, number: 9, now: START, lease: 2_000_000, version: 8 }
}

#[test]
fn a_withdrawal_leaves_word_while_a_request_may_be_on_its_way() {
    let mut claims = claims();
    let id = asking(&mut claims);
    let request = claims.request(NOW, id).expect("it is wanted");
    // A copy may stand before the row, and be carried out when its statement ends at last.
    let last = request.not_after + 2_000_000;
    assert!(refuses(&mut claims, id) > last, "R5");
    let stands = stands(&mut claims);
    assert_eq!(refuses(&mut claims, stands), 0, "its only request was answered");
}

#[test]
fn a_hold_whose_request_was_sent_twice_leaves_word_too() {
    let mut claims = claims();
    let id = asking(&mut claims);
    claims.request(NOW, id).expect("it is wanted");
    claims.request(NOW, id).expect("it is wanted");
    let granted = Reply::Granted { number: 3, lease: 30_000_000 };
    let verdict = claims.answered(NOW, NOW, id, 7, granted);
    assert!(matches!(verdict, Verdict::Tell(Attempt::Granted(_))), "{verdict:?}");
    assert!(refuses(&mut claims, id) > 0);
}

#[test]
fn a_push_behind_a_question_that_failed_is_a_grant() {
    let mut claims = claims();
    let id = stands(&mut claims);
    claims.request(NOW, id).expect("it is wanted");
    assert!(matches!(fails(&mut claims, id), Attempt::Unknown(_)));
    let event = claims.pushed(NOW, &push(id));
    assert!(matches!(event, Some(Event::Granted { claim, .. }) if claim == id), "{event:?}");
}

#[test]
fn a_push_before_a_question_that_fails_is_a_grant() {
    for certain in [true, false] {
        let mut claims = claims();
        let id = stands(&mut claims);
        claims.request(NOW, id).expect("it is wanted");
        assert!(claims.pushed(NOW, &push(id)).is_none(), "the answer is on its way");
        let error = Error::new(ErrorKind::Unreachable, "the connection is gone");
        let attempt = claims.unanswered(NOW, id, certain, error);
        let Attempt::Granted(grant) = attempt else { panic!("{certain}: {attempt:?}") };
        assert!(grant.lease.expect("a lease").confirm);
    }
}

#[test]
fn r5_a_question_that_a_grant_came_before_tells_nobody_that_the_claim_failed() {
    let mut claims = claims();
    let id = stands(&mut claims);
    let event = claims.pushed(NOW, &push(id));
    assert!(matches!(event, Some(Event::Granted { claim, .. }) if claim == id), "{event:?}");
    // It was to be asked about, and nothing is sent any more.
    assert!(claims.request(NOW, id).is_none());
    let closed = || Error::new(ErrorKind::Closed, "its caller has left");
    for attempt in
        [claims.unsent(id, closed()), fails(&mut claims, id), claims.doubted(id, closed())]
    {
        assert!(matches!(attempt, Attempt::Unknown(_)), "the hold decides: {attempt:?}");
    }
    claims.forget(id);
    assert!(matches!(claims.unsent(id, closed()), Attempt::Failed(_)), "it is over");
}

#[test]
fn r2_whoever_is_told_that_its_hold_was_taken_while_it_asks_about_it_has_it_no_more() {
    let mut claims = claims();
    let claim = claim(Mode::Exclusive);
    let id = claim.id;
    let granted = Reply::Granted { number: 3, lease: 30_000_000 };
    claims.ask(NOW, &claim, Line::Join, None);
    claims.request(NOW, id).expect("it is wanted");
    claims.answered(NOW, NOW, id, 7, granted);
    claims.ask(NOW, &claim, Line::Join, None);
    claims.request(NOW, id).expect("it is wanted");
    assert!(claims.pushed(NOW, &push(id)).is_none(), "the answer is on its way");
    let event = claims.pushed(NOW, &Push::Taken { claim: id });
    assert!(matches!(event, Some(Event::Ended { .. })), "{event:?}");
    assert!(claims.renewal(id.into()).is_none());
    // Nor does a word of before grant it.
    let told = claims.unanswered(NOW, id, false, Error::new(ErrorKind::Unreachable, "gone"));
    assert!(matches!(told, Attempt::Unknown(_)), "{told:?}");
    assert!(claims.number(id).is_none());
}

/// As on Redis: what was known of the server's clock may be so old that a tenth of its age is most
/// of a claim lease.
#[test]
fn r10_a_push_that_overtook_its_answer_is_dated_by_that_answer_however_long_nothing_was_heard() {
    for idle in [0, 17_900, 18_500, 19_500, 20_500, 600_000] {
        let mut claims = claims();
        let later = |ms: u64| NOW.plus(Duration::from_millis(ms));
        let server = |ms: u64| START + Us::try_from(1_000 * ms).expect("a time");
        let asked = claim(Mode::Exclusive);
        claims.ask(later(idle), &asked, Line::Join, None);
        claims.request(later(idle), asked.id).expect("it is wanted");
        let push = Push::Granted {
            claim: asked.id,
            number: 9,
            now: server(idle + 1),
            lease: 2_000_000,
            version: 8,
        };
        assert!(claims.pushed(later(idle + 1), &push).is_none(), "the answer is on its way");
        claims.heard(server(idle), later(idle));
        let reply = Reply::InLine { ahead: 0, rest: 1_000_000, holder: None, turn: Some(0) };
        let verdict = claims.answered(later(idle + 2), later(idle), asked.id, 7, reply);
        let Verdict::Tell(Attempt::Granted(grant)) = verdict else {
            panic!("{idle} ms: {verdict:?}")
        };
        let since = grant.lease.and_then(|lease| lease.since).expect("a time");
        assert!((later(idle)..=later(idle + 1)).contains(&since), "{idle} ms: {since:?}");
    }
}

#[test]
fn r2_a_hold_that_is_asked_about_is_renewed_meanwhile_and_stays_what_it_was() {
    let mut claims = claims();
    let claim = claim(Mode::Exclusive);
    let id = claim.id;
    let granted = |number| Reply::Granted { number, lease: 30_000_000 };
    claims.ask(NOW, &claim, Line::Join, None);
    claims.request(NOW, id).expect("it is wanted");
    claims.answered(NOW, NOW, id, 7, granted(3));
    claims.give_out(id);
    // Its caller asks how it stands, or comes back from a wait that was granted just then.
    claims.ask(NOW, &claim, Line::Join, None);
    claims.request(NOW, id).expect("it is wanted");
    let renewing = claims.renewal(id.into()).expect("it holds, as far as anybody knows");
    assert_eq!((renewing.number, &renewing.name), (3, &claim.name));
    claims.renewed(id, 4);
    assert_eq!(claims.renewal(id.into()).map(|renewing| renewing.number), Some(4));
    let verdict = claims.answered(NOW, NOW, id, 7, granted(3));
    assert!(matches!(verdict, Verdict::Tell(Attempt::Granted(_))), "{verdict:?}");
    assert!(claims.is_stated(id), "its statement may still keep the lock");
    // Where the question comes to nothing it holds as before.
    for certain in [true, false] {
        claims.ask(NOW, &claim, Line::Join, None);
        claims.request(NOW, id).expect("it is wanted");
        let error = Error::new(ErrorKind::Unreachable, "the connection is gone");
        let told = claims.unanswered(NOW, id, certain, error);
        assert!(matches!(told, Attempt::Unknown(_)), "{certain}: {told:?}");
        assert!(claims.number(id).is_some(), "{certain}");
        assert!(claims.is_stated(id), "{certain}");
        claims.answered(NOW, NOW, id, 7, granted(3));
    }
    // Where the answer says that it is gone, it is.
    claims.ask(NOW, &claim, Line::Join, None);
    claims.request(NOW, id).expect("it is wanted");
    let reply = Reply::InLine { ahead: 0, rest: 1_000_000, holder: None, turn: Some(0) };
    claims.answered(NOW, NOW, id, 8, reply);
    assert!(claims.renewal(id.into()).is_none());
}
