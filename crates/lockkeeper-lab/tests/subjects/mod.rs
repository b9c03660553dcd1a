//! Servers of a test's own, as subjects of the suite.
#![allow(dead_code, reason = "each program has some of the rows")]

pub mod cluster;
pub mod postgres;
pub mod redis;
pub mod redis_server;
pub mod zookeeper;

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");
