use super::*;
use crate::kill_after::KillAfter;
use lockkeeper::Lost;

const S: Duration = Duration::from_secs(1);
const MARGINS: Margins =
    Margins { kill_after: Duration::from_secs(5), ask_before: Duration::from_secs(2) };

fn care(on_lost: OnLost) -> Care {
    Care {
        command: true,
        kill_after: KillAfter(None),
        on_lost,
        nested: false,
        leave_children: false,
        at_least: Duration::ZERO,
    }
}

fn duty(on_lost: OnLost) -> Duty {
    let mut duty = Duty::new(care(on_lost), MARGINS, 100 * S);
    duty.step(100 * S, Event::Until(Times::of(127 * S, 5 * S)), &mut Vec::new());
    duty.step(100 * S, Event::Started, &mut Vec::new());
    duty
}

fn step(duty: &mut Duty, at: u32, event: Event) -> Vec<Action> {
    let mut out = Vec::new();
    duty.step(at * S, event, &mut out);
    out
}

#[test]
fn a_command_is_asked_to_end_when_kill_after_is_left_and_ended_at_the_deadline() {
    let mut duty = duty(OnLost::Term);
    assert_eq!(duty.next(), Some(120 * S));
    assert_eq!(step(&mut duty, 119, Event::Time), []);
    assert_eq!(
        step(&mut duty, 120, Event::Time),
        [Action::Ask],
        "a renewal is asked for before anything ends"
    );
    assert_eq!((duty.next(), step(&mut duty, 121, Event::Time)), (Some(122 * S), vec![]));
    let stopping = Action::TellStopping(Why::RunningOut, 127 * S);
    assert_eq!(step(&mut duty, 122, Event::Time), [stopping, Action::Send(Signal::SIGTERM)]);
    assert_eq!((duty.next(), step(&mut duty, 126, Event::Time)), (Some(127 * S), vec![]));
    assert_eq!(step(&mut duty, 127, Event::Time), [Action::Send(Signal::SIGKILL)]);
    assert_eq!(step(&mut duty, 127, Event::Lost(Why::Lost(Lost::Expired))), [], "that was told");
}

#[test]
fn a_renewal_moves_the_end_and_one_that_comes_after_the_term_does_not_call_it_off() {
    let mut duty = duty(OnLost::Term);
    step(&mut duty, 120, Event::Time);
    step(&mut duty, 121, Event::Until(Times::of(137 * S, 5 * S)));
    assert_eq!((step(&mut duty, 125, Event::Time), duty.next()), (vec![], Some(130 * S)));
    assert_eq!(step(&mut duty, 130, Event::Time), [Action::Ask], "once for each deadline");
    step(&mut duty, 132, Event::Time);
    step(&mut duty, 133, Event::Until(Times::of(160 * S, 5 * S)));
    assert_eq!(step(&mut duty, 137, Event::Time), [Action::Send(Signal::SIGKILL)]);
}

#[test]
fn a_guardian_that_slept_through_its_time_asks_before_it_ends_anything() {
    let mut late = duty(OnLost::Term);
    let mut out = Vec::new();
    assert_eq!(step(&mut late, 123, Event::Time), [Action::Ask]);
    assert_eq!(late.next(), Some(123 * S + GRACE));
    late.step(123 * S + GRACE, Event::Time, &mut out);
    assert_eq!(out.last(), Some(&Action::Send(Signal::SIGTERM)), "no answer came");
    // The answer comes in time.
    let mut awake = duty(OnLost::Term);
    step(&mut awake, 123, Event::Time);
    assert_eq!(step(&mut awake, 123, Event::Until(Times::of(150 * S, 5 * S))), []);
    assert_eq!((awake.next(), step(&mut awake, 140, Event::Time)), (Some(143 * S), vec![]));
    // At the deadline there is nothing left to ask for.
    let mut over = duty(OnLost::Term);
    let all = step(&mut over, 128, Event::Lost(Why::Lost(Lost::Expired)));
    assert_eq!(
        all.last(),
        Some(&Action::Send(Signal::SIGKILL)),
        "somebody else may have it: no time to give"
    );
    let mut over = duty(OnLost::Term);
    assert!(step(&mut over, 127, Event::Time).contains(&Action::Send(Signal::SIGKILL)));
}

#[test]
fn who_only_warns_and_who_only_holds_asks_too() {
    let mut warn = duty(OnLost::Warn);
    assert_eq!(
        (step(&mut warn, 121, Event::Time), step(&mut warn, 126, Event::Time)),
        (vec![Action::Ask], vec![])
    );
    let mut holds = Duty::new(Care { command: false, ..care(OnLost::Warn) }, MARGINS, 100 * S);
    holds.step(100 * S, Event::Until(Times::of(127 * S, 5 * S)), &mut Vec::new());
    step(&mut holds, 105, Event::Time);
    assert_eq!(
        (holds.next(), step(&mut holds, 120, Event::Time)),
        (Some(120 * S), vec![Action::Ask])
    );
    assert_eq!(holds.next(), None);
}

/// What a healthy server leaves: the deadline never comes closer than the floor (`margin::floor`),
/// whenever the guardian looks.
#[test]
fn no_sequence_without_a_fault_reaches_term() {
    let ms = Duration::from_millis;
    for ttl in [4_000, 5_000, 10_000, 15_000, 30_000, 60_000].map(ms) {
        for part in [3, 4, 5, 6, 15] {
            let kill_after = (ttl / part).min(5 * S);
            let floor = lockkeeper::margin::floor(ttl, Some(kill_after));
            let margins = Margins { kill_after, ask_before: (2 * S).min(floor - kill_after) };
            // A renewal comes when this much is left, gives that much, and is heard of so late.
            for (left, gives) in
                [(floor, ttl * 65 / 100), (floor, floor + ms(1)), (ttl * 56 / 100, ttl * 9 / 10)]
            {
                for heard in [Duration::ZERO, margins.ask_before / 2, margins.ask_before] {
                    let mut duty = Duty::new(care(OnLost::Term), margins, 100 * S);
                    let (mut now, mut out) = (100 * S, Vec::new());
                    let mut end = now + gives;
                    duty.step(now, Event::Until(Times::of(end, kill_after)), &mut out);
                    duty.step(now, Event::Started, &mut out);
                    for _ in 0..50 {
                        let renewed = end - left;
                        while let Some(at) = duty.next().filter(|at| *at < renewed + heard) {
                            now = now.max(at);
                            duty.step(now, Event::Time, &mut out);
                        }
                        (now, end) = (renewed + heard, renewed + gives);
                        duty.step(now, Event::Until(Times::of(end, kill_after)), &mut out);
                        duty.step(now, Event::Time, &mut out);
                    }
                    assert!(
                        out.iter().all(|action| *action == Action::Ask),
                        "{ttl:?} {kill_after:?} {left:?} {heard:?}: {out:?}"
                    );
                    assert!(
                        left > floor || heard > Duration::ZERO || out.is_empty(),
                        "nor does it ask: {out:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn r5_a_grant_goes_back_after_a_second_from_one_that_is_stopped_and_after_five_from_any() {
    let mut untaken = Duty::new(care(OnLost::Term), MARGINS, 100 * S);
    untaken.step(100 * S, Event::Until(Times::of(127 * S, 5 * S)), &mut Vec::new());
    assert_eq!(step(&mut untaken, 100, Event::Time), []);
    for (at, in_any_case) in [(101, false), (102, false), (103, false), (104, false), (105, true)] {
        assert_eq!(untaken.next(), Some(at * S));
        assert_eq!(step(&mut untaken, at, Event::Time), [Action::TakeBack { in_any_case }]);
    }
    assert_eq!(step(&mut untaken, 106, Event::Time), [], "whoever hired us had taken it");
    let mut runs = duty(OnLost::Term);
    assert_eq!((runs.next(), step(&mut runs, 101, Event::Time)), (Some(120 * S), vec![]));
}

#[test]
fn when_the_pipe_closes_the_command_is_ended_and_the_lock_goes_back_once_nothing_runs() {
    let mut duty = duty(OnLost::Term);
    assert_eq!(step(&mut duty, 101, Event::Gone), [Action::Send(Signal::SIGTERM)]);
    assert_eq!(step(&mut duty, 106, Event::Time), [Action::Send(Signal::SIGKILL)]);
    assert_eq!(step(&mut duty, 107, Event::Empty), [Action::End]);
    let mut idle = Duty::new(care(OnLost::Term), MARGINS, 100 * S);
    assert_eq!(step(&mut idle, 101, Event::Gone), [Action::End], "no command was started");
    let mut nested = Duty::new(Care { nested: true, ..care(OnLost::Term) }, MARGINS, 100 * S);
    step(&mut nested, 100, Event::Started);
    assert_eq!(
        step(&mut nested, 101, Event::Gone),
        [Action::Send(Signal::SIGKILL)],
        "the outer lock may pass any moment"
    );
}

#[test]
fn when_the_pipe_closes_late_the_kill_still_comes_before_the_lease_can_pass() {
    let mut duty = duty(OnLost::Term);
    step(&mut duty, 124, Event::Gone);
    assert_eq!(duty.next(), Some(127 * S));
    assert_eq!(step(&mut duty, 127, Event::Time), [Action::Send(Signal::SIGKILL)]);
}

#[test]
fn a_loss_stops_kills_or_only_warns_as_it_was_asked() {
    let why = Why::Lost(Lost::TakenAway);
    assert_eq!(
        step(&mut duty(OnLost::Term), 101, Event::Lost(why)),
        [Action::TellStopping(why, 106 * S), Action::Send(Signal::SIGTERM)]
    );
    assert_eq!(
        step(&mut duty(OnLost::Kill), 101, Event::Lost(why)),
        [Action::TellStopping(why, 101 * S), Action::Send(Signal::SIGKILL)]
    );
    let mut kill = duty(OnLost::Kill);
    step(&mut kill, 121, Event::Time);
    assert_eq!(
        step(&mut kill, 123, Event::Time),
        [Action::TellStopping(Why::RunningOut, 127 * S)],
        "no TERM"
    );
    assert_eq!(step(&mut kill, 127, Event::Time), [Action::Send(Signal::SIGKILL)]);
    let mut warn = duty(OnLost::Warn);
    assert_eq!((step(&mut warn, 126, Event::Time), warn.next()), (vec![Action::Ask], None));
    assert_eq!(step(&mut warn, 127, Event::Lost(why)), [Action::TellLost(why)]);
    assert_eq!(step(&mut warn, 128, Event::Gone), [Action::End]);
}

#[test]
fn a_lock_whose_command_is_over_goes_back_although_whoever_hired_us_is_stopped() {
    let mut duty = Duty::new(Care { at_least: 10 * S, ..care(OnLost::Term) }, MARGINS, 100 * S);
    step(&mut duty, 100, Event::Started);
    assert_eq!((step(&mut duty, 102, Event::Empty), duty.next()), (vec![], Some(110 * S)));
    assert_eq!(step(&mut duty, 110, Event::Time), [Action::End]);
}

#[test]
fn a_deadline_that_is_read_twice_is_no_renewal_and_term_comes_in_time() {
    let us = Duration::from_micros(1);
    let mut duty = duty(OnLost::Term);
    let mut out = Vec::new();
    for at in (120_000..122_000).step_by(50).map(Duration::from_millis) {
        let jitter = if at.as_millis() % 100 == 0 { 127 * S + us } else { 127 * S - us };
        duty.step(at, Event::Until(Times::of(jitter, 5 * S)), &mut out);
        duty.step(at, Event::Time, &mut out);
    }
    assert_eq!(out, [Action::Ask], "once");
    duty.step(122 * S, Event::Until(Times::of(127 * S - us, 5 * S)), &mut out);
    assert_eq!(out.last(), Some(&Action::Send(Signal::SIGTERM)), "{out:?}");
}

#[test]
fn a_guardian_that_asked_in_time_is_not_late_with_term() {
    let margins = Margins { ask_before: Duration::from_millis(100), ..MARGINS };
    let mut duty = Duty::new(care(OnLost::Term), margins, 100 * S);
    let mut out = Vec::new();
    duty.step(100 * S, Event::Until(Times::of(127 * S, 5 * S)), &mut out);
    duty.step(100 * S, Event::Started, &mut out);
    duty.step(122 * S - margins.ask_before, Event::Time, &mut out);
    assert_eq!((out, duty.next()), (vec![Action::Ask], Some(122 * S)));
    assert!(step(&mut duty, 122, Event::Time).contains(&Action::Send(Signal::SIGTERM)));
}

#[test]
fn after_a_loss_the_kill_comes_when_kill_after_or_the_lease_is_over_whichever_is_first() {
    let why = Why::Lost(Lost::TakenAway);
    let mut between = Duty::new(care(OnLost::Term), MARGINS, 100 * S);
    let mut out = Vec::new();
    between.step(100 * S, Event::Until(Times::of(127 * S, 5 * S)), &mut out);
    between.step(100 * S, Event::Started, &mut out);
    assert_eq!(
        step(&mut between, 124, Event::Lost(why)),
        [Action::TellStopping(why, 127 * S), Action::Send(Signal::SIGTERM)]
    );
    assert_eq!(
        (between.next(), step(&mut between, 127, Event::Time)),
        (Some(127 * S), vec![Action::Send(Signal::SIGKILL)])
    );
    // The library's clock was read a little earlier.
    let mut early = duty(OnLost::Term);
    early.step(127 * S - Duration::from_micros(1), Event::Lost(Why::Lost(Lost::Expired)), &mut out);
    assert_eq!(early.next(), Some(127 * S));
    assert_eq!(step(&mut early, 127, Event::Time), [Action::Send(Signal::SIGKILL)]);
    // Nobody is there to be warned.
    let mut warn = duty(OnLost::Warn);
    step(&mut warn, 124, Event::Gone);
    step(&mut warn, 126, Event::Lost(why));
    assert_eq!(
        (warn.next(), step(&mut warn, 127, Event::Time)),
        (Some(127 * S), vec![Action::Send(Signal::SIGKILL)])
    );
}

#[test]
fn the_margins_are_those_of_the_whole_lease_and_a_claim_lease_is_none() {
    let margins = Margins::of(30 * S, S, 2 * S);
    assert_eq!(margins, Margins { kill_after: S, ask_before: 2 * S });
    assert!(!Margins::is_whole(30 * S, S, Duration::from_millis(1_990)), "a pushed grant's");
    assert!(Margins::is_whole(30 * S, S, 29 * S));
}
