//! When a place asks again by itself: not every engine does something when a lease ends (R10).

use super::Line;
use super::place::{Phase, recheck};
use super::words::Action;
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// A question about a place that was not answered is repeated after this many pauses. The net and
/// a link that comes up ask, too.
const UNANSWERED_PAUSES: u32 = 4;

/// When a place is asked about next; also a conversion that waits in line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AskAt {
    /// What the last answer said.
    answered: Option<Ticks>,
    /// That was due when it came: something has changed since the question. The net asks beside
    /// this place, and answers may be read in another order than they came in, so one that does
    /// not know of the change may follow (R10).
    due: bool,
    /// What it was told since, which no answer puts off: those before it may be dead.
    told: Option<Ticks>,
}

impl AskAt {
    pub(crate) fn next(self) -> Option<Ticks> {
        self.answered.into_iter().chain(self.told).min()
    }

    pub(crate) fn is_due(self, now: Ticks) -> bool {
        self.next().is_some_and(|at| at <= now)
    }

    /// The engine answered that it stands in line.
    pub(crate) fn answered(&mut self, now: Ticks, at: Option<Ticks>) {
        if !self.due {
            (self.answered, self.due) = (at, at.is_some_and(|at| at <= now));
        }
    }

    /// It is asked about now.
    pub(crate) fn asked(&mut self, now: Ticks) {
        (self.answered, self.due) = (None, false);
        self.told = self.told.filter(|at| *at > now);
    }

    pub(crate) fn told(&mut self, at: Ticks) {
        if !self.due {
            self.answered = None;
        }
        self.told = self.told.into_iter().chain([at]).min();
    }

    pub(crate) fn unanswered(&mut self, at: Ticks) {
        self.answered = self.answered.into_iter().chain([at]).min();
    }
}

impl Line {
    /// The engine says at which time to ask about a claim.
    pub(super) fn told_to_ask(
        &mut self,
        now: Ticks,
        claim: ClaimId,
        at: Ticks,
        out: &mut Vec<Action>,
    ) {
        if let Some(standing) = self.standing.as_mut().filter(|s| s.ask.id == claim) {
            match standing.phase {
                // It is older than what it is told now.
                Phase::Asking if at <= now => standing.woken = true,
                Phase::InLine if at <= now => recheck(standing, now, out),
                Phase::Asking | Phase::InLine | Phase::Doubt(_) => standing.ask_at.told(at),
                Phase::Leaving(_) => return,
            }
        } else if let Some(c) = self.converting(claim) {
            if at <= now {
                c.ask_at.asked(now);
                out.push(Action::Recheck(claim));
            } else {
                c.ask_at.told(at);
            }
        }
        self.check_by(Some(at));
    }

    /// A question about a place was not answered.
    pub(super) fn unanswered(&mut self, now: Ticks, claim: ClaimId) {
        let at = now.plus(self.rules.ask_again_after * UNANSWERED_PAUSES);
        if let Some(standing) = self.standing.as_mut().filter(|s| s.ask.id == claim) {
            standing.ask_at.unanswered(at);
        } else if let Some(c) = self.converting(claim) {
            c.ask_at.unanswered(at);
        }
        self.check_by(Some(at));
    }
}
