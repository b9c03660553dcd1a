//! RFairLocks on each member, as a RedissonRedLock of them uses.

use super::support::{Quorum, claim, one_after_the_other, open};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, Change, End, Event, Renewal};
use crate::words::claim::Claim;
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

const JAVA: &str = "9c2f4a1e-6f0b-4a55-8a3c-1f2e3d4c5b6a:42";
const QUEUE: &str = "redisson_lock_queue:{a}";
const DEADLINES: &str = "redisson_lock_timeout:{a}";
const CHANNEL: &str = "redisson_lock__channel:{a}";

impl Quorum {
    fn line(&self, member: usize) -> Vec<String> {
        self.0[member].command(&["LRANGE", QUEUE, "0", "-1"])
    }

    /// Tells whoever stands first, if nobody was first by itself.
    fn tell_first(&self, member: usize) {
        if let Some(first) = self.line(member).first().filter(|first| !first.is_empty()) {
            self.0[member].command(&["PUBLISH", &format!("{CHANNEL}:{first}"), "0"]);
        }
    }

    fn until_in_line(&self, many: usize) {
        until("all stand on each member", || {
            (0..self.0.len()).all(|at| self.line(at).len() == many)
        });
    }

    fn until_empty(&self) {
        until("nothing is left", || self.0.iter().all(|s| s.command(&["DBSIZE"]) == ["0"]));
        until("nobody listens", || {
            let channels = self.0.iter().map(|server| server.command(&["PUBSUB", "CHANNELS"]));
            channels.flatten().all(|channel| channel.is_empty())
        });
    }

    /// Java holds it on each member.
    fn java_has_it(&self) {
        for server in &self.0 {
            server.command(&["HSET", "a", JAVA, "1"]);
            server.command(&["PEXPIRE", "a", "60000"]);
        }
    }
}

fn fair(quorum: &Quorum) -> Process {
    open(&format!("{}&layout=redisson&lock=fair", quorum.url())).expect("the members can be used")
}

/// Waits until a waiter is woken by members' words, or has what they told of.
fn is_woken(process: &Process, claim: &Claim) {
    process.event("a wake-up", |event| {
        let (Event::Wake { claim: id } | Event::Granted { claim: id, .. }) = event else {
            return None;
        };
        (*id == claim.id).then_some(())
    });
}

#[test]
fn waiters_of_a_fair_lock_have_it_one_after_the_other_and_leave_nothing() {
    let quorum = Quorum::grown(3);
    let processes: Vec<Process> = (0..4).map(|_| fair(&quorum)).collect();
    let about = processes[0].engine.describe();
    assert!(about.warnings.iter().any(|warning| warning.id == "dead-waiters"));
    processes.iter().for_each(Process::by_word_alone);
    let claims: Vec<Claim> = processes.iter().map(|process| claim(process, "a")).collect();
    granted(processes[0].attempt(&claims[0]));
    for at in 1..4 {
        processes[at].queue_claim(&claims[at]);
        quorum.until_in_line(at);
    }
    assert!(matches!(processes[3].withdraw(claims[3].id), End::Freed | End::NotOurs));
    quorum.until_in_line(2);
    for at in 0..2 {
        assert!(matches!(processes[at].renew(claims[at].id), Renewal::Extended { .. }));
        assert!(matches!(processes[at].release(claims[at].id), End::Freed));
        is_woken(&processes[at + 1], &claims[at + 1]);
        granted(processes[at + 1].attempt_until(&claims[at + 1]));
        quorum.until_in_line(1 - at);
    }
    assert!(matches!(processes[2].release(claims[2].id), End::Freed));
    quorum.until_empty();
}

#[test]
fn a_fair_lock_is_taken_from_nobody_who_stands_before_us() {
    let quorum = Quorum::grown(3);
    let (one, two) = (fair(&quorum), fair(&quorum));
    // Java stands first on two members, and has not heard that it is free.
    for server in &quorum.0[..2] {
        server.command(&["RPUSH", QUEUE, JAVA]);
        server.command(&["ZADD", DEADLINES, "9000000000000", JAVA]);
    }
    let Attempt::Busy(Some(holder)) = one.attempt_try(&claim(&one, "a")) else {
        panic!("it overtook")
    };
    assert_eq!(holder.label.as_deref(), Some(JAVA));
    until("a try leaves nothing", || quorum.0[2].command(&["DBSIZE"]) == ["0"]);
    assert!((0..2).all(|at| quorum.line(at) == [JAVA]));
    let mut java = quorum.0[0].client();
    java.command(&["SUBSCRIBE", &format!("{CHANNEL}:{JAVA}")]);
    let waiting = claim(&two, "a");
    two.by_word_alone();
    two.queue_claim(&waiting);
    assert_eq!(java.read().last().map(String::as_str), Some("0"), "it is told that it is free");
    assert!((0..2).all(|at| quorum.line(at).len() == 2 && quorum.line(at)[0] == JAVA));
    // It goes, as a RedissonRedLock does whose time for this member is over.
    for at in 0..2 {
        quorum.0[at].command(&["LREM", QUEUE, "0", JAVA]);
        quorum.0[at].command(&["ZREM", DEADLINES, JAVA]);
        quorum.tell_first(at);
    }
    is_woken(&two, &waiting);
    granted(two.attempt_until(&waiting));
    assert!(matches!(two.release(waiting.id), End::Freed));
    drop(java);
    quorum.until_empty();
}

#[test]
fn a_fair_lock_that_is_taken_away_by_force_is_told_to_the_first_in_line() {
    let quorum = Quorum::grown(3);
    let (one, two) = (fair(&quorum), fair(&quorum));
    let (held, waiting) = (claim(&one, "a"), claim(&two, "a"));
    granted(one.attempt(&held));
    until("all have it", || quorum.owners("a").iter().all(|owner| owner.len() == 2));
    two.by_word_alone();
    two.queue_claim(&waiting);
    let (shown, name) = (two.look(Kind::Lock, "a").holders, Name::new("a").expect("a good name"));
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert!(two.change(&Change::Force(Kind::Lock, name, shown)));
    is_woken(&two, &waiting);
    granted(two.attempt_until(&waiting));
    assert!(matches!(one.renew(held.id), Renewal::Gone(Lost::TakenAway)));
    assert!(matches!(two.release(waiting.id), End::Freed));
    quorum.until_empty();
}

#[test]
fn l4_contenders_of_a_fair_lock_that_are_each_first_on_a_minority_come_to_an_end() {
    let quorum = Quorum::grown(3);
    quorum.java_has_it();
    let processes: Vec<Process> = (0..3).map(|_| fair(&quorum)).collect();
    let claims: Vec<Claim> = processes.iter().map(|process| claim(process, "a")).collect();
    for (process, claim) in processes.iter().zip(&claims) {
        process.queue_claim(claim);
    }
    quorum.until_in_line(3);
    let mut line = quorum.line(0);
    for server in &quorum.0 {
        server.command(&["DEL", QUEUE]);
        line.iter().for_each(|place| drop(server.command(&["RPUSH", QUEUE, place])));
        line.rotate_left(1);
    }
    for at in 0..3 {
        quorum.0[at].command(&["DEL", "a"]);
        quorum.tell_first(at);
    }
    one_after_the_other(&processes, &claims);
    quorum.until_empty();
}
