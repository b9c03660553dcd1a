//! Who relies on the session, and how much of it has to be left at any time.

use std::collections::BTreeMap;
use std::time::Duration;

use super::claims::Entry;
use super::proto::Request;
use super::state::{State, Ticket};
use crate::engine::Event;
use crate::protocol::margin;
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// Counts those who rely on the session, by the margin that each asks for; `None` is the default.
///
/// They are holds that are renewed, and claims that are next in line: those are granted by an event
/// alone, and the session must be proven by then.
#[derive(Debug, Default)]
pub(super) struct Reliance {
    counts: BTreeMap<Option<Duration>, usize>,
    /// Something is due before the driver's timer.
    sooner: bool,
    /// When that will wake it.
    driver_at: Ticks,
}

impl Reliance {
    fn add(&mut self, margin: Option<Duration>) {
        *self.counts.entry(margin).or_default() += 1;
    }

    fn remove(&mut self, margin: Option<Duration>) {
        if let Some(count) = self.counts.get_mut(&margin) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&margin);
            }
        }
    }

    /// Whether the driver has to wake up before its timer does that.
    pub(super) fn is_sooner(&self) -> bool {
        self.sooner
    }

    /// The driver's timer is set.
    pub(super) fn set(&mut self, at: Ticks) {
        (self.driver_at, self.sooner) = (at, false);
    }

    /// How much of a session of this length has to be left; `None` while nobody relies on it.
    pub(super) fn floor(&self, timeout: Duration) -> Option<Duration> {
        let default = self.counts.get(&None).map(|_| margin::floor(timeout, None));
        let greatest = self.counts.last_key_value().and_then(|(margin, _)| *margin);
        let asked = greatest.map(|asked| margin::floor(timeout, Some(asked)));
        default.into_iter().chain(asked).max()
    }
}

impl State {
    /// How old a proof of the session may grow; `None` while nobody relies on it.
    pub(super) fn longest(&self) -> Option<Duration> {
        let floor = self.reliance.floor(self.session.as_ref()?.timeout)?;
        Some(self.alive.longest(floor, self.options.drift_per_mille))
    }

    /// Sends what is due to keep the session proven; answers when the next is.
    pub(super) fn keep_proven(&mut self, now: Ticks) -> Option<Ticks> {
        let mut longest = self.longest()?;
        if self.is_in_doubt() {
            // A proof is wanted as soon as there can be one.
            longest = longest.min(self.session.as_ref()?.timeout / 4);
        }
        let plan = self.alive.plan(longest);
        // A server that refuses the write is not asked without end.
        let write = plan
            .write
            .map(|at| at.max(self.beat_sent.plus(longest / 16)))
            .filter(|_| !self.beating);
        if write.is_some_and(|at| at <= now) {
            self.beat();
        }
        let touch = Some(plan.touch).filter(|at| self.last_sent < *at);
        if touch.is_some_and(|at| at <= now) {
            self.send(&Request::Ping, Ticket::Nobody);
        }
        // What was sent now is heard of when it is answered.
        [write, touch].into_iter().flatten().filter(|at| *at > now).min()
    }

    /// More is proven of the session than the keeper was told.
    pub(super) fn tell_renewed(&mut self) {
        if self.reliance.counts.is_empty() {
            return;
        }
        let Some(lease) = self.session.as_ref().map(|session| session.lease()) else { return };
        let (ttl, since) = (self.left(), self.clock.now());
        self.outbox.events.push(Event::Renewed { lease, ttl, since });
    }

    /// Whether a claim relies on the session may be another now.
    pub(super) fn note_reliance(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let relies = self.next_in_line.contains(&id)
            || (entry.claim.renew && entry.machine.held().is_some());
        if std::mem::replace(&mut entry.relies, relies) == relies {
            return;
        }
        let margin = entry.claim.margin;
        if !relies {
            return self.reliance.remove(margin);
        }
        let is_first = !self.reliance.counts.contains_key(&margin);
        self.reliance.add(margin);
        if is_first && let Some(longest) = self.longest() {
            let plan = self.alive.plan(longest);
            self.reliance.sooner |=
                plan.write.unwrap_or(plan.touch).min(plan.touch) < self.reliance.driver_at;
        }
    }

    /// Forgets a claim.
    pub(super) fn drop_entry(&mut self, id: ClaimId) -> Option<Entry> {
        let entry = self.claims.remove(&id)?;
        if entry.relies {
            self.reliance.remove(entry.claim.margin);
        }
        Some(entry)
    }
}
