//! What takes longer, for the campaign, where a module is a process of its own. By hand, too, a
//! module is what runs (`--test long long_redis::`): some have to be alone, or measure.
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

mod long_cluster;
mod long_cluster_conformance;
mod long_cluster_schedules;
mod long_conformance;
mod long_contending;
mod long_moving;
mod long_outside;
mod long_postgres;
mod long_redis;
mod long_redlock;
mod long_sentinel;
mod long_sentinel_schedules;
