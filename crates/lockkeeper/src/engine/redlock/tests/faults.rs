//! Members that die, stop, come back empty, are slow, or lose answers (failures.md §1.4).

use std::time::{Duration, Instant};

use lockkeeper_lab::proxy::{Fault, Way};

use super::support::{Proxied, Quorum, TTL, claim, until_it_counts};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, End, Renewal};
use crate::error::{Error, ErrorKind};
use crate::id::HoldId;
use crate::lost::Lost;
use crate::name::Kind;

/// Less than what a member has for its answer in these tests, which is 600 ms.
const SOON: Duration = Duration::from_millis(400);

fn unknown(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Unknown(error) => error,
        other => panic!("not unknown but {other:?}"),
    }
}

/// How often each member ran a command.
pub(super) fn ran(quorum: &Quorum, command: &str) -> Vec<u64> {
    let each = quorum.0.iter().map(|server| server.command_counts());
    each.map(|counts| counts.get(command).copied().unwrap_or_default()).collect()
}

/// Renews until the answer is the awaited one.
fn renewed(process: &Process, hold: HoldId) {
    until("it is extended", || matches!(process.renew(hold), Renewal::Extended { .. }));
}

#[test]
fn a_member_that_is_dead_at_the_start_is_told_and_costs_nothing() {
    let mut quorum = Quorum::of(3);
    quorum.0[1].kill();
    let process = quorum.process();
    let warnings = process.engine.describe().warnings;
    let down = warnings.iter().find(|w| w.id == "member-down").expect("it is told");
    assert!(down.text.contains(&quorum.0[1].port().to_string()), "{down:?}");
    // A machine with much to do gets more than one chance.
    until("nobody waits for it", || {
        let began = Instant::now();
        let held = claim(&process, "a");
        granted(process.attempt(&held));
        assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
        assert!(matches!(process.release(held.id), End::Freed));
        began.elapsed() < SOON
    });
}

#[test]
fn l5_a_stopped_member_is_asked_and_not_waited_for() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = claim(&one, "held");
    granted(one.attempt(&held));
    quorum.0[2].stop();
    // A machine with much to do gets more than one chance.
    until("twenty turns do not wait for it", || {
        let began = Instant::now();
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
        for _ in 0..20 {
            let turn = claim(&one, "a");
            granted(one.attempt(&turn));
            assert!(matches!(two.attempt_try(&claim(&two, "a")), Attempt::Busy(Some(_))));
            assert!(matches!(one.release(turn.id), End::Freed));
        }
        began.elapsed() < SOON * 2
    });
    // The first look waits for it, and none after that.
    until("a look does not wait for it", || {
        let began = Instant::now();
        assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
        assert_eq!(two.look(Kind::Lock, "held").holders.len(), 1);
        began.elapsed() < SOON
    });
    quorum.0[2].go_on();
    quorum.until_clean("a");
}

#[test]
fn a_member_that_is_killed_while_a_lock_is_waited_for_loses_no_wake_up() {
    let mut quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let waiting = claim(&two, "a");
    two.queue_claim(&waiting);
    quorum.0[0].kill();
    let since = Instant::now();
    assert!(matches!(one.release(held.id), End::Freed));
    granted(two.attempt_until(&waiting));
    assert!(since.elapsed() < TTL / 2, "{:?}: by a word of the others", since.elapsed());
}

#[test]
fn two_of_five_stopped_change_nothing_and_three_leave_no_majority() {
    let quorum = Quorum::of(5);
    let (one, two) = (quorum.process(), quorum.process());
    for stopped in &quorum.0[..2] {
        stopped.stop();
    }
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let waiting = claim(&two, "a");
    two.queue_claim(&waiting);
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(one.release(held.id), End::Freed));
    granted(two.attempt_until(&waiting));
    quorum.0[2].stop();
    // Nobody knows; the deadline of its lease decides.
    let Renewal::Unknown(error) = two.renew(waiting.id) else { panic!("a majority answered") };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let error = unknown(one.attempt(&claim(&one, "b")));
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("a majority is 3"), "{error}");
    for (at, server) in quorum.0.iter().enumerate() {
        let named = error.message().contains(&format!("127.0.0.1:{} ", server.port()));
        assert_eq!(named, at < 3, "{at}: {error}");
    }
    for stopped in &quorum.0[..3] {
        stopped.go_on();
    }
    quorum.until_clean("b");
    granted(one.attempt_until(&claim(&one, "b")));
}

#[test]
fn l3_a_minority_that_comes_back_empty_gets_the_record_again_and_does_not_count_at_once() {
    let mut quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    until("all have it", || quorum.with_record(&held) == 3);
    quorum.0[0].restart();
    assert_eq!(quorum.with_record(&held), 2);
    until("it is restored", || {
        renewed(&one, held.id);
        quorum.with_record(&held) == 3
    });
    // The one that came back and one that stops: no majority that certainly remembers.
    quorum.0[2].stop();
    let young = format!("127.0.0.1:{} counts in", quorum.0[0].port());
    until("it is connected again, and does not count", || {
        let error = unknown(two.attempt(&claim(&two, "b")));
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        error.message().contains(&young)
    });
    quorum.0[2].go_on();
    until_it_counts(&quorum.0[0]);
}

#[test]
fn l3_a_minority_is_restored_also_when_the_time_of_the_caller_is_long_over() {
    let mut quorum = Quorum::of(3);
    let one = quorum.process();
    let mut held = claim(&one, "a");
    held.give_up = Some(one.now().plus(Duration::from_millis(300)));
    granted(one.attempt(&held));
    until("its caller would have given up", || held.give_up.is_some_and(|at| at <= one.now()));
    quorum.0[0].restart();
    until("it is restored", || {
        renewed(&one, held.id);
        quorum.with_record(&held) == 3
    });
}

#[test]
fn l3_a_majority_that_comes_back_empty_gives_the_lock_to_nobody_while_a_lease_may_last() {
    let mut quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = claim(&one, "a");
    let lease = granted(one.attempt(&held)).lease.and_then(|lease| lease.since);
    let until_over = lease.expect("it has one").plus(TTL);
    for server in &mut quorum.0[..2] {
        server.restart();
    }
    let next = claim(&two, "a");
    until("somebody is granted it", || matches!(two.attempt(&next), Attempt::Granted(_)));
    assert!(two.now() > until_over, "BROKEN LOCK: two holders");
    assert!(matches!(one.renew(held.id), Renewal::Gone(Lost::TakenAway)));
    assert!(matches!(two.renew(next.id), Renewal::Extended { .. }));
}

#[test]
fn r1_l2_a_lease_counts_from_before_the_first_send_and_late_answers_grant_nothing() {
    let proxied = Proxied::of(3);
    let one = proxied.process("max_ttl=2s&server_timeout=5s&request_timeout=5s");
    let slow = |ms| Fault { delay: Duration::from_millis(ms), ..Fault::default() };
    proxied.all(Way::Down, &slow(300));
    let before = one.now();
    let held = claim(&one, "a");
    let since = granted(one.attempt(&held)).lease.and_then(|lease| lease.since);
    let since = since.expect("it has a lease");
    assert!(since <= before.plus(Duration::from_millis(250)), "counted from the reply");
    assert!(one.now().since(since) >= Duration::from_millis(300));
    assert!(matches!(one.release(held.id), End::Freed));
    proxied.all(Way::Down, &slow(1_800));
    let late = claim(&one, "a");
    let error = unknown(one.attempt(&late));
    assert!(error.message().contains("too little of the lease"), "{error}");
    proxied.all(Way::Down, &Fault::default());
    proxied.quorum.until_clean("a");
}

#[test]
fn r4_a_release_whose_replies_were_lost_is_unknown_and_frees_only_its_own_grant() {
    let proxied = Proxied::of(3);
    let one = proxied.process("max_ttl=2s&server_timeout=600ms&request_timeout=1s");
    let two = proxied.quorum.process();
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let lost = Fault { cut_after: Some(0), ..Fault::default() };
    proxied.all(Way::Down, &lost);
    assert!(matches!(one.release(held.id), End::Unknown(_)));
    // It was carried out all the same.
    proxied.quorum.until_clean("a");
    let next = claim(&two, "a");
    granted(two.attempt(&next));
    proxied.all(Way::Down, &Fault::default());
    until("the release is answered", || !matches!(one.release(held.id), End::Unknown(_)));
    assert!(matches!(two.renew(next.id), Renewal::Extended { .. }));
    until("all have it", || proxied.quorum.with_record(&next) == 3);
}

#[test]
fn r4_an_acquire_whose_replies_were_lost_is_unknown_and_asked_again_holds_once() {
    let proxied = Proxied::of(3);
    let one = proxied.process("max_ttl=2s&server_timeout=600ms&request_timeout=1s");
    let lost = Fault { cut_after: Some(0), ..Fault::default() };
    proxied.all(Way::Down, &lost);
    let (asked, before) = (claim(&one, "a"), ran(&proxied.quorum, "set"));
    let error = unknown(one.attempt(&asked));
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let wrote =
        ran(&proxied.quorum, "set").iter().zip(before).filter(|(now, was)| *now > was).count();
    assert!(wrote >= 2, "the members carried it out");
    proxied.all(Way::Down, &Fault::default());
    // The same claim again holds once.
    until("it is granted", || matches!(one.attempt(&asked), Attempt::Granted(_)));
    assert!(matches!(one.release(asked.id), End::Freed));
    proxied.quorum.until_clean("a");
}

#[test]
fn r5_what_a_lost_claim_left_behind_is_given_back_long_before_its_lease_ends() {
    let proxied = Proxied::before(Quorum::long_up(3));
    let one = proxied.process("max_ttl=24h&server_timeout=300ms&request_timeout=500ms");
    let mut left = claim(&one, "a");
    left.ttl = Duration::from_secs(3600);
    proxied.all(Way::Down, &Fault { cut_after: Some(0), ..Fault::default() });
    let before = ran(&proxied.quorum, "set");
    unknown(one.attempt(&left));
    // It may be given back already: the next connection is there within a moment.
    let wrote =
        ran(&proxied.quorum, "set").iter().zip(before).filter(|(now, was)| *now > was).count();
    assert!(wrote >= 2, "the members carried it out");
    one.withdraw(left.id);
    proxied.all(Way::Down, &Fault::default());
    proxied.quorum.until_clean("a");
}

#[test]
fn r3_a_request_that_is_late_on_its_way_locks_for_nobody() {
    let proxied = Proxied::before(Quorum::long_up(3));
    let one = proxied.process("max_ttl=24h&server_timeout=5s&request_timeout=500ms");
    proxied.proxies.iter().for_each(|proxy| proxy.hold(Way::Up));
    let mut asked = claim(&one, "a");
    asked.ttl = Duration::from_secs(3600);
    let sent = Instant::now();
    let answer = one.engine.attempt(&asked, crate::engine::Line::Join);
    let ran = || ran(&proxied.quorum, "evalsha");
    let before = ran();
    // The process dies: nobody gives back what was asked for.
    drop(answer);
    one.die();
    until("its time is over", || sent.elapsed() > Duration::from_millis(700));
    proxied.proxies.iter().for_each(lockkeeper_lab::proxy::Proxy::heal);
    until("it arrives", || ran().iter().zip(&before).all(|(now, then)| now > then));
    assert_eq!(proxied.quorum.with_record(&asked), 0);
}
