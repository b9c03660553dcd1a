//! Places about which the engine says nothing, or which it refuses: when that is told, and when it
//! ends a wait.
//!
//! A place is silent from the first question about it that was not answered, or from the loss of
//! the link, until the engine says something about it. The net asks at least every five seconds.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Keeper;
use super::driver::Due;
use super::entry::answers::unanswered;
use super::entry::{Entry, Outcome, State};
use super::events::Maps;
use crate::engine::ErrorKind;
use crate::observe::Seen;
use crate::protocol::line::Event;
use crate::words::clock::Ticks;
use crate::words::error::Error;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// When a silence is told, counted from its beginning.
const TOLD_AFTER: [Duration; 4] = [
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(90),
    Duration::from_secs(300),
];
/// How often it is told after the last of them.
const TOLD_EVERY: Duration = Duration::from_secs(600);
/// The shortest time between two looks for callers whose patience is over, so that many callers
/// with times of their own cost little.
const LOOKS_APART: Duration = Duration::from_millis(20);

/// The silences of one keeper.
#[derive(Default)]
pub(super) struct Outages {
    silent: BTreeMap<ClaimId, Silence>,
    /// When the next look is due.
    look_at: Option<Ticks>,
    /// The log has a warning that no later line takes back.
    warned: bool,
}

#[derive(Clone)]
struct Silence {
    /// Who waits for the claim, or behind the place that is left under it.
    entry: Weak<Entry>,
    since: Ticks,
    /// From when patience with it counts: the first question without any answer. Until then each
    /// was answered with what is in the way.
    unheard: Option<Ticks>,
    /// How often it was told.
    told: u32,
    /// What the last question came to; `None` until one was answered with an error.
    why: Option<Error>,
}

impl Silence {
    /// What is refused is answered.
    fn is_refusal(&self) -> bool {
        self.why.as_ref().is_some_and(|why| why.kind() == ErrorKind::Refused)
    }

    /// When it is told next.
    fn tell_at(&self) -> Ticks {
        let first = usize::try_from(self.told).ok().and_then(|told| TOLD_AFTER.get(told)).copied();
        let later = || {
            let more = self.told.saturating_sub(TOLD_AFTER.len() as u32).saturating_add(1);
            TOLD_AFTER[TOLD_AFTER.len() - 1] + TOLD_EVERY * more
        };
        self.since.plus(first.unwrap_or_else(later))
    }
}

impl Outages {
    pub(super) fn len(&self) -> usize {
        self.silent.len()
    }

    /// Nothing more is told of a claim that nobody waits for.
    pub(super) fn forget(&mut self, claim: ClaimId) {
        self.silent.remove(&claim);
    }

    /// Takes note; answers whether the silence, or patience with it, begins with this. `hindered`:
    /// it was answered with what is in the way.
    fn note(
        &mut self,
        claim: ClaimId,
        entry: &Weak<Entry>,
        since: Ticks,
        why: Option<&Error>,
        hindered: bool,
    ) -> bool {
        let mut began = !self.silent.contains_key(&claim);
        let new = || Silence { entry: entry.clone(), since, unheard: None, told: 0, why: None };
        let silence = self.silent.entry(claim).or_insert_with(new);
        if hindered && !silence.is_refusal() {
            // It answers again, and only now is something in the way.
            (silence.unheard, silence.since) = (None, silence.since.max(since));
        }
        if !hindered && silence.unheard.is_none() {
            silence.unheard = Some(since);
            began = true;
            // What was in the way before is no reason why nothing is answered now.
            silence.why = None;
        }
        if let Some(why) = why {
            silence.why = Some(why.clone());
        }
        began
    }

    /// Whether a look has to be armed for this time.
    fn arms(&mut self, at: Ticks) -> bool {
        let sooner = self.look_at.is_none_or(|armed| at < armed);
        if sooner {
            self.look_at = Some(at);
        }
        sooner
    }
}

impl Keeper {
    /// A question about this claim, sent at `since`, was not answered.
    fn unanswered(self: &Arc<Self>, claim: ClaimId, since: Ticks, why: &Error) {
        let began = self.claims.with(|maps| {
            let entry = maps.waiting.get(&claim).map(|(entry, _)| entry);
            entry.is_some_and(|entry| maps.outages.note(claim, entry, since, Some(why), false))
        });
        if began {
            self.look_at_outages(self.clock.now());
        }
    }

    /// A withdrawal of this entry's place, sent at `since`, was not answered: whoever comes now
    /// waits behind it.
    pub(super) fn still_there(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        claim: ClaimId,
        since: Ticks,
        why: &Error,
    ) {
        let entry = Arc::downgrade(entry);
        if self.claims.with(|maps| maps.outages.note(claim, &entry, since, Some(why), false)) {
            self.look_at_outages(self.clock.now());
        }
    }

    /// What the last question came to. Before any was answered with an error, it is the loss of the
    /// link.
    fn why(&self, silence: &Silence) -> String {
        let gone =
            || format!("{} does not answer: the connection broke", self.engine.describe().server);
        silence.why.as_ref().map_or_else(gone, |error| error.message().to_owned())
    }

    /// For how long the engine has said nothing about a claim, and why.
    pub(crate) fn silence(&self, claim: ClaimId) -> Option<(Duration, Error)> {
        if !self.claims.any_silent() {
            return None;
        }
        let silence = self.claims.with(|maps| maps.outages.silent.get(&claim).cloned())?;
        let silent = || Error::new(ErrorKind::Unreachable, self.why(&silence));
        let why = silence.why.clone().map_or_else(silent, unanswered);
        Some((self.clock.now().since(silence.since), why))
    }

    /// The same of a name for which somebody waits.
    pub(crate) fn silence_about(&self, kind: Kind, name: &Name) -> Option<(Duration, Error)> {
        let silent: Vec<(ClaimId, Weak<Entry>)> = self.claims.with(|maps| {
            let silent = maps.outages.silent.iter();
            silent.map(|(claim, silence)| (*claim, silence.entry.clone())).collect()
        });
        // Their locks come before that of the claims.
        let about = |entry: &Weak<Entry>| {
            entry.upgrade().is_some_and(|entry| entry.kind == kind && entry.name == *name)
        };
        let (claim, _) = silent.into_iter().find(|(_, entry)| about(entry))?;
        self.silence(claim)
    }

    /// The link is down: whatever waits is without an answer from now on.
    pub(super) fn link_down(self: &Arc<Self>) {
        let now = self.clock.now();
        let began = self.claims.with(|maps| {
            let mut began = false;
            for (claim, (entry, _)) in &maps.waiting {
                began |= maps.outages.note(*claim, entry, now, None, false);
            }
            began
        });
        if began {
            self.look_at_outages(now);
            // The reason is in the answer.
            self.recheck_all();
        }
    }

    /// The engine said something about this claim.
    pub(super) fn answered_about(&self, entry: &Entry, claim: ClaimId) {
        if !self.claims.any_silent() {
            return;
        }
        let (told, first) = self.claims.with(|maps| {
            let told = maps.outages.silent.remove(&claim).is_some_and(|silence| silence.told > 0);
            (told, told && std::mem::take(&mut maps.outages.warned))
        });
        if first {
            tracing::warn!(
                engine = self.facts.engine,
                name = %entry.name,
                "the engine answers again"
            );
        }
        if told {
            self.observe(entry, Seen::Reachable { place: claim });
        }
    }

    /// A look is due at this time, at the latest.
    pub(super) fn look_at_outages(self: &Arc<Self>, at: Ticks) {
        if self.claims.with(|maps| maps.outages.arms(at)) {
            self.driver.arm(self, at, Due::Outages);
        }
    }

    /// Places that are being left, with nobody here who waits for that: it is told to those who
    /// come.
    fn left_with_nobody_behind(&self) -> Vec<ClaimId> {
        let left: Vec<(ClaimId, Weak<Entry>)> = self.claims.with(|maps| {
            let left =
                maps.outages.silent.iter().filter(|(claim, _)| !maps.waiting.contains_key(claim));
            left.map(|(claim, silence)| (*claim, silence.entry.clone())).collect()
        });
        // Their locks come before that of the claims.
        let unwanted = left
            .into_iter()
            .filter(|(_, entry)| entry.upgrade().is_none_or(|entry| !entry.is_waited_for()));
        unwanted.map(|(claim, _)| claim).collect()
    }

    /// Tells what is due, and ends the waits of callers whose patience is over.
    pub(super) fn tell_outages(self: &Arc<Self>, now: Ticks) {
        let unwanted = self.left_with_nobody_behind();
        let silent: Vec<(ClaimId, Arc<Entry>, Silence, bool)> = self.claims.with(|maps| {
            // A timer that another has overtaken must not make room for a third.
            if maps.outages.look_at.is_none_or(|at| at > now) {
                return Vec::new();
            }
            maps.outages.look_at = None;
            let mut silent = Vec::new();
            maps.outages.silent.retain(|claim, silence| {
                let Some(entry) = silence.entry.upgrade() else { return false };
                if unwanted.contains(claim) {
                    return true;
                }
                let tell = silence.tell_at() <= now;
                // After a suspend several would be due at once.
                while silence.tell_at() <= now {
                    silence.told = silence.told.saturating_add(1);
                }
                silent.push((*claim, entry, silence.clone(), tell));
                true
            });
            maps.outages.warned |= silent.iter().any(|(.., tell)| *tell);
            silent
        });
        let mut next: Option<Ticks> = None;
        for (refused, does) in [(false, "no answer"), (true, "refused")] {
            let mut told = silent
                .iter()
                .filter(|(.., silence, tell)| *tell && silence.is_refusal() == refused);
            let Some((_, entry, silence, _)) = told.next() else { continue };
            let (names, silent_for) = (1 + told.count(), now.since(silence.since));
            let why = self.why(silence);
            tracing::warn!(
                engine = self.facts.engine,
                name = %entry.name,
                names,
                ?silent_for,
                why,
                "{does}; waiting on"
            );
        }
        for (claim, entry, silence, tell) in silent {
            if tell {
                let (refused, silent_for) = (silence.is_refusal(), now.since(silence.since));
                let why = self.why(&silence);
                self.observe(&entry, Seen::Unreachable { place: claim, refused, silent_for, why });
            }
            let patience =
                entry.end_waits(now, claim, &silence).map(|at| at.max(now.plus(LOOKS_APART)));
            next = next.into_iter().chain([silence.tell_at()]).chain(patience).min();
        }
        if let Some(next) = next {
            self.look_at_outages(next);
        }
    }
}

impl State {
    /// A question about this claim was not answered. It begins no silence where the engine has
    /// answered a newer one.
    pub(super) fn unanswered(
        &self,
        keeper: &Arc<Keeper>,
        claim: ClaimId,
        since: Ticks,
        why: &Error,
    ) {
        if since >= self.answered {
            keeper.unanswered(claim, since, why);
        }
    }
}

impl Entry {
    /// The same for one that waits in the engine's line.
    pub(super) fn unanswered(self: &Arc<Self>, claim: ClaimId, since: Ticks, why: &Error) {
        self.lock().state.unanswered(&self.keeper, claim, since, why);
    }

    /// A question about this claim was answered with what is in the way, and is asked again:
    /// whoever gives up is told why, and nobody's patience with a silent engine ends.
    pub(super) fn hindered(self: &Arc<Self>, claim: ClaimId, since: Ticks, why: &Error) {
        let locked = self.lock();
        let state = &*locked.state;
        // It may have been answered before this was read.
        if since < state.answered || !state.line.asks(claim) {
            return;
        }
        let entry = Arc::downgrade(self);
        let note = |maps: &mut Maps| maps.outages.note(claim, &entry, since, Some(why), true);
        if self.keeper.claims.with(note) {
            self.keeper.look_at_outages(self.keeper.clock.now());
        }
    }

    /// Whether a future waits for an answer.
    fn is_waited_for(self: &Arc<Self>) -> bool {
        self.lock().state.waiting.values().any(|w| w.outcome.is_none())
    }

    /// Ends the waits whose patience is over; answers when that of the next one is.
    fn end_waits(self: &Arc<Self>, now: Ticks, claim: ClaimId, silence: &Silence) -> Option<Ticks> {
        let mut locked = self.lock();
        let state = &mut *locked.state;
        if !state.line.asks(claim) {
            self.keeper.forget_claim(claim);
        }
        if !state.line.stands_as(claim) {
            return None;
        }
        let mut next: Option<Ticks> = None;
        let mut over = Vec::new();
        for seq in state.waiting.keys() {
            let Some(waiting) = state.waiting.get(seq).filter(|w| w.outcome.is_none()) else {
                continue;
            };
            let Some((patience, unheard)) = waiting.patience.zip(silence.unheard) else { continue };
            let at = waiting.since.max(unheard).plus(patience);
            if at <= now {
                over.push(seq);
            } else {
                next = next.into_iter().chain([at]).min();
            }
        }
        // First come, first told.
        over.sort_unstable();
        for seq in over {
            let state = &mut *locked.state;
            let silent = || self.error(ErrorKind::Unreachable, self.keeper.why(silence));
            let error = silence.why.clone().map_or_else(silent, unanswered).name(&self.name);
            let Some(waiting) = state.waiting.get_mut(seq) else { continue };
            waiting.outcome = Some(Outcome::Refused(error));
            let waker = waiting.waker.take();
            locked.wake(waker);
            self.keeper.observe(self, Seen::NotObtained { claim: seq, why: "unknown" });
            self.step(&mut locked, now, Event::Cancel { seq, fresh: false });
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_told_after_10_s_and_then_ever_more_seldom() {
        let mut silence =
            Silence { entry: Weak::new(), since: Ticks(7), unheard: None, told: 0, why: None };
        let mut at = Vec::new();
        for _ in 0..7 {
            at.push(silence.tell_at().since(silence.since).as_secs());
            silence.told += 1;
        }
        assert_eq!(at, [10, 30, 90, 300, 900, 1_500, 2_100]);
    }
}
