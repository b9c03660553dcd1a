//! What dead waiters cost those behind them (R11), where the script's own way is not the plain one:
//! that is in `long_dead_waiters`.

use std::time::{Duration, Instant};

use super::server::RedisServer;
use super::support::{Process, granted, until};
use crate::words::claim::Mode;

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
        dead.queue_all("a", 90);
        dead.die();
        until_connected(&server, 2);
        let before = Instant::now();
        one.release(held.id);
        std::thread::sleep(joins_after.saturating_sub(before.elapsed()));
        let claim = living.queue("a", Mode::Exclusive);
        living.granted(claim.id);
        let waited = before.elapsed();
        // One claim lease each would be 180 s.
        assert!(waited >= Duration::from_millis(1990), "joins after {joins_after:?}: {waited:?}");
    }
}

#[test]
fn r11_more_dead_waiters_than_one_script_asks_cost_half_a_second_more_and_not_a_claim_lease_each() {
    let server = RedisServer::start();
    let (one, dead, living) = (Process::of(&server), Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    dead.queue_all("a", 1_200);
    dead.die();
    until_connected(&server, 2);
    let before = Instant::now();
    one.release(held.id);
    let claim = living.queue("a", Mode::Exclusive);
    living.granted(claim.id);
    let waited = before.elapsed();
    // Five questions. One claim lease for each place would be 2,400 s.
    assert!(waited >= Duration::from_millis(3990), "{waited:?}");
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
    for _ in 0..500 {
        short(&dead);
    }
    dead.die();
    until_connected(&server, 2);
    let before = Instant::now();
    one.release(held.id);
    let claim = short(&living);
    living.granted(claim.id);
    let waited = before.elapsed();
    // A third of a second, and half of one for each question. One claim lease each would be 160 s.
    assert!(waited >= Duration::from_millis(820), "{waited:?}");
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
    for _ in 0..150 {
        dead.queue_claim(&with_ttl(&dead, 3));
    }
    let claim = with_ttl(&living, 3);
    living.queue_claim(&claim);
    dead.die();
    living.granted(claim.id);
    let waited = before.elapsed();
    // Its lease, the claim lease of 1 s, and the time to answer. One claim lease each would be
    // 150 s.
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
}
