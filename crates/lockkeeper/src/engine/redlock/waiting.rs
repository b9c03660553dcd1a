//! Waiting for a lock: whose names are contended, and what waiters are answered. When they ask again
//! is decided in `waiter`.

use std::time::Duration;

use super::acquire::Entry;
use super::waiter::Refusal;
use super::{Quorum, State};
use crate::engine::Place;
use crate::words::claim::{Claim, Holder};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// For how long a name on which somebody waited is taken for one on which the next one waits.
const CONTENDED: Duration = Duration::from_secs(5);

impl Quorum {
    /// Whether a claim is about to wait, as others of its name did a moment ago: it listens before
    /// it asks, and has not to ask twice.
    pub(super) fn will_wait(&self, id: ClaimId) -> bool {
        let (now, mut state) = (self.steady.now(), self.state());
        state.contended.retain(|_, until| *until > now);
        let State { claims, contended, .. } = &*state;
        claims.get(&id).is_some_and(|entry| {
            let new = !entry.listening && !entry.machine.is_held();
            new && entry.lines_up() && contended.contains_key(&entry.channel)
        })
    }

    /// Notes that a claim waits, or that one of its name need not.
    pub(super) fn note_contended(&self, id: ClaimId, waits: bool) {
        let until = self.steady.now().plus(CONTENDED);
        let mut state = self.state();
        let State { claims, contended, .. } = &mut *state;
        let Some(entry) = claims.get_mut(&id).filter(|entry| entry.lines_up()) else { return };
        entry.waited |= waits;
        if entry.waited {
            contended.insert(entry.channel.clone(), until);
        } else {
            contended.remove(&entry.channel);
        }
    }

    /// From now on the claim waits for a word; answers when to ask again without one.
    pub(super) fn wait_for(
        &self,
        id: ClaimId,
        by: Option<ClaimId>,
        keeps: bool,
        rest: Option<Duration>,
        holder: Option<Box<Holder>>,
    ) -> Place {
        let now = self.context.clock.now();
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id) else { return Place::default() };
        let kept = entry.machine.kept();
        let at = entry.waiter.refused(now, Refusal { by, keeps, kept, rest, jitter: jitter() });
        entry.holder = holder.clone();
        Place { ahead: None, holder, ask_at: Some(at) }
    }

    /// What a claim is answered that need not ask now.
    pub(super) fn has_just_asked(&self, id: ClaimId) -> Option<Place> {
        let now = self.context.clock.now();
        let mut state = self.state();
        let entry = state.claims.get_mut(&id).filter(|_| !self.tracks())?;
        let ask_at = Some(entry.waiter.needs_not_ask(now)?);
        Some(Place { ahead: None, holder: entry.holder.clone(), ask_at })
    }

    /// Lets others pass that wait for what was given back: the claim does not ask before a pause,
    /// unless somebody else gives back.
    pub(super) fn stand_back(&self, claim: &Claim, behind: ClaimId) -> Option<Ticks> {
        let now = self.context.clock.now();
        let mut state = self.state();
        Some(state.claims.get_mut(&claim.id)?.waiter.stands_back(now, behind))
    }
}

impl Entry {
    /// Whether it stands in line on the members.
    pub(super) fn lines_up(&self) -> bool {
        self.machine.lines_up()
    }
}

/// Up to 1, at random.
pub(super) fn jitter() -> f64 {
    (ClaimId::fresh().0 as u64 % 1000) as f64 / 1000.0
}
