//! The local line of one name: the tasks of this process that want it, its one place in the
//! engine's line, and its holds.
//!
//! Tasks queue here, first come first served. The process stands in the engine's line at most once
//! for a name (R9). When a turn ends, the hold passes to the next local claim without touching the
//! engine, within bounds that keep other processes from starving; at the bound the process gives
//! the hold back and stands again at the end of the line. A grant is an offer until its future
//! takes it: not taken in time, it moves on (R5).

mod ask_at;
mod convert;
mod holds;
mod place;
mod queue;
#[cfg(test)]
mod tests;
mod words;

use std::sync::Arc;

use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};
use crate::words::lost::Lost;
#[cfg(test)]
#[cfg(feature = "redis")]
pub(crate) use ask_at::AskAt;
use holds::{Hold, Turn};
use place::{Phase, Standing, ask_again, leave};
use queue::Queue;
pub use words::{Action, Answered, Ask, Event, Refusal, Rules, Seq, Shape};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    rules: Arc<Rules>,
    /// May holds pass at all? Not in layouts whose counter belongs to others.
    hand_off: bool,
    next_seq: Seq,
    queue: Queue,
    standing: Option<Box<Standing>>,
    holds: Vec<Hold>,
    /// An empty list that a hold has left for the next.
    spare: Vec<Turn>,
    warn_at: Option<Ticks>,
    /// No timer is due before this; kept low cheaply, and worked out anew when it has passed.
    check_at: Option<Ticks>,
    closed: bool,
}

impl Line {
    pub fn new(rules: impl Into<Arc<Rules>>, hand_off: bool) -> Self {
        Self {
            rules: rules.into(),
            hand_off,
            next_seq: 0,
            queue: Queue::default(),
            standing: None,
            holds: Vec::new(),
            spare: Vec::new(),
            warn_at: None,
            check_at: None,
            closed: false,
        }
    }

    /// The number for the next claim.
    pub fn draw_seq(&mut self) -> Seq {
        self.next_seq += 1;
        self.next_seq
    }

    /// The claim with which the process stands in the engine's line, when it is in line.
    pub fn place(&self) -> Option<ClaimId> {
        self.standing.as_ref().filter(|s| s.phase == Phase::InLine).map(|s| s.ask.id)
    }

    /// The claim with which the process asks, stands or leaves.
    pub fn claim(&self) -> Option<ClaimId> {
        self.standing.as_ref().map(|s| s.ask.id)
    }

    /// Which of those that wait here it is asked for.
    pub fn serves(&self) -> Option<Seq> {
        self.standing.as_ref()?.serves
    }

    /// Whether this claim is asked for again when the engine cannot be reached.
    pub fn waits_on(&self, id: ClaimId) -> bool {
        self.standing.as_ref().is_some_and(|s| s.ask.id == id && s.waits_on())
    }

    /// Whether the engine has said of this claim that it stands in line.
    pub fn has_stood(&self, id: ClaimId) -> bool {
        self.standing.as_ref().is_some_and(|s| s.ask.id == id && s.stood)
    }

    /// Whether this line knows the id: as a hold, a conversion under way or done, or a place.
    pub fn knows(&self, id: ClaimId) -> bool {
        let of_hold = |h: &Hold| {
            h.id == id
                || h.converted.as_deref() == Some(&id)
                || h.converting.as_ref().is_some_and(|c| c.id == id)
        };
        self.standing.as_ref().is_some_and(|s| s.ask.id == id) || self.holds.iter().any(of_hold)
    }

    /// Whether somebody waits for this claim, or for the conversion of that id.
    pub fn asks(&self, id: ClaimId) -> bool {
        self.standing.as_ref().is_some_and(|s| s.ask.id == id)
            || self.conversions().any(|conversion| conversion == id)
    }

    /// The hold that a grant of this claim would give or change; `None` when nobody here wants it
    /// any more.
    pub fn hold_for(&self, id: ClaimId) -> Option<HoldId> {
        if self
            .standing
            .as_ref()
            .is_some_and(|s| s.ask.id == id && !matches!(s.phase, Phase::Leaving(_)))
        {
            return Some(id);
        }
        let converts = |h: &Hold| h.converting.as_ref().is_some_and(|c| c.id == id && !c.leaving);
        self.holds.iter().find(|h| h.id == id || converts(h)).map(|h| h.id)
    }

    /// Whether this is the claim with which the process stands, asks, or is on its way out.
    pub fn stands_as(&self, id: ClaimId) -> bool {
        self.standing.as_ref().is_some_and(|s| s.ask.id == id)
    }

    /// Whether the engine must still be told that a place is left.
    pub fn is_leaving(&self) -> bool {
        self.standing.as_ref().is_some_and(|s| matches!(s.phase, Phase::Leaving(_)))
    }

    /// What was asked for under this id.
    pub fn shape_of(&self, id: ClaimId) -> Option<Shape> {
        let standing = self.standing.as_ref().filter(|s| s.ask.id == id).map(|s| s.ask.shape);
        let converted = |h: &&Hold| h.id == id || h.converting.as_ref().is_some_and(|c| c.id == id);
        standing.or_else(|| self.holds.iter().find(converted).map(|h| h.shape))
    }

    /// The ids of all holds.
    pub fn holds(&self) -> Vec<HoldId> {
        self.holds.iter().map(|h| h.id).collect()
    }

    /// Conversions that wait in the engine, with their ids.
    pub fn conversions(&self) -> impl Iterator<Item = ClaimId> + '_ {
        self.holds.iter().filter_map(|h| h.converting.as_ref().map(|c| c.id))
    }

    /// The conversion of this turn's hold, also one that is being left.
    pub fn conversion(&self, seq: Seq) -> Option<ClaimId> {
        let (h, _) = self.find(seq)?;
        self.holds.get(h)?.converting.as_ref().map(|c| c.id)
    }

    /// Nothing waits, stands or is held.
    pub fn is_idle(&self) -> bool {
        self.holds.is_empty() && self.standing.is_none() && self.queue.is_empty()
    }

    /// Whether a claim of this shape waits behind others of this process: the engine is not asked
    /// for it now.
    pub fn queues(&self, shape: &Shape) -> bool {
        !self.queue.is_empty() || self.standing.is_some() || self.excludes(shape)
    }

    /// When [`Event::Timer`] is due next, or earlier; constant time.
    pub fn next_timer(&self) -> Option<Ticks> {
        self.check_at
    }

    fn check_by(&mut self, at: Option<Ticks>) {
        self.check_at = self.check_at.into_iter().chain(at).min();
    }

    /// When something is really due next.
    fn next_due(&self) -> Option<Ticks> {
        let offers = self.holds.iter().flat_map(|h| h.turns.iter()).filter_map(|t| t.offered_until);
        let converting = self
            .holds
            .iter()
            .filter_map(|h| h.converting.as_ref())
            .flat_map(|c| {
                [c.give_up, c.again_at, c.ask_at.next(), c.next.as_ref().and_then(|n| n.give_up)]
            })
            .flatten();
        let standing = self.standing.iter().flat_map(|s| {
            let phase = match s.phase {
                Phase::Doubt(at) => Some(at),
                Phase::Leaving(at) => at,
                Phase::InLine => s.ask_at.next(),
                Phase::Asking => None,
            };
            [phase, s.give_up]
        });
        let first_to_leave = self.queue.first_give_up();
        offers
            .chain(converting)
            .chain(standing.flatten())
            .chain(first_to_leave)
            .chain(self.warn_at)
            .min()
    }

    /// One step.
    pub fn step(&mut self, now: Ticks, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Ask(ask) => self.ask(now, ask, out),
            Event::Cancel { seq, fresh } => self.cancel(now, seq, fresh, out),
            Event::Take(seq) => {
                if let Some((h, t)) = self.find(seq) {
                    self.holds[h].taken = true;
                    let offered = self.holds[h].turns[t].offered_until.take();
                    // An uncontended turn is taken at once and needs no timer; beside many holds
                    // the timer finds out.
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
                        Phase::InLine => ask_again(s, now, out),
                        // The answer under way may be older than the hint: ask once more when it is
                        // there.
                        Phase::Asking => s.woken = true,
                        Phase::Doubt(_) | Phase::Leaving(_) => {}
                    }
                } else {
                    // A conversion has no place of its own: what it hears of is asked about.
                    self.told_to_ask(now, claim, now, out);
                }
            }
            Event::AskAt { claim, at } => self.told_to_ask(now, claim, at, out),
            Event::Unanswered { claim } => self.unanswered(now, claim),
            Event::Withdrawn { claim, known } => self.withdrawn(now, claim, known, out),
            Event::GivenOut { hold } => {
                if let Some(hold) = self.holds.iter_mut().find(|h| h.id == hold) {
                    hold.given_out = true;
                }
            }
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
            Some(if self.is_kept_from(&ask.shape) {
                Refusal::Unanswered
            } else {
                Refusal::BusyHere
            })
        } else if self.queue.len() >= self.rules.waiting_max {
            Some(Refusal::TooMany)
        } else {
            None
        };
        if let Some(why) = refusal {
            out.push(Action::Refuse { seq: ask.seq, why });
            return;
        }
        if !self.queues(&ask.shape) {
            if !self.join(now, &ask, out) {
                let send = !ask.sent_elsewhere;
                self.stand(ask, send, out);
            }
            return;
        }
        self.enqueue(now, ask);
    }

    /// A try never overtakes a line (R11), and is refused only for the sake of somebody who has the
    /// lock or stands in line. Of another try under way, of an attempt beside which it may be
    /// granted, and of a place that is being left, that is not known before the answer: it waits
    /// for that.
    fn is_busy_for(&self, shape: &Shape) -> bool {
        let stands = self.standing.as_ref().is_some_and(|s| s.refuses(shape));
        let waits = self.queue.back().is_some_and(|a| !a.try_only);
        stands || waits || self.excludes(shape)
    }

    /// Whether what keeps this shape waiting is a place that the engine lets nobody leave: it does
    /// not answer.
    fn is_kept_from(&self, shape: &Shape) -> bool {
        self.standing.as_ref().is_some_and(|s| s.kept_since.is_some()) && !self.excludes(shape)
    }

    /// Whether what keeps this shape waiting is a place of which the engine has said nothing yet,
    /// and nobody of this process.
    fn is_unheard_for(&self, shape: &Shape) -> bool {
        self.standing.as_ref().is_some_and(|s| !s.stood) && !self.excludes(shape)
    }

    /// Refuses those of the waiting tries that are meant.
    fn refuse_tries(&mut self, why: Refusal, meant: impl Fn(&Ask) -> bool, out: &mut Vec<Action>) {
        let tries: Vec<Seq> = self.queue.tries().filter(|a| meant(a)).map(|a| a.seq).collect();
        for seq in tries {
            self.queue.remove(seq);
            out.push(Action::Refuse { seq, why });
        }
    }

    fn enqueue(&mut self, now: Ticks, ask: Ask) {
        self.check_by(ask.give_up);
        self.queue.push(ask);
        if self.warn_at.is_none() && !self.holds.is_empty() {
            self.warn_at = Some(now.plus(self.rules.warn_after));
            self.check_by(self.warn_at);
        }
    }

    /// The next local claim, out of the queue.
    fn pop_waiting(&mut self) -> Option<Ask> {
        let next = self.queue.pop();
        if self.queue.is_empty() {
            self.warn_at = None;
        }
        next
    }

    /// Whether the next local claim can be served by this shape.
    fn next_like(&self, shape: &Shape) -> bool {
        self.queue.front().is_some_and(|next| shape.serves(&next.shape))
    }

    /// Stands for the next local claim, or lets it join, as far as that is possible now.
    fn advance(&mut self, now: Ticks, out: &mut Vec<Action>) {
        while self.standing.is_none() {
            let Some(next) = self.queue.front().cloned() else { return };
            let excluded = self.excludes(&next.shape);
            if excluded && !next.try_only {
                return;
            }
            self.pop_waiting();
            if excluded {
                out.push(Action::Refuse { seq: next.seq, why: Refusal::BusyHere });
            } else if !self.join(now, &next, out) {
                self.stand(next, true, out);
            }
        }
    }

    fn cancel(&mut self, now: Ticks, seq: Seq, fresh: bool, out: &mut Vec<Action>) {
        if self.standing.as_ref().is_some_and(|s| s.serves == Some(seq)) {
            self.leave_or_lend(now, out);
            self.advance(now, out);
        } else if self.find(seq).is_some() {
            // The offer was not taken: it moves on as if its turn were over (R5).
            self.turn_over(now, seq, fresh, out);
        } else if self.queue.remove(seq).is_some() {
            self.advance(now, out);
        }
    }

    fn timer(&mut self, now: Ticks, out: &mut Vec<Action>) {
        if self.check_at.is_none_or(|at| at > now) {
            return;
        }
        self.check_at = None;
        while let Some(ask) = self.queue.take_given_up(now) {
            // A try waits only for what the engine says to those before it.
            let why = if ask.try_only || self.is_kept_from(&ask.shape) {
                Refusal::Unanswered
            } else if self.is_unheard_for(&ask.shape) {
                Refusal::Unheard
            } else {
                Refusal::TimedOut
            };
            out.push(Action::Refuse { seq: ask.seq, why });
        }
        self.standing_timer(now, out);
        self.park_lapsed(now, out);
        for h in 0..self.holds.len() {
            self.convert_timer(now, h, out);
        }
        if self.warn_at.is_some_and(|at| at <= now) {
            self.warn_at = None;
            out.extend(self.queue.front().map(|next| Action::Warn { seq: next.seq }));
        }
        self.advance(now, out);
        self.check_by(self.next_due());
    }

    fn close(&mut self, now: Ticks, out: &mut Vec<Action>) {
        self.closed = true;
        while let Some(ask) = self.pop_waiting() {
            out.push(Action::Refuse { seq: ask.seq, why: Refusal::Closed });
        }
        if let Some(standing) =
            self.standing.as_mut().filter(|s| !matches!(s.phase, Phase::Leaving(_)))
        {
            out.extend(standing.serves.map(|seq| Action::Refuse { seq, why: Refusal::Closed }));
            leave(standing, out);
        }
        for id in self.holds.iter().map(|h| h.id).collect::<Vec<_>>() {
            self.ended(now, id, Lost::Closed, true, out);
        }
    }
}
