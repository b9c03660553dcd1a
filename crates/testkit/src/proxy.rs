//! A TCP proxy of a test's own between a client and a server, with faults that are switched on and
//! off for each direction.
//!
//! It counts RESP replies where a fault is about one of them ("hold the reply of the next
//! command"), and bytes everywhere else.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use crate::redis::announced::Elsewhere;
use crate::redis::announced::Translation;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// What happens to bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Bytes are read and thrown away; the sender notices nothing.
    pub blackhole: bool,
    /// Bytes are kept until the fault is lifted.
    pub hold: bool,
    /// Bytes arrive this much later.
    pub delay: Duration,
    /// The connection is cut after this many bytes more; 0 cuts at the next one.
    pub cut_after: Option<usize>,
    /// Only connections up to this one, in the order in which they were made; see
    /// [`Proxy::hold_present`].
    pub present_only: Option<u64>,
}

#[derive(Default)]
struct State {
    /// Where new connections lead, on 127.0.0.1.
    port: u16,
    up: Fault,
    down: Fault,
    refuse: bool,
    accepted: u64,
    /// Those of which both sides are there, by the order in which they were made.
    connections: BTreeMap<u64, (TcpStream, TcpStream)>,
    /// What the server said first on each of them.
    greetings: BTreeMap<u64, Vec<u8>>,
    /// Text of a client's first words, and what the server reads in its place.
    renamed: Option<(String, String)>,
    /// Where the client finds other servers of which this one tells.
    elsewhere: Option<Elsewhere>,
    /// Bytes that went through, up and down.
    passed: [u64; 2],
    /// Bytes that are being held, up and down.
    held: [u64; 2],
    /// Every cut and every fault of it is for connections older than this.
    closed: bool,
}

impl State {
    fn fault(&mut self, way: Way) -> &mut Fault {
        match way {
            Way::Up => &mut self.up,
            Way::Down => &mut self.down,
        }
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much of what a server says first is kept.
const GREETING: usize = 64;

/// A running proxy; dropping it cuts every connection.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
    /// The socket on which it waits for connections: as a stream it can be shut down.
    door: TcpStream,
    listener: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy on a free port of 127.0.0.1 in front of a port there.
    pub fn to(port: u16) -> Self {
        Self::at(TcpListener::bind(("127.0.0.1", 0)).expect("a port is free"), port)
    }

    /// A proxy for whoever connects to `listener`, wherever that is, in front of a port of
    /// 127.0.0.1.
    pub fn at(listener: TcpListener, port: u16) -> Self {
        let door = OwnedFd::from(listener.try_clone().expect("a descriptor is free")).into();
        let address = listener.local_addr().expect("it is bound");
        let (shared, stopping) = (Arc::new(Shared::default()), Arc::new(AtomicBool::new(false)));
        shared.lock().port = port;
        let (ours, stop) = (shared.clone(), stopping.clone());
        let accept = move || {
            for client in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                let (refuse, port) = {
                    let state = ours.lock();
                    (state.refuse, state.port)
                };
                if refuse {
                    continue;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", port)) else { continue };
                connect(&ours, client, server);
            }
        };
        let listener =
            std::thread::Builder::new().name("proxy".into()).spawn(accept).expect("a thread");
        Self { shared, address, stopping, door, listener: Some(listener) }
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// The address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets what happens to bytes of one direction from now on; `Fault::default()` lifts it.
    pub fn set(&self, way: Way, fault: Fault) {
        *self.shared.lock().fault(way) = fault;
        self.shared.changed.notify_all();
    }

    /// Of connections that are made from now on, the server reads `to` where the client's first
    /// words say `from`; both have one length.
    pub fn rename(&self, from: &str, to: &str) {
        debug_assert_eq!(from.len(), to.len());
        self.shared.lock().renamed = Some((from.to_owned(), to.to_owned()));
    }

    /// Of connections that are made from now on, what a server of Redis says of others has the
    /// addresses at which the client finds them.
    pub fn tell_of(&self, elsewhere: Elsewhere) {
        self.shared.lock().elsewhere = Some(elsewhere);
    }

    /// Throws away everything of one direction.
    pub fn blackhole(&self, way: Way) {
        self.set(way, Fault { blackhole: true, ..Fault::default() });
    }

    /// Keeps what the connections of now send in one direction; new ones pass freely.
    pub fn hold_present(&self, way: Way) {
        let last = self.shared.lock().accepted;
        self.set(way, Fault { hold: true, present_only: Some(last), ..Fault::default() });
    }

    /// Keeps everything of one direction until [`Proxy::heal`].
    pub fn hold(&self, way: Way) {
        self.set(way, Fault { hold: true, ..Fault::default() });
    }

    /// Lets everything through again; what was held arrives now.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        (state.up, state.down, state.refuse) = (Fault::default(), Fault::default(), false);
        drop(state);
        self.shared.changed.notify_all();
    }

    /// Takes no more connections, or does again.
    pub fn refuse(&self, refuse: bool) {
        self.shared.lock().refuse = refuse;
    }

    /// Cuts every connection, and leads new ones to another port.
    pub fn lead_to(&self, port: u16) {
        self.shared.lock().port = port;
        self.cut();
    }

    /// Cuts every connection now; what was held is lost.
    pub fn cut(&self) {
        cut(&self.shared);
    }

    /// Cuts the client's side of every connection; what is on its way to the server still arrives
    /// there, once it is let through.
    pub fn cut_client(&self) {
        for (client, _) in self.shared.lock().connections.values() {
            // A connection that is gone already is cut.
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// What the server said first on each connection that is there, a few bytes of it, in the order
    /// in which they were made.
    pub fn greetings(&self) -> Vec<Vec<u8>> {
        self.shared.lock().greetings.values().cloned().collect()
    }

    /// How many connections are there.
    pub fn connections(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// How many were made so far.
    pub fn accepted(&self) -> u64 {
        self.shared.lock().accepted
    }

    /// Cuts every connection, from wherever it is called.
    pub fn scissors(&self) -> impl Fn() + Send + use<> {
        let shared = self.shared.clone();
        move || cut(&shared)
    }

    /// How many bytes of one direction are being held.
    pub fn held(&self, way: Way) -> u64 {
        self.shared.lock().held[way as usize]
    }

    /// How many bytes went through in one direction.
    pub fn passed(&self, way: Way) -> u64 {
        self.shared.lock().passed[way as usize]
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        self.shared.lock().closed = true;
        self.cut();
        // Wakes the listener, which may be where a connection of ours would not get; if that fails
        // it is awake.
        let _ = self.door.shutdown(Shutdown::Both);
        if let Some(listener) = self.listener.take() {
            // A listener that panicked has said so.
            let _ = listener.join();
        }
    }
}

fn cut(shared: &Shared) {
    let mut state = shared.lock();
    state.greetings.clear();
    for (client, server) in std::mem::take(&mut state.connections).into_values() {
        // A connection that is gone already is cut.
        let _ = client.shutdown(Shutdown::Both);
        let _ = server.shutdown(Shutdown::Both);
    }
    drop(state);
    shared.changed.notify_all();
}

fn connect(shared: &Arc<Shared>, client: TcpStream, server: TcpStream) {
    for stream in [&client, &server] {
        // Without it, small messages would be late by themselves.
        let _ = stream.set_nodelay(true);
    }
    let copies = || Some((client.try_clone().ok()?, server.try_clone().ok()?));
    let (Some(kept), Some((c, s))) = (copies(), copies()) else { return };
    let id = {
        let mut state = shared.lock();
        state.accepted += 1;
        let id = state.accepted;
        state.connections.insert(id, kept);
        id
    };
    let (ours, theirs) = (shared.clone(), shared.clone());
    std::thread::spawn(move || pump(&ours, id, Way::Up, client, server));
    std::thread::spawn(move || pump(&theirs, id, Way::Down, s, c));
}

fn pump(shared: &Shared, id: u64, way: Way, mut from: TcpStream, mut to: TcpStream) {
    let mut buffer = vec![0u8; 64 << 10];
    let mut renamed = if way == Way::Up { shared.lock().renamed.clone() } else { None };
    let elsewhere = if way == Way::Down { shared.lock().elsewhere.clone() } else { None };
    let mut translation = elsewhere.map(Translation::to);
    loop {
        let length = match from.read(&mut buffer) {
            Ok(length) if length > 0 => length,
            _ => break,
        };
        if let Some((from, to)) = renamed.take() {
            let first = buffer.get_mut(..length).unwrap_or_default();
            let at = first.windows(from.len()).position(|window| window == from.as_bytes());
            if let Some(place) = at.and_then(|at| first.get_mut(at..at + to.len())) {
                place.copy_from_slice(to.as_bytes());
            }
        }
        let Some(length) = pass(shared, id, way, length) else { continue };
        let bytes = buffer.get(..length.bytes).unwrap_or_default();
        if way == Way::Down {
            // Before the client has it, which may ask us for it then.
            hear(shared, id, bytes);
        }
        let sent = match &mut translation {
            Some(translation) => to.write_all(&translation.of(bytes)),
            None => to.write_all(bytes),
        };
        if sent.is_err() || length.then_cut {
            break;
        }
        shared.lock().passed[way as usize] += length.bytes as u64;
    }
    // The other side learns of the end; one that is gone knows.
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
    // There is nothing left to cut, and its descriptors are others'.
    let mut state = shared.lock();
    state.connections.remove(&id);
    state.greetings.remove(&id);
}

/// Notes what a server says first.
fn hear(shared: &Shared, id: u64, bytes: &[u8]) {
    let mut state = shared.lock();
    let heard = state.greetings.get(&id).map_or(0, Vec::len);
    if heard < GREETING && state.connections.contains_key(&id) {
        state.greetings.entry(id).or_default().extend(bytes.iter().take(GREETING - heard));
    }
}

struct Passed {
    bytes: usize,
    then_cut: bool,
}

/// How much may pass, after what has to be waited for; `None`: nothing, and nobody is told.
fn pass(shared: &Shared, id: u64, way: Way, length: usize) -> Option<Passed> {
    let mut state = shared.lock();
    let delay = state.fault(way).delay;
    if !delay.is_zero() {
        let until = Instant::now() + delay;
        while Instant::now() < until && !state.closed {
            let rest = until.saturating_duration_since(Instant::now());
            state =
                shared.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    let holds = |fault: &Fault| fault.hold && fault.present_only.is_none_or(|last| id <= last);
    if holds(state.fault(way)) {
        state.held[way as usize] += length as u64;
        while holds(state.fault(way)) && !state.closed {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.held[way as usize] -= length as u64;
    }
    let fault = state.fault(way);
    if fault.blackhole {
        return None;
    }
    match &mut fault.cut_after {
        Some(left) if *left <= length => {
            let bytes = *left;
            fault.cut_after = None;
            Some(Passed { bytes, then_cut: true })
        }
        Some(left) => {
            *left -= length;
            Some(Passed { bytes: length, then_cut: false })
        }
        None => Some(Passed { bytes: length, then_cut: false }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers every byte with the next one.
    fn counting_server() -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut stream = stream;
                    let mut byte = [0u8];
                    while stream.read_exact(&mut byte).is_ok()
                        && stream.write_all(&[byte[0].wrapping_add(1)]).is_ok()
                    {
                    }
                });
            }
        });
        port
    }

    /// Longer than anything that comes takes.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// What is answered; `None` where the connection ends.
    fn ask(stream: &mut TcpStream, byte: u8) -> Option<u8> {
        stream.write_all(&[byte]).ok()?;
        hear(stream, PATIENCE)
    }

    fn hear(stream: &mut TcpStream, within: Duration) -> Option<u8> {
        stream.set_read_timeout(Some(within)).unwrap();
        let mut answer = [0u8];
        stream.read_exact(&mut answer).ok()?;
        Some(answer[0])
    }

    fn until(what: &str, so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !so() {
            assert!(begun.elapsed() < PATIENCE, "never: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_connection_that_ended_keeps_no_descriptor_and_one_that_is_there_can_still_be_cut() {
        let proxy = Proxy::to(counting_server());
        let mut stays = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        assert_eq!(ask(&mut stays, 1), Some(2));
        assert_eq!(ask(&mut stays, 7), Some(8));
        for _ in 0..20 {
            let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
            assert_eq!(ask(&mut stream, 1), Some(2));
        }
        until("only the one that is there is kept", || proxy.connections() == 1);
        assert_eq!(ask(&mut stays, 3), Some(4));
        assert_eq!(
            proxy.greetings(),
            [[2, 8, 4]],
            "what the server said first is known of connections that are there"
        );
        proxy.cut();
        assert!(proxy.greetings().is_empty());
        assert_eq!(ask(&mut stays, 5), None);
    }

    #[test]
    fn bytes_pass_are_held_are_lost_and_are_cut_as_told() {
        let proxy = Proxy::to(counting_server());
        let mut stream = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        assert_eq!(ask(&mut stream, 1), Some(2));
        proxy.hold(Way::Down);
        stream.write_all(&[5]).unwrap();
        until("the answer is held", || proxy.held(Way::Down) == 1);
        assert_eq!(hear(&mut stream, Duration::from_millis(200)), None);
        proxy.heal();
        assert_eq!(hear(&mut stream, PATIENCE), Some(6), "what was held arrives");
        // Held first: then it is known when it is there.
        proxy.hold(Way::Up);
        stream.write_all(&[7]).unwrap();
        until("the question is held", || proxy.held(Way::Up) == 1);
        proxy.blackhole(Way::Up);
        until("it is lost", || proxy.held(Way::Up) == 0);
        proxy.heal();
        assert_eq!(ask(&mut stream, 9), Some(10), "what was lost stays lost");
        proxy.set(Way::Down, Fault { delay: Duration::from_millis(50), ..Fault::default() });
        let before = Instant::now();
        assert_eq!(ask(&mut stream, 9), Some(10));
        assert!(before.elapsed() >= Duration::from_millis(50));
        proxy.set(Way::Down, Fault { cut_after: Some(1), ..Fault::default() });
        assert_eq!(ask(&mut stream, 1), Some(2));
        assert_eq!(ask(&mut stream, 1), None);
        proxy.rename("ab", "cd");
        let mut renamed = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        renamed.write_all(b"xabab").unwrap();
        let mut answer = [0u8; 5];
        renamed.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"ydebc", "the first time in the first words");
        proxy.refuse(true);
        let mut refused = TcpStream::connect(("127.0.0.1", proxy.port())).unwrap();
        assert_eq!(ask(&mut refused, 1), None);
    }
}
