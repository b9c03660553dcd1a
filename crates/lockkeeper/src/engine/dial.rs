//! Connecting to a server by its name, which may have several addresses, of which some lead
//! nowhere: they are tried staggered, and the first that takes the connection is used ("Happy
//! Eyeballs", RFC 8305).

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, sleep_until};

use super::BoxFuture;

/// How long an address has for itself before the next is tried beside it (RFC 8305, section 5).
const NEXT_AFTER: Duration = Duration::from_millis(250);

/// Connects to a server that is to take the connection by `until`. The name is looked up each time:
/// it may lead elsewhere by now.
///
/// # Errors
/// Why the name has no address, or why none of them can be reached: all of them are named, where
/// there are several.
pub(super) async fn connect(host: &str, port: u16, until: Instant) -> io::Result<TcpStream> {
    let stream = first_of(&in_turn(look_up(host, port).await?), until).await?;
    // Every request is one small write that somebody waits for.
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn look_up(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    #[cfg(test)]
    if let Some(found) = names::look_up(host) {
        return Ok(found);
    }
    Ok(lookup_host((host, port)).await?.collect())
}

/// The two families in turn, beginning with that of the first address: where one of them leads
/// nowhere, no more than one address is waited for in vain (section 4).
fn in_turn(found: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let mut left = found;
    let mut ordered: Vec<SocketAddr> = Vec::with_capacity(left.len());
    while !left.is_empty() {
        let other = |at: &SocketAddr| ordered.last().is_some_and(|l| l.is_ipv4() != at.is_ipv4());
        let next = left.remove(left.iter().position(other).unwrap_or(0));
        // A name can stand more than once in /etc/hosts.
        if !ordered.contains(&next) {
            ordered.push(next);
        }
    }
    ordered
}

/// The first connection that is taken; those that others are trying by then are dropped.
async fn first_of(addresses: &[SocketAddr], until: Instant) -> io::Result<TcpStream> {
    // The caller's own time says what there is to say about one that is silent.
    if let [only] = addresses {
        return TcpStream::connect(only).await;
    }
    let mut left = addresses.iter();
    let mut trying: Vec<(SocketAddr, BoxFuture<io::Result<TcpStream>>)> = Vec::new();
    let mut failed: Vec<(SocketAddr, io::Error)> = Vec::new();
    loop {
        if let Some(next) = left.next() {
            trying.push((*next, Box::pin(TcpStream::connect(*next))));
        }
        let now = Instant::now();
        let late = match left.len() {
            0 => until,
            rest => now + alone(rest, until.saturating_duration_since(now)),
        };
        let mut late = pin!(sleep_until(late));
        let connected = poll_fn(|cx| {
            let before = failed.len();
            let mut at = 0;
            while let Some((address, connecting)) = trying.get_mut(at) {
                match connecting.as_mut().poll(cx) {
                    Poll::Ready(Ok(stream)) => return Poll::Ready(Some(stream)),
                    Poll::Ready(Err(error)) => {
                        failed.push((*address, error));
                        drop(trying.remove(at));
                    }
                    Poll::Pending => at += 1,
                }
            }
            // After a failure nothing is gained by waiting before the next is tried.
            if failed.len() > before || trying.is_empty() {
                return Poll::Ready(None);
            }
            late.as_mut().poll(cx).map(|()| None)
        })
        .await;
        match connected {
            Some(stream) => return Ok(stream),
            None if left.len() == 0 && (trying.is_empty() || Instant::now() >= until) => {
                return Err(none(&trying, failed));
            }
            None => {}
        }
    }
}

/// How long the latest address is tried alone, before the first of so many others: also where there
/// is little time, each gets its part of it.
fn alone(others: usize, left: Duration) -> Duration {
    NEXT_AFTER.min(left / u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1))
}

/// Why there is no connection, address by address.
fn none<T>(silent: &[(SocketAddr, T)], failed: Vec<(SocketAddr, io::Error)>) -> io::Error {
    let kind = match failed.last() {
        Some((_, error)) if silent.is_empty() => error.kind(),
        None if silent.is_empty() => {
            return io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        }
        _ => io::ErrorKind::TimedOut,
    };
    let failed = failed.into_iter().map(|(at, error)| format!("{at}: {error}"));
    let silent = silent.iter().map(|(at, _)| format!("{at} does not answer"));
    io::Error::new(kind, failed.chain(silent).collect::<Vec<_>>().join("; "))
}

/// Names of tests, and where they lead.
#[cfg(test)]
pub(super) mod names {
    use std::collections::BTreeMap;
    use std::net::SocketAddr;
    use std::sync::{Mutex, PoisonError};

    static NAMES: Mutex<BTreeMap<String, Vec<SocketAddr>>> = Mutex::new(BTreeMap::new());

    /// From now on this name, which only one test uses, has these addresses.
    pub(in crate::engine) fn lead_to(name: &str, addresses: &[SocketAddr]) {
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        names.insert(name.to_owned(), addresses.to_vec());
    }

    pub(super) fn look_up(name: &str) -> Option<Vec<SocketAddr>> {
        NAMES.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }
}

#[cfg(test)]
// In front of a server of each kind.
#[cfg(all(feature = "redis", feature = "zookeeper", feature = "postgres"))]
mod tests;
