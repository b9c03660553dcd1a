//! The local line of one name: the tasks of this process that want it, its one place in the engine's line, and its holds.
//!
//! Tasks queue here, first come first served. The process stands in the engine's line at most once for a name (R9).
//! When a turn ends, the hold passes to the next local claim without touching the engine, within bounds that keep other
//! processes from starving; at the bound the process gives the hold back and stands again at the end of the line.
//! A grant is an offer until its future takes it: not taken in time, it moves on (R5).

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::claim::Mode;
use crate::clock::Ticks;
use crate::engine::Number;
use crate::id::{ClaimId, HoldId};
use crate::lost::Lost;
use crate::token::Token;

/// The bounds of one line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Rules {
    /// How many turns one hold may have; 0 or 1 = no hand-off.
    pub(crate) turns_max: u8,
    /// For how long after the grant a hold may pass.
    pub(crate) pass_for: Duration,
    /// How long an offer waits to be taken.
    pub(crate) offer_for: Duration,
    /// After how long a claim that waits for a guard of its own process is worth a warning.
    pub(crate) warn_after: Duration,
    /// How long to wait before an unknown answer is asked again.
    pub(crate) ask_again_after: Duration,
    /// How often an unknown attempt is asked again before its caller is told.
    pub(crate) ask_again_max: u8,
    /// How many claims may wait.
    pub(crate) waiting_max: usize,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            turns_max: 64,
            pass_for: Duration::from_millis(50),
            offer_for: Duration::from_secs(1),
            warn_after: Duration::from_secs(5),
            ask_again_after: Duration::from_millis(250),
            ask_again_max: 8,
            waiting_max: 100_000,
        }
    }
}

/// A local claim's number: rises with every claim of this line, never reused.
pub(crate) type Seq = u64;

/// What one local claim asks for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ask {
    pub(crate) seq: Seq,
    /// The id under which the process would stand for it.
    pub(crate) id: ClaimId,
    pub(crate) shape: Shape,
    /// Leave nothing behind when it is not free.
    pub(crate) try_only: bool,
    /// Asked together with other names in one message: the caller sends it and brings the answer.
    pub(crate) sent_elsewhere: bool,
    pub(crate) give_up: Option<Ticks>,
}

/// What must agree for a hold or a place to serve another claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Shape {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) lock_delay: Duration,
    /// Carries a value of its own (an election's candidate): never served by another's place or hold.
    pub(crate) own_value: bool,
}

impl Shape {
    fn serves(&self, other: &Self) -> bool {
        self == other && !self.own_value
    }
}

/// The engine's answers as far as the line cares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Answered {
    Granted(Number),
    InLine,
    /// Busy, or certainly failed: nothing of ours is left there.
    No,
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Ask(Ask),
    /// The future was dropped, or the offer refused.
    Cancel(Seq),
    /// The future took its offer.
    Take(Seq),
    /// A turn ended. `fresh`: the last renewal was answered and more than half of the lease is left.
    TurnOver {
        seq: Seq,
        fresh: bool,
    },
    /// The turn holds exclusively and wants another mode, or back; `id` is the conversion's own.
    Convert {
        seq: Seq,
        id: ClaimId,
        to: Mode,
        give_up: Option<Ticks>,
    },
    /// The conversion's future was dropped.
    CancelConvert {
        seq: Seq,
    },
    /// An attempt or conversion was answered, at once or by a push.
    Answered {
        claim: ClaimId,
        answer: Answered,
    },
    /// A hint that the claim may be granted now.
    Wake {
        claim: ClaimId,
    },
    /// A withdrawal was answered; `known` is false when it must be repeated.
    Withdrawn {
        claim: ClaimId,
        known: bool,
    },
    /// A hold ended by itself; `ours`: we decided that, and the engine is to be told.
    Ended {
        hold: HoldId,
        why: Lost,
        ours: bool,
    },
    Timer,
    Close,
}

/// Why a claim gets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Refusal {
    /// Somebody of this process holds it or stands before it.
    BusyHere,
    /// What the engine answered: busy or failed.
    Answer,
    /// Asked again and again, and still not known.
    Unknown,
    TimedOut,
    /// Too many claims wait.
    TooMany,
    /// The hold that was to be converted is lost.
    Lost(Lost),
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask the engine; `ask.id` is the claim.
    Attempt(Ask),
    Withdraw(ClaimId),
    /// Give the hold back; `again` stands in line in the same message.
    Release {
        hold: HoldId,
        again: Option<Ask>,
    },
    Convert {
        hold: HoldId,
        id: ClaimId,
        to: Mode,
        give_up: Option<Ticks>,
        shape: Shape,
    },
    /// This claim has a turn now.
    Offer {
        seq: Seq,
        hold: HoldId,
        token: Option<Token>,
    },
    /// The offer lapsed and the claim is forgotten; its future must ask anew when it is polled.
    Parked {
        seq: Seq,
    },
    /// The conversion is done.
    Converted {
        seq: Seq,
        mode: Mode,
        token: Option<Token>,
    },
    Refuse {
        seq: Seq,
        why: Refusal,
    },
    /// The conversion gets nothing; the turn stays as it was.
    RefuseConvert {
        seq: Seq,
        why: Refusal,
    },
    Lost {
        seq: Seq,
        why: Lost,
    },
    /// The claim waits for a guard of this process since `warn_after`.
    Warn {
        seq: Seq,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Turn {
    seq: Seq,
    offered_until: Option<Ticks>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Hold {
    id: HoldId,
    shape: Shape,
    number: Number,
    granted: Ticks,
    turns_used: u8,
    turns: Vec<Turn>,
    /// Did anybody take a turn of it yet?
    taken: bool,
    converting: Option<Converting>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Converting {
    id: ClaimId,
    to: Mode,
    give_up: Option<Ticks>,
    leaving: bool,
    again_at: Option<Ticks>,
}

impl Hold {
    fn token(&self, turn: u8) -> Option<Token> {
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

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// The attempt is on its way.
    Asking,
    InLine,
    /// The answer was lost; asked again at this time.
    Doubt(Ticks),
    /// On the way out; at this time the withdrawal is repeated, if its answer was lost.
    Leaving(Option<Ticks>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Standing {
    /// What the engine was asked.
    ask: Ask,
    /// The local claim that it serves now; nobody while it is on the way out.
    serves: Option<Seq>,
    give_up: Option<Ticks>,
    phase: Phase,
    asked: u8,
    leave_tries: u8,
    /// A hint came while the attempt was under way.
    woken: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Line {
    rules: Rules,
    /// May holds pass at all? Not in layouts whose counter belongs to others.
    hand_off: bool,
    next_seq: Seq,
    /// Waiting claims in order of `seq`; `None` in place of one that has left.
    queue: VecDeque<(Seq, Option<Ask>)>,
    waiting: usize,
    give_ups: BTreeSet<(Ticks, Seq)>,
    standing: Option<Standing>,
    holds: Vec<Hold>,
    warn_at: Option<Ticks>,
    /// No timer is due before this; kept low cheaply, and worked out anew when it has passed.
    check_at: Option<Ticks>,
    closed: bool,
}

impl Line {
    pub(crate) fn new(rules: Rules, hand_off: bool) -> Self {
        Self {
            rules,
            hand_off,
            next_seq: 0,
            queue: VecDeque::new(),
            waiting: 0,
            give_ups: BTreeSet::new(),
            standing: None,
            holds: Vec::new(),
            warn_at: None,
            check_at: None,
            closed: false,
        }
    }

    /// The number for the next claim.
    pub(crate) fn draw_seq(&mut self) -> Seq {
        self.next_seq += 1;
        self.next_seq
    }

    /// The claim with which the process stands in the engine's line, when it is in line.
    pub(crate) fn place(&self) -> Option<ClaimId> {
        self.standing.as_ref().filter(|s| s.phase == Phase::InLine).map(|s| s.ask.id)
    }

    /// Whether this line knows the id: as a hold, a conversion or a place.
    pub(crate) fn knows(&self, id: ClaimId) -> bool {
        self.standing.as_ref().is_some_and(|s| s.ask.id == id)
            || self.holds.iter().any(|h| h.id == id || h.converting.as_ref().is_some_and(|c| c.id == id))
    }

    /// Whether the engine must still be told that a place is left.
    pub(crate) fn is_leaving(&self) -> bool {
        self.standing.as_ref().is_some_and(|s| matches!(s.phase, Phase::Leaving(_)))
    }

    /// What was asked for under this id.
    pub(crate) fn shape_of(&self, id: ClaimId) -> Option<Shape> {
        let standing = self.standing.as_ref().filter(|s| s.ask.id == id).map(|s| s.ask.shape);
        let converted = |h: &&Hold| h.id == id || h.converting.as_ref().is_some_and(|c| c.id == id);
        standing.or_else(|| self.holds.iter().find(converted).map(|h| h.shape))
    }

    /// The ids of all holds.
    pub(crate) fn holds(&self) -> Vec<HoldId> {
        self.holds.iter().map(|h| h.id).collect()
    }

    /// Conversions that wait in the engine, with their ids.
    pub(crate) fn conversions(&self) -> impl Iterator<Item = ClaimId> + '_ {
        self.holds.iter().filter_map(|h| h.converting.as_ref().map(|c| c.id))
    }

    /// Nothing waits, stands or is held.
    pub(crate) fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.standing.is_none() && self.waiting == 0
    }

    /// When [`Event::Timer`] is due next, or earlier; constant time.
    pub(crate) fn next_timer(&self) -> Option<Ticks> {
        self.check_at
    }

    fn check_by(&mut self, at: Option<Ticks>) {
        self.check_at = self.check_at.into_iter().chain(at).min();
    }

    /// When something is really due next.
    fn next_due(&self) -> Option<Ticks> {
        let offers = self.holds.iter().flat_map(|h| h.turns.iter()).filter_map(|t| t.offered_until);
        let converting = self.holds.iter().filter_map(|h| h.converting.as_ref()).flat_map(|c| [c.give_up, c.again_at]).flatten();
        let standing = self.standing.iter().flat_map(|s| {
            let phase = match s.phase {
                Phase::Doubt(at) => Some(at),
                Phase::Leaving(at) => at,
                Phase::Asking | Phase::InLine => None,
            };
            [phase, s.give_up]
        });
        let first_to_leave = self.give_ups.first().map(|(at, _)| *at);
        offers.chain(converting).chain(standing.flatten()).chain(first_to_leave).chain(self.warn_at).min()
    }

    /// One step.
    pub(crate) fn step(&mut self, now: Ticks, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Ask(ask) => self.ask(now, ask, out),
            Event::Cancel(seq) => self.cancel(now, seq, out),
            Event::Take(seq) => {
                if let Some((h, t)) = self.find(seq) {
                    self.holds[h].taken = true;
                    let offered = self.holds[h].turns[t].offered_until.take();
                    // An uncontended turn is taken at once and needs no timer; beside many holds the timer finds out.
                    if offered == self.check_at && self.holds.len() < 4 {
                        self.check_at = self.next_due();
                    }
                }
            }
            Event::TurnOver { seq, fresh } => self.turn_over(now, seq, fresh, out),
            Event::Convert { seq, id, to, give_up } => self.convert(seq, id, to, give_up, out),
            Event::CancelConvert { seq } => self.cancel_convert(seq, out),
            Event::Answered { claim, answer } => self.answered(now, claim, answer, out),
            Event::Wake { claim } => {
                if let Some(s) = self.standing.as_mut().filter(|s| s.ask.id == claim) {
                    match s.phase {
                        Phase::InLine => ask_again(s, out),
                        // The answer under way may be older than the hint: ask once more when it is there.
                        Phase::Asking => s.woken = true,
                        Phase::Doubt(_) | Phase::Leaving(_) => {}
                    }
                }
            }
            Event::Withdrawn { claim, known } => self.withdrawn(now, claim, known, out),
            Event::Ended { hold, why, ours } => self.ended(now, hold, why, ours, out),
            Event::Timer => self.timer(now, out),
            Event::Close => self.close(now, out),
        }
    }

    fn ask(&mut self, now: Ticks, ask: Ask, out: &mut Vec<Action>) {
        let refusal = if self.closed {
            Some(Refusal::Closed)
        } else if ask.give_up.is_some_and(|at| at <= now) && !ask.try_only {
            Some(Refusal::TimedOut)
        } else if ask.try_only && self.is_busy_for(&ask.shape) {
            Some(Refusal::BusyHere)
        } else if self.waiting >= self.rules.waiting_max {
            Some(Refusal::TooMany)
        } else {
            None
        };
        if let Some(why) = refusal {
            out.push(Action::Refuse { seq: ask.seq, why });
            return;
        }
        if self.waiting == 0 && self.standing.is_none() && !self.excludes(&ask.shape) {
            if !self.join(now, &ask, out) {
                let send = !ask.sent_elsewhere;
                self.stand(ask, send, out);
            }
            return;
        }
        self.enqueue(now, ask);
    }

    /// A try never overtakes a line (R11). Behind an attempt whose answer is still under way it waits for that answer, if
    /// both may be granted.
    fn is_busy_for(&self, shape: &Shape) -> bool {
        let stands = self.standing.as_ref().is_some_and(|s| s.phase != Phase::Asking || !s.ask.shape.mode.shares_with(shape.mode));
        let waits = self.queue.iter().any(|(_, ask)| ask.as_ref().is_some_and(|a| !a.try_only));
        stands || waits || self.excludes(shape)
    }

    fn refuse_waiting_tries(&mut self, out: &mut Vec<Action>) {
        let tries: Vec<Seq> = self.queue.iter().filter_map(|(_, ask)| ask.as_ref()).filter(|a| a.try_only).map(|a| a.seq).collect();
        for seq in tries {
            self.remove_waiting(seq);
            out.push(Action::Refuse { seq, why: Refusal::BusyHere });
        }
    }

    fn enqueue(&mut self, now: Ticks, ask: Ask) {
        if let Some(at) = ask.give_up {
            self.give_ups.insert((at, ask.seq));
            self.check_by(Some(at));
        }
        // Numbers only rise, so the queue stays sorted by them and a claim that leaves is found by binary search.
        self.queue.push_back((ask.seq, Some(ask)));
        self.waiting += 1;
        if self.warn_at.is_none() && !self.holds.is_empty() {
            self.warn_at = Some(now.plus(self.rules.warn_after));
            self.check_by(self.warn_at);
        }
    }

    /// The next local claim, if it has this shape.
    fn next_like(&self, shape: &Shape) -> bool {
        self.front().is_some_and(|next| shape.serves(&next.shape))
    }

    fn front(&self) -> Option<&Ask> {
        self.queue.iter().find_map(|(_, ask)| ask.as_ref())
    }

    fn pop(&mut self) -> Option<Ask> {
        while let Some((_, ask)) = self.queue.pop_front() {
            if let Some(ask) = ask {
                self.waiting -= 1;
                if let Some(at) = ask.give_up {
                    self.give_ups.remove(&(at, ask.seq));
                }
                if self.waiting == 0 {
                    self.warn_at = None;
                }
                return Some(ask);
            }
        }
        None
    }

    fn remove_waiting(&mut self, seq: Seq) -> Option<Ask> {
        let at = self.queue.binary_search_by_key(&seq, |(s, _)| *s).ok()?;
        let ask = self.queue.get_mut(at)?.1.take()?;
        self.waiting -= 1;
        if let Some(give_up) = ask.give_up {
            self.give_ups.remove(&(give_up, seq));
        }
        if self.queue.len() > 64 && self.waiting < self.queue.len() / 2 {
            self.queue.retain(|(_, ask)| ask.is_some());
        }
        if self.waiting == 0 {
            self.queue.clear();
            self.warn_at = None;
        }
        Some(ask)
    }

    /// Does a hold of this process keep the engine from granting this shape?
    fn excludes(&self, shape: &Shape) -> bool {
        self.holds.iter().any(|h| {
            let converting = h.converting.as_ref().is_some_and(|c| !c.to.shares_with(shape.mode));
            converting || !h.shape.mode.shares_with(shape.mode)
        })
    }

    fn may_pass(&self, now: Ticks, hold: &Hold) -> bool {
        // An offer that nobody took costs others no time that its hold was used: only the count bounds it (R5).
        let in_time = !hold.taken || now.since(hold.granted) < self.rules.pass_for;
        self.hand_off
            && !self.closed
            && in_time
            && hold.turns_used < self.rules.turns_max
            && hold.shape.renew
            && !hold.shape.own_value
            && hold.converting.is_none()
            && !matches!(hold.shape.mode, Mode::Permits { .. })
            && !matches!(hold.number, Number::Raw(_))
    }

    /// A reader joins a shared hold of this process.
    fn join(&mut self, now: Ticks, ask: &Ask, out: &mut Vec<Action>) -> bool {
        if ask.shape.mode != Mode::Shared {
            return false;
        }
        let open = |h: &Hold| h.shape.serves(&ask.shape) && !h.turns.is_empty() && self.may_pass(now, h);
        let Some(at) = self.holds.iter().position(open) else { return false };
        self.add_turn(now, at, ask.seq, out);
        true
    }

    fn add_turn(&mut self, now: Ticks, at: usize, seq: Seq, out: &mut Vec<Action>) {
        let offered_until = Some(now.plus(self.rules.offer_for));
        self.check_by(offered_until);
        let hold = &mut self.holds[at];
        let turn = hold.turns_used;
        hold.turns_used = turn.saturating_add(1);
        hold.turns.push(Turn { seq, offered_until });
        // Shared turns of one hold stand beside each other, so they show the same token.
        let turn = if hold.shape.mode == Mode::Shared { 0 } else { turn };
        out.push(Action::Offer { seq, hold: hold.id, token: hold.token(turn) });
    }

    fn stand(&mut self, ask: Ask, send: bool, out: &mut Vec<Action>) {
        self.standing = Some(Standing {
            serves: Some(ask.seq),
            give_up: ask.give_up.filter(|_| !ask.try_only),
            phase: Phase::Asking,
            asked: 1,
            leave_tries: 0,
            woken: false,
            ask: ask.clone(),
        });
        self.check_by(ask.give_up.filter(|_| !ask.try_only));
        if send {
            out.push(Action::Attempt(ask));
        }
    }

    /// Stands for the next local claim, or lets it join, as far as that is possible now.
    fn advance(&mut self, now: Ticks, out: &mut Vec<Action>) {
        while self.standing.is_none() {
            let Some(next) = self.front().cloned() else { return };
            if self.excludes(&next.shape) {
                return;
            }
            self.pop();
            if !self.join(now, &next, out) {
                self.stand(next, true, out);
            }
        }
    }

    fn find(&self, seq: Seq) -> Option<(usize, usize)> {
        self.holds.iter().enumerate().find_map(|(h, hold)| hold.turns.iter().position(|t| t.seq == seq).map(|t| (h, t)))
    }

    fn cancel(&mut self, now: Ticks, seq: Seq, out: &mut Vec<Action>) {
        if self.standing.as_ref().is_some_and(|s| s.serves == Some(seq)) {
            self.leave_or_lend(out);
            self.advance(now, out);
        } else if self.find(seq).is_some() {
            // The offer was not taken: it moves on as if its turn were over (R5).
            self.turn_over(now, seq, true, out);
        } else if self.remove_waiting(seq).is_some() {
            self.advance(now, out);
        }
    }

    /// Nobody wants the place any more: the next local claim gets it if it has the same shape, else the place is left.
    fn leave_or_lend(&mut self, out: &mut Vec<Action>) {
        let Some(mut standing) = self.standing.take() else { return };
        if !standing.ask.try_only && self.next_like(&standing.ask.shape) {
            if let Some(next) = self.pop() {
                standing.serves = Some(next.seq);
                standing.give_up = next.give_up;
                self.check_by(next.give_up);
            }
        } else {
            leave(&mut standing, out);
        }
        self.standing = Some(standing);
    }

    fn turn_over(&mut self, now: Ticks, seq: Seq, fresh: bool, out: &mut Vec<Action>) {
        let Some((h, t)) = self.find(seq) else { return };
        let hold = &mut self.holds[h];
        hold.turns.remove(t);
        if hold.turns.is_empty() {
            self.pass_or_release(now, h, fresh, out);
        }
    }

    /// The last turn of a hold is over.
    fn pass_or_release(&mut self, now: Ticks, at: usize, fresh: bool, out: &mut Vec<Action>) {
        let hold = &self.holds[at];
        if fresh
            && self.standing.is_none()
            && self.next_like(&hold.shape)
            && self.may_pass(now, hold)
            && let Some(next) = self.pop()
        {
            self.add_turn(now, at, next.seq, out);
            if self.waiting > 0 && self.holds[at].shape.mode == Mode::Shared {
                self.advance(now, out);
            }
            return;
        }
        let hold = self.holds.remove(at);
        let mut again = None;
        if self.standing.is_none()
            && let Some(next) = self.front().cloned()
            && !self.excludes(&next.shape)
        {
            self.pop();
            self.stand(next.clone(), false, out);
            again = Some(next);
        }
        out.push(Action::Release { hold: hold.id, again });
        self.advance(now, out);
    }

    fn convert(&mut self, seq: Seq, id: ClaimId, to: Mode, give_up: Option<Ticks>, out: &mut Vec<Action>) {
        let Some((h, _)) = self.find(seq) else { return };
        let hold = &mut self.holds[h];
        hold.converting = Some(Converting { id, to, give_up, leaving: false, again_at: None });
        out.push(Action::Convert { hold: hold.id, id, to, give_up, shape: hold.shape });
        self.check_by(give_up);
    }

    fn cancel_convert(&mut self, seq: Seq, out: &mut Vec<Action>) {
        let Some((h, _)) = self.find(seq) else { return };
        if let Some(c) = self.holds[h].converting.as_mut().filter(|c| !c.leaving) {
            c.leaving = true;
            c.give_up = None;
            c.again_at = None;
            out.push(Action::Withdraw(c.id));
        }
    }

    fn answered(&mut self, now: Ticks, claim: ClaimId, answer: Answered, out: &mut Vec<Action>) {
        if let Some(h) = self.holds.iter().position(|h| h.converting.as_ref().is_some_and(|c| c.id == claim)) {
            return self.convert_answered(now, h, answer, out);
        }
        let Some(standing) = self.standing.as_mut().filter(|s| s.ask.id == claim) else {
            // A grant for a claim that nobody here remembers: give it back, unless it is the hold we know (a repeated answer).
            if matches!(answer, Answered::Granted(_)) && !self.knows(claim) {
                out.push(Action::Release { hold: claim, again: None });
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
                self.holds.push(Hold {
                    id: claim,
                    shape: standing.ask.shape,
                    number,
                    granted: now,
                    turns_used: 0,
                    turns: Vec::new(),
                    taken: false,
                    converting: None,
                });
                let at = self.holds.len() - 1;
                self.add_turn(now, at, seq, out);
                if self.warn_at.is_none() && self.waiting > 0 {
                    self.warn_at = Some(now.plus(self.rules.warn_after));
                    self.check_by(self.warn_at);
                }
                self.advance(now, out);
            }
            Answered::InLine => {
                standing.phase = Phase::InLine;
                if std::mem::take(&mut standing.woken) {
                    ask_again(standing, out);
                }
                self.refuse_waiting_tries(out);
            }
            Answered::No => {
                let seq = standing.serves;
                self.standing = None;
                out.extend(seq.map(|seq| Action::Refuse { seq, why: Refusal::Answer }));
                self.advance(now, out);
            }
            Answered::Unknown if standing.asked > self.rules.ask_again_max => {
                let seq = standing.serves;
                out.extend(seq.map(|seq| Action::Refuse { seq, why: Refusal::Unknown }));
                leave(standing, out);
            }
            Answered::Unknown => {
                let at = now.plus(self.rules.ask_again_after * u32::from(standing.asked));
                standing.phase = Phase::Doubt(at);
                standing.asked += 1;
                self.check_by(Some(at));
            }
        }
    }

    fn convert_answered(&mut self, now: Ticks, h: usize, answer: Answered, out: &mut Vec<Action>) {
        let hold = &mut self.holds[h];
        let (Some(c), Some(seq)) = (hold.converting.as_mut(), hold.turns.first().map(|t| t.seq)) else { return };
        if c.leaving {
            return;
        }
        match answer {
            Answered::Granted(number) => {
                hold.shape.mode = c.to;
                hold.number = number;
                hold.granted = now;
                hold.turns_used = 1;
                hold.converting = None;
                out.push(Action::Converted { seq, mode: hold.shape.mode, token: hold.token(0) });
                self.advance(now, out);
            }
            Answered::InLine => {}
            Answered::No => {
                hold.converting = None;
                out.push(Action::RefuseConvert { seq, why: Refusal::Answer });
            }
            Answered::Unknown => {
                c.again_at = Some(now.plus(self.rules.ask_again_after));
                let at = c.again_at;
                self.check_by(at);
            }
        }
    }

    fn withdrawn(&mut self, now: Ticks, claim: ClaimId, known: bool, out: &mut Vec<Action>) {
        if let Some(hold) = self.holds.iter_mut().find(|h| h.converting.as_ref().is_some_and(|c| c.id == claim && c.leaving)) {
            if known {
                hold.converting = None;
                self.advance(now, out);
            } else if let Some(c) = hold.converting.as_mut() {
                c.again_at = Some(now.plus(self.rules.ask_again_after));
                let at = c.again_at;
                self.check_by(at);
            }
            return;
        }
        let Some(standing) = self.standing.as_mut().filter(|s| s.ask.id == claim && matches!(s.phase, Phase::Leaving(_))) else { return };
        // Repeated until the lease that a crossing grant may have would be over (R4).
        let tries = u32::from(standing.leave_tries);
        let over = self.rules.ask_again_after * tries > standing.ask.shape.ttl;
        if known || over {
            self.standing = None;
            self.advance(now, out);
        } else {
            standing.leave_tries = standing.leave_tries.saturating_add(1);
            let at = Some(now.plus(self.rules.ask_again_after));
            standing.phase = Phase::Leaving(at);
            self.check_by(at);
        }
    }

    fn ended(&mut self, now: Ticks, id: HoldId, why: Lost, ours: bool, out: &mut Vec<Action>) {
        let Some(at) = self.holds.iter().position(|h| h.id == id) else { return };
        let hold = self.holds.remove(at);
        if let (Some(c), Some(turn)) = (&hold.converting, hold.turns.first())
            && !c.leaving
        {
            out.push(Action::RefuseConvert { seq: turn.seq, why: Refusal::Lost(why) });
        }
        for turn in &hold.turns {
            out.push(Action::Lost { seq: turn.seq, why });
        }
        if ours {
            out.push(Action::Release { hold: id, again: None });
        }
        self.advance(now, out);
    }

    fn timer(&mut self, now: Ticks, out: &mut Vec<Action>) {
        if self.check_at.is_none_or(|at| at > now) {
            return;
        }
        self.check_at = None;
        while let Some(&(at, seq)) = self.give_ups.first() {
            if at > now {
                break;
            }
            self.give_ups.pop_first();
            self.remove_waiting(seq);
            out.push(Action::Refuse { seq, why: Refusal::TimedOut });
        }
        self.standing_timer(now, out);
        let lapsed: Vec<Seq> = self.lapsed_offers(now);
        for seq in lapsed {
            self.park(now, seq, out);
        }
        for h in 0..self.holds.len() {
            self.convert_timer(now, h, out);
        }
        if self.warn_at.is_some_and(|at| at <= now) {
            self.warn_at = None;
            out.extend(self.front().map(|next| Action::Warn { seq: next.seq }));
        }
        self.advance(now, out);
        self.check_by(self.next_due());
    }

    fn lapsed_offers(&self, now: Ticks) -> Vec<Seq> {
        let turns = self.holds.iter().flat_map(|h| h.turns.iter());
        turns.filter(|t| t.offered_until.is_some_and(|at| at <= now)).map(|t| t.seq).collect()
    }

    /// An offer that nobody took in time: its future was not polled; the turn goes on without it (R5).
    fn park(&mut self, now: Ticks, seq: Seq, out: &mut Vec<Action>) {
        out.push(Action::Parked { seq });
        self.turn_over(now, seq, true, out);
    }

    fn standing_timer(&mut self, now: Ticks, out: &mut Vec<Action>) {
        let Some(standing) = self.standing.as_mut() else { return };
        match standing.phase {
            Phase::Doubt(at) if at <= now => {
                standing.phase = Phase::Asking;
                out.push(Action::Attempt(standing.ask.clone()));
            }
            Phase::Leaving(Some(at)) if at <= now => {
                standing.phase = Phase::Leaving(None);
                out.push(Action::Withdraw(standing.ask.id));
            }
            _ => {}
        }
        if standing.give_up.is_some_and(|at| at <= now) {
            standing.give_up = None;
            let seq = standing.serves.take();
            out.extend(seq.map(|seq| Action::Refuse { seq, why: Refusal::TimedOut }));
            self.leave_or_lend(out);
        }
    }

    fn convert_timer(&mut self, now: Ticks, h: usize, out: &mut Vec<Action>) {
        let Some(hold) = self.holds.get_mut(h) else { return };
        let Some(seq) = hold.turns.first().map(|t| t.seq) else { return };
        let Some(c) = hold.converting.as_mut() else { return };
        if c.again_at.is_some_and(|at| at <= now) {
            c.again_at = None;
            out.push(if c.leaving {
                Action::Withdraw(c.id)
            } else {
                Action::Convert { hold: hold.id, id: c.id, to: c.to, give_up: c.give_up, shape: hold.shape }
            });
        }
        if c.give_up.is_some_and(|at| at <= now) {
            out.push(Action::RefuseConvert { seq, why: Refusal::TimedOut });
            self.cancel_convert(seq, out);
        }
    }

    fn close(&mut self, now: Ticks, out: &mut Vec<Action>) {
        self.closed = true;
        while let Some(ask) = self.pop() {
            out.push(Action::Refuse { seq: ask.seq, why: Refusal::Closed });
        }
        if let Some(standing) = self.standing.as_mut().filter(|s| !matches!(s.phase, Phase::Leaving(_))) {
            out.extend(standing.serves.map(|seq| Action::Refuse { seq, why: Refusal::Closed }));
            leave(standing, out);
        }
        for id in self.holds.iter().map(|h| h.id).collect::<Vec<_>>() {
            self.ended(now, id, Lost::Closed, true, out);
        }
    }
}

fn ask_again(standing: &mut Standing, out: &mut Vec<Action>) {
    standing.phase = Phase::Asking;
    out.push(Action::Attempt(standing.ask.clone()));
}

fn leave(standing: &mut Standing, out: &mut Vec<Action>) {
    standing.serves = None;
    standing.give_up = None;
    standing.phase = Phase::Leaving(None);
    out.push(Action::Withdraw(standing.ask.id));
}
