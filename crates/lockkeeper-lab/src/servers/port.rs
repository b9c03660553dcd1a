//! Ports for servers.
//!
//! The kernel takes the ports of outgoing connections from a range of its own. A port of that range
//! that was free a moment ago may be taken before its server binds it, or binds it again; so
//! servers get theirs from below.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::SystemTime;

const FIRST: u32 = 10_000;

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
            Ok(_) => return Ok(port),
            Err(error) => last = error,
        }
    }
    // No room below: as the kernel gives it.
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| Ok(listener.local_addr()?.port()))
        .map_err(|_| last)
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
    fn a_port_for_a_server_is_none_that_an_outgoing_connection_can_take() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
        let first: u16 = range.split_whitespace().next().unwrap().parse().unwrap();
        let ports: std::collections::BTreeSet<u16> =
            (0..50).map(|_| free_port().unwrap()).collect();
        assert_eq!(ports.len(), 50, "none is given twice in a row");
        assert!(u32::from(first) <= FIRST || ports.iter().all(|port| *port < first), "{ports:?}");
    }
}
