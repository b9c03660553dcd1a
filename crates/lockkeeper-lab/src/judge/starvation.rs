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
use super::replay::{Judge, Life, Replay, Step, Told};
use super::report::Late;
use super::{Conviction, ns};
use crate::history::{Flags, LockId, Record, What};

/// The word for it.
pub(crate) const STARVATION: &str = "starvation";
/// The fault of a crowd that comes, which cuts nobody off.
pub(crate) const CROWD: &str = "crowd";
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
pub(crate) struct Fair {
    pub(crate) locks: bool,
    pub(crate) permits: bool,
    /// How many holds; nothing where clients do not say which of their turns were handed on.
    pub(crate) holds: Option<u64>,
    /// How many turns.
    pub(crate) turns: u64,
}

impl Fair {
    /// Among so many clients with so many tasks each; `tells` when they say which turns were handed
    /// on.
    pub(crate) fn among(
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
    pub(crate) fn shown(&self) -> Option<u64> {
        self.locks.then(|| self.holds.unwrap_or(self.turns))
    }
}

/// For how long somebody waited who was promised an order, all together, and for how much of that
/// those who passed it were counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) waited: Duration,
    pub(crate) judged: Duration,
}

impl Judged {
    /// Why nobody could be convicted, if so.
    pub(crate) fn missing(&self) -> Option<String> {
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

/// One who waits.
struct Waiter {
    life: Life,
    /// By how many, and since when they are counted.
    passed: Passed,
    since: u64,
    convicted: bool,
    /// Until when it is known for how much of its wait it was judged.
    told: u64,
}

impl Waiter {
    fn new(life: Life) -> Self {
        let (passed, since, told) = (Passed::default(), life.asked, life.asked);
        Self { life, passed, since, convicted: false, told }
    }
}

/// Faults that are under way, and until when the last one is felt.
#[derive(Clone, Copy, Default)]
struct Trouble {
    open: u32,
    until: u64,
}

/// See the module.
pub(crate) struct Starvation {
    late: Late,
    fair: Fair,
    recovery: Duration,
    lines: HashMap<LockId, HashMap<u64, Waiter>>,
    everybody: Trouble,
    of: HashMap<u32, Trouble>,
    most: u64,
    waited_ns: u64,
    judged_ns: u64,
    found: Vec<Conviction>,
}

impl Judge for Starvation {
    fn after(&mut self, told: &Told, replay: &Replay) {
        let (record, at) = (told.record, told.record.at);
        match record.what {
            What::Kill | What::Exit => self.die(replay.dead(record), at),
            What::FaultBegin | What::FaultEnd => {
                // A crowd that comes, or has left, cuts nobody off.
                let crowd = record.lock == LockId::text(CROWD);
                let (hit, away) = match replay.files(record.number) {
                    _ if crowd => (&[][..], Duration::ZERO),
                    hit => (hit, COMES_BACK),
                };
                let until = at.saturating_add(ns(self.recovery + away));
                self.trouble(record.what == What::FaultBegin, hit, until, at);
            }
            _ => {}
        }
        match Step::of(record.what) {
            Some(Step::Asked) => {
                if let Some(life) = told.now.filter(Life::is_waiting) {
                    let line = self.lines.entry(record.lock).or_default();
                    line.insert(record.claim, Waiter::new(life));
                }
            }
            Some(Step::Granted) => {
                self.answered(record.lock, record.claim, at);
                if let Some(got) = told.was.filter(|life| !life.is_held() && !life.dead) {
                    self.granted(&got, record, replay);
                }
            }
            Some(Step::Refused) => self.answered(record.lock, record.claim, at),
            _ => {}
        }
    }
}

impl Starvation {
    /// `recovery` is T.
    pub(crate) fn new(recovery: Duration, fair: Fair, late: Late) -> Self {
        Self {
            late,
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
    pub(crate) fn judged(&mut self, at: u64) -> Judged {
        self.tell_all(at);
        Judged {
            waited: Duration::from_nanos(self.waited_ns),
            judged: Duration::from_nanos(self.judged_ns),
        }
    }

    /// What was found; and by how many somebody was passed at most.
    pub(crate) fn finish(self) -> (Vec<Conviction>, u64) {
        (self.found, self.most)
    }

    /// A fault begins or ends, and is felt until then; `hit` are the files of the process that it
    /// hits, empty for one that hits everybody.
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
        let all = self.lines.values_mut().flat_map(HashMap::values_mut);
        all.filter(|waiter| hit.is_empty() || hit.contains(&waiter.life.file))
            .for_each(|waiter| waiter.passed = Passed::default());
    }

    /// Since when who waits in this process is judged; `None` while a fault is under way.
    fn felt_until(&self, file: u32) -> Option<u64> {
        let own = self.of.get(&file).copied().unwrap_or_default();
        (self.everybody.open + own.open == 0).then_some(self.everybody.until.max(own.until))
    }

    /// What those who wait waited until now.
    fn tell_all(&mut self, at: u64) {
        let mut lines = std::mem::take(&mut self.lines);
        for waiter in lines.values_mut().flat_map(HashMap::values_mut) {
            self.tell(waiter, at);
        }
        self.lines = lines;
    }

    fn tell(&mut self, waiter: &mut Waiter, at: u64) {
        let from = std::mem::replace(&mut waiter.told, at);
        if !self.fair.promises(waiter.life.permits) {
            return;
        }
        self.waited_ns += at.saturating_sub(from);
        self.judged_ns +=
            self.felt_until(waiter.life.file).map_or(0, |calm| at.saturating_sub(from.max(calm)));
    }

    /// It waits no longer.
    fn answered(&mut self, lock: LockId, claim: u64, at: u64) {
        if let Some(mut waiter) = self.lines.get_mut(&lock).and_then(|line| line.remove(&claim)) {
            self.tell(&mut waiter, at);
        }
    }

    /// What those waited for whose process died is over.
    fn die(&mut self, files: &[u32], at: u64) {
        if files.is_empty() {
            return;
        }
        self.tell_all(at);
        let lines = self.lines.values_mut();
        lines.for_each(|line| line.retain(|_, waiter| !files.contains(&waiter.life.file)));
    }

    fn granted(&mut self, got: &Life, record: &Record, replay: &Replay) {
        // Who enters its own hold again passes nobody.
        let same = |(claim, life): (u64, &Life)| {
            claim != record.claim && life.is_held() && life.owner == got.owner
        };
        if got.owner != 0 && replay.lives(record.lock).iter().any(same) {
            return;
        }
        let felt = |trouble: &Trouble| trouble.open > 0 || record.at < trouble.until;
        if felt(&self.everybody) {
            return;
        }
        let line = self.lines.entry(record.lock).or_default();
        for waiter in line.values_mut().filter(|waiter| waiter.life.asked < got.asked) {
            if self.of.get(&waiter.life.file).is_some_and(felt) {
                continue;
            }
            if waiter.passed == Passed::default() {
                waiter.since = record.at;
            }
            waiter.passed.turns += 1;
            waiter.passed.holds += u64::from(!record.flags.has(Flags::HANDED));
            self.most = self.most.max(waiter.passed.shown(&self.fair));
            let promised = self.fair.promises(waiter.life.permits);
            let Some(too_many) =
                waiter.passed.too_many(&self.fair).filter(|_| promised && !waiter.convicted)
            else {
                continue;
            };
            let took = record.at.saturating_sub(waiter.since);
            let slack = ns(SLACK);
            if took <= slack || took <= slack.saturating_add(self.late.ns(waiter.since, record.at))
            {
                continue;
            }
            waiter.convicted = true;
            let ms = record.at.saturating_sub(waiter.life.asked) / 1_000_000;
            let (client, name) =
                (replay.client_name(waiter.life.file), replay.lock_name(record.lock));
            let sentence = format!("{client} waited for {name} for {ms} ms, and {too_many}");
            let (at, until) = (record.at, record.at);
            self.found.push(Conviction { class: STARVATION, name, at, until, sentence });
        }
    }
}

#[cfg(test)]
mod tests;
