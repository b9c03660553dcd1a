//! The mutex and the atomics at which the keeper's threads meet: std's.
//!
//! In the tests of this crate each of their operations is a place where
//! [shuttle](https://docs.rs/shuttle) may let another thread go first, while an exploration runs
//! (`keeper/tests/schedules.rs`); without one they are std's there, too.

#[cfg(test)]
pub(crate) mod explored;

#[cfg(not(test))]
pub(crate) use std::sync::{Mutex, MutexGuard, atomic};

#[cfg(test)]
pub(crate) use explored::{Mutex, MutexGuard, atomic};
