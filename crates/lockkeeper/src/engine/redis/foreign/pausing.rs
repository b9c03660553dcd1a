//! Letting others pass, in a layout without a line.
//!
//! There whoever asks first has the lock, and that is the process that asks in the message with
//! which it gives back. So one that has had the lock for [`RUN`], hold upon hold, stands back for
//! [`PAUSE`] before it competes again. It watches the key meanwhile: where nobody took it, nobody
//! competes, and the process does without for [`ALONE`].

use std::sync::Arc;
use std::time::Duration;

use super::{Entry, Foreign, LOOK, Phase, State};
use crate::engine::redis::opened::Acquires;
use crate::engine::{Answer, Attempt, Line, Place};
use crate::words::claim::Claim;
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};

/// For how long a process has the lock, hold upon hold, before it stands back: as long as one hold
/// passes inside it (R9).
pub(super) const RUN: Duration = Duration::from_millis(50);

/// For how long it stands back: what a waiter leaves between two looks at least (R10).
pub(super) const PAUSE: Duration = LOOK.0;

/// For how long a process that nobody competed with does not stand back.
pub(super) const ALONE: Duration = Duration::from_millis(2500);

/// A claim that does not compete yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    until: Ticks,
    /// Somebody else had the lock meanwhile, or it is not known that nobody had.
    taken: bool,
}

impl Entry {
    /// Its key changed. Whether that is news to a claim that stands back only in so far as somebody
    /// competes.
    pub(super) fn lets_pass(&mut self) -> bool {
        let Some(pause) = &mut self.pause else { return false };
        pause.taken = true;
        self.phase == Phase::Waiting
    }

    /// It has the lock from now on; whether the process let others pass before, and nobody came.
    fn runs(&mut self, now: Ticks) -> bool {
        let pause = self.pause.take();
        let run_until = self.run_until.filter(|_| pause.is_none());
        self.run_until = Some(run_until.unwrap_or_else(|| now.plus(RUN)));
        pause.is_some_and(|pause| !pause.taken)
    }
}

impl State {
    /// A claim has the lock from now on.
    pub(super) fn run(&mut self, now: Ticks, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        if entry.runs(now) {
            let key = entry.terms.key.clone();
            self.alone.retain(|_, until| now < *until);
            self.alone.insert(key, now.plus(ALONE));
        }
    }

    /// Somebody else has the lock that a claim asks for.
    pub(super) fn run_ends(&mut self, id: ClaimId) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        (entry.pause, entry.run_until) = (None, None);
        self.alone.remove(&entry.terms.key);
    }
}

impl Foreign {
    /// When the process has to stand back from a lock that it has, if the layout has no line.
    pub(super) fn run_until(&self, hold: Option<&HoldId>) -> Option<Ticks> {
        let hold = hold.filter(|_| self.dialect.stands_back())?;
        let state = self.state();
        let entry = state.claims.get(hold)?;
        entry.run_until.max(state.alone.get(&entry.terms.key).copied())
    }

    /// Asks for the lock that was just given back, at once or after a pause.
    pub(super) fn ask_again(
        self: &Arc<Self>,
        claim: &Claim,
        run_until: Option<Ticks>,
    ) -> Answer<Attempt> {
        let now = self.links.context.clock.now();
        if run_until.is_none_or(|until| now < until) {
            return match self.enter(claim, Line::Join) {
                Ok(()) => {
                    self.change_entry(claim, |entry| entry.run_until = run_until);
                    self.ask(claim, Line::Join, None)
                }
                Err(error) => Answer::Now(Attempt::Failed(error)),
            };
        }
        let call = match self
            .enter(claim, Line::Join)
            .and_then(|()| self.dialect.inspect(claim.kind, &claim.name))
        {
            Ok(call) => call,
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        };
        // Whoever has little time looks before it is over.
        let pause = claim.give_up.map_or(PAUSE, |at| PAUSE.min(at.since(now) / 2));
        let until = now.plus(pause);
        self.change_entry(claim, |entry| {
            (entry.phase, entry.waited) = (Phase::Waiting, true);
            entry.pause = Some(Pause { until, taken: pause < PAUSE });
        });
        // Looking at the key arms the server's word of its next change, right behind our release.
        let started = self.links.main.start(&[&call]);
        let foreign = self.clone();
        let (claim, patience) = (claim.clone(), self.links.options.connect_timeout.min(pause));
        Answer::later(async move {
            let wanted =
                || foreign.state().claims.get(&claim.id).is_some_and(|entry| !entry.leaving);
            let seen = match foreign.links.main.run(started, &call, patience, wanted).await {
                Ok(seen) => seen,
                Err(broken) => {
                    // The next attempt asks the server: a silence is not told from memory.
                    foreign.change_entry(&claim, |entry| entry.pause = None);
                    let error = foreign.links.broken(&foreign.links.main, &broken);
                    return Attempt::Unknown(error);
                }
            };
            let holders = seen.value.items().get(1);
            if !holders.is_some_and(|holders| holders.items().is_empty()) {
                foreign.change_entry(&claim, |entry| _ = entry.lets_pass());
            }
            Attempt::InLine(Place { ask_at: Some(until), ..Place::default() })
        })
    }

    /// Until when a claim that is asked for once more lets others pass still. It competes before
    /// the time of its present caller is over, who may have less of it than the one before.
    pub(super) fn stands_back_until(&self, claim: &Claim, now: Ticks) -> Option<Ticks> {
        let mut state = self.state();
        let entry = state.claims.get_mut(&claim.id)?;
        let waiting = entry.phase == Phase::Waiting;
        let pause = entry.pause.as_mut().filter(|pause| waiting && now < pause.until)?;
        let sooner = claim.give_up.map(|at| now.plus(at.since(now) / 2));
        if let Some(sooner) = sooner.filter(|sooner| *sooner < pause.until) {
            *pause = Pause { until: sooner, taken: true };
        }
        Some(pause.until)
    }

    fn change_entry(&self, claim: &Claim, change: impl FnOnce(&mut Entry)) {
        if let Some(entry) = self.state().claims.get_mut(&claim.id) {
            change(entry);
        }
    }
}
