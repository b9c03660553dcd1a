//! Liveness: when a holder dies, or a fault ends, somebody who waits gets the lock within the time promised.

use super::claims::{At, ClaimNo, Claims};

/// A lock that should go to somebody soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// Since the death of its holder, or the end of a fault.
    pub since: u64,
    /// Whose death, and where it was granted to it; `None` after a fault.
    pub dead: Option<(u32, At)>,
}

/// The faults under way, and when the last one ended.
#[derive(Default)]
pub(super) struct Faults {
    open: Vec<(u64, u64)>,
    last_end: u64,
}

impl Faults {
    /// A fault of this name hits this process.
    pub fn begin(&mut self, name: u64, target: u64) {
        self.open.push((name, target));
    }

    /// It is over; false when it never began.
    pub fn end(&mut self, name: u64, target: u64, now: u64) -> bool {
        let Some(found) = self.open.iter().position(|fault| *fault == (name, target)) else { return false };
        self.open.swap_remove(found);
        self.last_end = now;
        true
    }

    /// Whether nothing is wrong, so that promises about time hold.
    pub fn quiet(&self) -> bool {
        self.open.is_empty()
    }

    /// From when on the promised time counts.
    pub fn base(&self, owed: Owed, first_asked: u64) -> u64 {
        owed.since.max(self.last_end).max(first_asked)
    }
}

/// The acquires that wait for one lock.
#[derive(Default)]
pub(super) struct Bench(Vec<ClaimNo>);

impl Bench {
    /// One more waits.
    pub fn sit(&mut self, no: ClaimNo, claims: &mut Claims) {
        claims[no].bench = self.0.len() as u32;
        self.0.push(no);
    }

    /// It waits no longer.
    pub fn rise(&mut self, no: ClaimNo, claims: &mut Claims) {
        let seat = claims[no].bench as usize;
        if self.0.get(seat) == Some(&no) {
            self.0.swap_remove(seat);
            if let Some(moved) = self.0.get(seat) {
                claims[*moved].bench = seat as u32;
            }
        }
    }

    /// One of those who wait.
    pub fn first(&self) -> Option<ClaimNo> {
        self.0.first().copied()
    }

    /// When the first of those who wait was called.
    pub fn first_asked(&self, claims: &Claims) -> Option<u64> {
        self.0.iter().map(|no| claims[*no].asked.time).min()
    }
}
