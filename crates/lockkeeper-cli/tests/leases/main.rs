//! `run`, `acquire` and `elect` on engines with leases.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

#[path = "../common/mod.rs"]
mod common;

mod acquire_and_elect;
mod clock_step;
mod command;
mod margins;
mod nested;
mod unreachable;
mod waiting;
