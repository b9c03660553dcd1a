//! A hold is not lost for nothing. What the engine confirmed when no fault was felt any more, while
//! its renewals are answered, ends when its holder gives it back or at its deadline: one that its
//! holder is told is lost well before that has no reason, and one who believes it stops work that
//! nothing endangered.

use std::time::Duration;

use super::liveness::SLACK;
use super::replay::{Judge, Life, Replay, Stage, Told};
use super::report::Late;
use super::{Conviction, ns};
use crate::history::{Record, What};

/// The word for it.
pub(crate) const GROUNDLESS: &str = "groundless-loss";
/// The reason of a hold that a step of the time of day ended.
const STEPPED: u64 = 9;
/// What is told so shortly before a deadline is told at it: clocks are read one after the other.
const EARLY: Duration = Duration::from_millis(100);

/// Why a hold is said to be lost, as far as an engine says it: for no reason, it ran out, it was
/// taken away, its session ended, the time of day stepped. The other reasons are of whoever held
/// it, or an operator's, who replaced a file.
const OF_ENGINES: [(u64, &str); 5] = [
    (0, "without a reason"),
    (1, "because it ran out"),
    (2, "because it was taken away"),
    (4, "because its session ended"),
    (STEPPED, "because the time of day stepped"),
];

/// See the module.
pub(crate) struct Groundless {
    late: Late,
    recovery_ns: u64,
    /// Whether this machine's time of day went wrong: then a hold may have been in doubt (R1).
    stepped: bool,
    found: Vec<Conviction>,
}

impl Judge for Groundless {
    fn after(&mut self, told: &Told, replay: &Replay) {
        let held = told.was.filter(|life| life.stage == Stage::Held && !life.dead);
        if let Some(held) = held.filter(|_| told.record.what == What::Lost) {
            self.lost(&held, told.record, replay);
        }
    }
}

impl Groundless {
    /// `recovery` is T, which no lease outlasts.
    pub(crate) fn new(recovery: Duration, late: Late, stepped: bool) -> Self {
        Self { late, recovery_ns: ns(recovery), stepped, found: Vec::new() }
    }

    pub(crate) fn finish(self) -> Vec<Conviction> {
        self.found
    }

    /// Since when the engine has to have confirmed a hold for nothing to have happened to it: T,
    /// and what `liveness` lets pass, after the last fault.
    fn calm(&self, replay: &Replay) -> Option<u64> {
        let felt = |end: u64| end.saturating_add(self.recovery_ns).saturating_add(ns(SLACK));
        replay.is_quiet().then(|| replay.last_fault_end.map_or(0, felt))
    }

    fn lost(&mut self, held: &Life, record: &Record, replay: &Replay) {
        let Some((reason, why)) =
            OF_ENGINES.into_iter().find(|(reason, _)| *reason == record.number)
        else {
            return;
        };
        if held.unanswered || reason == STEPPED && self.stepped {
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
        if self.calm(replay).is_none_or(|calm| confirmed < calm) {
            return;
        }
        let late = self.late.ns(confirmed, record.at);
        let early = if held.deadline == 0 {
            String::new()
        } else {
            let left = held.deadline.saturating_sub(record.at);
            if left <= ns(EARLY).saturating_add(late) {
                return;
            }
            format!(" {} ms before its deadline", left / 1_000_000)
        };
        let (client, name) = (replay.client_name(held.file), replay.lock_name(record.lock));
        let sentence = format!(
            "{client} lost its hold of {name} {why}{early}, and nothing explains that: no fault \
             was felt, and its renewals were answered"
        );
        let (at, until) = (record.at, record.at);
        self.found.push(Conviction { class: GROUNDLESS, name, at, until, sentence });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::LockId;
    use crate::torture::pulse::Pulse;

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
            self.of(Duration::from_secs(1), Late::never(), stepped)
        }

        fn of(mut self, recovery: Duration, late: Late, stepped: bool) -> Vec<String> {
            let mut judge = Groundless::new(recovery, late, stepped);
            self.0.sort_by_key(|(at, _)| *at);
            let mut replay = Replay::default();
            replay.name(LOCK, "torture/0".to_owned());
            replay.client(0, 3, "client 3".to_owned());
            for (at, record) in &self.0 {
                replay.tell(3, &Record { at: at * MS, ..*record }, &mut [&mut judge]);
            }
            let found = judge.finish();
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
        for reason in [0, 1, 4, STEPPED] {
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
                .of(Duration::from_secs(1), Pulse::late_once(10_250 * MS, by * MS).late(), false)
                .len()
        };
        assert_eq!((late(190), late(210)), (1, 0), "who does not run may be told of anything");
        assert_eq!(
            Story::held().lost(10_300, STEPPED).judged(true).len(),
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
                .of(Duration::from_secs(recovery), Late::never(), false)
                .len()
        };
        assert_eq!((kernel(9_700, 0), kernel(9_800, 0)), (1, 0), "a fault is felt for a while");
        assert_eq!(kernel(1_000, 1), 0, "it has a lease, and nobody knows until when");
    }

    #[test]
    fn nobody_who_died_or_got_nothing_is_told_anything() {
        let mut judge = Groundless::new(Duration::from_secs(1), Late::never(), false);
        let mut replay = Replay::default();
        replay.client(77, 0, String::new());
        let mut tell = |file, what, claim| {
            let record = Record { at: 5_000 * MS, ..Record::about(what, LOCK, claim) };
            replay.tell(file, &record, &mut [&mut judge]);
        };
        tell(0, What::AcquireCalled, 1);
        tell(0, What::Acquired, 1);
        tell(0, What::AcquireCalled, 2);
        tell(0, What::Cancelled, 2);
        tell(0, What::Lost, 2);
        let mut then = |record| replay.tell(0, &record, &mut [&mut judge]);
        then(Record { at: 5_000 * MS, ..Record::new(What::Kill).number(77) });
        then(Record { at: 5_001 * MS, ..Record::about(What::Lost, LOCK, 1) });
        assert_eq!(replay.lives(LOCK).iter().count(), 0);
        assert!(judge.found.is_empty());
    }
}
