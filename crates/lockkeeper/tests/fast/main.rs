//! Tests of the library from outside. A module is a process of its own in `cargo xtask test`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy knows that only of functions marked as tests"
)]

mod examples;
mod memory;
mod rotation;
