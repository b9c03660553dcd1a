//! A plain, blocking ZooKeeper client: for what tests, measurements and broken locks do to a server
//! beside the library.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, ToSocketAddrs};
use std::time::{Duration, Instant};
use std::{fmt, io};

use super::jute::{Answer, Body, Connection, Session, xid};
use super::proxy::op;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// How long a session may be idle.
const SESSION: Duration = Duration::from_secs(10);

/// Where the time is written down to be read.
const CLOCK: &str = "/lockkeeper-lab-clock";

/// How long a node lives and whether its name gets a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Until it is deleted.
    Persistent = 0,
    /// As long as the session; the name gets a number.
    EphemeralSequential = 3,
    /// Until its last child has been deleted for a while.
    Container = 4,
}

/// What the server answers in place of doing it; see [`code`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Refused(i32);

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper answered {}", self.0)
    }
}

impl std::error::Error for Refused {}

/// The server's answer, where an error is one, and not the connection's.
pub fn code(error: &io::Error) -> Option<i32> {
    error.get_ref()?.downcast_ref().map(|Refused(code)| *code)
}

/// Answers of the server.
pub mod codes {
    /// The node is not there.
    pub const NO_NODE: i32 = -101;
    /// The node has another version.
    pub const OTHER_VERSION: i32 = -103;
    /// The node is there already.
    pub const EXISTS: i32 = -110;
}

/// One connection with a session of its own, which ends with it.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    /// The paths of watches that fired, and of which nobody has been told yet.
    events: VecDeque<String>,
}

impl Client {
    /// Connects to the server at this port of the loopback.
    ///
    /// # Errors
    /// When the server is not there, or does not serve.
    pub fn connect(port: u16) -> io::Result<Self> {
        Self::connect_to((Ipv4Addr::LOCALHOST, port))
    }

    /// Connects to a server anywhere.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn connect_to(address: impl ToSocketAddrs) -> io::Result<Self> {
        Self::open(address, SESSION, PATIENCE)
    }

    /// Connects with a session that may be idle for so long, and waits for each answer for so long.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub fn open(
        address: impl ToSocketAddrs,
        session: Duration,
        patience: Duration,
    ) -> io::Result<Self> {
        let address = address
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("the host has no address"))?;
        let connection = Connection::open(address, session, patience)?;
        Ok(Self { connection, events: VecDeque::new() })
    }

    /// Says who we are; whether that is believed shows at what is asked next.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn identify(&mut self, scheme: &str, credential: &str) -> io::Result<()> {
        let body = Body::default().int(0).bytes(scheme.as_bytes()).bytes(credential.as_bytes());
        self.connection.request_as(xid::AUTH, op::AUTH, &body)?;
        self.connection.answer().map(drop)
    }

    /// Creates a node; answers its path.
    ///
    /// # Errors
    /// What the server answers instead, as a number in the text.
    pub fn create(&mut self, path: &str, data: &[u8], kind: Kind) -> io::Result<String> {
        self.ask_create(path, data, kind)?;
        self.created()
    }

    /// Reads the answer to a create: the node's path.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn created(&mut self) -> io::Result<String> {
        self.done()?.body().text()
    }

    /// Deletes a node.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn delete(&mut self, path: &str) -> io::Result<()> {
        self.ask_delete(path)?;
        self.answer()
    }

    /// The names of a node's children.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        self.list(path, false)
    }

    /// The same, and watches them.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn watch_children(&mut self, path: &str) -> io::Result<Vec<String>> {
        self.list(path, true)
    }

    fn list(&mut self, path: &str, watch: bool) -> io::Result<Vec<String>> {
        self.ask(op::GET_CHILDREN, &Body::of(path).flag(watch))?.body().texts()
    }

    /// Watches a node; whether it is there.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn watch_existence(&mut self, path: &str) -> io::Result<bool> {
        match self.ask(op::EXISTS, &Body::of(path).flag(true)) {
            Err(error) if code(&error) == Some(codes::NO_NODE) => Ok(false),
            answered => answered.map(|_| true),
        }
    }

    /// A node's data and version.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn get(&mut self, path: &str) -> io::Result<(Vec<u8>, i32)> {
        let answer = self.ask(op::GET_DATA, &Body::of(path).flag(false))?;
        let mut reader = answer.body();
        let data = reader.bytes()?.to_vec();
        // The version stands behind two transaction ids and two times.
        reader.skip(32)?;
        Ok((data, reader.int()?))
    }

    /// Writes a node's data, if it has this version; without one, whatever it has.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn set(&mut self, path: &str, data: &[u8], version: Option<i32>) -> io::Result<()> {
        self.write(path, data, version.unwrap_or(-1)).map(drop)
    }

    fn write(&mut self, path: &str, data: &[u8], version: i32) -> io::Result<Answer> {
        self.ask(op::SET_DATA, &Body::of(path).bytes(data).int(version))
    }

    /// Deletes a node and everything below it; what goes away by itself meanwhile is fine.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn delete_all(&mut self, path: &str) -> io::Result<()> {
        let fine = |result: io::Result<()>| match result {
            Err(error) if code(&error).is_some() => Ok(()),
            other => other,
        };
        match self.children(path) {
            Ok(names) => {
                names.iter().try_for_each(|name| self.delete_all(&format!("{path}/{name}")))?
            }
            Err(error) => fine(Err(error))?,
        }
        fine(self.delete(path))
    }

    /// The time of day of the server, of several of the one that leads: when it wrote a node of
    /// ours, in milliseconds since 1970.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn time_of_day_ms(&mut self) -> io::Result<i64> {
        match self.create(CLOCK, b"", Kind::Persistent) {
            // It is there from the second time on.
            Err(error) if code(&error).is_none() => return Err(error),
            _ => {}
        }
        let answer = self.write(CLOCK, b"", -1)?;
        let mut stat = answer.body();
        // The transactions that created and wrote it, and when it was created.
        stat.skip(24)?;
        stat.long()
    }

    /// Reads a node's data and watches it.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn watch(&mut self, path: &str) -> io::Result<()> {
        self.ask(op::GET_DATA, &Body::of(path).flag(true)).map(drop)
    }

    /// Waits for a watch to fire.
    ///
    /// # Errors
    /// When nothing comes, or something else does.
    pub fn event(&mut self) -> io::Result<()> {
        if self.events.pop_front().is_some() {
            return Ok(());
        }
        match self.connection.answer()?.xid()? {
            xid::EVENT => Ok(()),
            _ => Err(io::Error::other("no event")),
        }
    }

    /// Waits until the watches that fired are so, with signs of life, for so long at most; they are
    /// forgotten then.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn wait_until(
        &mut self,
        within: Duration,
        so: impl Fn(&VecDeque<String>) -> bool,
    ) -> io::Result<bool> {
        let until = Instant::now() + within;
        while !so(&self.events) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.alive()?;
            self.listen(left.min(self.connection.timeout / 6))?;
        }
        self.events.clear();
        Ok(true)
    }

    /// Gives a sign of life, and hears whether the connection still is.
    ///
    /// # Errors
    /// When it is not.
    pub fn tend(&mut self) -> io::Result<()> {
        self.alive()?;
        self.listen(Duration::from_millis(1))
    }

    /// Forgets the watches that fired.
    pub fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Ends the session, without waiting for the answer.
    pub fn close(mut self) {
        // A session that is not closed ends by itself.
        let _ = self.connection.request(op::CLOSE, &Body::default());
    }

    /// A sign of life, if it is time for one.
    fn alive(&mut self) -> io::Result<()> {
        if self.connection.last_sent.elapsed() > self.connection.timeout / 4 {
            self.connection.request_as(xid::PING, op::PING, &Body::default())?;
        }
        Ok(())
    }

    /// Takes in what comes in that time.
    fn listen(&mut self, within: Duration) -> io::Result<()> {
        if self.connection.comes_within(within)? {
            let answer = self.connection.answer()?;
            self.unasked(&answer)?;
        }
        Ok(())
    }

    /// Whether it is no answer to a request: an event of a watch, or the answer to a sign of life.
    fn unasked(&mut self, answer: &Answer) -> io::Result<bool> {
        let xid = answer.xid()?;
        if xid == xid::EVENT {
            let mut event = answer.body();
            // What happened, and the state of the session.
            event.skip(8)?;
            self.events.push_back(event.text()?);
        }
        Ok(matches!(xid, xid::EVENT | xid::PING))
    }

    /// Sends a create without waiting for its answer; [`Client::answer`] reads it.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn ask_create(&mut self, path: &str, data: &[u8], kind: Kind) -> io::Result<()> {
        let operation = if kind == Kind::Container { op::CREATE_CONTAINER } else { op::CREATE };
        self.connection.request(operation, &Body::create(path, data, kind as i32)).map(drop)
    }

    /// Sends a delete without waiting for its answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn ask_delete(&mut self, path: &str) -> io::Result<()> {
        self.connection.request(op::DELETE, &Body::of(path).int(-1)).map(drop)
    }

    /// Reads the next answer: whether it was done.
    ///
    /// # Errors
    /// The server's code as text; or the connection's.
    pub fn answer(&mut self) -> io::Result<()> {
        self.done().map(drop)
    }

    /// Ends a session that somebody else has, of which this is what the server said first.
    ///
    /// # Errors
    /// When the server is not there, or knows no such session.
    pub fn end_session(port: u16, greeting: &[u8], patience: Duration) -> io::Result<()> {
        let session =
            Session::greeted(greeting).ok_or_else(|| io::Error::other("there is no session"))?;
        Connection::end((Ipv4Addr::LOCALHOST, port).into(), session, patience)
    }

    fn ask(&mut self, operation: i32, body: &Body) -> io::Result<Answer> {
        self.connection.request(operation, body)?;
        self.done()
    }

    /// The answer to the oldest request that has none: a server answers in order.
    fn done(&mut self) -> io::Result<Answer> {
        loop {
            let answer = self.connection.answer()?;
            if self.unasked(&answer)? {
                continue;
            }
            return match answer.code()? {
                0 => Ok(answer),
                code => Err(io::Error::other(Refused(code))),
            };
        }
    }
}
