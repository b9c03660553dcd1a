//! One name of one kind in this process: its line, who waits for it and who has a turn.
//!
//! Every step is made under the entry's lock, by whatever thread has something to say: the caller,
//! the engine's waiter, the keeper. Wakers are woken after the lock is given back.

pub(crate) mod act;
pub(crate) mod answers;
mod ask;
pub(crate) mod convert;
mod few;
pub(crate) mod release;
pub(crate) mod request;
mod state;
mod turns;

use std::sync::{Arc, PoisonError};

use tokio::sync::oneshot;

pub(crate) use self::ask::Begun;
pub(crate) use self::release::Over;
use self::release::Told;
pub(in crate::keeper) use self::state::{Locked, Outcome, State};
use crate::engine::{Attempt, Standing};
use crate::keeper::Keeper;
use crate::protocol::line::{Event, Line};
use crate::sync::Mutex;
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// See the module.
pub(crate) struct Entry {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(in crate::keeper) state: Mutex<State>,
}

impl Entry {
    pub(crate) fn new(keeper: Arc<Keeper>, kind: Kind, name: Name) -> Self {
        let line = Line::new(keeper.rules.clone(), keeper.facts.hand_off);
        Self { keeper, kind, name, state: Mutex::new(State::of(line)) }
    }

    pub(in crate::keeper) fn lock(self: &Arc<Self>) -> Locked<'_> {
        Locked::of(self, self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// A timer of the line is due.
    pub(crate) fn timer(self: &Arc<Self>, now: Ticks) {
        let mut locked = self.lock();
        locked.state.timer_came(now);
        self.step(&mut locked, now, Event::Timer);
    }

    /// The engine answered an attempt or conversion, at once or by a push.
    pub(crate) fn answered(self: &Arc<Self>, claim: ClaimId, sent: Ticks, answer: Attempt) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let event = self.understand(&mut locked, claim, sent, answer);
        self.step(&mut locked, now, event);
    }

    /// The engine said how a claim stands.
    pub(in crate::keeper) fn rechecked(
        self: &Arc<Self>,
        claim: ClaimId,
        sent: Ticks,
        answer: Standing,
    ) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let event = self.understand_standing(&mut locked, claim, sent, answer);
        self.step(&mut locked, now, event);
    }

    /// The engine said when to ask about a claim.
    pub(crate) fn ask_at(self: &Arc<Self>, claim: ClaimId, at: Ticks) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        self.step(&mut locked, now, Event::AskAt { claim, at });
    }

    /// A hint that the claim may be granted.
    pub(crate) fn wake(self: &Arc<Self>, claim: ClaimId) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        self.step(&mut locked, now, Event::Wake { claim });
    }

    /// A statement of a hold is about to be given out.
    pub(crate) fn given_out(self: &Arc<Self>, hold: HoldId) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        self.step(&mut locked, now, Event::GivenOut { hold });
    }

    /// A hold ended by itself.
    pub(crate) fn ended(self: &Arc<Self>, hold: HoldId, why: Lost, ours: bool) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        if !ours && locked.state.leases.remove(hold).is_some() {
            // It is not given back, which would end its lease here.
            self.keeper.drop_lease(hold);
        }
        self.step(&mut locked, now, Event::Ended { hold, why, ours });
    }

    /// The `Locks` is closed; answers how the release of each hold can be heard of.
    pub(crate) fn close(self: &Arc<Self>) -> Vec<(HoldId, oneshot::Receiver<Told>)> {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let mut open = Vec::new();
        let under_way: Vec<HoldId> = state.releasing().collect();
        for hold in state.line.holds().into_iter().chain(under_way) {
            open.push((hold, state.hear_of_release(hold)));
        }
        self.step(&mut locked, now, Event::Close);
        open
    }

    /// Somebody asks politely for the lock.
    pub(crate) fn asked(self: &Arc<Self>, hold: HoldId) {
        let locked = self.lock();
        for record in locked.state.turns.values().filter(|t| t.cell.hold == hold) {
            record.cell.ask();
        }
    }

    /// Whether the process stands in the engine's line with this claim, or a conversion waits with
    /// it.
    pub(crate) fn stands(&self, claim: ClaimId) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.line.place() == Some(claim) || state.line.conversions().any(|id| id == claim)
    }

    /// Whether this claim is a conversion of a hold.
    pub(crate) fn is_converting(&self, claim: ClaimId) -> bool {
        self.state
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .line
            .conversions()
            .any(|id| id == claim)
    }

    /// Whether the process stands in the engine's line with this claim.
    pub(crate) fn is_in_line(&self, claim: ClaimId) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).line.place() == Some(claim)
    }

    /// Every hold of this name, for ends that concern all.
    pub(crate) fn holds(&self) -> Vec<HoldId> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).line.holds()
    }

    /// Whether the line knows this id.
    pub(crate) fn knows(&self, id: ClaimId) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).line.knows(id)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if self.keeper.is_forked() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(timer) = state.timer() {
            self.keeper.driver.disarm(timer);
        }
        self.keeper.forget_entry(self.kind, &self.name);
    }
}
