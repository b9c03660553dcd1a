//! Keeping a hold, giving it back, leaving a line.

use std::time::Duration;

use super::super::client::node::Node;
use super::super::client::texts::Texts;
use super::super::name::LAST;
use super::super::record;
use super::super::script::{Call, Which};
use super::{Asking, Entry, Held, Recipe};
use crate::engine::Line;
use crate::engine::words::millis;
use crate::words::claim::Claim;
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::name::Kind;

impl Recipe {
    /// Leaves the line, or gives back. `None`: there is nothing of it.
    pub(in crate::engine::redis) fn withdraw(&mut self, id: ClaimId) -> Option<Call> {
        let keys = self.keys_of(id)?;
        match self.claims.get_mut(&id)? {
            Entry::Held(held) => {
                let mut arguments = Texts::from([record::begins(id), held.bare()]);
                if held.refuse_us > 0 {
                    arguments.push_number(held.refuse_us);
                }
                Some(Call { script: Which::Release, keys, arguments })
            }
            Entry::Asking(asking) => {
                asking.leaving = true;
                let mut arguments = Texts::from([asking.place.text()]);
                // A request that may still be on its way must find that its caller has left.
                arguments.push_number(asking.refuse_us());
                Some(Call { script: Which::Withdraw, keys, arguments })
            }
        }
    }

    /// The release of a hold, whose name is at `node`; `again` stands in line in the same message.
    /// `None`: there is nothing of it.
    pub(in crate::engine::redis) fn release(
        &mut self,
        now: Ticks,
        node: Node,
        id: HoldId,
        again: Option<&Claim>,
    ) -> Option<Call> {
        let server_us = self.server_us(now, node);
        let mut known = None;
        if let Entry::Held(held) = self.claims.get_mut(&id)? {
            if held.refuse_us <= server_us {
                held.refuse_us = 0;
            }
            // Where somebody is known to be in the way, the short one is not looked for.
            let bare = if self.busy.is(&held.record) { String::new() } else { held.bare() };
            known = Some((held.refuse_us, bare));
        }
        let (Some(claim), Some((refuse_us, bare))) = (again, known) else {
            return self.withdraw(id);
        };
        let keys = self.keys_of(id)?;
        let mut arguments = Texts::from([record::begins(id), bare]);
        arguments.push_number(refuse_us);
        arguments.append(&self.ask_beside(now, node, claim, Line::Join).arguments);
        Some(Call { script: Which::Release, keys, arguments })
    }

    /// Whether the release of a hold is all but sure to go the short way: it was free when it was
    /// asked for, and nobody is known to have come since. Else it would be asked for twice.
    pub(in crate::engine::redis) fn goes_short(&self, id: HoldId) -> bool {
        match self.claims.get(&id) {
            Some(Entry::Held(held)) => held.free && !self.busy.is(&held.record),
            _ => false,
        }
    }

    /// Adds the keys and arguments that renew one lease; false when there is no such hold.
    pub(in crate::engine::redis) fn renewal(&self, lease: LeaseId, call: &mut Call) -> bool {
        let id = ClaimId(lease.0);
        let Some(Entry::Held(held)) = self.claims.get(&id) else { return false };
        call.keys.push(&*held.record);
        call.keys.push_joined(&[&held.record, LAST]);
        call.arguments.push(id.digits());
        call.arguments.push_number(millis(held.ttl));
        true
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
        if let Some(Entry::Held(Held { conversions: Some(conversions), .. })) =
            self.claims.remove(&id)
            && let Some(conversion) = conversions.granted
        {
            self.forget(conversion);
        }
    }
}

impl Held {
    /// What `last` says while nobody is in the way of its release.
    fn bare(&self) -> String {
        match self.kind {
            // Where a request may be on its way, or a delay may go on, the server looks closer.
            _ if self.refuse_us > 0 || self.delayed => String::new(),
            Kind::Semaphore => record::bare_limit(self.limit),
            _ => self.number.to_string(),
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
