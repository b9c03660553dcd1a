//! The same API for threads.
//!
//! Nothing here needs a runtime: a thread that waits sleeps until the engine's answer wakes it; on
//! files, unless it is to give up, in the kernel's own queue for the lock. The thread is known, so
//! the same thread asking twice for a lock without an [`Owner`] is `WouldDeadlock` at once.
//!
//! ```
//! use lockkeeper::blocking::Locks;
//! let locks = Locks::open("memory:")?;
//! let guard = locks.mutex("stock").lock().run()?;
//! assert!(guard.token()?.get() > 0);
//! assert!(guard.release().is_clean());
//! # Ok::<(), lockkeeper::Error>(())
//! ```

use std::ops::Deref;
use std::time::Duration;

use crate::keeper::caller_io::park::wait;
use crate::primitives::guard::{GuardKind, Released};
use crate::words::error::Result;
use crate::{
    Acquire, Closed, Description, Entry, Held, Holder, Kind, Leader, Owner, Require, TryAcquire,
};

/// An engine, opened, for threads.
#[derive(Clone, Debug)]
pub struct Locks(crate::Locks);

impl Locks {
    /// As [`Locks::open`](crate::Locks::open).
    ///
    /// # Errors
    /// The same.
    pub fn open(url: &str) -> Result<Self> {
        wait(crate::Locks::open(url)).map(Self)
    }

    /// As [`Locks::from_env`](crate::Locks::from_env).
    ///
    /// # Errors
    /// The same.
    pub fn from_env() -> Result<Self> {
        wait(crate::Locks::from_env()).map(Self)
    }

    /// The same locks for tasks.
    pub fn as_async(&self) -> &crate::Locks {
        &self.0
    }

    /// A mutex.
    pub fn mutex(&self, name: impl AsRef<str>) -> Mutex {
        Mutex(self.0.mutex(name))
    }

    /// A read-write lock.
    pub fn rwlock(&self, name: impl AsRef<str>) -> RwLock {
        RwLock(self.0.rwlock(name))
    }

    /// A semaphore.
    pub fn semaphore(&self, name: impl AsRef<str>, limit: u16) -> Semaphore {
        Semaphore(self.0.semaphore(name, limit))
    }

    /// An election.
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        Election(self.0.election(name))
    }

    /// A double barrier.
    pub fn double_barrier(&self, name: impl AsRef<str>, members: u32) -> DoubleBarrier {
        DoubleBarrier(self.0.double_barrier(name, members))
    }

    /// A latch.
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch(self.0.latch(name))
    }

    /// Several locks at once: all or nothing.
    ///
    /// # Errors
    /// As [`All`](crate::All).
    pub fn all(
        &self,
        locks: impl IntoIterator<Item = Lock>,
        timeout: Option<Duration>,
    ) -> Result<crate::AllGuard> {
        let all = self.0.all(locks.into_iter().map(|lock| lock.0));
        wait(match timeout {
            Some(time) => all.timeout(time),
            None => all,
        })
    }

    /// As [`Locks::require`](crate::Locks::require).
    ///
    /// # Errors
    /// `NotMet`.
    pub fn require(&self, require: Require) -> Result<()> {
        self.0.require(require)
    }

    /// As [`Locks::describe`](crate::Locks::describe).
    pub fn describe(&self) -> Description {
        self.0.describe()
    }

    /// As [`Locks::status`](crate::Locks::status).
    ///
    /// # Errors
    /// The same.
    pub fn status(&self, kind: Kind, name: impl AsRef<str>) -> Result<Entry> {
        wait(self.0.status(kind, name))
    }

    /// As [`Locks::list`](crate::Locks::list).
    ///
    /// # Errors
    /// The same.
    pub fn list(&self, prefix: &str) -> Result<Vec<Entry>> {
        wait(self.0.list(prefix))
    }

    /// As [`Locks::force_release`](crate::Locks::force_release).
    ///
    /// # Errors
    /// The same.
    pub fn force_release(&self, kind: Kind, name: impl AsRef<str>) -> Result<bool> {
        wait(self.0.force_release(kind, name))
    }

    /// As [`Locks::force_release_from`](crate::Locks::force_release_from).
    ///
    /// # Errors
    /// The same.
    pub fn force_release_from(
        &self,
        kind: Kind,
        name: impl AsRef<str>,
        holders: &[Holder],
    ) -> Result<bool> {
        wait(self.0.force_release_from(kind, name, holders))
    }

    /// As [`Locks::probe`](crate::Locks::probe).
    ///
    /// # Errors
    /// The same.
    pub fn probe(&self) -> Result<Vec<crate::Warning>> {
        wait(self.0.probe())
    }

    /// As [`Locks::other_layouts`](crate::Locks::other_layouts).
    ///
    /// # Errors
    /// The same.
    pub fn other_layouts(&self, name: impl AsRef<str>) -> Result<Vec<crate::Warning>> {
        wait(self.0.other_layouts(name))
    }

    /// As [`Locks::watch`](crate::Locks::watch).
    ///
    /// # Errors
    /// The same.
    pub fn watch(&self, prefix: &str) -> Result<Watch> {
        wait(self.0.watch(prefix)).map(Watch)
    }

    /// As [`Locks::close`](crate::Locks::close).
    pub fn close(&self) -> Closed {
        wait(self.0.close())
    }
}

impl From<crate::Locks> for Locks {
    /// The same for threads, also of an engine of your own.
    fn from(locks: crate::Locks) -> Self {
        Self(locks)
    }
}

/// A mutex for threads.
#[derive(Clone, Debug)]
pub struct Mutex(crate::Mutex);

/// A read-write lock for threads.
#[derive(Clone, Debug)]
pub struct RwLock(crate::RwLock);

/// A semaphore for threads.
#[derive(Clone, Debug)]
pub struct Semaphore(crate::Semaphore);

/// An election for threads.
#[derive(Clone, Debug)]
pub struct Election(crate::Election);

/// A double barrier for threads.
#[derive(Clone, Debug)]
pub struct DoubleBarrier(crate::DoubleBarrier);

/// A member inside the barrier. Dropping it leaves without waiting for the others.
#[must_use = "dropping it goes at once"]
#[derive(Debug)]
pub struct Inside(crate::Inside);

/// A latch for threads.
#[derive(Clone, Debug)]
pub struct Latch(crate::Latch);

/// What changes, for threads.
#[derive(Debug)]
pub struct Watch(crate::Watch);

/// An acquisition that waits; [`run`](Lock::run) it, or change it first.
#[must_use = "an acquisition does nothing unless run"]
#[derive(Debug)]
pub struct Lock<G: GuardKind = crate::Guard>(Acquire<G>);

/// An acquisition that does not wait.
#[must_use = "an acquisition does nothing unless run"]
#[derive(Debug)]
pub struct TryLock<G: GuardKind = crate::Guard>(TryAcquire<G>);

/// A turn of a thread. Dropping it releases without waiting for the answer, as
/// [`Guard`](crate::Guard) says.
#[must_use = "the lock is given back as soon as its guard is dropped"]
#[derive(Debug)]
pub struct Guard<G: GuardKind = crate::Guard>(G);

impl Mutex {
    /// Waits for the lock.
    #[track_caller]
    pub fn lock(&self) -> Lock {
        Lock(self.0.lock().this_thread())
    }

    /// Takes the lock if nobody has it or waits for it.
    #[track_caller]
    pub fn try_lock(&self) -> TryLock {
        TryLock(self.0.try_lock().this_thread())
    }
}

impl RwLock {
    /// Waits to read.
    #[track_caller]
    pub fn read(&self) -> Lock {
        Lock(self.0.read().this_thread())
    }

    /// Waits to write.
    #[track_caller]
    pub fn write(&self) -> Lock<crate::WriteGuard> {
        Lock(self.0.write().this_thread())
    }

    /// Waits to read as the only one that may become the writer.
    #[track_caller]
    pub fn upgradable(&self) -> Lock<crate::UpgradableGuard> {
        Lock(self.0.upgradable().this_thread())
    }
}

impl Semaphore {
    /// Waits for `count` permits at once.
    #[track_caller]
    pub fn acquire(&self, count: u16) -> Lock {
        Lock(self.0.acquire(count))
    }

    /// Takes `count` permits if they are free and nobody waits.
    #[track_caller]
    pub fn try_acquire(&self, count: u16) -> TryLock {
        TryLock(self.0.try_acquire(count))
    }

    /// Changes the limit for everybody.
    ///
    /// # Errors
    /// As [`Semaphore::resize`](crate::Semaphore::resize).
    pub fn resize(&mut self, limit: u16) -> Result<()> {
        wait(self.0.resize(limit))
    }
}

impl Election {
    /// Waits to be elected; the guard is the term.
    #[track_caller]
    pub fn stand(&self, id: &str) -> Lock {
        Lock(self.0.stand(id))
    }

    /// Who leads now.
    ///
    /// # Errors
    /// As [`Election::leader`](crate::Election::leader).
    pub fn leader(&self) -> Result<Option<Leader>> {
        wait(self.0.leader())
    }
}

impl Latch {
    /// Closes the latch with this count.
    ///
    /// # Errors
    /// As [`Latch::set`](crate::Latch::set).
    pub fn set(&self, count: u64) -> Result<bool> {
        wait(self.0.set(count))
    }

    /// Counts down by one.
    ///
    /// # Errors
    /// As [`Latch::count_down`](crate::Latch::count_down).
    pub fn count_down(&self) -> Result<bool> {
        wait(self.0.count_down())
    }

    /// The count now; 0 = open.
    ///
    /// # Errors
    /// As [`Latch::count`](crate::Latch::count).
    pub fn count(&self) -> Result<u64> {
        wait(self.0.count())
    }

    /// Waits until the latch is open, for at most `timeout`.
    ///
    /// # Errors
    /// `TimedOut`, and as [`Latch::wait`](crate::Latch::wait).
    pub fn wait(&self, timeout: Option<Duration>) -> Result<()> {
        wait(match timeout {
            Some(time) => self.0.wait().timeout(time),
            None => self.0.wait(),
        })
    }
}

impl DoubleBarrier {
    /// Comes in, and waits until as many members have as the barrier was made for, for at most
    /// `timeout`.
    ///
    /// # Errors
    /// As [`DoubleBarrier::enter`](crate::DoubleBarrier::enter).
    pub fn enter(&self, timeout: Option<Duration>) -> Result<Inside> {
        wait(match timeout {
            Some(time) => self.0.enter().timeout(time),
            None => self.0.enter(),
        })
        .map(Inside)
    }
}

impl Inside {
    /// Has finished, and waits until all members have, for at most `timeout`.
    ///
    /// # Errors
    /// As [`Inside::leave`](crate::Inside::leave).
    pub fn leave(self, timeout: Option<Duration>) -> Result<()> {
        wait(match timeout {
            Some(time) => self.0.leave().timeout(time),
            None => self.0.leave(),
        })
    }
}

impl Watch {
    /// The state now at the first call, and after that whenever it has changed.
    ///
    /// # Errors
    /// As [`Watch::next`](crate::Watch::next).
    #[allow(clippy::should_implement_trait, reason = "it gives a result and never ends")]
    pub fn next(&mut self) -> Result<Vec<Entry>> {
        wait(self.0.next())
    }
}

impl<G: GuardKind> Lock<G> {
    /// Gives up after this time.
    pub fn timeout(self, time: Duration) -> Self {
        Self(self.0.timeout(time))
    }

    /// See [`Acquire::unreachable_after`].
    pub fn unreachable_after(self, time: Duration) -> Self {
        Self(self.0.unreachable_after(time))
    }

    /// Waits on this thread.
    ///
    /// # Errors
    /// As [`Acquire`], and `WouldDeadlock` when this thread holds it already without an owner.
    pub fn run(self) -> Result<Guard<G>> {
        wait(self.0.here()).map(Guard)
    }
}

impl<G: GuardKind> TryLock<G> {
    /// Takes it, or not.
    ///
    /// # Errors
    /// As [`TryAcquire`].
    pub fn run(self) -> Result<Option<Guard<G>>> {
        wait(self.0).map(|got| got.map(Guard))
    }
}

macro_rules! options {
    ($type:ident) => {
        impl<G: GuardKind> $type<G> {
            /// As [`Acquire::ttl`].
            pub fn ttl(self, ttl: Duration) -> Self {
                Self(self.0.ttl(ttl))
            }

            /// As [`Acquire::no_renew`].
            pub fn no_renew(self) -> Self {
                Self(self.0.no_renew())
            }

            /// As [`Acquire::owner`].
            pub fn owner(self, owner: &Owner) -> Self {
                Self(self.0.owner(owner))
            }

            /// As [`Acquire::hold_at_most`].
            pub fn hold_at_most(self, time: Duration) -> Self {
                Self(self.0.hold_at_most(time))
            }

            /// As [`Acquire::margin`].
            pub fn margin(self, margin: Duration) -> Self {
                Self(self.0.margin(margin))
            }

            /// As [`Acquire::lock_delay`].
            pub fn lock_delay(self, time: Duration) -> Self {
                Self(self.0.lock_delay(time))
            }

            /// As [`Acquire::label`].
            pub fn label(self, label: impl Into<String>) -> Self {
                Self(self.0.label(label))
            }
        }
    };
}

options!(Lock);
options!(TryLock);

impl<G: GuardKind> Guard<G> {
    /// The guard for tasks: dropping it releases.
    pub fn into_async(self) -> G {
        self.0
    }

    /// The guard for tasks, borrowed: upgrade and other things that wait can be driven by a
    /// runtime.
    pub fn as_async(&mut self) -> &mut G {
        &mut self.0
    }
}

impl Guard<crate::Guard> {
    /// Gives the lock back and says how that went.
    pub fn release(self) -> Released {
        wait(self.0.release())
    }
}

impl Guard<crate::WriteGuard> {
    /// Gives the lock back and says how that went.
    pub fn release(self) -> Released {
        wait(self.0.release())
    }

    /// Lets other readers in without letting go.
    ///
    /// # Errors
    /// As [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    pub fn downgrade(self) -> Result<Guard> {
        wait(self.0.downgrade()).map(Guard)
    }
}

impl Guard<crate::UpgradableGuard> {
    /// Gives the lock back and says how that went.
    pub fn release(self) -> Released {
        wait(self.0.release())
    }

    /// Waits until the other readers are gone, for at most `timeout`, and writes.
    ///
    /// # Errors
    /// As [`UpgradableGuard::upgrade`](crate::UpgradableGuard::upgrade).
    pub fn upgrade(&mut self, timeout: Option<Duration>) -> Result<crate::Writing<'_>> {
        let upgrade = self.0.upgrade();
        wait(match timeout {
            Some(time) => upgrade.timeout(time),
            None => upgrade,
        })
    }
}

impl<G: GuardKind + Deref<Target = crate::Guard>> Guard<G> {
    /// A view to hand around.
    pub fn view(&self) -> Held {
        self.0.held()
    }
}

impl Deref for Guard<crate::Guard> {
    type Target = crate::Guard;
    fn deref(&self) -> &crate::Guard {
        &self.0
    }
}

impl Deref for Guard<crate::WriteGuard> {
    type Target = crate::WriteGuard;
    fn deref(&self) -> &crate::WriteGuard {
        &self.0
    }
}

impl Deref for Guard<crate::UpgradableGuard> {
    type Target = crate::UpgradableGuard;
    fn deref(&self) -> &crate::UpgradableGuard {
        &self.0
    }
}

impl Held {
    /// [`Held::verify`] for threads.
    ///
    /// # Errors
    /// The same.
    pub fn verify_blocking(&self) -> Result<()> {
        wait(self.verify())
    }

    /// [`Held::lost`] for threads: parks until the lock is gone.
    pub fn lost_blocking(&self) -> crate::Lost {
        wait(self.lost())
    }
}
