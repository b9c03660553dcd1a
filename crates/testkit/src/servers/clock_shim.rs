//! A clock that a test moves: a preloaded library, compiled with cc when it is wanted, that lies to
//! one process about the time.
//!
//! The process is started with [`ClockShim::environment`]; [`ClockShim::step`] and
//! [`ClockShim::run_at`] change its clocks while it runs. Everybody started with the same shim sees
//! the same lies. Programs that are linked statically see the true time.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

const SOURCE: &str = include_str!("clock_shim.c");
/// In nanoseconds, one second.
const SECOND: i128 = 1_000_000_000;

/// Which clocks are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clocks {
    /// The time of day: CLOCK_REALTIME, gettimeofday, time. Redis' leases live by it.
    Wall,
    /// Those that never step: CLOCK_MONOTONIC, CLOCK_MONOTONIC_RAW, CLOCK_BOOTTIME. ZooKeeper's
    /// sessions live by them.
    Steady,
}

impl Clocks {
    /// What their rate is counted by.
    fn now_ns(self) -> std::io::Result<i64> {
        let clock = match self {
            Self::Wall => ClockId::CLOCK_REALTIME,
            Self::Steady => ClockId::CLOCK_MONOTONIC_RAW,
        };
        let now = Duration::from(clock_gettime(clock).map_err(std::io::Error::from)?);
        Ok(i64::try_from(now.as_nanos()).unwrap_or(i64::MAX))
    }
}

/// A lie about the clocks of the processes that are started with it; true until it is told
/// otherwise.
pub struct ClockShim {
    dir: TempDir,
    control: File,
    told: Mutex<Told>,
}

#[derive(Clone, Copy, Default)]
struct Told {
    turn: i64,
    wall: Lie,
    steady: Lie,
}

#[derive(Clone, Copy, Default)]
struct Lie {
    offset_ns: i64,
    since_ns: i64,
    rate_ppb: i64,
}

impl ClockShim {
    /// Compiles one.
    ///
    /// # Errors
    ///
    /// There is no C compiler, or it refuses.
    pub fn new() -> std::io::Result<Self> {
        let dir = tempfile::Builder::new().prefix("lockkeeper-clock-").tempdir()?;
        let source = dir.path().join("clock_shim.c");
        std::fs::write(&source, SOURCE)?;
        let library = dir.path().join("clock_shim.so");
        let made = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-o"])
            .arg(&library)
            .arg(&source)
            .arg("-ldl")
            .output()?;
        if !made.status.success() {
            return Err(std::io::Error::other(format!(
                "cc refuses: {}",
                String::from_utf8_lossy(&made.stderr)
            )));
        }
        let control = File::create(dir.path().join("control"))?;
        let shim = Self { dir, control, told: Mutex::default() };
        shim.change(|_| {})?;
        Ok(shim)
    }

    /// The variables with which a process has to be started.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.dir.path().join("clock_shim.so")),
            ("LOCKKEEPER_CLOCK_SHIM", self.dir.path().join("control")),
        ]
    }

    /// Moves clocks forward.
    ///
    /// # Errors
    ///
    /// The control file cannot be written.
    pub fn step(&self, clocks: Clocks, by: Duration) -> std::io::Result<()> {
        self.shift(clocks, i64::try_from(by.as_nanos()).unwrap_or(i64::MAX))
    }

    /// Moves clocks back.
    ///
    /// # Errors
    ///
    /// The control file cannot be written.
    pub fn step_back(&self, clocks: Clocks, by: Duration) -> std::io::Result<()> {
        self.shift(clocks, -i64::try_from(by.as_nanos()).unwrap_or(i64::MAX))
    }

    /// Lets clocks run wrong from now on: 100 000 gains a tenth, −100 000 loses one, 0 runs right
    /// again from where they are.
    ///
    /// # Errors
    ///
    /// The control file cannot be written.
    pub fn run_at(&self, clocks: Clocks, parts_per_million: i32) -> std::io::Result<()> {
        let now_ns = clocks.now_ns()?;
        self.change(|told| {
            let lie = told.of(clocks);
            lie.settle(now_ns);
            lie.rate_ppb = i64::from(parts_per_million) * 1000;
        })
    }

    /// Tells the truth again, at once: clocks that were ahead step back.
    ///
    /// # Errors
    ///
    /// The control file cannot be written.
    pub fn mend(&self) -> std::io::Result<()> {
        self.change(|told| (told.wall, told.steady) = (Lie::default(), Lie::default()))
    }

    fn shift(&self, clocks: Clocks, by_ns: i64) -> std::io::Result<()> {
        let now_ns = clocks.now_ns()?;
        self.change(|told| {
            let lie = told.of(clocks);
            lie.settle(now_ns);
            lie.offset_ns = lie.offset_ns.saturating_add(by_ns);
        })
    }

    fn change(&self, change: impl FnOnce(&mut Told)) -> std::io::Result<()> {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut told);
        // Odd while it is being written, as the C side expects.
        told.turn += 1;
        self.control.write_all_at(&told.turn.to_ne_bytes(), 0)?;
        let lies = [told.wall, told.steady].map(|lie| [lie.offset_ns, lie.since_ns, lie.rate_ppb]);
        let bytes: Vec<u8> =
            lies.iter().flatten().flat_map(|number| number.to_ne_bytes()).collect();
        self.control.write_all_at(&bytes, 8)?;
        told.turn += 1;
        self.control.write_all_at(&told.turn.to_ne_bytes(), 0)
    }
}

impl Told {
    fn of(&mut self, clocks: Clocks) -> &mut Lie {
        match clocks {
            Clocks::Wall => &mut self.wall,
            Clocks::Steady => &mut self.steady,
        }
    }
}

impl Lie {
    /// What the rate has added so far becomes part of the offset.
    fn settle(&mut self, now_ns: i64) {
        let gained =
            i128::from(now_ns.saturating_sub(self.since_ns)) * i128::from(self.rate_ppb) / SECOND;
        self.offset_ns = self.offset_ns.saturating_add(i64::try_from(gained).unwrap_or(0));
        self.since_ns = now_ns;
    }
}

#[cfg(test)]
mod tests;
