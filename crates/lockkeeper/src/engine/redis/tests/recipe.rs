//! The recipe alone, where the order of answers and pushes matters.

use std::time::Duration;

use super::super::client::node::Node;
use super::super::name::Keys;
use super::super::recipe::{Read, Recipe, Rules, Verdict};
use super::super::reply::{Push, Reply, time_of_number};
use super::super::script::{Call, Which};
use crate::engine::{Attempt, Event, Line, Number};
use crate::words::claim::{Claim, Identity, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;

const TTL: Duration = Duration::from_secs(30);

/// There is one.
const N: Node = Node(0);

fn read(before: Ticks, order: u64) -> Read {
    Read { before, node: N, order }
}

fn at(ms: u64) -> Ticks {
    Ticks(ms * 1_000_000)
}

fn recipe() -> Recipe {
    Recipe::new(rules())
}

fn rules() -> Rules {
    Rules {
        keys: Keys::new("lockkeeper", 0),
        channel: "channel".into(),
        drift_permille: 100,
        request_timeout: Duration::from_secs(2),
        acknowledged: false,
        moves: false,
        scattered: false,
    }
}

fn claim() -> Claim {
    Claim { ttl: TTL, ..Claim::of_test("a", Mode::Exclusive, Identity::of_test("host")) }
}

/// A recipe with one claim that stands in line, and is asked about once more.
fn rechecking() -> (Recipe, ClaimId) {
    let (mut recipe, claim) = (recipe(), claim());
    recipe.ask(at(0), N, &claim, Line::Join, None);
    let verdict = recipe.answered(at(1), read(at(0), 1), claim.id, in_line());
    assert!(matches!(verdict, Verdict::Tell(Attempt::InLine(_))), "{verdict:?}");
    assert!(recipe.again(at(1000), N, claim.id).is_some());
    (recipe, claim.id)
}

fn in_line() -> Reply {
    Reply::InLine { now_us: 1_000_000, ahead: 0, rest: TTL, holder: String::new(), turn: Some(0) }
}

fn pushed(recipe: &mut Recipe, id: ClaimId, order: u64) {
    let push =
        Push::Granted { claim: id.0, number: 7, now_us: 2_000_000, lease: Duration::from_secs(2) };
    assert!(matches!(recipe.pushed(at(1001), N, order, &push), Some(Event::Granted { .. })));
}

fn is_renewed(recipe: &Recipe, id: ClaimId) -> bool {
    recipe.renewal(id.into(), &mut Call::new(Which::Renew))
}

#[test]
fn r7_a_hold_knows_the_number_of_its_grant() {
    let (mut recipe, id) = rechecking();
    assert_eq!(recipe.number(id), None, "in line");
    pushed(&mut recipe, id, 3);
    assert_eq!(recipe.number(id), Some(Number::Ours(7)), "as it was pushed");
    let anew = Reply::Granted { now_us: 2_000_000, number: 9, ttl: TTL, beside: false };
    recipe.answered(at(1002), read(at(1000), 4), id, anew);
    assert_eq!(recipe.number(id), Some(Number::Ours(9)), "and as it was granted anew");
    recipe.forget(id);
    assert_eq!(recipe.number(id), None, "given back");
}

#[test]
fn a_release_travels_with_others_only_where_nobody_is_known_to_be_in_its_way() {
    let mut recipe = recipe();
    let asks = |recipe: &mut Recipe, mode: Mode, reply: Reply| {
        let claim = Claim { mode, ..claim() };
        recipe.ask(at(0), N, &claim, Line::Join, None);
        recipe.answered(at(1), read(at(0), 1), claim.id, reply);
        claim.id
    };
    let granted = Reply::Granted { now_us: 2_000_000, number: 9, ttl: TTL, beside: false };
    let free = asks(&mut recipe, Mode::Exclusive, Reply::Taken { number: 9 });
    let shared = asks(&mut recipe, Mode::Shared, Reply::Taken { number: 9 });
    let contended = asks(&mut recipe, Mode::Exclusive, granted);
    assert!(recipe.goes_short(free));
    assert!(!recipe.goes_short(shared), "others may share it");
    assert!(!recipe.goes_short(contended), "it was in use, and others may wait");
    let waits = asks(&mut recipe, Mode::Exclusive, in_line());
    assert!(!recipe.goes_short(free), "one of this process waits");
    pushed(&mut recipe, waits, 3);
    assert!(!recipe.goes_short(waits), "there was a line");
}

#[test]
fn r7_a_push_that_another_node_hands_on_is_a_reason_to_ask_for_the_number() {
    let mut recipe = Recipe::new(Rules { moves: true, scattered: true, ..rules() });
    let nodes = [Node(0), Node(1), Node(2)];
    let pushed = |recipe: &mut Recipe, claim: &Claim, number, order| {
        recipe.ask(at(order), nodes[0], claim, Line::Join, None);
        recipe.answered(at(order), read(at(order), order), claim.id, in_line());
        let lease = Duration::from_secs(2);
        let push = Push::Granted { claim: claim.id.0, number, now_us: 2_000_000, lease };
        // Through the first node, whoever granted it.
        let event = recipe.pushed(at(order), nodes[0], order + 1, &push);
        assert!(matches!(event, Some(Event::Wake { .. })), "{event:?}");
        assert!(!is_renewed(recipe, claim.id), "it is not held yet");
        recipe.ask(at(order), nodes[0], claim, Line::Join, None);
    };
    let granted = |recipe: &mut Recipe, node, order, claim: &Claim, number| {
        let reply = Reply::Granted { now_us: 2_000_000, number, ttl: TTL, beside: false };
        recipe.answered(at(order), Read { before: at(order), node, order }, claim.id, reply)
    };
    let (first, second) = (claim(), claim());
    pushed(&mut recipe, &first, 25, 10);
    let verdict = granted(&mut recipe, nodes[1], 12, &first, 25);
    assert!(matches!(verdict, Verdict::Tell(Attempt::Granted(_))), "{verdict:?}");
    recipe.forget(first.id);
    // The second node's replica took its place, and its clock is behind.
    pushed(&mut recipe, &second, 22, 20);
    let verdict = granted(&mut recipe, nodes[2], 22, &second, 22);
    assert!(matches!(verdict, Verdict::Tell(Attempt::Failed(_))), "22 after 25: {verdict:?}");
}

#[test]
fn r7_a_grant_that_is_read_when_its_lease_is_over_keeps_no_number_and_hears_the_next_push() {
    let (mut recipe, id) = rechecking();
    let late = Reply::Granted { now_us: 2_000_000, number: 5, ttl: TTL, beside: false };
    // 10 % of drift before the lease's end it is over for us, as it is for the keeper.
    let verdict = recipe.answered(at(28_000), read(at(1000), 3), id, late);
    assert!(matches!(verdict, Verdict::Tell(Attempt::Unknown(_))), "{verdict:?}");
    assert_eq!(recipe.number(id), None, "it holds nothing");
    assert!(recipe.again(at(28_000), N, id).is_some(), "it is asked for again, and not renewed");
    let push =
        Push::Granted { claim: id.0, number: 7, now_us: 31_000_000, lease: Duration::from_secs(2) };
    let event = recipe.pushed(at(28_001), N, 4, &push);
    assert!(
        matches!(&event, Some(Event::Granted { grant, .. }) if grant.number == Number::Ours(7)),
        "{event:?}"
    );
    // In time, it is a grant like any.
    let (mut recipe, id) = rechecking();
    let verdict = recipe.answered(
        at(27_999),
        read(at(1000), 3),
        id,
        Reply::Granted { now_us: 2_000_000, number: 5, ttl: TTL, beside: false },
    );
    assert!(matches!(verdict, Verdict::Tell(Attempt::Granted(_))), "{verdict:?}");
    assert_eq!(recipe.number(id), Some(Number::Ours(5)));
}

#[test]
fn r10_a_check_that_crosses_a_pushed_grant_never_says_that_it_is_gone() {
    // The push was read behind the answer, and is taken before it.
    let (mut recipe, id) = rechecking();
    pushed(&mut recipe, id, 3);
    let verdict = recipe.answered(at(1002), read(at(1000), 2), id, in_line());
    assert!(matches!(verdict, Verdict::Tell(Attempt::InLine(_))), "{verdict:?}");
    assert!(is_renewed(&recipe, id), "it is held");
    // The answer was read behind the push: the server confirmed the grant, and gave the whole
    // lease.
    let (mut recipe, id) = rechecking();
    pushed(&mut recipe, id, 2);
    let verdict = recipe.answered(
        at(1002),
        read(at(1000), 3),
        id,
        Reply::Granted { now_us: 2_000_000, number: 7, ttl: TTL, beside: false },
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
    let verdict =
        recipe.answered(at(1002), read(at(1000), 4), id, Reply::Gone { now_us: 2_000_000 });
    assert!(matches!(verdict, Verdict::Tell(Attempt::Unknown(_))), "{verdict:?}");
    assert!(is_renewed(&recipe, id), "it is held");
}

#[test]
fn a_place_that_stood_once_is_never_called_gone_by_a_request_that_failed() {
    let refused = || Error::new(ErrorKind::Refused, "the server is loading");
    for fault in ["refused", "late"] {
        let (mut recipe, mut claim) = (recipe(), claim());
        recipe.ask(at(0), N, &claim, Line::Join, None);
        assert!(matches!(
            recipe.answered(at(1), read(at(0), 1), claim.id, in_line()),
            Verdict::Tell(Attempt::InLine(_))
        ));
        // The keeper asks for it once more, and that comes to nothing.
        claim.give_up = Some(at(5000));
        recipe.ask(at(4000), N, &claim, Line::Join, None);
        let attempt = if fault == "refused" {
            recipe.unanswered(claim.id, true, refused())
        } else {
            match recipe.answered(
                at(5001),
                read(at(4000), 2),
                claim.id,
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
    recipe.ask(at(0), N, &claim, Line::Join, None);
    assert!(matches!(recipe.unanswered(claim.id, true, refused()), Attempt::Failed(_)));
    assert!(recipe.withdraw(claim.id).is_none());
}

#[test]
fn a_copy_of_a_patient_request_stays_refused_also_when_a_later_one_was_in_a_hurry() {
    let (mut recipe, mut claim) = (recipe(), claim());
    recipe.heard(N, time_of_number(1 << 40), at(0));
    let number = |call: &Call, at: usize| call.arguments.get(at).unwrap().parse::<u64>().unwrap();
    let in_time_until = |call: &Call| match call.script {
        Which::Take => time_of_number(number(call, 2) + 1) - 1,
        _ => number(call, 1),
    };
    let patient = recipe.ask(at(0), N, &claim, Line::Join, None);
    recipe.unanswered(claim.id, false, Error::new(ErrorKind::Unknown, "the connection broke"));
    claim.give_up = Some(at(100));
    let hasty = recipe.ask(at(50), N, &claim, Line::Join, None);
    assert!(in_time_until(&hasty) < in_time_until(&patient));
    recipe.unanswered(claim.id, false, Error::new(ErrorKind::Unknown, "the connection broke"));
    let leaving = recipe.withdraw(claim.id).unwrap();
    let refused_until = number(&leaving, 1);
    assert!(refused_until > in_time_until(&patient), "{refused_until}");
}

#[test]
fn r10_a_grant_that_overtook_its_answer_and_may_be_over_is_asked_about_at_once() {
    let (mut recipe, claim) = (recipe(), claim());
    // Its request left long ago, and so did the one whose answer told the server's time last.
    recipe.heard(N, 1_000_000, at(0));
    recipe.ask(at(0), N, &claim, Line::Join, None);
    let push = Push::Granted {
        claim: claim.id.0,
        number: 7,
        now_us: 1_000_001,
        lease: Duration::from_millis(200),
    };
    assert!(recipe.pushed(at(500), N, 2, &push).is_none(), "its answer comes first");
    let verdict = recipe.answered(at(501), read(at(0), 1), claim.id, in_line());
    let Verdict::Tell(Attempt::InLine(place)) = verdict else {
        panic!("whether it is still granted is not known: {verdict:?}")
    };
    assert_eq!(
        place.ask_at,
        Some(at(501)),
        "who could tell is asked, and not when the lease before it ends"
    );
}

/// A process that asks after a while of silence knows the server's clock as it was before: a tenth
/// of that while is most of a claim lease after 18 s, and all of it after 20.
#[test]
fn r10_a_push_that_overtook_its_answer_is_dated_by_that_answer_however_long_nothing_was_heard() {
    for idle in [0, 17_900, 18_500, 19_500, 20_500, 600_000] {
        let (mut recipe, claim) = (recipe(), claim());
        let server = |ms: u64| 1_000_000 + 1_000 * ms;
        recipe.heard(N, server(0), at(0));
        recipe.ask(at(idle), N, &claim, Line::Join, None);
        let push = Push::Granted {
            claim: claim.id.0,
            number: 7,
            now_us: server(idle + 1),
            lease: Duration::from_secs(2),
        };
        assert!(recipe.pushed(at(idle + 1), N, 2, &push).is_none(), "its answer comes first");
        let reply = Reply::InLine {
            now_us: server(idle),
            ahead: 0,
            rest: TTL,
            holder: String::new(),
            turn: Some(0),
        };
        let verdict = recipe.answered(at(idle + 2), read(at(idle), 1), claim.id, reply);
        let Verdict::Tell(Attempt::Granted(grant)) = verdict else {
            panic!("{idle} ms: {verdict:?}")
        };
        let since = grant.lease.and_then(|lease| lease.since).unwrap();
        assert!((at(idle)..=at(idle + 1)).contains(&since), "{idle} ms: {since:?}");
    }
}

#[test]
fn r1_a_push_is_no_grant_once_its_lease_is_over_as_the_keeper_counts() {
    let (mut recipe, id) = rechecking();
    recipe.answered(at(1001), read(at(1000), 2), id, in_line());
    let lease = Duration::from_secs(2);
    let push = Push::Granted { claim: id.0, number: 7, now_us: 1_000_000, lease };
    // Of two seconds a fifth of a second is not relied on.
    let event = recipe.pushed(at(2801), N, 4, &push);
    assert!(matches!(event, Some(Event::Wake { .. })), "{event:?}");
}

#[test]
fn n2_a_push_after_a_step_of_the_time_of_day_is_dated_by_nothing_that_was_heard_before() {
    for (stepped, dated) in [(999, true), (1000, true), (1001, false)] {
        let (mut recipe, id) = rechecking();
        recipe.answered(at(1001), read(at(1000), 2), id, in_line());
        recipe.stepped(at(stepped));
        let lease = Duration::from_secs(2);
        let push = Push::Granted { claim: id.0, number: 7, now_us: 1_000_000, lease };
        let event = recipe.pushed(at(1002), N, 4, &push);
        let Some(Event::Granted { grant, .. }) = event else { panic!("{event:?}") };
        assert_eq!(grant.lease.and_then(|lease| lease.since).is_some(), dated, "{stepped}");
    }
}

#[test]
fn a_push_is_forgotten_with_the_connection_that_brought_it() {
    let (mut recipe, claim) = (recipe(), claim());
    recipe.ask(at(0), N, &claim, Line::Join, None);
    let push = Push::Granted {
        claim: claim.id.0,
        number: 7,
        now_us: 2_000_000,
        lease: Duration::from_secs(2),
    };
    assert!(recipe.pushed(at(1), N, 5000, &push).is_none(), "its answer comes first");
    let broken = Error::new(ErrorKind::Unknown, "the connection broke");
    assert!(matches!(recipe.unanswered(claim.id, false, broken), Attempt::Unknown(_)));
    // The next connection counts from the beginning.
    assert!(recipe.again(at(2), N, claim.id).is_some());
    let verdict = recipe.answered(at(3), read(at(2), 12), claim.id, in_line());
    assert!(matches!(verdict, Verdict::Tell(Attempt::InLine(_))), "{verdict:?}");
}

#[test]
fn r11_a_question_for_a_sign_of_life_is_answered_at_once_and_by_a_request_that_comes_behind_it() {
    let question = |id: ClaimId| Push::Alive { claim: id.0 };
    // In line: it asks again.
    let (mut recipe, id) = rechecking();
    let pushed = recipe.pushed(at(1001), N, 3, &question(id));
    assert!(
        matches!(pushed, Some(Event::AskAt { claim, at: when }) if claim == id && when == at(1001)),
        "{pushed:?}"
    );
    // The answer to the request on its way is older than the question: it asks again when it has
    // read it.
    let (mut recipe, claim) = (self::recipe(), claim());
    recipe.ask(at(0), N, &claim, Line::Join, None);
    assert!(recipe.pushed(at(2), N, 3, &question(claim.id)).is_none());
    assert_eq!(ask_at(&recipe.answered(at(3), read(at(0), 2), claim.id, in_line())), Some(at(3)));
    // The request came behind the question, and was the sign of life.
    recipe.ask(at(4), N, &claim, Line::Join, None);
    assert!(recipe.pushed(at(5), N, 5, &question(claim.id)).is_none());
    let next = ask_at(&recipe.answered(at(6), read(at(4), 6), claim.id, in_line()));
    assert!(next > Some(at(6)), "{next:?}");
}

#[test]
fn r10_the_first_in_line_asks_when_the_lease_before_it_ends_and_others_a_claim_lease_later() {
    let asks = |turn, rest| {
        let (mut recipe, claim) = (recipe(), claim());
        recipe.ask(at(0), N, &claim, Line::Join, None);
        let reply =
            Reply::InLine { now_us: 1_000_000, ahead: 1, rest, holder: String::new(), turn };
        ask_at(&recipe.answered(at(20), read(at(0), 1), claim.id, reply))
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
        match recipe.pushed(at(now), N, 2, &push) {
            Some(Event::AskAt { claim, at }) => {
                assert_eq!(claim, id);
                Some(at)
            }
            None => None,
            other => panic!("{other:?}"),
        }
    };
    let (mut recipe, claim) = (recipe(), claim());
    recipe.ask(at(0), N, &claim, Line::Join, None);
    assert_eq!(told(&mut recipe, 10, claim.id), Some(at(2011)));
    recipe.answered(at(20), read(at(0), 1), claim.id, in_line());
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
