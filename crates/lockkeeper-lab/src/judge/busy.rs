//! Was a "busy" right? A try may be refused only while somebody may have had the lock, or stood in
//! line for it.
//!
//! Each claim may be in the engine from its call to the answer of its release: its outer interval.
//! A busy whose own window touches no outer interval of another claim that could have been in its
//! way is wrong. What is not known (an unanswered acquire, a dead client's place) counts as being
//! there. A try that finds that others stand in line may have had the lock in hand for a moment,
//! and gave it back for their sake: that explains a busy that met it.

use super::claims::{At, Claim, ClaimNo, Claims};
use crate::history::HoldMode;

/// A busy that only a try still under way could explain.
struct Doubtful {
    busy: WrongBusy,
    mode: HoldMode,
    /// The tries that were under way when it was answered and are so still.
    waits: Vec<ClaimNo>,
}

/// What of one lock may be in the engine.
#[derive(Default)]
pub(super) struct Presence {
    exclusive: u32,
    upgradable: u32,
    shared: u32,
    permits: u64,
    /// Acquires that wait.
    waiting: u32,
    /// Until when somebody who is gone, or an acquire of which nothing is known, may still be
    /// there.
    ghost_until: u64,
    /// A holder whose end is not known; the next exclusive grant proves it.
    ghost_holder: bool,
    /// Holds whose release was called and not answered.
    leaving: Vec<ClaimNo>,
    /// Tries under way, and those of them that nothing excuses yet.
    trying: Vec<ClaimNo>,
    tries: Vec<ClaimNo>,
    /// The permits that all tries under way ask for: some of them may have got theirs.
    trying_permits: u64,
    doubts: Vec<Doubtful>,
}

/// A busy that nothing explains.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrongBusy {
    pub claim: ClaimNo,
    pub answered: At,
}

impl Presence {
    /// Whether what is there now, or may be, refuses a try under way rightly. `limit` 0 is unknown.
    fn refuses(&self, claim: &Claim, limit: u64, now: u64) -> bool {
        if self.waiting > 0 || self.ghost_holder || now <= self.ghost_until {
            return true;
        }
        match claim.mode {
            HoldMode::Permits => self.permits + self.trying_permits > limit,
            HoldMode::Shared => self.exclusive > 0,
            HoldMode::Upgradable => self.exclusive + self.upgradable > 0,
            HoldMode::Exclusive | HoldMode::None => {
                self.exclusive + self.upgradable + self.shared > 0
            }
        }
    }

    /// Somebody more is there: that excuses tries under way.
    fn grew(&mut self, limit: u64, now: u64, claims: &mut Claims) {
        let mut tries = std::mem::take(&mut self.tries);
        tries.retain(|no| {
            let excused = self.refuses(&claims[*no], limit, now);
            claims[*no].excused |= excused;
            !excused
        });
        self.tries = tries;
    }

    /// The limit of a semaphore changed: no try under way can be judged.
    pub fn excuse_all(&mut self, claims: &mut Claims) {
        for no in self.tries.drain(..) {
            claims[no].excused = true;
        }
    }

    /// An acquire was called.
    pub fn asked(&mut self, no: ClaimNo, limit: u64, claims: &mut Claims) {
        let now = claims[no].asked.time;
        if !claims[no].trying {
            self.waiting += 1;
            for other in &self.trying {
                claims[*other].met_line = true;
            }
            self.grew(limit, now, claims);
            return;
        }
        claims[no].met_line = self.waiting > 0;
        self.trying.push(no);
        self.tries.push(no);
        self.trying_permits += self.permits_of(no, claims);
        self.grew(limit, now, claims);
    }

    /// An acquire was answered with a guard.
    pub fn granted(
        &mut self,
        no: ClaimNo,
        limit: u64,
        now: u64,
        claims: &mut Claims,
        wrong: &mut dyn FnMut(WrongBusy),
    ) {
        self.answered(no, claims);
        let mode = claims[no].mode;
        if mode == HoldMode::Exclusive {
            self.ghost_holder = false;
            for other in std::mem::take(&mut self.leaving) {
                self.count(other, false, claims);
            }
        }
        self.count(no, true, claims);
        self.grew(limit, now, claims);
        self.explains(no, if claims[no].tangled { HoldMode::Exclusive } else { mode });
        self.settle(no, wrong);
    }

    /// How many hold it, or may.
    pub fn holders(&self) -> u32 {
        self.exclusive + self.upgradable + self.shared
    }

    /// Nobody knows any more in which mode a hold is: it may be in any.
    pub fn tangled(&mut self, no: ClaimNo, limit: u64, now: u64, claims: &mut Claims) {
        let other = std::mem::replace(&mut claims[no].converting, HoldMode::Exclusive);
        if other != HoldMode::None {
            self.also(no, other, false, limit, now, claims);
        }
        self.also(no, HoldMode::Exclusive, true, limit, now, claims);
    }

    /// A try had the lock: whoever met it was refused rightly.
    fn explains(&mut self, no: ClaimNo, mode: HoldMode) {
        self.doubts.retain(|doubt| !doubt.waits.contains(&no) || !may_refuse(mode, doubt.mode));
    }

    /// A try was answered with busy; answers those busies that are wrong now for certain.
    pub fn busy(
        &mut self,
        no: ClaimNo,
        at: At,
        claims: &mut Claims,
        wrong: &mut dyn FnMut(WrongBusy),
    ) {
        self.answered(no, claims);
        if claims[no].met_line {
            self.explains(no, claims[no].mode);
        }
        self.settle(no, wrong);
        let claim = &claims[no];
        if claim.excused || !claim.trying {
            return;
        }
        let busy = WrongBusy { claim: no, answered: at };
        if self.trying.is_empty() {
            wrong(busy);
        } else {
            self.doubts.push(Doubtful { busy, mode: claim.mode, waits: self.trying.clone() });
        }
    }

    /// An acquire certainly did not happen; it waited until `now`.
    pub fn failed(
        &mut self,
        no: ClaimNo,
        now: u64,
        claims: &mut Claims,
        wrong: &mut dyn FnMut(WrongBusy),
    ) {
        self.answered(no, claims);
        if !claims[no].trying {
            self.ghost_until = self.ghost_until.max(now);
        }
        self.settle(no, wrong);
    }

    /// An acquire ended in a way that may have left something behind until `until`, or for ever.
    pub fn left(&mut self, no: ClaimNo, until: u64, claims: &mut Claims) {
        self.answered(no, claims);
        self.ghost_until = self.ghost_until.max(until);
        self.doubts.retain(|doubt| !doubt.waits.contains(&no));
        let now = claims[no].asked.time;
        self.grew(0, now, claims);
    }

    /// A release was called.
    pub fn leaving(&mut self, no: ClaimNo, claims: &Claims) {
        if claims[no].present {
            self.leaving.push(no);
        }
    }

    /// A hold is gone from the engine after `now`: at that very moment it may have been there.
    pub fn gone(&mut self, no: ClaimNo, now: u64, claims: &mut Claims) {
        self.ghost_until = self.ghost_until.max(now);
        self.leaving.retain(|other| *other != no);
        self.count(no, false, claims);
    }

    /// Nobody knows when a hold goes, or went, from the engine: at `until`, unless an exclusive
    /// grant proves it earlier.
    pub fn vanished(&mut self, no: ClaimNo, now: u64, until: u64, claims: &mut Claims) {
        let was = claims[no].present;
        self.gone(no, now, claims);
        if !was {
            return;
        }
        if claims[no].mode == HoldMode::Permits {
            self.ghost_until = self.ghost_until.max(until);
        } else {
            self.ghost_holder = true;
        }
        self.grew(0, now, claims);
    }

    /// A hold may be in one mode more, or is in one mode less.
    pub fn also(
        &mut self,
        no: ClaimNo,
        mode: HoldMode,
        more: bool,
        limit: u64,
        now: u64,
        claims: &mut Claims,
    ) {
        if !claims[no].present {
            return;
        }
        let weight = claims[no].weight;
        self.add(mode, weight, more);
        if more {
            self.grew(limit, now, claims);
        }
    }

    fn answered(&mut self, no: ClaimNo, claims: &Claims) {
        if claims[no].trying {
            self.trying.retain(|other| *other != no);
            self.trying_permits -= self.permits_of(no, claims);
            self.tries.retain(|other| *other != no);
        } else {
            self.waiting -= 1;
        }
    }

    fn permits_of(&self, no: ClaimNo, claims: &Claims) -> u64 {
        if claims[no].mode == HoldMode::Permits { u64::from(claims[no].weight) } else { 0 }
    }

    fn count(&mut self, no: ClaimNo, there: bool, claims: &mut Claims) {
        let claim = &mut claims[no];
        if claim.present != there {
            claim.present = there;
            let (mode, weight) = (claim.mode, claim.weight);
            self.add(mode, weight, there);
            let other =
                if there { claim.converting } else { std::mem::take(&mut claim.converting) };
            if other != HoldMode::None {
                self.add(other, weight, there);
            }
        }
    }

    fn add(&mut self, mode: HoldMode, weight: u16, more: bool) {
        let slot = match mode {
            HoldMode::Permits => {
                let weight = u64::from(weight);
                self.permits =
                    if more { self.permits + weight } else { self.permits.saturating_sub(weight) };
                return;
            }
            HoldMode::Shared => &mut self.shared,
            HoldMode::Upgradable => &mut self.upgradable,
            HoldMode::Exclusive | HoldMode::None => &mut self.exclusive,
        };
        // Conversions that no lock can have made count for nothing.
        *slot = if more { *slot + 1 } else { slot.saturating_sub(1) };
    }

    /// A try explains nothing any more.
    fn settle(&mut self, no: ClaimNo, wrong: &mut dyn FnMut(WrongBusy)) {
        self.doubts.retain_mut(|doubt| {
            doubt.waits.retain(|other| *other != no);
            if doubt.waits.is_empty() {
                wrong(doubt.busy);
            }
            !doubt.waits.is_empty()
        });
    }
}

/// Whether a hold of one mode may be why a try of the other was refused.
fn may_refuse(hold: HoldMode, tried: HoldMode) -> bool {
    match tried {
        HoldMode::Shared => hold == HoldMode::Exclusive,
        HoldMode::Upgradable => hold != HoldMode::Shared,
        _ => true,
    }
}
