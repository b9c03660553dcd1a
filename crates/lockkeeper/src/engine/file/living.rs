//! Who has a lock whose recorded process is gone: a lock that was passed on lives in the processes
//! that inherited its descriptor (F3), and an operator needs one that can be stopped.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::sys::stat::fstat;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{SysconfVar, sysconf};

use super::bytes::Span;
use crate::words::claim::Holder;

/// How many processes are looked at.
const PROCESSES_MAX: usize = 100_000;

/// How much later than a record its process may seem to have begun, for the clock is read at two
/// moments.
const BEGAN_WITHIN: Duration = Duration::from_secs(1);

/// The holder with the process that has `span` of this file locked, where the recorded one does not
/// live any more or is another one that was given its number. Where the system does not let us
/// look, or the process lives in another container, the record stands.
pub(super) fn named(file: impl AsFd, span: Span, mut holder: Holder) -> Holder {
    let Some(recorded) = holder.pid else { return holder };
    let lives = match life_of(recorded) {
        // By far the most.
        Some(began) if !began_after(began, holder.since) => return holder,
        life => life.is_some(),
    };
    let Ok(stat) = fstat(file) else { return holder };
    let at = (stat.st_dev, stat.st_ino);
    let has_it = if lives { has(recorded, at, span) } else { None };
    if has_it == Some(true) {
        return holder;
    }
    if let Some(pid) = who_has(at, span) {
        holder.pid = Some(pid);
        holder.program = program(pid).or(holder.program);
    } else if has_it == Some(false) {
        // Nobody is told to stop a process that has nothing.
        holder.pid = None;
    }
    holder
}

/// When a process began, in clock ticks since boot. `None` when there is none, or only what its
/// parent has not read of it yet.
fn life_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    let state = words.next()?;
    let began = words.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(began)
}

/// Whether a process began after a record was written: then it is not the one that wrote it, unless
/// the clock was set meanwhile.
fn began_after(began: u64, written: Option<SystemTime>) -> bool {
    let ticks =
        sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|ticks| u64::try_from(ticks).ok());
    let age = ticks
        .filter(|ticks| *ticks > 0)
        .zip(clock_gettime(ClockId::CLOCK_BOOTTIME).ok())
        .and_then(|(ticks, since_boot)| {
            let began = Duration::from_millis(began.saturating_mul(1_000) / ticks);
            Duration::from(since_boot).checked_sub(began)
        });
    let written_ago = written.and_then(|written| written.elapsed().ok());
    age.zip(written_ago).is_some_and(|(age, written_ago)| age + BEGAN_WITHIN < written_ago)
}

/// The oldest process that has the range locked: the command itself rather than what it started.
fn who_has(file: (u64, u64), span: Span) -> Option<u32> {
    let processes = fs::read_dir("/proc")
        .ok()?
        .filter_map(|found| found.ok()?.file_name().to_str()?.parse().ok());
    let having = processes
        .take(PROCESSES_MAX)
        .filter(|pid: &u32| *pid != std::process::id() && has(*pid, file, span) == Some(true));
    having.min_by_key(|pid| (life_of(*pid).unwrap_or(u64::MAX), *pid))
}

/// Whether one of a process's descriptors carries a lock of the range and leads to the file; `None`
/// where we may not look.
fn has(pid: u32, file: (u64, u64), span: Span) -> Option<bool> {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let descriptors = fs::read_dir(process.join("fd")).ok()?;
    // The lock first: to look at a file of a server that is away takes for ever.
    Some(descriptors.flatten().any(|descriptor| {
        locks(&process.join("fdinfo").join(descriptor.file_name()), span)
            && fs::metadata(descriptor.path()).is_ok_and(|there| (there.dev(), there.ino()) == file)
    }))
}

/// Whether a descriptor carries a lock of the range:
/// `lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:9978095 1073741824 1073741826`.
fn locks(fdinfo: &Path, span: Span) -> bool {
    let (first, end) = span.bounds();
    fs::read_to_string(fdinfo).is_ok_and(|text| {
        text.lines().filter_map(|line| line.strip_prefix("lock:")).any(|line| {
            let mut words = line.split_whitespace().rev();
            let (last, start) = (
                words.next().unwrap_or_default(),
                words.next().and_then(|word| word.parse::<u64>().ok()),
            );
            let last = if last == "EOF" { Some(u64::MAX) } else { last.parse().ok() };
            start.zip(last).is_some_and(|(start, last)| start <= first && end - 1 <= last)
        })
    })
}

/// The program's name: `argv[0]` alone, for arguments hold secrets.
fn program(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = line.split(|byte| *byte == 0).next().filter(|word| !word.is_empty())?;
    Some(String::from_utf8_lossy(first).into_owned())
}
