//! Waiting in tests for what another process or thread is about to do.

use std::time::{Duration, Instant};

/// Longer than anything that comes takes, also on a machine with other things to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until something is so.
pub fn until(what: &str, mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() {
        assert!(begun.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
