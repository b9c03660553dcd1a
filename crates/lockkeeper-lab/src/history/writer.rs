//! The writing side: one file a process, many threads, one short critical section an event.
//!
//! The clock is read inside the section, so that the file's order is the order of time: a reader
//! needs no window, a clock that goes back is seen at once, and a killed process leaves at most its
//! last record unfinished.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasherDefault, Hasher};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::{fmt, io};

use lockkeeper::Kind;
use nix::errno::Errno;
use nix::time::{ClockId, clock_gettime};

use super::header::{HEADER_SIZE, Header, Role, State};
use super::map::{Step, check_size_limit};
use super::name::{LockId, introduce};
use super::record::{RECORD_SIZE, Record};

/// How a history is written.
#[derive(Clone, Debug)]
pub struct WriterOptions {
    /// What kind of process writes it.
    pub role: Role,
    /// What reports call this process, such as "client 3"; empty for "pid N".
    pub label: String,
    /// By how many bytes the file grows at a time; rounded up to whole records, at least one page.
    pub step_bytes: usize,
    /// The size at which the recording stops.
    pub max_bytes: u64,
    /// Told once when the recording ends early; in whichever thread wrote last, without any lock
    /// held.
    pub on_stop: fn(&Stopped),
}

impl Default for WriterOptions {
    /// A client without a label; steps of 1 MiB, at most 16 GiB (268 million events), a line on
    /// stderr when it ends early.
    fn default() -> Self {
        let on_stop = |stopped: &Stopped| eprintln!("lockkeeper: {stopped}");
        Self {
            role: Role::Client,
            label: String::new(),
            step_bytes: 1 << 20,
            max_bytes: 16 << 30,
            on_stop,
        }
    }
}

/// Why a recording ended early. The program goes on; only its history ends here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stopped {
    /// Which file.
    pub path: PathBuf,
    /// How many records it holds.
    pub records: u64,
    /// Why.
    pub reason: StopReason,
}

/// See [`Stopped`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The file could not grow: disk full, quota, file size limit, no address space.
    CannotGrow(Errno),
    /// It reached `max_bytes`.
    Full,
    /// This process is a fork of the one that records.
    Forked,
    /// [`Writer::finish`] was called.
    Finished,
}

impl fmt::Display for Stopped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "history {}: recording stopped after {} records: ",
            self.path.display(),
            self.records
        )?;
        match self.reason {
            StopReason::CannotGrow(Errno::ENOSPC) => {
                write!(f, "no space left on its disk; make room and start a new one")
            }
            StopReason::CannotGrow(Errno::EDQUOT) => {
                write!(f, "the disk quota is used up; make room and start a new one")
            }
            StopReason::CannotGrow(Errno::EFBIG) => {
                write!(f, "the file size limit of this process is reached (ulimit -f)")
            }
            StopReason::CannotGrow(errno) => write!(f, "it cannot grow: {}", errno.desc()),
            StopReason::Full => write!(
                f,
                "it reached its largest size; raise max_bytes or record for a shorter time"
            ),
            StopReason::Forked => write!(
                f,
                "this process is a fork of the recording one and needs a history of its own"
            ),
            StopReason::Finished => write!(f, "it was finished"),
        }
    }
}

/// A history could not be started.
#[derive(Debug)]
pub struct WriteError {
    path: PathBuf,
    source: io::Error,
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot start history {}: {}", self.path.display(), self.source)
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// What a finished recording holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Summary {
    /// How many records, names included.
    pub records: u64,
}

/// Writes one history; clones write the same one. Any thread may write at any time; nothing here
/// fails or blocks on I/O except when the file grows. The last clone to be dropped finishes the
/// file.
#[derive(Clone)]
pub struct Writer(Arc<Shared>);

struct Shared {
    path: PathBuf,
    file: File,
    /// The random number that binds records to this file.
    id: u64,
    generation: u32,
    step_bytes: usize,
    max_bytes: u64,
    on_stop: fn(&Stopped),
    running: AtomicBool,
    /// How many unique numbers were drawn.
    claims: AtomicU64,
    inner: Mutex<Inner>,
}

struct Inner {
    step: Option<Step>,
    /// Where the next record goes inside the step.
    at: usize,
    /// How much of the file has been given to steps.
    grown: u64,
    records: u64,
    names: HashSet<LockId, BuildHasherDefault<Identity>>,
    /// The lock that was written about last: its name is known, and often it is the next one's,
    /// too.
    last: LockId,
    stopped: Option<StopReason>,
}

impl Writer {
    /// Starts a history at `path`, which must not exist.
    ///
    /// # Errors
    /// When the file cannot be created, or its first step does not fit on the disk.
    pub fn create(path: impl AsRef<Path>, options: WriterOptions) -> Result<Self, WriteError> {
        let path = path.as_ref();
        let failed = |source: io::Error| WriteError { path: path.to_owned(), source };
        check_size_limit(HEADER_SIZE as u64).map_err(|e| failed(e.into()))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(failed)?;
        let step_bytes = options.step_bytes.max(4096).next_multiple_of(RECORD_SIZE);
        let header =
            describe_self(options.role, options.label, step_bytes as u64).map_err(failed)?;
        let mut inner = Inner {
            step: None,
            at: 0,
            grown: HEADER_SIZE as u64,
            records: 0,
            names: HashSet::default(),
            last: LockId::NONE,
            stopped: None,
        };
        let started = file.write_all_at(&header.encode(), 0).and_then(|()| {
            grow(&mut inner, &file, step_bytes, u64::MAX).map_err(|reason| match reason {
                StopReason::CannotGrow(errno) => errno.into(),
                _ => io::Error::other("no room"),
            })
        });
        if let Err(error) = started {
            let _ = std::fs::remove_file(path);
            return Err(failed(error));
        }
        let shared = Shared {
            path: path.to_owned(),
            file,
            id: header.file,
            generation: fork_generation(),
            step_bytes,
            max_bytes: options.max_bytes,
            on_stop: options.on_stop,
            running: AtomicBool::new(true),
            claims: AtomicU64::new(1),
            inner: Mutex::new(inner),
        };
        Ok(Self(Arc::new(shared)))
    }

    /// The clock of `at` and `deadline`: `CLOCK_BOOTTIME` in nanoseconds.
    pub fn now() -> u64 {
        clock(ClockId::CLOCK_BOOTTIME)
    }

    /// A number for a claim that no other claim has, in this history or another.
    pub fn unique(&self) -> u64 {
        // A bijection of a count, so that it never repeats within the file; the file's id is
        // random.
        (self.0.claims.fetch_add(1, Ordering::Relaxed) ^ self.0.id)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Writes an event about a lock; its name is written down when it comes for the first time.
    pub fn write_for(&self, kind: Kind, name: &str, record: Record) {
        self.put(Some((Some(kind), name)), Record { lock: LockId::of(kind, name), ..record });
    }

    /// Writes an event that a text names: a fault and its target.
    pub fn write_text(&self, text: &str, record: Record) {
        self.put(Some((None, text)), Record { lock: LockId::text(text), ..record });
    }

    /// Writes an event whose lock was named before, or that has none.
    pub fn write(&self, record: Record) {
        self.put(None, record);
    }

    /// Why nothing is recorded any more, or `None` while it is.
    pub fn stopped(&self) -> Option<Stopped> {
        if self.0.forked() {
            return Some(Stopped {
                path: self.0.path.clone(),
                records: 0,
                reason: StopReason::Forked,
            });
        }
        self.0.why_stopped(&self.0.lock())
    }

    /// Ends the recording: the file is cut to what it holds and marked whole. Events after it are
    /// dropped.
    ///
    /// # Errors
    /// When the file's end cannot be written; its records are there all the same.
    pub fn finish(&self) -> io::Result<Summary> {
        self.0.finish()
    }

    fn put(&self, name: Option<(Option<Kind>, &str)>, record: Record) {
        let shared = &*self.0;
        if shared.forked() || !shared.running.load(Ordering::Relaxed) {
            return;
        }
        let mut inner = shared.lock();
        if inner.stopped.is_some() {
            return;
        }
        if let Some((kind, name)) = name
            && inner.last != record.lock
        {
            if inner.names.insert(record.lock) {
                for part in introduce(kind, name) {
                    shared.append(&mut inner, part);
                }
            }
            inner.last = record.lock;
        }
        shared.append(&mut inner, record);
        let stopped = shared.why_stopped(&inner);
        drop(inner);
        if let Some(stopped) = stopped {
            (shared.on_stop)(&stopped);
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A fork shares the mapping; if it wrote, it would write into its parent's history (R15).
    fn forked(&self) -> bool {
        fork_generation() != self.generation
    }

    fn why_stopped(&self, inner: &Inner) -> Option<Stopped> {
        inner.stopped.map(|reason| Stopped {
            path: self.path.clone(),
            records: inner.records,
            reason,
        })
    }

    fn append(&self, inner: &mut Inner, record: Record) {
        if inner.stopped.is_some() {
            return;
        }
        let bytes = Record { at: Writer::now(), ..record }.encode(self.id, inner.records);
        if let Err(reason) = self.put_bytes(inner, &bytes) {
            self.stop(inner, reason);
        }
    }

    /// Writes a record behind the last one, in a new step when it must.
    fn put_bytes(&self, inner: &mut Inner, bytes: &[u8; RECORD_SIZE]) -> Result<(), StopReason> {
        loop {
            if let Some(step) = &mut inner.step
                && step.write(&self.file, inner.at, bytes).map_err(StopReason::CannotGrow)?
            {
                inner.at += RECORD_SIZE;
                inner.records += 1;
                return Ok(());
            }
            grow(inner, &self.file, self.step_bytes, self.max_bytes)?;
        }
    }

    /// Ends the recording early, once; the program that is recorded goes on.
    fn stop(&self, inner: &mut Inner, reason: StopReason) {
        self.running.store(false, Ordering::Relaxed);
        inner.stopped = Some(reason);
        inner.step = None;
        // The disk may be full, but the header's blocks are there already.
        let (at, bytes) = Header::encode_state(State::Stopped(inner.records));
        let _ = self.file.write_all_at(&bytes, at);
        let _ = self.file.set_len(HEADER_SIZE as u64 + inner.records * RECORD_SIZE as u64);
    }

    fn finish(&self) -> io::Result<Summary> {
        if self.forked() {
            return Ok(Summary { records: 0 });
        }
        let mut inner = self.lock();
        let summary = Summary { records: inner.records };
        if inner.stopped.is_none() {
            self.running.store(false, Ordering::Relaxed);
            inner.stopped = Some(StopReason::Finished);
            inner.step = None;
            // In this order: an open file ends after whole steps, also when we are killed between
            // the two.
            let (at, bytes) = Header::encode_state(State::Finished(inner.records));
            self.file.write_all_at(&bytes, at)?;
            self.file.set_len(HEADER_SIZE as u64 + inner.records * RECORD_SIZE as u64)?;
        }
        Ok(summary)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

/// Gives the next step of the file to the writer.
fn grow(
    inner: &mut Inner,
    file: &File,
    step_bytes: usize,
    max_bytes: u64,
) -> Result<(), StopReason> {
    if inner.grown.saturating_add(step_bytes as u64) > max_bytes {
        return Err(StopReason::Full);
    }
    inner.step = Some(Step::new(file, inner.grown, step_bytes).map_err(StopReason::CannotGrow)?);
    inner.grown += step_bytes as u64;
    inner.at = 0;
    Ok(())
}

fn describe_self(role: Role, label: String, step: u64) -> io::Result<Header> {
    let mut id = [0; 8];
    getrandom::fill(&mut id).map_err(io::Error::other)?;
    let host =
        nix::unistd::gethostname().map(|h| h.to_string_lossy().into_owned()).unwrap_or_default();
    let program = lockkeeper::Identity::of_this_process().program;
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let boot = u128::from_str_radix(&boot.trim().replace('-', ""), 16).unwrap_or(0);
    Ok(Header {
        file: u64::from_le_bytes(id),
        pid: std::process::id(),
        role,
        clocks: [ClockId::CLOCK_BOOTTIME, ClockId::CLOCK_MONOTONIC, ClockId::CLOCK_REALTIME]
            .map(clock),
        boot,
        step,
        host,
        program,
        label,
        state: State::Open,
    })
}

fn clock(id: ClockId) -> u64 {
    clock_gettime(id).map_or(0, |t| {
        u64::try_from(t.tv_sec())
            .unwrap_or(0)
            .saturating_mul(1_000_000_000)
            .saturating_add(u64::try_from(t.tv_nsec()).unwrap_or(0))
    })
}

static WATCH_FORKS: Once = Once::new();
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process was forked from the one that loaded the program; asking the kernel for
/// the pid each time would cost more than the record.
fn fork_generation() -> u32 {
    extern "C" fn in_child() {
        FORKS.fetch_add(1, Ordering::Relaxed);
    }
    WATCH_FORKS.call_once(|| {
        // SAFETY: the handler only adds to an atomic, which is async-signal-safe.
        let _ = unsafe { nix::libc::pthread_atfork(None, None, Some(in_child)) };
    });
    FORKS.load(Ordering::Relaxed)
}

/// Lock ids are hashes already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
