//! What a schedule of faults is drawn from: the same numbers for the same seed on every machine.

use std::time::Duration;

use lockkeeper_testkit::dice::Dice;

/// See the module.
#[derive(Clone, Debug)]
pub struct Random(Dice);

impl Random {
    /// A generator for one purpose of a seed.
    pub fn new(seed: u64, purpose: u64) -> Self {
        Self(Dice::new(seed ^ purpose.wrapping_mul(0xbf58_476d_1ce4_e5b9)))
    }

    /// The next number below `below`; 0 for 0.
    pub fn below(&mut self, below: u64) -> u64 {
        if below == 0 { 0 } else { (self.0.roll() >> 11) % below }
    }

    /// A duration between two.
    pub fn between(&mut self, from: Duration, to: Duration) -> Duration {
        let span = u64::try_from(to.saturating_sub(from).as_micros()).unwrap_or(u64::MAX);
        from + Duration::from_micros(self.below(span.max(1)))
    }
}
