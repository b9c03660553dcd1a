//! Time as the leases count it: it runs on in suspend, it never goes back, and it jumps with
//! the faster of the clocks that nobody sets. What somebody sets is the time of day: a forward step
//! of it is noticed and puts holds in doubt.

mod steps;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::time::{ClockId, clock_gettime};

pub use self::steps::Steps;

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
/// It follows `CLOCK_BOOTTIME`, and jumps ahead wherever `CLOCK_MONOTONIC_RAW` does, so that a hold
/// is over as soon as one of them says so. `CLOCK_REALTIME` moves nothing. A forward step of
/// it alone is noticed at the next reading: holds are in doubt then, until the engine has answered
/// a question of after that. A step back is nothing.
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
    steps: Mutex<Steps>,
    /// Who sleeps on this clock and must hear that it moved.
    sleepers: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

struct Real {
    last: Mutex<Last>,
    /// By how much the ticks are ahead of `CLOCK_BOOTTIME` since the last full reading. It only
    /// grows.
    ahead: AtomicU64,
    /// How far the time of day was set forward in all, in nanoseconds.
    stepped: AtomicU64,
}

/// What a full reading tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) now: Ticks,
    /// How far the time of day was set forward in all, in nanoseconds.
    pub(crate) stepped: u64,
}

/// Two clocks that are read one after the other are so far apart by that alone, at most; more has
/// to show twice in a row, because a thread may lose its processor in between.
const APART: i128 = 1_000_000;

/// Three clocks, read in this order.
#[derive(Clone, Copy, Debug)]
struct Clocks {
    boot: u64,
    raw: u64,
    real: u64,
}

impl Clocks {
    fn read() -> Self {
        Self {
            boot: read(ClockId::CLOCK_BOOTTIME),
            raw: read(ClockId::CLOCK_MONOTONIC_RAW),
            real: read(ClockId::CLOCK_REALTIME),
        }
    }

    /// How far the two others are ahead of the first.
    fn ahead(self) -> [i128; 2] {
        [self.raw, self.real].map(|clock| i128::from(clock) - i128::from(self.boot))
    }
}

/// What the readings so far came to.
#[derive(Clone, Debug)]
struct Last {
    boot: u64,
    /// How far the other clocks were ahead of that one when it counted last.
    ahead: [i128; 2],
    /// How far the ticks are ahead of it.
    lifted: u64,
    steps: Steps,
}

impl Last {
    fn of(clocks: Clocks) -> Self {
        Self { boot: clocks.boot, ahead: clocks.ahead(), lifted: 0, steps: Steps::default() }
    }

    /// One more reading.
    fn advance(&mut self, read: impl Fn() -> Clocks) -> Reading {
        let mut clocks = self.forward(read());
        let mut gained = self.gained(clocks);
        if gained.iter().any(|by| by.abs() > APART) {
            clocks = self.forward(read());
            let again = self.gained(clocks);
            for (by, again) in gained.iter_mut().zip(again) {
                // What shows twice counts, and the lesser of the two.
                *by = again.clamp((*by).min(0), (*by).max(0));
            }
        }
        let counts = |by: i128| u64::try_from(by).ok().filter(|_| by > APART);
        for (ahead, by) in self.ahead.iter_mut().zip(gained) {
            *ahead += if by.abs() > APART { by } else { 0 };
        }
        let [raw, real] = gained.map(counts);
        self.lifted = self.lifted.saturating_add(raw.unwrap_or(0));
        if let Some(by) = real {
            // No reading of before is as late as this one.
            self.lifted = self.lifted.saturating_add(1);
            let now = Ticks(clocks.boot.saturating_add(self.lifted));
            self.steps.note(now, Duration::from_nanos(by));
        }
        self.boot = clocks.boot;
        let now = Ticks(clocks.boot.saturating_add(self.lifted));
        Reading { now, stepped: self.steps.total() }
    }

    /// A machine that was restored after a restart of its own counts from less: time goes on from
    /// where it was.
    fn forward(&mut self, clocks: Clocks) -> Clocks {
        let back = self.boot.saturating_sub(clocks.boot);
        if back > 0 {
            self.lifted = self.lifted.saturating_add(back);
            (self.boot, self.ahead[0]) = (clocks.boot, clocks.ahead()[0]);
        }
        clocks
    }

    fn gained(&self, clocks: Clocks) -> [i128; 2] {
        let [raw, real] = clocks.ahead();
        [raw - self.ahead[0], real - self.ahead[1]]
    }
}

impl Clock {
    /// The machine's clocks.
    pub fn real() -> Self {
        Self(Source::Real(Arc::new(Real {
            last: Mutex::new(Last::of(Clocks::read())),
            ahead: AtomicU64::new(0),
            stepped: AtomicU64::new(0),
        })))
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
        self.read().now
    }

    /// The time now, and what the time of day did.
    pub(crate) fn read(&self) -> Reading {
        match &self.0 {
            Source::Real(clock) => {
                let mut last = clock.last();
                let reading = last.advance(Clocks::read);
                clock.ahead.store(last.lifted, Ordering::Release);
                clock.stepped.store(reading.stepped, Ordering::Release);
                reading
            }
            #[cfg(feature = "redlock")]
            Source::Steady(since) => {
                let Clocks { boot, raw, .. } = Clocks::read();
                Reading { now: since.at(boot, raw), stepped: 0 }
            }
            Source::Virtual(clock) => {
                let steps = clock.steps();
                let now = Ticks(clock.at.load(Ordering::SeqCst));
                Reading { now, stepped: steps.total() }
            }
        }
    }

    /// How far the time of day was set forward in all, as far as readings have shown, in
    /// nanoseconds.
    pub(crate) fn stepped(&self) -> u64 {
        match &self.0 {
            Source::Real(clock) => clock.stepped.load(Ordering::Acquire),
            _ => self.read().stepped,
        }
    }

    /// The same by this reading.
    pub(crate) fn stepped_at(&self, at: Ticks) -> u64 {
        if self.stepped() == 0 { 0 } else { self.with_steps(|steps| steps.total_at(at)) }
    }

    /// How far the time of day was set forward after this reading.
    pub(crate) fn stepped_since(&self, at: Ticks) -> Duration {
        Duration::from_nanos(self.stepped().saturating_sub(self.stepped_at(at)))
    }

    /// When the time of day was set forward last: what was read before is of before.
    pub(crate) fn last_step(&self) -> Ticks {
        if self.stepped() == 0 { Ticks(0) } else { self.with_steps(Steps::last) }
    }

    /// The forward steps of the time of day.
    pub(crate) fn steps(&self) -> Steps {
        self.with_steps(Steps::clone)
    }

    fn with_steps<T>(&self, read: impl FnOnce(&Steps) -> T) -> T {
        match &self.0 {
            Source::Real(clock) => read(&clock.last().steps),
            #[cfg(feature = "redlock")]
            Source::Steady(_) => read(&Steps::default()),
            Source::Virtual(clock) => read(&clock.steps()),
        }
    }

    /// The clock that waits, proposed numbers and `not_after` are counted on: the slower of
    /// `CLOCK_BOOTTIME` and `CLOCK_MONOTONIC_RAW`, whatever the time of day does. Where a deadline
    /// must not be late, these must not be early. Its readings say nothing about those of
    /// [`Clock::now`].
    #[cfg(feature = "redlock")]
    pub(crate) fn steady(&self) -> Self {
        match &self.0 {
            Source::Real(_) => {
                let Clocks { boot, raw, .. } = Clocks::read();
                Self(Source::Steady(Steady { boot, raw }))
            }
            Source::Steady(_) | Source::Virtual(_) => self.clone(),
        }
    }

    /// Sets the time of day of a virtual clock forward; does nothing to a real one.
    pub fn step_time_of_day(&self, by: Duration) {
        if let Source::Virtual(clock) = &self.0 {
            // No reading of before is as late as this one.
            let mut steps = clock.steps();
            let at = clock.at.fetch_add(1, Ordering::SeqCst) + 1;
            steps.note(Ticks(at), by);
            drop(steps);
            clock.wake();
        }
    }

    /// Sets the time of day forward, and the faster of the other clocks with it, as far as this
    /// clock sees them.
    #[cfg(all(test, feature = "redlock"))]
    pub(crate) fn jump(&self, by: Duration) {
        if let Source::Real(clock) = &self.0 {
            clock.last().ahead.iter_mut().for_each(|ahead| *ahead -= i128::from(nanos(by)));
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
                let ahead = clock.ahead.load(Ordering::Acquire);
                Ticks(read(ClockId::CLOCK_BOOTTIME).saturating_add(ahead))
            }
            _ => self.now(),
        }
    }

    /// Moves a virtual clock forward; does nothing to a real one.
    pub fn advance(&self, by: Duration) {
        if let Source::Virtual(clock) = &self.0 {
            clock.at.fetch_add(nanos(by), Ordering::SeqCst);
            clock.wake();
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

impl Real {
    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Virtual {
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        for wake in self.sleepers.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            wake();
        }
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

/// Wall-clock microseconds since 1970, for numbers and records; never for deadlines.
pub fn unix_us() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const HOUR: u64 = 3_600_000 * MS;

    fn start() -> (Last, Clocks) {
        let clocks = Clocks { boot: 100 * MS, raw: 70 * MS, real: 9 * HOUR };
        (Last::of(clocks), clocks)
    }

    /// All three advance by so many milliseconds each.
    fn later(clocks: &mut Clocks, by: [u64; 3]) -> Clocks {
        let [boot, raw, real] = by.map(|ms| ms * MS);
        *clocks =
            Clocks { boot: clocks.boot + boot, raw: clocks.raw + raw, real: clocks.real + real };
        *clocks
    }

    #[test]
    fn r1_the_faster_of_the_clocks_that_nobody_sets_wins() {
        let (mut last, mut clocks) = start();
        let mut read = |by| {
            let clocks = later(&mut clocks, by);
            last.advance(|| clocks)
        };
        assert_eq!(read([10, 10, 10]), Reading { now: Ticks(110 * MS), stepped: 0 });
        assert_eq!(read([10, 25, 10]).now, Ticks(135 * MS), "raw ran ahead");
        assert_eq!(read([5_000, 0, 5_000]).now, Ticks(5_135 * MS), "a suspend");
        assert_eq!(read([10, 25, 10]).now, Ticks(5_160 * MS), "and raw again");
        assert_eq!(read([10, 10, 10]), Reading { now: Ticks(5_170 * MS), stepped: 0 });
    }

    #[test]
    fn n2_a_forward_step_of_the_time_of_day_moves_no_deadline_and_is_noticed_once() {
        let (mut last, mut clocks) = start();
        let mut read = |by| {
            let clocks = later(&mut clocks, by);
            last.advance(|| clocks)
        };
        let before = read([10, 10, 10]);
        let noticed = read([10, 10, 3_600_010]);
        assert_eq!(noticed, Reading { now: Ticks(120 * MS + 1), stepped: HOUR });
        assert!(before.now < noticed.now, "what was read before is of before");
        assert_eq!(read([10, 10, 10]), Reading { now: Ticks(130 * MS + 1), stepped: HOUR });
        let Clocks { boot, raw, real } = clocks;
        assert_eq!(last.steps.since(before.now), Duration::from_secs(3_600));
        assert_eq!(last.steps.since(noticed.now), Duration::ZERO);
        let back = Clocks { boot, raw, real: real - HOUR };
        assert_eq!(last.advance(|| back).stepped, HOUR, "a step back is nothing");
        let again = last.advance(|| clocks);
        assert_eq!(again, Reading { now: Ticks(130 * MS + 2), stepped: 2 * HOUR });
    }

    #[test]
    fn n2_a_thread_that_loses_its_processor_between_two_readings_notices_nothing() {
        let (mut last, clocks) = start();
        let late =
            |ms: u64| Clocks { raw: clocks.raw + ms * MS, real: clocks.real + ms * MS, ..clocks };
        let readings = std::cell::RefCell::new(vec![late(0), late(40)]);
        let read = || readings.borrow_mut().pop().unwrap_or(late(0));
        assert_eq!(last.advance(read), Reading { now: Ticks(100 * MS), stepped: 0 });
    }

    #[test]
    fn h2b_what_readings_differ_by_because_they_are_made_one_after_the_other_adds_up_to_nothing() {
        let (mut last, clocks) = start();
        for n in 0..1_000 {
            let jitter = n % 2 * (MS / 2);
            let clocks = Clocks { raw: clocks.raw + jitter, real: clocks.real + jitter, ..clocks };
            assert_eq!(last.advance(|| clocks), Reading { now: Ticks(100 * MS), stepped: 0 });
        }
    }

    #[test]
    fn r1_a_boot_time_that_went_back_stops_no_lease_and_is_seen_by_the_time_of_day() {
        let (mut last, clocks) = start();
        let restored = Clocks { boot: 10 * MS, raw: 10 * MS, real: clocks.real + 5_000 * MS };
        assert_eq!(last.advance(|| restored).now, Ticks(100 * MS + 1));
        assert!(last.steps.since(Ticks(100 * MS)) >= Duration::from_secs(5));
        let later = Clocks { boot: 30 * MS, raw: 30 * MS, real: restored.real + 20 * MS };
        assert_eq!(last.advance(|| later).now, Ticks(120 * MS + 1), "time goes on");
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
        clock.jump(hour * 2);
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
