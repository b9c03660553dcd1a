//! What the checker found.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::class::Class;
use crate::history::Role;

/// What is promised, and what is to be reported.
#[derive(Clone, Debug)]
pub struct Options {
    /// The time T within which somebody who waits gets the lock after its holder died; without it
    /// recovery is measured and not judged.
    pub recovery: Option<Duration>,
    /// How much longer than T is let pass.
    pub recovery_slack: Duration,
    /// What is let pass beside that, because the machine was late itself.
    pub late: Late,
    /// How long the place of a claim whose process died may stay in the engine: a try refused
    /// meanwhile was refused rightly.
    pub linger: Duration,
    /// The same for one that gave up while its process lived on, and withdraws it.
    pub withdraw: Duration,
    /// How far the clock of any machine may be from the true time, when the files come from
    /// several.
    pub skew: Duration,
    /// Classes that are counted and shown, but do not make a history unclean.
    pub allow: BTreeSet<Class>,
    /// How long a lease lasts at most, from the request that got or renewed it; zero where none is
    /// known. It says since when the engine may have forgotten a hold ([`Moment::since`]).
    pub lease: Duration,
    /// Whether the engine gives every hold but those of permits a fencing token: then one that has
    /// none is a violation.
    pub fenced: bool,
    /// How many violations of each class are described; all are counted.
    pub details: usize,
}

impl Default for Options {
    /// Nothing promised, no tokens either, nothing allowed; 100 ms of slack, 20 s of lingering and
    /// withdrawing, no skew, 20 descriptions a class.
    fn default() -> Self {
        Self {
            recovery: None,
            recovery_slack: Duration::from_millis(100),
            late: Late::never(),
            linger: Duration::from_secs(20),
            withdraw: Duration::from_secs(20),
            skew: Duration::ZERO,
            allow: BTreeSet::new(),
            lease: Duration::ZERO,
            fenced: false,
            details: 20,
        }
    }
}

/// For how much of a time, from one moment to another, the machine was late; in nanoseconds.
#[derive(Clone)]
pub struct Late(Arc<dyn Fn(u64, u64) -> u64 + Send + Sync>);

impl Late {
    /// A machine that was never late.
    pub fn never() -> Self {
        Self::told_by(|_, _| 0)
    }

    /// One whose lateness was measured.
    pub fn told_by(told: impl Fn(u64, u64) -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    pub(crate) fn ns(&self, from: u64, to: u64) -> u64 {
        (self.0)(from, to)
    }
}

impl fmt::Debug for Late {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Late")
    }
}

/// One of the files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Client {
    /// Where its history was read from; empty for one from memory.
    pub path: PathBuf,
    /// Its label, or "pid N".
    pub label: String,
    /// Its process id.
    pub pid: u32,
    /// What kind of process it is.
    pub role: Role,
    /// When its recording began, on the clock of the first file; 0 when it is known that nothing
    /// was before its first record, and nothing comes after its last.
    pub began: u64,
}

/// Where a record stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordRef {
    /// Which file, by its number in [`Report::clients`].
    pub client: u32,
    /// Which record of it, from 0 on.
    pub record: u64,
}

/// When something is wrong, and what it takes for an explanation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// When it showed.
    pub at: u64,
    /// Since when it may have been in the making. Of two holds, or a hold and its end: when the
    /// engine had confirmed the older one last, as far as is known; of who waits, since when that
    /// counts; else the same as `at`. Whatever ended before has nothing to do with it.
    pub since: u64,
    /// Whether one who acted on a hold that was over is all that it takes.
    pub late: bool,
    /// Of two holders that exclude each other: their processes, 0 for one that is not known.
    pub pair: Option<[u32; 2]>,
}

impl Moment {
    /// It takes nothing but what happens then.
    pub fn at(at: u64) -> Self {
        Self { at, since: at, late: false, pair: None }
    }

    /// It began before that.
    pub fn since(self, since: u64) -> Self {
        Self { since: self.since.min(since), ..self }
    }
}

impl From<u64> for Moment {
    fn from(at: u64) -> Self {
        Self::at(at)
    }
}

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Its class.
    pub class: Class,
    /// The lock's name; with its kind before it when it is no plain lock.
    pub name: String,
    /// The moment, on the clock of the first file.
    pub at: u64,
    /// As [`Moment::since`].
    pub since: u64,
    /// As [`Moment::late`].
    pub late: bool,
    /// As [`Moment::pair`].
    pub pair: Option<[u32; 2]>,
    /// What happened, in one sentence.
    pub sentence: String,
    /// The records that show it, the convicting one first.
    pub records: Vec<RecordRef>,
}

impl Violation {
    /// Its moment, and what it takes for an explanation.
    pub fn moment(&self) -> Moment {
        Moment { at: self.at, since: self.since, late: self.late, pair: self.pair }
    }
}

/// How long something took, over all cases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durations(Vec<u64>);

impl Durations {
    pub(super) fn push(&mut self, ns: u64) {
        self.0.push(ns);
    }

    /// How many cases there were.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The median in nanoseconds.
    pub fn p50(&self) -> Option<u64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }

    /// The longest in nanoseconds.
    pub fn max(&self) -> Option<u64> {
        self.0.iter().max().copied()
    }
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Events, names not included.
    pub events: u64,
    /// Names.
    pub names: u64,
    /// Acquires that returned a guard, re-entrant ones and conversions included.
    pub holds: u64,
    /// Of those, turns handed on inside a process.
    pub handed: u64,
    /// Of those, conversions.
    pub converted: u64,
    /// Acquires that their callers left.
    pub cancelled: u64,
    /// Tries that were refused.
    pub busy: u64,
    /// Acquires that ran into their time limit.
    pub timed_out: u64,
    /// Acquires and releases whose outcome nobody knows.
    pub unknown: u64,
    /// Holds that were lost.
    pub lost: u64,
    /// Renewals acknowledged.
    pub renewed: u64,
    /// Faults that began, kills included.
    pub faults: u64,
    /// Stale operations that the resource refused.
    pub stale_rejected: u64,
    /// Stale operations that a resource with token check accepted.
    pub stale_accepted: u64,
    /// Stale operations that a resource without token check accepted.
    pub stale_accepted_unfenced: u64,
    /// The longest wait for a guard in nanoseconds.
    pub wait_max_ns: u64,
    /// The longest time from a deadline to the news of the loss, in nanoseconds.
    pub loss_late_max_ns: u64,
    /// Records about claims that the history does not know: acquired before the recording began.
    pub strangers: u64,
    /// Files that end with a record a kill cut off.
    pub torn: u64,
    /// Files whose recording ended early: what their processes did afterwards is not known.
    pub stopped: u64,
    /// Open files of a release that did not say how long they are: they may have been cut short.
    pub may_be_cut: u64,
    /// Records of kinds that this release does not know.
    pub foreign: u64,
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The files, by number.
    pub clients: Vec<Client>,
    /// Files beside them that are empty: their processes recorded nothing.
    pub empty: Vec<PathBuf>,
    /// What is wrong, in the order in which it was found; at most `Options::details` of each class.
    pub violations: Vec<Violation>,
    /// How often each class was found.
    pub found: BTreeMap<Class, u64>,
    /// When, also those that are not described.
    pub moments: BTreeMap<Class, Vec<Moment>>,
    /// Since when the record of somebody is missing.
    pub blind_from: Option<u64>,
    /// Until when refusals and progress were judged: the first end of a recording whose process may
    /// have gone on. `None` to the end.
    pub judged_until: Option<u64>,
    /// The classes that do not count.
    pub allowed: BTreeSet<Class>,
    /// What was counted.
    pub counts: Counts,
    /// From a holder's death, or a fault's end, to the next grant, where somebody waited.
    pub recovery: Durations,
    /// The time promised for that, in nanoseconds.
    pub recovery_promised_ns: Option<u64>,
    /// The first and the last event, on the clock of the first file.
    pub span: (u64, u64),
    /// What to add to that clock to get Unix time, in nanoseconds.
    pub unix_ns: i64,
}

impl Report {
    /// Whether nothing was found that is not allowed.
    pub fn is_clean(&self) -> bool {
        self.found.keys().all(|class| self.allowed.contains(class))
    }

    /// 0 when clean, else 1.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.is_clean())
    }

    /// How often this class was found.
    pub fn count(&self, class: Class) -> u64 {
        self.found.get(&class).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_can_be_shown() {
        assert!(format!("{:?}", Options::default()).contains("late: Late"));
    }

    #[test]
    fn the_median_is_the_middle_one_or_the_lower_of_two() {
        let of = |all: &[u64]| Durations(all.to_vec());
        assert_eq!((of(&[]).p50(), of(&[]).max(), of(&[]).count()), (None, None, 0));
        assert_eq!((of(&[9, 1, 5]).p50(), of(&[9, 1, 5]).max()), (Some(5), Some(9)));
        assert_eq!((of(&[4, 1, 2, 3]).p50(), of(&[4, 1, 2, 3]).count()), (Some(2), 4));
    }

    #[test]
    fn what_is_allowed_does_not_make_a_history_unclean() {
        let mut report = Report::default();
        assert!(report.is_clean());
        report.found.insert(Class::FifoInversion, 3);
        assert_eq!(
            (report.is_clean(), report.exit_code(), report.count(Class::FifoInversion)),
            (false, 1, 3)
        );
        report.allowed.insert(Class::FifoInversion);
        assert_eq!((report.is_clean(), report.exit_code()), (true, 0));
        report.found.insert(Class::Overlap, 1);
        assert!(!report.is_clean());
    }
}
