//! Liveness: when a holder dies, or a fault ends, somebody who waits gets the lock within the time
//! promised.

use super::claims::{At, ClaimNo, Claims};
use crate::history::LockId;

/// The fault of a process that stands still; the others leave it to run.
pub const STANDS_STILL: &str = "stop-client";

/// A lock that should go to somebody soon.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    /// Since the death of its holder, or the end of a fault.
    pub since: u64,
    /// Whose death, and where it was granted to it; `None` after a fault.
    pub dead: Option<(u32, At)>,
}

/// The faults under way, and when the last one ended.
pub(super) struct Faults {
    open: Vec<(u64, u64)>,
    last_end: u64,
    stop: u64,
    /// Which processes stood still, from when to when.
    stops: Vec<(u64, u64, u64)>,
}

impl Default for Faults {
    fn default() -> Self {
        Self {
            open: Vec::new(),
            last_end: 0,
            stop: LockId::text(STANDS_STILL).0,
            stops: Vec::new(),
        }
    }
}

impl Faults {
    /// A fault of this name hits this process.
    pub fn begin(&mut self, name: u64, target: u64, now: u64) {
        self.open.push((name, target));
        if name == self.stop {
            self.stops.push((target, now, u64::MAX));
        }
    }

    /// Whether a process stood still at some time between two moments.
    pub fn stood_still(&self, process: u64, from: u64, to: u64) -> bool {
        self.stops
            .iter()
            .any(|(target, begin, end)| *target == process && *begin <= to && *end >= from)
    }

    /// It is over; false when it never began.
    pub fn end(&mut self, name: u64, target: u64, now: u64) -> bool {
        let Some(found) = self.open.iter().position(|fault| *fault == (name, target)) else {
            return false;
        };
        self.open.swap_remove(found);
        self.last_end = now;
        let stop = self
            .stops
            .iter_mut()
            .rev()
            .find(|(of, _, end)| name == self.stop && *of == target && *end == u64::MAX);
        if let Some((.., end)) = stop {
            *end = now;
        }
        true
    }

    /// Whether nothing was wrong from this moment until now.
    pub fn quiet_since(&self, from: u64) -> bool {
        self.quiet() && self.last_end < from
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
