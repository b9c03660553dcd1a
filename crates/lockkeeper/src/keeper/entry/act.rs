//! Carries out what a line decides: asks the engine, tells futures, announces losses.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Locked, Outcome};
use crate::engine::{Answer, Attempt, End, Line as InLine};
use crate::observe::Seen;
use crate::protocol::line::{Action, Ask, Event, Refusal, Shape};
use crate::words::claim::{Claim, Mode};
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};

thread_local! {
    /// Room for what a step decides; one a thread, because there may be 100 000 entries.
    static ACTIONS: Cell<Vec<Action>> = const { Cell::new(Vec::new()) };
}

impl Entry {
    /// One step of the line, and everything that follows from it.
    pub(in crate::keeper) fn step(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Ticks,
        event: Event,
    ) {
        let state = &mut *locked.state;
        // Nowhere in a thread that is ending.
        let mut actions = ACTIONS.try_with(Cell::take).unwrap_or_default();
        state.line.step(now, event, &mut actions);
        let mut next = 0;
        while let Some(action) = actions.get_mut(next) {
            // What stands here now is never looked at again.
            let action = std::mem::replace(action, Action::Withdraw(ClaimId(0)));
            next += 1;
            if let Some(event) = self.act(locked, now, action) {
                locked.state.line.step(now, event, &mut actions);
            }
        }
        // Whom the engine is asked for from now on watches the socket.
        let state = &mut *locked.state;
        if let Some(waiting) = state.line.serves().and_then(|seq| state.waiting.get_mut(seq))
            && std::mem::take(&mut waiting.lends)
        {
            let waker = waiting.waker.take();
            locked.wake(waker);
        }
        actions.clear();
        let _ = ACTIONS.try_with(|room| room.set(actions));
    }

    /// One action; answers the event that an immediate answer of the engine makes.
    fn act(self: &Arc<Self>, locked: &mut Locked<'_>, now: Ticks, action: Action) -> Option<Event> {
        if let Action::Attempt(_)
        | Action::Convert { .. }
        | Action::Withdraw(_)
        | Action::Release { again: Some(_), .. } = &action
        {
            locked.state.asked = now;
        }
        match action {
            Action::Attempt(ask) => self.attempt(locked, now, &ask),
            Action::Recheck(claim) => self.recheck(locked, now, claim),
            Action::Withdraw(claim) => {
                // An answer from before it was granted: its place is left behind the release.
                if locked.state.defer_until_released(claim) {
                    None
                } else {
                    self.withdraw(locked, now, claim)
                }
            }
            Action::Release { hold, again, over } => self.release(locked, now, hold, again, over),
            Action::Convert { hold, id, to, give_up, shape } => {
                self.convert(locked, now, hold, id, to, give_up, shape)
            }
            Action::Offer { seq, hold, token } => {
                let state = &mut *locked.state;
                let waker = state.waiting.get_mut(seq).and_then(|waiting| {
                    waiting.outcome = Some(Outcome::Offered { hold, token });
                    waiting.waker.take()
                });
                locked.wake(waker);
                None
            }
            Action::Parked { seq, hold } => {
                let state = &mut *locked.state;
                if let Some(waiting) = state.waiting.get_mut(seq) {
                    waiting.outcome = Some(Outcome::AskAnew);
                }
                let fresh = state.is_fresh(hold, now, self.keeper.clock.stepped());
                Some(Event::TurnOver { seq, fresh })
            }
            Action::Refuse { seq, why } => {
                let state = &mut *locked.state;
                let outcome = self.outcome_of(state, why, seq);
                let word = if matches!((&outcome, why), (Outcome::Refused(_), Refusal::Answer)) {
                    "failed"
                } else {
                    why_word(why)
                };
                self.keeper.observe(self, Seen::NotObtained { claim: seq, why: word });
                let waker = state.waiting.get_mut(seq).and_then(|waiting| {
                    waiting.outcome = Some(outcome);
                    waiting.waker.take()
                });
                locked.wake(waker);
                None
            }
            Action::Converted { seq, mode, token } => {
                let state = &mut *locked.state;
                if let Some(record) = state.turns.get(seq) {
                    record.cell.convert(mode, token);
                    self.keeper.observe(self, Seen::Converted { claim: seq, mode, token });
                }
                self.tell_conversion(locked, seq, Ok(()));
                None
            }
            Action::RefuseConvert { seq, why } => {
                self.keeper.observe(self, Seen::NotConverted { claim: seq });
                self.tell_conversion(locked, seq, Err(why));
                None
            }
            Action::Lost { seq, why } => {
                let state = &mut *locked.state;
                // The record stays until its guards are gone: the same owner must not enter a lost
                // hold again (R2).
                if let Some(record) = state.turns.get(seq) {
                    record.cell.lose(why);
                    self.keeper.lost(&record.cell);
                } else if let Some(waiting) = state.waiting.get_mut(seq) {
                    waiting.outcome = Some(Outcome::AskAnew);
                }
                None
            }
            Action::Warn { seq } => {
                let state = &mut *locked.state;
                let taken_at = state
                    .turns
                    .values()
                    .find(|t| t.cell.lost().is_none())
                    .map(|t| t.taken_at.to_string());
                tracing::warn!(
                    engine = self.keeper.facts.engine,
                    name = %self.name,
                    claim = seq,
                    taken_at,
                    "waiting for a guard of this process"
                );
                None
            }
        }
    }

    pub(in crate::keeper) fn tell_conversion(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        seq: u64,
        outcome: Result<(), Refusal>,
    ) {
        let state = &mut *locked.state;
        // While it is known for how long the engine has said nothing about it.
        let outcome = outcome.map_err(|why| self.refusal(state, why, seq));
        let Some(converting) = state.converting.get_mut(seq) else { return };
        converting.outcome = Some(outcome);
        let waker = converting.waker.take();
        if converting.forgotten {
            state.converting.remove(seq);
        }
        locked.wake(waker);
    }

    pub(in crate::keeper) fn claim(self: &Arc<Self>, locked: &Locked<'_>, ask: &Ask) -> Claim {
        let waiting = locked.state.waiting.get(ask.seq);
        Claim {
            id: ask.id,
            kind: self.kind,
            name: self.name.clone(),
            mode: ask.shape.mode,
            through: ask.shape.through,
            ttl: ask.shape.ttl,
            renew: ask.shape.renew,
            margin: ask.shape.margin,
            lock_delay: ask.shape.lock_delay,
            give_up: ask.give_up,
            who: waiting.and_then(|w| w.who.clone()).unwrap_or_else(|| self.keeper.who.clone()),
            value: waiting.and_then(|w| w.value.clone()),
        }
    }

    fn attempt(self: &Arc<Self>, locked: &mut Locked<'_>, now: Ticks, ask: &Ask) -> Option<Event> {
        let claim = self.claim(locked, ask);
        let engine = &self.keeper.engine;
        let waiting = locked.state.waiting.get_mut(ask.seq);
        let answer = match waiting {
            Some(waiting) if waiting.here && !ask.try_only => {
                let (answer, own_wait) = engine.attempt_here(&claim);
                waiting.own_wait = own_wait;
                answer
            }
            _ => engine.attempt(&claim, if ask.try_only { InLine::Try } else { InLine::Join }),
        };
        self.answer(locked, now, (claim.id, claim.ttl), answer, Self::answered)
    }

    /// Asks how a place stands whose time to ask has come.
    fn recheck(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        sent: Ticks,
        claim: ClaimId,
    ) -> Option<Event> {
        match self.keeper.engine.recheck(&[claim]) {
            Answer::Now(answers) => {
                let answer = answers.into_iter().next()?;
                Some(self.understand_standing(locked, claim, sent, answer))
            }
            Answer::Later(answer) => {
                let entry = self.clone();
                self.keeper.follow(answer, move |answers| async move {
                    if let Some(answer) = answers.into_iter().next() {
                        entry.rechecked(claim, sent, answer);
                    }
                });
                None
            }
        }
    }

    /// Takes an answer to an attempt or conversion, now or later.
    fn answer(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        sent: Ticks,
        (id, ttl): (ClaimId, Duration),
        answer: Answer<Attempt>,
        answered: fn(&Arc<Self>, ClaimId, Ticks, Attempt),
    ) -> Option<Event> {
        match answer {
            Answer::Now(attempt) => {
                if matches!(attempt, Attempt::InLine(_)) {
                    self.keeper.await_event(id, self, ttl);
                }
                Some(self.understand(locked, id, sent, attempt))
            }
            Answer::Later(answer) => {
                self.keeper.await_event(id, self, ttl);
                let entry = self.clone();
                self.keeper.follow(answer, move |attempt| async move {
                    answered(&entry, id, sent, attempt)
                });
                None
            }
        }
    }

    fn withdraw(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        sent: Ticks,
        claim: ClaimId,
    ) -> Option<Event> {
        if locked.state.line.stands_as(claim) {
            self.keeper.leave_claim(claim);
        } else {
            self.keeper.forget_claim(claim);
        }
        match self.keeper.engine.withdraw(claim) {
            Answer::Now(end) => Some(self.withdrawn(locked, sent, claim, end)),
            Answer::Later(answer) => {
                let entry = self.clone();
                self.keeper.follow(answer, move |end| async move {
                    let now = entry.keeper.clock.now();
                    let mut locked = entry.lock();
                    let event = entry.withdrawn(&mut locked, sent, claim, end);
                    entry.step(&mut locked, now, event);
                });
                None
            }
        }
    }

    /// What the engine said to a withdrawal.
    fn withdrawn(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        sent: Ticks,
        claim: ClaimId,
        end: End,
    ) -> Event {
        let End::Unknown(error) = end else {
            self.keeper.answered_about(self, claim);
            return Event::Withdrawn { claim, known: true };
        };
        let state = &mut *locked.state;
        if state.line.asks(claim) {
            let error = error.name(&self.name).engine(self.keeper.facts.engine);
            // Nobody waits behind a conversion but the next one of its hold.
            if state.line.stands_as(claim) {
                self.keeper.still_there(self, claim, sent, &error);
            }
            state.last_error = Some(error);
        }
        Event::Withdrawn { claim, known: false }
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of one action")]
    fn convert(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Ticks,
        hold: HoldId,
        id: ClaimId,
        to: Mode,
        give_up: Option<Ticks>,
        shape: Shape,
    ) -> Option<Event> {
        let ask = Ask {
            seq: 0,
            id,
            shape: Shape { mode: to, ..shape },
            try_only: false,
            sent_elsewhere: false,
            give_up,
            patient: false,
        };
        let claim = self.claim(locked, &ask);
        let answer = self.keeper.engine.convert(hold, &claim);
        self.answer(locked, now, (id, claim.ttl), answer, Self::converted)
    }
}

fn why_word(why: Refusal) -> &'static str {
    match why {
        Refusal::BusyHere | Refusal::Answer => "busy",
        Refusal::Unknown | Refusal::Unanswered => "unknown",
        Refusal::TimedOut | Refusal::Unheard => "timed-out",
        Refusal::TooMany => "too-many",
        Refusal::Lost(_) => "lost",
        Refusal::Closed => "closed",
    }
}
