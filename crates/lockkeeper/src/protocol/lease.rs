//! The leases of one process: when to renew which, and which are over (R1, R4).

use std::collections::BTreeMap;
use std::time::Duration;

use super::table::Table;

use crate::clock::Ticks;
use crate::id::LeaseId;

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
    /// What it has is a claim lease until a renewal was answered: a fixed lease is renewed that one time (R11).
    unconfirmed: bool,
    /// Counts the holds on it; a session's lease carries many.
    holds: u32,
    /// The last renewal was answered.
    answered: bool,
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
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Leases {
    drift: Drift,
    kept: Table<LeaseId, Kept>,
    due: Calendar,
    ends: Calendar,
}

/// Leases by time. What was renewed in one message has one time: then a hundred of them are one node of the tree.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Calendar(BTreeMap<Ticks, Vec<LeaseId>>);

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

    /// A hold came with this lease; answers the deadline. `at_once`: it is whole from a renewal that was answered, also a fixed one.
    pub fn add(&mut self, id: LeaseId, since: Ticks, ttl: Duration, renew: bool, at_once: bool) -> Ticks {
        let deadline = deadline(since, ttl, self.drift);
        let due = (renew || at_once).then(|| if at_once { since } else { since.plus(ttl / 3) });
        if let Some(kept) = self.kept.get_mut(&id) {
            // A session's lease: one more hold. An older grant never shortens what a renewal has given.
            kept.holds += 1;
            let had_renewal = kept.renew;
            kept.renew |= renew;
            kept.unconfirmed |= at_once;
            let longer = kept.deadline.max(deadline);
            // Nobody wanted it renewed so far: from now on somebody does.
            let begins = if !had_renewal { due } else { None };
            self.move_to(id, longer, begins);
            return longer;
        }
        self.kept.insert(id, Kept { ttl, deadline, due, renew, unconfirmed: at_once, holds: 1, answered: true });
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
        }
    }

    /// How many leases there are.
    #[cfg(feature = "test-util")]
    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// When something is to be done next.
    pub fn next_timer(&self) -> Option<Ticks> {
        self.due.first().into_iter().chain(self.ends.first()).min()
    }

    /// Takes up to `most` leases whose renewal is due now, or soon enough to go in the same message.
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
            let soon = |id: &LeaseId| self.kept.get(id).is_none_or(|kept| at <= now.plus(kept.ttl / 20));
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

    /// Takes every lease that is renewed at all, due or not: the caller renews them at once. A fixed lease that is whole stays as it is.
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
    pub fn renewed(&mut self, id: LeaseId, since: Ticks, ttl: Duration, out: &mut Vec<Change>) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        kept.ttl = ttl;
        (kept.answered, kept.unconfirmed) = (true, false);
        let until = kept.deadline.max(deadline(since, ttl, self.drift));
        let due = kept.renew.then(|| since.plus(ttl / 3));
        // A fixed lease is whole now: what was due for it is not any more.
        if due.is_none()
            && let Some(before) = kept.due.take()
        {
            self.due.remove(before, id);
        }
        self.move_to(id, until, due);
        out.push(Change::Extended(id, until));
    }

    /// A renewal was not answered: it changes nothing, and is tried again soon (R4).
    pub fn unanswered(&mut self, id: LeaseId, now: Ticks, out: &mut Vec<Change>) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        kept.answered = false;
        let soon = (kept.ttl / 12).max(Duration::from_millis(20));
        let (until, due) = (kept.deadline, (kept.renew || kept.unconfirmed).then(|| now.plus(soon)));
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

    /// Takes every lease whose deadline has passed.
    pub fn take_over(&mut self, now: Ticks, out: &mut Vec<Change>) {
        while let Some(first) = self.ends.0.first_entry().filter(|first| *first.key() <= now) {
            for id in first.remove() {
                self.forget(id);
                out.push(Change::Over(id));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Ticks {
        Ticks(seconds * 1_000_000_000)
    }

    fn id(n: u128) -> LeaseId {
        LeaseId(n)
    }

    #[test]
    fn r1_the_deadline_counts_from_the_sending_and_leaves_the_drift_allowance() {
        let mut leases = Leases::new(Drift::default());
        assert_eq!(leases.add(id(1), at(100), TTL, true, false), at(127));
        let mut out = Vec::new();
        leases.take_over(at(126), &mut out);
        assert!(out.is_empty());
        leases.take_over(at(127), &mut out);
        assert_eq!(out, [Change::Over(id(1))]);
        assert_eq!(leases, Leases::new(Drift::default()), "nothing is left of it");
    }

    #[test]
    fn renewals_are_due_at_a_third_and_go_in_one_message() {
        let mut leases = Leases::new(Drift::default());
        for n in 0..100 {
            leases.add(id(n), at(100), TTL, true, false);
        }
        leases.add(id(200), at(100), TTL, false, false);
        assert_eq!(leases.next_timer(), Some(at(110)));
        assert!(leases.take_due(at(109), 1000).is_empty());
        assert_eq!(leases.take_due(at(110), 1000).len(), 100);
        assert!(leases.take_due(at(110), 1000).is_empty(), "they are on their way");
        let mut out = Vec::new();
        leases.renewed(id(7), at(110), TTL, &mut out);
        assert_eq!(out, [Change::Extended(id(7), at(137))]);
        assert_eq!(leases.next_timer(), Some(at(120)));
    }

    #[test]
    fn r4_an_unanswered_renewal_changes_nothing_and_is_sent_again() {
        let mut leases = Leases::new(Drift::default());
        leases.add(id(1), at(0), TTL, true, false);
        leases.take_due(at(10), 10);
        let mut out = Vec::new();
        leases.unanswered(id(1), at(12), &mut out);
        assert_eq!(out, [Change::Doubtful(id(1))]);
        assert_eq!(leases.next_timer(), Some(Ticks(14_500_000_000)));
        leases.take_over(at(27), &mut out);
        assert_eq!(out.last(), Some(&Change::Over(id(1))), "the deadline decides");
    }

    #[test]
    fn g10_a_late_answer_never_shortens_and_one_for_a_lease_that_is_over_never_revives() {
        let mut leases = Leases::new(Drift::default());
        leases.add(id(1), at(0), TTL, true, false);
        let mut out = Vec::new();
        leases.renewed(id(1), at(10), TTL, &mut out);
        leases.renewed(id(1), at(5), TTL, &mut out);
        assert_eq!(out.last(), Some(&Change::Extended(id(1), at(37))));
        leases.take_over(at(37), &mut out);
        out.clear();
        leases.renewed(id(1), at(36), TTL, &mut out);
        assert!(out.is_empty());
    }

    #[test]
    fn r2_every_lease_that_ends_at_one_instant_is_announced() {
        let mut leases = Leases::new(Drift::default());
        for n in 1..=3 {
            leases.add(id(n), at(0), TTL, true, false);
        }
        let mut out = Vec::new();
        leases.take_over(at(27), &mut out);
        assert_eq!(out, [Change::Over(id(1)), Change::Over(id(2)), Change::Over(id(3))]);
        assert_eq!(leases, Leases::new(Drift::default()));
    }

    #[test]
    fn a_fixed_lease_is_never_renewed_and_a_session_is_as_soon_as_one_hold_wants_it() {
        let mut leases = Leases::new(Drift::default());
        leases.add(id(1), at(0), TTL, false, false);
        leases.add(id(2), at(0), TTL, false, false);
        assert_eq!((leases.take_due(at(20), 9), leases.take_all()), (vec![], vec![]));
        leases.add(id(2), at(3), TTL, true, false);
        assert_eq!(leases.take_due(at(13), 9), [id(2)]);
        assert_eq!(leases.take_all(), [id(2)]);
    }

    #[test]
    fn a_fixed_lease_that_waits_for_its_confirmation_is_renewed_once_until_that_is_answered() {
        let mut leases = Leases::new(Drift::default());
        leases.add(id(1), at(100), Duration::from_secs(2), false, true);
        let mut out = Vec::new();
        assert_eq!(leases.take_due(at(100), 9), [id(1)], "a pushed grant has its claim lease, and no more");
        leases.unanswered(id(1), at(100), &mut out);
        assert_eq!(leases.take_due(at(101), 9), [id(1)]);
        assert_eq!(leases.take_all(), [id(1)], "after a reconnect, too");
        leases.renewed(id(1), at(101), TTL, &mut out);
        assert_eq!(out.last(), Some(&Change::Extended(id(1), at(128))));
        assert_eq!((leases.take_due(at(127), 9), leases.take_all()), (vec![], vec![]), "from then on it is fixed");
        // The same where the answer comes late, and the next try was due already.
        leases.add(id(2), at(101), Duration::from_secs(2), false, true);
        leases.unanswered(id(2), at(101), &mut out);
        leases.renewed(id(2), at(101), TTL, &mut out);
        assert_eq!((leases.take_due(at(127), 9), leases.next_timer()), (vec![], Some(at(128))));
        leases.forget(id(2));
        leases.take_over(at(128), &mut out);
        assert_eq!(out.last(), Some(&Change::Over(id(1))));
    }

    #[test]
    fn a_session_lease_carries_many_holds() {
        let mut leases = Leases::new(Drift::default());
        leases.add(id(1), at(0), TTL, true, false);
        assert_eq!(leases.add(id(1), at(3), TTL, true, false), at(30));
        leases.drop_hold(id(1));
        assert_eq!(leases.kept.len(), 1);
        leases.drop_hold(id(1));
        assert_eq!(leases, Leases::new(Drift::default()));
    }
}
