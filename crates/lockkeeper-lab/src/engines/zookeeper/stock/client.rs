//! A ZooKeeper client of a few operations, for what is no lock: the stock.

use std::fmt;
use std::io;
use std::net::ToSocketAddrs as _;
use std::time::Duration;

use lockkeeper::url::{EngineUrl, Secret};
use lockkeeper::{Error, ErrorKind, Result};

use lockkeeper_testkit::zookeeper::jute::{Answer, Body, Connection, xid};
use lockkeeper_testkit::zookeeper::proxy::op;

/// How long anything may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long its session may be idle; one that has ended is replaced.
const SESSION: Duration = Duration::from_secs(30);

/// Why an operation was not done.
#[derive(Debug)]
pub(super) enum Refusal {
    /// The node is there already.
    Exists,
    /// The node has another version.
    OtherVersion,
    /// The server's code.
    Code(i32),
    /// The connection.
    Link(io::Error),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("it is there already"),
            Self::OtherVersion => f.write_str("another client has changed it"),
            Self::Code(-101) => f.write_str("there is no such node: a chroot must exist"),
            Self::Code(-102) => f.write_str("access was denied"),
            Self::Code(code) => write!(f, "ZooKeeper's error {code}"),
            Self::Link(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Self::Link(error)
    }
}

/// A session.
pub(super) struct Client {
    hosts: Vec<(String, u16)>,
    chroot: String,
    auth: Vec<(String, Secret)>,
    connection: Option<Connection>,
}

impl Client {
    /// Connects to one of the servers of a `zk:` URL.
    ///
    /// # Errors
    /// `Unreachable`, and `InvalidArgument` for the URL.
    pub(super) fn connect(url: &str) -> Result<Self> {
        let mut url = EngineUrl::parse(url)?;
        let hosts =
            url.hosts.iter().map(|(host, port)| (host.clone(), port.unwrap_or(2181))).collect();
        let mut auth = Vec::new();
        if let Some(user) = &url.user {
            let password = url.password.as_ref().map_or("", Secret::reveal);
            auth.push(("digest".to_owned(), Secret::new(format!("{user}:{password}"))));
        }
        if let Some((scheme, credential)) =
            url.take("auth").as_deref().and_then(|text| text.split_once(':'))
        {
            auth.push((scheme.to_owned(), Secret::new(credential)));
        }
        let chroot = url.path.trim_end_matches('/').to_owned();
        let mut client = Self { hosts, chroot, auth, connection: None };
        client.open().map_err(|e| {
            Error::new(ErrorKind::Unreachable, format!("ZooKeeper cannot be reached: {e}"))
        })?;
        Ok(client)
    }

    /// Opens a session with the first server that answers.
    fn open(&mut self) -> io::Result<()> {
        let mut last = io::Error::other("the URL names no server");
        for (host, port) in self.hosts.clone() {
            match self.open_with(&host, port) {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn open_with(&mut self, host: &str, port: u16) -> io::Result<()> {
        let address = (host, port)
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("the host has no address"))?;
        let mut connection = Connection::open(address, SESSION, WITHIN)?;
        for (scheme, credential) in &self.auth {
            let body = Body::default()
                .int(0)
                .bytes(scheme.as_bytes())
                .bytes(credential.reveal().as_bytes());
            connection.request_as(xid::AUTH, op::AUTH, &body)?;
            connection.answer()?;
        }
        self.connection = Some(connection);
        Ok(())
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.chroot)
    }

    /// One operation. A session that has ended is replaced, and the operation sent again: all of
    /// them may be done twice.
    fn ask(&mut self, operation: i32, body: &Body) -> std::result::Result<Answer, Refusal> {
        let answer = match self.ask_once(operation, body) {
            Err(_) => {
                self.open()?;
                self.ask_once(operation, body)?
            }
            Ok(answer) => answer,
        };
        match answer.code()? {
            0 => Ok(answer),
            -110 => Err(Refusal::Exists),
            -103 => Err(Refusal::OtherVersion),
            code => Err(Refusal::Code(code)),
        }
    }

    fn ask_once(&mut self, operation: i32, body: &Body) -> io::Result<Answer> {
        let connection =
            self.connection.as_mut().ok_or_else(|| io::Error::other("not connected"))?;
        let answered = connection.request(operation, body).and_then(|xid| {
            loop {
                let answer = connection.answer()?;
                if answer.xid()? == xid {
                    return Ok(answer);
                }
            }
        });
        answered.inspect_err(|_| self.connection = None)
    }

    /// Makes a node that stays.
    pub(super) fn create(&mut self, path: &str, data: &[u8]) -> std::result::Result<(), Refusal> {
        let body = Body::create(&self.path(path), data, 0);
        self.ask(op::CREATE_PLAIN, &body).map(drop)
    }

    /// A node's data and version.
    pub(super) fn get(&mut self, path: &str) -> std::result::Result<(Vec<u8>, i32), Refusal> {
        let body = Body::of(&self.path(path)).flag(false);
        let answer = self.ask(op::GET_DATA, &body)?;
        let mut reader = answer.body();
        let data = reader.bytes()?.to_vec();
        // The version stands behind two transaction ids and two times.
        reader.skip(32)?;
        Ok((data, reader.int()?))
    }

    /// Writes a node's data, if it has this version; without one, whatever it has.
    pub(super) fn set(
        &mut self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> std::result::Result<(), Refusal> {
        let body = Body::of(&self.path(path)).bytes(data).int(version.unwrap_or(-1));
        self.ask(op::SET_DATA, &body).map(drop)
    }

    /// Removes a node.
    pub(super) fn delete(&mut self, path: &str) -> std::result::Result<(), Refusal> {
        let body = Body::of(&self.path(path)).int(-1);
        self.ask(op::DELETE, &body).map(drop)
    }

    /// A node's children.
    pub(super) fn children(&mut self, path: &str) -> std::result::Result<Vec<String>, Refusal> {
        let body = Body::of(&self.path(path)).flag(false);
        Ok(self.ask(op::GET_CHILDREN, &body)?.body().texts()?)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(connection) = &mut self.connection {
            // A session that is not closed ends by itself.
            let _ = connection.request(op::CLOSE, &Body::default());
        }
    }
}
