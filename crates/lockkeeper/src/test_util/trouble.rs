//! What a test does to the engine of its [`Bench`](super::Bench): delay, refusal, an outage.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::memory::Memory;
use crate::engine::{
    Answer, Attempt, Change, Claim, ClaimId, Context, Description, End, Engine, Entry, Error,
    ErrorKind, HoldId, LeaseId, Line, Query, Released, Renewal, Result, Standing, WatchId,
};
use crate::words::clock::{Clock, Ticks};

/// What becomes of every request from now on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Trouble {
    /// It is answered at once.
    #[default]
    None,
    /// It is carried out and answered this long after it was sent, on the bench's clock.
    Delayed(Duration),
    /// The engine refuses it: a password, a permission, a full disk.
    Refused,
    /// The engine cannot be reached.
    Unreachable,
}

/// The memory engine, behind whatever trouble the test makes; one for the keeper and one for the
/// test.
#[derive(Clone)]
pub(super) struct Troubled {
    pub(super) memory: Arc<Memory>,
    clock: Clock,
    trouble: Arc<Mutex<Trouble>>,
    moved: Arc<Notify>,
}

impl Troubled {
    pub(super) fn new(clock: Clock) -> Self {
        Self {
            memory: Arc::new(Memory::private()),
            clock,
            trouble: Arc::default(),
            moved: Arc::default(),
        }
    }

    pub(super) fn set(&self, trouble: Trouble) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// The clock was moved.
    pub(super) fn clock_moved(&self) {
        self.moved.notify_waiters();
    }

    /// Carries out `work` as the present trouble lets it; `failed` is the answer of an engine that
    /// fails.
    fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Memory) -> Answer<T> + Send + 'static,
        failed: impl FnOnce(Error) -> T,
    ) -> Answer<T> {
        let trouble = *self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = |kind, text: &str| Answer::Now(failed(Error::new(kind, text).engine("memory")));
        match trouble {
            Trouble::None => work(&self.memory),
            Trouble::Refused => {
                fails(ErrorKind::Refused, "the test's engine refuses every request")
            }
            Trouble::Unreachable => {
                fails(ErrorKind::Unreachable, "the test's engine cannot be reached")
            }
            Trouble::Delayed(by) => {
                let (own, until) = (self.clone(), self.clock.now().plus(by));
                Answer::later(async move {
                    own.sleep_until(until).await;
                    work(&own.memory).get().await
                })
            }
        }
    }

    /// In an outage what gives something back arrives, and only its answer is lost; so does what is
    /// refused: no lease ends it here.
    fn pass_unseen(&self, work: impl FnOnce(&Memory)) {
        if matches!(
            *self.trouble.lock().unwrap_or_else(PoisonError::into_inner),
            Trouble::Unreachable | Trouble::Refused
        ) {
            work(&self.memory);
        }
    }

    async fn sleep_until(&self, at: Ticks) {
        loop {
            let mut moved = std::pin::pin!(self.moved.notified());
            // Registered before the clock is read: a move in between is heard.
            moved.as_mut().enable();
            if self.clock.now() >= at {
                return;
            }
            moved.await;
        }
    }
}

impl Engine for Troubled {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        self.memory.open(context)
    }

    fn describe(&self) -> Description {
        self.memory.describe()
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        let claim = claim.clone();
        self.ask(move |memory| memory.attempt(&claim, line), Attempt::Failed)
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let (asked, count) = (claims.to_vec(), claims.len());
        self.ask(
            move |memory| memory.recheck(&asked),
            move |error| vec![Standing::Unknown(error); count],
        )
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        self.pass_unseen(|memory| drop(memory.withdraw(claim)));
        self.ask(move |memory| memory.withdraw(claim), End::Unknown)
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        let claim = claim.clone();
        self.ask(move |memory| memory.convert(hold, &claim), Attempt::Failed)
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let (asked, count) = (leases.to_vec(), leases.len());
        self.ask(
            move |memory| memory.renew(&asked),
            move |error| vec![Renewal::Unknown(error); count],
        )
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let (asked, count, claim) = (holds.to_vec(), holds.len(), again.cloned());
        let stands = again.is_some();
        self.pass_unseen(|memory| drop(memory.release(&asked, None)));
        self.ask(
            move |memory| memory.release(&asked, claim.as_ref()),
            move |error| Released {
                ends: vec![End::Unknown(error.clone()); count],
                again: stands.then_some(Attempt::Failed(error)),
            },
        )
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        let query = query.clone();
        self.ask(move |memory| memory.read(&query), Err)
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        let change = change.clone();
        self.ask(move |memory| memory.write(&change), Err)
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        let query = query.clone();
        self.ask(move |memory| memory.watch(watch, &query), Err)
    }

    fn unwatch(&self, watch: WatchId) {
        self.memory.unwatch(watch);
    }

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        let (asked, count) = (claims.to_vec(), claims.len());
        let refused = move |error| vec![Attempt::Failed(error); count];
        self.ask(move |memory| memory.attempt_all(&asked), refused)
    }

    fn close(&self) -> Answer<()> {
        self.memory.close()
    }
}
