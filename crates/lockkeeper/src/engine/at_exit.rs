//! Releases that would be lost if the process ended now: one that ends waits for them a moment.
//!
//! The drop of a guard hands its release to the kernel and waits for nothing (R6). Where the socket
//! is full, or the driver uses it, the keeper's thread writes the rest, and that thread ends with
//! the process. And a server that is about to answer something earlier finds that the process is
//! gone, and may leave unread what came behind that. So `exit`, and the end of `main`, give both a
//! little time. `_exit`, abort, a signal and exec do not.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::words::id::fork_generation;

/// For how long a process that ends waits at most: nobody may be reading at the other end.
const AT_EXIT: Duration = Duration::from_millis(100);
/// How often it looks.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

static COUNT: Count = Count(AtomicU64::new(0));

/// Releases of one connection that are at risk, until this is dropped.
#[derive(Debug)]
pub(super) struct AtRisk {
    generation: u32,
}

impl AtRisk {
    pub(super) fn begin() -> Self {
        static AT_END: Once = Once::new();
        AT_END.call_once(|| {
            // SAFETY: the function takes nothing, does not unwind, and lives as long as the
            // program.
            let _ = unsafe { nix::libc::atexit(wait_at_exit) };
        });
        let generation = fork_generation();
        COUNT.add(generation);
        Self { generation }
    }
}

impl Drop for AtRisk {
    fn drop(&mut self) {
        COUNT.remove(self.generation);
    }
}

/// How many there are, below the fork generation that they belong to: a child counts its own, and
/// never waits for its parent's.
struct Count(AtomicU64);

impl Count {
    fn add(&self, generation: u32) {
        self.change(|count| Some(pack(generation, of(count, generation) + 1)));
    }

    fn remove(&self, generation: u32) {
        self.change(|count| of(count, generation).checked_sub(1).map(|n| pack(generation, n)));
    }

    fn of(&self, generation: u32) -> u32 {
        of(self.0.load(Ordering::Acquire), generation)
    }

    fn change(&self, to: impl FnMut(u64) -> Option<u64>) {
        // Without a change it is another generation's.
        let _ = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, to);
    }
}

fn pack(generation: u32, count: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(count)
}

fn of(packed: u64, generation: u32) -> u32 {
    if packed >> 32 == u64::from(generation) { packed as u32 } else { 0 }
}

extern "C" fn wait_at_exit() {
    let (begun, patience) = (Instant::now(), patience());
    // The keeper's thread goes on meanwhile.
    while COUNT.of(fork_generation()) > 0 && begun.elapsed() < patience {
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// For how long it waits; a test that is about order waits until it has it.
fn patience() -> Duration {
    #[cfg(test)]
    if std::env::var_os("LOCKKEEPER_TEST_WAITS_AT_EXIT").is_some() {
        return Duration::MAX;
    }
    AT_EXIT
}

#[cfg(test)]
mod tests {
    use super::Count;

    #[test]
    fn r15_a_forked_child_counts_its_own_releases_alone() {
        let count = Count(0.into());
        count.add(0);
        count.add(0);
        assert_eq!((count.of(0), count.of(1)), (2, 0), "a child begins with none");
        count.remove(0);
        assert_eq!(count.of(0), 1);
        count.add(1);
        assert_eq!(count.of(1), 1);
        // The copy of the parent's.
        count.remove(0);
        assert_eq!(count.of(1), 1);
        count.remove(1);
        assert_eq!(count.of(1), 0);
        count.remove(1);
        assert_eq!(count.of(1), 0);
    }
}
