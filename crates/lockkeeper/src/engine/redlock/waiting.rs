//! Waiting for a lock: who listens before it asks, and what waiters are answered. When they ask
//! again is decided in `waiter`.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::Quorum;
use super::acquire::Entry;
use super::waiter::Refusal;
use crate::engine::Place;
use crate::words::claim::{Claim, Holder};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// For how long a process listens to a name for which it waited and which it got: most often it
/// waits for it again.
const CONTENDED: Duration = Duration::from_secs(2);

impl Quorum {
    /// Whether a claim is about to wait, as others of its name did a moment ago: it listens before
    /// it asks, and has not to ask twice.
    pub(super) fn will_wait(&self, id: ClaimId) -> bool {
        let state = self.state();
        state.claims.get(&id).is_some_and(|entry| {
            let new = !entry.listening && !entry.machine.is_held();
            new && entry.lines_up() && state.channels.contains_key(&entry.channel)
        })
    }

    /// Stops listening for a claim that has the lock: not at once where it waited.
    pub(super) fn hush_soon(self: &Arc<Self>, id: ClaimId) {
        let state = self.state();
        let waited = |entry: &&Entry| entry.listening && entry.waited && entry.lines_up();
        let Some(entry) = state.claims.get(&id).filter(waited) else {
            drop(state);
            self.hush(id);
            return;
        };
        let channel = entry.channel.clone();
        drop(state);
        // One more listens, for a while.
        let begins = {
            let mut state = self.state();
            let until = self.steady.now().plus(CONTENDED);
            let begins = state.lingers.insert(channel.clone(), until).is_none();
            if begins {
                *state.channels.entry(channel.clone()).or_default() += 1;
            }
            begins
        };
        self.hush(id);
        if begins {
            self.context.spawner.spawn(self.clone().linger_on(channel));
        }
    }

    async fn linger_on(self: Arc<Self>, channel: String) {
        loop {
            let now = self.steady.now();
            let until = self.state().lingers.get(&channel).copied().unwrap_or_default();
            if until <= now || self.is_closed() {
                break;
            }
            sleep(until.since(now)).await;
        }
        let mut state = self.state();
        state.lingers.remove(&channel);
        self.unlisten(&mut state, &channel);
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
