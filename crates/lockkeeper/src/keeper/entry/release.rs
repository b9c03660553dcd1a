//! Giving holds back: what is under way, who waits to hear how it ends, and what comes behind it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use super::few::Few;
use super::{Entry, Locked, State};
use crate::engine::{Answer, Attempt, End, Released};
use crate::keeper::cell::TurnCell;
use crate::observe::Seen;
use crate::protocol::line::{Ask, Event};
use crate::words::claim::{Claim, Mode};
use crate::words::clock::Ticks;
use crate::words::id::HoldId;
use crate::words::lost::Lost;

/// How long to wait before an unknown release is sent again.
const RELEASE_AGAIN_AFTER: Duration = Duration::from_millis(250);

/// How a release ended, as it is told to whoever waits and to the log alike.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) end: End,
    /// Nobody here had it any more when the engine answered: one that finds nothing found what a
    /// lease's end leaves.
    pub(crate) over: bool,
}

/// A release that is under way.
#[derive(Default)]
pub(in crate::keeper) struct UnderWay {
    /// Who waits until it is known: whoever closes.
    tell: Option<oneshot::Sender<Told>>,
    /// Meanwhile the engine granted the hold once more.
    pub(in crate::keeper) echoed: bool,
}

/// Releases whose end is not known yet.
#[derive(Default)]
pub(in crate::keeper) struct Ends {
    /// Who waits to hear how a release ended.
    tell: Few<HoldId, oneshot::Sender<Told>>,
    pub(in crate::keeper) under_way: Few<HoldId, UnderWay>,
}

/// What became of a release in the step that made it.
pub(in crate::keeper) enum ReleaseStep {
    Ended(Told),
    Later,
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

impl State {
    /// The engine has granted once more what is being given back, or answered from before its
    /// grant. That is given back, too, but only behind the answer to the first release: whichever
    /// came second would find nothing, and call the hold somebody else's. Answers whether a release
    /// is under way.
    pub(in crate::keeper) fn defer_until_released(&mut self, hold: HoldId) -> bool {
        let ends = self.ends.as_mut();
        let under_way = ends.and_then(|ends| ends.under_way.get_mut(hold));
        under_way.map(|under_way| under_way.echoed = true).is_some()
    }

    /// How to hear of the end of a hold's release, under way or still to come.
    pub(in crate::keeper) fn hear_of_release(&mut self, hold: HoldId) -> oneshot::Receiver<Told> {
        let (sender, receiver) = oneshot::channel();
        let under_way = &mut self.ends.get_or_insert_default().under_way;
        match under_way.get_mut(hold) {
            Some(under_way) => under_way.tell = Some(sender),
            None => _ = under_way.insert(hold, UnderWay { tell: Some(sender), echoed: false }),
        }
        receiver
    }

    /// The holds whose release is under way.
    pub(super) fn releasing(&self) -> impl Iterator<Item = HoldId> {
        self.ends.iter().flat_map(|ends| ends.under_way.keys())
    }

    /// Who is to be told how the release of a hold ended.
    fn take_tell(&mut self, hold: HoldId) -> Option<oneshot::Sender<Told>> {
        let tell = self.ends.as_mut()?.tell.remove(hold);
        self.forget_ends();
        tell
    }

    fn take_under_way(&mut self, hold: HoldId) -> Option<UnderWay> {
        let under_way = self.ends.as_mut()?.under_way.remove(hold);
        self.forget_ends();
        under_way
    }

    fn forget_ends(&mut self) {
        self.ends.take_if(|ends| ends.tell.is_empty() && ends.under_way.is_empty());
    }
}

impl Entry {
    /// A guard that was given `mode` was released or dropped. With `tell`, the answer can be waited
    /// for.
    pub(crate) fn turn_over(
        self: &Arc<Self>,
        cell: &Arc<TurnCell>,
        mode: Mode,
        tell: bool,
    ) -> Over {
        let mut locked = self.lock();
        // One reading decides whether it was lost, and whether it may pass: none from before this
        // thread had to wait.
        let reading = cell.lease.is_some().then(|| self.keeper.clock.read());
        let now = reading.map_or_else(|| self.keeper.now(), |reading| reading.now);
        let state = &mut *locked.state;
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
        state.converting.remove(cell.seq);
        let was_lost = cell.lost_by(|| reading.unwrap_or_else(|| self.keeper.clock.read()));
        let stepped = self.keeper.clock.stepped();
        let fresh =
            was_lost.is_none() && cell.lease.as_ref().is_none_or(|l| l.is_fresh(now, stepped));
        // Of a hold that was lost before, somebody else waits for the release: whoever closes.
        let tell = tell && was_lost.is_none();
        locked.awaited = tell.then_some(cell.hold);
        match was_lost {
            Some(_) => self.keeper.lost(cell),
            None => self.keeper.releasing(cell),
        }
        self.step(&mut locked, now, Event::TurnOver { seq: cell.seq, fresh });
        // Only another clone of the `Held` could observe this, so it is skipped without one.
        if Arc::strong_count(cell) > 1 {
            cell.lose(Lost::Released);
        }
        let state = &mut *locked.state;
        let ended = locked.released.take();
        if let Some(why) = was_lost {
            return Over::Lost(why);
        }
        match ended {
            Some(ReleaseStep::Ended(end)) => Over::Ended(end),
            // The answer is heard under the entry's lock, and not before this.
            Some(ReleaseStep::Later) if tell => {
                let (sender, receiver) = oneshot::channel();
                state.ends.get_or_insert_default().tell.insert(cell.hold, sender);
                Over::Soon(receiver)
            }
            _ => Over::Passed,
        }
    }

    /// The turn was held longer than it may be (R16).
    pub(crate) fn held_too_long(self: &Arc<Self>, cell: &Arc<TurnCell>) {
        let now = self.keeper.now();
        let mut locked = self.lock();
        let state = &mut *locked.state;
        if !state.turns.contains(cell.seq) || cell.lost().is_some() {
            return;
        }
        cell.lose(Lost::HeldTooLong);
        self.keeper.lost(cell);
        self.end_convert(&mut locked, now, cell, Lost::HeldTooLong);
        self.step(&mut locked, now, Event::TurnOver { seq: cell.seq, fresh: false });
    }

    /// Gives a hold back, and stands `again` in the same message. `over`: nobody here has it any
    /// more.
    pub(in crate::keeper) fn release(
        self: &Arc<Self>,
        locked: &mut Locked<'_>,
        now: Ticks,
        hold: HoldId,
        again: Option<Ask>,
        over: bool,
    ) -> Option<Event> {
        let claim = again.as_ref().map(|ask| self.claim(locked, ask));
        let state = &mut *locked.state;
        let behind = over && state.defer_until_released(hold);
        let (mut over, mut deadline) = (over, None);
        let until = match state.leases.remove(hold) {
            Some(cell) => {
                self.keeper.drop_lease(hold);
                // Of what is in doubt, too, nothing may be left, and that is no illegal release.
                let stepped = self.keeper.clock.stepped();
                over |= cell.deadline() <= now || cell.doubt(stepped).is_some();
                deadline = Some(cell.deadline());
                // The server may have counted from later than we did, and an unanswered renewal may
                // have given it a whole lease more.
                cell.deadline().max(now).plus(cell.ttl().max(self.keeper.settings.ttl))
            }
            None => now.plus(self.keeper.settings.ttl),
        };
        if behind {
            return None;
        }
        self.keeper.observe(self, Seen::GivingBack { hold, again: false });
        let engine = &self.keeper.engine;
        let answer = match locked.awaited == Some(hold) {
            true => engine.release_awaited(&[hold], claim.as_ref()),
            false => engine.release(&[hold], claim.as_ref()),
        };
        match answer {
            Answer::Now(released) => {
                let told = Told { end: first_end(&released), over };
                self.note_end(hold, &told);
                let tell = [
                    state.take_tell(hold),
                    state.take_under_way(hold).and_then(|under_way| under_way.tell),
                ];
                for tell in tell.into_iter().flatten() {
                    // Nobody listens any more: then nobody needs the answer.
                    let _ = tell.send(told.clone());
                }
                locked.released = Some(ReleaseStep::Ended(told));
                let claim = claim?;
                let attempt = released.again.unwrap_or_else(|| not_asked(&claim));
                if matches!(attempt, Attempt::InLine(_)) {
                    self.keeper.await_event(claim.id, self, claim.ttl);
                }
                Some(self.understand(locked, claim.id, now, attempt))
            }
            Answer::Later(answer) => {
                locked.released = Some(ReleaseStep::Later);
                let under_way = &mut state.ends.get_or_insert_default().under_way;
                if !under_way.contains(hold) {
                    under_way.insert(hold, UnderWay::default());
                }
                if let Some(claim) = &claim {
                    self.keeper.await_event(claim.id, self, claim.ttl);
                }
                let entry = self.clone();
                self.keeper.follow(answer, move |released| async move {
                    let end = first_end(&released);
                    // Its lease may have ended on the way: the engine has forgotten it then, and
                    // nobody took it.
                    let over = over
                        || deadline.is_some_and(|deadline| deadline <= entry.keeper.clock.now());
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
    async fn release_until_known(
        self: &Arc<Self>,
        hold: HoldId,
        end: End,
        until: Ticks,
        over: bool,
    ) {
        let known = !matches!(end, End::Unknown(_));
        let again = |end: &End| {
            self.tell_unknown_early(hold, end);
            self.keeper.observe(self, Seen::GivingBack { hold, again: true });
        };
        let end = self.repeat_until_known(hold, end, until, again).await;
        let told = Told { end, over };
        if !known && matches!(told.end, End::NotOurs | End::Gone(_)) {
            self.note_gone(hold);
        } else {
            self.note_end(hold, &told);
        }
        // Nobody listens any more: then nobody needs the answer.
        if let Some(tell) = self.lock().state.take_tell(hold) {
            let _ = tell.send(told.clone());
        }
        while !self.release_is_over(hold, &told) {
            // It may have been made anew behind the release. Nobody hears what becomes of it.
            self.repeat_until_known(hold, self.give_back(hold).await, until, |_| ()).await;
        }
    }

    /// Forgets a release whose end is known and tells whoever waits for that; false when something
    /// came behind it meanwhile, which is to be given back first.
    fn release_is_over(self: &Arc<Self>, hold: HoldId, told: &Told) -> bool {
        let mut locked = self.lock();
        let state = &mut *locked.state;
        let under_way = state.ends.as_mut().and_then(|ends| ends.under_way.get_mut(hold));
        if under_way.is_some_and(|under_way| std::mem::take(&mut under_way.echoed)) {
            return false;
        }
        let tell = state.take_under_way(hold).and_then(|under_way| under_way.tell);
        drop(locked);
        if let Some(tell) = tell {
            let _ = tell.send(told.clone());
        }
        true
    }

    async fn give_back(&self, hold: HoldId) -> End {
        match self.keeper.engine.release(&[hold], None) {
            Answer::Now(released) => first_end(&released),
            Answer::Later(answer) => first_end(&answer.await),
        }
    }

    /// Repeats an unknown release until its lease would be over (R4).
    async fn repeat_until_known(
        self: &Arc<Self>,
        hold: HoldId,
        mut end: End,
        until: Ticks,
        unknown: impl Fn(&End),
    ) -> End {
        while matches!(end, End::Unknown(_))
            && self.keeper.clock.now() < until
            && !self.keeper.is_closed_for_good()
        {
            unknown(&end);
            self.keeper.driver.sleep(&self.keeper, RELEASE_AGAIN_AFTER).await;
            end = self.give_back(hold).await;
        }
        end
    }

    /// The caller hears of an unknown release at once; the keeper goes on trying behind it.
    fn tell_unknown_early(self: &Arc<Self>, hold: HoldId, end: &End) {
        let tell = self.lock().state.take_tell(hold);
        if let Some(tell) = tell {
            let _ = tell.send(Told { end: end.clone(), over: false });
        }
    }

    /// A release that was repeated found nothing: the one before it, which nobody answered, may
    /// have freed it, and is no illegal one.
    fn note_gone(&self, hold: HoldId) {
        tracing::debug!(
            engine = self.keeper.facts.engine,
            name = %self.name,
            %hold,
            "released, as far as is known"
        );
        self.keeper.observe(self, Seen::Released { hold, end: "unknown" });
    }

    fn note_end(&self, hold: HoldId, Told { end, over }: &Told) {
        let engine = self.keeper.facts.engine;
        let word = match end {
            End::Freed => {
                tracing::debug!(engine, name = %self.name, "released");
                "freed"
            }
            End::NotOurs if *over => {
                tracing::debug!(
                    engine,
                    name = %self.name,
                    %hold,
                    "the engine has forgotten it already"
                );
                "not-ours"
            }
            End::NotOurs => {
                tracing::error!(
                    engine,
                    name = %self.name,
                    %hold,
                    "illegal release: the hold was not ours any more; nothing was touched"
                );
                "not-ours"
            }
            End::Gone(why) => {
                tracing::warn!(
                    engine,
                    name = %self.name,
                    %hold,
                    %why,
                    "a part of the hold was gone before it was released"
                );
                "gone"
            }
            End::Unknown(error) => {
                tracing::warn!(
                    engine,
                    name = %self.name,
                    %hold,
                    %error,
                    "it is not known whether the release was done"
                );
                "unknown"
            }
        };
        self.keeper.observe(self, Seen::Released { hold, end: word });
    }

    /// The keeper's thread is gone: nobody will hear how a release ended.
    pub(crate) fn drop_listeners(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = state.ends.take();
        drop(state);
        // Each of them wakes somebody.
        drop(ends);
    }
}

fn first_end(released: &Released) -> End {
    released.ends.first().cloned().unwrap_or(End::NotOurs)
}

/// An engine that freed the hold but did not say what became of the claim behind it: ask again.
fn not_asked(claim: &Claim) -> Attempt {
    Attempt::Unknown(
        crate::Error::new(
            crate::ErrorKind::Unknown,
            "the engine did not answer the claim that came with the release",
        )
        .name(&claim.name),
    )
}
