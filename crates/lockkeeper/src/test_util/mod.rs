//! For tests of services that use locks: a memory engine on a clock of the test's own, whose locks
//! can be lost at will.
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

use crate::engine::{Answer, Engine};
pub use crate::keeper::hosted::{Host, Residue};
use crate::{Clock, Locks, Lost, Name, Result};
use trouble::{Trouble, Troubled};

mod trouble;

/// The machines themselves, for the model checker. Not part of the interface: they change with any
/// release.
#[doc(hidden)]
pub mod machines {
    #[cfg(all(feature = "file", target_os = "linux"))]
    pub use crate::engine::file::{bytes, recipe as file};
    pub use crate::protocol::{lease, line};
}

/// A memory engine on a virtual clock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::{ErrorKind, test_util::Bench};
/// let bench = Bench::open().await?;
/// bench.unreachable();
/// let error = bench.locks().mutex("stock").lock().await.unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::Unreachable);
/// bench.recover();
/// assert!(bench.locks().mutex("stock").lock().await.is_ok());
/// # Ok(()) }
/// ```
pub struct Bench {
    locks: Locks,
    clock: Clock,
    engine: Troubled,
}

impl Bench {
    /// Opens one; its clock stands still until [`Bench::advance`].
    ///
    /// # Errors
    /// None that a test could cause.
    pub async fn open() -> Result<Self> {
        let clock = Clock::virtual_at(Duration::from_secs(1));
        let engine = Troubled::new(clock.clone());
        let locks = Locks::builder().clock(clock.clone()).with_engine(engine.clone()).await?;
        Ok(Self { locks, clock, engine })
    }

    /// The locks to hand to the service under test.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Moves the clock: timeouts, `hold_at_most`, offers.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
        self.engine.clock_moved();
    }

    /// From now on each request takes effect and is answered this long after it was sent, on the
    /// bench's clock: move it with [`Bench::advance`].
    pub fn delay(&self, by: Duration) {
        self.engine.set(Trouble::Delayed(by));
    }

    /// From now on the engine refuses each request, as for a wrong password: `Refused`. What is
    /// given back meanwhile is `Unknown` and free once the bench has recovered, as after the end of
    /// its lease.
    pub fn refuse(&self) {
        self.engine.set(Trouble::Refused);
    }

    /// From now on the engine cannot be reached: `Unreachable`. A release arrives, but its answer
    /// is lost: it is `Unknown`.
    pub fn unreachable(&self) {
        self.engine.set(Trouble::Unreachable);
    }

    /// Ends what [`Bench::delay`], [`Bench::refuse`] or [`Bench::unreachable`] began. What is
    /// delayed already keeps its delay.
    pub fn recover(&self) {
        self.engine.set(Trouble::None);
    }

    /// Lets the lease of whoever holds a lock run out; answers whether somebody held it.
    ///
    /// # Errors
    /// `InvalidName`.
    pub fn expire(&self, name: &str) -> Result<bool> {
        Ok(self.engine.memory.lose(&Name::new(name)?, Lost::Expired))
    }

    /// Takes a lock away from whoever holds it, as a real engine does in its bad hours; answers
    /// whether somebody did.
    ///
    /// # Errors
    /// `InvalidName`.
    pub fn lose(&self, name: &str) -> Result<bool> {
        Ok(self.engine.memory.lose(&Name::new(name)?, Lost::TakenAway))
    }
}

impl std::fmt::Debug for Bench {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bench").field("clock", &self.clock).finish_non_exhaustive()
    }
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

/// Lets this thread draw claim ids from a seed until the value is dropped, so that a simulation
/// replays.
#[must_use = "ids are fresh again as soon as it is dropped"]
#[derive(Debug)]
pub struct SeededIds(PhantomData<*const ()>);

impl SeededIds {
    /// Begins with this seed.
    pub fn begin(seed: u64) -> Self {
        crate::words::id::seeded::seed(Some(seed));
        Self(PhantomData)
    }
}

impl Drop for SeededIds {
    fn drop(&mut self) {
        crate::words::id::seeded::seed(None);
    }
}

#[cfg(test)]
mod tests {
    use std::future::IntoFuture;

    use super::*;
    use crate::{ErrorKind, Released};

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn c29_a_refusal_and_an_outage_reach_the_caller_and_end_when_the_test_says_so() {
        let bench = Bench::open().await.unwrap();
        let stock = bench.locks().mutex("stock");
        bench.refuse();
        assert_eq!(stock.lock().await.unwrap_err().kind(), ErrorKind::Refused);
        bench.unreachable();
        assert_eq!(stock.try_lock().await.unwrap_err().kind(), ErrorKind::Unreachable);
        bench.recover();
        assert!(stock.try_lock().await.unwrap().is_some());
    }

    #[tokio::test]
    async fn c29_a_release_in_an_outage_is_unknown_and_leaves_the_name_free() {
        let bench = Bench::open().await.unwrap();
        let stock = bench.locks().mutex("stock");
        let guard = stock.lock().await.unwrap();
        bench.unreachable();
        assert!(matches!(guard.release().await, Released::Unknown(_)));
        bench.recover();
        assert!(stock.try_lock().await.unwrap().is_some());
    }

    #[tokio::test]
    async fn c29_a_release_that_is_refused_is_unknown_and_leaves_the_name_free() {
        for drops in [true, false] {
            let bench = Bench::open().await.unwrap();
            let stock = bench.locks().mutex("stock");
            let guard = stock.lock().await.unwrap();
            bench.refuse();
            if drops {
                drop(guard);
            } else {
                assert!(matches!(guard.release().await, Released::Unknown(_)));
            }
            bench.advance(MINUTE);
            bench.recover();
            assert!(stock.try_lock().await.unwrap().is_some());
        }
    }

    #[tokio::test]
    async fn c29_several_locks_at_once_are_asked_for_in_one_request_of_the_bench() {
        let bench = Bench::open().await.unwrap();
        let both = || bench.locks().all(["a", "b"].map(|name| bench.locks().mutex(name).lock()));
        bench.delay(MINUTE);
        let mut locked = Box::pin(both().into_future());
        let guards = tokio::select! {
            biased;
            _ = &mut locked => panic!("granted before its time"),
            () = tokio::task::yield_now() => {
                // One after the other would need another minute.
                bench.advance(MINUTE);
                let locked = tokio::time::timeout(Duration::from_secs(20), locked).await;
                locked.expect("one request").unwrap()
            }
        };
        bench.recover();
        drop(guards);
        bench.refuse();
        assert_eq!(both().await.unwrap_err().kind(), ErrorKind::Refused);
        bench.unreachable();
        assert_eq!(both().await.unwrap_err().kind(), ErrorKind::Unreachable);
        bench.recover();
        assert!(both().await.is_ok());
    }

    #[tokio::test]
    async fn c29_a_delayed_request_takes_effect_when_the_clock_gets_there() {
        let bench = Bench::open().await.unwrap();
        bench.delay(MINUTE);
        let mut lock = Box::pin(bench.locks().mutex("stock").lock().into_future());
        tokio::select! {
            biased;
            _ = &mut lock => panic!("granted before its time"),
            () = tokio::task::yield_now() => bench.advance(MINUTE),
        }
        assert!(lock.await.is_ok());
    }

    #[tokio::test]
    async fn c29_an_expired_hold_says_so_and_the_name_is_free() {
        let bench = Bench::open().await.unwrap();
        let stock = bench.locks().mutex("stock");
        let guard = stock.lock().await.unwrap();
        assert!(bench.expire("stock").unwrap() && !bench.expire("nobody").unwrap());
        assert_eq!(guard.lost().await, Lost::Expired);
        assert!(stock.try_lock().await.unwrap().is_some());
    }

    #[tokio::test]
    async fn c29_a_time_out_names_this_process_and_for_how_long_it_holds() {
        let bench = Bench::open().await.unwrap();
        let stock = bench.locks().mutex("stock");
        let _held = stock.lock().await.unwrap();
        bench.advance(MINUTE * 3);
        let mut lock = Box::pin(stock.lock().timeout(MINUTE).into_future());
        let error = tokio::select! {
            biased;
            got = &mut lock => got.unwrap_err(),
            () = tokio::task::yield_now() => { bench.advance(MINUTE); lock.await.unwrap_err() }
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(error.to_string().contains("held by this process for 4m"), "{error}");
    }

    #[tokio::test]
    async fn c6_a_holder_of_our_host_and_pid_is_this_process_only_where_this_process_drew_its_id() {
        let url = "memory:two-containers-of-one-host-name";
        let (one, two) = (Locks::open(url).await.unwrap(), Locks::open(url).await.unwrap());
        let refusal = async || {
            two.mutex("stock").lock().timeout(Duration::ZERO).await.unwrap_err().to_string()
        };
        let held = one.mutex("stock").lock().await.unwrap();
        assert!(refusal().await.contains("held by this process"));
        assert!(held.release().await.is_clean());
        // As the claim of another process would be.
        let drawn_elsewhere = SeededIds::begin(1);
        let held = one.mutex("stock").lock().await.unwrap();
        drop(drawn_elsewhere);
        let told = refusal().await;
        assert!(
            told.contains(&format!("(pid {})", std::process::id()))
                && !told.contains("this process"),
            "{told}"
        );
        assert!(held.release().await.is_clean());
    }
}
