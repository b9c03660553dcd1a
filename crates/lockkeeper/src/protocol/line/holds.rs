//! The holds of one name in this process: their turns, what they may pass to, how they end.

use super::Line;
use super::convert::Converting;
use super::words::{Action, Ask, Refusal, Seq, Shape};
use crate::engine::Number;
use crate::words::claim::Mode;
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};
use crate::words::lost::Lost;
use crate::words::token::{TURNS_PER_NUMBER, Token};

/// The last turn that one number has room for.
pub(super) const TURN_LAST: u8 = (TURNS_PER_NUMBER - 1) as u8;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Turn {
    pub(super) seq: Seq,
    pub(super) offered_until: Option<Ticks>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) id: HoldId,
    pub(super) shape: Shape,
    pub(super) number: Number,
    pub(super) granted: Ticks,
    /// The turn in which it got its mode: those who share the hold stand beside each other, so they
    /// show that one's token.
    pub(super) first_turn: u8,
    pub(super) turns_used: u8,
    pub(super) turns: Vec<Turn>,
    /// Did anybody take a turn of it yet?
    pub(super) taken: bool,
    pub(super) converting: Option<Box<Converting>>,
    /// The conversion that gave it its mode: the engine may answer that twice.
    pub(super) converted: Option<Box<ClaimId>>,
    /// Something of it was given out whose use nobody sees, so it passes to nobody here.
    pub(super) given_out: bool,
}

impl Hold {
    pub(super) fn token(&self, turn: u8) -> Option<Token> {
        if matches!(self.shape.mode, Mode::Permits { .. }) {
            return None;
        }
        match self.number {
            Number::Ours(number) => Token::of(number, turn),
            Number::Raw(value) => Token::raw(value),
            Number::None => None,
        }
    }
}

impl Line {
    /// Does a hold of this process keep the engine from granting this shape?
    pub(super) fn excludes(&self, shape: &Shape) -> bool {
        self.holds.iter().any(|h| {
            let converting = h.converting.as_ref().is_some_and(|c| !c.to.shares_with(shape.mode));
            converting || !h.shape.mode.shares_with(shape.mode)
        })
    }

    pub(super) fn may_pass(&self, now: Ticks, hold: &Hold) -> bool {
        // An offer that nobody took costs others no time that its hold was used: only the count
        // bounds it (R5).
        let in_time = !hold.taken || now.since(hold.granted) < self.rules.pass_for;
        // The last turn of a number is for the reader that it may become.
        let turns_max = if hold.shape.mode == Mode::Upgradable {
            self.rules.turns_max.min(TURN_LAST)
        } else {
            self.rules.turns_max
        };
        self.hand_off
            && !self.closed
            && in_time
            && hold.turns_used < turns_max
            && hold.shape.renew
            && !hold.shape.own_value
            && hold.converting.is_none()
            && !hold.given_out
            && !matches!(hold.shape.mode, Mode::Permits { .. })
            && !matches!(hold.number, Number::Raw(_))
    }

    /// A reader joins a shared hold of this process.
    pub(super) fn join(&mut self, now: Ticks, ask: &Ask, out: &mut Vec<Action>) -> bool {
        if ask.shape.mode != Mode::Shared {
            return false;
        }
        let open =
            |h: &Hold| h.shape.serves(&ask.shape) && !h.turns.is_empty() && self.may_pass(now, h);
        let Some(at) = self.holds.iter().position(open) else { return false };
        self.add_turn(now, at, ask.seq, out);
        true
    }

    pub(super) fn add_turn(&mut self, now: Ticks, at: usize, seq: Seq, out: &mut Vec<Action>) {
        let offered_until = Some(now.plus(self.rules.offer_for));
        self.check_by(offered_until);
        let hold = &mut self.holds[at];
        let turn = hold.turns_used;
        hold.turns_used = turn.saturating_add(1);
        if hold.turns.is_empty() {
            hold.turns.reserve_exact(1);
        }
        hold.turns.push(Turn { seq, offered_until });
        let turn = if hold.shape.mode == Mode::Shared { hold.first_turn } else { turn };
        out.push(Action::Offer { seq, hold: hold.id, token: hold.token(turn) });
    }

    pub(super) fn find(&self, seq: Seq) -> Option<(usize, usize)> {
        self.holds
            .iter()
            .enumerate()
            .find_map(|(h, hold)| hold.turns.iter().position(|t| t.seq == seq).map(|t| (h, t)))
    }

    pub(super) fn turn_over(&mut self, now: Ticks, seq: Seq, fresh: bool, out: &mut Vec<Action>) {
        let Some((h, t)) = self.find(seq) else { return };
        let hold = &mut self.holds[h];
        hold.turns.remove(t);
        if hold.turns.is_empty() {
            self.pass_or_release(now, h, fresh, out);
        }
    }

    /// The last turn of a hold is over.
    pub(super) fn pass_or_release(
        &mut self,
        now: Ticks,
        at: usize,
        fresh: bool,
        out: &mut Vec<Action>,
    ) {
        let hold = &self.holds[at];
        if fresh
            && self.standing.is_none()
            && self.next_like(&hold.shape)
            && self.may_pass(now, hold)
            && let Some(next) = self.pop_waiting()
        {
            self.add_turn(now, at, next.seq, out);
            if !self.queue.is_empty() && self.holds[at].shape.mode == Mode::Shared {
                self.advance(now, out);
            }
            return;
        }
        let hold = self.holds.remove(at);
        self.spare = hold.turns;
        let mut again = None;
        if self.standing.is_none()
            && let Some(next) = self.queue.front().cloned()
            && !self.excludes(&next.shape)
        {
            self.pop_waiting();
            self.stand(next.clone(), false, out);
            again = Some(next);
        }
        out.push(Action::Release { hold: hold.id, again, over: false });
        self.advance(now, out);
    }

    pub(super) fn ended(
        &mut self,
        now: Ticks,
        id: HoldId,
        why: Lost,
        ours: bool,
        out: &mut Vec<Action>,
    ) {
        let Some(at) = self.holds.iter().position(|h| h.id == id) else {
            if let Some(standing) = self.standing.as_mut().filter(|s| s.ask.id == id) {
                standing.void = Some(why);
            }
            return;
        };
        let hold = self.holds.remove(at);
        if let (Some(c), Some(turn)) = (&hold.converting, hold.turns.first())
            && (!c.leaving || c.next.is_some())
        {
            out.push(Action::RefuseConvert { seq: turn.seq, why: Refusal::Lost(why) });
        }
        for turn in &hold.turns {
            out.push(Action::Lost { seq: turn.seq, why });
        }
        if ours {
            // Closing ends what is ours still.
            out.push(Action::Release { hold: id, again: None, over: why != Lost::Closed });
        }
        self.advance(now, out);
    }

    /// Offers that nobody took in time: their futures were not polled; the turns go on without them
    /// (R5). Whether the lease is fresh enough for that is not known here: the answer to each is
    /// its [`Event::TurnOver`](super::Event::TurnOver).
    pub(super) fn park_lapsed(&mut self, now: Ticks, out: &mut Vec<Action>) {
        for hold in &mut self.holds {
            for turn in &mut hold.turns {
                if turn.offered_until.take_if(|at| *at <= now).is_some() {
                    out.push(Action::Parked { seq: turn.seq, hold: hold.id });
                }
            }
        }
    }
}
