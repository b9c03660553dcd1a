//! A Redis server of a test's own, as a subject of the suite.

use lockkeeper_lab::conformance::Subject;

use super::HELPER;
use super::redis_server::redis_as;

/// A server of its own that keeps everything on disk.
pub fn redis(row: &str, options: &str) -> Subject {
    redis_as(row, |server| format!("{server}?ttl=2s{options}")).helper(HELPER)
}
