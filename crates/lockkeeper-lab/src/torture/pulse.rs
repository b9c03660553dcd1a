//! How late this machine runs a thread that is due, and the threads of clients that are ready: what
//! a bound on time has to forgive, and no more.

mod queued;

pub(crate) use queued::Processes;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use self::queued::Queued;
use super::storm::Storm;
use crate::check;
use crate::history::Writer;

/// How often it beats.
const EVERY: Duration = Duration::from_millis(10);
/// A hand-off goes through this many threads at most, one after the other, that each may have to
/// wait for a processor: the one that releases, the one that hears of it, and the one that takes
/// the lock.
const HOPS: u64 = 3;
/// What every machine takes to wake a thread.
const USUAL_NS: u64 = 1_000_000;
/// Histories lie in mapped files: while the disk is behind, whoever writes into a page that is
/// clean waits for it, all clients at once.
const PAGES: u64 = 256;
const PAGE: u64 = 4096;
/// How often a page is brought to the disk, where a grant is a commit. One that takes longer than
/// this is slow: a connection waits for some of them one after the other, and a claim lease is
/// over.
const COMMIT_EVERY: Duration = Duration::from_millis(50);
const COMMIT_USUAL_NS: u64 = 50_000_000;

/// A thread that is due again and again, and writes down when it came late; another asks the kernel
/// how long clients waited for processors.
pub(crate) struct Pulse {
    late: Arc<Mutex<Late>>,
    disk: Arc<Mutex<Late>>,
    queued: Arc<Mutex<Queued>>,
    processes: Processes,
    _beats: Vec<Storm>,
}

/// When it came, and how late it was.
#[derive(Default)]
struct Late(Vec<(u64, u64)>);

impl Late {
    fn beat(&mut self, last: u64, now: u64) {
        let late =
            now.saturating_sub(last).saturating_sub(u64::try_from(EVERY.as_nanos()).unwrap_or(0));
        self.note(now, late);
    }

    fn note(&mut self, now: u64, late: u64) {
        if late > USUAL_NS {
            self.0.push((now, late));
        }
    }

    /// A commit was under way from this moment to that.
    fn commit(&mut self, from: u64, to: u64) {
        let took = to.saturating_sub(from);
        if took > COMMIT_USUAL_NS {
            self.0.push((to, took));
        }
    }

    /// How much of a time went by without it.
    fn within(&self, from: u64, to: u64) -> u64 {
        let first = self.0.partition_point(|(at, _)| *at <= from);
        let missed = |(at, late): &(u64, u64)| {
            (*at).min(to).saturating_sub(at.saturating_sub(*late).max(from))
        };
        self.0
            .iter()
            .skip(first)
            .take_while(|(at, late)| at.saturating_sub(*late) < to)
            .map(missed)
            .sum()
    }
}

impl Pulse {
    /// `dir` is where histories are written: each time a page there is written, too. Servers that
    /// write `commits` to a disk have their data below it.
    pub(crate) fn start(dir: &Path, commits: bool) -> Result<Self, String> {
        let create = |name| {
            let path = dir.join(name);
            File::create(&path).map_err(|e| format!("{}: {e}", path.display()))
        };
        let file = create("pulse")?;
        let late = Arc::new(Mutex::new(Late::default()));
        let (told, mut last) = (late.clone(), Writer::now());
        let mut pages = (0..PAGES).cycle();
        let beat = move || {
            // A full disk is noticed by those who need it.
            let _ = file.write_at(&[1], pages.next().unwrap_or_default() * PAGE);
            let now = Writer::now();
            told.lock().unwrap_or_else(PoisonError::into_inner).beat(last, now);
            last = now;
        };
        let (queued, processes) = <(Arc<Mutex<Queued>>, Processes)>::default();
        let mut beats =
            vec![Storm::begin(EVERY, beat)?, queued::watch(processes.clone(), queued.clone())?];
        let disk = Arc::<Mutex<Late>>::default();
        if commits {
            let (file, told) = (create("commits")?, disk.clone());
            let commit = move || {
                let from = Writer::now();
                let _ = file.write_at(&from.to_le_bytes(), 0).and_then(|_| file.sync_data());
                let to = Writer::now();
                let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
                told.commit(from, to);
            };
            beats.push(Storm::begin(COMMIT_EVERY, commit)?);
        }
        Ok(Self { late, disk, queued, processes, _beats: beats })
    }

    /// The processes whose threads are to be run: clients are added to them.
    pub(crate) fn processes(&self) -> &Processes {
        &self.processes
    }

    /// One that was late once, by so much at that time.
    #[cfg(test)]
    pub(crate) fn late_once(at: u64, late: u64) -> Self {
        Self { late: Arc::new(Mutex::new(Late(vec![(at, late)]))), ..Self::silent() }
    }

    fn silent() -> Self {
        let (late, disk, queued) = Default::default();
        Self { late, disk, queued, processes: Processes::default(), _beats: Vec::new() }
    }

    /// How much a hand-off between these moments may be late because threads that were due did not
    /// run.
    pub(crate) fn forgiven_ns(&self, from: u64, to: u64) -> u64 {
        HOPS.saturating_mul(
            self.late.lock().unwrap_or_else(PoisonError::into_inner).within(from, to),
        )
    }

    /// The same, or what a client waited itself or for the disk, if that is more.
    fn forgiven_of_waits_ns(&self, from: u64, to: u64) -> u64 {
        let queued = self.queued.lock().unwrap_or_else(PoisonError::into_inner).within(from, to);
        self.forgiven_ns(from, to).max(queued).max(self.slow_commits_ns(from, to))
    }

    /// The first of these, for whatever excuses what happens to holds.
    pub(crate) fn late(&self) -> check::Late {
        let pulse = self.twin();
        check::Late::told_by(move |from, to| pulse.forgiven_ns(from, to))
    }

    /// The second, for whatever judges how soon a lock that is free is somebody's.
    pub(crate) fn late_of_waits(&self) -> check::Late {
        let pulse = self.twin();
        check::Late::told_by(move |from, to| pulse.forgiven_of_waits_ns(from, to))
    }

    /// For how long slow commits were under way, where a grant is one.
    fn slow_commits_ns(&self, from: u64, to: u64) -> u64 {
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).within(from, to)
    }

    /// The same, for whatever excuses who was passed in line.
    pub(crate) fn slow_commits(&self) -> check::Late {
        let pulse = self.twin();
        check::Late::told_by(move |from, to| pulse.slow_commits_ns(from, to))
    }

    fn twin(&self) -> Self {
        let (late, disk, queued) = (self.late.clone(), self.disk.clone(), self.queued.clone());
        Self { late, disk, queued, ..Self::silent() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn it_waits_for_the_disk_that_histories_wait_for() {
        let dir = tempfile::tempdir().unwrap();
        let pulse = Pulse::start(dir.path(), false).unwrap();
        let written = || std::fs::metadata(dir.path().join("pulse")).unwrap().len();
        let began = std::time::Instant::now();
        while written() <= PAGE {
            assert!(began.elapsed() < Duration::from_secs(120), "each time another page");
            std::thread::sleep(EVERY);
        }
        drop(pulse);
        let error = Pulse::start(&dir.path().join("nowhere"), false).err().unwrap();
        assert!(error.contains("nowhere/pulse"), "{error}");
    }

    #[test]
    fn what_is_late_counts_for_the_time_in_which_it_was() {
        let mut late = Late::default();
        late.beat(0, 10 * MS);
        late.beat(10 * MS, 21 * MS);
        assert_eq!(late.within(0, 1_000 * MS), 0, "as usual");
        late.beat(21 * MS, 81 * MS);
        late.beat(81 * MS, 191 * MS);
        assert_eq!(late.within(0, 1_000 * MS), 150 * MS);
        assert_eq!(late.within(0, 51 * MS), 20 * MS, "it was due at 31 and did not come until 81");
        assert_eq!(late.within(81 * MS, 91 * MS), 0);
        assert_eq!(late.within(100 * MS, 110 * MS), 10 * MS);
        assert_eq!(late.within(200 * MS, 300 * MS), 0);
    }

    #[test]
    fn a_commit_that_the_disk_keeps_waiting_is_known_and_no_thread_was_late_by_it() {
        let mut late = Late::default();
        late.commit(0, 49 * MS);
        late.commit(100 * MS, 190 * MS);
        late.commit(250 * MS, 850 * MS);
        let pulse = Pulse { disk: Arc::new(Mutex::new(late)), ..Pulse::silent() };
        let slow = |from, to| pulse.slow_commits().ns(from * MS, to * MS);
        assert_eq!(
            [slow(0, 100), slow(0, 1_000), slow(840, 900), slow(850, 900)],
            [0, 690 * MS, 10 * MS, 0]
        );
        assert_eq!(pulse.late().ns(0, 1_000 * MS), 0);
        assert_eq!(pulse.late_of_waits().ns(0, 1_000 * MS), 690 * MS);
        let dir = tempfile::tempdir().unwrap();
        let _pulse = Pulse::start(dir.path(), true).unwrap();
        assert!(dir.path().join("commits").exists());
    }
}
