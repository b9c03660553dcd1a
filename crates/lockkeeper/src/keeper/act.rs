//! Carries out what a line decides: asks the engine, tells futures, announces losses.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::entry::{Entry, Locked, Outcome, ReleaseStep, UnderWay};
use crate::claim::{Claim, Mode};
use crate::clock::Ticks;
use crate::engine::{Answer, Attempt, End, Line as InLine, Released};
use crate::id::{ClaimId, HoldId};
use crate::observe::Seen;
use crate::protocol::line::{Action, Ask, Event, Refusal, Shape};

/// How long to wait before an unknown release is sent again.
const RELEASE_AGAIN_AFTER: Duration = Duration::from_millis(250);

thread_local! {
    /// Room for what a step decides; one a thread, because there may be 100 000 entries.
    static ACTIONS: Cell<Vec<Action>> = const { Cell::new(Vec::new()) };
}

impl Entry {
    /// One step of the line, and everything that follows from it.
    pub(super) fn step(self: &Arc<Self>, locked: &mut Locked<'_>, now: Ticks, event: Event) {
        let Some(state) = locked.state.as_deref_mut() else { return };
        // Nowhere in a thread that is ending.
        let mut actions = ACTIONS.try_with(Cell::take).unwrap_or_default();
        state.line.step(now, event, &mut actions);
        let mut next = 0;
        while let Some(action) = actions.get_mut(next) {
            // What stands here now is never looked at again.
            let action = std::mem::replace(action, Action::Withdraw(ClaimId(0)));
            next += 1;
            if let Some(event) = self.act(locked, now, action)
                && let Some(state) = locked.state.as_deref_mut()
            {
                state.line.step(now, event, &mut actions);
            }
        }
        actions.clear();
        let _ = ACTIONS.try_with(|room| room.set(actions));
    }

    /// One action; answers the event that an immediate answer of the engine makes.
    fn act(self: &Arc<Self>, locked: &mut Locked<'_>, now: Ticks, action: Action) -> Option<Event> {
        match action {
            Action::Attempt(ask) => self.attempt(locked, now, &ask),
            Action::Withdraw(claim) => {
                let state = locked.state.as_deref_mut()?;
                if let Some(under_way) = state.releasing.get_mut(claim) {
                    // An answer from before it was granted: its place is left behind the release, as in `release`.
                    under_way.echoed = true;
                    return None;
                }
                self.withdraw(claim)
            }
            Action::Release { hold, again, over } => self.release(locked, now, hold, again, over),
            Action::Convert { hold, id, to, give_up, shape } => self.convert(locked, now, hold, id, to, give_up, shape),
            Action::Offer { seq, hold, token } => {
                let state = locked.state.as_deref_mut()?;
                let waker = state.waiting.get_mut(seq).and_then(|waiting| {
                    waiting.outcome = Some(Outcome::Offered { hold, token });
                    waiting.waker.take()
                });
                locked.wake(waker);
                None
            }
            Action::Parked { seq, hold } => {
                let state = locked.state.as_deref_mut()?;
                if let Some(waiting) = state.waiting.get_mut(seq) {
                    waiting.outcome = Some(Outcome::AskAnew);
                }
                Some(Event::TurnOver { seq, fresh: state.is_fresh(hold, now) })
            }
            Action::Refuse { seq, why } => {
                let state = locked.state.as_deref_mut()?;
                let outcome = self.outcome_of(state, why);
                let word = if matches!((&outcome, why), (Outcome::Refused(_), Refusal::Answer)) { "failed" } else { why_word(why) };
                self.keeper.observe(self, Seen::NotObtained { claim: seq, why: word });
                let waker = state.waiting.get_mut(seq).and_then(|waiting| {
                    waiting.outcome = Some(outcome);
                    waiting.waker.take()
                });
                locked.wake(waker);
                None
            }
            Action::Converted { seq, mode, token } => {
                let state = locked.state.as_deref_mut()?;
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
                let state = locked.state.as_deref_mut()?;
                // The record stays until its guards are gone: the same owner must not enter a lost hold again (R2).
                if let Some(record) = state.turns.get(seq) {
                    record.cell.lose(why);
                    self.keeper.lost(&record.cell);
                } else if let Some(waiting) = state.waiting.get_mut(seq) {
                    waiting.outcome = Some(Outcome::AskAnew);
                }
                None
            }
            Action::Warn { seq } => {
                let state = locked.state.as_deref_mut()?;
                let taken_at = state.turns.values().find(|t| t.cell.lost().is_none()).map(|t| t.taken_at.to_string());
                tracing::warn!(engine = self.keeper.facts.engine, name = %self.name, claim = seq, taken_at, "waiting for a guard of this process");
                None
            }
        }
    }

    pub(super) fn tell_conversion(self: &Arc<Self>, locked: &mut Locked<'_>, seq: u64, outcome: Result<(), Refusal>) {
        let waker = locked.state.as_deref_mut().and_then(|s| s.converting.get_mut(&seq)).and_then(|converting| {
            converting.outcome = Some(outcome);
            converting.waker.take()
        });
        if let Some(state) = locked.state.as_deref_mut()
            && state.converting.get(&seq).is_some_and(|c| c.forgotten)
        {
            state.converting.remove(&seq);
        }
        locked.wake(waker);
    }

    pub(super) fn claim(self: &Arc<Self>, locked: &Locked<'_>, ask: &Ask) -> Claim {
        let waiting = locked.state.as_deref().and_then(|s| s.waiting.get(ask.seq));
        Claim {
            id: ask.id,
            kind: self.kind,
            name: self.name.clone(),
            mode: ask.shape.mode,
            rw: ask.shape.rw,
            ttl: ask.shape.ttl,
            renew: ask.shape.renew,
            lock_delay: ask.shape.lock_delay,
            give_up: ask.give_up,
            who: waiting.and_then(|w| w.who.clone()).unwrap_or_else(|| self.keeper.who.clone()),
            value: waiting.and_then(|w| w.value.clone()),
        }
    }

    fn attempt(self: &Arc<Self>, locked: &mut Locked<'_>, now: Ticks, ask: &Ask) -> Option<Event> {
        let claim = self.claim(locked, ask);
        let line = if ask.try_only { InLine::Try } else { InLine::Join };
        let answer = self.keeper.engine.attempt(&claim, line);
        self.answer(locked, now, (claim.id, claim.ttl), answer, Self::answered)
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
                self.keeper.follow(answer, move |attempt| async move { answered(&entry, id, sent, attempt) });
                None
            }
        }
    }

    fn withdraw(self: &Arc<Self>, claim: ClaimId) -> Option<Event> {
        self.keeper.forget_claim(claim);
        match self.keeper.engine.withdraw(claim) {
            Answer::Now(end) => Some(Event::Withdrawn { claim, known: !matches!(end, End::Unknown(_)) }),
            Answer::Later(answer) => {
                let entry = self.clone();
                self.keeper.follow(answer, move |end| async move {
                    let known = !matches!(end, End::Unknown(_));
                    let now = entry.keeper.clock.now();
                    let mut locked = entry.lock();
                    entry.step(&mut locked, now, Event::Withdrawn { claim, known });
                });
                None
            }
        }
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
        let ask = Ask { seq: 0, id, shape: Shape { mode: to, ..shape }, try_only: false, sent_elsewhere: false, give_up };
        let claim = self.claim(locked, &ask);
        let answer = self.keeper.engine.convert(hold, &claim);
        self.answer(locked, now, (id, claim.ttl), answer, Self::converted)
    }

    fn release(self: &Arc<Self>, locked: &mut Locked<'_>, now: Ticks, hold: HoldId, again: Option<Ask>, over: bool) -> Option<Event> {
        let claim = again.as_ref().map(|ask| self.claim(locked, ask));
        let state = locked.state.as_deref_mut()?;
        let (echo, mut over) = (over && state.releasing.contains(hold), over);
        let until = match state.leases.remove(hold) {
            Some(cell) => {
                self.keeper.drop_lease(hold);
                over |= cell.deadline() <= now;
                // The server may have counted from later than we did, and an unanswered renewal may have given it a whole lease more.
                cell.deadline().max(now).plus(cell.ttl().max(self.keeper.settings.ttl))
            }
            None => now.plus(self.keeper.settings.ttl),
        };
        if echo && let Some(under_way) = state.releasing.get_mut(hold) {
            // The engine granted once more what is being given back. That is given back, too, but only behind the answer to the first
            // release: whichever came second would find nothing, and call the hold somebody else's.
            under_way.echoed = true;
            return None;
        }
        self.keeper.observe(self, Seen::GivingBack { hold, again: false });
        match self.keeper.engine.release(&[hold], claim.as_ref()) {
            Answer::Now(released) => {
                let end = first_end(&released);
                self.note_end(hold, &end, over);
                let tell = [state.tell.remove(hold), state.releasing.remove(hold).and_then(|under_way| under_way.tell)];
                for tell in tell.into_iter().flatten() {
                    // Nobody listens any more: then nobody needs the answer.
                    let _ = tell.send(end.clone());
                }
                state.released = Some(ReleaseStep::Ended(end));
                let claim = claim?;
                let attempt = released.again.unwrap_or_else(|| not_asked(&claim));
                if matches!(attempt, Attempt::InLine(_)) {
                    self.keeper.await_event(claim.id, self, claim.ttl);
                }
                Some(self.understand(locked, claim.id, now, attempt))
            }
            Answer::Later(answer) => {
                state.released = Some(ReleaseStep::Later);
                if !state.releasing.contains(hold) {
                    state.releasing.insert(hold, UnderWay::default());
                }
                if let Some(claim) = &claim {
                    self.keeper.await_event(claim.id, self, claim.ttl);
                }
                let entry = self.clone();
                self.keeper.follow(answer, move |released| async move {
                    let end = first_end(&released);
                    if let Some(claim) = claim {
                        let attempt = released.again.unwrap_or_else(|| not_asked(&claim));
                        entry.answered(claim.id, now, attempt);
                    }
                    entry.release_until_known(hold, end, until, over).await;
                });
                None
            }
        }
    }

    /// Repeats an unknown release until its lease would be over (R4); then tells whoever waits.
    async fn release_until_known(self: &Arc<Self>, hold: HoldId, end: End, until: Ticks, over: bool) {
        let known = !matches!(end, End::Unknown(_));
        let again = |end: &End| {
            self.tell_unknown_early(hold, end);
            self.keeper.observe(self, Seen::GivingBack { hold, again: true });
        };
        let end = self.repeat_until_known(hold, end, until, again).await;
        if !known && matches!(end, End::NotOurs) {
            self.note_gone(hold);
        } else {
            self.note_end(hold, &end, over);
        }
        // Nobody listens any more: then nobody needs the answer.
        if let Some(tell) = self.lock().state.as_deref_mut().and_then(|s| s.tell.remove(hold)) {
            let _ = tell.send(end.clone());
        }
        let tell = loop {
            match self.told_of_release(hold) {
                Some(tell) => break tell,
                // It may have been made anew behind the release. Nobody hears what becomes of it.
                None => _ = self.repeat_until_known(hold, self.give_back(hold).await, until, |_| ()).await,
            }
        };
        if let Some(tell) = tell {
            let _ = tell.send(end);
        }
    }

    /// Who waits until a release is known, which is over now; `None` when the hold was granted once more meanwhile.
    fn told_of_release(self: &Arc<Self>, hold: HoldId) -> Option<Option<oneshot::Sender<End>>> {
        let mut locked = self.lock();
        let Some(state) = locked.state.as_deref_mut() else { return Some(None) };
        if state.releasing.get_mut(hold).is_some_and(|under_way| std::mem::take(&mut under_way.echoed)) {
            return None;
        }
        Some(state.releasing.remove(hold).and_then(|under_way| under_way.tell))
    }

    async fn give_back(&self, hold: HoldId) -> End {
        match self.keeper.engine.release(&[hold], None) {
            Answer::Now(released) => first_end(&released),
            Answer::Later(answer) => first_end(&answer.await),
        }
    }

    /// Repeats an unknown release until its lease would be over (R4).
    async fn repeat_until_known(self: &Arc<Self>, hold: HoldId, mut end: End, until: Ticks, unknown: impl Fn(&End)) -> End {
        while matches!(end, End::Unknown(_)) && self.keeper.clock.now() < until && !self.keeper.is_closed_for_good() {
            unknown(&end);
            self.keeper.driver.sleep(&self.keeper, RELEASE_AGAIN_AFTER).await;
            end = self.give_back(hold).await;
        }
        end
    }

    /// The caller hears of an unknown release at once; the keeper goes on trying behind it.
    fn tell_unknown_early(self: &Arc<Self>, hold: HoldId, end: &End) {
        let tell = self.lock().state.as_deref_mut().and_then(|s| s.tell.remove(hold));
        if let Some(tell) = tell {
            let _ = tell.send(end.clone());
        }
    }

    /// A release that was repeated found nothing: the one before it, which nobody answered, may have freed it, and is no illegal one.
    fn note_gone(&self, hold: HoldId) {
        tracing::debug!(engine = self.keeper.facts.engine, name = %self.name, %hold, "released, as far as is known");
        self.keeper.observe(self, Seen::Released { hold, end: "unknown" });
    }

    /// `over`: it was known before that nobody here has it any more.
    fn note_end(&self, hold: HoldId, end: &End, over: bool) {
        let engine = self.keeper.facts.engine;
        let word = match end {
            End::Freed => {
                tracing::debug!(engine, name = %self.name, "released");
                "freed"
            }
            End::NotOurs if over => {
                tracing::debug!(engine, name = %self.name, %hold, "the engine has forgotten it already");
                "not-ours"
            }
            End::NotOurs => {
                tracing::error!(engine, name = %self.name, %hold, "illegal release: the hold was not ours any more; nothing was touched");
                "not-ours"
            }
            End::Unknown(error) => {
                tracing::warn!(engine, name = %self.name, %hold, %error, "it is not known whether the release was done");
                "unknown"
            }
        };
        self.keeper.observe(self, Seen::Released { hold, end: word });
    }
}

fn first_end(released: &Released) -> End {
    released.ends.first().cloned().unwrap_or(End::NotOurs)
}

/// An engine that freed the hold but did not say what became of the claim behind it: ask again.
fn not_asked(claim: &Claim) -> Attempt {
    Attempt::Unknown(
        crate::Error::new(crate::ErrorKind::Unknown, "the engine did not answer the claim that came with the release").name(&claim.name),
    )
}

fn why_word(why: Refusal) -> &'static str {
    match why {
        Refusal::BusyHere | Refusal::Answer => "busy",
        Refusal::Unknown => "unknown",
        Refusal::TimedOut => "timed-out",
        Refusal::TooMany => "too-many",
        Refusal::Lost(_) => "lost",
        Refusal::Closed => "closed",
    }
}
