//! What is asked about holds, and how claims end.

use super::answers::number_of;
use super::{Claims, Entry, Held, Leaving, Renewing};
use crate::engine::Number;
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, LeaseId};

impl Claims {
    /// Leaves the line, or gives back. `None`: there is nothing of it.
    pub(in crate::engine) fn leave(&mut self, now: Ticks, id: ClaimId) -> Option<Leaving> {
        let server = self.server(now).unwrap_or(0);
        match self.claims.get_mut(&id)? {
            Entry::Held(held) => Some(Leaving::Held {
                kind: held.kind,
                name: held.name.clone(),
                delay: held.delay,
                refuse: if held.refuse > server { held.refuse } else { 0 },
                stated: held.stated,
            }),
            Entry::Asking(asking) => {
                asking.leaving = true;
                Some(Leaving::Asking {
                    kind: asking.asked.kind,
                    name: asking.name.clone(),
                    place: asking.asked.place.clone(),
                    refuse: asking.refuse(),
                })
            }
        }
    }

    /// What renews a lease; `None` when there is no such hold.
    pub(in crate::engine) fn renewal(&self, lease: LeaseId) -> Option<Renewing> {
        let held = match self.claims.get(&ClaimId(lease.0))? {
            Entry::Held(held) => held,
            Entry::Asking(asking) => asking.was.as_ref()?,
        };
        Some(Renewing {
            kind: held.kind,
            name: held.name.clone(),
            ttl: held.ttl,
            delay: held.delay,
            number: held.number,
        })
    }

    /// The number with which a claim holds; `None` when it does not.
    pub(in crate::engine) fn number(&self, id: ClaimId) -> Option<Number> {
        match self.claims.get(&id)? {
            Entry::Held(held) => Some(number_of(held.kind, held.number)),
            Entry::Asking(_) => None,
        }
    }

    /// A statement for a transaction of the holder's own is given out: from now on one may keep the
    /// lock from passing.
    pub(in crate::engine) fn give_out(&mut self, id: ClaimId) {
        if let Some(Entry::Held(held)) = self.claims.get_mut(&id) {
            held.stated = true;
        }
    }

    /// Whether a statement was given out for a hold.
    pub(in crate::engine) fn is_stated(&self, id: ClaimId) -> bool {
        matches!(self.claims.get(&id), Some(Entry::Held(held)) if held.stated)
    }

    /// A renewal was answered with this number. It is greater than the one that we know where the
    /// claim lost its hold meanwhile and a copy of its request got it again (R7).
    pub(in crate::engine) fn renewed(&mut self, id: ClaimId, number: u64) {
        let held = match self.claims.get_mut(&id) {
            Some(Entry::Held(held)) => Some(held),
            Some(Entry::Asking(asking)) => asking.was.as_mut(),
            None => None,
        };
        let Some(held) = held else { return };
        held.number = held.number.max(number);
    }

    /// A renewal says that its hold is gone. A question that is under way may get it anew.
    pub(in crate::engine) fn lost(&mut self, id: ClaimId) {
        match self.claims.get_mut(&id) {
            Some(Entry::Asking(asking)) => asking.was = None,
            _ => self.forget(id),
        }
    }

    /// It is over, and the server knows.
    pub(in crate::engine) fn forget(&mut self, id: ClaimId) {
        if let Some(Entry::Held(Held { converted: Some(conversion), .. })) = self.claims.remove(&id)
        {
            self.forget(conversion);
        }
    }
}
