//! The clock of a server of the run's own: moved by a preloaded library, and looked at, so that
//! only a clock that really went wrong counts as a fault.

use std::time::Duration;

use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use super::Failed;
use crate::history::Writer;

/// How wrong a clock runs, in parts per million: within the drift allowance.
const RATE: i32 = 80_000;

/// How often a clock is looked at for one reading, unless it is as sharp as this before.
const LOOKS: u32 = 5;
const SHARP_NS: i64 = 2_000_000;

/// Who says what a server's clock shows.
pub(crate) trait Tells {
    /// In nanoseconds, from wherever that clock counts.
    fn time(&mut self) -> Result<i64, String>;
}

/// By how many nanoseconds a server's clock is ahead of our steady one: the truth lies between the
/// two.
#[derive(Clone, Copy, Debug)]
struct Ahead {
    least: i64,
    most: i64,
    at: u64,
}

impl Ahead {
    /// The sharpest of a few looks: one that a busy machine made long says little about a clock
    /// that gains a twelfth.
    fn sharply(server: &mut impl Tells) -> Result<Self, String> {
        let mut best = Self::of(server)?;
        for _ in 1..LOOKS {
            if best.most.saturating_sub(best.least) < SHARP_NS {
                break;
            }
            let next = Self::of(server)?;
            if next.most.saturating_sub(next.least) < best.most.saturating_sub(best.least) {
                best = next;
            }
        }
        Ok(best)
    }

    fn of(server: &mut impl Tells) -> Result<Self, String> {
        let before = Writer::now();
        let told = server.time()?;
        let after = Writer::now();
        let ahead = |at: u64| told.saturating_sub(i64::try_from(at).unwrap_or(i64::MAX));
        Ok(Self { least: ahead(after), most: ahead(before), at: after })
    }

    /// What the clock gained between two readings: at least, and at most.
    fn gained(self, later: Self) -> (i64, i64) {
        (later.least.saturating_sub(self.most), later.most.saturating_sub(self.least))
    }
}

/// See the module.
pub(crate) struct ServerClock {
    shim: ClockShim,
    /// Those that gain or lose, when some do.
    rates: Clocks,
    /// By how much it was moved, and whether forward.
    stepped: Option<(Duration, bool)>,
    /// Where it stood when it began to run wrong, and by how much it should gain.
    wrong_since: Option<(Ahead, i32)>,
}

impl ServerClock {
    pub(crate) fn new(shim: ClockShim) -> Self {
        Self { shim, rates: Clocks::Wall, stepped: None, wrong_since: None }
    }

    /// Of a server whose leases live by a steady clock: that gains or loses, and the time of day
    /// steps.
    pub(crate) fn with_steady_rates(self) -> Self {
        Self { rates: Clocks::Steady, ..self }
    }

    /// Steps forward or back, and looks whether it did. One that did not is where it was.
    pub(crate) fn step(
        &mut self,
        server: &mut impl Tells,
        by: Duration,
        forward: bool,
    ) -> Result<(), Failed> {
        let before = Ahead::of(server)?;
        self.shift(by, forward)?;
        self.stepped = Some((by, forward));
        // The server has stepped, or not, and does not say so.
        let after = Ahead::of(server).map_err(Failed::Half)?;
        let half = i64::try_from(by.as_nanos() / 2).unwrap_or(i64::MAX);
        let (least, most) = before.gained(after);
        if if forward { least > half } else { most < -half } {
            return Ok(());
        }
        let why = "the server's clock did not step".to_owned();
        match self.step_back() {
            Ok(()) => Err(Failed::Undone(why)),
            Err(also) => Err(Failed::Half(format!("{why}, and {also}"))),
        }
    }

    /// By how many nanoseconds a server is ahead of us, at most.
    #[cfg(test)]
    pub(crate) fn ahead(server: &mut impl Tells) -> Result<i64, String> {
        Ahead::of(server).map(|ahead| ahead.most)
    }

    /// Back to where it would be, if it was moved.
    pub(crate) fn step_back(&mut self) -> Result<(), String> {
        if let Some((by, was_forward)) = self.stepped {
            self.shift(by, !was_forward)?;
            self.stepped = None;
        }
        Ok(())
    }

    /// Gains or loses from now on.
    pub(crate) fn run_wrong(&mut self, server: &mut impl Tells, fast: bool) -> Result<(), Failed> {
        let rate = if fast { RATE } else { -RATE };
        self.wrong_since = Some((Ahead::sharply(server)?, rate));
        self.shim.run_at(self.rates, rate).map_err(|e| Failed::Half(e.to_string()))
    }

    /// Right again from where it is: a step would be another fault. Whether it was seen to have run
    /// wrong.
    pub(crate) fn run_right(&mut self, server: &mut impl Tells) -> Result<bool, String> {
        let now = Ahead::sharply(server);
        self.shim.run_at(self.rates, 0).map_err(|e| e.to_string())?;
        let (Some((before, rate)), Ok(now)) = (self.wrong_since.take(), now) else {
            return Ok(false);
        };
        let passed = i64::try_from(now.at.saturating_sub(before.at)).unwrap_or(i64::MAX);
        let half = passed / 2_000_000 * i64::from(rate);
        let (least, most) = before.gained(now);
        Ok(if rate > 0 { most >= half } else { least <= half })
    }

    fn shift(&self, by: Duration, forward: bool) -> Result<(), String> {
        let shift = if forward { ClockShim::step } else { ClockShim::step_back };
        shift(&self.shim, Clocks::Wall, by).map_err(|e| e.to_string())
    }
}
