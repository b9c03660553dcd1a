//! Keeping a hold, giving it back, leaving a line.

use std::time::Duration;

use super::super::keys::last;
use super::super::record::millis;
use super::super::script::{Call, Which};
use super::{Asking, Entry, Held, Recipe};
use crate::claim::Claim;
use crate::clock::Ticks;
use crate::engine::Line;
use crate::id::{ClaimId, HoldId, LeaseId};

impl Recipe {
    /// Leaves the line, or gives back. `None`: there is nothing of it.
    pub(in crate::engine::redis) fn withdraw(&mut self, id: ClaimId) -> Option<Call> {
        let keys = self.keys_of(id)?;
        match self.claims.get_mut(&id)? {
            Entry::Held(held) => {
                let arguments = vec![id.to_string(), held.refuse_us.to_string()];
                Some(Call { script: Which::Release, keys, arguments })
            }
            Entry::Asking(asking) => {
                asking.leaving = true;
                let mut arguments = asking.place.arguments();
                // A request that may still be on its way must find that its caller has left.
                arguments.push(asking.refuse_us().to_string());
                Some(Call { script: Which::Withdraw, keys, arguments })
            }
        }
    }

    /// The release of a hold; `again` stands in line in the same message. `None`: there is nothing
    /// of it.
    pub(in crate::engine::redis) fn release(
        &mut self,
        now: Ticks,
        id: HoldId,
        again: Option<&Claim>,
    ) -> Option<Call> {
        let server_us = self.server_us(now);
        if let Entry::Held(held) = self.claims.get_mut(&id)?
            && held.refuse_us <= server_us
        {
            held.refuse_us = 0;
        }
        let mut call = self.withdraw(id)?;
        if let Some(claim) = again
            && call.script == Which::Release
        {
            call.arguments.extend(self.ask(now, claim, Line::Join, None).arguments);
        }
        Some(call)
    }

    /// The keys and arguments that renew one lease; `None` when there is no such hold.
    pub(in crate::engine::redis) fn renewal(
        &self,
        lease: LeaseId,
    ) -> Option<([String; 2], [String; 2])> {
        let id = ClaimId(lease.0);
        match self.claims.get(&id)? {
            Entry::Held(held) => Some((
                [held.record.to_string(), last(&held.record)],
                [id.to_string(), millis(held.ttl).to_string()],
            )),
            Entry::Asking(_) => None,
        }
    }

    /// A renewal was answered with this number. It is greater than the one that we know where the
    /// claim lost its hold meanwhile and a copy of its request got it again (R7).
    pub(in crate::engine::redis) fn renewed(&mut self, lease: LeaseId, number: u64) {
        if let Some(Entry::Held(held)) = self.claims.get_mut(&ClaimId(lease.0)) {
            held.number = held.number.max(number);
        }
    }

    /// How long a hold's lease is.
    pub(in crate::engine::redis) fn ttl(&self, lease: LeaseId) -> Option<Duration> {
        match self.claims.get(&ClaimId(lease.0))? {
            Entry::Held(held) => Some(held.ttl),
            Entry::Asking(_) => None,
        }
    }

    /// It is over, and the server knows.
    pub(in crate::engine::redis) fn forget(&mut self, id: ClaimId) {
        if let Some(Entry::Held(Held { converted: Some(conversion), .. })) = self.claims.remove(&id)
        {
            self.forget(conversion);
        }
    }
}

impl Asking {
    /// Until when the server must refuse a request of this claim that is still on its way; 0 when
    /// none can be.
    pub(super) fn refuse_us(&self) -> u64 {
        if self.doubtful || self.in_flight > 0 { self.not_after_us + 1 } else { 0 }
    }
}
