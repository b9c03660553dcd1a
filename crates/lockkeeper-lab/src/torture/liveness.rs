//! Somebody gets it: a lock that nobody holds, that somebody waits for, while no fault is under way, goes to one of those who
//! wait within T. Deaths are judged by the checker as well; a wake-up that was lost only here.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::Conviction;
use super::pulse::Pulse;
use crate::history::{Flags, LockId, Record, What};

/// The word for it.
pub(super) const LIVENESS: &str = "liveness";
/// How much longer than T is let pass: messages and wake-ups take their time. The pulse is a thread that mostly sleeps, which a busy
/// machine runs before clients that mostly compute: what those wait for a processor at each step is more than what it sees.
pub(super) const SLACK: Duration = Duration::from_millis(250);

#[derive(Default)]
struct Lock {
    waiting: HashMap<u64, u32>,
    holding: HashMap<u64, u32>,
    /// Since when nobody holds it and somebody waits.
    since: Option<u64>,
}

/// See the module.
pub(super) struct Liveness<'a> {
    pulse: &'a Pulse,
    bound_ns: u64,
    promised: Duration,
    locks: HashMap<LockId, Lock>,
    names: HashMap<LockId, String>,
    faults: HashSet<(LockId, u64)>,
    last_fault_end: u64,
    found: Vec<Conviction>,
}

impl<'a> Liveness<'a> {
    pub(super) fn new(promised: Duration, pulse: &'a Pulse) -> Self {
        Self {
            pulse,
            bound_ns: u64::try_from((promised + SLACK).as_nanos()).unwrap_or(u64::MAX),
            promised,
            locks: HashMap::new(),
            names: HashMap::new(),
            faults: HashSet::new(),
            last_fault_end: 0,
            found: Vec::new(),
        }
    }

    /// What a lock is called.
    pub(super) fn name(&mut self, lock: LockId, name: String) {
        self.names.insert(lock, name);
    }

    /// Nothing more happens after this.
    pub(super) fn finish(mut self, at: u64) -> Vec<Conviction> {
        self.all(at);
        self.found
    }

    pub(super) fn event(&mut self, file: u32, record: &Record) {
        match record.what {
            What::FaultBegin => {
                self.all(record.at);
                self.faults.insert((record.lock, record.number));
            }
            What::FaultEnd => {
                self.faults.remove(&(record.lock, record.number));
                self.last_fault_end = record.at;
            }
            What::AcquireCalled if !record.flags.has(Flags::TRY) => {
                self.locks.entry(record.lock).or_default().waiting.insert(record.claim, file);
            }
            What::Acquired => {
                self.look(record.lock, record.at);
                let lock = self.locks.entry(record.lock).or_default();
                lock.waiting.remove(&record.claim);
                lock.holding.insert(record.claim, file);
            }
            What::TimedOut | What::AcquireFailed | What::AcquireUnknown | What::Cancelled => {
                self.look(record.lock, record.at);
                let lock = self.locks.entry(record.lock).or_default();
                lock.waiting.remove(&record.claim);
                if record.what == What::AcquireUnknown {
                    // It may have it, until its lease is over.
                    lock.since = None;
                }
            }
            What::Released | What::ReleasedLost | What::ReleasedNotOwner | What::ReleaseUnknown | What::Lost => {
                self.locks.entry(record.lock).or_default().holding.remove(&record.claim);
            }
            _ => return,
        }
        self.settle(record.lock, record.at);
    }

    /// Whatever a process held or waited for is over.
    pub(super) fn dies(&mut self, file: u32, at: u64) {
        for lock in self.locks.keys().copied().collect::<Vec<_>>() {
            self.look(lock, at);
            if let Some(lock) = self.locks.get_mut(&lock) {
                lock.waiting.retain(|_, of| *of != file);
                lock.holding.retain(|_, of| *of != file);
            }
            self.settle(lock, at);
        }
    }

    /// Whether a lock is owed to somebody from now on, or no more.
    fn settle(&mut self, lock: LockId, at: u64) {
        if let Some(lock) = self.locks.get_mut(&lock) {
            let owed = lock.holding.is_empty() && !lock.waiting.is_empty();
            lock.since = if owed { lock.since.or(Some(at)) } else { None };
        }
    }

    fn all(&mut self, at: u64) {
        for lock in self.locks.keys().copied().collect::<Vec<_>>() {
            self.look(lock, at);
        }
    }

    /// Convicts, if a lock has been owed for too long.
    fn look(&mut self, id: LockId, at: u64) {
        let Some(lock) = self.locks.get_mut(&id).filter(|_| self.faults.is_empty()) else { return };
        let Some(since) = lock.since.map(|since| since.max(self.last_fault_end)) else { return };
        let took = at.saturating_sub(since);
        if took <= self.bound_ns || took <= self.bound_ns.saturating_add(self.pulse.forgiven_ns(since, at)) {
            return;
        }
        let waiting = lock.waiting.len();
        lock.since = Some(at);
        let name = self.names.get(&id).cloned().unwrap_or_default();
        let (took, promised) = (took / 1_000_000, self.promised.as_millis());
        let sentence =
            format!("nobody held {name} and {waiting} waited for it, and nobody got it for {took} ms; promised are {promised} ms");
        self.found.push(Conviction { class: LIVENESS, name, at: since, until: at, sentence });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: LockId = LockId(7);
    const SECOND: u64 = 1_000_000_000;

    fn tell(events: &[(u64, What, u64)]) -> usize {
        let pulse = Pulse::steady();
        let mut judge = Liveness::new(Duration::from_secs(1), &pulse);
        for (at, what, claim) in events {
            let lock = if matches!(what, What::FaultBegin | What::FaultEnd) { LockId(9) } else { LOCK };
            judge.event(0, &Record { at: at * SECOND / 10, ..Record::about(*what, lock, *claim) });
        }
        judge.all(10 * SECOND);
        judge.found.len()
    }

    #[test]
    fn a_lock_that_nobody_holds_and_somebody_waits_for_is_convicted_after_its_time() {
        use What::{AcquireCalled, Acquired, FaultBegin, FaultEnd, Released, TimedOut};
        assert_eq!(tell(&[(0, AcquireCalled, 1), (10, Acquired, 1), (99, Released, 1)]), 0, "in time");
        assert_eq!(tell(&[(0, AcquireCalled, 1), (30, Acquired, 1)]), 1, "too late");
        assert_eq!(tell(&[(0, AcquireCalled, 1), (30, TimedOut, 1)]), 1, "given up too late");
        assert_eq!(tell(&[(0, AcquireCalled, 1), (1, Acquired, 1), (2, AcquireCalled, 2), (60, Released, 1), (61, Acquired, 2)]), 0);
        let faulty = [(0, AcquireCalled, 1), (1, FaultBegin, 0), (30, FaultEnd, 0), (40, Acquired, 1)];
        assert_eq!(tell(&faulty), 0, "a fault was under way");
        assert_eq!(tell(&[(0, AcquireCalled, 1)]), 1, "never");
    }

    #[test]
    fn a_death_ends_what_was_held_and_waited_for() {
        let pulse = Pulse::steady();
        let mut judge = Liveness::new(Duration::from_secs(1), &pulse);
        for (at, what, claim, file) in [(0, What::AcquireCalled, 1, 0), (0, What::Acquired, 1, 0), (1, What::AcquireCalled, 2, 1)] {
            judge.event(file, &Record { at: at * SECOND, ..Record::about(what, LOCK, claim) });
        }
        judge.dies(0, 2 * SECOND);
        judge.all(3 * SECOND);
        assert!(judge.found.is_empty());
        judge.all(5 * SECOND);
        assert_eq!(judge.found.len(), 1);
        judge.dies(1, 6 * SECOND);
        judge.all(20 * SECOND);
        assert_eq!(judge.found.len(), 1, "nobody waits any more");
    }
}
