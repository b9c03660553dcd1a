//! Everybody gets it: a waiter is not passed over for ever by those who asked after it. Counted in grants, which needs no clock; what
//! time goes by is looked at only to forgive a machine that did not let the waiter run.
//!
//! How many may pass it follows from what is promised. A process has one place in the engine's line, which is first come, first served
//! (R9, R11). Before a waiter, tasks of its own process that came earlier may each need a place of their own, at the end of that line; at
//! each of these places every process may have one hold, and a hold passes inside of its process 64 times at most.

use std::collections::HashMap;
use std::time::Duration;

use super::Conviction;
use super::liveness::SLACK;
use super::pulse::Pulse;
use crate::history::{Flags, HoldMode, LockId, Record, What};

/// The word for it.
pub(super) const STARVATION: &str = "starvation";
/// How many turns a hold has at most (R9).
const TURNS_MAX: u64 = 64;
/// After a fault a client comes back after pauses of up to so long, and stands at the end of the line.
const COMES_BACK: Duration = Duration::from_secs(2);

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
    /// Among so many clients with so many tasks each; `tells` when they say which turns were handed on.
    pub(super) fn among(clients: u32, tasks: u32, tells: bool, [locks, permits]: [bool; 2]) -> Self {
        let holds = u64::from(clients).saturating_mul(u64::from(tasks));
        Self { locks, permits, holds: tells.then_some(holds), turns: holds.saturating_mul(TURNS_MAX) }
    }

    /// The number that a report shows beside [`Passed::shown`].
    pub(super) fn shown(&self) -> Option<u64> {
        self.locks.then(|| self.holds.unwrap_or(self.turns))
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
            Some(may) if self.holds > may => Some(format!("{} holds went to others that asked later; at most {may} may", self.holds)),
            _ if self.turns > fair.turns => Some(format!("{} that asked later got it before; at most {} may", self.turns, fair.turns)),
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
    felt_ns: u64,
    lines: HashMap<LockId, Line>,
    everybody: Trouble,
    of: HashMap<u32, Trouble>,
    most: u64,
    found: Vec<(LockId, u32, Conviction)>,
}

impl<'a> Starvation<'a> {
    /// `recovery` is T.
    pub(super) fn new(recovery: Duration, fair: Fair, pulse: &'a Pulse) -> Self {
        Self {
            pulse,
            fair,
            felt_ns: u64::try_from((recovery + COMES_BACK).as_nanos()).unwrap_or(u64::MAX),
            lines: HashMap::new(),
            everybody: Trouble::default(),
            of: HashMap::new(),
            most: 0,
            found: Vec::new(),
        }
    }

    /// What was found, told with the names of locks and clients; and by how many somebody was passed at most.
    pub(super) fn finish(self, name: impl Fn(LockId) -> String, client: impl Fn(u32) -> String) -> (Vec<Conviction>, u64) {
        let told = self.found.into_iter().map(|(lock, file, found)| {
            let (name, sentence) = (name(lock), &found.sentence);
            Conviction { sentence: format!("{} waited for {name} {sentence}", client(file)), name, ..found }
        });
        (told.collect(), self.most)
    }

    /// A fault begins or ends; `hit` are the files of the process that it hits, empty for one that hits everybody.
    pub(super) fn fault(&mut self, begins: bool, hit: &[u32], at: u64) {
        let until = at.saturating_add(self.felt_ns);
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
        all.filter(|asked| hit.is_empty() || hit.contains(&asked.file)).for_each(|asked| asked.passed = Passed::default());
    }

    /// Whatever a process held or waited for is over.
    pub(super) fn dies(&mut self, file: u32) {
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
                };
                line.asked.insert(record.claim, asked);
            }
            What::Acquired => self.granted(record),
            What::Busy | What::TimedOut | What::AcquireFailed | What::AcquireUnknown | What::Cancelled => {
                _ = line.asked.remove(&record.claim)
            }
            What::Released | What::ReleasedLost | What::ReleasedNotOwner | What::ReleaseUnknown | What::Lost => {
                line.owners.remove(&record.claim);
            }
            _ => {}
        }
    }

    fn granted(&mut self, record: &Record) {
        let Some(line) = self.lines.get_mut(&record.lock) else { return };
        let Some(got) = line.asked.remove(&record.claim) else { return };
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
        for waiter in line.asked.values_mut().filter(|waiter| !waiter.trying && waiter.at < got.at) {
            if self.of.get(&waiter.file).is_some_and(felt) {
                continue;
            }
            if waiter.passed == Passed::default() {
                waiter.since = record.at;
            }
            waiter.passed.turns += 1;
            waiter.passed.holds += u64::from(!record.flags.has(Flags::HANDED));
            self.most = self.most.max(waiter.passed.shown(&self.fair));
            let promised = if waiter.permits { self.fair.permits } else { self.fair.locks };
            let Some(too_many) = waiter.passed.too_many(&self.fair).filter(|_| promised && !waiter.convicted) else { continue };
            let took = record.at.saturating_sub(waiter.since);
            let slack = u64::try_from(SLACK.as_nanos()).unwrap_or(u64::MAX);
            if took <= slack || took <= slack.saturating_add(self.pulse.forgiven_ns(waiter.since, record.at)) {
                continue;
            }
            waiter.convicted = true;
            let ms = record.at.saturating_sub(waiter.at) / 1_000_000;
            let sentence = format!("for {ms} ms, and {too_many}");
            let found = Conviction { class: STARVATION, name: String::new(), at: record.at, until: record.at, sentence };
            self.found.push((record.lock, waiter.file, found));
        }
    }
}

#[cfg(test)]
mod tests {
    use lockkeeper::Mode;

    use super::*;

    const LOCK: LockId = LockId(7);
    const MS: u64 = 1_000_000;
    const FAIR: Fair = Fair { locks: true, permits: true, holds: Some(10), turns: 640 };
    /// Of the other processes, and of the one that waits.
    const OTHERS: u32 = 0;
    const WAITS: u32 = 1;
    const WAITER: u64 = 1;

    struct Run<'a> {
        judge: Starvation<'a>,
        now: u64,
        claims: u64,
    }

    impl Run<'_> {
        fn with(fair: Fair, test: impl FnOnce(&mut Run<'_>)) -> (Vec<Conviction>, u64) {
            let pulse = Pulse::steady();
            let judge = Starvation::new(Duration::from_secs(1), fair, &pulse);
            let mut run = Run { judge, now: 0, claims: WAITER };
            test(&mut run);
            run.judge.finish(|_| "torture/0".to_owned(), |file| format!("client {file}"))
        }

        fn tell(&mut self, file: u32, record: Record) {
            self.now += MS;
            self.judge.event(file, &Record { at: self.now, ..record });
        }

        fn waits(&mut self, mode: Mode) {
            self.tell(WAITS, Record::about(What::AcquireCalled, LOCK, WAITER).mode(mode));
        }

        /// So many come, get it, and go, in so many milliseconds each.
        fn others(&mut self, count: u64, each: u64) {
            for _ in 0..count {
                self.claims += 1;
                self.tell(OTHERS, Record::about(What::AcquireCalled, LOCK, self.claims).mode(Mode::Exclusive));
                self.now += each.saturating_sub(3) * MS;
                self.tell(OTHERS, Record::about(What::Acquired, LOCK, self.claims).mode(Mode::Exclusive));
                self.tell(OTHERS, Record::about(What::Released, LOCK, self.claims));
            }
        }
    }

    #[test]
    fn one_that_more_pass_than_may_is_convicted_once_and_only_where_a_line_keeps_the_order() {
        let passed = |count, fair: Fair, mode| {
            Run::with(fair, |run| {
                run.waits(mode);
                run.others(count, 100);
            })
        };
        let (found, most) = passed(10, FAIR, Mode::Exclusive);
        assert_eq!((found, most), (Vec::new(), 10), "as many as may");
        let (found, most) = passed(30, FAIR, Mode::Exclusive);
        assert_eq!((found.len(), most, found[0].class, found[0].name.as_str()), (1, 30, STARVATION, "torture/0"));
        assert!(found[0].sentence.starts_with("client 1 waited for torture/0 for 1"), "{}", found[0].sentence);
        assert!(found[0].sentence.ends_with("and 11 holds went to others that asked later; at most 10 may"), "{}", found[0].sentence);
        let permits = Mode::Permits { count: 1, limit: 3 };
        for (fair, mode, convicted) in [
            (Fair { locks: false, ..FAIR }, Mode::Exclusive, 0),
            (Fair { locks: false, ..FAIR }, permits, 1),
            (Fair { permits: false, ..FAIR }, permits, 0),
            (Fair { permits: false, ..FAIR }, Mode::Shared, 1),
        ] {
            let (found, most) = passed(30, fair, mode);
            assert_eq!((found.len(), most), (convicted, 30), "{fair:?} {mode:?}");
        }
    }

    #[test]
    fn who_asked_before_passes_nobody_and_who_gave_up_or_died_is_passed_no_more() {
        let (found, most) = Run::with(FAIR, |run| {
            for claim in 100..150 {
                run.tell(OTHERS, Record::about(What::AcquireCalled, LOCK, claim).mode(Mode::Exclusive));
            }
            run.waits(Mode::Exclusive);
            for claim in 100..150 {
                run.now += 100 * MS;
                run.tell(OTHERS, Record::about(What::Acquired, LOCK, claim));
            }
        });
        assert_eq!((found, most), (Vec::new(), 0));
        for end in [What::TimedOut, What::Cancelled, What::AcquireFailed, What::AcquireUnknown, What::Acquired] {
            let (found, most) = Run::with(FAIR, |run| {
                run.waits(Mode::Exclusive);
                run.others(8, 100);
                run.tell(WAITS, Record::about(end, LOCK, WAITER));
                run.others(8, 100);
            });
            assert_eq!((found, most), (Vec::new(), 8), "{end:?}");
        }
        let (found, most) = Run::with(FAIR, |run| {
            run.waits(Mode::Exclusive);
            run.others(8, 100);
            run.judge.dies(WAITS);
            run.others(8, 100);
        });
        assert_eq!((found, most), (Vec::new(), 8));
    }

    #[test]
    fn a_try_waits_for_nobody_and_who_enters_its_own_hold_again_passes_nobody() {
        let (found, most) = Run::with(FAIR, |run| {
            run.tell(WAITS, Record::about(What::AcquireCalled, LOCK, WAITER).mode(Mode::Exclusive).flag(Flags::TRY));
            run.others(30, 100);
        });
        assert_eq!((found, most), (Vec::new(), 0));
        let (found, most) = Run::with(FAIR, |run| {
            let owned = |what, claim| Record { owner: 5, ..Record::about(what, LOCK, claim) };
            run.tell(OTHERS, owned(What::AcquireCalled, 50));
            run.tell(OTHERS, owned(What::Acquired, 50));
            run.waits(Mode::Exclusive);
            for claim in 60..90 {
                run.now += 100 * MS;
                run.tell(OTHERS, owned(What::AcquireCalled, claim));
                run.tell(OTHERS, owned(What::Acquired, claim));
                run.tell(OTHERS, owned(What::Released, claim));
            }
            run.tell(OTHERS, owned(What::Released, 50));
            run.tell(OTHERS, owned(What::AcquireCalled, 95));
            run.tell(OTHERS, owned(What::Acquired, 95));
        });
        assert_eq!((found, most), (Vec::new(), 1), "a new hold of that owner does");
    }

    #[test]
    fn nothing_is_counted_while_a_fault_hits_who_waits_and_until_it_is_back_in_line() {
        for hit in [&[][..], &[WAITS]] {
            let (found, most) = Run::with(FAIR, |run| {
                run.waits(Mode::Exclusive);
                run.others(9, 100);
                run.judge.fault(true, hit, run.now);
                run.others(30, 100);
                run.judge.fault(false, hit, run.now);
                // A lease of a second, and two until it has connected again.
                run.others(29, 100);
                run.now += 100 * MS;
                run.others(9, 100);
            });
            assert_eq!((found, most), (Vec::new(), 9), "{hit:?}");
        }
        let (found, _) = Run::with(FAIR, |run| {
            run.waits(Mode::Exclusive);
            run.judge.fault(true, &[OTHERS], run.now);
            run.others(30, 100);
        });
        assert_eq!(found.len(), 1, "what hits another client is no reason to pass this one");
        let (found, _) = Run::with(FAIR, |run| {
            run.judge.fault(true, &[], run.now);
            run.judge.fault(true, &[], run.now);
            run.judge.fault(false, &[], run.now);
            run.now += 10_000 * MS;
            run.waits(Mode::Exclusive);
            run.others(30, 100);
        });
        assert!(found.is_empty(), "one of two faults is under way");
    }

    #[test]
    fn a_machine_that_did_not_let_it_run_is_forgiven() {
        let (found, most) = Run::with(FAIR, |run| {
            run.waits(Mode::Exclusive);
            // All in a quarter of a second: less than threads may have to wait for a processor.
            run.others(60, 4);
        });
        assert_eq!((found, most), (Vec::new(), 60));
    }

    #[test]
    fn turns_that_are_handed_on_count_as_turns_of_a_hold_and_all_do_where_nobody_says_which() {
        let handed = |count: u64, fair| {
            Run::with(fair, |run| {
                run.waits(Mode::Exclusive);
                for claim in 100..100 + count {
                    run.tell(OTHERS, Record::about(What::AcquireCalled, LOCK, claim));
                    run.now += 10 * MS;
                    run.tell(OTHERS, Record::about(What::Acquired, LOCK, claim).flag(Flags::HANDED));
                }
            })
        };
        assert_eq!(handed(640, FAIR), (Vec::new(), 0));
        let (found, _) = handed(641, FAIR);
        assert!(found[0].sentence.ends_with("641 that asked later got it before; at most 640 may"), "{}", found[0].sentence);
        let mute = Fair { holds: None, turns: 20, ..FAIR };
        assert_eq!(handed(30, mute).1, 30);
        assert_eq!(handed(30, mute).0.len(), 1);
    }

    #[test]
    fn a_hold_of_every_process_may_pass_for_every_task_that_may_stand_before() {
        let told = Fair::among(4, 8, true, [true, false]);
        assert_eq!(told, Fair { locks: true, permits: false, holds: Some(4 * 8), turns: 4 * 8 * 64 });
        assert_eq!((told.shown(), Fair::among(4, 8, false, [true; 2]).shown()), (Some(32), Some(2048)));
        assert_eq!(Fair::among(4, 8, true, [false; 2]).shown(), None);
    }
}
