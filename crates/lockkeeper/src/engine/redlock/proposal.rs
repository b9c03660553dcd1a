//! Which number a client proposes for a claim (R7): above all that it knows, and by a clock that is
//! right as long as those of a majority are.

use std::sync::PoisonError;
use std::time::Duration;

use super::Quorum;
use super::recipe::Members;
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
        let clock = self.clock();
        let known = *self.known.lock().unwrap_or_else(PoisonError::into_inner);
        (next_number(known, clock).unwrap_or(known), next_number(0, clock).unwrap_or(0))
    }

    /// The middle one of the clocks of the members that answer, slewed.
    pub(super) fn clock(&self) -> u64 {
        let mut slewed = self.slewed.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.steady.now();
        let clock = |member: &Member| member.reached_us(now);
        let clocks: Vec<Option<u64>> = self.members.iter().map(clock).collect();
        let answers = |member: &Member| member.link.is_up() && member.refuses_at_once().is_none();
        let mut up = Members::default();
        for (at, (member, clock)) in self.members.iter().zip(&clocks).enumerate() {
            if clock.is_some() && answers(member) {
                up.insert(at);
            }
        }
        slewed.follow(now, up, &clocks, self.options.clock_skew)
    }

    /// Nothing up to this number is proposed any more.
    pub(super) fn knows(&self, number: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        *known = number.max(*known);
    }
}

/// Where the clock that numbers are proposed by goes on from. It does not go back where others
/// answer than before, or whoever asks then would pass all that wait: what it is ahead by is made
/// up for, half as fast as time goes on. With the clocks of the same ones it does go back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slewed {
    /// Whose middle one it was last.
    of: Members,
    /// When it came to be of these, on the steady clock, and how far it was ahead of them.
    since: Ticks,
    ahead_us: u64,
}

impl Slewed {
    /// What it is now that these answer. `clocks` is what is known of those of all members: each is
    /// that far at least, and may be much further, so this is not above the greatest. Where too few
    /// answer it goes on as it did. One further ahead than clocks may be apart was wrong: it is
    /// forgotten.
    fn follow(
        &mut self,
        now: Ticks,
        up: Members,
        clocks: &[Option<u64>],
        clock_skew: Duration,
    ) -> u64 {
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let of = |those: Members| {
            let those = clocks.iter().enumerate().filter(|(at, _)| those.has(*at));
            middle(those.filter_map(|(_, clock)| *clock).collect())
        };
        let ahead_us = self.ahead_us.saturating_sub(us(now.since(self.since) / 2));
        let fastest = clocks.iter().flatten().max().copied().unwrap_or_default();
        let before = of(self.of).saturating_add(ahead_us).min(fastest);
        let too_few = up.len() <= clocks.len() / 2;
        if up == self.of || too_few {
            return if self.of.len() > 0 { before } else { of(up) };
        }
        let ahead_us = before.saturating_sub(of(up));
        let ahead_us = if ahead_us > us(clock_skew) { 0 } else { ahead_us };
        *self = Self { of: up, since: now, ahead_us };
        of(up).saturating_add(ahead_us)
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

    const SECOND: u64 = 1_000_000;

    /// Members whose clocks are so many seconds before or behind, and what is asked of them.
    struct Play {
        apart: [i64; 5],
        slewed: Slewed,
    }

    impl Play {
        /// What the clock says after so many seconds, without the seconds, where these answer.
        fn at(&mut self, seconds: u64, up: &[usize]) -> i64 {
            let now = Ticks(seconds * 1_000_000_000);
            let clocks = self.apart.map(|apart| (1_000 + seconds as i64 + apart) as u64 * SECOND);
            let mut those = Members::default();
            up.iter().for_each(|at| those.insert(*at));
            let skew = Duration::from_secs(10);
            let clock = self.slewed.follow(now, those, &clocks.map(Some), skew);
            (clock / SECOND) as i64 - 1_000 - seconds as i64
        }

        /// The same, and this is known of the clocks from now on.
        fn with(&mut self, apart: [i64; 5], seconds: u64, up: &[usize]) -> i64 {
            self.apart = apart;
            self.at(seconds, up)
        }
    }

    fn apart(apart: [i64; 5]) -> Play {
        Play { apart, slewed: Slewed::default() }
    }

    #[test]
    fn r11_the_clock_of_proposals_does_not_go_back_where_others_answer_than_before() {
        let mut play = apart([0, 0, 6, 6, 6]);
        assert_eq!(play.at(0, &[0, 1, 2, 3, 4]), 6);
        // However long ago it was asked for last, and though two go at once.
        assert_eq!(play.at(100, &[0, 1, 2]), 6);
        assert_eq!([104, 108, 112, 120].map(|at| play.at(at, &[0, 1, 2])), [4, 2, 0, 0]);
        assert_eq!(play.at(121, &[0, 1, 2, 3, 4]), 6, "forward at once");
        // One that goes while it is made up for, and slow ones that come.
        let mut play = apart([0, 2, 4, 6, 6]);
        assert_eq!([play.at(0, &[2, 3, 4]), play.at(10, &[1, 2, 3, 4])], [6, 6]);
        assert_eq!([play.at(12, &[0, 1, 2, 3]), play.at(14, &[0, 1, 2, 3])], [5, 4]);
        // As it did where too few answer, and where nobody does.
        let mut play = apart([0, 0, 6, 6, 6]);
        assert_eq!([play.at(0, &[0, 1, 2, 3, 4]), play.at(50, &[0, 1]), play.at(90, &[])], [6; 3]);
        assert_eq!(play.at(100, &[0, 1, 3]), 6);
    }

    #[test]
    fn r7_the_clock_of_proposals_is_not_ahead_of_the_fastest_whatever_was_known_of_it() {
        // One was not asked for long: its clock is known to be three seconds slower than it is.
        let mut play = apart([0, 0, 0, -3, -3]);
        assert_eq!([play.at(0, &[0, 1, 2, 3, 4]), play.at(1, &[0, 3, 4])], [0, 0]);
        assert_eq!(play.with([0; 5], 2, &[0, 3, 4]), 0);
    }

    #[test]
    fn b4_a_clock_that_was_wrong_is_not_followed_once_most_are_right() {
        let mut play = apart([0, 0, 0, 3_600, 3_600]);
        assert_eq!(play.at(0, &[2, 3, 4]), 3_600, "most of these are wrong");
        assert_eq!(play.at(1, &[1, 2, 3, 4]), 0);
        // One of too few.
        let mut play = apart([0, 0, 0, 0, 3_600]);
        assert_eq!([play.at(0, &[0, 1, 2, 3, 4]), play.at(1, &[4])], [0, 0]);
        let mut play = apart([0, 0, 0, 0, 5]);
        assert_eq!([play.at(0, &[4]), play.at(1, &[0, 1, 4])], [5, 0], "nothing is known before");
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
