//! A proxy in front of one ZooKeeper server that understands frames: it counts requests by
//! operation, and it breaks, holds and cuts connections at chosen requests.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Operations as the protocol numbers them.
pub mod op {
    /// Deletes a node.
    pub const DELETE: i32 = 2;
    /// Looks whether a node exists.
    pub const EXISTS: i32 = 3;
    /// Reads a node's data.
    pub const GET_DATA: i32 = 4;
    /// Changes a node's data.
    pub const SET_DATA: i32 = 5;
    /// Lists a node's children.
    pub const GET_CHILDREN: i32 = 8;
    /// Waits until the server has caught up.
    pub const SYNC: i32 = 9;
    /// Lists a node's children with its stat.
    pub const LIST: i32 = 12;
    /// A sign of life.
    pub const PING: i32 = 11;
    /// Several writes in one transaction.
    pub const MULTI: i32 = 14;
    /// Creates a node.
    pub const CREATE: i32 = 15;
    /// Creates a container.
    pub const CREATE_CONTAINER: i32 = 19;
    /// Several reads in one message.
    pub const MULTI_READ: i32 = 22;
    /// Says who we are.
    pub const AUTH: i32 = 100;
    /// Lists a session's ephemeral nodes.
    pub const GET_EPHEMERALS: i32 = 103;
    /// Ends the session.
    pub const CLOSE: i32 = -11;
}

#[derive(Default)]
struct Shared {
    requests: BTreeMap<i32, u64>,
    events: u64,
    connects: u64,
    /// New connections are refused.
    closed: bool,
    /// Nothing passes to the client, to the server.
    hold_replies: bool,
    hold_requests: bool,
    /// The connection is cut as soon as the server has answered a request of this kind; the answer
    /// is lost.
    lose_reply_to: Option<i32>,
    /// The connection is cut instead of passing on a request of this kind.
    cut_before: Option<i32>,
    /// Transactions that check this node check one that is not there.
    denied: Option<String>,
    /// Whoever says who it is hears that it is not believed.
    refuse_identity: bool,
    connections: BTreeMap<u64, (TcpStream, TcpStream)>,
    stopped: bool,
}

/// See the module.
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<(Mutex<Shared>, Condvar)>,
}

impl Proxy {
    /// A proxy on a free port in front of the server at `port`.
    ///
    /// # Errors
    /// When no port can be had.
    pub fn start(port: u16) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let shared: Arc<(Mutex<Shared>, Condvar)> = Arc::default();
        let accepting = shared.clone();
        thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { continue };
                let mut state = lock(&accepting);
                if state.stopped {
                    return;
                }
                if state.closed {
                    continue;
                }
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
                _ = client.set_nodelay(true);
                _ = server.set_nodelay(true);
                let (Ok(a), Ok(b), Ok(c), Ok(d)) = (
                    client.try_clone(),
                    server.try_clone(),
                    client.try_clone(),
                    server.try_clone(),
                ) else {
                    continue;
                };
                let id = state.connects;
                state.connections.insert(id, (c, d));
                state.connects += 1;
                drop(state);
                let awaited = Arc::new(Mutex::new(None));
                let (up, down) = (accepting.clone(), accepting.clone());
                let asked = awaited.clone();
                thread::spawn(move || {
                    requests(&up, a, b, &asked);
                    lock(&up).connections.remove(&id);
                });
                thread::spawn(move || {
                    replies(&down, server, client, &awaited);
                    lock(&down).connections.remove(&id);
                });
            }
        });
        Ok(Self { address, shared })
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// How many requests of each operation passed since the last call.
    pub fn take_counts(&self) -> BTreeMap<i32, u64> {
        std::mem::take(&mut lock(&self.shared).requests)
    }

    /// How many watch events passed since the last call.
    pub fn take_events(&self) -> u64 {
        std::mem::take(&mut lock(&self.shared).events)
    }

    /// How many connections were ever taken.
    pub fn connects(&self) -> u64 {
        lock(&self.shared).connects
    }

    /// Cuts every connection; new ones are taken.
    pub fn cut(&self) {
        cut(&mut lock(&self.shared));
    }

    /// Cuts every connection and refuses new ones, until [`Proxy::open`].
    pub fn close(&self) {
        let mut state = lock(&self.shared);
        state.closed = true;
        cut(&mut state);
    }

    /// Cuts the clients off, and leaves the server's ends open: what is held back can still reach
    /// it.
    pub fn cut_clients(&self) {
        for (client, _) in lock(&self.shared).connections.values() {
            _ = client.shutdown(Shutdown::Both);
        }
    }

    /// Takes connections again.
    pub fn open(&self) {
        lock(&self.shared).closed = false;
    }

    /// Holds back what the server says, or lets all of it go.
    pub fn hold_replies(&self, hold: bool) {
        lock(&self.shared).hold_replies = hold;
        self.shared.1.notify_all();
    }

    /// Holds back what the client says, or lets all of it go.
    pub fn hold_requests(&self, hold: bool) {
        lock(&self.shared).hold_requests = hold;
        self.shared.1.notify_all();
    }

    /// The server answers the next request of this kind, and the connection is cut before the
    /// client hears of it.
    pub fn lose_reply_to(&self, operation: i32) {
        lock(&self.shared).lose_reply_to = Some(operation);
    }

    /// The connection is cut instead of passing on the next request of this kind.
    pub fn cut_before(&self, operation: i32) {
        lock(&self.shared).cut_before = Some(operation);
    }

    /// The quorum answers that this node is not there, and the server goes on showing it.
    pub fn deny(&self, path: &str) {
        lock(&self.shared).denied = Some(path.to_owned());
    }

    /// The server refuses every identity from now on.
    pub fn refuse_identity(&self, refuse: bool) {
        lock(&self.shared).refuse_identity = refuse;
    }

    /// Whether what [`Proxy::lose_reply_to`] or [`Proxy::cut_before`] asked for has happened.
    pub fn has_struck(&self) -> bool {
        let state = lock(&self.shared);
        state.lose_reply_to.is_none() && state.cut_before.is_none()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let mut state = lock(&self.shared);
        state.stopped = true;
        cut(&mut state);
        drop(state);
        self.shared.1.notify_all();
        // The accepting thread looks once more.
        _ = TcpStream::connect_timeout(&self.address, Duration::from_secs(1));
    }
}

fn lock(shared: &Arc<(Mutex<Shared>, Condvar)>) -> MutexGuard<'_, Shared> {
    shared.0.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cut(state: &mut Shared) {
    for (client, server) in std::mem::take(&mut state.connections).into_values() {
        _ = client.shutdown(Shutdown::Both);
        _ = server.shutdown(Shutdown::Both);
    }
}

fn frame(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let length = usize::try_from(i32::from_be_bytes(prefix)).map_err(io::Error::other)?;
    let mut frame = vec![0; 4 + length];
    let (head, body) = frame.split_at_mut(4);
    head.copy_from_slice(&prefix);
    stream.read_exact(body)?;
    Ok(frame)
}

fn number(frame: &[u8], at: usize) -> i32 {
    frame.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, i32::from_be_bytes)
}

/// Waits while `held` says so.
fn wait(shared: &Arc<(Mutex<Shared>, Condvar)>, held: impl Fn(&Shared) -> bool) {
    let mut state = lock(shared);
    while held(&state) && !state.stopped {
        state = shared
            .1
            .wait_timeout(state, Duration::from_millis(100))
            .map_or_else(|e| e.into_inner().0, |(s, _)| s);
    }
}

fn requests(
    shared: &Arc<(Mutex<Shared>, Condvar)>,
    mut from: TcpStream,
    mut to: TcpStream,
    awaited: &Mutex<Option<i32>>,
) {
    let mut first = true;
    while let Ok(mut frame) = frame(&mut from) {
        wait(shared, |s| s.hold_requests);
        // The first frame hands over the session and is no request.
        if !std::mem::replace(&mut first, false) {
            let (xid, operation) = (number(&frame, 4), number(&frame, 8));
            let mut state = lock(shared);
            if state.cut_before == Some(operation) {
                state.cut_before = None;
                break;
            }
            *state.requests.entry(operation).or_default() += 1;
            if let Some(path) = state.denied.as_ref().filter(|_| operation == op::MULTI) {
                deny(&mut frame, path);
            }
            if state.lose_reply_to == Some(operation) {
                state.lose_reply_to = None;
                *awaited.lock().unwrap_or_else(PoisonError::into_inner) = Some(xid);
            }
        }
        if to.write_all(&frame).is_err() {
            break;
        }
    }
    // What was held back has passed by now, also when the client had left before.
    _ = from.shutdown(Shutdown::Both);
    _ = to.shutdown(Shutdown::Both);
}

/// Changes the last letter of every mention of a path.
fn deny(frame: &mut [u8], path: &str) {
    let mentions: Vec<usize> = (0..frame.len())
        .filter(|at| frame.get(*at..).is_some_and(|rest| rest.starts_with(path.as_bytes())))
        .collect();
    for at in mentions {
        if let Some(last) = frame.get_mut(at + path.len() - 1) {
            *last = b'~';
        }
    }
}

fn replies(
    shared: &Arc<(Mutex<Shared>, Condvar)>,
    mut from: TcpStream,
    mut to: TcpStream,
    awaited: &Mutex<Option<i32>>,
) {
    let mut first = true;
    while let Ok(mut frame) = frame(&mut from) {
        wait(shared, |s| s.hold_replies);
        if !std::mem::replace(&mut first, false) {
            let xid = number(&frame, 4);
            if *awaited.lock().unwrap_or_else(PoisonError::into_inner) == Some(xid) {
                break;
            }
            if xid == -1 {
                lock(shared).events += 1;
            }
            if let Some(code) =
                frame.get_mut(16..20).filter(|_| xid == -4 && lock(shared).refuse_identity)
            {
                code.copy_from_slice(&(-115_i32).to_be_bytes());
            }
        }
        if to.write_all(&frame).is_err() {
            break;
        }
    }
    _ = from.shutdown(Shutdown::Both);
    _ = to.shutdown(Shutdown::Both);
}
