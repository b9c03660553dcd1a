//! Upgrade and downgrade of a turn, as its guards ask for them.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::{Entry, Locked};
use crate::engine::Attempt;
use crate::keeper::Keeper;
use crate::keeper::cell::TurnCell;
use crate::observe::Seen;
use crate::protocol::line::{Event, Refusal};
use crate::words::claim::{Holder, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::lost::Lost;

/// A conversion under way, or done and not fetched yet.
pub(in crate::keeper) struct Converting {
    pub(in crate::keeper) to: Mode,
    pub(in crate::keeper) waker: Option<Waker>,
    pub(in crate::keeper) outcome: Option<Result<()>>,
    /// When it was asked for.
    pub(in crate::keeper) since: Ticks,
    /// Nobody listens: a write guard was dropped and its hold goes back to upgradable.
    pub(in crate::keeper) forgotten: bool,
    /// Asked with this claim, whose caller does not wait in line.
    pub(in crate::keeper) asks_once: Option<ClaimId>,
}

/// How long a conversion is waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// For no time at all: the engine is asked once, and the answer needs longer than that.
    once: bool,
    give_up: Option<Ticks>,
}

impl Patience {
    pub(crate) fn of(keeper: &Keeper, timeout: Option<Duration>) -> Self {
        let once = timeout == Some(Duration::ZERO);
        let within = if once { keeper.facts.request_timeout } else { timeout };
        Self { once, give_up: within.map(|time| keeper.clock.now().plus(time)) }
    }

    /// How much of it is left; `None` for any time.
    pub(crate) fn left(self, keeper: &Keeper) -> Option<Duration> {
        self.give_up.map(|at| at.since(keeper.clock.now()))
    }
}

impl Converting {
    fn to(to: Mode, since: Ticks) -> Self {
        Self { to, waker: None, outcome: None, since, forgotten: false, asks_once: None }
    }
}

impl Entry {
    /// Begins a conversion that a guard which was given `from` asks for; [`Entry::poll_convert`]
    /// follows.
    ///
    /// # Errors
    /// `WouldDeadlock` when it would take from another guard of the same owner what that was given:
    /// it would wait for that guard's end, which is its own owner's.
    pub(crate) fn begin_convert(
        self: &Arc<Self>,
        cell: &Arc<TurnCell>,
        from: Mode,
        to: Mode,
        patience: Patience,
    ) -> Result<()> {
        self.keeper.check_open()?;
        let now = self.keeper.now();
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let record = state.turns.get_mut(cell.seq).filter(|record| record.cell.lost().is_none());
        let Some(record) = record else {
            let why = cell.lost().unwrap_or(Lost::Released);
            return Err(self.error(
                ErrorKind::Lost,
                format!("the hold that would be converted is lost: {why}"),
            ));
        };
        if !record.guards.without(from).live_with(to) {
            let text = format!(
                "another guard of this owner was given more than {} access; end that one first; \
                 the first was taken at {}",
                to.as_str(),
                record.taken_at
            );
            return Err(self.error(ErrorKind::WouldDeadlock, text));
        }
        record.owes_back = false;
        if cell.mode_is(to) {
            // Entered under a guard that has it already.
            state
                .converting
                .insert(cell.seq, Converting { outcome: Some(Ok(())), ..Converting::to(to, now) });
            return Ok(());
        }
        let id = ClaimId::fresh();
        state.converting.insert(
            cell.seq,
            Converting { asks_once: patience.once.then_some(id), ..Converting::to(to, now) },
        );
        self.send_convert(&mut locked, now, cell, id, to, patience.give_up);
        Ok(())
    }

    fn send_convert(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Ticks,
        cell: &TurnCell,
        id: ClaimId,
        to: Mode,
        give_up: Option<Ticks>,
    ) {
        self.keeper.observe(self, Seen::Converting { claim: cell.seq, mode: to });
        self.step(locked, now, Event::Convert { seq: cell.seq, id, to, give_up });
    }

    /// The engine said that a conversion waits in line; answers what becomes of one whose caller
    /// does not.
    pub(in crate::keeper) fn waits_in_vain(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        claim: ClaimId,
        holder: Option<&Holder>,
    ) -> Option<Event> {
        let state = &mut *locked.state;
        let once = |c: &Converting| c.asks_once == Some(claim) && c.outcome.is_none();
        let seq = state.converting.iter().find_map(|(seq, c)| once(c).then_some(seq))?;
        if holder.is_some() {
            state.last_holder = holder.cloned().map(Box::new);
        }
        self.keeper.observe(self, Seen::NotConverted { claim: seq });
        self.tell_conversion(locked, seq, Err(Refusal::TimedOut));
        Some(Event::CancelConvert { seq })
    }

    /// A writing is over: back to upgradable, without waiting for the answer. Not under another
    /// guard of the same owner that was told it is alone; then as soon as that one is gone.
    pub(crate) fn end_writing(self: &Arc<Self>, cell: &Arc<TurnCell>) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let Some(record) = locked.state.turns.get_mut(cell.seq) else { return };
        record.owes_back = true;
        self.pay_back(&mut locked, now, cell);
    }

    /// Goes back to upgradable if that is owed and no guard needs more.
    pub(in crate::keeper) fn pay_back(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Ticks,
        cell: &TurnCell,
    ) {
        let state = &mut *locked.state;
        let Some(record) = state
            .turns
            .get_mut(cell.seq)
            .filter(|record| record.owes_back && record.guards.goes_back())
        else {
            return;
        };
        record.owes_back = false;
        let back = Converting { forgotten: true, ..Converting::to(Mode::Upgradable, now) };
        state.converting.insert(cell.seq, back);
        self.send_convert(locked, now, cell, ClaimId::fresh(), Mode::Upgradable, None);
    }

    /// A guard that was given `from` is a reader's now.
    pub(crate) fn was_downgraded(self: &Arc<Self>, cell: &TurnCell, from: Mode) {
        let mut locked = self.lock();
        if let Some(record) = locked.state.turns.get_mut(cell.seq) {
            record.guards.remove(from);
            record.guards.add(Mode::Shared);
        }
    }

    /// Waits until a conversion that nobody listens to is done.
    pub(crate) fn poll_unconverted(
        self: &Arc<Self>,
        cell: &Arc<TurnCell>,
        waker: &Waker,
    ) -> Poll<()> {
        let mut locked = self.lock();
        match locked.state.converting.get_mut(cell.seq) {
            Some(converting) if converting.forgotten => {
                converting.waker = Some(waker.clone());
                Poll::Pending
            }
            _ => Poll::Ready(()),
        }
    }

    /// The time passed while that one was not answered.
    pub(crate) fn unconverted(self: &Arc<Self>, cell: &Arc<TurnCell>) -> Error {
        self.refusal(&self.lock().state, Refusal::Unheard, cell.seq)
    }

    /// Looks whether a conversion is done.
    pub(crate) fn poll_convert(
        self: &Arc<Self>,
        cell: &Arc<TurnCell>,
        waker: &Waker,
    ) -> Poll<Result<()>> {
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let Some(converting) = state.converting.get_mut(cell.seq) else {
            return Poll::Ready(Err(
                self.error(ErrorKind::Lost, "the hold to be converted no longer exists")
            ));
        };
        let Some(outcome) = converting.outcome.take() else {
            converting.waker = Some(waker.clone());
            return Poll::Pending;
        };
        state.converting.remove(cell.seq);
        Poll::Ready(outcome)
    }

    /// The caller of a conversion has left: the hold stays as it was.
    pub(crate) fn abandon_convert(self: &Arc<Self>, cell: &Arc<TurnCell>, from: Mode) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let Some(left) = state.converting.remove(cell.seq) else { return };
        let goes_on =
            state.turns.get(cell.seq).is_some_and(|record| !record.guards.without(from).is_empty());
        match left.outcome {
            // An upgrade that was granted before its caller looked is taken back.
            Some(Ok(())) if left.to == Mode::Exclusive => {
                drop(locked);
                self.end_writing(cell);
            }
            Some(_) => {}
            // On its way down, which the other guards of the turn can live with: it ends by itself,
            // and until then nobody enters as a writer.
            None if left.to != Mode::Exclusive && goes_on => {
                let down = Converting { forgotten: true, ..Converting::to(left.to, left.since) };
                state.converting.insert(cell.seq, down);
            }
            None => self.step(&mut locked, now, Event::CancelConvert { seq: cell.seq }),
        }
    }

    /// The turn ends while a conversion of it is under way.
    pub(in crate::keeper) fn end_convert(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Ticks,
        cell: &TurnCell,
        why: Lost,
    ) {
        let under_way = locked.state.converting.get(cell.seq).filter(|c| c.outcome.is_none());
        let Some(forgotten) = under_way.map(|c| c.forgotten) else { return };
        if !forgotten {
            self.step(locked, now, Event::CancelConvert { seq: cell.seq });
        }
        self.tell_conversion(locked, cell.seq, Err(Refusal::Lost(why)));
    }

    /// The engine answered a conversion; its hold may be over by now, and the conversion with it.
    pub(in crate::keeper) fn converted(
        self: &Arc<Self>,
        claim: ClaimId,
        sent: Ticks,
        answer: Attempt,
    ) {
        if self.knows(claim) {
            self.answered(claim, sent, answer);
        } else {
            self.keeper.forget_claim(claim);
        }
    }
}
