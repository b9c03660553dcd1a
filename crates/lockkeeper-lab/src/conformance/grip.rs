//! What stands for a mutex: the mutex itself, a writer, the only permit.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use lockkeeper::{
    Acquire, Guard, GuardKind, Kind, Locks, Released, Result, TryAcquire, WriteGuard,
};

use super::trial::Trial;

/// In which way mutual exclusion is had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Mutex,
    Writer,
    OnlyPermit,
    /// Five permits, four of which somebody else has.
    LastPermit,
}

/// A turn, of whatever kind.
pub(super) enum Grip {
    Plain(Guard),
    Write(WriteGuard),
}

pub(super) type Taking<T> = Pin<Box<dyn Future<Output = Result<T>> + Send>>;

impl Way {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Mutex | Self::Writer => Kind::Lock,
            Self::OnlyPermit | Self::LastPermit => Kind::Semaphore,
        }
    }

    pub(super) fn has_token(self) -> bool {
        matches!(self, Self::Mutex | Self::Writer)
    }

    /// Whoever has the other permits.
    pub(super) async fn prepare(self, trial: &Trial, name: &str) -> Option<(Locks, Guard)> {
        if self != Self::LastPermit {
            return None;
        }
        let locks = trial.open().await;
        let four = locks.semaphore(name, 5).acquire(4).await.expect("nobody has them");
        Some((locks, four))
    }

    pub(super) fn lock(self, locks: &Locks, name: &str) -> Taking<Grip> {
        self.lock_with(locks, name, None)
    }

    pub(super) fn lock_with(
        self,
        locks: &Locks,
        name: &str,
        timeout: Option<Duration>,
    ) -> Taking<Grip> {
        fn take<G: GuardKind + Send + 'static>(
            acquire: Acquire<G>,
            timeout: Option<Duration>,
            grip: fn(G) -> Grip,
        ) -> Taking<Grip> {
            let acquire = match timeout {
                Some(time) => acquire.timeout(time),
                None => acquire,
            };
            let acquired = acquire.into_future();
            Box::pin(async move { acquired.await.map(grip) })
        }
        match self {
            Self::Mutex => take(locks.mutex(name).lock(), timeout, Grip::Plain),
            Self::Writer => take(locks.rwlock(name).write(), timeout, Grip::Write),
            Self::OnlyPermit => take(locks.semaphore(name, 1).acquire(1), timeout, Grip::Plain),
            Self::LastPermit => take(locks.semaphore(name, 5).acquire(1), timeout, Grip::Plain),
        }
    }

    pub(super) fn try_lock(self, locks: &Locks, name: &str) -> Taking<Option<Grip>> {
        fn take<G: GuardKind + Send + 'static>(
            acquire: TryAcquire<G>,
            grip: fn(G) -> Grip,
        ) -> Taking<Option<Grip>> {
            let acquired = acquire.into_future();
            Box::pin(async move { acquired.await.map(|got| got.map(grip)) })
        }
        match self {
            Self::Mutex => take(locks.mutex(name).try_lock(), Grip::Plain),
            Self::Writer => take(locks.rwlock(name).try_write(), Grip::Write),
            Self::OnlyPermit => take(locks.semaphore(name, 1).try_acquire(1), Grip::Plain),
            Self::LastPermit => take(locks.semaphore(name, 5).try_acquire(1), Grip::Plain),
        }
    }
}

impl Grip {
    pub(super) async fn release(self) -> Released {
        match self {
            Self::Plain(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }
}

impl Deref for Grip {
    type Target = Guard;
    fn deref(&self) -> &Guard {
        match self {
            Self::Plain(guard) => guard,
            Self::Write(guard) => guard,
        }
    }
}
