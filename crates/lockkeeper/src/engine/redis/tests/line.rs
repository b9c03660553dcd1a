//! Waiting: order, direct grants, places that go.

use std::collections::BTreeMap;
use std::time::Duration;

use super::server::RedisServer;
use super::support::{Process, number, until};
use crate::engine::{Attempt, End, Event, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::name::Kind;

#[test]
fn a_release_grants_to_the_head_of_the_line_and_tells_its_process() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (held, first) = one.take("a", Mode::Exclusive);
    let second_claim = two.queue("a", Mode::Exclusive);
    let third_claim = three.queue("a", Mode::Exclusive);
    let seen = one.look(Kind::Lock, "a");
    assert_eq!(seen.waiters.iter().map(|w| w.ahead).collect::<Vec<_>>(), [Some(0), Some(1)]);
    assert!(matches!(one.release(held.id), End::Freed));
    let second = two.granted(second_claim.id);
    let lease = second.lease.unwrap();
    assert!(lease.confirm && lease.ttl == Duration::from_secs(2), "a claim lease: {lease:?}");
    assert!(
        lease.since.is_some_and(|since| since <= two.now()),
        "counted from the anchor, not from now"
    );
    assert!(number(&second) > number(&first));
    assert!(matches!(
        two.renew(second_claim.id),
        Renewal::Extended { ttl, .. } if ttl == Duration::from_secs(30)
    ));
    assert!(matches!(two.release(second_claim.id), End::Freed));
    assert!(number(&three.granted(third_claim.id)) > number(&second));
}

#[test]
fn everybody_in_a_long_line_is_shown() {
    const WAITERS: u32 = 700;
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    one.take("a", Mode::Exclusive);
    for _ in 0..WAITERS {
        two.queue("a", Mode::Exclusive);
    }
    let seen = one.look(Kind::Lock, "a");
    assert_eq!(
        seen.waiters.iter().map(|w| w.ahead).collect::<Vec<_>>(),
        (0..WAITERS).map(Some).collect::<Vec<_>>()
    );
}

#[test]
fn a_line_is_full_of_places_and_not_of_what_else_is_written_there() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    one.take("a", Mode::Exclusive);
    two.queue("a", Mode::Exclusive);
    let add = |count: &str, member: &str, score: &str| {
        let script = "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], ARGV[3], \
                      string.format(ARGV[2], i)) end";
        server.command(&["EVAL", script, "1", "lockkeeper:{lock:a}:line", count, member, score]);
    };
    add("32768", "a%032x", "9000000000000000");
    two.queue("a", Mode::Exclusive);
    add("16382", "2 %032x 0 x 1 30000 c w 1 0 -", "5");
    let refused = two.attempt(&two.exclusive("a"));
    assert!(
        matches!(&refused, Attempt::Failed(error) if error.kind() == ErrorKind::Refused),
        "{refused:?}"
    );
}

/// The commands that a hand-off costs the server, where so many wait.
fn cost_of_a_hand_off(waiters: usize) -> BTreeMap<String, u64> {
    let (mut cost, mut rounds) = (None, 0);
    // On a machine with much to do the first may be gone when the last one comes.
    until("the first in line comes first", || {
        cost = cost_where_none_is_gone(waiters);
        rounds += 1;
        eprintln!("round {rounds}, {waiters} waiters: {cost:?}");
        cost.is_some()
    });
    cost.unwrap()
}

fn cost_where_none_is_gone(waiters: usize) -> Option<BTreeMap<String, u64>> {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    // From here on the server knows the script.
    let (known, _) = one.take("b", Mode::Exclusive);
    one.release(known.id);
    let (held, _) = one.take("a", Mode::Exclusive);
    two.by_word_alone();
    let waiting = two.queue_all("a", waiters);
    server.command(&["CONFIG", "RESETSTAT"]);
    one.release(held.id);
    let next = two.event("a grant", |event| match event {
        Event::Granted { claim, .. } => Some(*claim),
        _ => None,
    });
    let mut counts = server.command_counts();
    counts.retain(|command, _| !matches!(command.as_str(), "config|resetstat" | "config" | "info"));
    (next == waiting[0]).then_some(counts)
}

#[test]
fn r10_a_hand_off_in_a_long_line_costs_the_server_no_more_than_some_questions() {
    // Those that gave no sign of life for 750 ms are asked for one, and on a busy machine that is
    // less than a thousand take to join; but a script looks at 256 at most.
    let long = cost_of_a_hand_off(1000);
    assert!(long.values().all(|count| *count <= 2 + 256), "{long:?}");
    assert!(long.values().sum::<u64>() <= 2 * (2 + 256) + 20, "{long:?}");
}

#[test]
fn timed_r10_a_hand_off_in_a_long_line_costs_the_server_what_it_costs_in_a_short_one() {
    let (short, long) = (cost_of_a_hand_off(2), cost_of_a_hand_off(1000));
    assert_eq!(short, long);
    assert_eq!(short.get("publish"), Some(&2), "{short:?}");
    assert!(short.values().sum::<u64>() <= 16, "{short:?}");
}

#[test]
fn the_first_in_line_asks_by_itself_when_the_lease_before_it_runs_out() {
    let server = RedisServer::start();
    // Again where the lease was over before the other one asked.
    let mut rounds = 0..;
    until("it waits for the end of a lease", || {
        let name = format!("a{}", rounds.next().expect("there is one"));
        let (dead, two) = (Process::of(&server), Process::of(&server));
        let short = Claim { ttl: Duration::from_secs(1), ..dead.exclusive(&name) };
        let began = dead.now();
        let held = dead.attempt(&short);
        let waiting = two.exclusive(&name);
        let attempt = two.attempt(&waiting);
        let (Attempt::Granted(_), Attempt::InLine(place)) = (&held, &attempt) else {
            let over = two.now() >= began.plus(short.ttl);
            assert!(over, "it is held, and was granted: {held:?}, then {attempt:?}");
            return false;
        };
        let end = two.now().plus(Duration::from_millis(1_100));
        assert!(place.ask_at.is_some_and(|at| at <= end), "T is the lease, not a poll: {place:?}");
        dead.die();
        two.granted(waiting.id);
        true
    });
}

#[test]
fn a_place_that_is_withdrawn_is_gone_and_a_grant_that_crosses_is_given_back() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    let gone = two.queue("a", Mode::Exclusive);
    let next = three.queue("a", Mode::Exclusive);
    assert!(matches!(two.withdraw(gone.id), End::Freed));
    assert!(matches!(two.withdraw(gone.id), End::NotOurs));
    let crossing = two.queue("a", Mode::Exclusive);
    one.release(held.id);
    three.granted(next.id);
    three.release(next.id);
    // Granted by now, whether we have heard of it or not.
    assert!(matches!(two.withdraw(crossing.id), End::Freed));
    let (free, _) = one.take("a", Mode::Exclusive);
    one.release(free.id);
    assert_eq!(
        server.command(&["EXISTS", "lockkeeper:{lock:a}", "lockkeeper:{lock:a}:line"]),
        ["0"]
    );
}

#[test]
fn r9_a_release_requeues_in_the_same_message_behind_the_others() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    let theirs = two.queue("a", Mode::Exclusive);
    let again = one.exclusive("a");
    server.command(&["CONFIG", "RESETSTAT"]);
    let released = one.release_again(held.id, &again);
    assert!(matches!(released.ends[..], [End::Freed]));
    assert!(matches!(released.again, Some(Attempt::InLine(_))), "{:?}", released.again);
    two.granted(theirs.id);
    let counts = server.command_counts();
    assert_eq!(
        counts.get("evalsha").unwrap_or(&0) + counts.get("eval").unwrap_or(&0),
        1,
        "{counts:?}"
    );
    two.release(theirs.id);
    one.granted(again.id);
    // Nobody else stands there: the same message gives it back at once.
    let third = one.exclusive("a");
    let released = one.release_again(again.id, &third);
    assert!(matches!(released.again, Some(Attempt::Granted(_))), "{:?}", released.again);
}

#[test]
fn words_of_those_who_left_are_cleared_away_also_while_somebody_waits() {
    let server = RedisServer::start();
    let mut short = super::support::options(server.port());
    short.request_timeout = Duration::from_secs(2);
    let (one, two) = (Process::with(short), Process::of(&server));
    let leave = |name: &str, times: usize| {
        for _ in 0..times {
            let claim = one.exclusive(name);
            // Withdrawn before its answer is there.
            let asked = one.engine.attempt(&claim, crate::engine::Line::Join);
            one.wait(one.engine.withdraw(claim.id));
            drop(one.wait(asked));
        }
    };
    let words = |name: &str| {
        let line = format!("lockkeeper:{{lock:{name}}}:line");
        let members = server.command(&["ZRANGE", &line, "0", "-1"]);
        members.iter().filter(|member| member.starts_with('w')).count()
    };
    // Again where the first of them was over before the last one was there.
    let (mut rounds, mut name) = (0.., String::new());
    until("all five are there", || {
        name = format!("a{}", rounds.next().expect("there is one"));
        two.take(&name, Mode::Exclusive);
        two.queue(&name, Mode::Exclusive);
        leave(&name, 5);
        words(&name) == 5
    });
    std::thread::sleep(Duration::from_secs(3));
    leave(&name, 1);
    assert_eq!(words(&name), 1, "the others are over");
}

#[test]
fn what_stands_in_for_a_hold_that_was_over_is_asked_for_all_the_same() {
    let server = RedisServer::start();
    let one = Process::of(&server);
    let (gone, next) = (one.exclusive("a"), one.exclusive("a"));
    let released = one.release_again(gone.id, &next);
    assert!(matches!(released.ends[..], [End::NotOurs]), "{:?}", released.ends);
    assert!(matches!(released.again, Some(Attempt::Granted(_))), "{:?}", released.again);
}
