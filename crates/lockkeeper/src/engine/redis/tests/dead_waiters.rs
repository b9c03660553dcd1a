//! What dead waiters cost those behind them (R11), where the script's own way is not the plain one:
//! that is in `long_dead_waiters`, and in the models.

use std::time::{Duration, Instant};

use super::server::RedisServer;
use super::support::{Process, granted, until};
use crate::engine::Attempt;
use crate::words::claim::{Claim, Mode};

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

/// Waits until a claim is granted that was asked for.
fn comes(process: &Process, claim: &Claim, asked: Attempt) {
    match asked {
        Attempt::InLine(_) => drop(process.granted(claim.id)),
        asked => drop(granted(asked)),
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
    let claim = living.exclusive("a");
    comes(&living, &claim, living.attempt(&claim));
    let waited = before.elapsed();
    // Five questions. One claim lease for each place would be 2,400 s.
    assert!(waited >= Duration::from_millis(3990), "{waited:?}");
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
    // One of them has the other permit.
    for _ in 0..151 {
        let asked = dead.attempt(&with_ttl(&dead, 3));
        assert!(matches!(asked, Attempt::Granted(_) | Attempt::InLine(_)), "{asked:?}");
    }
    let claim = with_ttl(&living, 3);
    let asked = living.attempt(&claim);
    dead.die();
    comes(&living, &claim, asked);
    let waited = before.elapsed();
    // Its lease, the claim lease of 1 s, and the time to answer. One claim lease each would be
    // 150 s.
    assert!(waited >= Duration::from_secs(3), "{waited:?}");
}
