//! A Redis server of a test's own, as a subject of the suite.

#[path = "redis_server.rs"]
mod server;

use lockkeeper_lab::conformance::Subject;

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

/// A server of its own that keeps everything on disk.
pub fn redis(row: &str, options: &str) -> Subject {
    server::redis_as(row, |server| format!("{server}?ttl=2s{options}")).helper(HELPER)
}
