//! A permit of kazoo's semaphore: a node without a number. Whoever has the gate counts those that
//! are there, and creates one as soon as there are too few, in one transaction with the check that
//! the gate is still its own.

use super::words::{Action, Listing, Say};
use super::{Contender, Phase, Want};

impl Contender {
    /// The directory was listed: is a permit free?
    pub(super) fn counted(&mut self, listing: &Listing, limit: u16, out: &mut Vec<Action>) {
        let stored = listing.limit.unwrap_or(limit);
        // Once it was agreed on, another limit is a resize.
        if stored != limit && !self.agreed {
            return self.over(Say::OtherLimit(stored), out);
        }
        self.agreed = true;
        if listing.children.len() < usize::from(stored) {
            out.push(Action::CreateLease);
            self.phase = Phase::Creating;
            return;
        }
        if self.only_try {
            return self.over(Say::Busy, out);
        }
        self.phase =
            Phase::Full(listing.children.first().map(|c| c.name.clone()).unwrap_or_default());
    }

    /// How many permits, for those that are counted and have no line.
    pub(super) fn counts(&self) -> Option<u16> {
        if let Want::Lease { limit } = self.want { Some(limit) } else { None }
    }
}
