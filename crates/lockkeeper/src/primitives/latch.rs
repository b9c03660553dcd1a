//! A latch: closed while its count is above zero, open for everybody once it is zero.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::time::Duration;

use crate::engine::{Change, Query};
use crate::primitives::mutex::Base;
use crate::primitives::watch::Watch;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Ability;
use crate::words::id::ClaimId;
use crate::words::name::Kind;

/// A count-down latch. One that was never set is open.
#[derive(Clone)]
pub struct Latch(pub(crate) Base);

impl Latch {
    /// Closes the latch with this count, if it is open; answers whether it did.
    ///
    /// # Errors
    /// `InvalidName`, `InvalidArgument` for a count of 0, `Unsupported`, `Unreachable`, `Refused`,
    /// `Unknown`, `Closed`.
    ///
    /// # Cancel safety
    /// Once polled it happens, also when it is dropped.
    pub async fn set(&self, count: u64) -> Result<bool> {
        if count == 0 {
            return Err(Error::new(ErrorKind::InvalidArgument, "a latch is set to at least 1"));
        }
        self.write(|name| Change::LatchSet(name, count)).await
    }

    /// Counts down by one; answers whether the latch is open now.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, `Unreachable`, `Refused`, `Unknown`, `Closed`.
    ///
    /// # Cancel safety
    /// Once polled it happens, once, also when it is dropped.
    pub async fn count_down(&self) -> Result<bool> {
        let id = ClaimId::fresh();
        self.write(|name| Change::LatchCountDown(name, id)).await
    }

    /// The count now; 0 = open.
    ///
    /// # Errors
    /// `InvalidName`, `Unsupported`, `Unreachable`, `Refused`, `Closed`.
    pub async fn count(&self) -> Result<u64> {
        self.able()?;
        let query = Query::One(Kind::Latch, self.0.name()?.clone());
        let entries = self.0.keeper.read(&query).await?;
        Ok(entries.first().and_then(|e| e.count).unwrap_or(0))
    }

    /// Waits until the latch is open.
    pub fn wait(&self) -> Wait {
        Wait { latch: self.clone(), timeout: None }
    }

    fn able(&self) -> Result<()> {
        if self.0.keeper.facts.can.has(Ability::Latch) {
            return Ok(());
        }
        Err(self.0.keeper.facts.lacks(Ability::Latch))
    }

    async fn write(&self, change: impl FnOnce(crate::Name) -> Change) -> Result<bool> {
        self.able()?;
        let name = self.0.name()?.clone();
        self.0.keeper.write(&change(name)).await
    }
}

impl std::fmt::Debug for Latch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0, f)
    }
}

/// Waiting for a latch; `.await` it, or give it a timeout first.
///
/// # Cancel safety
/// Cancel safe.
#[must_use = "waiting does nothing unless awaited"]
#[derive(Debug)]
pub struct Wait {
    latch: Latch,
    timeout: Option<Duration>,
}

impl Wait {
    /// Gives up after this time, with `TimedOut`. Zero asks once.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }

    async fn open(latch: &Latch) -> Result<()> {
        latch.able()?;
        let query = Query::One(Kind::Latch, latch.0.name()?.clone());
        let mut watch = Watch::new(latch.0.keeper.clone(), query).await?;
        while watch.next().await?.first().and_then(|e| e.count).unwrap_or(0) > 0 {}
        Ok(())
    }
}

impl IntoFuture for Wait {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let Some(time) = self.timeout else { return Self::open(&self.latch).await };
            let keeper = self.latch.0.keeper.clone();
            let late = || {
                Error::new(ErrorKind::TimedOut, "the latch did not open in time")
                    .engine(keeper.facts.engine)
            };
            if time.is_zero() {
                // The answer needs longer than no time at all.
                return if self.latch.count().await? == 0 { Ok(()) } else { Err(late()) };
            }
            keeper.within(time, Self::open(&self.latch)).await.unwrap_or_else(|| Err(late()))
        })
    }
}
