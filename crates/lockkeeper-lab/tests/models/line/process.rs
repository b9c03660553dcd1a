//! One process: the real line and the real lease table, with a keeper around them that does what
//! `keeper/` does.

mod answers;
mod releases;
mod tasks;
mod timers;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use lockkeeper::engine::Number;
use lockkeeper::test_util::machines::lease::{Drift, Leases};
use lockkeeper::test_util::machines::line::{Action, Event, Line, Refusal, Rules, Seq};
use lockkeeper::{ClaimId, Ticks};

use super::Flaw;
use super::register::{Call, Way};
use releases::UnderWay;

/// How often all places are re-checked.
const NET_EVERY: u64 = 4;
/// For how long after its sending an attempt is taken by the server.
const PATIENCE: u64 = 3;
const SECOND: u64 = 1_000_000_000;

/// A tick is a second.
pub fn ticks(at: u64) -> Ticks {
    Ticks(at * SECOND)
}

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

const DRIFT: Drift = Drift { per_mille: 0, at_least: Duration::from_secs(1) };

/// What becomes of one task of the process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    Idle,
    Waits(Seq),
    Offered {
        seq: Seq,
        hold: ClaimId,
        token: u64,
    },
    /// `turned`: how many conversions of its plan it is through with.
    Has {
        seq: Seq,
        hold: ClaimId,
        token: u64,
        way: Way,
        turned: u8,
    },
    Converts {
        seq: Seq,
        hold: ClaimId,
        token: u64,
        way: Way,
        to: Way,
        turned: u8,
    },
    Over,
}

impl Task {
    /// The hold of its turn, and what it may do with it at the least.
    pub fn may(&self) -> Option<(ClaimId, Way)> {
        match *self {
            Self::Has { hold, way, .. } => Some((hold, way)),
            // On the way up it is what it was, on the way down no more than it will be.
            Self::Converts { hold, way, to, .. } => {
                Some((hold, if to.covers(way) { way } else { to }))
            }
            _ => None,
        }
    }

    fn seq(&self) -> Option<Seq> {
        match *self {
            Self::Waits(seq)
            | Self::Offered { seq, .. }
            | Self::Has { seq, .. }
            | Self::Converts { seq, .. } => Some(seq),
            Self::Idle | Self::Over => None,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Kept {
    pub deadline: u64,
    ttl: u64,
    answered: bool,
}

/// A call whose answer is awaited.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Awaited {
    pub call: Call,
    sent: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    pub alive: bool,
    pub tasks: Vec<Task>,
    pub line: Line,
    leases: Leases,
    pub kept: BTreeMap<ClaimId, Kept>,
    pub calls: BTreeMap<u8, Awaited>,
    /// Claims that the engine may say something about.
    waiting: BTreeSet<ClaimId>,
    net_at: Option<u64>,
    /// Conversions that the line knows: of which hold, and to what.
    conversions: BTreeMap<ClaimId, (ClaimId, Way)>,
    /// Until when the last request of a claim may arrive and count.
    sent_until: BTreeMap<ClaimId, u64>,
    releases: BTreeMap<ClaimId, UnderWay>,
    drawn: u8,
}

/// What a step of a process sends, and what it shows.
#[derive(Default)]
pub struct Sent {
    pub calls: Vec<(u8, Call)>,
    pub passed: bool,
    /// The task whose turn was converted.
    pub converted: Option<usize>,
    /// The tasks that were told that it is busy.
    pub busy: Vec<u8>,
    /// A hold that was given back in time was not there.
    pub wrong_end: bool,
}

impl Process {
    pub fn new(tasks: usize) -> Self {
        let rules = Rules {
            turns_max: 2,
            pass_for: seconds(4),
            offer_for: seconds(2),
            warn_after: seconds(1000),
            ask_again_after: seconds(1),
            ask_again_max: 3,
            waiting_max: 8,
        };
        Self {
            alive: true,
            tasks: vec![Task::Idle; tasks],
            line: Line::new(rules, true),
            leases: Leases::new(DRIFT),
            kept: BTreeMap::new(),
            calls: BTreeMap::new(),
            waiting: BTreeSet::new(),
            net_at: None,
            conversions: BTreeMap::new(),
            sent_until: BTreeMap::new(),
            releases: BTreeMap::new(),
            drawn: 0,
        }
    }

    /// Whether a turn that was taken believes that it lasts.
    pub fn believes(&self, now: u64, task: &Task) -> bool {
        task.may().is_some_and(|(hold, _)| self.kept.get(&hold).is_some_and(|k| now < k.deadline))
    }

    /// Nothing is asked, repeated, held or waited for.
    pub fn is_quiet(&self) -> bool {
        self.calls.is_empty()
            && self.releases.is_empty()
            && self.line.is_idle()
            && self.tasks.iter().all(|t| *t == Task::Over)
    }

    /// No answer is awaited, and none is asked for again.
    pub fn asks_nothing(&self) -> bool {
        self.calls.is_empty() && self.line.conversions().next().is_none()
    }

    /// What is left of it in memory.
    pub fn residue(&self) -> bool {
        !self.kept.is_empty()
            || self.leases.next_timer().is_some()
            || !self.waiting.is_empty()
            || !self.conversions.is_empty()
    }

    /// Enough of the lease is left for the hold to pass on.
    fn is_fresh(&self, now: u64, hold: ClaimId) -> bool {
        self.kept
            .get(&hold)
            .is_some_and(|k| k.answered && k.deadline > now && 2 * (k.deadline - now) > k.ttl)
    }

    /// One step of the line, and everything that follows from it.
    fn step(&mut self, now: u64, event: Event, flaw: Option<Flaw>, out: &mut Sent) {
        let mut actions = Vec::new();
        let given = matches!(event, Event::TurnOver { .. } | Event::Cancel { .. } | Event::Timer);
        self.line.step(ticks(now), event, &mut actions);
        for action in actions {
            self.act(now, action, given, flaw, out);
        }
        let gone: Vec<ClaimId> = self
            .conversions
            .keys()
            .copied()
            .filter(|id| self.line.conversions().all(|known| known != *id))
            .collect();
        for id in gone {
            self.conversions.remove(&id);
            self.forget_claim(id);
        }
    }

    fn forget_claim(&mut self, id: ClaimId) {
        self.waiting.remove(&id);
        self.sent_until.remove(&id);
    }

    fn act(&mut self, now: u64, action: Action, given: bool, flaw: Option<Flaw>, out: &mut Sent) {
        match action {
            Action::Attempt(ask) => {
                let not_after = self.may_arrive_until(now, ask.id);
                let call = Call::Attempt {
                    id: ask.id,
                    way: ask.shape.mode.into(),
                    trying: ask.try_only,
                    not_after,
                };
                self.send(now, call, out);
                self.expect(now, ask.id);
            }
            Action::Recheck(id) => self.recheck(now, id, out),
            // An answer from before it was granted: its place is left behind the release.
            Action::Withdraw(id) if flaw != Some(Flaw::LeavesBeside) && self.is_echo(id) => {}
            Action::Withdraw(id) => {
                self.waiting.remove(&id);
                if flaw == Some(Flaw::LeavesWithoutAWord) {
                    self.line.step(
                        ticks(now),
                        Event::Withdrawn { claim: id, known: true },
                        &mut Vec::new(),
                    );
                } else {
                    let (hold, way) = self.wanted(id);
                    let refuse = self.sent_until.get(&id).copied().unwrap_or(0);
                    self.send(now, Call::Withdraw { id, way, hold, refuse }, out);
                }
            }
            Action::Release { hold, again, over } => {
                self.release(now, hold, again, over, flaw, out)
            }
            Action::Offer { seq, hold, token } => {
                out.passed |= given;
                // Permits have none.
                let mut token = token.map_or(0, lockkeeper::Token::get);
                if flaw == Some(Flaw::OneTokenForAllTurns) {
                    token -= token % 64;
                }
                if let Some(task) = self.task_of(seq) {
                    *task = Task::Offered { seq, hold, token };
                }
            }
            Action::Parked { seq, hold } => {
                if let Some(task) = self.task_of(seq) {
                    *task = Task::Over;
                }
                self.step(now, Event::TurnOver { seq, fresh: self.is_fresh(now, hold) }, flaw, out);
            }
            Action::Refuse { seq, why: Refusal::BusyHere | Refusal::Answer } => {
                let task = self.tasks.iter().position(|task| *task == Task::Waits(seq));
                out.busy.extend(task.map(|task| task as u8));
                self.over(seq);
            }
            Action::Refuse { seq, .. } | Action::Lost { seq, .. } => self.over(seq),
            Action::Warn { .. } => {}
            Action::Convert { hold, id, to, .. } => {
                let way = to.into();
                self.conversions.insert(id, (hold, way));
                let not_after = self.may_arrive_until(now, id);
                self.send(now, Call::Convert { id, hold, way, not_after }, out);
                self.expect(now, id);
            }
            Action::Converted { seq, mode, token } => {
                out.converted = self.tasks.iter().position(|task| task.seq() == Some(seq));
                if let Some(task) = self.task_of(seq)
                    && let Task::Converts { hold, turned, .. } = *task
                {
                    let token = token.map_or(0, lockkeeper::Token::get);
                    *task = Task::Has { seq, hold, token, way: mode.into(), turned: turned + 1 };
                }
            }
            Action::RefuseConvert { seq, .. } => {
                if let Some(task) = self.task_of(seq)
                    && let Task::Converts { hold, token, way, turned, .. } = *task
                {
                    *task = Task::Has { seq, hold, token, way, turned: turned + 1 };
                }
            }
        }
    }

    fn over(&mut self, seq: Seq) {
        if let Some(task) = self.task_of(seq) {
            *task = Task::Over;
        }
    }

    fn task_of(&mut self, of: Seq) -> Option<&mut Task> {
        self.tasks.iter_mut().find(|task| task.seq() == Some(of))
    }

    fn may_arrive_until(&mut self, now: u64, claim: ClaimId) -> u64 {
        self.sent_until.insert(claim, now + PATIENCE);
        now + PATIENCE
    }

    fn expect(&mut self, now: u64, claim: ClaimId) {
        self.waiting.insert(claim);
        self.net_at.get_or_insert(now + NET_EVERY);
    }

    fn send(&mut self, now: u64, call: Call, out: &mut Sent) -> u8 {
        // The smallest number that is free, so that states which differ in nothing else are one.
        let number = (0..).find(|n| !self.calls.contains_key(n)).expect("numbers do not end");
        self.calls.insert(number, Awaited { call: call.clone(), sent: now });
        out.calls.push((number, call));
        number
    }

    /// What a claim asks for, and of which hold.
    fn wanted(&self, id: ClaimId) -> (Option<ClaimId>, Way) {
        self.conversions
            .get(&id)
            .map_or_else(|| (None, self.way_of(id)), |(hold, way)| (Some(*hold), *way))
    }

    fn way_of(&self, id: ClaimId) -> Way {
        self.line.shape_of(id).map_or(Way::Exclusive, |shape| shape.mode.into())
    }
}
