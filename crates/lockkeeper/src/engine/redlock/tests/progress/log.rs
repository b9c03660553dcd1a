//! What happened in a simulation, and what of it should not have.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::net::MEMBERS;

/// A task of a process: it waits, holds, and waits again.
pub(super) type Who = (usize, usize);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It begins to wait.
    Waits { who: Who },
    /// It holds under this token.
    Holds { who: Who, token: u64 },
    /// It begins to give it back, or has lost it.
    Gives { who: Who },
    /// Its time to wait is over.
    Leaves { who: Who },
    /// Too few members answered a process, and it is to ask again after a while.
    Unanswered { process: usize },
    /// A process is killed, or stops.
    Dies { process: usize },
    /// One that had stopped goes on.
    Revives { process: usize },
    /// A member was asked by a process for the lock.
    Asked { process: usize, member: usize },
    /// A process has the record of a member from now on, and until when if nothing else comes.
    Has { member: usize, record: Record },
    /// Members were changed behind everybody's back.
    Meddles,
}

/// Whose a member's record is, and until when.
pub(super) type Record = Option<(usize, Duration)>;

pub(super) struct Log {
    begun: Instant,
    happened: Mutex<Vec<(Duration, What)>>,
}

/// What is promised.
#[derive(Clone, Copy, Debug)]
pub(super) struct Promise {
    /// How long the lock is idle at most while somebody living waits.
    pub(super) idle: Duration,
    /// How much longer that is, all in all, after each time that processes died.
    pub(super) dead: Duration,
    /// How much of it one who waits hears nothing, and asks by itself.
    pub(super) asks: Duration,
    /// How many others get the lock at most while one waits, but for the pause after a question
    /// that too few answered.
    pub(super) passed: usize,
}

/// For how long a process does not ask again after that.
const PAUSE: Duration = Duration::from_secs(1);

/// How it went.
#[derive(Debug, Default)]
pub(super) struct Course {
    pub(super) holds: usize,
    /// The longest time for which the lock was idle while somebody waited.
    pub(super) idle: Duration,
    pub(super) waited: Duration,
    pub(super) passed: usize,
    pub(super) shares: BTreeMap<Who, usize>,
    pub(super) left: usize,
    /// How many questions of each process too few answered.
    pub(super) unanswered: BTreeMap<usize, usize>,
    /// What should not have happened.
    pub(super) wrong: Vec<String>,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), happened: Mutex::default() }
    }

    pub(super) fn note(&self, what: What) {
        let at = self.begun.elapsed();
        self.happened.lock().unwrap_or_else(PoisonError::into_inner).push((at, what));
    }

    /// Who holds now, if somebody does.
    pub(super) fn holder(&self) -> Option<Who> {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        happened.iter().rev().find_map(|(_, what)| match what {
            What::Holds { who, .. } => Some(Some(*who)),
            What::Gives { .. } => Some(None),
            _ => None,
        })?
    }

    /// How often a process asked a member for the lock in this time.
    pub(super) fn asked(&self, of: (usize, usize), within: Range<Duration>) -> usize {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        let asks = |(at, what): &&(Duration, What)| {
            let these = matches!(what, What::Asked { process, member, .. }
                if (*process, *member) == of);
            these && within.contains(at)
        };
        happened.iter().filter(asks).count()
    }

    /// Everything, a line each; for a look at one seed.
    pub(super) fn told(&self) -> String {
        let happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        happened.iter().map(|(at, what)| format!("{at:?} {what:?}\n")).collect()
    }

    pub(super) fn judge(&self, promise: Promise) -> Course {
        let mut happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let judge = Judge { promise, ..Judge::new() };
        let end = self.begun.elapsed();
        happened.sort_by_key(|(at, _)| *at);
        judge.follow(&happened, end)
    }
}

/// One that waits.
struct Waiting {
    since: Duration,
    asked: Duration,
    passed: usize,
    /// Until when it does not ask, because too few answered it.
    pauses: Duration,
}

/// See [`Log::judge`].
struct Judge {
    promise: Promise,
    course: Course,
    holder: Option<Who>,
    /// Who held when a process died last.
    held: Option<Who>,
    /// A process that died with a majority's records, or got them after that: nobody holds, and its
    /// lease lasts.
    left: Option<usize>,
    /// Since when nobody holds; later than now where such a lease lasts still.
    free: Duration,
    token: u64,
    waiting: BTreeMap<Who, Waiting>,
    dead: Vec<usize>,
    /// What each member has.
    records: [Record; MEMBERS],
    /// How much longer the lock may be idle, because processes died.
    allowed: Duration,
}

impl Judge {
    fn new() -> Self {
        let zero = Duration::ZERO;
        Self {
            promise: Promise { idle: zero, dead: zero, asks: zero, passed: 0 },
            course: Course::default(),
            holder: None,
            held: None,
            left: None,
            free: zero,
            token: 0,
            waiting: BTreeMap::new(),
            dead: Vec::new(),
            records: [None; MEMBERS],
            allowed: zero,
        }
    }

    fn wrong(&mut self, at: Duration, what: &str) {
        self.course.wrong.push(format!("{at:?}: {what}"));
    }

    fn follow(mut self, happened: &[(Duration, What)], end: Duration) -> Course {
        for (at, what) in happened {
            self.happens(*at, *what);
        }
        self.idle_until(end);
        let asked: Vec<(Who, Duration)> =
            self.waiting.iter().map(|(who, one)| (*who, one.asked)).collect();
        for (who, asked) in asked {
            self.asks_again(who, asked, end);
        }
        // Whoever waits is passed by nobody while it pauses, and is not to pause for most of the
        // time.
        let paused = |count: usize| PAUSE * u32::try_from(count).unwrap_or(u32::MAX);
        let too_often = self.course.unanswered.iter().find(|(_, count)| paused(**count) > end / 2);
        if let Some((process, count)) = too_often {
            self.wrong(end, &format!("too few answered {process}, {count} times"));
        }
        self.course
    }

    fn happens(&mut self, at: Duration, what: What) {
        match what {
            What::Waits { who } => {
                self.waiting.insert(who, Waiting { since: at, asked: at, passed: 0, pauses: at });
            }
            What::Asked { process, .. } => {
                let those: Vec<(Who, Duration)> = self
                    .waiting
                    .iter_mut()
                    .filter(|((of, _), _)| *of == process)
                    .map(|(who, one)| (*who, std::mem::replace(&mut one.asked, at)))
                    .collect();
                for (who, before) in those {
                    self.asks_again(who, before, at);
                }
            }
            What::Has { member, record } => {
                if let Some(known) = self.records.get_mut(member) {
                    *known = record;
                }
                let dead = record.map(|(process, _)| process).filter(|one| self.dead.contains(one));
                if let Some(process) = dead.or(self.left) {
                    self.leaves_behind(at, process);
                }
            }
            What::Unanswered { process } => {
                *self.course.unanswered.entry(process).or_default() += 1;
                let those = self.waiting.iter_mut().filter(|((of, _), _)| *of == process);
                those.for_each(|(_, one)| one.pauses = at + PAUSE);
            }
            What::Holds { who, token } => self.holds(at, who, token),
            What::Gives { who } => {
                if self.holder == Some(who) {
                    (self.holder, self.free) = (None, at);
                }
            }
            What::Leaves { who } => {
                if let Some(since) = self.idle_since().filter(|since| *since < at) {
                    // Somebody else may be about to have it, who was told a moment ago.
                    if at - since > self.promise.idle {
                        self.wrong(
                            at,
                            &format!("{who:?} leaves a lock that was free since {since:?}"),
                        );
                    }
                }
                self.course.left += 1;
                self.waiting.remove(&who);
            }
            What::Dies { process } => {
                self.dead.push(process);
                self.held.take_if(|(of, _)| *of == process);
                self.waiting.retain(|(of, _), _| *of != process);
                if self.holder.is_some_and(|(of, _)| of == process) {
                    (self.held, self.holder, self.free) = (self.holder, None, at);
                }
                self.leaves_behind(at, process);
                self.allowed = self.promise.dead;
            }
            What::Revives { process } => {
                self.dead.retain(|one| *one != process);
                // What it has and was not told of stays what a dead one left.
                let held = self.held.take_if(|(of, _)| *of == process);
                if held.is_some() && self.left == Some(process) && self.free > at {
                    (self.holder, self.left) = (held, None);
                }
            }
            What::Meddles => self.allowed = self.promise.dead,
        }
    }

    /// The lease of a process that died lasts as long as a majority's records of it, whether it was
    /// told or not.
    fn leaves_behind(&mut self, at: Duration, process: usize) {
        let its = |record: &Record| record.filter(|(of, _)| *of == process).map(|(_, until)| until);
        let mut untils: Vec<Duration> = self.records.iter().filter_map(its).collect();
        untils.sort_by_key(|until| Reverse(*until));
        let until = untils.get(MEMBERS / 2).copied().filter(|until| *until > at);
        if self.holder.is_some() || until.is_none() && self.left != Some(process) {
            return;
        }
        if until.is_some() {
            self.idle_until(at);
        }
        (self.left, self.free) = (until.map(|_| process), until.unwrap_or(self.free.min(at)));
    }

    fn holds(&mut self, at: Duration, who: Who, token: u64) {
        if let Some(other) = self.holder {
            self.wrong(at, &format!("{who:?} holds while {other:?} does"));
        }
        if let Some(dead) = self.left.take().filter(|dead| *dead != who.0 && self.free > at) {
            self.wrong(at, &format!("{who:?} holds within the lease of {dead}, which died"));
        }
        if token <= self.token {
            self.wrong(at, &format!("{who:?} holds under {token}, after {}", self.token));
        }
        self.idle_until(at);
        (self.holder, self.token) = (Some(who), token);
        self.course.holds += 1;
        *self.course.shares.entry(who).or_default() += 1;
        if let Some(one) = self.waiting.remove(&who) {
            self.course.waited = self.course.waited.max(at.saturating_sub(one.since));
        }
        let mut most = None;
        for (other, one) in self.waiting.iter_mut().filter(|(_, one)| one.pauses <= at) {
            one.passed += 1;
            self.course.passed = self.course.passed.max(one.passed);
            if one.passed == self.promise.passed + 1 {
                most = Some(*other);
            }
        }
        if let Some(other) = most {
            self.wrong(at, &format!("{other:?} waits, and {} others had it", self.promise.passed));
        }
    }

    /// Since when it is idle though somebody waits.
    fn idle_since(&self) -> Option<Duration> {
        let first = self.waiting.values().map(|one| one.since).min()?;
        self.holder.is_none().then(|| self.free.max(first))
    }

    fn idle_until(&mut self, at: Duration) {
        let Some(since) = self.idle_since().filter(|since| *since < at) else { return };
        let idle = at - since;
        self.course.idle = self.course.idle.max(idle);
        let more = idle.saturating_sub(self.promise.idle);
        match self.allowed.checked_sub(more) {
            Some(left) => self.allowed = left,
            None => self.wrong(at, &format!("it was idle since {since:?}")),
        }
    }

    fn asks_again(&mut self, who: Who, before: Duration, at: Duration) {
        if at.saturating_sub(before) > self.promise.asks {
            self.wrong(at, &format!("{who:?} waits and did not ask since {before:?}"));
        }
    }
}

#[test]
fn a_lease_that_a_dead_process_leaves_behind_is_judged_by_the_records() {
    let second = Duration::from_secs;
    let has = |member, until| What::Has { member, record: Some((0, second(until))) };
    let asked = [
        (second(0), What::Waits { who: (1, 0) }),
        (second(1), has(0, 8)),
        (second(1), has(1, 9)),
        (second(1), has(2, 11)),
    ];
    let judged = |begins: &[(Duration, What)], then: &[(Duration, What)], end| {
        let promise = Promise { idle: second(1), dead: second(0), asks: second(60), passed: 9 };
        let judge = Judge { promise, ..Judge::new() };
        let all = [&asked, begins, then].concat();
        judge.follow(&all, second(end)).wrong.join("\n")
    };
    // It asked for it and was not told; a late record of it arrives when it is dead.
    let dies = (second(1), What::Dies { process: 0 });
    let course =
        |then: &[(Duration, What)], end| judged(&[dies, (second(2), has(3, 10))], then, end);
    let holds = |at| (second(at), What::Holds { who: (1, 0), token: 2 });
    assert_eq!(course(&[holds(9)], 9), "");
    assert_eq!(course(&[], 10), "");
    assert!(course(&[holds(8)], 8).contains("within the lease of 0"));
    assert!(course(&[], 11).contains("was idle"));
    let takes = (second(20), What::Has { member: 0, record: Some((1, second(30))) });
    assert_eq!(course(&[takes, holds(20)], 20).matches("was idle since 9s").count(), 1);
    let lingers =
        [0, 1, 2].map(|member| (second(20), What::Has { member, record: Some((0, second(30))) }));
    assert!(course(&lingers, 30).contains("was idle since 9s"));
    // It is given back after all.
    let gone = [0, 1].map(|member| (second(3), What::Has { member, record: None }));
    assert_eq!(course(&[gone[0], gone[1], holds(4)], 4), "");
    assert!(course(&gone, 5).contains("was idle"));
    // It goes on, and was not told; then it gives back what it has.
    let goes_on = (second(2), What::Revives { process: 0 });
    assert!(judged(&[dies, goes_on], &[holds(4)], 4).contains("within the lease of 0"));
    assert!(judged(&[dies, goes_on], &gone, 5).contains("was idle since 3s"));
    // It goes on, and holds.
    let held = [(second(1), What::Holds { who: (0, 0), token: 1 }), dies, goes_on];
    let gives = (second(3), What::Gives { who: (0, 0) });
    assert!(judged(&held, &[holds(3)], 3).contains("holds while"));
    assert_eq!(judged(&held, &[gives, holds(4)], 4), "");
    assert!(judged(&held, &[gives], 5).contains("was idle since 3s"));
}
