//! A store in memory that takes locks away only once the test says so: `slow:NAME`.

use std::sync::Arc;

use lockkeeper::engine::*;
use lockkeeper::{Locks, url::EngineUrl};
use tokio::sync::Semaphore;

/// Has a permit once locks may be taken away.
pub static GOES_ON: Semaphore = Semaphore::const_new(0);

struct Slow(Arc<dyn Engine>);

pub fn register() {
    let open = |url: &mut EngineUrl, common: &Common| {
        let memory = Registration::of("memory")?;
        let opened: Box<dyn Engine> = Box::new(Slow((memory.open)(url, common)?.into()));
        Ok(opened)
    };
    Locks::register(Registration::new("slow", &["slow"], Keep::Lease, open)).expect("it is new");
}

impl Engine for Slow {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        self.0.open(context)
    }
    fn describe(&self) -> Description {
        self.0.describe()
    }
    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.0.attempt(claim, line)
    }
    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
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
        let (engine, change) = (Arc::clone(&self.0), change.clone());
        Answer::later(async move {
            drop(GOES_ON.acquire().await);
            match engine.write(&change) {
                Answer::Now(written) => written,
                Answer::Later(written) => written.await,
            }
        })
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
