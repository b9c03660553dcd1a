//! A replay: the records of a history, in the order of time, become the lives of claims. It is the
//! one place that knows which record begins a life, changes it, and ends it.
//!
//! Torture's judges listen to it, on one clock. The checker keeps a table of its own (`claims`),
//! because its claims live otherwise: clocks may differ, so that a loss comes before its grant; a
//! release may come after the end, and convict; a hold ends at its deadline, too; and nothing
//! counts that a process said after its death was written down. Both ask [`Step`] what a record
//! means.

use std::collections::{HashMap, HashSet};

use crate::history::{Flags, HoldMode, LockId, Record, What};

/// What a record is in the life of its claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Asked,
    Granted,
    /// The acquire ended without a guard.
    Refused,
    ReleaseCalled,
    /// The release was answered, whatever the answer.
    ReleaseAnswered,
    RenewCalled,
    RenewAnswered,
    Lost,
    ConvertCalled,
    ConvertAnswered,
}

impl Step {
    /// `None` for a record that changes nothing in it.
    pub fn of(what: What) -> Option<Self> {
        Some(match what {
            What::AcquireCalled => Self::Asked,
            What::Acquired => Self::Granted,
            What::Busy
            | What::TimedOut
            | What::AcquireUnknown
            | What::AcquireFailed
            | What::Cancelled => Self::Refused,
            What::ReleaseCalled => Self::ReleaseCalled,
            What::Released | What::ReleasedNotOwner | What::ReleaseUnknown | What::ReleasedLost => {
                Self::ReleaseAnswered
            }
            What::RenewCalled => Self::RenewCalled,
            What::Renewed | What::RenewLost | What::RenewUnknown => Self::RenewAnswered,
            What::Lost => Self::Lost,
            What::ConvertCalled => Self::ConvertCalled,
            What::Converted | What::ConvertFailed => Self::ConvertAnswered,
            _ => return None,
        })
    }
}

/// How far a life is. Whether a hold lasts until its release is called or until that is answered is
/// its judge's to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Asked,
    Held,
    Releasing,
}

/// The life of a claim that is not over.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    pub file: u32,
    pub stage: Stage,
    /// When it was called; 0 where that is not recorded.
    pub asked: u64,
    pub owner: u64,
    pub permits: bool,
    pub trying: bool,
    /// Whether its mode is being changed.
    pub converting: bool,
    /// 0 for none.
    pub deadline: u64,
    /// Whether its last renewal was not answered, or is not yet.
    pub unanswered: bool,
    /// Whether its process died. What it said last may still be in the engine.
    pub dead: bool,
}

impl Life {
    fn new(file: u32, stage: Stage, asked: u64, record: &Record) -> Self {
        Self {
            file,
            stage,
            asked,
            owner: record.owner,
            permits: record.mode == HoldMode::Permits,
            trying: record.flags.has(Flags::TRY),
            converting: false,
            deadline: record.deadline,
            unanswered: false,
            dead: false,
        }
    }

    /// Whether it stands in line, or did when its process died.
    pub fn is_waiting(&self) -> bool {
        self.stage == Stage::Asked && !self.trying
    }

    pub fn is_held(&self) -> bool {
        self.stage != Stage::Asked
    }

    /// What becomes of it; `None` when it is over.
    fn after(mut self, step: Step, record: &Record) -> Option<Self> {
        match step {
            Step::Refused if !self.is_held() => return None,
            Step::ReleaseAnswered | Step::Lost if self.is_held() => return None,
            Step::ReleaseCalled if self.is_held() => self.stage = Stage::Releasing,
            Step::ConvertCalled => self.converting = self.is_held(),
            Step::ConvertAnswered => self.converting = false,
            Step::RenewCalled | Step::RenewAnswered => {
                self.unanswered = matches!(record.what, What::RenewCalled | What::RenewUnknown);
            }
            _ => return Some(self),
        }
        if record.deadline > 0 {
            self.deadline = record.deadline;
        }
        Some(self)
    }
}

/// The lives of the claims on one lock, and how many of them are what, those of the dead not
/// counted.
#[derive(Default)]
pub(super) struct Lives {
    all: HashMap<u64, Life>,
    pub waiting: usize,
    pub holding: usize,
    /// Of those that hold.
    pub converting: usize,
}

impl Lives {
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Life)> {
        self.all.iter().map(|(claim, life)| (*claim, life))
    }

    fn set(&mut self, claim: u64, life: Option<Life>) {
        let old = match life {
            Some(life) => self.all.insert(claim, life),
            None => self.all.remove(&claim),
        };
        self.count(old, -1);
        self.count(life, 1);
    }

    fn count(&mut self, life: Option<Life>, by: isize) {
        let Some(life) = life.filter(|life| !life.dead) else { return };
        let counts = [
            (&mut self.waiting, life.is_waiting()),
            (&mut self.holding, life.is_held()),
            (&mut self.converting, life.converting),
        ];
        for (count, _) in counts.into_iter().filter(|(_, counts)| *counts) {
            *count = count.saturating_add_signed(by);
        }
    }

    fn die(&mut self, file: u32) {
        for (claim, life) in self.all.clone() {
            if life.file == file {
                self.set(claim, Some(Life { dead: true, ..life }));
            }
        }
    }
}

/// A record, and what it changed.
pub(crate) struct Told<'a> {
    pub(super) file: u32,
    pub(super) record: &'a Record,
    /// The life of its claim before and after it.
    pub(super) was: Option<Life>,
    pub(super) now: Option<Life>,
}

/// One who judges what a replay tells.
pub(crate) trait Judge {
    /// A record comes, and has changed nothing yet.
    fn before(&mut self, _record: &Record, _replay: &Replay) {}
    /// What it changed.
    fn after(&mut self, _told: &Told, _replay: &Replay) {}
}

/// See the module.
#[derive(Default)]
pub(crate) struct Replay {
    locks: HashMap<LockId, Lives>,
    /// Of a lock that nobody asked for yet.
    nobody: Lives,
    names: HashMap<LockId, String>,
    clients: HashMap<u32, String>,
    of_process: HashMap<u64, Vec<u32>>,
    faults: HashSet<(LockId, u64)>,
    /// When the last fault ended.
    pub(super) last_fault_end: Option<u64>,
}

impl Replay {
    /// A process, the file of its history, and what it is called.
    pub(crate) fn client(&mut self, process: u64, file: u32, label: String) {
        self.of_process.entry(process).or_default().push(file);
        self.clients.insert(file, label);
    }

    /// What a lock is called.
    pub(crate) fn name(&mut self, lock: LockId, name: String) {
        self.names.insert(lock, name);
    }

    /// Tells the judges of the next record.
    pub(crate) fn tell(&mut self, file: u32, record: &Record, judges: &mut [&mut dyn Judge]) {
        judges.iter_mut().for_each(|judge| judge.before(record, self));
        let (was, now) = self.change(file, record);
        let told = Told { file, record, was, now };
        judges.iter_mut().for_each(|judge| judge.after(&told, self));
    }

    fn change(&mut self, file: u32, record: &Record) -> (Option<Life>, Option<Life>) {
        match record.what {
            What::FaultBegin => _ = self.faults.insert((record.lock, record.number)),
            What::FaultEnd => {
                self.faults.remove(&(record.lock, record.number));
                self.last_fault_end = Some(record.at);
            }
            What::Kill | What::Exit => {
                for file in self.of_process.get(&record.number).into_iter().flatten() {
                    self.locks.values_mut().for_each(|lives| lives.die(*file));
                }
            }
            _ => {}
        }
        let Some(step) = Step::of(record.what) else { return (None, None) };
        let lives = self.locks.entry(record.lock).or_default();
        let was = lives.all.get(&record.claim).copied();
        let now = match step {
            Step::Asked => Some(Life::new(file, Stage::Asked, record.at, record)),
            Step::Granted => Some(granted(file, was, record)),
            _ => was.and_then(|life| life.after(step, record)),
        };
        lives.set(record.claim, now);
        (was, now)
    }

    /// The lives on a lock.
    pub(super) fn lives(&self, lock: LockId) -> &Lives {
        self.locks.get(&lock).unwrap_or(&self.nobody)
    }

    /// The files of a process.
    pub(super) fn files(&self, process: u64) -> &[u32] {
        self.of_process.get(&process).map_or(&[], Vec::as_slice)
    }

    /// The files of the process of whose death a record tells.
    pub(super) fn dead(&self, record: &Record) -> &[u32] {
        let dies = matches!(record.what, What::Kill | What::Exit);
        if dies { self.files(record.number) } else { &[] }
    }

    /// Whether no fault is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.faults.is_empty()
    }

    pub(super) fn lock_name(&self, lock: LockId) -> String {
        self.names.get(&lock).cloned().unwrap_or_default()
    }

    pub(super) fn client_name(&self, file: u32) -> &str {
        self.clients.get(&file).map_or("", String::as_str)
    }
}

/// What was asked for is in the record of the call only.
fn granted(file: u32, was: Option<Life>, record: &Record) -> Life {
    let fresh = Life { owner: 0, ..Life::new(file, Stage::Held, 0, record) };
    match was {
        Some(was) if was.is_held() => {
            Life { owner: was.owner, converting: was.converting, ..fresh }
        }
        Some(was) => Life { asked: was.asked, owner: was.owner, permits: was.permits, ..fresh },
        None => fresh,
    }
}

#[cfg(test)]
mod tests;
