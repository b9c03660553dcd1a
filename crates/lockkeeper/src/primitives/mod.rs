//! What a program asks for, one primitive a file, and what it gets: guards, watches, statements.

pub(crate) mod acquire;
pub(crate) mod barrier;
pub(crate) mod beside;
pub mod blocking;
pub(crate) mod election;
#[cfg(feature = "redis")]
pub mod fence;
pub(crate) mod guard;
pub(crate) mod guarded;
pub(crate) mod latch;
pub(crate) mod many;
pub(crate) mod mutex;
pub(crate) mod owner;
pub(crate) mod rwlock;
pub(crate) mod semaphore;
pub(crate) mod statement;
pub(crate) mod watch;
pub(crate) mod who;
