//! Waiting: order, direct grants, dead places, places that come back.

use std::time::{Duration, Instant};

use super::proxy::Proxy;
use super::server::RedisServer;
use super::support::{Process, granted, number, options, until};
use crate::claim::Mode;
use crate::engine::{Attempt, End, Renewal, Standing};
use crate::error::ErrorKind;
use crate::id::ClaimId;
use crate::name::Kind;

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
fn d10_a_dead_waiter_costs_one_claim_lease() {
    let server = RedisServer::start();
    let (one, dead, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    dead.queue("a", Mode::Exclusive);
    let claim = three.queue("a", Mode::Exclusive);
    dead.die();
    let before = Instant::now();
    one.release(held.id);
    // The grant to the dead one lasts its claim lease; the next one was told, and asks by itself
    // when it is over.
    three.granted(claim.id);
    let waited = before.elapsed();
    assert!(
        waited >= Duration::from_millis(1990) && waited < Duration::from_millis(4500),
        "{waited:?}"
    );
}

#[test]
fn r11_dead_waiters_in_a_row_cost_one_claim_lease_together() {
    let server = RedisServer::start();
    let (one, living) = (Process::of(&server), Process::of(&server));
    let dead: Vec<_> = (0..6).map(|_| Process::of(&server)).collect();
    let (held, _) = one.take("a", Mode::Exclusive);
    for dead in &dead {
        dead.queue("a", Mode::Exclusive);
    }
    let claim = living.queue("a", Mode::Exclusive);
    dead.into_iter().for_each(Process::die);
    until_connected(&server, 2);
    let before = Instant::now();
    one.release(held.id);
    living.granted(claim.id);
    let waited = before.elapsed();
    assert!(
        waited >= Duration::from_millis(1990) && waited < Duration::from_millis(3500),
        "{waited:?}"
    );
}

/// How many processes listen.
fn until_connected(server: &RedisServer, count: usize) {
    let connected = || {
        server
            .command(&["CLIENT", "LIST"])
            .iter()
            .flat_map(|all| all.lines())
            .filter(|c| c.contains("sub=1"))
            .count()
    };
    until("the connections of the dead are gone", || connected() == count);
}

#[test]
fn r11_who_joins_while_a_dead_one_has_its_claim_lease_comes_when_that_is_over() {
    for joins_after in [500, 1200].map(Duration::from_millis) {
        let server = RedisServer::start();
        let (one, dead, living) =
            (Process::of(&server), Process::of(&server), Process::of(&server));
        let (held, _) = one.take("a", Mode::Exclusive);
        for _ in 0..3 {
            dead.queue("a", Mode::Exclusive);
        }
        dead.die();
        until_connected(&server, 2);
        let before = Instant::now();
        one.release(held.id);
        std::thread::sleep(joins_after.saturating_sub(before.elapsed()));
        let claim = living.queue("a", Mode::Exclusive);
        living.granted(claim.id);
        let waited = before.elapsed();
        assert!(
            waited >= Duration::from_millis(1990) && waited < Duration::from_secs(3),
            "joins after {joins_after:?}: {waited:?}"
        );
    }
}

#[test]
fn r11_more_dead_waiters_than_one_script_asks_cost_half_a_second_more_and_not_a_claim_lease_each() {
    let server = RedisServer::start();
    let (one, dead, living) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    for _ in 0..300 {
        dead.queue("a", Mode::Exclusive);
    }
    dead.die();
    until_connected(&server, 2);
    let before = Instant::now();
    one.release(held.id);
    let claim = living.queue("a", Mode::Exclusive);
    living.granted(claim.id);
    let waited = before.elapsed();
    assert!(
        waited >= Duration::from_millis(2490) && waited < Duration::from_millis(3500),
        "{waited:?}"
    );
}

#[test]
fn r11_dead_waiters_with_leases_of_a_second_cost_one_claim_lease_together() {
    let server = RedisServer::start();
    let (one, dead, living) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let short = |process: &Process| {
        let mut claim = process.exclusive("a");
        claim.ttl = Duration::from_secs(1);
        process.queue_claim(&claim);
        claim
    };
    let (held, _) = one.take("a", Mode::Exclusive);
    for _ in 0..4 {
        short(&dead);
    }
    dead.die();
    until_connected(&server, 2);
    let before = Instant::now();
    one.release(held.id);
    let claim = short(&living);
    living.granted(claim.id);
    let waited = before.elapsed();
    assert!(
        waited >= Duration::from_millis(820) && waited < Duration::from_millis(1200),
        "{waited:?}"
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
    add("16382", "1 %032x x 1 30000 0 1 c - w", "5");
    let refused = two.attempt(&two.exclusive("a"));
    assert!(
        matches!(&refused, Attempt::Failed(error) if error.kind() == ErrorKind::Refused),
        "{refused:?}"
    );
}

#[test]
fn r11_a_dead_holder_of_permits_and_dead_waiters_cost_one_claim_lease_together() {
    let server = RedisServer::start();
    let (one, dead, living) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let with_ttl = |process: &Process, seconds| {
        let mut claim = process.claim("gpu", Mode::Permits { count: 1, limit: 2 });
        claim.ttl = Duration::from_secs(seconds);
        claim
    };
    granted(one.attempt(&with_ttl(&one, 30)));
    let before = Instant::now();
    granted(dead.attempt(&with_ttl(&dead, 3)));
    for _ in 0..3 {
        dead.queue_claim(&with_ttl(&dead, 3));
    }
    let claim = with_ttl(&living, 3);
    living.queue_claim(&claim);
    dead.die();
    living.granted(claim.id);
    let waited = before.elapsed();
    // Its lease, the claim lease of 1 s, and the time to answer.
    assert!(waited >= Duration::from_secs(3) && waited < Duration::from_secs(5), "{waited:?}");
}

/// The commands that a hand-off costs the server, where so many wait.
fn cost_of_a_hand_off(waiters: usize) -> std::collections::BTreeMap<String, u64> {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    // From here on the server knows the script.
    let (known, _) = one.take("b", Mode::Exclusive);
    one.release(known.id);
    let (held, _) = one.take("a", Mode::Exclusive);
    let waiting: Vec<_> = (0..waiters).map(|_| two.queue("a", Mode::Exclusive)).collect();
    server.command(&["CONFIG", "RESETSTAT"]);
    one.release(held.id);
    two.granted(waiting[0].id);
    let mut counts = server.command_counts();
    counts.retain(|command, _| !matches!(command.as_str(), "config|resetstat" | "config" | "info"));
    counts
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
    assert!(short.values().sum::<u64>() <= 15, "{short:?}");
}

#[test]
fn r11_who_did_not_answer_in_time_keeps_its_place_and_comes_before_those_behind_it() {
    let server = RedisServer::start();
    let (one, dead, living, last) =
        (Process::of(&server), Process::of(&server), Process::of(&server), Process::of(&server));
    let proxy = Proxy::to(server.port());
    let slow = Process::with(options(proxy.port()));
    let (held, _) = one.take("a", Mode::Exclusive);
    dead.queue("a", Mode::Exclusive);
    let slow_claim = slow.queue("a", Mode::Exclusive);
    let living_claim = living.queue("a", Mode::Exclusive);
    let last_claim = last.queue("a", Mode::Exclusive);
    dead.die();
    proxy.refuse(true);
    proxy.cut();
    slow.link(false);
    one.release(held.id);
    living.granted(living_claim.id);
    proxy.refuse(false);
    slow.link(true);
    // Its sign of life.
    let answers = slow.wait(slow.engine.recheck(&[slow_claim.id]));
    assert!(
        matches!(answers[..], [Standing::InLine(ref place)] if place.ahead == Some(0)),
        "{answers:?}"
    );
    living.release(living_claim.id);
    let granted = slow.granted(slow_claim.id);
    slow.release(slow_claim.id);
    assert!(number(&last.granted(last_claim.id)) > number(&granted));
}

#[test]
fn the_first_in_line_asks_by_itself_when_the_lease_before_it_runs_out() {
    let server = RedisServer::start();
    let (dead, two) = (Process::of(&server), Process::of(&server));
    let mut short = dead.exclusive("a");
    short.ttl = Duration::from_secs(1);
    granted(dead.attempt(&short));
    let waiting = two.queue("a", Mode::Exclusive);
    dead.die();
    let before = Instant::now();
    two.granted(waiting.id);
    let waited = before.elapsed();
    assert!(waited < Duration::from_secs(4), "T is the lease, not a poll: {waited:?}");
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
        1 + counts.get("eval").unwrap_or(&0),
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
fn places_that_were_wiped_out_stand_again_after_the_next_check() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    one.take("a", Mode::Exclusive);
    let waiting = two.queue("a", Mode::Exclusive);
    server.command(&["FLUSHALL"]);
    let answers = two.wait(two.engine.recheck(&[waiting.id]));
    assert!(matches!(answers[..], [Standing::Held(_)]), "{answers:?}");
    assert!(matches!(two.renew(waiting.id), Renewal::Extended { .. }));
}

#[test]
fn a_check_of_many_places_is_one_message_and_their_sign_of_life() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let mut waiting = Vec::new();
    for n in 0..50 {
        let name = format!("name-{n}");
        one.take(&name, Mode::Exclusive);
        waiting.push(two.queue(&name, Mode::Exclusive).id);
    }
    let lives = |n: usize| {
        server.command(&[
            "ZSCORE",
            &format!("lockkeeper:{{lock:name-{n}}}:line"),
            &format!("s{}", waiting[n]),
        ])[0]
            .parse::<f64>()
            .unwrap()
    };
    let before = lives(49);
    let answers = two.wait(two.engine.recheck(&waiting));
    assert!(
        answers.iter().all(|a| matches!(a, Standing::InLine(place) if place.ahead == Some(0))),
        "{answers:?}"
    );
    assert!(lives(49) > before);
}

#[test]
fn a_check_of_more_places_than_one_message_carries_asks_about_each() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    one.take("a", Mode::Exclusive);
    let waiting: Vec<_> = (0..1100).map(|_| two.queue("a", Mode::Exclusive).id).collect();
    let answers = two.wait(two.engine.recheck(&waiting));
    assert_eq!(answers.len(), waiting.len());
    for (n, answer) in answers.iter().enumerate() {
        assert!(
            matches!(answer, Standing::InLine(place) if place.ahead == Some(n as u32)),
            "place {n}: {answer:?}"
        );
    }
}

#[test]
fn an_upgradable_hold_beside_readers_stays_the_only_one_when_it_is_made_upgradable_again() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (reader, _) = two.take("a", Mode::Shared);
    let (up, first) = one.take("a", Mode::Upgradable);
    let same = granted(one.wait(one.engine.convert(up.id, &one.claim("a", Mode::Upgradable))));
    assert!(number(&same) > number(&first));
    let another = three.attempt_try(&three.claim("a", Mode::Upgradable));
    assert!(
        matches!(another, Attempt::Busy(_)),
        "two that wait for each other's upgrade never end: {another:?}"
    );
    // A reader becomes nothing more.
    let refused = two.wait(two.engine.convert(reader.id, &two.claim("a", Mode::Upgradable)));
    assert!(
        matches!(&refused, Attempt::Failed(error) if error.kind() == ErrorKind::WouldDeadlock),
        "{refused:?}"
    );
    // As a reader it leaves room for another one.
    granted(one.wait(one.engine.convert(up.id, &one.claim("a", Mode::Shared))));
    granted(three.attempt_try(&three.claim("a", Mode::Upgradable)));
}

#[test]
fn an_upgrade_waits_in_front_of_the_line_for_the_readers_and_keeps_its_hold() {
    let server = RedisServer::start();
    let (one, two, three) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (up, first) = one.take("a", Mode::Upgradable);
    let (reader, second) = two.take("a", Mode::Shared);
    assert!(number(&second) > number(&first));
    let writer = three.queue("a", Mode::Exclusive);
    assert!(
        matches!(three.attempt_try(&three.claim("a", Mode::Shared)), Attempt::Busy(_)),
        "nobody overtakes the writer"
    );
    let conversion = one.exclusive("a");
    let answer = one.wait(one.engine.convert(up.id, &conversion));
    assert!(matches!(answer, Attempt::InLine(ref place) if place.ahead == Some(0)), "{answer:?}");
    two.release(reader.id);
    let upgraded = one.granted(conversion.id);
    assert!(number(&upgraded) > number(&second));
    assert_eq!(upgraded.lease.map(|l| l.id), Some(up.id.into()));
    assert!(matches!(one.renew(up.id), Renewal::Extended { .. }));
    // Back to reading: a new number, and the writer still waits.
    let back = one.claim("a", Mode::Shared);
    let down = granted(one.wait(one.engine.convert(up.id, &back)));
    assert!(number(&down) > number(&upgraded));
    one.release(up.id);
    assert!(number(&three.granted(writer.id)) > number(&down));
}

#[test]
fn an_upgrade_that_is_withdrawn_after_it_was_granted_leaves_the_hold_as_it_was() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (up, _) = one.take("a", Mode::Upgradable);
    let conversion = one.exclusive("a");
    granted(one.wait(one.engine.convert(up.id, &conversion)));
    assert!(matches!(two.attempt_try(&two.claim("a", Mode::Shared)), Attempt::Busy(_)));
    assert!(matches!(one.withdraw(conversion.id), End::Freed));
    two.take("a", Mode::Shared);
    assert!(matches!(one.renew(up.id), Renewal::Extended { .. }));
}

#[test]
fn words_of_those_who_left_are_cleared_away_also_while_somebody_waits() {
    let server = RedisServer::start();
    let mut short = super::support::options(server.port());
    short.request_timeout = Duration::from_secs(2);
    let (one, two) = (Process::with(short), Process::of(&server));
    two.take("a", Mode::Exclusive);
    two.queue("a", Mode::Exclusive);
    let leave = |times: usize| {
        for _ in 0..times {
            let claim = one.exclusive("a");
            // Withdrawn before its answer is there.
            let asked = one.engine.attempt(&claim, crate::engine::Line::Join);
            one.wait(one.engine.withdraw(claim.id));
            drop(one.wait(asked));
        }
    };
    let words = || {
        let members = server.command(&["ZRANGE", "lockkeeper:{lock:a}:line", "0", "-1"]);
        members.iter().filter(|member| member.starts_with('w')).count()
    };
    leave(5);
    assert_eq!(words(), 5);
    std::thread::sleep(Duration::from_secs(3));
    leave(1);
    assert_eq!(words(), 1, "the others are over");
}

#[test]
fn a_check_of_places_does_not_wait_for_a_server_that_is_away() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (Process::of(&server), Process::with(options(proxy.port())));
    let names: Vec<String> = (0..20).map(|n| format!("name-{n}")).collect();
    let places: Vec<ClaimId> = names
        .iter()
        .map(|name| {
            one.take(name, Mode::Exclusive);
            two.queue(name, Mode::Exclusive).id
        })
        .collect();
    proxy.refuse(true);
    proxy.cut();
    two.link(false);
    // One after the other would be 20 times the time of a request.
    let began = Instant::now();
    let answers = two.wait(two.engine.recheck(&places));
    assert!(answers.iter().all(|answer| matches!(answer, Standing::Unknown(_))), "{answers:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
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
