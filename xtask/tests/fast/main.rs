//! Tests of the tasks and of the pages. A module is a process of its own in `cargo xtask test`.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; clippy knows that only of functions marked as tests"
)]

mod interrupted;
mod pages;
mod rust_version;
mod set_up;
