//! How long the threads of clients were ready to run and had no processor, as the kernel counts
//! it. The pulse cannot tell: a thread that mostly sleeps is run before those that mostly compute.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::Late;
use crate::history::Writer;
use crate::torture::storm::Storm;

/// How often the kernel is asked: a wait shows up so much later than it ended, at most, on a
/// machine that runs us.
const EVERY: Duration = Duration::from_millis(20);

/// The steps of a hand-off are few. What keeps all of them from a processor for longer than this is
/// seen by the pulse as well.
const MOST_NS: u64 = 1_000_000_000;

/// The processes whose threads count. One that has ended is forgotten by itself.
#[derive(Clone, Default)]
pub(crate) struct Processes(Arc<Mutex<BTreeSet<u32>>>);

impl Processes {
    pub(crate) fn add(&self, process: u32) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(process);
    }

    /// What each thread waited for a processor since it began.
    fn waited(&self) -> Vec<Waited> {
        let mut processes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut waited = Vec::new();
        processes.retain(|process| {
            let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
                return false;
            };
            waited.extend(threads.flatten().filter_map(|thread| {
                let number = thread.file_name().to_str()?.parse().ok()?;
                let ns = delay_ns(thread.path().join("schedstat"))?;
                Some(Waited { process: *process, thread: number, ns })
            }));
            true
        });
        waited
    }
}

/// What one thread waited since it began.
struct Waited {
    process: u32,
    thread: u32,
    ns: u64,
}

/// The second number: time on a processor, time ready for one, how often it ran. A kernel that
/// does not count has no such file, or zeroes in it.
fn delay_ns(file: PathBuf) -> Option<u64> {
    std::fs::read_to_string(file).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// What each process waited, and when.
#[derive(Default)]
pub(super) struct Queued {
    threads: BTreeMap<u32, u64>,
    processes: BTreeMap<u32, Late>,
}

impl Queued {
    fn note(&mut self, now: u64, all: &[Waited]) {
        let mut more: BTreeMap<u32, u64> = BTreeMap::new();
        for Waited { process, thread, ns } in all {
            // What it waited before it was seen first belongs to no time that is known. A number
            // that is given again begins anew.
            let before = self.threads.insert(*thread, *ns).unwrap_or(*ns);
            *more.entry(*process).or_default() += ns.checked_sub(before).unwrap_or(*ns);
        }
        for (process, more) in more {
            self.processes.entry(process).or_default().note(now, more);
        }
    }

    /// What one process waited within a time, the one that waited longest: a hand-off goes through
    /// its threads one after the other. At most half of the time, and a second: clients of a busy
    /// machine wait for processors all the time, and a lock that nobody gets is not explained by
    /// that.
    pub(super) fn within(&self, from: u64, to: u64) -> u64 {
        let most = self.processes.values().map(|late| late.within(from, to)).max().unwrap_or(0);
        most.min(to.saturating_sub(from) / 2).min(MOST_NS)
    }
}

/// Asks for all of them again and again.
pub(super) fn watch(processes: Processes, told: Arc<Mutex<Queued>>) -> Result<Storm, String> {
    Storm::begin(EVERY, move || {
        let waited = processes.waited();
        told.lock().unwrap_or_else(PoisonError::into_inner).note(Writer::now(), &waited);
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_process_that_waited_longest_counts_with_all_its_threads_and_for_half_of_a_wait() {
        let mut queued = Queued::default();
        let mut note = |at: u64, all: [u64; 3]| {
            let all = all.iter().zip(1..).map(|(ms, thread)| {
                let process = if thread == 3 { 2 } else { 1 };
                Waited { process, thread, ns: ms * MS }
            });
            queued.note(at * MS, &all.collect::<Vec<_>>());
        };
        note(20, [500, 40, 0]);
        note(40, [503, 42, 12]);
        note(60, [506, 42, 18]);
        note(80, [506, 42, 21]);
        // The thread's number is another's now.
        note(100, [4, 42, 21]);
        for second in 1..10 {
            note(100 + 1_000 * second, [4 + 900 * second, 42, 21]);
        }
        let within = |from: u64, to: u64| queued.within(from * MS, to * MS) / MS;
        assert_eq!((within(20, 40), within(20, 100), within(80, 100)), (10, 21, 4));
        assert_eq!(within(20, 60), 18, "its threads together are 8");
        assert_eq!(within(100, 120), 0);
        assert_eq!(within(100, 9_100), 1_000);
    }

    #[test]
    fn what_threads_of_a_process_wait_is_read_and_a_process_that_ended_is_forgotten() {
        let processes = Processes::default();
        processes.add(std::process::id());
        processes.add(u32::MAX);
        let this = nix::unistd::gettid().as_raw();
        assert!(processes.waited().iter().any(|w| i64::from(w.thread) == i64::from(this)));
        assert_eq!(processes.0.lock().unwrap().len(), 1);
    }
}
