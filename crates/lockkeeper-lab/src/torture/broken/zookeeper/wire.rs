//! Just enough of ZooKeeper's protocol, blocking, for one thread.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long a connection waits for an answer.
const PATIENCE: Duration = Duration::from_secs(3);
const PING: i32 = 11;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;

/// How a node is made.
#[derive(Clone, Copy)]
pub(super) enum Node {
    Persistent = 0,
    EphemeralSequential = 3,
    Container = 4,
}

/// A session, with the connection that carries it.
pub(super) struct Session {
    stream: TcpStream,
    xid: i32,
    timeout: Duration,
    last_sent: Instant,
    /// Paths of watches that fired.
    events: VecDeque<String>,
}

impl Session {
    /// A new session.
    pub(super) fn open(port: u16, timeout: Duration) -> io::Result<Self> {
        let mut stream = TcpStream::connect_timeout(&([127, 0, 0, 1], port).into(), PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut hello = Vec::new();
        int(&mut hello, 0);
        long(&mut hello, 0);
        int(&mut hello, i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX));
        long(&mut hello, 0);
        bytes(&mut hello, &[0; 16]);
        hello.push(0);
        send(&mut stream, &hello)?;
        let answer = receive(&mut stream)?;
        let negotiated = Reader(&answer, 4).int()?;
        let timeout = u64::try_from(negotiated).ok().filter(|ms| *ms > 0).ok_or(io::ErrorKind::ConnectionRefused)?;
        Ok(Self { stream, xid: 0, timeout: Duration::from_millis(timeout), last_sent: Instant::now(), events: VecDeque::new() })
    }

    /// Makes a node; answers its path, `None` when it is there already.
    pub(super) fn create(&mut self, path: &str, node: Node) -> io::Result<Option<String>> {
        let mut body = Vec::new();
        bytes(&mut body, path.as_bytes());
        bytes(&mut body, &[]);
        int(&mut body, 1);
        int(&mut body, 31);
        bytes(&mut body, b"world");
        bytes(&mut body, b"anyone");
        int(&mut body, node as i32);
        let operation = if matches!(node, Node::Container) { 19 } else { 1 };
        match self.ask(operation, &body)? {
            (0, answer) => Reader(&answer, 16).text().map(Some),
            (NODE_EXISTS, _) => Ok(None),
            (error, _) => Err(refused(error)),
        }
    }

    /// The children's names; `None` when the node is not there.
    pub(super) fn children(&mut self, path: &str, watch: bool) -> io::Result<Option<Vec<String>>> {
        match self.path(8, path, watch)? {
            (0, answer) => {
                let mut reader = Reader(&answer, 16);
                let count = reader.int()?;
                (0..count).map(|_| reader.text()).collect::<io::Result<_>>().map(Some)
            }
            (NO_NODE, _) => Ok(None),
            (error, _) => Err(refused(error)),
        }
    }

    /// Whether a node is there, and a watch on it.
    pub(super) fn exists(&mut self, path: &str) -> io::Result<bool> {
        match self.path(3, path, true)? {
            (0, _) => Ok(true),
            (NO_NODE, _) => Ok(false),
            (error, _) => Err(refused(error)),
        }
    }

    /// Removes a node; false when it was not there.
    pub(super) fn delete(&mut self, path: &str) -> io::Result<bool> {
        let mut body = Vec::new();
        bytes(&mut body, path.as_bytes());
        int(&mut body, -1);
        match self.ask(2, &body)? {
            (0, _) => Ok(true),
            (NO_NODE, _) => Ok(false),
            (error, _) => Err(refused(error)),
        }
    }

    /// Waits until a watch has fired, for so long at most.
    pub(super) fn wait(&mut self, within: Duration) -> io::Result<bool> {
        let until = Instant::now() + within;
        while self.events.is_empty() {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.alive()?;
            self.listen(left.min(self.timeout / 6))?;
        }
        self.events.clear();
        Ok(true)
    }

    /// Gives a sign of life, and hears whether the connection still is.
    pub(super) fn tend(&mut self) -> io::Result<()> {
        self.alive()?;
        self.listen(Duration::from_millis(1))
    }

    /// A sign of life, if it is time for one.
    fn alive(&mut self) -> io::Result<()> {
        if self.last_sent.elapsed() > self.timeout / 4 {
            self.request(-2, PING, &[])?;
        }
        Ok(())
    }

    /// Takes in what comes in that time.
    fn listen(&mut self, within: Duration) -> io::Result<()> {
        self.stream.set_read_timeout(Some(within.max(Duration::from_millis(1))))?;
        let there = self.stream.peek(&mut [0; 1]);
        self.stream.set_read_timeout(Some(PATIENCE))?;
        match there {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => receive(&mut self.stream).and_then(|frame| self.unasked(&frame)),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted) => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// An event of a watch, or the answer to a ping.
    fn unasked(&mut self, frame: &[u8]) -> io::Result<()> {
        if Reader(frame, 0).int()? == -1 {
            self.events.push_back(Reader(frame, 24).text()?);
        }
        Ok(())
    }

    fn path(&mut self, operation: i32, path: &str, watch: bool) -> io::Result<(i32, Vec<u8>)> {
        let mut body = Vec::new();
        bytes(&mut body, path.as_bytes());
        body.push(u8::from(watch));
        self.ask(operation, &body)
    }

    fn request(&mut self, xid: i32, operation: i32, body: &[u8]) -> io::Result<()> {
        let mut frame = Vec::new();
        int(&mut frame, xid);
        int(&mut frame, operation);
        frame.extend_from_slice(body);
        self.last_sent = Instant::now();
        send(&mut self.stream, &frame)
    }

    fn ask(&mut self, operation: i32, body: &[u8]) -> io::Result<(i32, Vec<u8>)> {
        self.xid += 1;
        let xid = self.xid;
        self.request(xid, operation, body)?;
        loop {
            let frame = receive(&mut self.stream)?;
            if Reader(&frame, 0).int()? == xid {
                return Ok((Reader(&frame, 12).int()?, frame));
            }
            self.unasked(&frame)?;
        }
    }
}

fn refused(error: i32) -> io::Error {
    io::Error::other(format!("ZooKeeper answered error {error}"))
}

fn int(to: &mut Vec<u8>, number: i32) {
    to.extend_from_slice(&number.to_be_bytes());
}

fn long(to: &mut Vec<u8>, number: i64) {
    to.extend_from_slice(&number.to_be_bytes());
}

fn bytes(to: &mut Vec<u8>, data: &[u8]) {
    int(to, i32::try_from(data.len()).unwrap_or(i32::MAX));
    to.extend_from_slice(data);
}

fn send(stream: &mut TcpStream, frame: &[u8]) -> io::Result<()> {
    let mut whole = Vec::new();
    bytes(&mut whole, frame);
    stream.write_all(&whole)
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut prefix = [0; 4];
    stream.read_exact(&mut prefix)?;
    let length = usize::try_from(i32::from_be_bytes(prefix)).map_err(io::Error::other)?;
    let mut frame = vec![0; length];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

/// Reads from a place in a frame on.
struct Reader<'a>(&'a [u8], usize);

impl Reader<'_> {
    fn int(&mut self) -> io::Result<i32> {
        let four = self.0.get(self.1..self.1 + 4).and_then(|b| b.try_into().ok()).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.1 += 4;
        Ok(i32::from_be_bytes(four))
    }

    fn text(&mut self) -> io::Result<String> {
        let length = usize::try_from(self.int()?).unwrap_or(0);
        let text = self.0.get(self.1..self.1 + length).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.1 += length;
        Ok(String::from_utf8_lossy(text).into_owned())
    }
}
