//! One holder at a time, and how the others come to know that it is free.

use std::time::{Duration, Instant};

use super::faults::ran;
use super::support::{Quorum, TTL, claim};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, Change, End, Event, Number, Renewal, Standing};
use crate::words::id::ClaimId;
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// Waits until a waiter is woken: members' words do that, and its own look does not.
fn woken(process: &Process, id: ClaimId) {
    process.event("a wake-up", |event| {
        matches!(event, Event::Wake { claim } if *claim == id).then_some(())
    });
}

#[test]
fn a_majority_holds_the_lock_and_a_release_wakes_who_waits() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = claim(&one, "a");
    let grant = granted(one.attempt(&held));
    assert!(matches!(grant.number, Number::Ours(_)), "{grant:?}");
    assert_eq!(grant.lease.map(|lease| lease.ttl), Some(TTL));
    until("all have it", || quorum.with_record(&held) == 3);

    let tried = claim(&two, "a");
    let Attempt::Busy(Some(holder)) = two.attempt_try(&tried) else { panic!("it is held") };
    assert_eq!((holder.claim, holder.pid), (Some(held.id), Some(std::process::id())));
    let waiting = claim(&two, "a");
    two.queue_claim(&waiting);
    assert_eq!((quorum.with_record(&tried), quorum.with_record(&waiting)), (0, 0));

    assert!(matches!(one.release(held.id), End::Freed));
    woken(&two, waiting.id);
    // A majority is enough for an end and for a grant; the third answer may come later.
    until("all have freed it", || quorum.with_record(&held) == 0);
    granted(two.attempt_until(&waiting));
    until("all have it", || quorum.with_record(&waiting) == 3);
    assert!(matches!(one.release(held.id), End::NotOurs));
    assert_eq!(quorum.with_record(&waiting), 3, "a release sent twice frees only its own grant");
    assert!(matches!(two.release(waiting.id), End::Freed));
    quorum.until_clean("a");
}

#[test]
fn whoever_opens_asks_admitted_members_nothing_but_the_greeting() {
    let quorum = Quorum::of(3);
    let one = quorum.process();
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    until("all are admitted and have it", || quorum.with_record(&held) == 3);
    let before = ran(&quorum, "evalsha");
    let two = quorum.process();
    two.engine.describe();
    assert_eq!(ran(&quorum, "evalsha"), before);
    assert!(matches!(one.release(held.id), End::Freed));
    quorum.until_clean("a");
    granted(two.attempt(&claim(&two, "a")));
}

#[test]
fn r3_a_claim_asked_for_twice_holds_once_and_a_recheck_extends_it() {
    let quorum = Quorum::of(3);
    let one = quorum.process();
    let held = claim(&one, "a");
    let first = granted(one.attempt(&held)).lease.and_then(|lease| lease.since);
    let second = granted(one.attempt(&held)).lease.and_then(|lease| lease.since);
    assert!(second > first);
    let standing = one.wait(one.engine.recheck(&[held.id, ClaimId::fresh()]));
    assert!(matches!(&standing[..], [Standing::Held(_), Standing::Gone(_)]), "{standing:?}");
    assert!(matches!(one.renew(held.id), Renewal::Extended { ttl: TTL, .. }));
    assert!(matches!(one.release(held.id), End::Freed));
    assert!(matches!(one.renew(held.id), Renewal::Gone(Lost::TakenAway)));
}

#[test]
fn r5_a_withdrawal_leaves_nothing_granted_or_not() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = claim(&one, "a");
    // Withdrawn before it is answered.
    let asked = one.engine.attempt(&held, crate::engine::Line::Join);
    one.withdraw(held.id);
    drop(asked);
    quorum.until_clean("a");
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    let waiting = claim(&two, "a");
    two.queue_claim(&waiting);
    assert!(matches!(two.withdraw(waiting.id), End::NotOurs | End::Freed));
    assert!(matches!(two.withdraw(waiting.id), End::NotOurs));
    one.withdraw(held.id);
    quorum.until_clean("a");
    for server in &quorum.0 {
        until("nobody listens", || {
            server.command(&["PUBSUB", "CHANNELS"]).iter().all(|channel| channel.is_empty())
        });
    }
}

#[test]
fn r10_waiters_do_not_wake_each_other_while_a_holder_has_a_bare_majority() {
    let quorum = Quorum::of(3);
    let one = quorum.process();
    quorum.held_shortly(&one, "a");
    // Nobody renews it, so that the third member does not get it again.
    quorum.0[2].command(&["DEL", "lockkeeper:{redlock:a}"]);
    let waiters = [quorum.process(), quorum.process()];
    let before = ran(&quorum, "evalsha")[2];
    let counts: Vec<u64> = std::thread::scope(|scope| {
        let each = waiters.iter().map(|process| {
            scope.spawn(|| {
                let waiting = claim(process, "a");
                granted(process.attempt_until(&waiting));
                let asked = ran(&quorum, "evalsha")[2] - before;
                assert!(matches!(process.release(waiting.id), End::Freed));
                asked
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    let first = counts.iter().min().expect("there are two");
    assert!(*first < 30, "asked {first} times until the lease ended");
}

#[test]
fn r9_what_is_asked_for_again_lets_those_pass_who_wait() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let held = claim(&one, "a");
    granted(one.attempt(&held));
    // Nobody waits: it is had again at once.
    let again = claim(&one, "a");
    let released = one.release_again(held.id, &again);
    granted(released.again.expect("it was asked for"));
    let waiting = claim(&two, "a");
    two.queue_claim(&waiting);
    let behind = claim(&one, "a");
    let released = one.release_again(again.id, &behind);
    assert!(matches!(released.again, Some(Attempt::InLine(_))), "{released:?}");
    granted(two.attempt_until(&waiting));
    assert!(matches!(one.attempt(&behind), Attempt::InLine(_)));
    assert!(matches!(two.release(waiting.id), End::Freed));
    granted(one.attempt_until(&behind));
}

#[test]
fn a_lock_is_shown_listed_and_taken_away_from_those_who_were_shown() {
    let quorum = Quorum::of(3);
    let (one, two) = (quorum.process(), quorum.process());
    let (held, other) = (claim(&one, "shop/a b"), claim(&one, "shop/c"));
    granted(one.attempt(&held));
    granted(one.attempt(&other));
    let entry = two.look(Kind::Lock, "shop/a b");
    let [holder] = &entry.holders[..] else { panic!("{entry:?}") };
    assert_eq!(holder.claim, Some(held.id));
    assert!(holder.expires_in().is_some_and(|left| left <= TTL));
    let names: Vec<String> = two.list("shop/").iter().map(|e| e.name.to_string()).collect();
    assert_eq!(names, ["shop/a b", "shop/c"]);
    let name = Name::new("shop/c").expect("a good name");
    let from_another = vec![holder.clone()];
    assert!(!two.change(&Change::Force(Kind::Lock, name.clone(), from_another)));
    assert!(matches!(one.renew(other.id), Renewal::Extended { .. }));
    let waiting = claim(&two, "shop/c");
    two.queue_claim(&waiting);
    let shown = two.look(Kind::Lock, "shop/c").holders;
    assert!(two.change(&Change::Force(Kind::Lock, name, shown)));
    granted(two.attempt_until(&waiting));
    until("all have it", || quorum.with_record(&waiting) == 3);
    assert!(matches!(one.renew(other.id), Renewal::Gone(Lost::TakenAway)));
    assert_eq!(quorum.with_record(&waiting), 3, "the loser takes nothing back");
}

#[test]
fn contenders_that_each_have_a_minority_come_to_an_end() {
    let quorum = Quorum::of(5);
    let processes: Vec<Process> = (0..4).map(|_| quorum.process()).collect();
    let began = Instant::now();
    let turns: Vec<Duration> = std::thread::scope(|scope| {
        let each = processes.iter().map(|process| {
            scope.spawn(|| {
                let mut longest = Duration::ZERO;
                for _ in 0..5 {
                    let asked = Instant::now();
                    let turn = claim(process, "hot");
                    granted(process.attempt_until(&turn));
                    longest = longest.max(asked.elapsed());
                    assert_eq!(quorum.with_record(&turn) / 3, 1, "a majority has it");
                    assert!(matches!(process.release(turn.id), End::Freed));
                }
                longest
            })
        });
        let each: Vec<_> = each.collect();
        each.into_iter().map(|one| one.join().expect("no panic")).collect()
    });
    println!("20 turns in {:?}, the longest wait of each {turns:?}", began.elapsed());
    quorum.until_clean("hot");
}
