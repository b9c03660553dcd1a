//! The leases of one process: when to renew which, and which are over (R1, R4).

mod doubt;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use super::margin;
use super::table::Table;

use self::doubt::{Doubt, Doubts};
pub use self::doubt::{Question, bears};
use crate::words::clock::Ticks;
use crate::words::id::LeaseId;

/// How much of a lease is left unused, so that clocks may run at different rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Drift {
    /// In thousandths of the ttl.
    pub per_mille: u32,
    /// At least this much.
    pub at_least: Duration,
}

impl Default for Drift {
    fn default() -> Self {
        Self { per_mille: 100, at_least: Duration::from_millis(10) }
    }
}

impl Drift {
    /// The allowance for one ttl.
    pub fn of(&self, ttl: Duration) -> Duration {
        (ttl * self.per_mille / 1000).max(self.at_least)
    }
}

/// When a lease that certainly lasts `ttl` from `since` is over for us.
pub fn deadline(since: Ticks, ttl: Duration, drift: Drift) -> Ticks {
    since.plus(ttl.saturating_sub(drift.of(ttl)))
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kept {
    ttl: Duration,
    deadline: Ticks,
    /// When the next renewal is due; `None` for a fixed lease, and while one is under way.
    due: Option<Ticks>,
    renew: bool,
    /// What hardly any of 100 000 wants.
    wants: Option<Box<Wants>>,
    /// What it has is a claim lease until a renewal was answered: a fixed lease is renewed that one
    /// time (R11).
    unconfirmed: bool,
    /// Counts the holds on it; a session's lease carries many.
    holds: u32,
    /// The last renewal was answered.
    answered: bool,
    /// The engine certainly had it at this reading of our clock, or later.
    proof: Ticks,
    /// The time of day was set forward since.
    doubt: Option<Box<Doubt>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Wants {
    /// How much of it a holder relies on; `None` for the default.
    margin: Option<Duration>,
    /// How long the session lasts that it is the lease of: then the engine renews it by itself.
    session: Option<Duration>,
}

impl Kept {
    fn margin(&self) -> Option<Duration> {
        self.wants.as_ref()?.margin
    }

    fn session(&self) -> Option<Duration> {
        self.wants.as_ref()?.session
    }

    /// When it is renewed next, if the last renewal counts from `since`.
    ///
    /// At a third of the ttl (R2), and earlier where the allowance for drift is so large that the
    /// margin needs it. A session is renewed by its engine: it is asked only once the rest is below
    /// what that engine keeps to.
    fn next(&self, since: Ticks, until: Ticks, drift: Drift) -> Ticks {
        if let Some(session) = self.session() {
            // Spaced by the session, not by what is left of it: a server that answers and proves
            // nothing is not asked ever faster.
            return until
                .minus(margin::floor(session, self.margin()))
                .max(since.plus(session / 12));
        }
        let usable = self.ttl.saturating_sub(
            drift.of(self.ttl) + margin::floor(self.ttl, self.margin()) + self.ttl / 20,
        );
        since.plus((self.ttl / 3).min(usable).max(self.ttl / 12))
    }
}

/// What a holder wants of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Terms {
    /// It is renewed for as long as somebody holds it.
    pub renew: bool,
    /// It is whole from a renewal that was answered, also a fixed one.
    pub at_once: bool,
    /// How much of it the holder relies on; `None` for the default.
    pub margin: Option<Duration>,
    /// How long the session lasts that it is the lease of.
    pub session: Option<Duration>,
}

/// What is to be told about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its deadline moved.
    Extended(LeaseId, Ticks),
    /// A renewal was not answered; the deadline stands.
    Doubtful(LeaseId),
    /// It is over: nothing renewed it in time.
    Over(LeaseId),
    /// It is over: the time of day was set forward, and nothing proved it since.
    Unproven(LeaseId),
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leases {
    drift: Drift,
    kept: Table<LeaseId, Kept>,
    due: Calendar,
    ends: Calendar,
    doubts: Doubts,
}

/// Leases by time. What was renewed in one message has one time: then a hundred of them are one
/// node of the tree. They are renewed in their order, and so the first of a list is the one that
/// leaves it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Calendar(BTreeMap<Ticks, VecDeque<LeaseId>>);

impl Calendar {
    fn insert(&mut self, at: Ticks, id: LeaseId) {
        let ids = self.0.entry(at).or_default();
        if let Err(place) = ids.binary_search(&id) {
            if ids.is_empty() {
                ids.reserve_exact(1);
            }
            ids.insert(place, id);
        }
    }

    fn remove(&mut self, at: Ticks, id: LeaseId) {
        let Some(ids) = self.0.get_mut(&at) else { return };
        if let Ok(place) = ids.binary_search(&id) {
            ids.remove(place);
        }
        if ids.is_empty() {
            self.0.remove(&at);
        }
    }

    fn first(&self) -> Option<Ticks> {
        self.0.first_key_value().map(|(at, _)| *at)
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

impl Leases {
    pub fn new(drift: Drift) -> Self {
        Self { drift, ..Self::default() }
    }

    /// A hold came with this lease; answers the deadline.
    pub fn add(&mut self, id: LeaseId, since: Ticks, ttl: Duration, terms: Terms) -> Ticks {
        let Terms { renew, at_once, margin, session } = terms;
        let deadline = deadline(since, ttl, self.drift);
        let proof = doubt::proof(since, ttl, session, self.drift);
        let fresh = Kept {
            ttl,
            deadline,
            due: None,
            renew,
            wants: (margin.is_some() || session.is_some())
                .then(|| Box::new(Wants { margin, session })),
            unconfirmed: at_once,
            holds: 1,
            answered: true,
            proof,
            doubt: None,
        };
        let due = (renew || at_once)
            .then(|| if at_once { since } else { fresh.next(since, deadline, self.drift) });
        if let Some(kept) = self.kept.get_mut(&id) {
            // A session's lease: one more hold. An older grant never shortens what a renewal has
            // given.
            kept.holds += 1;
            let had_renewal = kept.renew;
            kept.renew |= renew;
            kept.unconfirmed |= at_once;
            // The greatest margin counts, and goes with the lease.
            let whole = session.unwrap_or(ttl);
            if margin::floor(whole, margin) > margin::floor(whole, kept.margin()) {
                kept.wants.get_or_insert_default().margin = margin;
            }
            let longer = kept.deadline.max(deadline);
            // Nobody wanted it renewed so far: from now on somebody does.
            let begins = if !had_renewal { due } else { None };
            self.move_to(id, longer, begins);
            self.prove(id, proof);
            return longer;
        }
        self.kept.insert(id, Kept { due, ..fresh });
        self.ends.insert(deadline, id);
        if let Some(at) = due {
            self.due.insert(at, id);
        }
        deadline
    }

    /// A hold on this lease is over.
    pub fn drop_hold(&mut self, id: LeaseId) {
        if let Some(kept) = self.kept.get_mut(&id) {
            kept.holds -= 1;
            if kept.holds == 0 {
                self.forget(id);
            }
        }
    }

    /// The lease is over or gone.
    pub fn forget(&mut self, id: LeaseId) {
        if let Some(kept) = self.kept.remove(&id) {
            self.ends.remove(kept.deadline, id);
            if let Some(at) = kept.due {
                self.due.remove(at, id);
            }
            if let Some(doubt) = kept.doubt {
                self.doubts.until.remove(&(doubt.until, id));
            }
        }
    }

    /// How many leases there are.
    #[cfg(feature = "test-util")]
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// When something is to be done next.
    pub fn next_timer(&self) -> Option<Ticks> {
        [self.due.first(), self.ends.first(), self.doubts.next_timer()].into_iter().flatten().min()
    }

    /// Takes up to `most` leases whose renewal is due now, or soon enough to go in the same
    /// message.
    ///
    /// Until their answer comes they are not due again.
    pub fn take_due(&mut self, now: Ticks, most: usize) -> Vec<LeaseId> {
        if self.due.first().is_none_or(|at| at > now) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        while taken.len() < most {
            let Some(mut first) = self.due.0.first_entry() else { break };
            let (at, ids) = (*first.key(), first.get_mut());
            let room = (most - taken.len()).min(ids.len());
            // One message for all that are due within the next twentieth of their lease.
            let soon =
                |id: &LeaseId| self.kept.get(id).is_none_or(|kept| at <= now.plus(kept.ttl / 20));
            let count = ids.iter().take(room).take_while(|id| soon(id)).count();
            for id in ids.drain(..count) {
                if let Some(kept) = self.kept.get_mut(&id) {
                    kept.due = None;
                    taken.push(id);
                }
            }
            if ids.is_empty() {
                first.remove();
            }
            if count < room {
                break;
            }
        }
        taken
    }

    /// Takes every lease that is renewed at all, due or not: the caller renews them at once. A
    /// fixed lease that is whole stays as it is.
    pub fn take_all(&mut self) -> Vec<LeaseId> {
        self.due.clear();
        let renewed = self.kept.iter_mut().filter(|(_, kept)| kept.renew || kept.unconfirmed);
        let mut all: Vec<LeaseId> = renewed
            .map(|(id, kept)| {
                kept.due = None;
                *id
            })
            .collect();
        all.sort_unstable();
        all
    }

    /// How long a lease lasts from its last renewal.
    pub fn ttl(&self, id: LeaseId) -> Option<Duration> {
        self.kept.get(&id).map(|k| k.ttl)
    }

    /// A renewal was answered: it lasts `ttl` from `since`.
    ///
    /// In doubt, what was reckoned before the step counts no more. A fixed hold has no part in a
    /// renewal but that it is proven.
    pub fn renewed(&mut self, id: LeaseId, since: Ticks, ttl: Duration, out: &mut Vec<Change>) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let proof = doubt::proof(since, ttl, kept.session(), self.drift);
        let fresh = deadline(since, ttl, self.drift);
        let was_in_doubt = kept.doubt.is_some();
        let is_fixed = !kept.renew && !kept.unconfirmed;
        kept.answered = true;
        self.prove(id, proof);
        let Some(kept) = self.kept.get_mut(&id) else { return };
        let is_cleared = was_in_doubt && kept.doubt.is_none();
        if is_fixed {
            if is_cleared {
                let until = kept.deadline.min(fresh);
                self.move_to(id, until, None);
                out.push(Change::Extended(id, until));
            }
            return;
        }
        (kept.ttl, kept.unconfirmed) = (ttl, false);
        let until = if is_cleared { fresh } else { kept.deadline.max(fresh) };
        let due = kept.renew.then(|| kept.next(since, until, self.drift));
        // A fixed lease is whole now: what was due for it is not any more.
        if due.is_none()
            && let Some(before) = kept.due.take()
        {
            self.due.remove(before, id);
        }
        self.move_to(id, until, due);
        out.push(Change::Extended(id, until));
    }

    /// A renewal was answered just now. An engine may answer from long before: it made several
    /// leases one, or a session has its own time. It is not asked ever faster for that.
    pub fn answered(&mut self, id: LeaseId, now: Ticks) {
        let Some(kept) = self.kept.get(&id) else { return };
        let (until, soonest) = (kept.deadline, now.plus(kept.ttl / 12));
        if kept.due.is_some_and(|due| due < soonest) {
            self.move_to(id, until, Some(soonest));
        }
    }

    /// Takes one lease that is renewed at all and is not being renewed, due or not: the caller
    /// renews it at once.
    pub fn take_one(&mut self, id: LeaseId) -> bool {
        let Some(kept) = self.kept.get_mut(&id) else { return false };
        let Some(due) = kept.due.take() else { return false };
        self.due.remove(due, id);
        true
    }

    /// A renewal was not answered: it changes nothing, and is tried again soon (R4).
    pub fn unanswered(&mut self, id: LeaseId, now: Ticks, out: &mut Vec<Change>) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        kept.answered = false;
        let soon = (kept.ttl / 12).max(Duration::from_millis(20));
        let (until, due) =
            (kept.deadline, (kept.renew || kept.unconfirmed).then(|| now.plus(soon)));
        self.move_to(id, until, due);
        out.push(Change::Doubtful(id));
    }

    fn move_to(&mut self, id: LeaseId, until: Ticks, due: Option<Ticks>) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        if until != kept.deadline {
            self.ends.remove(kept.deadline, id);
            self.ends.insert(until, id);
            kept.deadline = until;
        }
        if let Some(due) = due {
            if let Some(before) = kept.due.replace(due) {
                self.due.remove(before, id);
            }
            self.due.insert(due, id);
        }
    }

    /// Takes every lease whose deadline has passed, and those that were in doubt for too long.
    pub fn take_over(&mut self, now: Ticks, out: &mut Vec<Change>) {
        while let Some(first) = self.ends.0.first_entry().filter(|first| *first.key() <= now) {
            for id in first.remove() {
                let is_in_doubt = self.kept.get(&id).is_some_and(|kept| kept.doubt.is_some());
                self.forget(id);
                out.push(if is_in_doubt { Change::Unproven(id) } else { Change::Over(id) });
            }
        }
        for id in self.doubts.take_over(now) {
            self.forget(id);
            out.push(Change::Unproven(id));
        }
    }
}

#[cfg(test)]
mod search;
#[cfg(test)]
mod tests;
