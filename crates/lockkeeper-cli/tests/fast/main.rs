//! Tests of the program. A module is a process of its own in `cargo xtask test`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking; clippy knows that only of functions marked as tests"
)]

#[path = "../common/mod.rs"]
mod common;

mod acquire_and_elect;
mod answers;
mod auto;
mod bad_input;
mod bad_servers;
mod bench;
mod cluster;
mod completions;
mod contenders;
mod demo;
mod demo_on_servers;
mod doctor_probe;
mod exit_codes;
mod first_process;
mod forced;
mod guardian;
mod help;
mod hints;
mod hostile_directories;
mod idle_ttl;
mod json_keys;
mod lab_rules;
mod leases;
mod looking;
mod looking_at_servers;
mod looking_on_a_terminal;
mod neighbours;
mod on_a_terminal;
mod other_layouts;
mod places;
mod postgres;
mod postgres_bad_input;
mod postgres_tls;
mod redlock;
mod run_rules;
mod sentinel;
mod sidecar;
mod surroundings;
mod torture_and_bench_processes;
mod torture_network;
mod unreadable_records;
mod url_options;
mod waiting;
mod who_has_it;
