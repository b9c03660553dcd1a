//! The judges of histories: pure rules that take the records of all clients in the order of time.
//!
//! [`Checker`] judges what a history shows to be wrong, and answers a [`Report`]. Each of its rules
//! has a file: who holds at once (`occupancy`), tokens (`tokens`), refused tries (`busy`), the line
//! (`line`), deadlines (`lease`), recovery (`recovery`), the resource's log (`resource`); `lock`
//! joins them for one lock. Torture judges beside it what takes a promise and a quiet machine to
//! judge: a lock that nobody gets (`liveness`), a waiter that others overtake (`starvation`), a
//! hold that is lost for nothing (`groundless`), what a caller costs the server (`cost`); `chances`
//! counts what a run could have been convicted of.

mod book;
mod busy;
pub(crate) mod chances;
mod checker;
mod claims;
mod class;
mod converts;
pub(crate) mod cost;
mod endings;
mod events;
pub(crate) mod groundless;
mod lease;
mod line;
pub(crate) mod liveness;
mod lock;
mod occupancy;
mod recovery;
pub(crate) mod replay;
mod report;
mod resource;
pub(crate) mod starvation;
mod surroundings;
mod tokens;

use std::time::Duration;

pub use checker::Checker;
pub use class::{Class, Verdict};
pub use recovery::STANDS_STILL;
pub use report::{Client, Counts, Durations, Late, Moment, Options, RecordRef, Report, Violation};

/// A time in the unit of histories.
pub(crate) fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What the checker of histories does not judge: `liveness`, a lock that nobody gets, `starvation`,
/// a lock that one who waits never gets, `groundless-loss`, a hold that is lost though nothing
/// happened to it, `cost`, requests for it that cost the server the more, the more wait, and
/// `crash`, a client that ended by itself, or did not end when it was told to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conviction {
    /// One of the five words.
    pub class: &'static str,
    /// Of which lock; empty for all.
    pub name: String,
    /// When it began, on the clock of histories.
    pub at: u64,
    /// When it was over, or showed.
    pub until: u64,
    /// What happened.
    pub sentence: String,
}
