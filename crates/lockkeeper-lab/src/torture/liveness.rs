//! Somebody gets it: a lock that nobody holds, that somebody waits for, while no fault is under
//! way, goes to one of those who wait within T. Deaths are judged by the checker as well; a wake-up
//! that was lost only here. An error is no answer to that: who is refused with one, and all who ask
//! after it, are owed the lock still. And who alone holds it, and changes how, is answered within
//! T, too.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::pulse::Pulse;
use super::{Conviction, ns};
use crate::history::{Flags, LockId, Record, What};

/// The word for it.
pub(super) const LIVENESS: &str = "liveness";
/// How much longer than T is let pass: messages and wake-ups take their time. The pulse is a thread
/// that mostly sleeps, which a busy machine runs before clients that mostly compute: what those
/// wait for a processor at each step is more than what it sees.
pub(super) const SLACK: Duration = Duration::from_millis(250);
/// For so long somebody who was refused with an error may rest before it, or another, asks again:
/// that counts as time in which somebody waits. Clients of ours rest for 20 ms.
const RESTS: Duration = Duration::from_millis(50);

/// One who asked and was not answered yet.
#[derive(Clone, Copy)]
struct Asked {
    file: u32,
    at: u64,
}

#[derive(Default)]
struct Lock {
    waiting: HashMap<u64, Asked>,
    trying: HashMap<u64, Asked>,
    holding: HashMap<u64, u32>,
    /// Of those who hold it, whose change of mode is under way.
    converting: HashSet<u64>,
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
    fn settle(&mut self, at: u64) {
        let alone = self.holding.len() == 1
            && self.holding.keys().any(|claim| self.converting.contains(claim));
        self.alone = self.alone.or(Some(at)).filter(|_| alone);
        if !self.holding.is_empty() {
            self.forgive();
            self.was_held = true;
        } else if !self.waiting.is_empty() {
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
    fn rests(&mut self, at: u64) {
        if self.since.is_some() && self.errors > 0 && self.waiting.is_empty() {
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
}

/// See the module.
pub(super) struct Liveness<'a> {
    pulse: &'a Pulse,
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
                return;
            }
            What::FaultEnd => {
                self.faults.remove(&(record.lock, record.number));
                self.last_fault_end = record.at;
                return;
            }
            What::AcquireCalled
            | What::Acquired
            | What::Busy
            | What::TimedOut
            | What::AcquireFailed
            | What::AcquireUnknown
            | What::Cancelled
            | What::ConvertCalled
            | What::Converted
            | What::ConvertFailed
            | What::Released
            | What::ReleasedLost
            | What::ReleasedNotOwner
            | What::ReleaseUnknown
            | What::Lost => {}
            _ => return,
        }
        if !matches!(record.what, What::AcquireCalled | What::Busy | What::ConvertCalled) {
            self.look(record.lock, record.at);
        }
        let (calm, quiet) = (self.last_fault_end, self.faults.is_empty());
        let (at, claim) = (record.at, record.claim);
        let lock = self.locks.entry(record.lock).or_default();
        match record.what {
            What::AcquireCalled if record.flags.has(Flags::TRY) => {
                _ = lock.trying.insert(claim, Asked { file, at })
            }
            What::AcquireCalled => {
                lock.wakes(calm, at);
                lock.waiting.insert(claim, Asked { file, at });
            }
            What::Acquired => {
                lock.waiting.remove(&claim);
                lock.trying.remove(&claim);
                lock.holding.insert(claim, file);
            }
            What::Busy | What::TimedOut | What::Cancelled => {
                lock.trying.remove(&claim);
                lock.waiting.remove(&claim);
                lock.rests(at);
            }
            What::AcquireFailed => {
                lock.trying.remove(&claim);
                lock.errors += u64::from(lock.waiting.remove(&claim).is_some());
                lock.rests(at);
            }
            What::AcquireUnknown => {
                Self::unknown(lock, claim, at, |asked| quiet && asked.at > calm)
            }
            What::ConvertCalled => _ = lock.converting.insert(claim),
            What::Converted | What::ConvertFailed => _ = lock.converting.remove(&claim),
            _ => {
                lock.holding.remove(&claim);
                lock.converting.remove(&claim);
            }
        }
        lock.settle(at);
    }

    /// It may have it, until its lease is over, which is T at most. Where everything was `calm`
    /// when it asked, and one before it had the same answer, that is an error as any other: the
    /// second lease is let pass, and no third.
    fn unknown(lock: &mut Lock, claim: u64, at: u64, calm: impl Fn(Asked) -> bool) {
        let tried = lock.trying.remove(&claim);
        let waited = lock.waiting.remove(&claim);
        lock.alone = None;
        if !lock.was_held || !waited.or(tried).is_some_and(calm) {
            return lock.forgive();
        }
        lock.errors += u64::from(waited.is_some());
        if lock.since.is_some() && !std::mem::replace(&mut lock.doubted, true) {
            lock.since = Some(at);
        }
        lock.rests(at);
    }

    /// Whatever a process held or waited for is over.
    pub(super) fn dies(&mut self, file: u32, at: u64) {
        for lock in self.locks.keys().copied().collect::<Vec<_>>() {
            self.look(lock, at);
            if let Some(lock) = self.locks.get_mut(&lock) {
                lock.waiting.retain(|_, of| of.file != file);
                lock.trying.retain(|_, of| of.file != file);
                lock.holding.retain(|_, of| *of != file);
                lock.settle(at);
            }
        }
    }

    fn all(&mut self, at: u64) {
        for lock in self.locks.keys().copied().collect::<Vec<_>>() {
            self.look(lock, at);
        }
    }

    /// How long that took, if it is too long; so much more than T may it be.
    fn too_long(&self, since: u64, at: u64, more: Duration) -> Option<u64> {
        let took = at.saturating_sub(since);
        let bound = ns(self.promised.saturating_add(SLACK).saturating_add(more));
        (took > bound && took > bound.saturating_add(self.pulse.forgiven_ns(since, at)))
            .then_some(took)
    }

    /// Convicts, if a lock has been owed, or a change of mode, for too long.
    fn look(&mut self, id: LockId, at: u64) {
        let Some(lock) = self.locks.get(&id).filter(|_| self.faults.is_empty()) else { return };
        let from = |since: Option<u64>| since.map(|since| since.max(self.last_fault_end));
        let (waiting, errors) = (lock.waiting.len(), lock.errors);
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
        let name = self.names.get(&id).cloned().unwrap_or_default();
        let promised = self.promised.as_millis();
        let mut convict = |since, sentence| {
            self.found.push(Conviction {
                class: LIVENESS,
                name: name.clone(),
                at: since,
                until: at,
                sentence,
            })
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
mod tests {
    use super::*;

    const LOCK: LockId = LockId(7);
    const SECOND: u64 = 1_000_000_000;

    fn tell(events: &[(u64, What, u64)]) -> usize {
        let pulse = Pulse::steady();
        let mut judge = Liveness::new(Duration::from_secs(1), &pulse);
        for (at, what, claim) in events {
            let lock =
                if matches!(what, What::FaultBegin | What::FaultEnd) { LockId(9) } else { LOCK };
            judge.event(0, &Record { at: at * SECOND / 10, ..Record::about(*what, lock, *claim) });
        }
        judge.all(10 * SECOND);
        judge.found.len()
    }

    #[test]
    fn a_lock_that_nobody_holds_and_somebody_waits_for_is_convicted_after_its_time() {
        use What::{AcquireCalled, Acquired, FaultBegin, FaultEnd, Released, TimedOut};
        assert_eq!(
            tell(&[(0, AcquireCalled, 1), (10, Acquired, 1), (99, Released, 1)]),
            0,
            "in time"
        );
        assert_eq!(tell(&[(0, AcquireCalled, 1), (30, Acquired, 1)]), 1, "too late");
        assert_eq!(tell(&[(0, AcquireCalled, 1), (30, TimedOut, 1)]), 1, "given up too late");
        assert_eq!(
            tell(&[
                (0, AcquireCalled, 1),
                (1, Acquired, 1),
                (2, AcquireCalled, 2),
                (60, Released, 1),
                (61, Acquired, 2)
            ]),
            0
        );
        let faulty =
            [(0, AcquireCalled, 1), (1, FaultBegin, 0), (30, FaultEnd, 0), (40, Acquired, 1)];
        assert_eq!(tell(&faulty), 0, "a fault was under way");
        assert_eq!(tell(&[(0, AcquireCalled, 1)]), 1, "never");
    }

    #[test]
    fn a_death_ends_what_was_held_and_waited_for() {
        let pulse = Pulse::steady();
        let mut judge = Liveness::new(Duration::from_secs(1), &pulse);
        for (at, what, claim, file) in [
            (0, What::AcquireCalled, 1, 0),
            (0, What::Acquired, 1, 0),
            (1, What::AcquireCalled, 2, 1),
        ] {
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

    /// Again and again somebody asks, and is answered with this at once; so many times, every so
    /// many milliseconds. At last one gets it.
    fn asked(answer: What, times: u64, every: u64) -> Vec<(u64, What, u64)> {
        let asked = (0..times).flat_map(|n| {
            [(1 + n * every, What::AcquireCalled, 100 + n), (1 + n * every, answer, 100 + n)]
        });
        let end = times * every;
        asked
            .chain([
                (end, What::AcquireCalled, 99),
                (end + 1, What::Acquired, 99),
                (end + 2, What::Released, 99),
            ])
            .collect()
    }

    /// What is found where T is a second and times are in milliseconds.
    fn found(events: &[(u64, What, u64)]) -> Vec<String> {
        let pulse = Pulse::steady();
        let mut judge = Liveness::new(Duration::from_secs(1), &pulse);
        judge.name(LOCK, "torture/0".to_owned());
        for (at, what, claim) in events {
            let lock =
                if matches!(what, What::FaultBegin | What::FaultEnd) { LockId(9) } else { LOCK };
            judge.event(
                0,
                &Record { at: at * SECOND / 1_000, ..Record::about(*what, lock, *claim) },
            );
        }
        judge
            .finish(events.iter().map(|(at, ..)| *at).max().unwrap_or(0) * SECOND / 1_000)
            .into_iter()
            .map(|c| c.sentence)
            .collect()
    }

    #[test]
    fn a_lock_that_is_refused_with_an_error_to_everybody_is_owed_all_the_time() {
        let told = found(&asked(What::AcquireFailed, 80, 20));
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0]
                .starts_with("torture/0 was free and 1 waited for it, and no caller got it for 13"),
            "{told:?}"
        );
        assert!(
            told[0].ends_with(" requests ended in an error; the promise is 1000 ms"),
            "{told:?}"
        );
        let twice = found(&asked(What::AcquireFailed, 150, 20));
        assert!(
            twice.len() == 2
                && twice.iter().all(|told| told.contains(" ms; 66 requests ended in an error")),
            "{twice:?}"
        );
        assert!(found(&asked(What::AcquireFailed, 60, 20)).is_empty(), "in time");
        assert!(
            found(&asked(What::TimedOut, 80, 20)).is_empty(),
            "who gives up at once is owed nothing"
        );
        let all = asked(What::AcquireFailed, 80, 20);
        let between = |what: &[(u64, What, u64)]| found(&[&all[..80], what, &all[80..]].concat());
        assert_eq!(
            between(&[(790, What::AcquireCalled, 1), (795, What::TimedOut, 1)]).len(),
            1,
            "nobody got it either"
        );
        assert!(
            between(&[
                (790, What::AcquireCalled, 1),
                (791, What::Acquired, 1),
                (792, What::Released, 1)
            ])
            .is_empty(),
            "one got it"
        );
        assert!(
            between(&[(790, What::FaultBegin, 0), (799, What::FaultEnd, 0)]).is_empty(),
            "a fault excuses what it did"
        );
        let faulty = [&[(0, What::FaultBegin, 0)][..], &all].concat();
        assert!(found(&faulty).is_empty(), "it is under way");
    }

    #[test]
    fn the_time_in_which_nobody_asks_is_owed_to_nobody_but_for_the_rest_that_one_takes_who_was_refused()
     {
        assert!(found(&asked(What::AcquireFailed, 2, 5_000)).is_empty());
        assert!(found(&asked(What::AcquireFailed, 20, 200)).is_empty(), "50 of each 200 ms count");
        assert_eq!(found(&asked(What::AcquireFailed, 30, 200)).len(), 1);
        let late = [(5_000, What::FaultBegin, 0), (5_500, What::FaultEnd, 0)];
        let before = asked(What::AcquireFailed, 60, 20);
        let after = [(9_000, What::AcquireCalled, 1), (9_900, What::Acquired, 1)];
        assert!(
            found(&[&before[..100], &late, &after].concat()).is_empty(),
            "what was before the fault counts no more"
        );
        let again = asked(What::AcquireFailed, 75, 20)
            .into_iter()
            .map(|(at, what, claim)| (5_500 + at, what, 1_000 + claim));
        let again: Vec<_> = again.collect();
        assert_eq!(
            found(&[&before[..100], &late, &again].concat()).len(),
            1,
            "and what comes after it does"
        );
    }

    #[test]
    fn an_unknown_answer_lets_a_lease_pass_and_many_let_two_pass_and_no_third() {
        let held = [(0, What::AcquireCalled, 1), (0, What::Acquired, 1), (0, What::Released, 1)];
        let after = |events: &[(u64, What, u64)]| found(&[&held, events].concat()).len();
        assert_eq!(after(&asked(What::AcquireUnknown, 110, 20)), 0, "two leases");
        assert_eq!(after(&asked(What::AcquireUnknown, 125, 20)), 1);
        assert_eq!(
            found(&asked(What::AcquireUnknown, 500, 20)).len(),
            0,
            "nobody ever held it: that is too weak to say"
        );
        let mut one = asked(What::AcquireFailed, 80, 20);
        one.insert(60, (600, What::AcquireUnknown, 999));
        one.insert(60, (600, What::AcquireCalled, 999));
        assert_eq!(after(&one), 0, "who may have it has it until its lease is over");
        let mut late = asked(What::AcquireFailed, 165, 20);
        late.insert(120, (1_200, What::AcquireUnknown, 999));
        late.insert(120, (1_200, What::AcquireCalled, 999));
        assert_eq!(after(&late), 0, "from its answer on");
        // Those that were on their way when a fault ended may have taken effect, each of them.
        let mut hit = vec![(1, What::FaultBegin, 0)];
        hit.extend((0..50).map(|n| (2, What::AcquireCalled, 100 + n)));
        hit.push((3, What::FaultEnd, 0));
        hit.extend((0..50).map(|n| (100 * n, What::AcquireUnknown, 100 + n)).skip(1));
        assert_eq!(after(&hit), 0);
    }

    #[test]
    fn who_alone_holds_it_and_changes_its_mode_is_answered_in_time() {
        use What::{
            AcquireCalled, AcquireUnknown, Acquired, ConvertCalled, ConvertFailed, Converted,
            FaultBegin, FaultEnd, Released,
        };
        let told = |more: &[(u64, What, u64)]| {
            let mut all = vec![
                (0, AcquireCalled, 1),
                (0, Acquired, 1),
                (0, AcquireCalled, 2),
                (0, Acquired, 2),
                (10, ConvertCalled, 1),
            ];
            all.extend(more);
            found(&all)
        };
        let late = told(&[(1_000, Released, 2), (2_300, Converted, 1)]);
        assert_eq!(
            late,
            ["torture/0 had one holder, which did not learn for 1300 ms whether its mode had \
              changed; the promise is 1000 ms"]
        );
        assert_eq!(
            told(&[(1_000, Released, 2), (2_300, ConvertFailed, 1)]).len(),
            1,
            "refused too late"
        );
        assert_eq!(
            told(&[(1_000, Released, 2), (2_300, Released, 1)]).len(),
            1,
            "given up too late"
        );
        assert_eq!(told(&[(1_000, Released, 2), (9_000, FaultBegin, 0)]).len(), 1, "never");
        assert_eq!(
            told(&[(1_000, Released, 2), (2_000, AcquireCalled, 3), (2_300, Converted, 1)]).len(),
            1,
            "whoever asks meanwhile"
        );
        for fine in [
            &[(1_000, Released, 2), (2_200, Converted, 1)][..],
            &[(3_000, Released, 2), (4_000, Converted, 1), (9_000, Released, 1)],
            &[(1_000, Released, 2), (1_100, ConvertFailed, 1), (9_000, Released, 1)],
            &[
                (1_000, Released, 2),
                (2_000, AcquireCalled, 3),
                (2_100, Acquired, 3),
                (9_000, Released, 3),
                (9_100, Converted, 1),
            ],
            &[
                (1_000, Released, 2),
                (1_100, FaultBegin, 0),
                (8_000, FaultEnd, 0),
                (9_000, Converted, 1),
            ],
            &[
                (500, AcquireCalled, 3),
                (1_000, Released, 2),
                (2_000, AcquireUnknown, 3),
                (3_000, Converted, 1),
            ],
            &[(1_000, Released, 2), (1_100, Released, 1), (9_000, AcquireCalled, 3)],
        ] {
            assert_eq!(told(fine), [""; 0], "{fine:?}");
        }
        let pulse = Pulse::steady();
        let mut judge = Liveness::new(Duration::from_secs(1), &pulse);
        for (at, what, claim, file) in
            [(0, Acquired, 1, 0), (0, Acquired, 2, 1), (0, ConvertCalled, 1, 0)]
        {
            judge.event(file, &Record { at: at * SECOND, ..Record::about(what, LOCK, claim) });
        }
        judge.dies(1, 5 * SECOND);
        judge.all(6 * SECOND);
        assert!(judge.found.is_empty(), "the dead one's lease may last until now");
        judge.dies(0, 8 * SECOND);
        judge.all(20 * SECOND);
        assert_eq!(judge.found.len(), 1, "and who died waits no more");
    }
}
