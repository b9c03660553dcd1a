//! The same with a scheduler that looks for the order in which things go wrong.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, PoisonError};

use shuttle::scheduler::Scheduler;

thread_local! {
    /// Shuttle runs all its threads on the one that called it.
    static EXPLORING: Cell<bool> = const { Cell::new(false) };
}

fn exploring() -> bool {
    EXPLORING.get() && !std::thread::panicking()
}

/// Runs `test` again and again, each time in another order of its threads and tasks; answers how
/// often.
#[cfg_attr(not(feature = "test-util"), allow(dead_code, reason = "the keeper's tests use it"))]
pub(crate) fn explore(
    scheduler: impl Scheduler + 'static,
    test: impl Fn() + Send + Sync + 'static,
) -> usize {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            EXPLORING.set(false);
        }
    }
    EXPLORING.set(true);
    let _over = Over;
    shuttle::Runner::new(scheduler, shuttle::Config::new()).run(test)
}

/// Another thread may go first here.
fn point() {
    if exploring() {
        shuttle::thread::yield_now();
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Mutex<T> {
    gate: shuttle::sync::Mutex<()>,
    inner: std::sync::Mutex<T>,
}

/// The inner one goes first.
pub(crate) struct MutexGuard<'a, T> {
    inner: std::sync::MutexGuard<'a, T>,
    _gate: Option<shuttle::sync::MutexGuard<'a, ()>>,
}

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self { gate: shuttle::sync::Mutex::new(()), inner: std::sync::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> LockResult<MutexGuard<'_, T>> {
        let gate = exploring().then(|| self.gate.lock().unwrap_or_else(PoisonError::into_inner));
        match self.inner.lock() {
            Ok(inner) => Ok(MutexGuard { inner, _gate: gate }),
            Err(poisoned) => {
                Err(PoisonError::new(MutexGuard { inner: poisoned.into_inner(), _gate: gate }))
            }
        }
    }

    pub(crate) fn get_mut(&mut self) -> LockResult<&mut T> {
        self.inner.get_mut()
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

/// Those that the keeper uses.
pub(crate) mod atomic {
    pub(crate) use std::sync::atomic::Ordering;

    use super::point;

    macro_rules! atomic {
        ($name:ident, $value:ty) => {
            #[derive(Debug, Default)]
            pub(crate) struct $name(std::sync::atomic::$name);

            #[allow(dead_code, reason = "not every one has to do everything")]
            impl $name {
                pub(crate) const fn new(value: $value) -> Self {
                    Self(std::sync::atomic::$name::new(value))
                }
                pub(crate) fn load(&self, order: Ordering) -> $value {
                    point();
                    self.0.load(order)
                }
                pub(crate) fn store(&self, value: $value, order: Ordering) {
                    point();
                    self.0.store(value, order);
                }
                pub(crate) fn swap(&self, value: $value, order: Ordering) -> $value {
                    point();
                    self.0.swap(value, order)
                }
                pub(crate) fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    point();
                    self.0.compare_exchange(current, new, success, failure)
                }
                pub(crate) fn get_mut(&mut self) -> &mut $value {
                    self.0.get_mut()
                }
            }
        };
    }

    atomic!(AtomicBool, bool);
    atomic!(AtomicU8, u8);
    atomic!(AtomicU64, u64);
    atomic!(AtomicUsize, usize);
}
