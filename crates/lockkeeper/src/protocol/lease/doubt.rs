//! A doubt about leases: the time of day was set forward, and the clocks that leases are counted on
//! say nothing (R1).
//!
//! Mostly somebody has corrected a wrong time of day. But a machine that was restored from a
//! checkpoint, or whose hypervisor stopped its clocks with it, learns in this way alone that it
//! stood still, and then its leases may be over. Only what the engine answers to a question that
//! was sent after the step was noticed tells which: an older answer may have been on its way all
//! the time.

use std::collections::BTreeSet;
use std::time::Duration;

use super::{Drift, Kept, Leases};
use crate::words::clock::{Steps, Ticks};
use crate::words::id::LeaseId;

/// A step of less puts no lease in doubt.
const STEP_MIN: Duration = Duration::from_millis(10);

/// By how much the time of day may step before a lease of this length is in doubt: half of the
/// drift allowance, which such a step may use up.
pub fn bears(ttl: Duration, drift: Drift) -> Duration {
    (drift.of(ttl) / 2).max(STEP_MIN)
}

/// When the engine certainly had a lease, or later, if `ttl` of it was left at `since`. What is
/// left of a session rests on a proof of before, and the drift of that time is off it already.
pub(super) fn proof(since: Ticks, ttl: Duration, session: Option<Duration>, drift: Drift) -> Ticks {
    let age = session.unwrap_or(ttl).saturating_sub(ttl);
    if age.is_zero() {
        return since;
    }
    let unstretched = age.as_nanos() * u128::from(1000 - drift.per_mille.min(1000)) / 1000;
    // A nanosecond for what was rounded off.
    since.minus(
        Duration::from_nanos(u64::try_from(unstretched).unwrap_or(u64::MAX))
            .saturating_add(Duration::from_nanos(1)),
    )
}

/// How long a lease is in doubt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Doubt {
    /// It is lost then.
    pub(super) until: Ticks,
    /// When the last step was noticed.
    noticed: Ticks,
}

/// Those that are in doubt, and when they are asked about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Doubts {
    pub(super) steps: Steps,
    /// When each of them is lost: many at the same time.
    pub(super) until: BTreeSet<(Ticks, LeaseId)>,
    /// How long a question may be under way; the next one is not sent before.
    within: Duration,
    /// When they were asked about last, and when they are next.
    asked: Option<Ticks>,
    ask: Option<Ticks>,
}

/// A lease that the engine is to be asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question {
    /// By a renewal.
    Renew(LeaseId),
    /// A fixed one, by asking how its hold stands.
    Recheck(LeaseId),
}

impl Doubts {
    pub(super) fn next_timer(&self) -> Option<Ticks> {
        let (until, _) = self.until.first()?;
        Some(self.ask.map_or(*until, |ask| ask.min(*until)))
    }

    pub(super) fn take_over(&mut self, now: Ticks) -> Vec<LeaseId> {
        let mut over = Vec::new();
        while self.until.first().is_some_and(|(until, _)| *until <= now) {
            over.extend(self.until.pop_first().map(|(_, id)| id));
        }
        over
    }
}

impl Kept {
    fn is_doubtful(&self, steps: &Steps, drift: Drift) -> bool {
        steps.since(self.proof) > bears(self.whole(), drift)
    }

    /// How long it lasts from one proof of it.
    fn whole(&self) -> Duration {
        self.session().unwrap_or(self.ttl)
    }
}

impl Leases {
    /// The time of day was set forward, as these steps say: which leases are in doubt, and from now
    /// on for how long? A question takes up to `within`.
    pub fn stepped(&mut self, now: Ticks, steps: Steps, within: Duration) {
        let asks = self.doubts.asked.map_or(now, |asked| now.max(asked.plus(within)));
        let (noticed, drift) = (steps.last(), self.drift);
        for (id, kept) in self.kept.iter_mut() {
            if kept.doubt.as_ref().is_some_and(|doubt| doubt.noticed == noticed)
                || !kept.is_doubtful(&steps, drift)
            {
                continue;
            }
            // A session's proof is a quarter of it old when it comes, and the question that brings
            // it may have to wait for its turn: one that came right before the step was one.
            let proven_after =
                kept.session().map_or(within, |session| within * 2 + session / 4 + session / 16);
            let until = asks.plus(proven_after);
            if let Some(before) = kept.doubt.replace(Box::new(Doubt { until, noticed })) {
                self.doubts.until.remove(&(before.until, *id));
            }
            self.doubts.until.insert((until, *id));
            self.doubts.ask = Some(asks);
        }
        (self.doubts.steps, self.doubts.within) = (steps, within);
    }

    /// Takes every lease that is in doubt, if it is time to ask about them: all in one batch, and
    /// not again before that may be answered.
    pub fn take_doubtful(&mut self, now: Ticks) -> Vec<Question> {
        if self.doubts.until.is_empty() {
            self.doubts.ask = None;
        }
        if self.doubts.ask.is_none_or(|at| at > now) {
            return Vec::new();
        }
        self.doubts.asked = Some(now);
        self.doubts.ask = Some(now.plus(self.doubts.within));
        let mut all: Vec<LeaseId> = self.doubts.until.iter().map(|(_, id)| *id).collect();
        all.sort_unstable();
        let question = |id: LeaseId| {
            let kept = self.kept.get_mut(&id)?;
            let renews = kept.renew || kept.unconfirmed;
            if renews && let Some(due) = kept.due.take() {
                self.due.remove(due, id);
            }
            // A session is asked about as a whole.
            Some(if renews || kept.session().is_some() {
                Question::Renew(id)
            } else {
                Question::Recheck(id)
            })
        };
        all.into_iter().filter_map(question).collect()
    }

    /// When the engine certainly had it, or later, and by how much the time of day may step after
    /// that before it is in doubt.
    pub fn proof(&self, id: LeaseId) -> Option<(Ticks, Duration)> {
        self.kept.get(&id).map(|kept| (kept.proof, bears(kept.whole(), self.drift)))
    }

    /// How many are in doubt.
    pub fn doubts(&self) -> usize {
        self.doubts.until.len()
    }

    /// The engine certainly had it at this time.
    pub(super) fn prove(&mut self, id: LeaseId, proof: Ticks) {
        let Some(kept) = self.kept.get_mut(&id) else { return };
        kept.proof = kept.proof.max(proof);
        if kept.doubt.is_some()
            && !kept.is_doubtful(&self.doubts.steps, self.drift)
            && let Some(doubt) = kept.doubt.take()
        {
            self.doubts.until.remove(&(doubt.until, id));
        }
    }
}
