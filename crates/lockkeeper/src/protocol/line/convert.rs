//! Upgrade and downgrade: one hold changes its mode and gets another number, or the next turn of
//! the one that it has.

use super::Line;
use super::ask_at::AskAt;
use super::holds::TURN_LAST;
use super::words::{Action, Answered, Refusal, Seq};
use crate::words::claim::Mode;
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Converting {
    pub(super) id: ClaimId,
    pub(super) to: Mode,
    pub(super) give_up: Option<Ticks>,
    pub(super) leaving: bool,
    /// The engine has said once that it waits in line.
    stood: bool,
    /// The engine left a question about it without an answer.
    unanswered: bool,
    pub(super) again_at: Option<Ticks>,
    pub(super) ask_at: AskAt,
    /// What is asked for next: sent when the engine has undone the one that is being left.
    pub(super) next: Option<Next>,
}

/// A conversion that is not sent yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Next {
    pub(super) id: ClaimId,
    pub(super) to: Mode,
    pub(super) give_up: Option<Ticks>,
}

impl Line {
    pub(super) fn convert(
        &mut self,
        seq: Seq,
        id: ClaimId,
        to: Mode,
        give_up: Option<Ticks>,
        out: &mut Vec<Action>,
    ) {
        let Some((h, _)) = self.find(seq) else { return };
        let next = Next { id, to, give_up };
        match self.holds[h].converting.as_mut().filter(|c| c.leaving) {
            Some(left) => left.next = Some(next),
            None => self.send_convert(h, next, out),
        }
        self.check_by(give_up);
    }

    fn send_convert(&mut self, h: usize, Next { id, to, give_up }: Next, out: &mut Vec<Action>) {
        let hold = &mut self.holds[h];
        hold.converting = Some(Box::new(Converting {
            id,
            to,
            give_up,
            leaving: false,
            stood: false,
            unanswered: false,
            again_at: None,
            ask_at: AskAt::default(),
            next: None,
        }));
        out.push(Action::Convert { hold: hold.id, id, to, give_up, shape: hold.shape });
    }

    /// The conversion with this id that is not being left.
    pub(super) fn converting(&mut self, id: ClaimId) -> Option<&mut Converting> {
        let conversions = self.holds.iter_mut().filter_map(|h| h.converting.as_deref_mut());
        conversions.into_iter().find(|c| c.id == id && !c.leaving)
    }

    /// The engine has undone a conversion, or does not say so.
    pub(super) fn unconverted(&mut self, now: Ticks, h: usize, known: bool, out: &mut Vec<Action>) {
        let Some(left) = self.holds[h].converting.as_mut() else { return };
        if !known {
            left.unanswered = true;
            left.again_at = Some(now.plus(self.rules.ask_again_after));
            let at = left.again_at;
            return self.check_by(at);
        }
        let next = left.next.take();
        self.holds[h].converting = None;
        match next {
            Some(next) => self.send_convert(h, next, out),
            None => self.advance(now, out),
        }
    }

    pub(super) fn cancel_convert(&mut self, seq: Seq, out: &mut Vec<Action>) {
        let Some((h, _)) = self.find(seq) else { return };
        let Some(c) = self.holds[h].converting.as_mut() else { return };
        c.next = None;
        if !c.leaving {
            c.leaving = true;
            c.unanswered = false;
            c.give_up = None;
            c.again_at = None;
            c.ask_at = AskAt::default();
            out.push(Action::Withdraw(c.id));
        }
    }

    pub(super) fn convert_answered(
        &mut self,
        now: Ticks,
        h: usize,
        answer: Answered,
        out: &mut Vec<Action>,
    ) {
        let hold = &mut self.holds[h];
        let (Some(c), Some(seq)) = (hold.converting.as_mut(), hold.turns.first().map(|t| t.seq))
        else {
            return;
        };
        if c.leaving {
            return;
        }
        match answer {
            Answered::Granted(number) => {
                // Between two writers an engine may have one number alone, which whoever becomes a
                // reader has already: then the next turn of that number is the new token, and still
                // below the next writer's (R7).
                let turn = if number == hold.number { hold.turns_used.min(TURN_LAST) } else { 0 };
                hold.shape.mode = c.to;
                hold.number = number;
                hold.granted = now;
                (hold.first_turn, hold.turns_used) = (turn, turn + 1);
                hold.converted = Some(Box::new(c.id));
                hold.converting = None;
                out.push(Action::Converted { seq, mode: hold.shape.mode, token: hold.token(turn) });
                self.advance(now, out);
            }
            Answered::InLine { ask_at } => {
                c.stood = true;
                c.ask_at.answered(now, ask_at);
                let next = c.ask_at.next();
                self.check_by(next);
            }
            Answered::Busy | Answered::Failed | Answered::Unreachable => {
                hold.converting = None;
                out.push(Action::RefuseConvert { seq, why: Refusal::Answer });
                // Those whom it kept out may share the hold again.
                self.advance(now, out);
            }
            Answered::Nonsense => {
                out.push(Action::RefuseConvert { seq, why: Refusal::Unknown });
                self.cancel_convert(seq, out);
            }
            Answered::Unknown => {
                c.unanswered = true;
                c.again_at = Some(now.plus(self.rules.ask_again_after));
                let at = c.again_at;
                self.check_by(at);
            }
        }
    }

    pub(super) fn convert_timer(&mut self, now: Ticks, h: usize, out: &mut Vec<Action>) {
        let Some(hold) = self.holds.get_mut(h) else { return };
        let Some(seq) = hold.turns.first().map(|t| t.seq) else { return };
        let Some(c) = hold.converting.as_mut() else { return };
        if c.again_at.is_some_and(|at| at <= now) {
            c.again_at = None;
            c.ask_at.asked(now);
            out.push(if c.leaving {
                Action::Withdraw(c.id)
            } else {
                Action::Convert {
                    hold: hold.id,
                    id: c.id,
                    to: c.to,
                    give_up: c.give_up,
                    shape: hold.shape,
                }
            });
        } else if c.ask_at.is_due(now) {
            c.ask_at.asked(now);
            out.push(Action::Recheck(c.id));
        }
        let next_gives_up =
            c.next.as_ref().is_some_and(|next| next.give_up.is_some_and(|at| at <= now));
        if next_gives_up || c.give_up.is_some_and(|at| at <= now) {
            // As of a place: whose engine said that it waits is told that its time is over.
            let unheard = c.leaving || !c.stood;
            let why = match unheard {
                true if c.unanswered => Refusal::Unanswered,
                true => Refusal::Unheard,
                false => Refusal::TimedOut,
            };
            out.push(Action::RefuseConvert { seq, why });
            self.cancel_convert(seq, out);
        }
    }
}
