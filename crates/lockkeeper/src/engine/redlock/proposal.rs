//! Which number a client proposes for a claim (R7): above all that it knows, and by a clock that is
//! right as long as those of a majority are.

use std::sync::PoisonError;
use std::time::Duration;

use super::Quorum;
use super::wire::Member;
use crate::words::clock::Ticks;
use crate::words::token::next_number;

impl Quorum {
    /// A number above all that are known here, and not below the middle one of the members' clocks
    /// (R7). What is proposed and refused is not known: askers must not drive the numbers ahead of
    /// the clocks. The second is that clock alone.
    pub(super) fn propose(&self) -> (u64, u64) {
        if self.options.plain.is_some() {
            return (0, 0);
        }
        let clock = self.clock(None);
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (next_number(known, clock).unwrap_or(known), next_number(0, clock).unwrap_or(0))
    }

    /// The middle one of the clocks of the members that answer, and of one that goes away now. It
    /// does not go back where others answer than before, or whoever asks then would pass all that
    /// wait: it goes half as fast until it is that one.
    pub(super) fn clock(&self, leaves: Option<usize>) -> u64 {
        let now = self.steady.now();
        let answer = |(at, member): &(usize, &Member)| member.link.is_up() || leaves == Some(*at);
        let answering = self.members.iter().enumerate().filter(answer);
        let clocks: Vec<u64> = answering.filter_map(|(_, member)| member.reached_us(now)).collect();
        let counts = clocks.len() >= self.options.majority();
        let mut slewed = self.slewed.lock().unwrap_or_else(PoisonError::into_inner);
        let clock = slewed.at(now, middle(clocks), self.options.clock_skew);
        if counts {
            *slewed = Slewed { then: now, clock };
        }
        clock
    }

    /// Nothing up to this number is proposed any more.
    pub(super) fn knows(&self, number: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = number.max(*known);
    }
}

/// What the clock that numbers are proposed by was, and when, on the steady clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slewed {
    then: Ticks,
    clock: u64,
}

impl Slewed {
    /// What it is now that the middle one is this, or 0 where no member answers. One further ahead
    /// than clocks may be apart was wrong: it is forgotten.
    fn at(self, now: Ticks, middle: u64, clock_skew: Duration) -> u64 {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let slewed = self.clock.saturating_add(us(now.since(self.then) / 2));
        let is_near = middle == 0 || slewed <= middle.saturating_add(us(clock_skew));
        if is_near { slewed.max(middle) } else { middle }
    }
}

/// The clock that numbers are proposed by: the middle one of those that answer, the slower of two.
/// One that is wrong moves no proposal, forward or back, while most of these are right. Floors are
/// of the fastest: they are to be above what anybody proposed by any of them.
pub(super) fn middle(mut clocks: Vec<u64>) -> u64 {
    clocks.sort_unstable();
    let middle = clocks.len().saturating_sub(1) / 2;
    clocks.get(middle).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r11_the_clock_of_proposals_goes_half_as_fast_where_a_slower_one_is_the_middle_one() {
        const SECOND: u64 = 1_000_000;
        let at = |seconds: u64| Ticks(seconds * 1_000_000_000);
        let skew = Duration::from_secs(10);
        let slewed = Slewed { then: at(100), clock: 5_000 * SECOND };
        let clock = |seconds, middle: u64| slewed.at(at(seconds), middle * SECOND, skew) / SECOND;
        assert_eq!(clock(102, 5_002), 5_002, "the same members answer");
        assert_eq!(clock(102, 5_009), 5_009, "a faster clock is the middle one at once");
        assert_eq!([0, 2, 4, 8].map(|s| clock(100 + s, 4_997 + s)), [5_000, 5_001, 5_002, 5_005]);
        assert_eq!(clock(102, 0), 5_001, "no member answers");
        assert_eq!(clock(100, 4_990), 5_000);
        assert_eq!(clock(100, 4_989), 4_989, "it was wrong");
        assert_eq!(clock(90, 4_999), 5_000, "an instant of before");
    }

    #[test]
    fn b4_a_clock_that_is_wrong_is_not_the_one_that_numbers_are_proposed_by() {
        assert_eq!(middle(vec![7, 900, 5]), 7);
        assert_eq!(middle(vec![7, 1, 5]), 5);
        assert_eq!(middle(vec![7, 900]), 7, "of two the slower one: a member knows better");
        assert_eq!(middle(vec![900, 1, 7, 6, 5]), 6);
        assert_eq!((middle(vec![7]), middle(Vec::new())), (7, 0));
    }
}
