//! Somebody gets it: a lock that nobody holds, that somebody waits for, while no fault is under
//! way, goes to one of those who wait within T. Deaths are judged by the checker as well; a wake-up
//! that was lost only here. An error is no answer to that: who is refused with one, and all who ask
//! after it, are owed the lock still. And who alone holds it, and changes how, is answered within
//! T, too.

use std::collections::HashMap;
use std::time::Duration;

use super::replay::{Judge, Lives, Replay, Step, Told};
use super::report::Late;
use super::{Conviction, ns};
use crate::history::{Flags, LockId, Record, What};

/// The word for it.
pub(crate) const LIVENESS: &str = "liveness";
/// How much longer than T is let pass: messages and wake-ups take their time, and servers wait for
/// processors as well.
pub(crate) const SLACK: Duration = Duration::from_millis(250);
/// For so long somebody who was refused with an error may rest before it, or another, asks again:
/// that counts as time in which somebody waits. Clients of ours rest for 20 ms.
const RESTS: Duration = Duration::from_millis(50);

#[derive(Default)]
struct Lock {
    /// Whether anybody ever held it.
    was_held: bool,
    /// Since when nobody holds it and somebody waits.
    since: Option<u64>,
    /// How many were refused with an error since then; since when there is nobody who waits because
    /// the last ones were.
    errors: u64,
    resting: Option<u64>,
    /// Whether one of them may have got it for all that is known.
    doubted: bool,
    /// Since when nobody but the one whose change is under way holds it.
    alone: Option<u64>,
}

impl Lock {
    /// Whether it is owed to somebody from now on, or no more.
    fn settle(&mut self, lives: &Lives, at: u64) {
        let alone = lives.holding == 1 && lives.converting == 1;
        self.alone = self.alone.or(Some(at)).filter(|_| alone);
        if lives.holding > 0 {
            self.forgive();
            self.was_held = true;
        } else if lives.waiting > 0 {
            self.since = self.since.or(Some(at));
        } else if self.resting.is_none() {
            self.forgive();
        }
    }

    /// It is owed to nobody.
    fn forgive(&mut self) {
        (self.since, self.errors, self.resting, self.doubted) = (None, 0, None, false);
    }

    /// The last one who waited went away, with an error or among those who were refused with one:
    /// it is owed to whoever asks next.
    fn rests(&mut self, lives: &Lives, at: u64) {
        if self.since.is_some() && self.errors > 0 && lives.waiting == 0 {
            self.resting = Some(at);
        }
    }

    /// Somebody asks. The time in which nobody did is not owed to anybody; `calm` is when the last
    /// fault was over.
    fn wakes(&mut self, calm: u64, at: u64) {
        let Some(rested) = self.resting.take() else { return };
        let unasked = at.saturating_sub(rested.max(calm)).saturating_sub(ns(RESTS));
        self.since = self.since.map(|since| since.max(calm).saturating_add(unasked));
    }

    /// One may have it, until its lease is over, which is T at most. Where everything was `calm`
    /// when it asked, and one before it had the same answer, that is an error as any other: the
    /// second lease is let pass, and no third.
    fn unknown(&mut self, lives: &Lives, at: u64, waited: bool, calm: bool) {
        self.alone = None;
        if !self.was_held || !calm {
            return self.forgive();
        }
        self.errors += u64::from(waited);
        if self.since.is_some() && !std::mem::replace(&mut self.doubted, true) {
            self.since = Some(at);
        }
        self.rests(lives, at);
    }
}

/// See the module.
pub(crate) struct Liveness {
    late: Late,
    promised: Duration,
    locks: HashMap<LockId, Lock>,
    found: Vec<Conviction>,
}

impl Judge for Liveness {
    fn before(&mut self, record: &Record, replay: &Replay) {
        match record.what {
            What::AcquireCalled | What::Busy | What::ConvertCalled => {}
            what if moves(what) => self.look(record.lock, record.at, replay),
            what if what == What::FaultBegin || !replay.dead(record).is_empty() => {
                self.all(record.at, replay);
            }
            _ => {}
        }
    }

    fn after(&mut self, told: &Told, replay: &Replay) {
        let (record, at) = (told.record, told.record.at);
        if !replay.dead(record).is_empty() {
            self.locks.iter_mut().for_each(|(id, lock)| lock.settle(replay.lives(*id), at));
        }
        if !moves(record.what) {
            return;
        }
        let lives = replay.lives(record.lock);
        let lock = self.locks.entry(record.lock).or_default();
        let asked = told.was.filter(|life| !life.is_held() && !life.dead);
        let waited = asked.is_some_and(|life| life.is_waiting());
        let calm = replay.last_fault_end.unwrap_or(0);
        match record.what {
            What::AcquireCalled if !record.flags.has(Flags::TRY) => lock.wakes(calm, at),
            What::Busy | What::TimedOut | What::Cancelled | What::AcquireFailed => {
                lock.errors += u64::from(waited && record.what == What::AcquireFailed);
                lock.rests(lives, at);
            }
            What::AcquireUnknown => {
                let calm = asked.is_some_and(|life| replay.is_quiet() && life.asked > calm);
                lock.unknown(lives, at, waited, calm);
            }
            _ => {}
        }
        lock.settle(lives, at);
    }
}

/// Whether a record may change who waits for a lock, or holds it.
fn moves(what: What) -> bool {
    !matches!(
        Step::of(what),
        None | Some(Step::ReleaseCalled | Step::RenewCalled | Step::RenewAnswered)
    )
}

impl Liveness {
    pub(crate) fn new(promised: Duration, late: Late) -> Self {
        Self { late, promised, locks: HashMap::new(), found: Vec::new() }
    }

    /// Nothing more happens after this.
    pub(crate) fn finish(mut self, at: u64, replay: &Replay) -> Vec<Conviction> {
        self.all(at, replay);
        self.found
    }

    fn all(&mut self, at: u64, replay: &Replay) {
        for lock in self.locks.keys().copied().collect::<Vec<_>>() {
            self.look(lock, at, replay);
        }
    }

    /// How long that took, if it is too long; so much more than T may it be.
    fn too_long(&self, since: u64, at: u64, more: Duration) -> Option<u64> {
        let took = at.saturating_sub(since);
        let bound = ns(self.promised.saturating_add(SLACK).saturating_add(more));
        (took > bound && took > bound.saturating_add(self.late.ns(since, at))).then_some(took)
    }

    /// Convicts, if a lock has been owed, or a change of mode, for too long.
    fn look(&mut self, id: LockId, at: u64, replay: &Replay) {
        let Some(lock) = self.locks.get(&id).filter(|_| replay.is_quiet()) else { return };
        let calm = replay.last_fault_end.unwrap_or(0);
        let from = |since: Option<u64>| since.map(|since| since.max(calm));
        let (waiting, errors) = (replay.lives(id).waiting, lock.errors);
        let more = if errors > 0 { RESTS } else { Duration::ZERO }
            + if lock.doubted { self.promised } else { Duration::ZERO };
        let owed = from(lock.since)
            .filter(|_| waiting > 0)
            .and_then(|since| Some((since, self.too_long(since, at, more)?)));
        let alone = from(lock.alone)
            .and_then(|since| Some((since, self.too_long(since, at, Duration::ZERO)?)));
        if owed.is_none() && alone.is_none() {
            return;
        }
        if let Some(lock) = self.locks.get_mut(&id) {
            // What comes after it is judged anew.
            lock.since = lock.since.map(|since| if owed.is_some() { at } else { since });
            lock.alone = lock.alone.map(|since| if alone.is_some() { at } else { since });
            lock.errors = 0;
        }
        let name = replay.lock_name(id);
        let promised = self.promised.as_millis();
        let mut convict = |since, sentence| {
            let (name, until) = (name.clone(), at);
            self.found.push(Conviction { class: LIVENESS, name, at: since, until, sentence });
        };
        if let Some((since, took)) = owed {
            let ms = took / 1_000_000;
            let refused = match errors {
                0 => String::new(),
                errors => format!("; {errors} requests ended in an error"),
            };
            convict(
                since,
                format!(
                    "{name} was free and {waiting} waited for it, and no caller got it for {ms} \
                     ms{refused}; the promise is {promised} ms"
                ),
            );
        }
        if let Some((since, took)) = alone {
            let ms = took / 1_000_000;
            convict(
                since,
                format!(
                    "{name} had one holder, which did not learn for {ms} ms whether its mode had \
                     changed; the promise is {promised} ms"
                ),
            );
        }
    }
}

#[cfg(test)]
mod tests;
