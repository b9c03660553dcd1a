//! When somebody in line asks again by itself: the server does nothing when a lease ends (R10).

use std::time::Duration;

use super::{Entry, Phase, Recipe};
use crate::clock::Ticks;
use crate::id::ClaimId;

/// How long a granted place has to be confirmed, at most (R11).
pub(in crate::engine::redis) const CLAIM_LEASE: Duration = Duration::from_secs(2);
/// How soon somebody in line asks again when nothing says when.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// In what time to look at a lease of which so much is left.
pub(super) fn look_in(rest: Duration) -> Duration {
    if rest.is_zero() { ASK_AGAIN } else { rest + Duration::from_millis(1) }
}

impl Recipe {
    /// The next instant at which somebody has to ask again.
    pub(in crate::engine::redis) fn next_ask(&self) -> Option<Ticks> {
        self.asks.first().map(|(at, _)| *at)
    }

    /// Who has to ask again now.
    pub(in crate::engine::redis) fn due(&mut self, now: Ticks) -> Vec<ClaimId> {
        let mut due = Vec::new();
        while let Some((at, id)) = self.asks.first().copied().filter(|(at, _)| *at <= now) {
            self.asks.remove(&(at, id));
            if let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) {
                asking.ask_at = None;
                due.push(id);
            }
        }
        due
    }

    /// Asks again later, whatever became of this time.
    pub(in crate::engine::redis) fn ask_later(&mut self, now: Ticks, id: ClaimId, wait: Duration) {
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return };
        if asking.leaving || asking.phase != Phase::InLine {
            return;
        }
        let at = now.plus(wait);
        self.asks.remove(&(asking.ask_at.unwrap_or_default(), id));
        asking.ask_at = Some(at);
        self.asks.insert((at, id));
    }

    /// The first in line asks when the lease before it ends, whoever is behind it one claim lease
    /// later: those before it may be dead.
    pub(super) fn ask_when(&mut self, now: Ticks, id: ClaimId, turn: Option<u32>, rest: Duration) {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else { return };
        let told = asking.told_at.map(|at| at.since(now));
        let lease = CLAIM_LEASE.min(asking.place.ttl / 3);
        let wait = turn.map(|turn| look_in(rest) + lease * turn.min(1));
        if let Some(wait) = wait.into_iter().chain(told).min() {
            self.ask_later(now, id, wait);
        }
    }
}
