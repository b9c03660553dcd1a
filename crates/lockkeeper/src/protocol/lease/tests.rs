use super::*;
use crate::words::clock::Steps;

const TTL: Duration = Duration::from_secs(30);

const FIXED: Terms = Terms { renew: false, at_once: false, margin: None, session: None };
const RENEWED: Terms = Terms { renew: true, ..FIXED };
const FIXED_PUSH: Terms = Terms { at_once: true, ..FIXED };

fn at(seconds: u64) -> Ticks {
    Ticks(seconds * 1_000_000_000)
}

fn id(n: u128) -> LeaseId {
    LeaseId(n)
}

#[test]
fn r1_the_deadline_counts_from_the_sending_and_leaves_the_drift_allowance() {
    let mut leases = Leases::new(Drift::default());
    assert_eq!(leases.add(id(1), at(100), TTL, RENEWED), at(127));
    let mut out = Vec::new();
    leases.take_over(at(126), &mut out);
    assert!(out.is_empty());
    leases.take_over(at(127), &mut out);
    assert_eq!(out, [Change::Over(id(1))]);
    assert_eq!(leases, Leases::new(Drift::default()), "nothing is left of it");
}

#[test]
fn renewals_are_due_at_a_third_and_go_in_one_message() {
    let mut leases = Leases::new(Drift::default());
    for n in 0..100 {
        leases.add(id(n), at(100), TTL, RENEWED);
    }
    leases.add(id(200), at(100), TTL, FIXED);
    assert_eq!(leases.next_timer(), Some(at(110)));
    assert!(leases.take_due(at(109), 1000).is_empty());
    assert_eq!(leases.take_due(at(110), 1000).len(), 100);
    assert!(leases.take_due(at(110), 1000).is_empty(), "they are on their way");
    let mut out = Vec::new();
    leases.renewed(id(7), at(110), TTL, &mut out);
    assert_eq!(out, [Change::Extended(id(7), at(137))]);
    assert_eq!(leases.next_timer(), Some(at(120)));
}

#[test]
fn r4_an_unanswered_renewal_changes_nothing_and_is_sent_again() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, RENEWED);
    leases.take_due(at(10), 10);
    let mut out = Vec::new();
    leases.unanswered(id(1), at(12), &mut out);
    assert_eq!(out, [Change::Doubtful(id(1))]);
    assert_eq!(leases.next_timer(), Some(Ticks(14_500_000_000)));
    leases.take_over(at(27), &mut out);
    assert_eq!(out.last(), Some(&Change::Over(id(1))), "the deadline decides");
}

#[test]
fn a_renewal_that_answers_from_long_before_is_not_repeated_at_once() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, RENEWED);
    let mut out = Vec::new();
    assert!(leases.take_one(id(1)));
    // Asked at 15 s, it lasts 30 s from 3 s on: a third of that was over before it was answered.
    leases.renewed(id(1), at(3), TTL, &mut out);
    leases.answered(id(1), at(15));
    assert_eq!(leases.next_timer(), Some(at(15).plus(TTL / 12)));
    // One that counts from now keeps its time.
    assert!(leases.take_one(id(1)));
    leases.renewed(id(1), at(16), TTL, &mut out);
    leases.answered(id(1), at(16));
    assert_eq!(leases.next_timer(), Some(at(26)));
}

#[test]
fn g10_a_late_answer_never_shortens_and_one_for_a_lease_that_is_over_never_revives() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, RENEWED);
    let mut out = Vec::new();
    leases.renewed(id(1), at(10), TTL, &mut out);
    leases.renewed(id(1), at(5), TTL, &mut out);
    assert_eq!(out.last(), Some(&Change::Extended(id(1), at(37))));
    leases.take_over(at(37), &mut out);
    out.clear();
    leases.renewed(id(1), at(36), TTL, &mut out);
    assert!(out.is_empty());
}

#[test]
fn r2_every_lease_that_ends_at_one_instant_is_announced() {
    let mut leases = Leases::new(Drift::default());
    for n in 1..=3 {
        leases.add(id(n), at(0), TTL, RENEWED);
    }
    let mut out = Vec::new();
    leases.take_over(at(27), &mut out);
    assert_eq!(out, [Change::Over(id(1)), Change::Over(id(2)), Change::Over(id(3))]);
    assert_eq!(leases, Leases::new(Drift::default()));
}

#[test]
fn a_fixed_lease_is_never_renewed_and_a_session_is_as_soon_as_one_hold_wants_it() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, FIXED);
    leases.add(id(2), at(0), TTL, FIXED);
    assert_eq!((leases.take_due(at(20), 9), leases.take_all()), (vec![], vec![]));
    leases.add(id(2), at(3), TTL, RENEWED);
    assert_eq!(leases.take_due(at(13), 9), [id(2)]);
    assert_eq!(leases.take_all(), [id(2)]);
}

#[test]
fn a_fixed_lease_that_waits_for_its_confirmation_is_renewed_once_until_that_is_answered() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(100), Duration::from_secs(2), FIXED_PUSH);
    let mut out = Vec::new();
    assert_eq!(
        leases.take_due(at(100), 9),
        [id(1)],
        "a pushed grant has its claim lease, and no more"
    );
    leases.unanswered(id(1), at(100), &mut out);
    assert_eq!(leases.take_due(at(101), 9), [id(1)]);
    assert_eq!(leases.take_all(), [id(1)], "after a reconnect, too");
    leases.renewed(id(1), at(101), TTL, &mut out);
    assert_eq!(out.last(), Some(&Change::Extended(id(1), at(128))));
    assert_eq!(
        (leases.take_due(at(127), 9), leases.take_all()),
        (vec![], vec![]),
        "from then on it is fixed"
    );
    // The same where the answer comes late, and the next try was due already.
    leases.add(id(2), at(101), Duration::from_secs(2), FIXED_PUSH);
    leases.unanswered(id(2), at(101), &mut out);
    leases.renewed(id(2), at(101), TTL, &mut out);
    assert_eq!((leases.take_due(at(127), 9), leases.next_timer()), (vec![], Some(at(128))));
    leases.forget(id(2));
    leases.take_over(at(128), &mut out);
    assert_eq!(out.last(), Some(&Change::Over(id(1))));
}

#[test]
fn a_session_lease_carries_many_holds() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, RENEWED);
    assert_eq!(leases.add(id(1), at(3), TTL, RENEWED), at(30));
    leases.drop_hold(id(1));
    assert_eq!(leases.kept.len(), 1);
    leases.drop_hold(id(1));
    assert_eq!(leases, Leases::new(Drift::default()));
}

#[test]
fn the_greatest_margin_of_a_session_counts_and_the_engine_renews_it_by_itself() {
    let mut leases = Leases::new(Drift::default());
    let session = Terms { session: Some(TTL), ..RENEWED };
    // 27 s are left less the floor of the default margin, 9 s: nobody is asked before.
    leases.add(id(1), at(0), TTL, session);
    assert_eq!(leases.next_timer(), Some(at(18)));
    leases.add(id(1), at(0), TTL, Terms { margin: Some(TTL / 3), ..session });
    let mut out = Vec::new();
    leases.renewed(id(1), at(10), TTL, &mut out);
    assert_eq!(out, [Change::Extended(id(1), at(37))]);
    assert_eq!(leases.next_timer(), Some(Ticks(25_500_000_000)), "11.5 s before the deadline");
    // Below the floor it is asked for, at once where there is never more, but not without end.
    leases.renewed(id(1), at(20), Duration::from_secs(6), &mut out);
    assert_eq!(leases.take_due(Ticks(25_500_000_000), 9), [id(1)]);
    assert!(!leases.take_one(id(1)), "it is under way");
    leases.renewed(id(1), at(26), TTL, &mut out);
    assert!(leases.take_one(id(1)), "somebody wants to know now");
    // A fixed hold has no part in it.
    leases.add(id(2), at(0), TTL, Terms { session: Some(TTL), ..FIXED });
    out.clear();
    leases.renewed(id(2), at(10), TTL, &mut out);
    assert!(out.is_empty() && !leases.take_one(id(2)));
}

#[test]
fn r2_a_session_that_is_answered_for_and_not_proven_is_asked_for_no_faster_near_its_deadline() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, Terms { session: Some(TTL), ..RENEWED });
    let (mut out, mut asked) = (Vec::new(), Vec::new());
    while let Some(now) = leases.next_timer().filter(|now| *now < at(27)) {
        assert_eq!(leases.take_due(now, 9), [id(1)]);
        asked.push(now);
        // The answer says what is left, and that is less every time.
        leases.renewed(id(1), now, at(27).since(now), &mut out);
    }
    assert!(asked.windows(2).all(|two| two[1].since(two[0]) >= TTL / 12), "{asked:?}");
    assert_eq!(asked.len(), 4, "from 18 s on, every 2.5 s: {asked:?}");
}

/// Renewals of a healthy server, searched with the real constants: each answer comes at once or
/// late, each timer fires in time or late. Time is counted from the last renewal, so that what
/// repeats itself is found again.
#[test]
fn without_a_fault_a_renewed_lease_never_comes_closer_than_the_floor() {
    for ttl in [200, 2_000, 5_000, 10_000, 30_000, 60_000].map(Duration::from_millis) {
        for margin in [None, Some(Duration::ZERO), Some(ttl / 6), Some(ttl / 4), Some(ttl / 3)] {
            for per_mille in [100, 250] {
                let drift = Drift { per_mille, ..Drift::default() };
                let floor = margin::floor(ttl, margin);
                let late = ttl / 50;
                let mut start = Leases::new(drift);
                let zero = at(1_000);
                start.add(id(1), zero, ttl, Terms { margin, ..RENEWED });
                let (mut open, mut seen, mut least) =
                    (vec![start], std::collections::HashSet::new(), ttl);
                while let Some(leases) = open.pop() {
                    if !seen.insert(leases.clone()) {
                        continue;
                    }
                    for (timer, answer) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
                        let mut next = leases.clone();
                        let sent = next.next_timer().unwrap().plus(late * timer);
                        assert_eq!(next.take_due(sent, 9), [id(1)]);
                        let answered = sent.plus(late * answer);
                        let until = deadline(zero, ttl, drift);
                        least = least.min(until.since(answered));
                        let mut out = Vec::new();
                        next.renewed(id(1), sent, ttl, &mut out);
                        // From there on it is as after the first.
                        let mut again = Leases::new(drift);
                        again.add(id(1), zero, ttl, Terms { margin, ..RENEWED });
                        assert_eq!(
                            next.next_timer().unwrap().since(sent),
                            again.next_timer().unwrap().since(zero)
                        );
                        open.push(again);
                    }
                }
                assert!(
                    least >= floor,
                    "{ttl:?} {margin:?} {per_mille}: {least:?} of {floor:?} was left"
                );
            }
        }
    }
}

/// One step of the time of day.
fn step(at: Ticks, by: Duration) -> Steps {
    let mut steps = Steps::default();
    steps.note(at, by);
    steps
}

const WITHIN: Duration = Duration::from_secs(2);
const HOUR: Duration = Duration::from_secs(3_600);

#[test]
fn n2_a_step_within_half_of_the_drift_allowance_puts_no_lease_in_doubt() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, RENEWED);
    leases.add(id(2), at(0), Duration::from_millis(200), RENEWED);
    for (by, doubts) in [(10, 0), (11, 1), (1_500, 1), (1_501, 2)] {
        let mut leases = leases.clone();
        leases.stepped(at(1), step(at(1), Duration::from_millis(by)), WITHIN);
        assert_eq!(leases.doubts(), doubts, "{by} ms");
    }
}

#[test]
fn n2_all_that_is_in_doubt_is_asked_about_at_once_and_then_at_most_once_a_request_timeout() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, RENEWED);
    leases.add(id(2), at(0), TTL, RENEWED);
    leases.add(id(3), at(0), TTL, FIXED);
    leases.add(id(4), at(0), TTL, Terms { session: Some(TTL), ..FIXED });
    leases.take_due(at(10), 1);
    let mut steps = step(at(11), HOUR);
    leases.stepped(at(11), steps.clone(), WITHIN);
    let all = [
        Question::Renew(id(1)),
        Question::Renew(id(2)),
        Question::Recheck(id(3)),
        Question::Renew(id(4)),
    ];
    assert_eq!(leases.take_doubtful(at(11)), all, "also what is under way: that is of before");
    assert!(leases.take_due(at(11), 9).is_empty(), "and nothing twice");
    // The clock flaps: what is asked about anew has its time from then on.
    steps.note(at(12), HOUR);
    leases.stepped(at(12), steps, WITHIN);
    assert!(leases.take_doubtful(at(12)).is_empty());
    let mut out = Vec::new();
    leases.take_over(at(13), &mut out);
    assert!(out.is_empty());
    assert_eq!(leases.take_doubtful(at(13)), all);
    leases.take_over(at(15), &mut out);
    assert_eq!(out, [1, 2, 3].map(|n| Change::Unproven(id(n))));
}

#[test]
fn n2_only_an_answer_to_what_was_sent_after_the_step_was_noticed_ends_the_doubt() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, RENEWED);
    leases.take_due(at(10), 1);
    leases.stepped(at(11), step(at(11), HOUR), WITHIN);
    leases.take_doubtful(at(11));
    let mut out = Vec::new();
    leases.renewed(id(1), at(10), TTL, &mut out);
    assert_eq!(leases.doubts(), 1, "its answer is an old one");
    leases.renewed(id(1), at(11), TTL, &mut out);
    assert_eq!((leases.doubts(), out.last()), (0, Some(&Change::Extended(id(1), at(38)))));
    leases.take_over(at(37), &mut out);
    assert_eq!(out.len(), 2, "it goes on");
}

#[test]
fn n2_what_nobody_proves_is_lost_by_the_step_at_the_request_timeout_or_at_its_deadline() {
    for (ttl, until) in [(TTL, at(13)), (Duration::from_secs(12), at(12))] {
        let mut leases = Leases::new(Drift { per_mille: 0, at_least: Duration::ZERO });
        leases.add(id(1), at(0), ttl, RENEWED);
        leases.stepped(at(11), step(at(11), HOUR), WITHIN);
        leases.take_doubtful(at(11));
        let mut out = Vec::new();
        leases.take_over(until.minus(Duration::from_nanos(1)), &mut out);
        assert!(out.is_empty());
        leases.take_over(until, &mut out);
        assert_eq!(out, [Change::Unproven(id(1))]);
        assert_eq!(leases.next_timer(), None, "nothing is left of it");
    }
}

#[test]
fn n2_a_fixed_lease_that_is_proven_keeps_its_deadline_or_what_the_engine_says_is_left() {
    for (left, until) in [(TTL, at(27)), (Duration::from_secs(10), at(20))] {
        let mut leases = Leases::new(Drift::default());
        leases.add(id(1), at(0), TTL, FIXED);
        leases.stepped(at(11), step(at(11), HOUR), WITHIN);
        let mut out = Vec::new();
        leases.renewed(id(1), at(11), left, &mut out);
        assert_eq!((leases.doubts(), &out[..]), (0, &[Change::Extended(id(1), until)][..]));
        assert_eq!(leases.next_timer(), Some(until), "it is not renewed");
    }
}

#[test]
fn n2_a_sessions_proof_counts_from_when_the_server_heard_and_not_from_when_it_was_told() {
    let mut leases = Leases::new(Drift::default());
    leases.add(id(1), at(0), TTL, Terms { session: Some(TTL), ..RENEWED });
    leases.stepped(at(11), step(at(11), HOUR), WITHIN);
    let mut out = Vec::new();
    // Told at 12 s with 20 s left: 9 s of a session without drift are over.
    leases.renewed(id(1), at(12), Duration::from_secs(20), &mut out);
    assert_eq!(leases.doubts(), 1);
    leases.renewed(id(1), at(21), Duration::from_secs(20), &mut out);
    assert_eq!(leases.doubts(), 0, "the server heard at 12 s");
}
