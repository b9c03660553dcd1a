//! Tests of the laboratory, and of engines with it. A module is a process of its own in
//! `cargo xtask test`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy knows that only of functions marked as tests"
)]

#[path = "../common/mod.rs"]
mod common;
#[path = "../subjects/mod.rs"]
mod subjects;

mod canonical_names;
mod check;
mod conformance;
mod engine_names;
mod footprint;
mod footprint_elsewhere;
mod history;
mod moving;
mod outsider;
mod pooler;
mod recorder;
mod redis_failures;
mod seeds;
mod sentinel_failures;
mod sim;
