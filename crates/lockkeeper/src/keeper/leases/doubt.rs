//! Leases in doubt: the time of day was set forward, and the engine is asked what that means.

use std::sync::Arc;
use std::time::Duration;

use super::Book;
use crate::engine::{Lease, Renewal};
use crate::keeper::Keeper;
use crate::protocol::lease::{bears, deadline};
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, LeaseId};

/// How long a request may take where the engine does not say it.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

impl Keeper {
    /// The time of day was set forward: every lease is in doubt that was not proven since.
    pub(in crate::keeper) fn clock_stepped(self: &Arc<Self>) {
        let (now, steps) = (self.clock.now(), self.clock.steps());
        let within = self.facts.request_timeout.unwrap_or(REQUEST_TIMEOUT);
        let doubts = {
            let mut book = self.book();
            book.machine.stepped(now, steps, within);
            book.machine.doubts()
        };
        if doubts > 0 {
            tracing::warn!(
                engine = self.facts.engine,
                leases = doubts,
                "the time of day was set forward: what is held is in doubt until it is renewed"
            );
            self.look_after_leases(now);
        }
    }

    /// What is proven of a lease is known to its guards; answers whether it is in doubt.
    pub(super) fn prove(&self, book: &Book, lease: LeaseId) -> bool {
        let (Some(kept), Some((proof, bears))) = (book.kept.get(&lease), book.machine.proof(lease))
        else {
            return false;
        };
        kept.cell.prove(self.clock.stepped_at(proof), bears);
        kept.cell.doubt(self.clock.stepped()).is_some()
    }

    /// Asks how fixed holds stand that are in doubt. Each has a lease of its own.
    pub(super) fn prove_fixed(self: &Arc<Self>, batch: &[LeaseId]) {
        let mut claims: Vec<ClaimId> = batch.iter().map(|lease| ClaimId(lease.0)).collect();
        let part = |claim: &ClaimId| self.engine.part(*claim);
        claims.sort_by_cached_key(part);
        for part in claims.chunk_by(|a, b| part(a) == part(b)) {
            let sent = self.clock.now();
            let answer = self.engine.recheck(part);
            let answer = answer.map(|all| all.into_iter().map(Renewal::from).collect());
            self.await_renewals(sent, part.iter().map(|claim| (*claim).into()).collect(), answer);
        }
    }

    /// Whether the lease of a claim's grant that counts from `since` is over for us already, or may
    /// be: the time of day was set forward since. A session's lease is put in doubt then.
    pub(in crate::keeper) fn is_over(&self, claim: ClaimId, lease: &Lease, since: Ticks) -> bool {
        let drift = self.settings.drift;
        deadline(since, lease.ttl, drift) <= self.clock.now()
            || lease.id == LeaseId::from(claim)
                && self.clock.stepped_since(since) > bears(lease.ttl, drift)
    }
}
