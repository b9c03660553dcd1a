//! Who has a lock whose recorded process is gone: a lock that was passed on lives in the processes that inherited its
//! descriptor (F3), and an operator needs one that can be stopped.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::sys::stat::fstat;

use super::bytes::Span;
use crate::claim::Holder;

/// How many processes are looked at.
const PROCESSES_MAX: usize = 100_000;

/// The holder with the process that has `span` of this file locked, where the recorded one does not live any more. Where the
/// system does not let us look, or the process lives in another container, the record stands.
pub(super) fn named(file: impl AsFd, span: Span, mut holder: Holder) -> Holder {
    if holder.pid.is_some_and(|pid| !lives(pid))
        && let Ok(stat) = fstat(file)
        && let Some(pid) = who_has(stat.st_dev, stat.st_ino, span)
    {
        holder.pid = Some(pid);
        holder.program = program(pid).or(holder.program);
    }
    holder
}

/// Whether there is such a process, and not only what its parent has not read of it yet.
fn lives(pid: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, Some('Z' | 'X'))
}

/// The oldest process that has the range locked: the command itself rather than what it started.
fn who_has(dev: u64, ino: u64, span: Span) -> Option<u32> {
    let processes = fs::read_dir("/proc").ok()?.filter_map(|found| found.ok()?.file_name().to_str()?.parse().ok());
    let having = processes.take(PROCESSES_MAX).filter(|pid: &u32| *pid != std::process::id() && has(*pid, dev, ino, span));
    having.min_by_key(|pid| (began(*pid), *pid))
}

/// Whether one of a process's descriptors leads to the file and carries a lock of the range.
fn has(pid: u32, dev: u64, ino: u64, span: Span) -> bool {
    let process = PathBuf::from(format!("/proc/{pid}"));
    let Ok(descriptors) = fs::read_dir(process.join("fd")) else { return false };
    descriptors.flatten().any(|descriptor| {
        let leads_there = fs::metadata(descriptor.path()).is_ok_and(|there| (there.dev(), there.ino()) == (dev, ino));
        leads_there && locks(&process.join("fdinfo").join(descriptor.file_name()), span)
    })
}

/// Whether a descriptor carries a lock of the range: `lock: 1: OFDLCK ADVISORY WRITE -1 fe:00:9978095 1073741824 1073741826`.
fn locks(fdinfo: &Path, span: Span) -> bool {
    let (first, end) = span.bounds();
    fs::read_to_string(fdinfo).is_ok_and(|text| {
        text.lines().filter_map(|line| line.strip_prefix("lock:")).any(|line| {
            let mut words = line.split_whitespace().rev();
            let (last, start) = (words.next().unwrap_or_default(), words.next().and_then(|word| word.parse::<u64>().ok()));
            let last = if last == "EOF" { Some(u64::MAX) } else { last.parse().ok() };
            start.zip(last).is_some_and(|(start, last)| start <= first && end - 1 <= last)
        })
    })
}

/// When a process began, in clock ticks since boot.
fn began(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    after_name.split_whitespace().nth(19).and_then(|ticks| ticks.parse().ok()).unwrap_or(u64::MAX)
}

/// The program's name: `argv[0]` alone, for arguments hold secrets.
fn program(pid: u32) -> Option<String> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let first = line.split(|byte| *byte == 0).next().filter(|word| !word.is_empty())?;
    Some(String::from_utf8_lossy(first).into_owned())
}
