//! Tries: whom they wait for, and for whose sake they are refused.

use super::*;

const BOTH: [Mode; 2] = [Mode::Exclusive, Mode::Shared];

fn tries(b: &mut Bench, mode: Mode) -> (u64, Vec<Action>) {
    b.ask(mode, |a| a.try_only = true)
}

/// Two of writers: the first is asked for, the second waits for what becomes of it.
fn two_tries() -> (Bench, u64, u64) {
    let mut b = Bench::new();
    let (one, _) = tries(&mut b, Mode::Exclusive);
    let (two, _) = tries(&mut b, Mode::Exclusive);
    (b, one, two)
}

fn told(b: &mut Bench, seq: u64, answer: Answered) -> Vec<Action> {
    b.step(Event::Answered { claim: ClaimId(u128::from(seq)), answer })
}

fn refused(seq: u64, why: Refusal) -> Action {
    Action::Refuse { seq, why }
}

fn withdrawn(b: &mut Bench, seq: u64, known: bool) -> Vec<Action> {
    b.step(Event::Withdrawn { claim: ClaimId(u128::from(seq)), known })
}

#[test]
fn r11_a_try_never_overtakes_a_line() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    b.in_line(one);
    let (try_one, out) = tries(&mut b, Mode::Shared);
    assert_eq!(out, [refused(try_one, Refusal::BusyHere)]);
}

#[test]
fn r11_a_try_is_refused_at_once_behind_a_claim_that_waits_for_a_try() {
    let mut b = Bench::new();
    let (one, _) = tries(&mut b, Mode::Exclusive);
    let (two, out) = tries(&mut b, Mode::Exclusive);
    assert_eq!(out, []);
    let (claim, out) = b.lock();
    assert_eq!(out, []);
    let (late, out) = tries(&mut b, Mode::Shared);
    assert_eq!(out, [refused(late, Refusal::BusyHere)]);
    let out = told(&mut b, one, Answered::Busy);
    assert_eq!(
        (out[0].clone(), attempts(&out)),
        (refused(one, Refusal::Answer), vec![two]),
        "in the order in which they came"
    );
    let out = told(&mut b, two, Answered::Busy);
    assert_eq!((out[0].clone(), attempts(&out)), (refused(two, Refusal::Answer), vec![claim]));
}

#[test]
fn tries_behind_an_answer_under_way_wait_for_that_answer() {
    let mut b = Bench::new();
    let (one, _) = tries(&mut b, Mode::Shared);
    let (two, out) = tries(&mut b, Mode::Shared);
    assert_eq!(out, []);
    assert_eq!(
        b.granted(one, 5),
        [offer(one, one, Token::of(5, 0)), offer(two, one, Token::of(5, 0))],
        "readers join"
    );
}

#[test]
fn a_try_behind_one_that_is_granted_is_refused_if_that_excludes_it() {
    for (first, second) in [
        (Mode::Exclusive, Mode::Exclusive),
        (Mode::Exclusive, Mode::Shared),
        (Mode::Shared, Mode::Exclusive),
    ] {
        let mut b = Bench::new();
        let (one, _) = tries(&mut b, first);
        let (two, out) = tries(&mut b, second);
        assert_eq!(out, [], "not before it is known what becomes of the first");
        assert_eq!(
            b.granted(one, 5),
            [offer(one, one, Token::of(5, 0)), refused(two, Refusal::BusyHere)]
        );
        b.step(Event::Take(one));
        assert_eq!(b.line.next_timer(), None);
        assert_eq!(b.over(one), [release(one)]);
        assert!(b.line.is_idle());
    }
}

#[test]
fn a_try_behind_one_that_comes_away_with_nothing_asks_itself() {
    for (answer, first, second) in
        BOTH.iter().flat_map(|f| BOTH.map(|s| (Answered::Busy, *f, s))).chain([
            // It came after the first was asked: who was in the way then may be gone since.
            (Answered::Failed, Mode::Exclusive, Mode::Exclusive),
            (
                Answered::Busy,
                Mode::Permits { count: 1, limit: 3 },
                Mode::Permits { count: 2, limit: 3 },
            ),
        ])
    {
        let mut b = Bench::new();
        let (one, _) = tries(&mut b, first);
        let (two, out) = tries(&mut b, second);
        assert_eq!(out, []);
        let out = told(&mut b, one, answer.clone());
        assert_eq!(
            (out[0].clone(), attempts(&out)),
            (refused(one, Refusal::Answer), vec![two]),
            "{first:?} {second:?} {answer:?}"
        );
        assert_eq!(b.granted(two, 5).len(), 1, "it gets what the first did not");
    }
}

#[test]
fn what_the_engine_says_to_one_try_it_says_to_those_that_were_there_and_that_the_same_is_in_the_way_of()
 {
    let (exclusive, shared, upgradable) = (Mode::Exclusive, Mode::Shared, Mode::Upgradable);
    let permits = |count, limit| Mode::Permits { count, limit };
    let covered = [
        (shared, shared, true),
        (shared, upgradable, true),
        (shared, exclusive, true),
        (upgradable, shared, false),
        (upgradable, upgradable, true),
        (upgradable, exclusive, true),
        (exclusive, shared, false),
        (exclusive, upgradable, false),
        (exclusive, exclusive, true),
        (permits(2, 3), permits(1, 3), false),
        (permits(2, 3), permits(2, 3), true),
        (permits(2, 3), permits(3, 3), true),
        (permits(2, 3), permits(2, 4), false),
    ];
    for (asks, other, covers) in covered {
        let mut b = Bench::new();
        let (first, _) = tries(&mut b, exclusive);
        let (second, _) = tries(&mut b, asks);
        let (third, _) = tries(&mut b, other);
        assert_eq!(attempts(&told(&mut b, first, Answered::Failed)), [second]);
        let (late, out) = tries(&mut b, other);
        assert_eq!(out, []);
        let out = told(&mut b, second, Answered::Busy);
        let asked = if covers {
            assert_eq!(
                out[..2],
                [refused(second, Refusal::Answer), refused(third, Refusal::Answer)],
                "{asks:?} {other:?}"
            );
            late
        } else {
            third
        };
        assert_eq!(attempts(&out), [asked], "{asks:?} {other:?}");
        // However many come, each hears after a bounded number of questions.
        if covers {
            assert_eq!(told(&mut b, late, Answered::Busy), [refused(late, Refusal::Answer)]);
        }
    }
}

#[test]
fn a_try_through_an_rw_lock_is_not_refused_for_what_a_mutex_is_told() {
    let (mut b, first, second) = two_tries();
    let (third, _) =
        b.ask(Mode::Exclusive, |a| (a.try_only, a.shape.through) = (true, Through::RwLock));
    told(&mut b, first, Answered::Busy);
    assert_eq!(attempts(&told(&mut b, second, Answered::Busy)), [third]);
}

#[test]
fn why_a_try_failed_is_told_to_those_like_it_that_were_there_and_to_no_others() {
    let mut b = Bench::new();
    let (first, _) = tries(&mut b, Mode::Exclusive);
    let (second, _) = tries(&mut b, Mode::Shared);
    let (third, _) = tries(&mut b, Mode::Shared);
    let (fourth, _) = tries(&mut b, Mode::Exclusive);
    assert_eq!(attempts(&told(&mut b, first, Answered::Busy)), [second]);
    let out = told(&mut b, second, Answered::Failed);
    assert_eq!(out[..2], [refused(second, Refusal::Answer), refused(third, Refusal::Answer)]);
    assert_eq!(attempts(&out), [fourth], "nobody said that it is busy");
}

#[test]
fn r4_a_try_behind_one_in_doubt_waits_until_that_is_known() {
    let mut b = Bench::new();
    let (one, _) = tries(&mut b, Mode::Exclusive);
    assert_eq!(told(&mut b, one, Answered::Unknown), []);
    let (two, out) = tries(&mut b, Mode::Exclusive);
    assert_eq!(out, []);
    b.now += 250 * MS;
    assert_eq!(attempts(&b.step(Event::Timer)), [one]);
    let out = told(&mut b, one, Answered::Busy);
    assert!(out.contains(&refused(one, Refusal::Answer)) && attempts(&out).is_empty(), "{out:?}");
    assert_eq!(attempts(&withdrawn(&mut b, one, true)), [two]);
}

#[test]
fn r4_a_try_that_was_asked_twice_and_refused_is_withdrawn_for_its_first_request_may_still_come() {
    for answer in [Answered::Busy, Answered::Failed] {
        let mut b = Bench::new();
        let (one, _) = tries(&mut b, Mode::Exclusive);
        told(&mut b, one, Answered::Unknown);
        b.now += 250 * MS;
        assert_eq!(attempts(&b.step(Event::Timer)), [one]);
        let out = told(&mut b, one, answer);
        assert!(
            out.contains(&refused(one, Refusal::Answer))
                && out.contains(&Action::Withdraw(ClaimId(u128::from(one)))),
            "{out:?}"
        );
        withdrawn(&mut b, one, true);
        assert!(b.line.is_idle());
    }
    let mut b = Bench::new();
    let (one, _) = tries(&mut b, Mode::Exclusive);
    assert_eq!(
        told(&mut b, one, Answered::Busy),
        [refused(one, Refusal::Answer)],
        "one message where all is known"
    );
}

#[test]
fn r4_nobody_waits_longer_for_a_try_that_stays_in_doubt_than_until_its_withdrawal_is_in_doubt_too()
{
    let (mut b, one, two) = two_tries();
    let mut out = Vec::new();
    while !out.contains(&refused(one, Refusal::Unknown)) {
        out = told(&mut b, one, Answered::Unknown);
        b.now += 10_000 * MS;
        out.extend(b.step(Event::Timer));
        assert!(!out.contains(&refused(two, Refusal::BusyHere)));
    }
    assert!(out.contains(&Action::Withdraw(ClaimId(u128::from(one)))));
    assert_eq!(
        withdrawn(&mut b, one, false),
        [refused(two, Refusal::Unanswered)],
        "it may stand there still"
    );
    let (three, out) = tries(&mut b, Mode::Exclusive);
    assert_eq!(out, [refused(three, Refusal::Unanswered)], "nobody has said that it is busy");
    withdrawn(&mut b, one, true);
    assert!(b.line.is_idle());
}

#[test]
fn r5_a_try_behind_one_that_was_dropped_asks_as_soon_as_that_is_gone_from_the_engine() {
    let (mut b, one, two) = two_tries();
    assert_eq!(
        b.step(Event::Cancel { seq: one, fresh: true }),
        [Action::Withdraw(ClaimId(u128::from(one)))]
    );
    let (three, out) = tries(&mut b, Mode::Exclusive);
    assert_eq!(out, []);
    assert_eq!(b.granted(one, 5), [], "the withdrawal gives it back");
    assert_eq!(attempts(&withdrawn(&mut b, one, true)), [two]);
    assert_eq!(
        told(&mut b, two, Answered::Busy),
        [refused(two, Refusal::Answer), refused(three, Refusal::Answer)]
    );
    assert!(b.line.is_idle());
}

#[test]
fn r5_a_try_is_not_refused_for_the_place_of_one_who_has_left() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    b.in_line(one);
    b.step(Event::Cancel { seq: one, fresh: true });
    let (two, out) = tries(&mut b, Mode::Exclusive);
    assert_eq!(out, []);
    assert_eq!(attempts(&withdrawn(&mut b, one, true)), [two]);
}

#[test]
fn r5_a_try_that_is_dropped_while_it_waits_for_another_leaves_nothing() {
    let (mut b, one, two) = two_tries();
    assert_eq!(b.step(Event::Cancel { seq: two, fresh: true }), []);
    assert_eq!(told(&mut b, one, Answered::Busy), [refused(one, Refusal::Answer)]);
    assert!(b.line.is_idle());
}

#[test]
fn a_try_does_not_come_to_stand_in_line_with_the_place_of_one_who_has_left() {
    let mut b = Bench::new();
    let (one, _) = b.ask(Mode::Shared, |_| ());
    let (two, out) = tries(&mut b, Mode::Shared);
    assert_eq!(out, [], "both may be granted");
    assert_eq!(
        b.step(Event::Cancel { seq: one, fresh: true }),
        [Action::Withdraw(ClaimId(u128::from(one)))]
    );
    assert_eq!(attempts(&withdrawn(&mut b, one, true)), [two]);
    assert_eq!(told(&mut b, two, Answered::Busy), [refused(two, Refusal::Answer)]);
}

#[test]
fn closing_refuses_tries_that_wait_for_a_try() {
    let (mut b, one, two) = two_tries();
    let out = b.step(Event::Close);
    assert!(
        out.contains(&refused(one, Refusal::Closed))
            && out.contains(&refused(two, Refusal::Closed)),
        "{out:?}"
    );
}

#[test]
fn a_try_in_doubt_is_asked_again_until_its_time_is_over_and_not_longer() {
    let mut b = Bench::new();
    let give_up = Ticks(b.now + 2_000 * MS);
    let (one, _) = b.ask(Mode::Exclusive, |a| (a.try_only, a.give_up) = (true, Some(give_up)));
    assert_eq!(b.line.next_timer(), None, "an answer ends it, and no timer is armed for it");
    assert_eq!(told(&mut b, one, Answered::Unknown), []);
    b.now += 250 * MS;
    assert_eq!(attempts(&b.step(Event::Timer)), [one], "the reply alone may be lost (R4)");
    b.now += 1_750 * MS;
    let out = told(&mut b, one, Answered::Unknown);
    assert_eq!(
        out,
        [refused(one, Refusal::Unanswered), Action::Withdraw(ClaimId(u128::from(one)))]
    );

    let mut b = Bench::new();
    let give_up = Ticks(b.now + 2_000 * MS);
    let (one, _) = b.ask(Mode::Exclusive, |a| (a.try_only, a.give_up) = (true, Some(give_up)));
    told(&mut b, one, Answered::Unknown);
    let (two, _) = b.ask(Mode::Exclusive, |a| (a.try_only, a.give_up) = (true, Some(give_up)));
    b.now += 2_000 * MS;
    let out = b.step(Event::Timer);
    assert!(
        out.contains(&refused(one, Refusal::Unanswered))
            && out.contains(&refused(two, Refusal::Unanswered)),
        "{out:?}"
    );
    assert!(attempts(&out).is_empty(), "nobody waits for it: {out:?}");
}
