//! Many readers or one writer; and one reader that may become the writer.

use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use crate::keeper::entry::convert::Patience;
use crate::primitives::acquire::{Acquire, Plan, TryAcquire};
use crate::primitives::guard::{Guard, GuardKind, Released, sealed};
use crate::primitives::mutex::Base;
use crate::words::claim::{Mode, Through};
use crate::words::error::Result;

/// A read-write lock. Its exclusive mode is the mutex of the same name. Readers do not starve
/// writers where the engine has [`Ability::WriterTurns`](crate::Ability::WriterTurns); on `redlock`
/// and Redisson's `RReadWriteLock` they can.
#[derive(Clone)]
pub struct RwLock(pub(crate) Base);

impl RwLock {
    #[track_caller]
    fn plan(&self, mode: Mode) -> Plan {
        let mut plan = self.0.plan(mode);
        plan.request.through = Through::RwLock;
        plan
    }

    /// Waits to read, beside other readers. The guard's token says which writes it may see.
    #[track_caller]
    pub fn read(&self) -> Acquire<Guard> {
        Acquire::new(self.plan(Mode::Shared))
    }

    /// Reads if nobody writes or waits to.
    #[track_caller]
    pub fn try_read(&self) -> TryAcquire<Guard> {
        TryAcquire::new(self.plan(Mode::Shared))
    }

    /// Waits to write.
    #[track_caller]
    pub fn write(&self) -> Acquire<WriteGuard> {
        Acquire::new(self.plan(Mode::Exclusive))
    }

    /// Writes if nobody reads, writes or waits.
    #[track_caller]
    pub fn try_write(&self) -> TryAcquire<WriteGuard> {
        TryAcquire::new(self.plan(Mode::Exclusive))
    }

    /// Waits to read as the only one that may become the writer without letting go in between.
    #[track_caller]
    pub fn upgradable(&self) -> Acquire<UpgradableGuard> {
        Acquire::new(self.plan(Mode::Upgradable))
    }
}

impl std::fmt::Debug for RwLock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0, f)
    }
}

macro_rules! wraps_a_guard {
    ($type:ident) => {
        impl Deref for $type {
            type Target = Guard;
            fn deref(&self) -> &Guard {
                &self.0
            }
        }

        impl sealed::Sealed for $type {}

        impl GuardKind for $type {
            fn make(guard: Guard) -> Self {
                Self(guard)
            }
        }

        impl $type {
            /// Gives the lock back and says how that went.
            ///
            /// # Cancel safety
            /// The release happens also when this future is dropped.
            pub async fn release(self) -> Released {
                self.0.release().await
            }

            /// Lets other readers in without letting go: from now on this is a read guard, with a
            /// new token.
            ///
            /// # Errors
            /// `Lost`, `Unsupported`, `Unreachable`, `Unknown`, and `WouldDeadlock` while another
            /// guard of the same owner was given more than reading; this guard is given back then.
            ///
            /// # Cancel safety
            /// Dropping it gives the lock back.
            pub async fn downgrade(self) -> Result<Guard> {
                convert(&self.0, Mode::Shared, None).await?;
                Ok(self.0.downgraded())
            }
        }
    };
}

/// The turn of a writer.
#[must_use = "the lock is given back as soon as its guard is dropped"]
#[derive(Debug)]
pub struct WriteGuard(Guard);

/// The turn of the reader that may become the writer.
#[must_use = "the lock is given back as soon as its guard is dropped"]
#[derive(Debug)]
pub struct UpgradableGuard(Guard);

wraps_a_guard!(WriteGuard);
wraps_a_guard!(UpgradableGuard);

impl UpgradableGuard {
    /// Waits until the other readers are gone, and writes. Borrows this guard: when the writing
    /// ends it is as it was.
    ///
    /// # Cancel safety
    /// A dropped upgrade leaves this guard as it was.
    pub fn upgrade(&mut self) -> Upgrade<'_> {
        Upgrade { guard: self, timeout: None }
    }
}

/// An upgrade; `.await` it, or give it a timeout first.
#[must_use = "an upgrade does nothing unless awaited"]
#[derive(Debug)]
pub struct Upgrade<'a> {
    guard: &'a mut UpgradableGuard,
    timeout: Option<Duration>,
}

impl Upgrade<'_> {
    /// Gives up after this time; the guard stays as it was. Zero asks once.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.timeout = Some(time);
        self
    }
}

impl<'a> IntoFuture for Upgrade<'a> {
    type Output = Result<Writing<'a>>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            convert(&self.guard.0, Mode::Exclusive, self.timeout).await?;
            Ok(Writing { guard: self.guard })
        })
    }
}

/// Writing under an upgradable guard; when it is dropped the guard is upgradable again, with a new
/// token.
#[must_use = "the writing ends as soon as this is dropped"]
#[derive(Debug)]
pub struct Writing<'a> {
    guard: &'a mut UpgradableGuard,
}

impl Deref for Writing<'_> {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        &self.guard.0
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        let cell = self.guard.cell();
        if !cell.is_forked() {
            cell.entry.end_writing(cell);
        }
    }
}

/// Converts a turn, and takes the conversion back when it is dropped half way.
async fn convert(guard: &Guard, to: Mode, timeout: Option<Duration>) -> Result<()> {
    struct Way<'a>(Option<&'a Guard>);
    impl Drop for Way<'_> {
        fn drop(&mut self) {
            if let Some(guard) = self.0 {
                guard.cell().entry.abandon_convert(guard.cell(), guard.mode());
            }
        }
    }
    let cell = guard.cell();
    let patience = Patience::of(&cell.entry.keeper, timeout);
    // One conversion at a time: the one back from writing may still be under way.
    let back = std::future::poll_fn(|context| cell.entry.poll_unconverted(cell, context.waker()));
    match patience.left(&cell.entry.keeper) {
        None => back.await,
        Some(time) if cell.entry.keeper.within(time, back).await.is_some() => {}
        Some(_) => return Err(cell.entry.unconverted(cell)),
    }
    cell.entry.begin_convert(cell, guard.mode(), to, patience)?;
    let mut way = Way(Some(guard));
    let done = std::future::poll_fn(|context| cell.entry.poll_convert(cell, context.waker())).await;
    way.0 = None;
    done
}
