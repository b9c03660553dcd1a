//! A hold is not lost for nothing. What the engine confirmed when no fault was felt any more, while
//! its renewals are answered, ends when its holder gives it back or at its deadline: one that its
//! holder is told is lost well before that has no reason, and one who believes it stops work that
//! nothing endangered.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::liveness::SLACK;
use super::pulse::Pulse;
use super::{Conviction, ns};
use crate::history::{LockId, Record, What};

/// The word for it.
pub(super) const GROUNDLESS: &str = "groundless-loss";
/// What is told so shortly before a deadline is told at it: clocks are read one after the other.
const EARLY: Duration = Duration::from_millis(100);

/// Why a hold is said to be lost, as far as an engine says it: for no reason, it ran out, it was
/// taken away, its session ended. The other reasons are of whoever held it, or an operator's, who
/// replaced a file.
const OF_ENGINES: [(u64, &str); 4] = [
    (0, "without a reason"),
    (1, "because it ran out"),
    (2, "because it was taken away"),
    (4, "because its session ended"),
];

struct Held {
    file: u32,
    asked: u64,
    /// 0 for none.
    deadline: u64,
    /// Whether its last renewal was not answered, or is not yet.
    unanswered: bool,
}

/// See the module.
pub(super) struct Groundless<'a> {
    pulse: &'a Pulse,
    recovery_ns: u64,
    /// Whether this machine's time of day went wrong: then clocks may have said that a lease was
    /// over (R1).
    stepped: bool,
    asked: HashMap<u64, u64>,
    held: HashMap<u64, Held>,
    faults: HashSet<(LockId, u64)>,
    last_fault_end: Option<u64>,
    found: Vec<(LockId, u32, Conviction)>,
}

impl<'a> Groundless<'a> {
    /// `recovery` is T, which no lease outlasts.
    pub(super) fn new(recovery: Duration, pulse: &'a Pulse, stepped: bool) -> Self {
        Self {
            pulse,
            recovery_ns: ns(recovery),
            stepped,
            asked: HashMap::new(),
            held: HashMap::new(),
            faults: HashSet::new(),
            last_fault_end: None,
            found: Vec::new(),
        }
    }

    /// What was found, told with the names of locks and clients.
    pub(super) fn finish(
        self,
        name: impl Fn(LockId) -> String,
        client: impl Fn(u32) -> String,
    ) -> Vec<Conviction> {
        let told = self.found.into_iter().map(|(lock, file, found)| {
            let (name, sentence) = (name(lock), &found.sentence);
            Conviction {
                sentence: format!("{} lost its hold of {name} {sentence}", client(file)),
                name,
                ..found
            }
        });
        told.collect()
    }

    /// Whatever a process held is over.
    pub(super) fn dies(&mut self, file: u32) {
        self.held.retain(|_, held| held.file != file);
    }

    pub(super) fn event(&mut self, file: u32, record: &Record) {
        match record.what {
            What::FaultBegin => _ = self.faults.insert((record.lock, record.number)),
            What::FaultEnd => {
                self.faults.remove(&(record.lock, record.number));
                self.last_fault_end = Some(record.at);
            }
            What::AcquireCalled => _ = self.asked.insert(record.claim, record.at),
            What::Acquired => {
                let asked = self.asked.remove(&record.claim).unwrap_or(0);
                self.held.insert(
                    record.claim,
                    Held { file, asked, deadline: record.deadline, unanswered: false },
                );
            }
            What::Busy
            | What::TimedOut
            | What::AcquireFailed
            | What::AcquireUnknown
            | What::Cancelled => {
                _ = self.asked.remove(&record.claim);
            }
            What::RenewCalled
            | What::RenewUnknown
            | What::RenewLost
            | What::Renewed
            | What::Converted => self.answered(record),
            What::ReleaseCalled => _ = self.held.remove(&record.claim),
            What::Lost => {
                let Some(held) = self.held.remove(&record.claim) else { return };
                self.lost(&held, record);
            }
            _ => {}
        }
    }

    fn answered(&mut self, record: &Record) {
        let Some(held) = self.held.get_mut(&record.claim) else { return };
        if record.what != What::Converted {
            held.unanswered = matches!(record.what, What::RenewCalled | What::RenewUnknown);
        }
        if record.deadline > 0 {
            held.deadline = record.deadline;
        }
    }

    /// Since when the engine has to have confirmed a hold for nothing to have happened to it: T,
    /// and what `liveness` lets pass, after the last fault.
    fn calm(&self) -> Option<u64> {
        let felt = |end: u64| end.saturating_add(self.recovery_ns).saturating_add(ns(SLACK));
        self.faults.is_empty().then(|| self.last_fault_end.map_or(0, felt))
    }

    fn lost(&mut self, held: &Held, record: &Record) {
        let Some((reason, why)) =
            OF_ENGINES.into_iter().find(|(reason, _)| *reason == record.number)
        else {
            return;
        };
        if held.unanswered || reason == 1 && self.stepped {
            return;
        }
        if held.deadline == 0 && self.recovery_ns > 0 {
            // Whoever has a lease and does not say until when says nothing that could be compared.
            return;
        }
        // The latest moment of which it is known that the engine did not confirm it before that for
        // the last time: no lease is longer than T.
        let confirmed = if held.deadline == 0 {
            held.asked
        } else {
            held.deadline.saturating_sub(self.recovery_ns)
        };
        if self.calm().is_none_or(|calm| confirmed < calm) {
            return;
        }
        let late = self.pulse.forgiven_ns(confirmed, record.at);
        let early = if held.deadline == 0 {
            String::new()
        } else {
            let left = held.deadline.saturating_sub(record.at);
            if left <= ns(EARLY).saturating_add(late) {
                return;
            }
            format!(" {} ms before its deadline", left / 1_000_000)
        };
        let sentence = format!(
            "{why}{early}, and nothing explains that: no fault was felt, and its renewals were \
             answered"
        );
        let found = Conviction {
            class: GROUNDLESS,
            name: String::new(),
            at: record.at,
            until: record.at,
            sentence,
        };
        self.found.push((record.lock, held.file, found));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: LockId = LockId(7);
    const MS: u64 = 1_000_000;

    /// What happens to one hold, asked for at 10 s and held since 10.001 s until 11 s at most; T is
    /// a second. Times are in milliseconds.
    struct Story(Vec<(u64, Record)>);

    impl Story {
        fn held() -> Self {
            let story = Self(Vec::new()).tell(10_000, What::AcquireCalled, |r| r);
            story.tell(10_001, What::Acquired, |r| r.deadline(11_000 * MS))
        }

        fn tell(mut self, at: u64, what: What, change: impl FnOnce(Record) -> Record) -> Self {
            let lock =
                if matches!(what, What::FaultBegin | What::FaultEnd) { LockId(9) } else { LOCK };
            self.0.push((at, change(Record::about(what, lock, 1))));
            self
        }

        fn renewed(self, from: u64, answer: What, until: u64) -> Self {
            self.tell(from, What::RenewCalled, |r| r)
                .tell(from + 10, answer, |r| r.deadline(until * MS))
        }

        fn fault(self, from: u64, to: u64) -> Self {
            self.tell(from, What::FaultBegin, |r| r).tell(to, What::FaultEnd, |r| r)
        }

        fn lost(self, at: u64, reason: u64) -> Self {
            self.tell(at, What::Lost, |r| r.number(reason))
        }

        fn judged(self, stepped: bool) -> Vec<String> {
            self.of(Duration::from_secs(1), &Pulse::steady(), stepped)
        }

        fn of(mut self, recovery: Duration, pulse: &Pulse, stepped: bool) -> Vec<String> {
            let mut judge = Groundless::new(recovery, pulse, stepped);
            self.0.sort_by_key(|(at, _)| *at);
            for (at, record) in &self.0 {
                judge.event(3, &Record { at: at * MS, ..*record });
            }
            let found = judge.finish(|_| "torture/0".to_owned(), |file| format!("client {file}"));
            assert!(found.iter().all(|c| (c.class, c.name.as_str()) == (GROUNDLESS, "torture/0")));
            found.into_iter().map(|c| c.sentence).collect()
        }

        fn convicted(self) -> usize {
            self.judged(false).len()
        }
    }

    #[test]
    fn a_hold_that_is_lost_well_before_its_deadline_when_nothing_happened_is_convicted() {
        let told = Story::held().lost(10_300, 2).judged(false);
        let [one] = told.as_slice() else { panic!("{told:?}") };
        let expected = "client 3 lost its hold of torture/0 because it was taken away 700 ms \
                        before its deadline, and nothing explains that: no fault was felt, and its \
                        renewals were answered";
        assert_eq!(one, expected);
        for reason in [0, 1, 4] {
            assert_eq!(Story::held().lost(10_300, reason).convicted(), 1, "{reason}");
        }
        for reason in [3, 5, 6, 7, 8] {
            assert_eq!(
                Story::held().lost(10_300, reason).convicted(),
                0,
                "{reason} is its holder's, or an operator's"
            );
        }
        assert_eq!(Story::held().lost(10_900, 1).convicted(), 0, "at its deadline, about");
        assert_eq!(Story::held().lost(11_500, 1).convicted(), 0, "after it");
        let late = |by: u64| {
            Story::held()
                .lost(10_300, 2)
                .of(Duration::from_secs(1), &Pulse::late_once(10_250 * MS, by * MS), false)
                .len()
        };
        assert_eq!((late(190), late(210)), (1, 0), "who does not run may be told of anything");
        assert_eq!(
            Story::held().lost(10_300, 1).judged(true).len(),
            0,
            "the time of day went wrong"
        );
        assert_eq!(Story::held().lost(10_300, 2).judged(true).len(), 1, "which takes nothing away");
        assert_eq!(
            Story::held().tell(10_200, What::ReleaseCalled, |r| r).lost(10_300, 2).convicted(),
            0,
            "it was given back"
        );
    }

    #[test]
    fn what_a_fault_may_have_done_to_a_hold_convicts_nobody() {
        assert_eq!(
            Story::held().fault(10_100, 10_200).lost(10_300, 2).convicted(),
            0,
            "since it was confirmed"
        );
        assert_eq!(
            Story::held().fault(8_700, 8_800).lost(10_300, 2).convicted(),
            0,
            "felt when it was"
        );
        assert_eq!(
            Story::held().fault(8_600, 8_700).lost(10_300, 2).convicted(),
            1,
            "long before it"
        );
        assert_eq!(
            Story::held().tell(5_000, What::FaultBegin, |r| r).lost(10_300, 2).convicted(),
            0,
            "under way"
        );
        let later = |lost| {
            Story::held()
                .fault(10_100, 10_200)
                .renewed(10_400, What::Renewed, 11_400)
                .renewed(11_500, What::Renewed, 12_500)
                .lost(lost, 2)
        };
        assert_eq!(later(11_700).convicted(), 1, "it was confirmed when that was felt no more");
        let other = Story::held()
            .tell(9_000, What::FaultBegin, |r| r.number(4))
            .fault(9_100, 9_200)
            .lost(10_300, 2);
        assert_eq!(other.convicted(), 0, "one of two is under way");
    }

    #[test]
    fn a_hold_whose_renewal_was_not_answered_may_be_lost_and_one_whose_renewal_says_so_may_not() {
        let renewed = |answer| Story::held().renewed(10_200, answer, 0).lost(10_300, 2).convicted();
        assert_eq!((renewed(What::RenewUnknown), renewed(What::RenewLost)), (0, 1));
        assert_eq!(
            Story::held().tell(10_200, What::RenewCalled, |r| r).lost(10_300, 2).convicted(),
            0,
            "it is under way"
        );
        let moved = Story::held().renewed(10_200, What::Renewed, 11_200);
        assert_eq!(moved.lost(11_050, 1).convicted(), 1, "the new deadline counts");
        let converted = Story::held().tell(10_200, What::Converted, |r| r.deadline(11_200 * MS));
        assert_eq!(converted.lost(11_050, 1).convicted(), 1, "as that of a conversion does");
        let unknown = Story::held()
            .renewed(10_200, What::RenewUnknown, 0)
            .tell(10_250, What::Converted, |r| r)
            .lost(10_300, 2);
        assert_eq!(unknown.convicted(), 0, "a conversion answers no renewal");
    }

    #[test]
    fn a_hold_without_a_deadline_is_never_lost_to_its_engine_where_there_are_no_leases() {
        let kernel = |fault: u64, recovery| {
            let story =
                Story(Vec::new()).fault(fault, fault).tell(10_000, What::AcquireCalled, |r| r);
            story
                .tell(10_001, What::Acquired, |r| r)
                .lost(10_300, 2)
                .of(Duration::from_secs(recovery), &Pulse::steady(), false)
                .len()
        };
        assert_eq!((kernel(9_700, 0), kernel(9_800, 0)), (1, 0), "a fault is felt for a while");
        assert_eq!(kernel(1_000, 1), 0, "it has a lease, and nobody knows until when");
    }

    #[test]
    fn nobody_who_died_or_got_nothing_is_told_anything() {
        let pulse = Pulse::steady();
        let mut judge = Groundless::new(Duration::from_secs(1), &pulse, false);
        let mut tell = |file, what, claim| {
            judge.event(file, &Record { at: 5_000 * MS, ..Record::about(what, LOCK, claim) })
        };
        tell(0, What::AcquireCalled, 1);
        tell(0, What::Acquired, 1);
        tell(0, What::AcquireCalled, 2);
        tell(0, What::Cancelled, 2);
        tell(0, What::Lost, 2);
        judge.dies(0);
        judge.event(0, &Record { at: 5_001 * MS, ..Record::about(What::Lost, LOCK, 1) });
        assert!(judge.held.is_empty() && judge.asked.is_empty() && judge.found.is_empty());
    }
}
