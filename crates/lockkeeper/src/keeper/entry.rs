//! One name of one kind in this process: its line, who waits for it and who has a turn.
//!
//! Every step is made under the entry's lock, by whatever thread has something to say: the caller,
//! the engine's waiter, the keeper. Wakers are woken after the lock is given back.

use std::sync::{Arc, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::oneshot;

use super::Keeper;
use super::cell::{LeaseCell, NewTurn, TurnCell};
use super::convert::Converting;
use super::driver::{Due, TimerId};
use super::few::Few;
use super::release::{ReleaseStep, Told, UnderWay};
use super::request::Request;
use super::turns::{Guards, TurnRecord};
use crate::claim::{Holder, Identity, Mode};
use crate::clock::Ticks;
use crate::engine::{Attempt, Standing};
use crate::error::{Error, Result};
use crate::id::{ById, ClaimId, HoldId};
use crate::lost::Lost;
use crate::name::{Kind, Name};
use crate::protocol::line::{Ask, Event, Line, Seq};
use crate::sync::{Mutex, MutexGuard};
use crate::token::Token;

/// See the module.
pub(crate) struct Entry {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) line: Line,
    pub(super) waiting: Few<Seq, Waiting>,
    pub(super) turns: Few<Seq, TurnRecord>,
    pub(super) converting: ById<Seq, Converting>,
    /// Leases of the holds that have one.
    pub(super) leases: Few<HoldId, Arc<LeaseCell>>,
    /// Who waits to hear how a release ended.
    pub(super) tell: Few<HoldId, oneshot::Sender<Told>>,
    pub(super) releasing: Few<HoldId, UnderWay>,
    /// What the engine said last about who holds it.
    pub(super) last_holder: Option<Box<Holder>>,
    pub(super) last_ahead: Option<u32>,
    /// Why the last attempt got nothing.
    pub(super) last_error: Option<Error>,
    /// When the engine said something last about a claim of this name.
    pub(super) answered: Ticks,
    /// What became of the release that this very step made.
    pub(super) released: Option<ReleaseStep>,
    armed: Option<Alarm>,
}

/// The one timer of an entry.
#[derive(Clone, Copy)]
struct Alarm {
    timer: TimerId,
    /// It keeps the entry alive.
    keeps: bool,
}

impl State {
    /// Whether the last renewal of a hold was answered and more than half of its lease is left
    /// (R9).
    pub(super) fn is_fresh(&self, hold: HoldId, now: Ticks) -> bool {
        self.leases.get(hold).is_none_or(|lease| lease.is_fresh(now))
    }
}

/// A claim whose future waits, or has something to fetch.
pub(super) struct Waiting {
    pub(super) who: Option<Arc<Identity>>,
    pub(super) value: Option<Arc<str>>,
    pub(super) waker: Option<Waker>,
    pub(super) outcome: Option<Outcome>,
    /// The observer was told that it waits.
    told: bool,
    /// Since when it waits, and for how long the engine may be silent.
    pub(super) patience: Option<(Ticks, Duration)>,
}

impl Waiting {
    fn of(request: &Request, now: Ticks) -> Self {
        let patience = request.unreachable_after.map(|time| (now, time));
        let (who, value) = (request.who.clone(), request.value.clone());
        Self { who, value, waker: None, outcome: None, told: false, patience }
    }
}

pub(super) enum Outcome {
    Offered {
        hold: HoldId,
        token: Option<Token>,
    },
    Busy(Option<Box<Holder>>),
    Refused(Error),
    /// The offer lapsed or was lost before anybody took it.
    AskAnew,
}

/// What a claim came to.
pub(crate) enum Begun {
    Got(Arc<TurnCell>),
    Busy(Option<Box<Holder>>),
    Waiting(Seq),
    /// The offer lapsed, or its hold was lost, before anybody took it: begin anew.
    AskAnew,
}

/// How a turn ended for the engine.
pub(crate) enum Over {
    /// It was lost before.
    Lost(Lost),
    /// The hold goes on: passed to the next, or guards of the same owner are left.
    Passed,
    /// The engine answered.
    Ended(Told),
    /// The engine will answer.
    Soon(oneshot::Receiver<Told>),
}

/// The lock of an entry; on its way out it arms the timer and wakes the wakers.
pub(super) struct Locked<'a> {
    entry: &'a Arc<Entry>,
    pub(super) state: Option<MutexGuard<'a, State>>,
    pub(super) wakers: Vec<Waker>,
}

impl Locked<'_> {
    pub(super) fn wake(&mut self, waker: Option<Waker>) {
        self.wakers.extend(waker);
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(mut state) = self.state.take() {
            // A place that must still be left keeps its entry alive; everything else has a future
            // or a guard that does.
            let keeps = state.line.is_leaving();
            let wrong = |armed: Option<Alarm>, at: Ticks| {
                armed.is_none_or(|armed| at < armed.timer.at || keeps != armed.keeps)
            };
            if let Some(at) = state.line.next_timer().filter(|at| wrong(state.armed, *at)) {
                let due = if keeps {
                    Due::Leaving(self.entry.clone())
                } else {
                    Due::Entry(Arc::downgrade(self.entry))
                };
                let driver = &self.entry.keeper.driver;
                let timer = driver.arm(&self.entry.keeper, at, due);
                if let Some(old) = state.armed.replace(Alarm { timer, keeps }) {
                    driver.disarm(old.timer);
                }
            }
            drop(state);
        }
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

impl Entry {
    pub(crate) fn new(keeper: Arc<Keeper>, kind: Kind, name: Name) -> Self {
        let line = Line::new(keeper.rules.clone(), keeper.facts.hand_off);
        let state = State {
            line,
            waiting: Few::default(),
            turns: Few::default(),
            converting: ById::default(),
            leases: Few::default(),
            tell: Few::default(),
            releasing: Few::default(),
            last_holder: None,
            last_ahead: None,
            last_error: None,
            answered: Ticks(0),
            released: None,
            armed: None,
        };
        Self { keeper, kind, name, state: Mutex::new(state) }
    }

    pub(super) fn lock(self: &Arc<Self>) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { entry: self, state: Some(state), wakers: Vec::new() }
    }

    /// Asks for a turn. `Waiting` is followed by [`Entry::poll_turn`], and by [`Entry::abandon`]
    /// when the caller leaves.
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: &Request,
        give_up: Option<Ticks>,
        waker: &Waker,
    ) -> Result<Begun> {
        self.keeper.check_open()?;
        let now = self.keeper.now();
        let mut locked = self.lock();
        let Some(state) = locked.state.as_deref_mut() else { return Err(self.closed()) };
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
        state.waiting.insert(seq, Waiting::of(request, now));
        self.keeper.observe(
            self,
            crate::observe::Seen::Asked {
                claim: seq,
                place,
                mode: request.mode,
                trying: request.try_only,
            },
        );
        self.step(&mut locked, now, Event::Ask(ask));
        match self.fetch(&mut locked, now, seq, request) {
            Some(outcome) => outcome,
            None => {
                let Some(state) = locked.state.as_deref_mut() else { return Err(self.closed()) };
                self.note_waiting(state, seq);
                if let Some(waiting) = state.waiting.get_mut(seq) {
                    waiting.told = true;
                    waiting.waker = Some(waker.clone());
                }
                // Of a place that is being left nothing was told while nobody waited behind it.
                let behind = state.line.is_leaving() && self.keeper.claims.any_silent();
                let patience = request.unreachable_after.map(|time| now.plus(time));
                if let Some(at) = patience.into_iter().chain(behind.then_some(now)).min() {
                    self.keeper.look_at_outages(at);
                }
                Ok(Begun::Waiting(seq))
            }
        }
    }

    /// Looks whether a claim that waits has come to something.
    pub(crate) fn poll_turn(
        self: &Arc<Self>,
        seq: Seq,
        request: &Request,
        waker: &Waker,
    ) -> Poll<Result<Begun>> {
        let mut locked = self.lock();
        let now = self.keeper.now();
        match self.fetch(&mut locked, now, seq, request) {
            Some(outcome) => Poll::Ready(outcome),
            None => {
                if let Some(waiting) =
                    locked.state.as_deref_mut().and_then(|s| s.waiting.get_mut(seq))
                    && waiting.waker.as_ref().is_none_or(|w| !w.will_wake(waker))
                {
                    waiting.waker = Some(waker.clone());
                }
                Poll::Pending
            }
        }
    }

    /// Takes what the claim came to; `None` while it waits.
    fn fetch(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Ticks,
        seq: Seq,
        request: &Request,
    ) -> Option<Result<Begun>> {
        let state = locked.state.as_deref_mut()?;
        state.waiting.get(seq)?.outcome.as_ref()?;
        let waiting = state.waiting.remove(seq)?;
        if waiting.told {
            self.keeper.observe(self, crate::observe::Seen::WaitOver { claim: seq });
        }
        let outcome = waiting.outcome?;
        Some(match outcome {
            Outcome::Busy(holder) => Ok(Begun::Busy(holder)),
            Outcome::Refused(error) => Err(error),
            Outcome::AskAnew => {
                // It asks again under another number.
                self.keeper.observe(self, crate::observe::Seen::Left { claim: seq });
                Ok(Begun::AskAnew)
            }
            Outcome::Offered { hold, token } => {
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
        let now = self.keeper.now();
        let mut locked = self.lock();
        let waiting = locked.state.as_deref_mut().and_then(|state| state.waiting.remove(seq));
        if waiting.as_ref().is_some_and(|w| w.told) {
            self.keeper.observe(self, crate::observe::Seen::WaitOver { claim: seq });
        }
        let offered = waiting.and_then(|w| match w.outcome {
            Some(Outcome::Offered { hold, .. }) => Some(hold),
            _ => None,
        });
        let fresh = offered.is_none_or(|hold| {
            locked.state.as_deref().is_some_and(|state| state.is_fresh(hold, now))
        });
        self.step(&mut locked, now, Event::Cancel { seq, fresh });
        self.keeper.observe(self, crate::observe::Seen::Left { claim: seq });
    }

    /// A guard that was given `mode` was released or dropped. With `tell`, the answer can be waited
    /// for.
    pub(crate) fn turn_over(
        self: &Arc<Self>,
        cell: &Arc<TurnCell>,
        mode: Mode,
        tell: bool,
    ) -> Over {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let Some(state) = locked.state.as_deref_mut() else { return Over::Passed };
        let Some(record) = state.turns.get_mut(cell.seq) else {
            return Over::Lost(cell.lost().unwrap_or(Lost::Released));
        };
        record.guards.remove(mode);
        if !record.guards.is_empty() {
            if let Some(why) = cell.lost() {
                return Over::Lost(why);
            }
            self.pay_back(&mut locked, now, cell);
            return Over::Passed;
        }
        if let Some(timer) = state.turns.remove(cell.seq).and_then(|record| record.too_long) {
            self.keeper.driver.disarm(timer);
        }
        // Its way back from writing ends with the hold, whatever the engine answers.
        state.converting.remove(&cell.seq);
        let was_lost = cell.lost();
        let fresh = was_lost.is_none() && cell.lease.as_ref().is_none_or(|l| l.is_fresh(now));
        let mut soon = None;
        // Of a hold that was lost before, somebody else waits for the release: whoever closes.
        if tell && was_lost.is_none() {
            let (sender, receiver) = oneshot::channel();
            state.tell.insert(cell.hold, sender);
            soon = Some(receiver);
        }
        state.released = None;
        match was_lost {
            Some(_) => self.keeper.lost(cell),
            None => self.keeper.releasing(cell),
        }
        self.step(&mut locked, now, Event::TurnOver { seq: cell.seq, fresh });
        // Without a view in somebody's hands nobody is left who could look or wait.
        if Arc::strong_count(cell) > 1 {
            cell.lose(Lost::Released);
        }
        let Some(state) = locked.state.as_deref_mut() else { return Over::Passed };
        let ended = state.released.take();
        if let Some(why) = was_lost {
            return Over::Lost(why);
        }
        match (ended, soon) {
            (Some(ReleaseStep::Ended(end)), _) => {
                state.tell.remove(cell.hold);
                Over::Ended(end)
            }
            (Some(ReleaseStep::Later), Some(receiver)) => Over::Soon(receiver),
            _ => {
                state.tell.remove(cell.hold);
                Over::Passed
            }
        }
    }

    /// The turn was held longer than it may be (R16).
    pub(crate) fn held_too_long(self: &Arc<Self>, cell: &Arc<TurnCell>) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let Some(state) = locked.state.as_deref_mut() else { return };
        if !state.turns.contains(cell.seq) || cell.lost().is_some() {
            return;
        }
        cell.lose(Lost::HeldTooLong);
        self.keeper.lost(cell);
        self.end_convert(&mut locked, now, cell, Lost::HeldTooLong);
        self.step(&mut locked, now, Event::TurnOver { seq: cell.seq, fresh: false });
    }

    /// Reserves the process's place for a claim that is sent together with others; `None` when it
    /// is not free here.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        request: &Request,
    ) -> Option<(Seq, crate::claim::Claim)> {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let state = locked.state.as_deref_mut()?;
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
        state.waiting.insert(seq, Waiting::of(request, now));
        let claim = self.claim(&locked, &ask);
        self.step(&mut locked, now, Event::Ask(ask));
        Some((seq, claim))
    }

    /// A timer of the line is due.
    pub(crate) fn timer(self: &Arc<Self>, now: Ticks) {
        let mut locked = self.lock();
        if let Some(state) = locked.state.as_deref_mut() {
            // A timer that another has overtaken must not make room for a third.
            if state.armed.is_some_and(|armed| armed.timer.at <= now) {
                state.armed = None;
            }
        }
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
    pub(super) fn rechecked(self: &Arc<Self>, claim: ClaimId, sent: Ticks, answer: Standing) {
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

    /// A hold ended by itself.
    pub(crate) fn ended(self: &Arc<Self>, hold: HoldId, why: Lost, ours: bool) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        if !ours
            && locked.state.as_deref_mut().is_some_and(|state| state.leases.remove(hold).is_some())
        {
            // It is not given back, which would end its lease here.
            self.keeper.drop_lease(hold);
        }
        self.step(&mut locked, now, Event::Ended { hold, why, ours });
    }

    /// The `Locks` is closed; answers how the release of each hold can be heard of.
    pub(crate) fn close(self: &Arc<Self>) -> Vec<(HoldId, oneshot::Receiver<Told>)> {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let Some(state) = locked.state.as_deref_mut() else { return Vec::new() };
        let mut open = Vec::new();
        let under_way: Vec<HoldId> = state.releasing.keys().collect();
        for hold in state.line.holds().into_iter().chain(under_way) {
            open.push((hold, state.hear_of_release(hold)));
        }
        self.step(&mut locked, now, Event::Close);
        open
    }

    /// Somebody asks politely for the lock.
    pub(crate) fn asked(self: &Arc<Self>, hold: HoldId) {
        let locked = self.lock();
        let turns = locked.state.as_deref().into_iter().flat_map(|s| s.turns.values());
        for record in turns.filter(|t| t.cell.hold == hold) {
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

    fn note_waiting(&self, state: &mut State, seq: Seq) {
        let behind = state.last_holder.as_deref().map(|h| (h.host.clone(), h.pid));
        tracing::debug!(
            engine = self.keeper.facts.engine,
            name = %self.name,
            ahead = state.last_ahead,
            ?behind,
            "waiting"
        );
        self.keeper
            .observe(self, crate::observe::Seen::Waiting { claim: seq, ahead: state.last_ahead });
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
        if let Some(alarm) = state.armed {
            self.keeper.driver.disarm(alarm.timer);
        }
        self.keeper.forget_entry(self.kind, &self.name);
    }
}
