//! What takes longer, for the campaign, where a module is a process of its own. By hand, too, a
//! module is what runs (`--test long long_sweep::`): some have to be alone, or measure.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy knows that only of functions marked as tests"
)]

#[path = "../common/mod.rs"]
mod common;

mod long_bench_leaves_nothing;
mod long_bench_on_postgres;
mod long_broken_clients;
mod long_dead_waiters;
mod long_given_servers;
mod long_guardian;
mod long_outages;
mod long_releases;
mod long_run_torture;
mod long_sweep;
mod long_zookeeper_refuses;
