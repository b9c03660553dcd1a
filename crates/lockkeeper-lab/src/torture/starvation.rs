//! Everybody gets it: a waiter is not passed over for ever by those who asked after it. Counted in
//! grants, which needs no clock; what time goes by is looked at only to forgive a machine that did
//! not let the waiter run, and told so that a run in which nobody waited while it was counted is
//! seen to have said nothing.
//!
//! How many may pass it follows from what is promised. A process has one place in the engine's
//! line, which is first come, first served (R9, R11). Before a waiter, tasks of its own process
//! that came earlier may each need a place of their own, at the end of that line; at each of these
//! places every process may have one hold, and a hold passes inside of its process 64 times at
//! most.

use std::collections::HashMap;
use std::time::Duration;

use super::liveness::SLACK;
use super::pulse::Pulse;
use super::{Conviction, ns};
use crate::history::{Flags, HoldMode, LockId, Record, What};

/// The word for it.
pub(super) const STARVATION: &str = "starvation";
/// How many turns a hold has at most (R9).
const TURNS_MAX: u64 = 64;
/// After a fault a client comes back after pauses of up to so long, and stands at the end of the
/// line.
const COMES_BACK: Duration = Duration::from_secs(2);
/// Who was passed is convicted after [`SLACK`] at the earliest. Where all together waited for so
/// many times that, and were judged for less than once, the faults were too many.
const WAITED_ENOUGH: u32 = 20;

/// Whose order is kept by a line, and how many may pass there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fair {
    pub(super) locks: bool,
    pub(super) permits: bool,
    /// How many holds; nothing where clients do not say which of their turns were handed on.
    pub(super) holds: Option<u64>,
    /// How many turns.
    pub(super) turns: u64,
}

impl Fair {
    /// Among so many clients with so many tasks each; `tells` when they say which turns were handed
    /// on.
    pub(super) fn among(
        clients: u32,
        tasks: u32,
        tells: bool,
        [locks, permits]: [bool; 2],
    ) -> Self {
        let holds = u64::from(clients).saturating_mul(u64::from(tasks));
        Self {
            locks,
            permits,
            holds: tells.then_some(holds),
            turns: holds.saturating_mul(TURNS_MAX),
        }
    }

    /// Whether an order is promised to who waits.
    fn promises(&self, permits: bool) -> bool {
        if permits { self.permits } else { self.locks }
    }

    /// The number that a report shows beside [`Passed::shown`].
    pub(super) fn shown(&self) -> Option<u64> {
        self.locks.then(|| self.holds.unwrap_or(self.turns))
    }
}

/// For how long somebody waited who was promised an order, all together, and for how much of that
/// those who passed it were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Judged {
    pub(super) waited: Duration,
    pub(super) judged: Duration,
}

impl Judged {
    /// Why nobody could be convicted, if so.
    pub(super) fn missing(&self) -> Option<String> {
        let Self { waited, judged } = self;
        let (waited, ms) = (waited.as_secs_f64(), judged.as_millis());
        let missing = self.waited >= SLACK * WAITED_ENOUGH && *judged < SLACK;
        missing.then(|| {
            format!(
                "of {waited:.1} s with a waiter, faults left {ms} ms undisturbed: no lock could be \
                 convicted of overtaking"
            )
        })
    }
}

/// By how many that asked later somebody was passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Passed {
    holds: u64,
    turns: u64,
}

impl Passed {
    /// Of those that count.
    fn shown(self, fair: &Fair) -> u64 {
        if fair.holds.is_some() { self.holds } else { self.turns }
    }

    /// In words, when it is more than may be.
    fn too_many(self, fair: &Fair) -> Option<String> {
        match fair.holds {
            Some(may) if self.holds > may => {
                Some(format!("{} holds went to later callers; at most {may} may", self.holds))
            }
            _ if self.turns > fair.turns => Some(format!(
                "{} later callers got it first; at most {} may",
                self.turns, fair.turns
            )),
            _ => None,
        }
    }
}

/// One who asked and was not answered yet.
struct Asked {
    at: u64,
    file: u32,
    owner: u64,
    permits: bool,
    trying: bool,
    /// By how many, and since when they are counted.
    passed: Passed,
    since: u64,
    convicted: bool,
    /// Until when it is known for how much of its wait it was judged.
    told: u64,
}

#[derive(Default)]
struct Line {
    asked: HashMap<u64, Asked>,
    /// The explicit owners among those who hold.
    owners: HashMap<u64, u64>,
}

/// Faults that are under way, and until when the last one is felt.
#[derive(Clone, Copy, Default)]
struct Trouble {
    open: u32,
    until: u64,
}

/// See the module.
pub(super) struct Starvation<'a> {
    pulse: &'a Pulse,
    fair: Fair,
    recovery: Duration,
    lines: HashMap<LockId, Line>,
    everybody: Trouble,
    of: HashMap<u32, Trouble>,
    most: u64,
    waited_ns: u64,
    judged_ns: u64,
    found: Vec<(LockId, u32, Conviction)>,
}

impl<'a> Starvation<'a> {
    /// `recovery` is T.
    pub(super) fn new(recovery: Duration, fair: Fair, pulse: &'a Pulse) -> Self {
        Self {
            pulse,
            fair,
            recovery,
            lines: HashMap::new(),
            everybody: Trouble::default(),
            of: HashMap::new(),
            most: 0,
            waited_ns: 0,
            judged_ns: 0,
            found: Vec::new(),
        }
    }

    /// Nothing happens after `at`: for how long who waited was judged.
    pub(super) fn judged(&mut self, at: u64) -> Judged {
        self.tell_all(at);
        Judged {
            waited: Duration::from_nanos(self.waited_ns),
            judged: Duration::from_nanos(self.judged_ns),
        }
    }

    /// What was found, told with the names of locks and clients; and by how many somebody was
    /// passed at most.
    pub(super) fn finish(
        self,
        name: impl Fn(LockId) -> String,
        client: impl Fn(u32) -> String,
    ) -> (Vec<Conviction>, u64) {
        let told = self.found.into_iter().map(|(lock, file, found)| {
            let (name, sentence) = (name(lock), &found.sentence);
            Conviction {
                sentence: format!("{} waited for {name} {sentence}", client(file)),
                name,
                ..found
            }
        });
        (told.collect(), self.most)
    }

    /// A fault begins or ends; `hit` are the files of the process that it hits, empty for one that
    /// hits everybody.
    pub(super) fn fault(&mut self, begins: bool, hit: &[u32], at: u64) {
        self.trouble(begins, hit, at.saturating_add(ns(self.recovery + COMES_BACK)), at);
    }

    /// A crowd comes or has left, which cuts nobody off.
    pub(super) fn crowd(&mut self, comes: bool, at: u64) {
        self.trouble(comes, &[], at.saturating_add(ns(self.recovery)), at);
    }

    fn trouble(&mut self, begins: bool, hit: &[u32], until: u64, at: u64) {
        self.tell_all(at);
        let change = |trouble: &mut Trouble| {
            trouble.open = if begins { trouble.open + 1 } else { trouble.open.saturating_sub(1) };
            trouble.until = trouble.until.max(until);
        };
        if hit.is_empty() {
            change(&mut self.everybody);
        }
        hit.iter().for_each(|file| change(self.of.entry(*file).or_default()));
        // It may have lost its place, and stand at the end again.
        let all = self.lines.values_mut().flat_map(|line| line.asked.values_mut());
        all.filter(|asked| hit.is_empty() || hit.contains(&asked.file))
            .for_each(|asked| asked.passed = Passed::default());
    }

    /// Since when who waits in this process is judged; `None` while a fault is under way.
    fn felt_until(&self, file: u32) -> Option<u64> {
        let own = self.of.get(&file).copied().unwrap_or_default();
        (self.everybody.open + own.open == 0).then_some(self.everybody.until.max(own.until))
    }

    /// What those who wait waited until now.
    fn tell_all(&mut self, at: u64) {
        let mut lines = std::mem::take(&mut self.lines);
        for asked in lines.values_mut().flat_map(|line| line.asked.values_mut()) {
            self.tell(asked, at);
        }
        self.lines = lines;
    }

    fn tell(&mut self, asked: &mut Asked, at: u64) {
        let from = std::mem::replace(&mut asked.told, at);
        if asked.trying || !self.fair.promises(asked.permits) {
            return;
        }
        self.waited_ns += at.saturating_sub(from);
        self.judged_ns +=
            self.felt_until(asked.file).map_or(0, |calm| at.saturating_sub(from.max(calm)));
    }

    /// It waits no longer.
    fn answered(&mut self, lock: LockId, claim: u64, at: u64) -> Option<Asked> {
        let mut asked = self.lines.get_mut(&lock)?.asked.remove(&claim)?;
        self.tell(&mut asked, at);
        Some(asked)
    }

    /// Whatever a process held or waited for is over.
    pub(super) fn dies(&mut self, file: u32, at: u64) {
        self.tell_all(at);
        self.lines.values_mut().for_each(|line| line.asked.retain(|_, asked| asked.file != file));
    }

    pub(super) fn event(&mut self, file: u32, record: &Record) {
        let line = self.lines.entry(record.lock).or_default();
        match record.what {
            What::AcquireCalled => {
                let asked = Asked {
                    at: record.at,
                    file,
                    owner: record.owner,
                    permits: record.mode == HoldMode::Permits,
                    trying: record.flags.has(Flags::TRY),
                    passed: Passed::default(),
                    since: record.at,
                    convicted: false,
                    told: record.at,
                };
                line.asked.insert(record.claim, asked);
            }
            What::Acquired => self.granted(record),
            What::Busy
            | What::TimedOut
            | What::AcquireFailed
            | What::AcquireUnknown
            | What::Cancelled => _ = self.answered(record.lock, record.claim, record.at),
            What::Released
            | What::ReleasedLost
            | What::ReleasedNotOwner
            | What::ReleaseUnknown
            | What::Lost => {
                line.owners.remove(&record.claim);
            }
            _ => {}
        }
    }

    fn granted(&mut self, record: &Record) {
        let Some(got) = self.answered(record.lock, record.claim, record.at) else { return };
        let Some(line) = self.lines.get_mut(&record.lock) else { return };
        if got.owner != 0 {
            // Who enters its own hold again passes nobody.
            let again = line.owners.values().any(|owner| *owner == got.owner);
            line.owners.insert(record.claim, got.owner);
            if again {
                return;
            }
        }
        let felt = |trouble: &Trouble| trouble.open > 0 || record.at < trouble.until;
        if felt(&self.everybody) {
            return;
        }
        for waiter in line.asked.values_mut().filter(|waiter| !waiter.trying && waiter.at < got.at)
        {
            if self.of.get(&waiter.file).is_some_and(felt) {
                continue;
            }
            if waiter.passed == Passed::default() {
                waiter.since = record.at;
            }
            waiter.passed.turns += 1;
            waiter.passed.holds += u64::from(!record.flags.has(Flags::HANDED));
            self.most = self.most.max(waiter.passed.shown(&self.fair));
            let promised = self.fair.promises(waiter.permits);
            let Some(too_many) =
                waiter.passed.too_many(&self.fair).filter(|_| promised && !waiter.convicted)
            else {
                continue;
            };
            let took = record.at.saturating_sub(waiter.since);
            let slack = ns(SLACK);
            if took <= slack
                || took <= slack.saturating_add(self.pulse.forgiven_ns(waiter.since, record.at))
            {
                continue;
            }
            waiter.convicted = true;
            let ms = record.at.saturating_sub(waiter.at) / 1_000_000;
            let sentence = format!("for {ms} ms, and {too_many}");
            let found = Conviction {
                class: STARVATION,
                name: String::new(),
                at: record.at,
                until: record.at,
                sentence,
            };
            self.found.push((record.lock, waiter.file, found));
        }
    }
}

#[cfg(test)]
mod tests;
