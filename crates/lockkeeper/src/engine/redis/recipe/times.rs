//! When somebody in line asks again: the server does nothing when a lease ends (R10).

use std::time::Duration;

use crate::words::clock::Ticks;

/// How long a granted place has to be confirmed, at most (R11).
pub(in crate::engine::redis) const CLAIM_LEASE: Duration = Duration::from_secs(2);
/// How soon somebody in line asks again when nothing says when.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// In what time to look at a lease of which so much is left.
pub(super) fn look_in(rest: Duration) -> Duration {
    if rest.is_zero() { ASK_AGAIN } else { rest + Duration::from_millis(1) }
}

/// The first in line asks when the lease before it ends, whoever is behind it one claim lease
/// later: those before it may be dead. `turn` is 0 for the first, and `None` for a place that
/// others look after.
pub(super) fn ask_at(
    now: Ticks,
    turn: Option<u32>,
    rest: Duration,
    ttl: Duration,
) -> Option<Ticks> {
    let lease = CLAIM_LEASE.min(ttl / 3);
    turn.map(|turn| now.plus(look_in(rest) + lease * turn.min(1)))
}
