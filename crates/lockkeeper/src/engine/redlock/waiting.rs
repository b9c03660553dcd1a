//! Waiting for a lock: when a claim asks again, and why not before.
//!
//! A waiter is woken by what members publish when a record is given back: it is its turn, or nobody
//! stands in line. By itself it asks again when the holder's lease ends, not before 250 ms and not
//! after 5 s, and when those before it in line have had their turns.

use std::time::Duration;

use super::acquire::{Entry, jitter};
use super::watch::TOLD_BY_FEW;
use super::{Quorum, State};
use crate::engine::Place;
use crate::words::claim::{Claim, Holder};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// How soon and how late a waiter looks by itself (R10).
pub(super) const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// For how long a name on which somebody waited is taken for one on which the next one waits.
const CONTENDED: Duration = Duration::from_secs(5);

/// By how much later each asks, of those that wait for the end of a lease, than the one before it.
const LEASE_END: Duration = Duration::from_millis(5);

impl Quorum {
    /// Whether a claim is about to wait, as others of its name did a moment ago: it listens before
    /// it asks, and has not to ask twice.
    pub(super) fn will_wait(&self, id: ClaimId) -> bool {
        let (now, mut state) = (self.steady.now(), self.state());
        state.contended.retain(|_, until| *until > now);
        let State { claims, contended, .. } = &*state;
        claims.get(&id).is_some_and(|entry| {
            let new = !entry.listening && !entry.machine.is_held();
            new && entry.lines_up() && contended.contains_key(&entry.channel)
        })
    }

    /// Notes that a claim waits, or that one of its name need not.
    pub(super) fn note_contended(&self, id: ClaimId, waits: bool) {
        let until = self.steady.now().plus(CONTENDED);
        let mut state = self.state();
        let State { claims, contended, .. } = &mut *state;
        let Some(entry) = claims.get_mut(&id).filter(|entry| entry.lines_up()) else { return };
        entry.waited |= waits;
        if entry.waited {
            contended.insert(entry.channel.clone(), until);
        } else {
            contended.remove(&entry.channel);
        }
    }

    /// From now on the claim waits for a word; answers when to ask again without one.
    pub(super) fn wait_for(
        &self,
        id: ClaimId,
        by: Option<ClaimId>,
        keeps: bool,
        rest: Option<Duration>,
        holder: Option<Box<Holder>>,
    ) -> Place {
        let now = self.context.clock.now();
        let (plain, majority) = (self.options.plain.is_some(), self.options.majority());
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id) else { return Place::default() };
        (entry.waiting, entry.keeps) = (true, keeps);
        entry.splits = if rest.is_some() { 0 } else { entry.splits + 1 };
        let passed = by.is_some_and(|by| entry.passed.by(Some(by)) > 0);
        let look = match rest {
            // Those before it in line have their chance first.
            Some(_) if entry.turn || passed => entry.after_others(),
            Some(rest) => {
                // Of those that wait for its end the first comes first.
                let later =
                    LEASE_END * u32::try_from(entry.ahead.unwrap_or(0).min(40)).unwrap_or(0);
                let end = rest.saturating_add(Duration::from_millis(1)).saturating_add(later);
                end.clamp(LOOK.0, LOOK.1)
            }
            // Nobody has a majority: whoever contends asks again soon. Where records do not tell
            // who lives, all may give back: not in step, so that one of them comes first.
            None if plain => LOOK.0.mul_f64(1.0 + jitter()),
            None => gap(entry.splits),
        };
        // What was heard while it was asked for is news only if it is of whoever refused it, or
        // meant for it: the answers have all else. Others' words do not say whose they are.
        let told = entry.told.by(if plain { None } else { by }).max(entry.told.by(None));
        let at = match std::mem::take(&mut entry.woken) {
            true if entry.has_room(majority) || told >= majority || plain && keeps => now,
            true if plain || told > 0 || entry.given.len() > 0 => now.plus(TOLD_BY_FEW),
            _ => now.plus(look),
        };
        entry.not_before = Some(now.plus(look)).filter(|due| (entry.turn || passed) && at == *due);
        let place = Place { ahead: None, holder, ask_at: Some(at) };
        entry.told_at = (now, place.clone());
        place
    }

    /// What a claim was answered that asked a moment ago, and has heard nothing since: the word
    /// for which it would ask again is of before.
    pub(super) fn has_just_asked(&self, id: ClaimId) -> Option<Place> {
        let now = self.context.clock.now();
        let state = self.state();
        let entry = state.claims.get(&id).filter(|_| !self.tracks())?;
        let (since, place) = &entry.told_at;
        if let Some(at) = entry.not_before.filter(|at| entry.waiting && now < *at) {
            return Some(Place { ask_at: Some(at), ..place.clone() });
        }
        let is_due = place.ask_at.is_none_or(|at| at <= now);
        (entry.waiting && !is_due && now < since.plus(TOLD_BY_FEW)).then(|| place.clone())
    }

    /// Lets others pass that wait for what was given back: the claim does not ask before a pause,
    /// unless somebody else gives back.
    pub(super) fn stand_back(&self, claim: &Claim, behind: ClaimId) -> Option<Ticks> {
        let now = self.context.clock.now();
        // Whoever has little time asks before it is over.
        let pause = claim.give_up.map_or(LOOK.0, |at| LOOK.0.min(at.since(now) / 2));
        let mut state = self.state();
        let entry = state.claims.get_mut(&claim.id)?;
        (entry.waiting, entry.behind) = (true, Some(behind));
        Some(now.plus(pause))
    }
}

impl Entry {
    /// Whether those that it got and those that contenders gave up for it are a majority.
    pub(super) fn has_room(&self, majority: usize) -> bool {
        self.given.len() > 0 && self.given.and(self.machine.kept()).len() >= majority
    }

    /// When it asks though others are before it: they may be dead. Each of them has its turn.
    /// Whoever took the lock may be dead as well: it looks before a lease has ended.
    pub(super) fn after_others(&self) -> Duration {
        let ahead = u32::try_from(self.ahead.unwrap_or(0)).unwrap_or(u32::MAX);
        let turns = LOOK.0.saturating_mul(1 << ahead.min(8)).saturating_add(TOLD_BY_FEW);
        turns.min(LOOK.1).min(self.claim.ttl.max(LOOK.0))
    }

    /// Whether it stands in line on the members.
    pub(super) fn lines_up(&self) -> bool {
        self.machine.lines_up()
    }
}

/// When contenders ask again that were refused by each other so many times in a row, not in step.
fn gap(splits: u32) -> Duration {
    let doubled = TOLD_BY_FEW.saturating_mul(1 << splits.saturating_sub(1).min(8));
    doubled.min(LOOK.0).mul_f64(1.0 - jitter() / 4.0)
}
