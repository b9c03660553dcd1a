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

use std::sync::Arc;
use std::time::Duration;

use crate::engine::memory::Memory;
use crate::engine::{
    Answer, Attempt, Change, Claim, ClaimId, Context, Description, End, Engine, Entry, HoldId, LeaseId, Line, Query, Released, Renewal,
    WatchId,
};
use crate::{Clock, Locks, Lost, Name, Result};

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
