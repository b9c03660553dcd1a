//! A ZooKeeper client for what is no lock: the stock. It finds the servers of a URL, and replaces a
//! session that has ended.

use std::time::Duration;
use std::{fmt, io};

use lockkeeper::url::{EngineUrl, Secret};
use lockkeeper::{Error, ErrorKind, Result};
use lockkeeper_testkit::zookeeper::client::{self, Kind, code, codes};

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
            Self::Code(codes::NO_NODE) => f.write_str("there is no such node: a chroot must exist"),
            Self::Code(-102) => f.write_str("access was denied"),
            Self::Code(code) => write!(f, "ZooKeeper's error {code}"),
            Self::Link(error) => write!(f, "{error}"),
        }
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        match code(&error) {
            Some(codes::EXISTS) => Self::Exists,
            Some(codes::OTHER_VERSION) => Self::OtherVersion,
            Some(code) => Self::Code(code),
            None => Self::Link(error),
        }
    }
}

/// A session.
pub(super) struct Client {
    hosts: Vec<(String, u16)>,
    chroot: String,
    auth: Vec<(String, Secret)>,
    session: Option<client::Client>,
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
        let mut client = Self { hosts, chroot, auth, session: None };
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
        let mut session = client::Client::open((host, port), SESSION, WITHIN)?;
        for (scheme, credential) in &self.auth {
            session.identify(scheme, credential.reveal())?;
        }
        self.session = Some(session);
        Ok(())
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.chroot)
    }

    /// One operation. A session that has ended is replaced, and the operation sent again: all of
    /// them may be done twice.
    fn ask<T>(
        &mut self,
        path: &str,
        done: impl Fn(&mut client::Client, &str) -> io::Result<T>,
    ) -> std::result::Result<T, Refusal> {
        let path = self.path(path);
        let answered = match self.ask_once(&path, &done) {
            Err(error) if code(&error).is_none() => {
                self.open()?;
                self.ask_once(&path, &done)
            }
            answered => answered,
        };
        answered.map_err(Refusal::from)
    }

    fn ask_once<T>(
        &mut self,
        path: &str,
        done: impl Fn(&mut client::Client, &str) -> io::Result<T>,
    ) -> io::Result<T> {
        let session = self.session.as_mut().ok_or_else(|| io::Error::other("not connected"))?;
        let answered = done(session, path);
        if answered.as_ref().is_err_and(|error| code(error).is_none()) {
            self.session = None;
        }
        answered
    }

    /// Makes a node that stays.
    pub(super) fn create(&mut self, path: &str, data: &[u8]) -> std::result::Result<(), Refusal> {
        self.ask(path, |session, path| session.create(path, data, Kind::Persistent)).map(drop)
    }

    /// A node's data and version.
    pub(super) fn get(&mut self, path: &str) -> std::result::Result<(Vec<u8>, i32), Refusal> {
        self.ask(path, client::Client::get)
    }

    /// Writes a node's data, if it has this version; without one, whatever it has.
    pub(super) fn set(
        &mut self,
        path: &str,
        data: &[u8],
        version: Option<i32>,
    ) -> std::result::Result<(), Refusal> {
        self.ask(path, |session, path| session.set(path, data, version))
    }

    /// Removes a node.
    pub(super) fn delete(&mut self, path: &str) -> std::result::Result<(), Refusal> {
        self.ask(path, client::Client::delete)
    }

    /// A node's children.
    pub(super) fn children(&mut self, path: &str) -> std::result::Result<Vec<String>, Refusal> {
        self.ask(path, client::Client::children)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            session.close();
        }
    }
}
