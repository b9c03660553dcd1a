//! A double barrier: nobody begins before all are there, and nobody goes before all have finished.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Answer, Membership, Query};
use crate::keeper::Keeper;
use crate::primitives::mutex::Base;
use crate::primitives::watch::Watch;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Ability;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// The most members a barrier can wait for.
pub(crate) const MEMBERS_MAX: u32 = 1024;

/// A double barrier of a name, on engines that have them
/// ([`Ability::Barrier`](crate::Ability::Barrier)): ZooKeeper, in line with Curator's
/// `DistributedDoubleBarrier` and kazoo's `DoubleBarrier`. Whoever comes in later than the others
/// may come in, too: the number of members is a threshold and no limit. Use a name that is nothing
/// else's.
#[derive(Clone)]
pub struct DoubleBarrier {
    pub(crate) base: Base,
    pub(crate) members: u32,
}

impl DoubleBarrier {
    /// Comes in, and waits until as many members have as the barrier was made for. Each call is one
    /// member.
    ///
    /// ```no_run
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// let locks = lockkeeper::Locks::open("zk://localhost").await?;
    /// let minute = std::time::Duration::from_secs(60);
    /// let inside = locks.double_barrier("nightly/import", 3).enter().timeout(minute).await?;
    /// // All three have come in. Each does its part, and waits until all have done theirs.
    /// inside.leave().await?;
    /// # Ok(()) }
    /// ```
    pub fn enter(&self) -> Enter {
        Enter { barrier: self.clone(), timeout: None }
    }

    fn member(&self) -> Result<Inside> {
        let keeper = &self.base.keeper;
        if self.members == 0 || self.members > MEMBERS_MAX {
            let text = format!("a barrier has 1 to {MEMBERS_MAX} members");
            return Err(Error::new(ErrorKind::InvalidArgument, text).engine(keeper.facts.engine));
        }
        if !keeper.facts.can.has(Ability::Barrier) {
            return Err(unsupported(keeper));
        }
        Ok(Inside { keeper: keeper.clone(), name: self.base.name()?.clone(), id: ClaimId::fresh() })
    }
}

impl std::fmt::Debug for DoubleBarrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DoubleBarrier")
            .field("name", &self.base.name())
            .field("members", &self.members)
            .finish_non_exhaustive()
    }
}

fn unsupported(keeper: &Keeper) -> Error {
    keeper.facts.lacks(Ability::Barrier)
}

/// Coming in; `.await` it, or give it a timeout first.
///
/// # Errors
/// `TimedOut`, `InvalidArgument`, `InvalidName`, `Unsupported`, `Unreachable`, `Refused`, `Closed`.
///
/// # Cancel safety
/// Dropping it withdraws this member.
#[must_use = "entering does nothing unless awaited"]
#[derive(Debug)]
pub struct Enter {
    barrier: DoubleBarrier,
    timeout: Option<Duration>,
}

impl Enter {
    /// Gives up after this time, with `TimedOut`.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }
}

impl IntoFuture for Enter {
    type Output = Result<Inside>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<Inside>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let inside = self.barrier.member()?;
            let members = self.barrier.members;
            within(
                &inside.keeper,
                self.timeout,
                inside.until(Membership::Enter(members)),
                "not all members came in in time",
            )
            .await?;
            Ok(inside)
        })
    }
}

/// A member inside the barrier. Dropping it leaves without waiting for the others.
#[must_use = "dropping it goes at once"]
pub struct Inside {
    keeper: Arc<Keeper>,
    name: Name,
    id: ClaimId,
}

impl Inside {
    /// Has finished, and waits until all members have.
    pub fn leave(self) -> Leave {
        Leave { inside: self, timeout: None }
    }

    /// Does a step until it answers yes, whenever something has changed.
    async fn until(&self, step: Membership) -> Result<()> {
        let mut watch =
            Watch::new(self.keeper.clone(), Query::One(Kind::Latch, self.name.clone())).await?;
        let mut answered = false;
        loop {
            match self.step(step).await {
                Ok(true) => return Ok(()),
                Ok(false) => answered = true,
                // It goes on when the engine can be reached again.
                Err(error)
                    if answered && (error.is_outage() || error.kind() == ErrorKind::Unknown) => {}
                Err(error) => return Err(error),
            }
            watch.hint().await?;
        }
    }

    async fn step(&self, step: Membership) -> Result<bool> {
        self.keeper.check_open()?;
        let answer = self.keeper.engine.barrier(&self.name, self.id, step);
        self.keeper
            .answer(answer)
            .await?
            .map_err(|error| error.name(&self.name).engine(self.keeper.facts.engine))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if self.keeper.check_open().is_err() {
            return;
        }
        if let Answer::Later(going) =
            self.keeper.engine.barrier(&self.name, self.id, Membership::Withdraw)
        {
            self.keeper.run(async move {
                // Nobody is left to hear what became of it.
                let _ = going.await;
            });
        }
    }
}

impl std::fmt::Debug for Inside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inside")
            .field("name", &self.name)
            .field("member", &self.id)
            .finish_non_exhaustive()
    }
}

/// Going; `.await` it, or give it a timeout first.
///
/// # Errors
/// `TimedOut`; `Lost` when the others have not counted this member any more, because its session
/// ended; `Unreachable`, `Refused`, `Closed`.
///
/// # Cancel safety
/// Dropped, it goes without waiting for the others.
#[must_use = "leaving does nothing unless awaited"]
#[derive(Debug)]
pub struct Leave {
    inside: Inside,
    timeout: Option<Duration>,
}

impl Leave {
    /// Gives up waiting after this time, with `TimedOut`; this member has gone then.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }
}

impl IntoFuture for Leave {
    type Output = Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let leaving = self.inside.until(Membership::Leave);
            within(&self.inside.keeper, self.timeout, leaving, "not all members left in time").await
        })
    }
}

async fn within(
    keeper: &Arc<Keeper>,
    time: Option<Duration>,
    work: impl Future<Output = Result<()>>,
    late: &str,
) -> Result<()> {
    let Some(time) = time else { return work.await };
    let late = || Error::new(ErrorKind::TimedOut, late).engine(keeper.facts.engine);
    keeper.within(time, work).await.unwrap_or_else(|| Err(late()))
}
