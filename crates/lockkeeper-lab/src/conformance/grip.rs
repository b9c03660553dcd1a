//! What stands for a mutex: the mutex itself, a writer, the only permit.

use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::time::Duration;

use lockkeeper::{
    Acquire, Guard, GuardKind, Kind, Locks, Mode, Released, Result, TryAcquire, WriteGuard,
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

    /// How another process asks for it.
    pub(super) fn mode(self) -> Mode {
        match self {
            Self::Mutex | Self::Writer => Mode::Exclusive,
            Self::OnlyPermit => Mode::Permits { count: 1, limit: 1 },
            Self::LastPermit => Mode::Permits { count: 1, limit: 5 },
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
        let four = trial.lasts(locks.semaphore(name, 5).acquire(4));
        let four = four.await.expect("nobody has them");
        Some((locks, four))
    }

    /// With a lease that does not run out on a busy machine, where a hold has one of its own.
    pub(super) fn lock(self, trial: &Trial, locks: &Locks, name: &str) -> Taking<Grip> {
        self.lock_for(locks, name, None, trial.lasting())
    }

    pub(super) fn lock_with(
        self,
        locks: &Locks,
        name: &str,
        timeout: Option<Duration>,
    ) -> Taking<Grip> {
        self.lock_for(locks, name, timeout, None)
    }

    fn lock_for(
        self,
        locks: &Locks,
        name: &str,
        timeout: Option<Duration>,
        lease: Option<Duration>,
    ) -> Taking<Grip> {
        fn take<G: GuardKind + Send + 'static>(
            acquire: Acquire<G>,
            (timeout, lease): (Option<Duration>, Option<Duration>),
            grip: fn(G) -> Grip,
        ) -> Taking<Grip> {
            let acquire = timeout.into_iter().fold(acquire, Acquire::timeout);
            let acquire = lease.into_iter().fold(acquire, Acquire::ttl);
            let acquired = acquire.into_future();
            Box::pin(async move { acquired.await.map(grip) })
        }
        let times = (timeout, lease);
        match self {
            Self::Mutex => take(locks.mutex(name).lock(), times, Grip::Plain),
            Self::Writer => take(locks.rwlock(name).write(), times, Grip::Write),
            Self::OnlyPermit => take(locks.semaphore(name, 1).acquire(1), times, Grip::Plain),
            Self::LastPermit => take(locks.semaphore(name, 5).acquire(1), times, Grip::Plain),
        }
    }

    /// With such a lease, too.
    pub(super) fn try_lock(self, trial: &Trial, locks: &Locks, name: &str) -> Taking<Option<Grip>> {
        fn take<G: GuardKind + Send + 'static>(
            acquire: TryAcquire<G>,
            lease: Option<Duration>,
            grip: fn(G) -> Grip,
        ) -> Taking<Option<Grip>> {
            let acquired = lease.into_iter().fold(acquire, TryAcquire::ttl).into_future();
            Box::pin(async move { acquired.await.map(|got| got.map(grip)) })
        }
        let lease = trial.lasting();
        match self {
            Self::Mutex => take(locks.mutex(name).try_lock(), lease, Grip::Plain),
            Self::Writer => take(locks.rwlock(name).try_write(), lease, Grip::Write),
            Self::OnlyPermit => take(locks.semaphore(name, 1).try_acquire(1), lease, Grip::Plain),
            Self::LastPermit => take(locks.semaphore(name, 5).try_acquire(1), lease, Grip::Plain),
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
