//! A plain, blocking ZooKeeper client: for what tests and measurements do to a server beside the
//! library.

use std::io;
use std::net::{Ipv4Addr, ToSocketAddrs};
use std::time::Duration;

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
    Persistent,
    /// As long as the session; the name gets a number.
    EphemeralSequential,
}

/// One connection with a session of its own, which ends with it.
#[derive(Debug)]
pub struct Client(Connection);

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
        let address = address
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("the host has no address"))?;
        Connection::open(address, SESSION, PATIENCE).map(Self)
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
        self.0.request(op::GET_CHILDREN, &Body::of(path).flag(false))?;
        self.done()?.body().texts()
    }

    /// Deletes a node and everything below it; what goes away by itself meanwhile is fine.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn delete_all(&mut self, path: &str) -> io::Result<()> {
        let fine = |result: io::Result<()>| match result {
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(()),
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
            Err(error) if error.kind() != io::ErrorKind::Other => return Err(error),
            _ => self.0.request(op::SET_DATA, &Body::of(CLOCK).bytes(b"").int(-1))?,
        };
        let answer = self.done()?;
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
        self.0.request(op::GET_DATA, &Body::of(path).flag(true))?;
        self.answer()
    }

    /// Waits for a watch to fire.
    ///
    /// # Errors
    /// When nothing comes, or something else does.
    pub fn event(&mut self) -> io::Result<()> {
        if self.0.answer()?.xid()? == xid::EVENT {
            Ok(())
        } else {
            Err(io::Error::other("no event"))
        }
    }

    /// Sends a create without waiting for its answer; [`Client::answer`] reads it.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn ask_create(&mut self, path: &str, data: &[u8], kind: Kind) -> io::Result<()> {
        let kind = if kind == Kind::Persistent { 0 } else { 3 };
        self.0.request(op::CREATE, &Body::create(path, data, kind)).map(drop)
    }

    /// Sends a delete without waiting for its answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn ask_delete(&mut self, path: &str) -> io::Result<()> {
        self.0.request(op::DELETE, &Body::of(path).int(-1)).map(drop)
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

    fn done(&mut self) -> io::Result<Answer> {
        let answer = self.0.answer()?;
        match answer.code()? {
            0 => Ok(answer),
            code => Err(io::Error::other(format!("ZooKeeper answered {code}"))),
        }
    }
}
