//! Asking for a turn, and fetching what a claim has come to.

use std::sync::Arc;
use std::task::Waker;

use super::request::Request;
use super::state::Waiting;
use super::turns::{Guards, TurnRecord};
use super::{Entry, Locked, Outcome, State};
use crate::engine::OwnWait;
use crate::keeper::cell::{NewTurn, TurnCell};
use crate::keeper::driver::Due;
use crate::observe::Seen;
use crate::protocol::line::{Ask, Event, Seq};
use crate::words::claim::{Claim, Holder};
use crate::words::clock::Ticks;
use crate::words::error::Result;
use crate::words::id::{ClaimId, HoldId};
use crate::words::token::Token;

/// What a claim came to.
pub(crate) enum Begun {
    Got(Arc<TurnCell>),
    Busy(Option<Box<Holder>>),
    /// It waits, and perhaps this thread itself has to. `outstanding`: for an answer of the engine,
    /// and not only for a guard of this process.
    Waiting {
        seq: Seq,
        own_wait: Option<OwnWait>,
        outstanding: bool,
    },
    /// The offer lapsed, or its hold was lost, before anybody took it: begin anew.
    AskAnew,
}

impl Entry {
    /// Asks for a turn. `Waiting` is followed by [`Entry::poll_turn`], and by [`Entry::abandon`]
    /// when the caller leaves.
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: &Request,
        give_up: Option<Ticks>,
        waker: &Waker,
    ) -> Result<Begun> {
        self.keeper.check_open()?;
        let mut locked = self.lock();
        let state = &mut *locked.state;
        // What the engine is asked rests on all clocks.
        let queues = state.line.queues(&request.shape());
        let now = if queues { self.keeper.glance() } else { self.keeper.now() };
        if let Some(turn) = self.again(state, request)? {
            return Ok(Begun::Got(turn));
        }
        if state.line.is_idle() {
            // What one before came to says nothing about this one.
            state.last_error = None;
        }
        let seq = state.line.draw_seq();
        let place = ClaimId::fresh();
        let ask = Ask {
            seq,
            id: place,
            shape: request.shape(),
            try_only: request.try_only,
            sent_elsewhere: false,
            give_up,
            patient: request.is_patient(),
        };
        state.waiting.insert(seq, Box::new(Waiting::of(request, now)));
        self.keeper.observe(
            self,
            Seen::Asked { claim: seq, place, mode: request.mode, trying: request.try_only },
        );
        self.step(&mut locked, now, Event::Ask(ask));
        match self.fetch(&mut locked, Some(now), seq, request) {
            Some(outcome) => outcome,
            None => {
                let state = &mut *locked.state;
                let mut own_wait = None;
                self.note_waiting(state, seq);
                let outstanding = self.waits_with(state, seq, waker);
                if let Some(waiting) = state.waiting.get_mut(seq) {
                    waiting.told = true;
                    // From now on it may be asked for in another thread.
                    waiting.here = false;
                    own_wait = waiting.own_wait.take();
                }
                // Of a place that is being left nothing was told while nobody waited behind it.
                let behind = state.line.is_leaving() && self.keeper.claims.any_silent();
                let patience = request.unreachable_after.map(|time| now.plus(time));
                if let Some(at) = patience.into_iter().chain(behind.then_some(now)).min() {
                    self.keeper.look_at_outages(at);
                }
                Ok(Begun::Waiting { seq, own_wait, outstanding })
            }
        }
    }

    /// Looks whether a claim that waits has come to something.
    pub(crate) fn poll_turn(
        self: &Arc<Self>,
        seq: Seq,
        request: &Request,
        waker: &Waker,
    ) -> Result<Begun> {
        let mut locked = self.lock();
        if let Some(outcome) = self.fetch(&mut locked, None, seq, request) {
            return outcome;
        }
        let state = &mut *locked.state;
        let outstanding = self.waits_with(state, seq, waker);
        Ok(Begun::Waiting { seq, own_wait: None, outstanding })
    }

    /// Whom to wake; whether it waits for an answer of the engine.
    fn waits_with(&self, state: &mut State, seq: Seq, waker: &Waker) -> bool {
        let outstanding = state.line.claim().is_some();
        if let Some(waiting) = state.waiting.get_mut(seq) {
            waiting.lends = !outstanding && self.keeper.is_lent();
            if waiting.waker.as_ref().is_none_or(|w| !w.will_wake(waker)) {
                waiting.waker = Some(waker.clone());
            }
        }
        outstanding
    }

    /// Takes what the claim came to; `None` while it waits.
    fn fetch(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Option<Ticks>,
        seq: Seq,
        request: &Request,
    ) -> Option<Result<Begun>> {
        let state = &mut *locked.state;
        state.waiting.get(seq)?.outcome.as_ref()?;
        let waiting = state.waiting.remove(seq)?;
        if waiting.told {
            self.keeper.observe(self, Seen::WaitOver { claim: seq });
        }
        let outcome = waiting.outcome?;
        Some(match outcome {
            Outcome::Busy(holder) => Ok(Begun::Busy(holder)),
            Outcome::Refused(error) => Err(error),
            Outcome::AskAnew => {
                // It asks again under another number.
                self.keeper.observe(self, Seen::Left { claim: seq });
                Ok(Begun::AskAnew)
            }
            Outcome::Offered { hold, token } => {
                let now = now.unwrap_or_else(|| self.keeper.glance());
                let cell = self.take(state, now, seq, hold, token, request);
                self.step(locked, now, Event::Take(seq));
                Ok(Begun::Got(cell))
            }
        })
    }

    fn take(
        self: &Arc<Self>,
        state: &mut State,
        now: Ticks,
        seq: Seq,
        hold: HoldId,
        token: Option<Token>,
        request: &Request,
    ) -> Arc<TurnCell> {
        let lease = state.leases.get(hold).cloned();
        let span = tracing::debug_span!(
            "hold",
            engine = self.keeper.facts.engine,
            name = %self.name,
            token = token.map(Token::get)
        );
        let turn = NewTurn {
            entry: self.clone(),
            seq,
            hold,
            lease,
            granted: now,
            token,
            mode: request.mode,
            span,
        };
        let cell = Arc::new(TurnCell::new(turn));
        let (owner, thread) = (request.owner.clone(), request.thread);
        let too_long = request.hold_at_most.map(|time| {
            self.keeper.driver.arm(
                &self.keeper,
                now.plus(time),
                Due::TooLong(Arc::downgrade(&cell)),
            )
        });
        let guards = Guards::one(request.mode);
        let record = TurnRecord {
            cell: cell.clone(),
            owner,
            thread,
            guards,
            owes_back: false,
            too_long,
            taken_at: request.taken_at,
        };
        state.turns.insert(seq, record);
        self.keeper.took(&cell);
        cell
    }

    /// The caller has left.
    pub(crate) fn abandon(self: &Arc<Self>, seq: Seq) {
        let mut locked = self.lock();
        let now = self.keeper.now();
        let waiting = locked.state.waiting.remove(seq);
        if waiting.as_ref().is_some_and(|w| w.told) {
            self.keeper.observe(self, Seen::WaitOver { claim: seq });
        }
        let offered = waiting.and_then(|w| match w.outcome {
            Some(Outcome::Offered { hold, .. }) => Some(hold),
            _ => None,
        });
        let fresh = offered.is_none_or(|hold| {
            let stepped = self.keeper.clock.stepped();
            locked.state.is_fresh(hold, now, stepped)
        });
        self.step(&mut locked, now, Event::Cancel { seq, fresh });
        self.keeper.observe(self, Seen::Left { claim: seq });
    }

    /// Reserves the process's place for a claim that is sent together with others; `None` when it
    /// is not free here.
    pub(crate) fn reserve(self: &Arc<Self>, request: &Request) -> Option<(Seq, Claim)> {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let state = &mut *locked.state;
        if !state.line.is_idle() {
            return None;
        }
        let seq = state.line.draw_seq();
        let ask = Ask {
            seq,
            id: ClaimId::fresh(),
            shape: request.shape(),
            try_only: true,
            sent_elsewhere: true,
            give_up: None,
            patient: false,
        };
        state.waiting.insert(seq, Box::new(Waiting::of(request, now)));
        let claim = self.claim(&locked, &ask);
        self.step(&mut locked, now, Event::Ask(ask));
        Some((seq, claim))
    }

    fn note_waiting(&self, state: &mut State, seq: Seq) {
        let behind = state.last_holder.as_deref().map(|h| (h.host.clone(), h.pid));
        tracing::debug!(
            engine = self.keeper.facts.engine,
            name = %self.name,
            ahead = state.last_ahead,
            ?behind,
            "waiting"
        );
        self.keeper.observe(self, Seen::Waiting { claim: seq, ahead: state.last_ahead });
    }
}
