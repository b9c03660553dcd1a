//! Servers of a test's own, as subjects of the suite.
#![allow(dead_code, reason = "each program has some of the rows")]

pub mod cluster;
pub mod postgres;
pub mod redis;
pub mod redis_server;
pub mod zookeeper;

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// The times of a URL that outlast a machine which stands still for a few seconds. A case waits
/// until a request is given up.
pub const PATIENT: &str = "connect_timeout=1m&request_timeout=8s";

/// The leases of a row, and those whose end is waited for.
pub const LEASES: [&str; 2] = ["ttl=8s", "ttl=2s"];
