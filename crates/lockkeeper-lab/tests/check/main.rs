//! The checker: what it must convict, what it must let pass, and that it agrees with exhaustive
//! search.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on panics"
)]

mod faults;
mod files;
mod generate;
mod leases;
mod moments;
mod order;
mod planted;
mod refusals;
mod search;
mod searched;
mod sharing;
mod skew;
mod story;
mod words;
