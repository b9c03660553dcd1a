//! Caller-driven I/O: whoever waits for an answer reads it, in its own thread.

pub(super) mod follow;
mod lend;
pub(crate) mod park;

pub(super) use lend::Watched;
