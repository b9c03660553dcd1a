//! The process's one place in the engine's line.

use super::Line;
use super::ask_at::AskAt;
use super::holds::Hold;
use super::words::{Action, Answered, Ask, Refusal, Rules, Seq, Shape};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;
use crate::words::lost::Lost;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// The attempt is on its way.
    Asking,
    InLine,
    /// The answer was lost; asked again at this time.
    Doubt(Ticks),
    /// On the way out; at this time the withdrawal is repeated, if its answer was lost.
    Leaving(Option<Ticks>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Standing {
    /// What the engine was asked.
    pub(super) ask: Ask,
    /// The local claim that it serves now; nobody while it is on the way out.
    pub(super) serves: Option<Seq>,
    pub(super) give_up: Option<Ticks>,
    pub(super) phase: Phase,
    /// Every claim up to this number was there when the engine was asked first: what it answers, it
    /// says to them, too.
    pub(super) heard_by: Seq,
    pub(super) asked: u8,
    /// Since when the withdrawal is repeated, if the engine has not answered it.
    pub(super) kept_since: Option<Ticks>,
    /// A hint came while the attempt was under way.
    pub(super) woken: bool,
    /// It was lent while the attempt was under way, which was asked with the time of the one
    /// before.
    pub(super) lent: bool,
    /// The engine said that the hold is over before it said that it was granted.
    pub(super) void: Option<Lost>,
    /// The engine has said once that the process stands in line.
    pub(super) stood: bool,
    pub(super) ask_at: AskAt,
}

impl Standing {
    /// Whether the claim is asked for again for as long as its caller waits, however often the
    /// engine does not answer: a waiter keeps its place through an outage.
    pub(super) fn waits_on(&self) -> bool {
        self.stood || self.ask.patient
    }

    /// Asks again after a pause.
    fn doubt(&mut self, now: Ticks, rules: &Rules) -> Ticks {
        let pauses = self.asked.min(rules.ask_again_max);
        let at = now.plus(rules.ask_again_after * u32::from(pauses));
        self.phase = Phase::Doubt(at);
        self.asked = self.asked.saturating_add(1).min(rules.ask_again_max.saturating_add(1));
        at
    }

    /// Whether a try of this shape is refused here, instead of waiting for what the engine says to
    /// the place.
    pub(super) fn refuses(&self, shape: &Shape) -> bool {
        match self.phase {
            Phase::Asking | Phase::Doubt(_) if self.ask.try_only => false,
            Phase::Asking => !self.ask.shape.mode.shares_with(shape.mode),
            // Nobody wants it, and it is gone as soon as the engine has heard so.
            Phase::Leaving(_) => self.kept_since.is_some(),
            Phase::Doubt(_) | Phase::InLine => true,
        }
    }
}

impl Line {
    pub(super) fn stand(&mut self, ask: Ask, send: bool, out: &mut Vec<Action>) {
        self.standing = Some(Box::new(Standing {
            serves: Some(ask.seq),
            give_up: ask.give_up.filter(|_| !ask.try_only),
            phase: Phase::Asking,
            heard_by: self.next_seq,
            asked: 1,
            kept_since: None,
            woken: false,
            lent: false,
            void: None,
            stood: false,
            ask_at: AskAt::default(),
            ask: ask.clone(),
        }));
        self.check_by(ask.give_up.filter(|_| !ask.try_only));
        if send {
            out.push(Action::Attempt(ask));
        }
    }

    /// Nobody wants the place any more: the next local claim gets it if it has the same shape, else
    /// the place is left. A try would come to stand in line with it.
    pub(super) fn leave_or_lend(&mut self, now: Ticks, out: &mut Vec<Action>) {
        let Some(mut standing) = self.standing.take() else { return };
        let lends = !standing.ask.try_only && self.queue.front().is_some_and(|next| !next.try_only);
        if lends && self.next_like(&standing.ask.shape) {
            if let Some(next) = self.pop_waiting() {
                standing.serves = Some(next.seq);
                standing.give_up = next.give_up;
                standing.ask.patient = next.patient;
                self.check_by(next.give_up);
                // The engine refuses who has left: it must hear that the place is wanted for longer
                // now (R3).
                if standing.ask.give_up.is_some() {
                    standing.ask.give_up = next.give_up;
                    match standing.phase {
                        Phase::InLine => ask_again(&mut standing, now, out),
                        Phase::Asking => standing.lent = true,
                        Phase::Doubt(_) | Phase::Leaving(_) => {}
                    }
                }
            }
        } else {
            leave(&mut standing, out);
        }
        self.standing = Some(standing);
    }

    pub(super) fn answered(
        &mut self,
        now: Ticks,
        claim: ClaimId,
        answer: Answered,
        out: &mut Vec<Action>,
    ) {
        if let Some(h) =
            self.holds.iter().position(|h| h.converting.as_ref().is_some_and(|c| c.id == claim))
        {
            return self.convert_answered(now, h, answer, out);
        }
        let Some(standing) = self.standing.as_mut().filter(|s| s.ask.id == claim) else {
            // A grant for a claim that nobody here remembers: give it back, unless it is a hold
            // that we have, or has converted one (a repeated answer).
            match answer {
                _ if self.knows(claim) => {}
                Answered::Granted(_) => {
                    out.push(Action::Release { hold: claim, again: None, over: true })
                }
                // A withdrawal overtook its claim: the place is left once more (R5).
                Answered::InLine { .. } => out.push(Action::Withdraw(claim)),
                Answered::Busy | Answered::Failed | Answered::Unreachable => {}
                Answered::Unknown | Answered::Nonsense => {}
            }
            return;
        };
        if matches!(standing.phase, Phase::Leaving(_)) {
            // The withdrawal that is under way also gives back a grant that it crosses.
            return;
        }
        match answer {
            Answered::Granted(number) => {
                let Some(standing) = self.standing.take() else { return };
                let Some(seq) = standing.serves else { return };
                // One is what there mostly is, of 100 000 names; a push alone would make room for
                // four.
                if self.holds.is_empty() {
                    self.holds.reserve_exact(1);
                }
                self.holds.push(Hold {
                    id: claim,
                    shape: standing.ask.shape,
                    number,
                    granted: now,
                    first_turn: 0,
                    turns_used: 0,
                    turns: std::mem::take(&mut self.spare),
                    taken: false,
                    converting: None,
                    converted: None,
                    given_out: false,
                });
                let at = self.holds.len() - 1;
                self.add_turn(now, at, seq, out);
                if let Some(why) = standing.void {
                    // Whoever waits for it asks anew; what the engine may have of it is given back.
                    return self.ended(now, claim, why, true, out);
                }
                if self.warn_at.is_none() && !self.queue.is_empty() {
                    self.warn_at = Some(now.plus(self.rules.warn_after));
                    self.check_by(self.warn_at);
                }
                self.advance(now, out);
            }
            Answered::InLine { ask_at } => {
                standing.phase = Phase::InLine;
                standing.stood = true;
                standing.asked = 1;
                standing.ask_at.answered(now, ask_at);
                let (woken, lent) =
                    (std::mem::take(&mut standing.woken), std::mem::take(&mut standing.lent));
                if woken || lent {
                    ask_again(standing, now, out);
                }
                let next = standing.ask_at.next();
                self.check_by(next);
                self.refuse_tries(Refusal::BusyHere, |_| true, out);
            }
            Answered::Unreachable if standing.waits_on() => {
                let at = standing.doubt(now, &self.rules);
                self.check_by(Some(at));
            }
            // That was said to the one before, whose time may have been over.
            Answered::Busy | Answered::Failed | Answered::Unreachable
                if std::mem::take(&mut standing.lent) =>
            {
                ask_again(standing, now, out)
            }
            Answered::Busy | Answered::Failed | Answered::Unreachable => {
                let (seq, heard_by, shape) =
                    (standing.serves, standing.heard_by, standing.ask.shape);
                if standing.asked > 1 {
                    // It was asked before, and that was not answered: where it comes late it must
                    // take nothing (R4).
                    leave(standing, out);
                } else {
                    self.standing = None;
                }
                out.extend(seq.map(|seq| Action::Refuse { seq, why: Refusal::Answer }));
                // Who came later asks anew: what was in the way may have gone before it came.
                let busy = answer == Answered::Busy;
                let of = |other: &Shape| {
                    if busy { shape.busy_means_busy_for(other) } else { shape == *other }
                };
                self.refuse_tries(
                    Refusal::Answer,
                    |ask| ask.seq <= heard_by && of(&ask.shape),
                    out,
                );
                self.advance(now, out);
            }
            Answered::Nonsense => self.refuse_unknown(Refusal::Unknown, out),
            // Nobody waits for a try longer than for one answer.
            Answered::Unknown
                if standing.ask.try_only && standing.ask.give_up.is_some_and(|at| at <= now) =>
            {
                self.refuse_unknown(Refusal::Unanswered, out);
            }
            Answered::Unknown
                if standing.asked > self.rules.ask_again_max && !standing.waits_on() =>
            {
                self.refuse_unknown(Refusal::Unknown, out);
            }
            Answered::Unknown => {
                let at = standing.doubt(now, &self.rules);
                // A try needs its timer from here on only: an answer ends it in time by itself.
                if standing.ask.try_only {
                    standing.give_up = standing.ask.give_up;
                }
                let give_up = standing.give_up;
                self.check_by(Some(at));
                self.check_by(give_up);
            }
        }
    }

    /// What became of the claim is not known, and its caller waits no longer: it must take nothing
    /// where it arrives late (R4).
    fn refuse_unknown(&mut self, why: Refusal, out: &mut Vec<Action>) {
        let Some(standing) = self.standing.as_mut() else { return };
        out.extend(standing.serves.map(|seq| Action::Refuse { seq, why }));
        leave(standing, out);
    }

    pub(super) fn withdrawn(
        &mut self,
        now: Ticks,
        claim: ClaimId,
        known: bool,
        out: &mut Vec<Action>,
    ) {
        if let Some(h) = self
            .holds
            .iter()
            .position(|h| h.converting.as_ref().is_some_and(|c| c.id == claim && c.leaving))
        {
            return self.unconverted(now, h, known, out);
        }
        let Some(standing) = self
            .standing
            .as_mut()
            .filter(|s| s.ask.id == claim && matches!(s.phase, Phase::Leaving(_)))
        else {
            return;
        };
        // Repeated until the lease that a crossing grant may have would be over (R4).
        let over =
            standing.kept_since.is_some_and(|since| now.since(since) > standing.ask.shape.ttl);
        if known || over {
            self.standing = None;
            self.advance(now, out);
        } else {
            standing.kept_since.get_or_insert(now);
            let at = Some(now.plus(self.rules.ask_again_after));
            standing.phase = Phase::Leaving(at);
            self.check_by(at);
            // It may stand there for as long as its lease lasts.
            self.refuse_tries(Refusal::Unanswered, |_| true, out);
        }
    }

    pub(super) fn standing_timer(&mut self, now: Ticks, out: &mut Vec<Action>) {
        let Some(standing) = self.standing.as_mut() else { return };
        if standing.give_up.is_some_and(|at| at <= now) {
            standing.give_up = None;
            let why = match standing.stood {
                false if standing.asked > 1 => Refusal::Unanswered,
                false => Refusal::Unheard,
                true => Refusal::TimedOut,
            };
            let seq = standing.serves.take();
            out.extend(seq.map(|seq| Action::Refuse { seq, why }));
            self.leave_or_lend(now, out);
        }
        let Some(standing) = self.standing.as_mut() else { return };
        match standing.phase {
            Phase::Doubt(at) if at <= now => ask_again(standing, now, out),
            Phase::InLine if standing.ask_at.is_due(now) => recheck(standing, now, out),
            Phase::Leaving(Some(at)) if at <= now => {
                standing.phase = Phase::Leaving(None);
                out.push(Action::Withdraw(standing.ask.id));
            }
            _ => {}
        }
    }
}

pub(super) fn ask_again(standing: &mut Standing, now: Ticks, out: &mut Vec<Action>) {
    standing.phase = Phase::Asking;
    standing.ask_at.asked(now);
    standing.lent = false;
    // What is granted from here on was not over before.
    standing.void = None;
    out.push(Action::Attempt(standing.ask.clone()));
}

/// Asks how the place stands, which it keeps meanwhile.
pub(super) fn recheck(standing: &mut Standing, now: Ticks, out: &mut Vec<Action>) {
    standing.ask_at.asked(now);
    out.push(Action::Recheck(standing.ask.id));
}

pub(super) fn leave(standing: &mut Standing, out: &mut Vec<Action>) {
    standing.serves = None;
    standing.give_up = None;
    standing.phase = Phase::Leaving(None);
    out.push(Action::Withdraw(standing.ask.id));
}
