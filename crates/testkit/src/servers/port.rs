//! Ports for servers.
//!
//! The kernel takes the ports of outgoing connections from a range of its own. A port of that range
//! that was free a moment ago may be taken before its server binds it, or binds it again; so
//! servers get theirs from below. Beside other programs of one test run whoever draws one keeps it
//! for as long as its process lives, also while the server is down: a program that draws it
//! meanwhile would be on it when the server comes back.

use std::fs::{File, OpenOptions};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::AsFd as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;

const FIRST: u32 = 10_000;
/// Names a file, in a test run: each port that one of its programs has drawn is a byte that is
/// locked there.
const DRAWN: &str = "XTASK_PORTS";

/// A port of the loopback on which nobody listens at this moment, and that no connection takes.
///
/// # Errors
/// When none is to be had.
pub fn free_port() -> io::Result<u16> {
    let range =
        std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let end: u32 =
        range.split_whitespace().next().and_then(|first| first.parse().ok()).unwrap_or(32_768);
    let count = end.saturating_sub(FIRST);
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..count.min(500) {
        let port = u16::try_from(FIRST + next() % count).map_err(io::Error::other)?;
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(_) if is_somebody_elses(port) => {}
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    // No room below: as the kernel gives it.
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| Ok(listener.local_addr()?.port()))
        .map_err(|_| last)
}

/// Whether another program of the run has drawn it; if not it is ours from now on.
fn is_somebody_elses(port: u16) -> bool {
    static OPEN: OnceLock<Option<File>> = OnceLock::new();
    let file = OPEN.get_or_init(|| {
        let path = std::env::var_os(DRAWN)?;
        let there = OpenOptions::new().write(true).open(&path);
        there.or_else(|_| OpenOptions::new().write(true).create_new(true).open(path)).ok()
    });
    file.as_ref().is_some_and(|file| is_locked_by_others(file, port))
}

fn is_locked_by_others(file: &File, port: u16) -> bool {
    let byte = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: libc::off_t::from(port),
        l_len: 1,
        l_pid: 0,
    };
    let locked = fcntl(file.as_fd(), FcntlArg::F_OFD_SETLK(&byte));
    matches!(locked, Err(Errno::EAGAIN | Errno::EACCES))
}

/// Never the same soon in one process, and hardly ever the same in two.
fn next() -> u32 {
    static DRAWN: AtomicU32 = AtomicU32::new(0);
    if DRAWN.load(Ordering::Relaxed) == 0 {
        let nanos = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |since| since.subsec_nanos());
        let start = nanos ^ std::process::id().wrapping_mul(2_654_435_761);
        _ = DRAWN.compare_exchange(0, start | 1, Ordering::Relaxed, Ordering::Relaxed);
    }
    DRAWN.fetch_add(7_919, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_another_program_of_the_run_has_drawn_is_not_given_away() {
        let dir = tempfile::tempdir().unwrap();
        let [ours, theirs] = [(); 2].map(|()| File::create(dir.path().join("ports")).unwrap());
        assert!(!is_locked_by_others(&theirs, 12_345) && !is_locked_by_others(&ours, 12_346));
        assert!(is_locked_by_others(&ours, 12_345) && is_locked_by_others(&theirs, 12_346));
        drop(theirs);
        assert!(!is_locked_by_others(&ours, 12_345), "it has ended");
    }

    #[test]
    fn a_port_for_a_server_is_none_that_an_outgoing_connection_can_take() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        let ports: std::collections::BTreeSet<u16> =
            (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 50, "none is given twice in a row");
        assert!(u32::from(first) <= FIRST || ports.iter().all(|port| *port < first), "{ports:?}");
    }
}
