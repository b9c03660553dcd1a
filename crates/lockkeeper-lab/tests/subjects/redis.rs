//! A Redis server of a test's own, as a subject of the suite.

use lockkeeper_lab::conformance::Subject;

use super::redis_server::redis_as;
use super::{HELPER, LEASES, PATIENT};

/// A server of its own that keeps everything on disk.
pub fn redis(row: &str, options: &str) -> Subject {
    let mut brief = String::new();
    let subject = redis_as(row, |server| {
        let [url, short] = LEASES.map(|lease| format!("{server}?{lease}&{PATIENT}{options}"));
        brief = short;
        url
    });
    subject.briefly(brief).helper(HELPER)
}
