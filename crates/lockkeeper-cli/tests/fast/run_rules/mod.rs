//! The numbered rules of `run`, each by its number, where no terminal is needed.

mod environment;
mod processes;
mod records;
mod signals;
mod waiting;

use nix::sys::signal::Signal;

use crate::common::{self, Reaped, until_true};

/// The signals in a mask of /proc/PID/status.
fn mask(pid: i32, which: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(which)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn has(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal as u64 - 1)) != 0
}

fn until_it_waits(waiting: &Reaped) {
    until_true("it waits", || {
        common::state(waiting.pid()) == Some('S')
            && has(mask(waiting.pid(), "SigBlk"), Signal::SIGTERM)
    });
}
