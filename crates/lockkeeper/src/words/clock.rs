//! Time as the leases count it (R1): it runs on in suspend, it never goes back, and it jumps with
//! the fastest clock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

/// A reading of lease time, in nanoseconds since an arbitrary start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticks(pub u64);

impl Ticks {
    /// This reading moved forward; stays at the end of time instead of wrapping.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(nanos(by)))
    }

    /// This reading moved back; stays at the start instead of wrapping.
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(by)))
    }

    /// How much later this reading is than `earlier`; zero when it is not.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock that every deadline of one [`Locks`](crate::Locks) is counted on.
///
/// Between two readings it advances by the largest of what `CLOCK_BOOTTIME`, `CLOCK_MONOTONIC_RAW`
/// and a forward step of `CLOCK_REALTIME` say, so that a hold is over as soon as any of them says
/// so (R1). A step back moves nothing.
#[derive(Clone)]
pub struct Clock(Source);

impl std::fmt::Debug for Clock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Clock({}, {:?})", if self.is_virtual() { "virtual" } else { "real" }, self.now())
    }
}

#[derive(Clone)]
enum Source {
    Real(Arc<Real>),
    #[cfg(feature = "redlock")]
    Steady(Steady),
    Virtual(Arc<Virtual>),
}

/// Readings of a start, from which the slower of two clocks counts.
#[cfg(feature = "redlock")]
#[derive(Clone, Copy)]
struct Steady {
    boot: u64,
    raw: u64,
}

#[cfg(feature = "redlock")]
impl Steady {
    fn at(self, boot: u64, raw: u64) -> Ticks {
        let slower = boot.saturating_sub(self.boot).min(raw.saturating_sub(self.raw));
        Ticks(self.boot.saturating_add(slower))
    }
}

#[derive(Default)]
struct Virtual {
    at: AtomicU64,
    /// Who sleeps on this clock and must hear that it moved.
    sleepers: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

struct Real {
    last: Mutex<Last>,
    /// By how much the ticks are ahead of `CLOCK_BOOTTIME` since the last full reading. It only
    /// grows.
    ahead: AtomicU64,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    boot: u64,
    raw: u64,
    real: u64,
    ticks: u64,
}

impl Last {
    /// Advances by the largest of the three differences.
    fn advance(&mut self, boot: u64, raw: u64, real: u64) -> Ticks {
        let by = [(boot, self.boot), (raw, self.raw), (real, self.real)]
            .map(|(now, then)| now.saturating_sub(then));
        self.ticks = self.ticks.saturating_add(by.into_iter().max().unwrap_or(0));
        (self.boot, self.raw, self.real) = (boot.max(self.boot), raw.max(self.raw), real);
        Ticks(self.ticks)
    }
}

impl Clock {
    /// The machine's clocks.
    pub fn real() -> Self {
        let (boot, raw, real) = read_clocks();
        let last = Mutex::new(Last { boot, raw, real, ticks: boot });
        Self(Source::Real(Arc::new(Real { last, ahead: AtomicU64::new(0) })))
    }

    /// A clock that stands still until [`Clock::advance`] moves it; for tests and simulation.
    pub fn virtual_at(start: Duration) -> Self {
        Self(Source::Virtual(Arc::new(Virtual {
            at: AtomicU64::new(nanos(start)),
            ..Virtual::default()
        })))
    }

    /// The time now.
    pub fn now(&self) -> Ticks {
        match &self.0 {
            Source::Real(clock) => {
                let mut last = clock.last.lock().unwrap_or_else(PoisonError::into_inner);
                let (boot, raw, real) = read_clocks();
                let now = last.advance(boot, raw, real);
                clock.ahead.store(last.ticks.saturating_sub(last.boot), Ordering::Relaxed);
                now
            }
            #[cfg(feature = "redlock")]
            Source::Steady(since) => {
                since.at(read(ClockId::CLOCK_BOOTTIME), read(ClockId::CLOCK_MONOTONIC_RAW))
            }
            Source::Virtual(clock) => Ticks(clock.at.load(Ordering::SeqCst)),
        }
    }

    /// The clock that waits, proposed numbers and `not_after` are counted on (R1): the slower of
    /// `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC_RAW`, whatever the time of day does. Where a deadline
    /// must not be late, these must not be early. Its readings say nothing about those of
    /// [`Clock::now`].
    #[cfg(feature = "redlock")]
    pub(crate) fn steady(&self) -> Self {
        match &self.0 {
            Source::Real(_) => {
                let (boot, raw, _) = read_clocks();
                Self(Source::Steady(Steady { boot, raw }))
            }
            Source::Steady(_) | Source::Virtual(_) => self.clone(),
        }
    }

    /// Sets the time of day forward, as far as this clock sees it.
    #[cfg(all(test, feature = "redlock"))]
    pub(crate) fn step_time_of_day(&self, by: Duration) {
        if let Source::Real(clock) = &self.0 {
            let mut last = clock.last.lock().unwrap_or_else(PoisonError::into_inner);
            last.ticks = last.ticks.saturating_add(nanos(by));
        }
    }

    /// The time now by `CLOCK_BOOTTIME` alone, on top of what full readings have heard from the
    /// other clocks: one clock instead of three and no lock. It is never later than [`Clock::now`]
    /// and never goes back; for everything that does not decide whether a lease is over.
    pub(crate) fn now_without_leases(&self) -> Ticks {
        match &self.0 {
            // What is ahead is read first: it only grows, so a reading that misses the newest value
            // is just earlier.
            Source::Real(clock) => {
                let ahead = clock.ahead.load(Ordering::Relaxed);
                Ticks(read(ClockId::CLOCK_BOOTTIME).saturating_add(ahead))
            }
            _ => self.now(),
        }
    }

    /// Moves a virtual clock forward; does nothing to a real one.
    pub fn advance(&self, by: Duration) {
        if let Source::Virtual(clock) = &self.0 {
            clock.at.fetch_add(nanos(by), Ordering::SeqCst);
            for wake in clock.sleepers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
                wake();
            }
        }
    }

    /// Calls `wake` whenever a virtual clock was moved; a real one needs nobody to tell.
    pub(crate) fn on_advance(&self, wake: impl Fn() + Send + 'static) {
        if let Source::Virtual(clock) = &self.0 {
            clock.sleepers.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(wake));
        }
    }

    /// True for a clock that only [`Clock::advance`] moves.
    pub fn is_virtual(&self) -> bool {
        matches!(self.0, Source::Virtual(_))
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::real()
    }
}

fn read(id: ClockId) -> u64 {
    clock_gettime(id).map_or(0, |t| {
        u64::try_from(t.tv_sec())
            .unwrap_or(0)
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(t.tv_nsec()).unwrap_or(0))
    })
}

fn read_clocks() -> (u64, u64, u64) {
    (
        read(ClockId::CLOCK_BOOTTIME),
        read(ClockId::CLOCK_MONOTONIC_RAW),
        read(ClockId::CLOCK_REALTIME),
    )
}

/// Wall-clock microseconds since 1970, for numbers (R7) and records; never for deadlines.
pub fn unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r1_the_fastest_clock_wins_and_a_step_back_moves_nothing() {
        let mut last = Last { boot: 100, raw: 100, real: 1_000, ticks: 0 };
        assert_eq!(last.advance(110, 105, 1_010), Ticks(10), "boot and real agree");
        assert_eq!(last.advance(111, 125, 1_011), Ticks(30), "raw ran ahead");
        assert_eq!(
            last.advance(112, 126, 5_011),
            Ticks(4_030),
            "a forward step of the wall clock ends leases"
        );
        assert_eq!(last.advance(113, 127, 11), Ticks(4_031), "a step back does not");
        assert_eq!(last.advance(120, 130, 18), Ticks(4_038), "and time goes on from there");
    }

    #[cfg(feature = "redlock")]
    #[test]
    fn r1_waits_count_on_the_slower_clock_and_never_on_the_time_of_day() {
        let since = Steady { boot: 100, raw: 7 };
        assert_eq!(since.at(110, 12), Ticks(105), "raw is slower");
        assert_eq!(since.at(112, 90), Ticks(112), "boot is");
        assert_eq!(since.at(90, 5), Ticks(100), "never before the start");
        let clock = Clock::real();
        let steady = clock.steady();
        let (before, hour) = (clock.now(), Duration::from_secs(3_600));
        clock.step_time_of_day(hour);
        assert!(clock.now().since(before) >= hour, "a deadline is over");
        assert!(steady.now() <= clock.steady().now(), "it stands where one stands that begins now");
    }

    #[test]
    fn the_real_clock_never_goes_back() {
        let clock = Clock::real();
        let mut before = clock.now();
        for _ in 0..1_000 {
            for now in [clock.now_without_leases(), clock.now()] {
                assert!(now >= before);
                before = now;
            }
        }
    }
}
