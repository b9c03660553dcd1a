//! The process's one place in the engine's line: who it is for, when it is asked for again, and how
//! it is left.

use super::*;

#[test]
fn r5_a_place_outlives_the_claim_that_it_was_taken_for() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let (two, _) = b.lock();
    b.in_line(one);
    assert_eq!(
        b.step(Event::Cancel { seq: one, fresh: true }),
        [],
        "the next claim of the same shape gets the place"
    );
    assert_eq!(b.granted(one, 8), [offer(two, one, Token::of(8, 0))]);
}

#[test]
fn r5_a_place_that_nobody_wants_is_left_and_a_crossing_grant_is_not_taken() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let id = ClaimId(u128::from(one));
    assert_eq!(b.step(Event::Cancel { seq: one, fresh: true }), [Action::Withdraw(id)]);
    assert_eq!(b.granted(one, 8), [], "the withdrawal gives it back");
    assert_eq!(b.step(Event::Withdrawn { claim: id, known: false }), []);
    b.now += 250 * MS;
    assert_eq!(b.step(Event::Timer), [Action::Withdraw(id)], "an unknown withdrawal is repeated");
    b.step(Event::Withdrawn { claim: id, known: true });
    assert!(b.line.is_idle());
}

#[test]
fn r4_a_withdrawal_that_nobody_answers_ends_with_the_lease_that_it_may_have_left_however_long_that_is()
 {
    let mut b = Bench::new();
    let ttl = Duration::from_secs(300);
    let (one, _) = b.ask(Mode::Exclusive, |ask| ask.shape.ttl = ttl);
    let id = ClaimId(u128::from(one));
    b.step(Event::Cancel { seq: one, fresh: true });
    let began = b.now;
    while !b.line.is_idle() {
        assert!(Duration::from_nanos(b.now - began) < ttl * 2, "it goes on for ever");
        b.step(Event::Withdrawn { claim: id, known: false });
        b.now += 250 * MS;
        b.step(Event::Timer);
    }
    assert!(Duration::from_nanos(b.now - began) >= ttl, "{} ns", b.now - began);
}

#[test]
fn r4_a_withdrawal_ends_by_the_clock_however_slowly_each_try_is_found_unanswered() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let id = ClaimId(u128::from(one));
    b.step(Event::Cancel { seq: one, fresh: true });
    let began = b.now;
    let (two, _) = b.ask(Mode::Exclusive, |ask| ask.give_up = Some(Ticks(began + 3_000 * MS)));
    let mut told = Vec::new();
    while !b.line.is_idle() {
        b.now += 2_000 * MS;
        b.step(Event::Withdrawn { claim: id, known: false });
        b.now += 250 * MS;
        told.extend(
            b.step(Event::Timer)
                .into_iter()
                .filter(|action| matches!(action, Action::Refuse { .. })),
        );
    }
    let took = Duration::from_nanos(b.now - began);
    assert!(took >= Duration::from_secs(30) && took < Duration::from_secs(40), "{took:?}");
    assert_eq!(
        told,
        [Action::Refuse { seq: two, why: Refusal::Unanswered }],
        "nobody has answered"
    );
}

#[test]
fn r4_an_unknown_attempt_is_asked_again_with_the_same_claim_and_not_for_ever() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let id = ClaimId(u128::from(one));
    let mut asked = 1;
    loop {
        let out = b.step(Event::Answered { claim: id, answer: Answered::Unknown });
        if !out.is_empty() {
            assert_eq!(
                out,
                [Action::Refuse { seq: one, why: Refusal::Unknown }, Action::Withdraw(id)]
            );
            break;
        }
        b.now += 10_000 * MS;
        assert!(matches!(&b.step(Event::Timer)[..], [Action::Attempt(ask)] if ask.id == id));
        asked += 1;
        assert!(asked < 20);
    }
}

#[test]
fn a_grant_that_nobody_remembers_is_given_back() {
    let mut b = Bench::new();
    assert_eq!(b.granted(77, 1), [release_over(77)]);
    let one = b.held(Mode::Exclusive);
    assert_eq!(b.granted(one, 10), [], "but a repeated answer about a hold is not");
}

#[test]
fn a_timeout_leaves_the_line_and_the_place_goes_to_the_next() {
    let mut b = Bench::new();
    let give_up = Ticks(b.now + 100 * MS);
    let (one, _) = b.ask(Mode::Exclusive, |a| a.give_up = Some(give_up));
    b.in_line(one);
    let (two, _) = b.ask(Mode::Exclusive, |a| a.give_up = Some(give_up));
    let (three, _) = b.lock();
    b.now += 100 * MS;
    let out = b.step(Event::Timer);
    assert!(out.contains(&Action::Refuse { seq: one, why: Refusal::TimedOut }));
    assert!(out.contains(&Action::Refuse { seq: two, why: Refusal::TimedOut }));
    assert_eq!(b.granted(one, 4), [offer(three, one, Token::of(4, 0))]);
}

#[test]
fn who_waits_for_a_guard_of_this_process_hears_that_its_time_is_over_whatever_else_is_asked() {
    let mut b = Bench::new();
    b.held(Mode::Shared);
    let (_, out) = b.ask(Mode::Upgradable, |_| ());
    assert_eq!(attempts(&out).len(), 1, "beside the reader");
    let give_up = Ticks(b.now + 5_000 * MS);
    let (writer, _) = b.ask(Mode::Exclusive, |a| a.give_up = Some(give_up));
    b.now += 5_000 * MS;
    let out = b.step(Event::Timer);
    assert!(out.contains(&Action::Refuse { seq: writer, why: Refusal::TimedOut }), "{out:?}");
}

#[test]
fn r3_a_place_that_is_lent_while_it_is_asked_for_is_asked_for_again_with_the_next_ones_time() {
    for answered_no in [true, false] {
        let mut b = Bench::new();
        let (soon, later) = (Ticks(b.now + 100 * MS), Ticks(b.now + 500 * MS));
        let (one, _) = b.ask(Mode::Exclusive, |a| a.give_up = Some(soon));
        let (two, _) = b.ask(Mode::Exclusive, |a| a.give_up = Some(later));
        b.now += 100 * MS;
        assert_eq!(b.step(Event::Timer), [Action::Refuse { seq: one, why: Refusal::Unheard }]);
        // The engine did not lock for one who has left, and the next one has time left.
        let out = if answered_no {
            b.step(Event::Answered { claim: ClaimId(u128::from(one)), answer: Answered::Busy })
        } else {
            b.in_line(one)
        };
        assert!(
            matches!(&out[..], [Action::Attempt(ask)] if ask.give_up == Some(later)),
            "{out:?}"
        );
        assert_eq!(b.granted(one, 4), [offer(two, one, Token::of(4, 0))]);
    }
}

#[test]
fn a_hint_that_crosses_the_answer_is_not_lost() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let id = ClaimId(u128::from(one));
    assert_eq!(b.step(Event::Wake { claim: id }), []);
    assert_eq!(attempts(&b.in_line(one)), [one], "the answer was older than the hint");
    b.in_line(one);
    assert_eq!(attempts(&b.step(Event::Wake { claim: id })), [one]);
}

#[test]
fn a_claim_that_is_patient_asks_again_until_its_time_is_over_and_hears_that_nobody_answered() {
    let mut b = Bench::new();
    let give_up = Ticks(b.now + 60_000 * MS);
    let (one, _) = b.ask(Mode::Exclusive, |a| (a.patient, a.give_up) = (true, Some(give_up)));
    let id = ClaimId(u128::from(one));
    let mut asked = 0;
    let out = loop {
        let answer = if asked % 2 == 0 { Answered::Unreachable } else { Answered::Unknown };
        assert_eq!(b.step(Event::Answered { claim: id, answer }), []);
        b.now = b.line.next_timer().unwrap().0;
        let out = b.step(Event::Timer);
        if attempts(&out).is_empty() {
            break out;
        }
        asked += 1;
        assert!(asked < 1_000);
    };
    assert!(asked > 20 && Ticks(b.now) == give_up, "{asked}");
    assert_eq!(out, [Action::Refuse { seq: one, why: Refusal::Unanswered }, Action::Withdraw(id)]);
}

#[test]
fn a_claim_that_stood_in_line_is_asked_for_again_however_often_nobody_answers() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let id = ClaimId(u128::from(one));
    b.in_line(one);
    b.step(Event::Wake { claim: id });
    for _ in 0..1_000 {
        assert_eq!(b.step(Event::Answered { claim: id, answer: Answered::Unknown }), []);
        b.now = b.line.next_timer().unwrap().0;
        assert_eq!(attempts(&b.step(Event::Timer)), [one]);
    }
    assert_eq!(b.granted(one, 4), [offer(one, one, Token::of(4, 0))]);
}

#[test]
fn an_impatient_claim_that_finds_nobody_fails_at_once_and_nonsense_is_not_asked_again() {
    let mut b = Bench::new();
    let (one, _) = b.lock();
    let out =
        b.step(Event::Answered { claim: ClaimId(u128::from(one)), answer: Answered::Unreachable });
    assert_eq!(out, [Action::Refuse { seq: one, why: Refusal::Answer }]);
    let (two, _) = b.lock();
    let id = ClaimId(u128::from(two));
    let out = b.step(Event::Answered { claim: id, answer: Answered::Nonsense });
    assert_eq!(out, [Action::Refuse { seq: two, why: Refusal::Unknown }, Action::Withdraw(id)]);
}
