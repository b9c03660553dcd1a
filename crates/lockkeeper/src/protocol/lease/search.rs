//! Every order of what may happen to one lease when the time of day is set forward: renewals that
//! are carried out late, read late or never, a machine that stood still with its steady clocks, a
//! step that is a mere correction, and a keeper that hears of it later than a guard.

use std::collections::HashSet;

use super::*;
use crate::words::clock::Steps;

const ID: LeaseId = LeaseId(1);
const SECOND: Duration = Duration::from_secs(1);
/// What the server gives, and with the drift allowance off, what we count on.
const TTL: Duration = Duration::from_secs(6);
/// How long the machine stands still, and how far the time of day steps: half of a lease, so that
/// it may be over by then or not.
const PAUSE: Duration = Duration::from_secs(3);
/// How long a question may be under way.
const WITHIN: Duration = Duration::from_secs(2);
/// Until when each world is followed.
const END: Ticks = Ticks(8_000_000_000);
/// So many renewals may be under way at once.
const UNDER_WAY: usize = 2;

/// A rule that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Flaw {
    /// A step is no reason for doubt.
    NoDoubt,
    /// Any answer that is read after the step resolves the doubt.
    AnyAnswer,
    /// What was reckoned before the step counts also after it.
    OldDeadline,
    /// The doubt lasts until somebody answers.
    NeverEnds,
}

#[derive(Clone, Copy)]
struct Rules {
    /// The lease is renewed; else it is a fixed one.
    renews: bool,
    flaw: Option<Flaw>,
}

/// A renewal, or the question how a fixed hold stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Asked {
    sent: Ticks,
    /// What the server said: how long it lasts from then on, or that it is gone.
    told: Option<Option<Duration>>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    leases: Leases,
    now: Ticks,
    /// By how much more time went by than our steady clocks have counted.
    hidden: Duration,
    steps: Steps,
    /// Until when the server keeps it, in true time; from then on another may have it.
    server_until: Ticks,
    under_way: Vec<Asked>,
    /// What guards know of it: the deadline, and how far the time of day had been set forward when
    /// it was proven.
    deadline: Ticks,
    proven_at: u64,
    /// Until when the keeper has to have an end of the doubt.
    doubt_ends: Option<Ticks>,
}

impl World {
    fn begin(rules: Rules) -> Self {
        let (mut leases, now) = (Leases::new(Drift::default()), Ticks(SECOND.as_nanos() as u64));
        let terms = Terms { renew: rules.renews, ..Terms::default() };
        let deadline = leases.add(ID, now, TTL, terms);
        Self {
            leases,
            now,
            hidden: Duration::ZERO,
            steps: Steps::default(),
            server_until: now.plus(TTL),
            under_way: Vec::new(),
            deadline,
            proven_at: 0,
            doubt_ends: None,
        }
    }

    fn truth(&self) -> Ticks {
        self.now.plus(self.hidden)
    }

    fn is_kept(&self) -> bool {
        self.leases.kept.get(&ID).is_some()
    }

    fn in_doubt(&self) -> bool {
        let since = Duration::from_nanos(self.steps.total() - self.proven_at);
        since > bears(TTL, Drift::default())
    }

    /// What a guard says to `check()`.
    fn is_believed(&self, rules: Rules) -> bool {
        let in_doubt = self.in_doubt() && rules.flaw != Some(Flaw::NoDoubt);
        self.is_kept() && self.now < self.deadline && !in_doubt
    }

    fn is_held(&self) -> bool {
        self.truth() < self.server_until
    }

    /// Everything that may happen next.
    fn next(&self, rules: Rules) -> Vec<Self> {
        let mut all = Vec::new();
        let mut then = |change: &dyn Fn(&mut Self)| {
            let mut next = self.clone();
            change(&mut next);
            all.push(next);
        };
        if self.now < END {
            then(&|next| next.now = next.now.plus(SECOND));
        }
        if self.steps == Steps::default() {
            then(&|next| next.step());
            then(&|next| {
                next.hidden = PAUSE;
                next.step();
            });
        }
        if self.is_kept() {
            then(&|next| next.looks(rules));
        }
        for at in 0..self.under_way.len() {
            match self.under_way[at].told {
                None => then(&|next| next.carried_out(at, rules)),
                Some(told) => then(&|next| next.read(at, told, rules)),
            }
            then(&|next| next.never_read(at));
        }
        all
    }

    /// No reading of before is as late as the one that shows it.
    fn step(&mut self) {
        self.now = Ticks(self.now.0 + 1);
        self.steps.note(self.now, PAUSE);
    }

    /// The keeper reads the clocks, and does what is due.
    fn looks(&mut self, rules: Rules) {
        if self.leases.doubts.steps != self.steps {
            let within = if rules.flaw == Some(Flaw::NeverEnds) {
                Duration::from_secs(3600)
            } else {
                WITHIN
            };
            self.leases.stepped(self.now, self.steps.clone(), within);
            self.doubt_ends = self.in_doubt().then(|| self.now.plus(WITHIN));
        }
        self.leases.take_over(self.now, &mut Vec::new());
        let doubtful = self.leases.take_doubtful(self.now).len();
        let due = self.leases.take_due(self.now, 9).len();
        for _ in 0..doubtful + due {
            if self.under_way.len() == UNDER_WAY {
                self.under_way.remove(0);
            }
            self.under_way.push(Asked { sent: self.now, told: None });
        }
        self.under_way.sort_unstable();
        if self.doubt_ends.is_some_and(|end| self.now >= end) {
            assert!(!self.is_kept() || !self.in_doubt(), "the doubt does not end");
            self.doubt_ends = None;
        }
    }

    fn carried_out(&mut self, at: usize, rules: Rules) {
        let held = self.is_held();
        if held && rules.renews {
            self.server_until = self.truth().plus(TTL);
        }
        self.under_way[at].told = Some(held.then(|| self.server_until.since(self.truth())));
    }

    fn never_read(&mut self, at: usize) {
        self.under_way.remove(at);
        self.leases.unanswered(ID, self.now, &mut Vec::new());
    }

    fn read(&mut self, at: usize, told: Option<Duration>, rules: Rules) {
        let Asked { sent, .. } = self.under_way.remove(at);
        let Some(ttl) = told else { return self.leases.forget(ID) };
        let mut out = Vec::new();
        self.leases.renewed(ID, sent, ttl, &mut out);
        for change in out {
            let Change::Extended(_, until) = change else { continue };
            if rules.flaw != Some(Flaw::OldDeadline) || until > self.deadline {
                self.deadline = until;
            }
        }
        self.proven_at = match self.leases.proof(ID) {
            _ if rules.flaw == Some(Flaw::AnyAnswer) => self.steps.total(),
            Some((proof, _)) => self.steps.total_at(proof),
            None => return,
        };
    }
}

/// How many states there are; panics where a guard believes in what another may have.
fn search(rules: Rules) -> usize {
    let (mut open, mut seen) = (vec![World::begin(rules)], HashSet::new());
    while let Some(world) = open.pop() {
        assert!(!world.is_believed(rules) || world.is_held(), "BROKEN LOCK: it is believed in");
        for next in world.next(rules) {
            if seen.insert(next.clone()) {
                open.push(next);
            }
        }
    }
    seen.len()
}

#[test]
fn n2_what_is_believed_after_a_step_is_held_in_every_order_and_every_doubt_ends() {
    for renews in [true, false] {
        let states = search(Rules { renews, flaw: None });
        assert!(states > 1_000, "{states}");
    }
}

fn convicted(flaw: Flaw, renews: bool, of: &str) {
    let rules = Rules { renews, flaw: Some(flaw) };
    let found = std::panic::catch_unwind(|| search(rules)).unwrap_err();
    let text = found.downcast_ref::<String>().cloned();
    let text = text.or_else(|| found.downcast_ref::<&str>().map(|text| (*text).to_owned()));
    assert!(text.as_deref().is_some_and(|text| text.contains(of)), "{text:?}");
}

#[test]
fn n2_the_search_convicts_a_step_that_is_no_reason_for_doubt() {
    convicted(Flaw::NoDoubt, true, "BROKEN LOCK");
}

#[test]
fn n2_the_search_convicts_a_doubt_that_any_answer_resolves() {
    convicted(Flaw::AnyAnswer, true, "BROKEN LOCK");
}

#[test]
fn n2_the_search_convicts_a_fixed_lease_whose_deadline_is_of_before_the_step() {
    convicted(Flaw::OldDeadline, false, "BROKEN LOCK");
}

#[test]
fn n2_the_search_convicts_a_doubt_that_never_ends() {
    convicted(Flaw::NeverEnds, true, "does not end");
}
