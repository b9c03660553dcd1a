//! What tests with processes and servers share.
#![allow(dead_code, reason = "each program has some of the tests")]

use std::time::Duration;

use lockkeeper::{Kind, Locks};
use tokio::runtime::Runtime;

/// The program that takes locks in another process.
pub const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// No test of the gate waits longer than this for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A runtime with so many threads.
pub fn runtime(threads: usize) -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Runs it to its end on so many threads; only a hang takes longer than `patience`.
pub fn run_on<T>(threads: usize, patience: Duration, future: impl Future<Output = T>) -> T {
    runtime(threads)
        .block_on(async { tokio::time::timeout(patience, future).await.expect("in time") })
}

/// The same for a test of the gate.
pub fn run<T>(future: impl Future<Output = T>) -> T {
    run_on(2, 2 * PATIENCE, future)
}

/// Waits until so many stand in line.
pub async fn until_waiting(locks: &Locks, places: usize) {
    while locks.status(Kind::Lock, "a").await.expect("it can be read").waiters.len() < places {
        tokio::task::yield_now().await;
    }
}
