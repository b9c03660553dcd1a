//! Counting what the members said in a round.

use std::time::Duration;

use super::{Other, Recipe, Said, Silent};
use crate::words::id::ClaimId;

impl Recipe {
    pub(super) fn count(&self, which: impl Fn(&Said) -> bool) -> usize {
        self.said.iter().flatten().filter(|said| which(said)).count()
    }

    /// How many members that count have our record.
    pub(super) fn taken(&self) -> usize {
        self.count(|said| matches!(said, Said::Yes { counts: true, .. }))
    }

    /// How many of them keep this number for it.
    pub(super) fn keep(&self, number: u64) -> usize {
        self.count(|said| *said == Said::Yes { counts: true, number })
    }

    /// The numbers that members gave our record.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> + '_ {
        self.said.iter().flatten().filter_map(|said| match said {
            Said::Yes { number, .. } => Some(*number),
            _ => None,
        })
    }

    /// How many answers are waited for: those of who does not hang.
    pub(super) fn awaited(&self, silent: Silent) -> usize {
        self.unanswered().filter(|member| silent.0 & (1 << member) == 0).count()
    }

    pub(super) fn others(&self) -> impl Iterator<Item = Other> + '_ {
        self.said.iter().flatten().filter_map(|said| match said {
            Said::Other(other) => Some(*other),
            _ => None,
        })
    }

    /// Who else has the most members, the smallest of several, and how many.
    pub(super) fn first_of_others(&self) -> Option<(ClaimId, usize)> {
        let members = |claim| self.others().filter(|other| other.rank.claim == claim).count();
        let all = self.others().map(|other| (other.rank, members(other.rank.claim)));
        let first = all.min_by_key(|(rank, members)| (std::cmp::Reverse(*members), *rank));
        first.map(|(rank, members)| (rank.claim, members))
    }

    /// When so many of its records have ended that the others are a minority.
    pub(super) fn until_below_majority(&self, claim: ClaimId) -> Option<Duration> {
        let mut rests: Vec<Duration> =
            self.others().filter(|o| o.rank.claim == claim).map(|o| o.rest).collect();
        rests.sort_unstable();
        rests.get(rests.len().checked_sub(self.rules.majority())?).copied()
    }
}
