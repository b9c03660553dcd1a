//! For tests of services that use locks: a memory engine on a clock of the test's own, whose locks can be lost at will.
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
//! use lockkeeper::{Lost, test_util::Bench};
//! let bench = Bench::open().await?;
//! let guard = bench.locks().mutex("stock").lock().await?;
//! assert!(bench.lose("stock")?);
//! assert_eq!(guard.lost().await, Lost::TakenAway);
//! # Ok(()) }
//! ```

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::clock::Ticks;
use crate::engine::memory::Memory;
use crate::engine::{
    Answer, Attempt, BoxFuture, Change, Claim, ClaimId, Context, Description, End, Engine, Entry, HoldId, LeaseId, Line, Query, Released,
    Renewal, WatchId,
};
use crate::{Clock, Locks, Lost, Name, Result};

/// The machines themselves, for the model checker. Not part of the interface: they change with any release.
#[doc(hidden)]
pub mod machines {
    #[cfg(all(feature = "file", target_os = "linux"))]
    pub use crate::engine::file::{bytes, recipe as file};
    pub use crate::protocol::{lease, line};
}

/// A memory engine on a virtual clock.
pub struct Bench {
    locks: Locks,
    clock: Clock,
    engine: Arc<Memory>,
}

impl Bench {
    /// Opens one; its clock stands still until [`Bench::advance`].
    ///
    /// # Errors
    /// None that a test could cause.
    pub async fn open() -> Result<Self> {
        let clock = Clock::virtual_at(Duration::from_secs(1));
        let engine = Arc::new(Memory::private());
        let locks = Locks::builder().clock(clock.clone()).with_engine(Shared(engine.clone())).await?;
        Ok(Self { locks, clock, engine })
    }

    /// The locks to hand to the service under test.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Moves the clock: timeouts, `hold_at_most`, offers.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Takes a lock away from whoever holds it, as a real engine does in its bad hours; answers whether somebody did.
    ///
    /// # Errors
    /// `InvalidName`.
    pub fn lose(&self, name: &str) -> Result<bool> {
        Ok(self.engine.lose(&Name::new(name)?, Lost::TakenAway))
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("clock", &self.clock).finish_non_exhaustive()
    }
}

/// An executor that a keeper runs on in place of a thread of its own, so that a simulation decides who goes next.
pub trait Host: Send + Sync + 'static {
    /// Runs a task to its end.
    fn spawn(&self, task: BoxFuture<()>);

    /// Completes when the keeper's clock has come to this reading.
    fn sleep_until(&self, at: Ticks) -> BoxFuture<()>;
}

/// What a `Locks` keeps at this moment: for tests that look for what is left behind (R5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residue {
    /// Names of which something is known: somebody has a primitive, a guard, or waits.
    pub names: usize,
    /// Claims that the engine may say something about.
    pub claims: usize,
    /// Leases that are renewed.
    pub leases: usize,
    /// Watches.
    pub watches: usize,
    /// Tasks on the keeper's thread, the engine's own among them.
    pub tasks: usize,
    /// Armed timers.
    pub timers: usize,
}

/// What this `Locks` keeps now.
pub fn residue(locks: &Locks) -> Residue {
    locks.keeper.residue()
}

/// The engine behind a `Locks`, for tests that speak the engine's own words.
pub fn engine(locks: &Locks) -> Arc<dyn Engine> {
    locks.keeper.engine.clone()
}

/// Waits for an engine's answer as the keeper does: polled on its thread, to the end.
///
/// # Errors
/// `Closed` when the `Locks` was closed before the answer came.
pub async fn answer<T: Send + 'static>(locks: &Locks, answer: Answer<T>) -> Result<T> {
    locks.keeper.answer(answer).await
}

/// Lets this thread draw claim ids from a seed until the value is dropped, so that a simulation replays.
#[must_use = "ids are fresh again as soon as it is dropped"]
#[derive(Debug)]
pub struct SeededIds(PhantomData<*const ()>);

impl SeededIds {
    /// Begins with this seed.
    pub fn begin(seed: u64) -> Self {
        crate::id::seeded::seed(Some(seed));
        Self(PhantomData)
    }
}

impl Drop for SeededIds {
    fn drop(&mut self) {
        crate::id::seeded::seed(None);
    }
}

/// The same engine for the keeper and for the test.
struct Shared(Arc<Memory>);

impl Engine for Shared {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        self.0.open(context)
    }
    fn describe(&self) -> Description {
        self.0.describe()
    }
    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.0.attempt(claim, line)
    }
    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Attempt>> {
        self.0.recheck(claims)
    }
    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        self.0.withdraw(claim)
    }
    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        self.0.convert(hold, claim)
    }
    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        self.0.renew(leases)
    }
    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.0.release(holds, again)
    }
    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        self.0.read(query)
    }
    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        self.0.write(change)
    }
    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        self.0.watch(watch, query)
    }
    fn unwatch(&self, watch: WatchId) {
        self.0.unwatch(watch);
    }
    fn close(&self) -> Answer<()> {
        self.0.close()
    }
}
