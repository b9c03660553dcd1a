//! ZooKeeper's protocol, blocking, for one thread: one connection with a session of its own, below
//! every client here and in the laboratory.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::proxy::op;

/// The longest answer that is read.
const LONGEST: usize = 64 << 20;
/// How long the head of an answer is.
const HEAD: usize = 16;

/// Answers of the server that are no answers to a request, and requests without a number.
pub mod xid {
    /// A watch has fired.
    pub const EVENT: i32 = -1;
    /// A sign of life.
    pub const PING: i32 = -2;
    /// Who we are.
    pub const AUTH: i32 = -4;
}

/// A connection.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
    xid: i32,
    /// How long its session may be idle, as negotiated.
    pub timeout: Duration,
    /// When something was sent last.
    pub last_sent: Instant,
    patience: Duration,
}

impl Connection {
    /// Connects to a server and begins a session; an answer may take as long as `patience`.
    ///
    /// # Errors
    /// When the server is not there, or does not serve.
    pub fn open(address: SocketAddr, session: Duration, patience: Duration) -> io::Result<Self> {
        let mut connection = Self::connect(address, session, patience)?;
        connection.send(&Session { timeout: session, ..Session::default() }.hello())?;
        let begun =
            Session::read(&connection.receive()?).ok_or(io::ErrorKind::ConnectionRefused)?;
        connection.timeout = begun.timeout;
        Ok(connection)
    }

    /// Ends a session that somebody else has. It is taken up and ended in one message, for its
    /// owner, whose connection that cuts, comes back.
    ///
    /// # Errors
    /// When the server is not there, or knows no such session.
    pub fn end(address: SocketAddr, session: Session, patience: Duration) -> io::Result<()> {
        let mut connection = Self::connect(address, session.timeout, patience)?;
        let close = Body::default().bytes(&Body::default().int(1).int(op::CLOSE).0);
        connection
            .stream
            .write_all(&[Body::default().bytes(&session.hello()).0, close.0].concat())?;
        Session::read(&connection.receive()?).ok_or(io::ErrorKind::ConnectionRefused)?;
        match connection.answer()?.code()? {
            0 => Ok(()),
            code => Err(io::Error::other(format!("ZooKeeper answered {code}"))),
        }
    }

    fn connect(address: SocketAddr, session: Duration, patience: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, patience)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        stream.set_write_timeout(Some(patience))?;
        Ok(Self { stream, xid: 0, timeout: session, last_sent: Instant::now(), patience })
    }

    /// Sends a request; answers its number.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn request(&mut self, operation: i32, body: &Body) -> io::Result<i32> {
        self.xid += 1;
        self.request_as(self.xid, operation, body)?;
        Ok(self.xid)
    }

    /// Sends a request under a number of the caller's.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn request_as(&mut self, xid: i32, operation: i32, body: &Body) -> io::Result<()> {
        self.last_sent = Instant::now();
        self.send(&[&xid.to_be_bytes(), &operation.to_be_bytes(), body.0.as_slice()].concat())
    }

    /// The next answer or event.
    ///
    /// # Errors
    /// When the connection breaks, or none comes in time.
    pub fn answer(&mut self) -> io::Result<Answer> {
        self.receive().map(Answer)
    }

    /// Whether something comes in that time.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn comes_within(&mut self, time: Duration) -> io::Result<bool> {
        self.stream.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
        let there = self.stream.peek(&mut [0; 1]);
        self.stream.set_read_timeout(Some(self.patience))?;
        match there {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ) =>
            {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        self.stream.write_all(&Body::default().bytes(message).0)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let length = usize::try_from(i32::from_be_bytes(length))
            .ok()
            .filter(|l| *l <= LONGEST)
            .ok_or_else(garbled)?;
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message)?;
        Ok(message)
    }
}

/// What a server tells whomever it takes in, and what it takes to take that session up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Session {
    id: i64,
    password: [u8; 16],
    timeout: Duration,
}

impl Session {
    /// The one that begins with these bytes of a server, the first on a connection.
    pub fn greeted(bytes: &[u8]) -> Option<Self> {
        Self::read(bytes.get(4..)?)
    }

    /// What begins or takes it up.
    fn hello(&self) -> Vec<u8> {
        let timeout = i32::try_from(self.timeout.as_millis()).unwrap_or(i32::MAX);
        Body::default()
            .int(0)
            .long(0)
            .int(timeout)
            .long(self.id)
            .bytes(&self.password)
            .flag(false)
            .0
    }

    /// `None` where the server refuses: the session has ended.
    fn read(answer: &[u8]) -> Option<Self> {
        let mut answer = Reader(answer.get(4..)?);
        let timeout = u64::try_from(answer.int().ok()?).ok().filter(|ms| *ms > 0)?;
        let (id, password) = (answer.long().ok()?, answer.bytes().ok()?.try_into().ok()?);
        Some(Self { id, password, timeout: Duration::from_millis(timeout) })
    }
}

/// What a request says.
#[derive(Debug, Default)]
pub struct Body(Vec<u8>);

impl Body {
    /// One that begins with a path, as nearly all do.
    pub fn of(path: &str) -> Self {
        Self::default().bytes(path.as_bytes())
    }

    /// What creates a node that everybody may do everything with; `kind` as the protocol numbers
    /// them.
    pub fn create(path: &str, data: &[u8], kind: i32) -> Self {
        Self::of(path).bytes(data).int(1).int(31).bytes(b"world").bytes(b"anyone").int(kind)
    }

    /// Adds 32 bits.
    pub fn int(mut self, number: i32) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Adds 64 bits.
    pub fn long(mut self, number: i64) -> Self {
        self.0.extend(number.to_be_bytes());
        self
    }

    /// Adds a byte that is 0 or 1.
    pub fn flag(mut self, flag: bool) -> Self {
        self.0.push(u8::from(flag));
        self
    }

    /// Adds bytes behind their number.
    pub fn bytes(mut self, bytes: &[u8]) -> Self {
        self = self.int(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
        self.0.extend(bytes);
        self
    }
}

/// What the server sent.
pub struct Answer(Vec<u8>);

impl Answer {
    /// The number of the request that it answers, or one of [`xid`].
    ///
    /// # Errors
    /// When it is shorter than a head.
    pub fn xid(&self) -> io::Result<i32> {
        self.reader(0).int()
    }

    /// 0, or why it was not done.
    ///
    /// # Errors
    /// When it is shorter than a head.
    pub fn code(&self) -> io::Result<i32> {
        self.reader(12).int()
    }

    /// What stands behind the head.
    pub fn body(&self) -> Reader<'_> {
        self.reader(HEAD)
    }

    fn reader(&self, at: usize) -> Reader<'_> {
        Reader(self.0.get(at..).unwrap_or_default())
    }
}

/// Reads an answer from the front; what is not there is an error.
pub struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(garbled)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads 32 bits.
    ///
    /// # Errors
    /// They are not there.
    pub fn int(&mut self) -> io::Result<i32> {
        self.take(4)?.try_into().map(i32::from_be_bytes).map_err(|_| garbled())
    }

    /// Reads 64 bits.
    ///
    /// # Errors
    /// They are not there.
    pub fn long(&mut self) -> io::Result<i64> {
        self.take(8)?.try_into().map(i64::from_be_bytes).map_err(|_| garbled())
    }

    /// Leaves out so many bytes.
    ///
    /// # Errors
    /// They are not there.
    pub fn skip(&mut self, length: usize) -> io::Result<()> {
        self.take(length).map(drop)
    }

    /// Reads bytes behind their number.
    ///
    /// # Errors
    /// They are not there.
    pub fn bytes(&mut self) -> io::Result<&'a [u8]> {
        let length = usize::try_from(self.int()?).unwrap_or(0);
        self.take(length)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// It is not there.
    pub fn text(&mut self) -> io::Result<String> {
        self.bytes().map(|text| String::from_utf8_lossy(text).into_owned())
    }

    /// Reads a list of texts.
    ///
    /// # Errors
    /// They are not there.
    pub fn texts(&mut self) -> io::Result<Vec<String>> {
        let count = self.int()?;
        (0..count).map(|_| self.text()).collect()
    }
}

/// The error of an answer that is none.
pub fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is not ZooKeeper's protocol")
}
