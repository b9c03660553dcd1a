//! The recipe alone, where the order of answers and pushes matters.

use std::sync::Arc;
use std::time::Duration;

use super::super::keys::Keys;
use super::super::recipe::{Recipe, Rules, Verdict};
use super::super::reply::{Push, Reply};
use super::super::script::Call;
use crate::claim::{Claim, Identity, Mode, Through};
use crate::clock::Ticks;
use crate::engine::{Attempt, Event, Line, Number};
use crate::error::{Error, ErrorKind};
use crate::id::ClaimId;
use crate::name::{Kind, Name};

const TTL: Duration = Duration::from_secs(30);

fn at(ms: u64) -> Ticks {
    Ticks(ms * 1_000_000)
}

fn recipe() -> Recipe {
    let rules = Rules {
        keys: Keys::new("lockkeeper", 0),
        channel: "channel".into(),
        drift_permille: 100,
        request_timeout: Duration::from_secs(2),
        acknowledged: false,
        moves: false,
    };
    Recipe::new(rules)
}

fn claim() -> Claim {
    Claim {
        id: ClaimId::fresh(),
        kind: Kind::Lock,
        name: Name::new("a").unwrap(),
        mode: Mode::Exclusive,
        through: Through::Mutex,
        ttl: TTL,
        renew: true,
        margin: None,
        lock_delay: Duration::ZERO,
        give_up: None,
        who: Arc::new(Identity {
            host: "host".into(),
            pid: 1,
            started: 0,
            program: "test".into(),
            label: None,
        }),
        value: None,
    }
}

/// A recipe with one claim that stands in line, and is asked about once more.
fn rechecking() -> (Recipe, ClaimId) {
    let (mut recipe, claim) = (recipe(), claim());
    recipe.ask(at(0), &claim, Line::Join, None);
    let verdict = recipe.answered(at(1), at(0), claim.id, 1, in_line());
    assert!(matches!(verdict, Verdict::Tell(Attempt::InLine(_))), "{verdict:?}");
    assert!(recipe.again(at(1000), claim.id).is_some());
    (recipe, claim.id)
}

fn in_line() -> Reply {
    Reply::InLine { now_us: 1_000_000, ahead: 0, rest: TTL, holder: String::new(), turn: Some(0) }
}

fn pushed(recipe: &mut Recipe, id: ClaimId, order: u64) {
    let push =
        Push::Granted { claim: id.0, number: 7, now_us: 2_000_000, lease: Duration::from_secs(2) };
    assert!(matches!(recipe.pushed(at(1001), order, &push), Some(Event::Granted { .. })));
}

#[test]
fn r7_a_hold_knows_the_number_of_its_grant() {
    let (mut recipe, id) = rechecking();
    assert_eq!(recipe.number(id), None, "in line");
    pushed(&mut recipe, id, 3);
    assert_eq!(recipe.number(id), Some(Number::Ours(7)), "as it was pushed");
    let anew = Reply::Granted { now_us: 2_000_000, number: 9, ttl: TTL };
    recipe.answered(at(1002), at(1000), id, 4, anew);
    assert_eq!(recipe.number(id), Some(Number::Ours(9)), "and as it was granted anew");
    recipe.forget(id);
    assert_eq!(recipe.number(id), None, "given back");
}

#[test]
fn r7_a_grant_that_is_read_when_its_lease_is_over_keeps_no_number_and_hears_the_next_push() {
    let (mut recipe, id) = rechecking();
    let late = Reply::Granted { now_us: 2_000_000, number: 5, ttl: TTL };
    // 10 % of drift before the lease's end it is over for us, as it is for the keeper.
    let verdict = recipe.answered(at(28_000), at(1000), id, 3, late);
    assert!(matches!(verdict, Verdict::Tell(Attempt::Unknown(_))), "{verdict:?}");
    assert_eq!(recipe.number(id), None, "it holds nothing");
    assert!(recipe.again(at(28_000), id).is_some(), "it is asked for again, and not renewed");
    let push =
        Push::Granted { claim: id.0, number: 7, now_us: 31_000_000, lease: Duration::from_secs(2) };
    let event = recipe.pushed(at(28_001), 4, &push);
    assert!(
        matches!(&event, Some(Event::Granted { grant, .. }) if grant.number == Number::Ours(7)),
        "{event:?}"
    );
    // In time, it is a grant like any.
    let (mut recipe, id) = rechecking();
    let verdict = recipe.answered(
        at(27_999),
        at(1000),
        id,
        3,
        Reply::Granted { now_us: 2_000_000, number: 5, ttl: TTL },
    );
    assert!(matches!(verdict, Verdict::Tell(Attempt::Granted(_))), "{verdict:?}");
    assert_eq!(recipe.number(id), Some(Number::Ours(5)));
}

#[test]
fn r10_a_check_that_crosses_a_pushed_grant_never_says_that_it_is_gone() {
    // The push was read behind the answer, and is taken before it.
    let (mut recipe, id) = rechecking();
    pushed(&mut recipe, id, 3);
    let verdict = recipe.answered(at(1002), at(1000), id, 2, in_line());
    assert!(matches!(verdict, Verdict::Tell(Attempt::InLine(_))), "{verdict:?}");
    assert!(recipe.renewal(id.into()).is_some(), "it is held");
    // The answer was read behind the push: the server confirmed the grant, and gave the whole
    // lease.
    let (mut recipe, id) = rechecking();
    pushed(&mut recipe, id, 2);
    let verdict = recipe.answered(
        at(1002),
        at(1000),
        id,
        3,
        Reply::Granted { now_us: 2_000_000, number: 7, ttl: TTL },
    );
    let Verdict::Tell(Attempt::Granted(grant)) = verdict else { panic!("{verdict:?}") };
    assert_eq!(grant.number, Number::Ours(7));
    assert!(
        grant.lease.is_some_and(|lease| lease.ttl == TTL
            && lease.since == Some(at(1000))
            && !lease.confirm),
        "{grant:?}"
    );
    // Anything else changes nothing: the hold's lease decides.
    let verdict = recipe.answered(at(1002), at(1000), id, 4, Reply::Gone { now_us: 2_000_000 });
    assert!(matches!(verdict, Verdict::Tell(Attempt::Unknown(_))), "{verdict:?}");
    assert!(recipe.renewal(id.into()).is_some(), "it is held");
}

#[test]
fn a_place_that_stood_once_is_never_called_gone_by_a_request_that_failed() {
    let refused = || Error::new(ErrorKind::Refused, "the server is loading");
    for fault in ["refused", "late"] {
        let (mut recipe, mut claim) = (recipe(), claim());
        recipe.ask(at(0), &claim, Line::Join, None);
        assert!(matches!(
            recipe.answered(at(1), at(0), claim.id, 1, in_line()),
            Verdict::Tell(Attempt::InLine(_))
        ));
        // The keeper asks for it once more, and that comes to nothing.
        claim.give_up = Some(at(5000));
        recipe.ask(at(4000), &claim, Line::Join, None);
        let attempt = if fault == "refused" {
            recipe.unanswered(claim.id, true, refused())
        } else {
            match recipe.answered(
                at(5001),
                at(4000),
                claim.id,
                2,
                Reply::Late { now_us: 6_000_000 },
            ) {
                Verdict::Tell(attempt) => attempt,
                Verdict::Again => panic!("its time is over"),
            }
        };
        assert!(matches!(attempt, Attempt::Unknown(_)), "{fault}: {attempt:?}");
        assert!(recipe.withdraw(claim.id).is_some(), "{fault}: it still has to leave the line");
    }
    // What was refused the first time never stood.
    let (mut recipe, claim) = (recipe(), claim());
    recipe.ask(at(0), &claim, Line::Join, None);
    assert!(matches!(recipe.unanswered(claim.id, true, refused()), Attempt::Failed(_)));
    assert!(recipe.withdraw(claim.id).is_none());
}

#[test]
fn a_copy_of_a_patient_request_stays_refused_also_when_a_later_one_was_in_a_hurry() {
    let (mut recipe, mut claim) = (recipe(), claim());
    recipe.heard(1_000_000, at(0));
    let in_time_until = |call: &Call| call.arguments[10].parse::<u64>().unwrap();
    let patient = recipe.ask(at(0), &claim, Line::Join, None);
    recipe.unanswered(claim.id, false, Error::new(ErrorKind::Unknown, "the connection broke"));
    claim.give_up = Some(at(100));
    let hasty = recipe.ask(at(50), &claim, Line::Join, None);
    assert!(in_time_until(&hasty) < in_time_until(&patient));
    recipe.unanswered(claim.id, false, Error::new(ErrorKind::Unknown, "the connection broke"));
    let leaving = recipe.withdraw(claim.id).unwrap();
    let refused_until = leaving.arguments[10].parse::<u64>().unwrap();
    assert!(refused_until > in_time_until(&patient), "{refused_until}");
}

#[test]
fn r10_a_grant_that_overtook_its_answer_and_may_be_over_is_asked_about_at_once() {
    let (mut recipe, claim) = (recipe(), claim());
    // Its request left long ago, and so did the one whose answer told the server's time last.
    recipe.heard(1_000_000, at(0));
    recipe.ask(at(0), &claim, Line::Join, None);
    let push = Push::Granted {
        claim: claim.id.0,
        number: 7,
        now_us: 1_000_001,
        lease: Duration::from_millis(200),
    };
    assert!(recipe.pushed(at(500), 2, &push).is_none(), "its answer comes first");
    let verdict = recipe.answered(at(501), at(0), claim.id, 1, in_line());
    let Verdict::Tell(Attempt::InLine(place)) = verdict else {
        panic!("whether it is still granted is not known: {verdict:?}")
    };
    assert_eq!(
        place.ask_at,
        Some(at(501)),
        "who could tell is asked, and not when the lease before it ends"
    );
}

#[test]
fn a_push_is_forgotten_with_the_connection_that_brought_it() {
    let (mut recipe, claim) = (recipe(), claim());
    recipe.ask(at(0), &claim, Line::Join, None);
    let push = Push::Granted {
        claim: claim.id.0,
        number: 7,
        now_us: 2_000_000,
        lease: Duration::from_secs(2),
    };
    assert!(recipe.pushed(at(1), 5000, &push).is_none(), "its answer comes first");
    let broken = Error::new(ErrorKind::Unknown, "the connection broke");
    assert!(matches!(recipe.unanswered(claim.id, false, broken), Attempt::Unknown(_)));
    // The next connection counts from the beginning.
    assert!(recipe.again(at(2), claim.id).is_some());
    let verdict = recipe.answered(at(3), at(2), claim.id, 12, in_line());
    assert!(matches!(verdict, Verdict::Tell(Attempt::InLine(_))), "{verdict:?}");
}

#[test]
fn r11_a_question_for_a_sign_of_life_is_answered_at_once_and_by_a_request_that_comes_behind_it() {
    let question = |id: ClaimId| Push::Alive { claim: id.0 };
    // In line: it asks again.
    let (mut recipe, id) = rechecking();
    let pushed = recipe.pushed(at(1001), 3, &question(id));
    assert!(
        matches!(pushed, Some(Event::AskAt { claim, at: when }) if claim == id && when == at(1001)),
        "{pushed:?}"
    );
    // The answer to the request on its way is older than the question: it asks again when it has
    // read it.
    let (mut recipe, claim) = (self::recipe(), claim());
    recipe.ask(at(0), &claim, Line::Join, None);
    assert!(recipe.pushed(at(2), 3, &question(claim.id)).is_none());
    assert_eq!(ask_at(&recipe.answered(at(3), at(0), claim.id, 2, in_line())), Some(at(3)));
    // The request came behind the question, and was the sign of life.
    recipe.ask(at(4), &claim, Line::Join, None);
    assert!(recipe.pushed(at(5), 5, &question(claim.id)).is_none());
    let next = ask_at(&recipe.answered(at(6), at(4), claim.id, 6, in_line()));
    assert!(next > Some(at(6)), "{next:?}");
}

#[test]
fn r10_the_first_in_line_asks_when_the_lease_before_it_ends_and_others_a_claim_lease_later() {
    let asks = |turn, rest| {
        let (mut recipe, claim) = (recipe(), claim());
        recipe.ask(at(0), &claim, Line::Join, None);
        let reply =
            Reply::InLine { now_us: 1_000_000, ahead: 1, rest, holder: String::new(), turn };
        ask_at(&recipe.answered(at(20), at(0), claim.id, 1, reply))
    };
    assert_eq!(asks(Some(0), Duration::from_secs(1)), Some(at(1021)));
    assert_eq!(asks(Some(1), Duration::from_secs(1)), Some(at(3021)), "one claim lease later");
    assert_eq!(asks(Some(9), Duration::from_secs(1)), Some(at(3021)), "with all behind the first");
    assert_eq!(asks(Some(0), Duration::ZERO), Some(at(70)), "and soon where nothing says when");
    assert_eq!(asks(None, Duration::from_secs(1)), None, "others look after it");
}

#[test]
fn r11_a_place_that_is_told_to_look_says_when_before_and_after_its_join_was_answered() {
    let told = |recipe: &mut Recipe, now, id: ClaimId| {
        let push = Push::First { claim: id.0, rest: Duration::from_secs(2) };
        match recipe.pushed(at(now), 2, &push) {
            Some(Event::AskAt { claim, at }) => {
                assert_eq!(claim, id);
                Some(at)
            }
            None => None,
            other => panic!("{other:?}"),
        }
    };
    let (mut recipe, claim) = (recipe(), claim());
    recipe.ask(at(0), &claim, Line::Join, None);
    assert_eq!(told(&mut recipe, 10, claim.id), Some(at(2011)));
    recipe.answered(at(20), at(0), claim.id, 1, in_line());
    assert_eq!(told(&mut recipe, 30, claim.id), Some(at(2031)));
    recipe.withdraw(claim.id);
    assert_eq!(told(&mut recipe, 40, claim.id), None, "it is on its way out");
}

/// When the place of this answer asks again.
fn ask_at(verdict: &Verdict) -> Option<Ticks> {
    match verdict {
        Verdict::Tell(Attempt::InLine(place)) => place.ask_at,
        other => panic!("{other:?}"),
    }
}
