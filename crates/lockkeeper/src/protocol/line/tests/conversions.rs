//! Upgrades and downgrades of a hold.

use super::*;

#[test]
fn an_upgrade_gives_a_new_token_and_a_dropped_one_changes_nothing() {
    let mut b = Bench::new();
    let one = b.held(Mode::Upgradable);
    let (reader, out) = b.ask(Mode::Shared, |_| ());
    assert_eq!(attempts(&out), [reader], "a reader beside the upgradable hold");
    b.granted(reader, 20);
    let convert =
        |id| Event::Convert { seq: one, id: ClaimId(id), to: Mode::Exclusive, give_up: None };
    assert!(matches!(b.step(convert(500))[..], [Action::Convert { .. }]));
    let (late, out) = b.ask(Mode::Shared, |_| ());
    assert_eq!(out, [], "no reader enters while an upgrade waits");
    assert_eq!(b.step(Event::CancelConvert { seq: one }), [Action::Withdraw(ClaimId(500))]);
    let out = b.step(Event::Withdrawn { claim: ClaimId(500), known: true });
    assert_eq!(out, [offer(late, reader, Token::of(20, 0))]);
    b.step(convert(501));
    let out = b
        .step(Event::Answered { claim: ClaimId(501), answer: Answered::Granted(Number::Ours(40)) });
    assert_eq!(
        out,
        [Action::Converted { seq: one, mode: Mode::Exclusive, token: Token::of(40, 0) }]
    );
}

#[test]
fn r10_an_upgrade_that_is_woken_is_asked_about_at_once() {
    let mut b = Bench::new();
    let one = b.held(Mode::Upgradable);
    b.step(Event::Convert { seq: one, id: ClaimId(500), to: Mode::Exclusive, give_up: None });
    let wake = || Event::Wake { claim: ClaimId(500) };
    // The hint may be older than the answer under way, or newer: it is asked again.
    assert_eq!(b.step(wake()), [Action::Recheck(ClaimId(500))]);
    b.step(Event::Answered { claim: ClaimId(500), answer: Answered::InLine { ask_at: None } });
    assert_eq!(b.step(wake()), [Action::Recheck(ClaimId(500))]);
    b.step(Event::CancelConvert { seq: one });
    assert_eq!(b.step(wake()), [], "it is being left");
    b.step(Event::Withdrawn { claim: ClaimId(500), known: true });
    assert_eq!(b.step(wake()), [], "nobody asks for it any more");
}

#[test]
fn an_upgrade_asked_for_while_the_one_before_is_being_left_waits_until_that_is_undone() {
    let mut b = Bench::new();
    let one = b.held(Mode::Upgradable);
    let convert =
        |id, give_up| Event::Convert { seq: one, id: ClaimId(id), to: Mode::Exclusive, give_up };
    b.step(convert(500, None));
    assert_eq!(b.step(Event::CancelConvert { seq: one }), [Action::Withdraw(ClaimId(500))]);
    assert_eq!(b.step(convert(501, None)), [], "the engine may not have undone the first");
    assert_eq!(
        b.step(Event::CancelConvert { seq: one }),
        [],
        "what was not sent need not be withdrawn"
    );
    let late = Ticks(b.now + 100 * MS);
    assert_eq!(b.step(convert(502, Some(late))), []);
    b.now += 100 * MS;
    assert_eq!(b.step(Event::Timer), [Action::RefuseConvert { seq: one, why: Refusal::Unheard }]);
    assert_eq!(b.step(convert(503, None)), []);
    assert_eq!(b.step(Event::Withdrawn { claim: ClaimId(500), known: false }), []);
    b.now += 250 * MS;
    assert_eq!(
        b.step(Event::Timer),
        [Action::Withdraw(ClaimId(500))],
        "an unknown withdrawal is repeated"
    );
    let out = b.step(Event::Withdrawn { claim: ClaimId(500), known: true });
    assert!(matches!(out[..], [Action::Convert { id: ClaimId(503), .. }]), "{out:?}");
    let out = b
        .step(Event::Answered { claim: ClaimId(503), answer: Answered::Granted(Number::Ours(40)) });
    assert_eq!(
        out,
        [Action::Converted { seq: one, mode: Mode::Exclusive, token: Token::of(40, 0) }]
    );
}

#[test]
fn r5_a_second_answer_to_a_conversion_gives_nothing_back() {
    let mut b = Bench::new();
    let one = b.held(Mode::Upgradable);
    b.step(Event::Convert { seq: one, id: ClaimId(500), to: Mode::Exclusive, give_up: None });
    let granted =
        || Event::Answered { claim: ClaimId(500), answer: Answered::Granted(Number::Ours(40)) };
    assert!(matches!(b.step(granted())[..], [Action::Converted { .. }]));
    // A net, a timer or a push may have asked for it too, and their answers come later: the writer
    // writes.
    assert!(b.line.knows(ClaimId(500)));
    assert_eq!(b.step(granted()), []);
    for stale in
        [Answered::InLine { ask_at: None }, Answered::Busy, Answered::Failed, Answered::Unknown]
    {
        assert_eq!(b.step(Event::Answered { claim: ClaimId(500), answer: stale }), []);
    }
    assert_eq!(b.over(one), [release(one)]);
    assert!(!b.line.knows(ClaimId(500)), "it is remembered for as long as the hold");
}

#[test]
fn a_conversion_that_is_refused_lets_those_in_whom_it_kept_out() {
    let mut b = Bench::new();
    let one = b.held(Mode::Upgradable);
    let (reader, _) = b.ask(Mode::Shared, |_| ());
    b.granted(reader, 20);
    b.step(Event::Convert { seq: one, id: ClaimId(500), to: Mode::Exclusive, give_up: None });
    let (late, out) = b.ask(Mode::Shared, |_| ());
    assert_eq!(out, []);
    let out = b.step(Event::Answered { claim: ClaimId(500), answer: Answered::Failed });
    assert_eq!(
        out,
        [
            Action::RefuseConvert { seq: one, why: Refusal::Answer },
            offer(late, reader, Token::of(20, 0))
        ]
    );
}

/// An upgradable hold that was handed on so many times, and who has it now.
fn handed_on(b: &mut Bench, times: u8) -> (u64, u64) {
    let hold = b.held(Mode::Upgradable);
    let mut last = hold;
    for turn in 1..=times {
        let (next, _) = b.ask(Mode::Upgradable, |_| ());
        assert_eq!(b.over(last), [offer(next, hold, Token::of(10, turn))]);
        b.step(Event::Take(next));
        last = next;
    }
    (hold, last)
}

fn converted(b: &mut Bench, seq: u64, to: Mode, number: u64) -> Vec<Action> {
    b.step(Event::Convert { seq, id: ClaimId(500), to, give_up: None });
    b.step(Event::Answered { claim: ClaimId(500), answer: Answered::Granted(Number::Ours(number)) })
}

#[test]
fn r7_a_hold_that_keeps_its_number_when_it_is_converted_gets_the_next_turn_of_it() {
    for times in [0, 1, 62] {
        let mut b = Bench::new();
        let (hold, last) = handed_on(&mut b, times);
        let token = Token::of(10, times + 1);
        let out = converted(&mut b, last, Mode::Shared, 10);
        assert_eq!(
            out,
            [Action::Converted { seq: last, mode: Mode::Shared, token }],
            "above every turn before it"
        );
        if times < 62 {
            let (reader, out) = b.ask(Mode::Shared, |_| ());
            assert_eq!(
                out,
                [offer(reader, hold, token)],
                "who shares it stands beside it, and shows the same"
            );
        }
    }
    let mut b = Bench::new();
    let (_, last) = handed_on(&mut b, 3);
    let out = converted(&mut b, last, Mode::Shared, 11);
    assert_eq!(
        out,
        [Action::Converted { seq: last, mode: Mode::Shared, token: Token::of(11, 0) }],
        "a new number has all its turns"
    );
}

#[test]
fn r7_an_upgradable_hold_is_not_handed_on_to_the_last_turn_of_its_number() {
    let mut b = Bench::new();
    let (hold, last) = handed_on(&mut b, 62);
    let (next, _) = b.ask(Mode::Upgradable, |_| ());
    let out = b.over(last);
    assert!(
        matches!(
            &out[..],
            [Action::Release { hold: given, again: Some(ask), .. }]
                if given.0 == u128::from(hold) && ask.seq == next
        ),
        "it would have none left as a reader: {out:?}"
    );
}

#[test]
fn r4_a_conversion_that_ends_unanswered_says_so_and_one_that_waits_in_line_that_its_time_is_over() {
    let id = ClaimId(500);
    let upgrading = || {
        let mut b = Bench::new();
        let one = b.held(Mode::Upgradable);
        let give_up = Some(Ticks(b.now + 1_000 * MS));
        b.step(Event::Convert { seq: one, id, to: Mode::Exclusive, give_up });
        (b, one)
    };
    let answered = |b: &mut Bench, answer| b.step(Event::Answered { claim: id, answer });
    let ends = |mut b: Bench, one, why| {
        b.now += 1_000 * MS;
        let out = b.step(Event::Timer);
        assert!(out.contains(&Action::RefuseConvert { seq: one, why }), "{why:?}: {out:?}");
    };
    let (mut b, one) = upgrading();
    answered(&mut b, Answered::Unknown);
    ends(b, one, Refusal::Unanswered);
    // The engine has said that it waits: its time is over, whatever became of later questions.
    let (mut b, one) = upgrading();
    answered(&mut b, Answered::InLine { ask_at: None });
    answered(&mut b, Answered::Unknown);
    ends(b, one, Refusal::TimedOut);
    // Nothing is known against the engine, and nothing of anybody in the way.
    let (b, one) = upgrading();
    ends(b, one, Refusal::Unheard);
    // It waits behind one that the engine lets nobody leave.
    for (known, why) in [(Some(false), Refusal::Unanswered), (None, Refusal::Unheard)] {
        let (mut b, one) = upgrading();
        answered(&mut b, Answered::InLine { ask_at: None });
        b.step(Event::CancelConvert { seq: one });
        let give_up = Some(Ticks(b.now + 1_000 * MS));
        b.step(Event::Convert { seq: one, id: ClaimId(501), to: Mode::Exclusive, give_up });
        if let Some(known) = known {
            b.step(Event::Withdrawn { claim: id, known });
        }
        ends(b, one, why);
    }
}
