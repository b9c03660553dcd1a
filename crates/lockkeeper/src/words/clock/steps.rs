//! Forward steps of the time of day, and when each was noticed.

use std::collections::VecDeque;
use std::time::Duration;

use super::Ticks;

/// So many are told apart; the older ones count as noticed with the oldest of them.
const STEPS_MAX: usize = 16;

/// How far the time of day was set forward, and when that was noticed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Steps {
    /// The first reading that showed a step, and how far all steps went by then.
    noticed: VecDeque<(Ticks, Duration)>,
}

impl Steps {
    /// One more was noticed; no reading of before is as late as this one.
    pub fn note(&mut self, at: Ticks, by: Duration) {
        let total = self.noticed.back().map_or(Duration::ZERO, |(_, total)| *total);
        if self.noticed.len() >= STEPS_MAX {
            self.noticed.pop_front();
        }
        self.noticed.push_back((at, total.saturating_add(by)));
    }

    /// When the last one was noticed.
    pub fn last(&self) -> Ticks {
        self.noticed.back().map_or(Ticks(0), |(at, _)| *at)
    }

    /// How far all of them went, in nanoseconds.
    pub fn total(&self) -> u64 {
        self.noticed.back().map_or(0, |(_, total)| nanos(*total))
    }

    /// How far those went that were noticed by this reading, in nanoseconds.
    pub fn total_at(&self, at: Ticks) -> u64 {
        let by_then = self.noticed.iter().rev().find(|(noticed, _)| *noticed <= at);
        by_then.map_or(0, |(_, total)| nanos(*total))
    }

    /// How far those went that were noticed after this reading.
    pub fn since(&self, at: Ticks) -> Duration {
        Duration::from_nanos(self.total() - self.total_at(at))
    }
}

fn nanos(by: Duration) -> u64 {
    u64::try_from(by.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n2_what_was_noticed_after_a_reading_is_told_and_of_old_ones_never_too_little() {
        let (mut steps, second) = (Steps::default(), Duration::from_secs(1));
        assert_eq!((steps.last(), steps.total()), (Ticks(0), 0));
        for n in 1..=40 {
            steps.note(Ticks(n * 10), second);
        }
        assert_eq!(steps.since(Ticks(400)), Duration::ZERO);
        assert_eq!(steps.since(Ticks(399)), second);
        assert_eq!(steps.since(Ticks(250)), second * 15);
        assert_eq!(steps.since(Ticks(100)), second * 40, "older than what is told apart");
        assert_eq!(steps.noticed.len(), STEPS_MAX);
    }
}
