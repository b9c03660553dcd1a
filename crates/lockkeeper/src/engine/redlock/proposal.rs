//! Which number a client proposes for a claim (R7): above all that it knows, and by a clock that is
//! right as long as those of a majority are.

use std::sync::PoisonError;

use super::Quorum;
use crate::words::token::next_number;

impl Quorum {
    /// A number above all that are known here, and not below the middle one of the members' clocks
    /// (R7). What is proposed and refused is not known: askers must not drive the numbers ahead of
    /// the clocks. The second is that clock alone.
    pub(super) fn propose(&self) -> (u64, u64) {
        if self.options.plain.is_some() {
            return (0, 0);
        }
        let now = self.steady.now();
        let clocks = self.members.iter().filter_map(|member| member.reached_us(now));
        let clock = middle(clocks.collect());
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (next_number(known, clock).unwrap_or(known), next_number(0, clock).unwrap_or(0))
    }

    /// Nothing up to this number is proposed any more.
    pub(super) fn knows(&self, number: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = number.max(*known);
    }
}

/// The clock that numbers are proposed by: the middle one of all, the slower of two. One that is
/// wrong moves no proposal, forward or back, while most of these are right. Those of members that
/// are away count: without them it might go back, and whoever comes then would pass all that wait.
/// Floors are of the fastest: they are to be above what anybody proposed by any of them.
pub(super) fn middle(mut clocks: Vec<u64>) -> u64 {
    clocks.sort_unstable();
    let middle = clocks.len().saturating_sub(1) / 2;
    clocks.get(middle).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b4_a_clock_that_is_wrong_is_not_the_one_that_numbers_are_proposed_by() {
        assert_eq!(middle(vec![7, 900, 5]), 7);
        assert_eq!(middle(vec![7, 1, 5]), 5);
        assert_eq!(middle(vec![7, 900]), 7, "of two the slower one: a member knows better");
        assert_eq!(middle(vec![900, 1, 7, 6, 5]), 6);
        assert_eq!((middle(vec![7]), middle(Vec::new())), (7, 0));
    }
}
