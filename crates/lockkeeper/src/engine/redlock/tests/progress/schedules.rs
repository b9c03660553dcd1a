//! What must come of it.

use super::plans::{named, random};
use super::*;
use crate::searches::as_far_as;

/// A search that is asked to go on plays so many seeds of each.
const SEEDS: u64 = 20;
/// And so many that are made up.
const MADE_UP: u64 = 400;

/// Plays those whose names begin so.
fn must_go_well(begins: &[&str]) {
    let plans = named().into_iter().filter(|(name, _)| begins.iter().any(|b| name.starts_with(b)));
    let mut played = 0;
    for (name, plan) in plans {
        for seed in 0..as_far_as(1, SEEDS) {
            must_be_right(name, seed, &plan.play(seed));
            played += 1;
        }
    }
    assert!(played > 0, "nothing is called {begins:?}");
}

fn must_be_right(name: &str, seed: u64, played: &Played) {
    let Course { wrong, holds, unanswered, .. } = &played.course;
    println!("{name}, seed {seed}: too few answered {unanswered:?}");
    assert!(wrong.is_empty(), "{name}, seed {seed}: {wrong:#?}\n{:?}", played.course);
    assert!(*holds > 0, "{name}, seed {seed}: nobody ever holds");
}

/// One of a few seeds shows it, and says so.
fn convicted(plan: &Plan, of: &str) {
    let shows = |seed| plan.play(seed).course.wrong.iter().any(|wrong| wrong.contains(of));
    assert!((0..4).any(shows), "not convicted of {of:?}: {plan:?}");
}

#[test]
fn r11_whoever_waits_for_a_quorum_has_its_turn_and_the_lock_is_never_idle_for_long() {
    must_go_well(&["two", "five slow", "eight at once", "eight foul", "three tasks"]);
}

#[test]
fn r11_a_bare_majority_hands_on_as_all_do() {
    must_go_well(&["bare", "slow bare", "one after the other"]);
}

#[test]
fn r11_whoever_waits_for_a_late_answer_of_a_bare_majority_is_not_passed_by_all_that_wait() {
    let plan = Plan::of(3).holds(20, 12_000).ttl(2_000).slow().bare();
    for seed in [10, 33] {
        must_be_right("three slow and bare", seed, &plan.play(seed));
    }
}

#[test]
fn r11_dead_waiters_cost_a_claim_lease_and_a_second_together() {
    must_go_well(&["first", "five stopped", "eight killed", "eight stopped", "some stop"]);
}

#[test]
fn r11_the_first_that_lives_has_the_lock_when_the_lease_of_a_dead_holder_ends() {
    must_go_well(&["holder"]);
}

#[test]
fn r10_lines_that_disagree_and_places_that_are_lost_keep_nobody_waiting() {
    must_go_well(&["lines", "places", "late", "short waits"]);
}

#[test]
fn a_seed_gives_the_same_course_again() {
    let plan = Plan { lasts: secs(2), ..Plan::of(5).foul() };
    let (one, same, other) = (plan.play(7), plan.play(7), plan.play(8));
    assert!(one.told == same.told && one.commands == same.commands);
    assert!(one.told != other.told);
}

#[test]
fn made_up_courses_of_a_quorum_go_well() {
    for seed in 0..as_far_as(3, MADE_UP) {
        must_be_right("made up", seed, &random(seed).play(seed));
    }
}

#[test]
fn r11_members_that_go_away_with_the_fastest_clocks_let_nobody_pass_those_that_wait() {
    must_go_well(&["clocks apart"]);
    // Where clocks are further apart than they may be, proposals go back with them.
    convicted(&Plan::of(8).holds(20, 14_000).apart(11_000), "others had it");
}

#[test]
fn r4_a_hold_of_a_second_costs_commands_of_its_own_and_a_few_for_each_that_waits() {
    for processes in [2, 4, 8, 16, 32] {
        // What connecting costs is in both.
        let [begun, played] = [40, 80].map(|lasts| {
            let plan = Plan { hold: secs(1), lasts: secs(lasts), ..Plan::of(processes) };
            let played = plan.play(1);
            must_be_right("a second each", 1, &played);
            (played.commands as f64, played.course.holds as f64)
        });
        let each = (played.0 - begun.0) / (played.1 - begun.1);
        println!("{processes} processes: {each:.1} commands a hold");
        // Each that waits asks five members every five seconds.
        let most = (30 + processes) as f64;
        assert!(each <= most, "{processes} processes: {each:.1} commands a hold, not {most}");
    }
}

#[test]
fn r10_whoever_waits_at_rest_asks_a_member_less_than_once_a_second() {
    let plan = Plan { hold: secs(100), lasts: secs(60), ..Plan::of(8) };
    let played = plan.play(1);
    must_be_right("at rest", 1, &played);
    let each = played.commands as f64 / (7 * MEMBERS * 60) as f64;
    assert!(each < 1.0, "{each:.2} commands a second, member and waiter");
}

#[test]
fn r4_a_majority_that_hangs_is_asked_once_a_second_by_who_waits() {
    let faults = [0, 1, 2].map(|member| (secs(3), Fault::Hang(member)));
    let plan = Plan { hold: secs(100), faults: faults.to_vec(), ..Plan::of(2) };
    let played = plan.play(1);
    // Neither holder nor waiter can do anything. The first has the lock before the other asks.
    let waits = usize::from(played.log.holder().is_some_and(|(process, _)| process == 0));
    for member in [3, 4] {
        let asked = played.log.asked((waits, member), secs(6)..secs(16));
        println!("member {member}: asked {asked} times in 10 s");
        assert!((5..=12).contains(&asked), "asked {asked} times in 10 s:\n{}", played.told);
    }
}

#[test]
fn members_that_leave_out_a_rule_of_the_line_are_convicted() {
    let plan = |name: &str, flaw| {
        let (_, plan) = named().into_iter().find(|(one, _)| *one == name).expect("it is there");
        Plan { member: Some(flaw), ..plan }
    };
    use rules::Flaw;
    convicted(&plan("eight at once", Flaw::IgnoresLine), "others had it");
    convicted(&plan("eight", Flaw::HoldsInLine), "was idle");
    convicted(&plan("eight killed", Flaw::KeepsDead), "was idle");
    convicted(&plan("bare twelve, one line forgotten", Flaw::KeepsLostOut), "was idle");
}

#[test]
fn processes_that_leave_out_a_rule_of_waiting_are_convicted() {
    use planted::Flaw;
    let plan = |flaw, those| Plan { process: Some((flaw, those)), ..Plan::of(8) };
    let lost = vec![(ms(3_010), Fault::Forget(0, &[0, 1, 2, 3, 4]))];
    let never = Plan { faults: lost, hold: ms(50), ..plan(Flaw::PutOffByWords, 1) };
    convicted(&never, "did not ask since");
    convicted(&plan(Flaw::AsksAtLeaseEnd, 8), "did not ask since");
    convicted(&plan(Flaw::HearsTooFew, 1), "too few answered");
    let dead = vec![(ms(3_010), Fault::StopFirst(8))];
    let waits = Plan {
        processes: 12,
        wait: Some(ms(1_200)),
        faults: dead,
        ..plan(Flaw::IgnoresGiveUp, 12)
    };
    convicted(&waits, "leaves a lock that was free");
}
