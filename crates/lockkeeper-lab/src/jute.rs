//! A blocking ZooKeeper client of a few operations, for what is no lock: the demo's stock.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

use lockkeeper::url::{EngineUrl, Secret};
use lockkeeper::{Error, ErrorKind, Result};

/// How long anything may take.
const WITHIN: Duration = Duration::from_secs(10);
/// How long its session may be idle; one that has ended is replaced.
const SESSION_MS: i32 = 30_000;
/// The longest answer that is read.
const LONGEST: usize = 4 << 20;

mod op {
    pub(super) const CREATE: i32 = 1;
    pub(super) const DELETE: i32 = 2;
    pub(super) const GET_DATA: i32 = 4;
    pub(super) const SET_DATA: i32 = 5;
    pub(super) const GET_CHILDREN: i32 = 8;
    pub(super) const AUTH: i32 = 100;
    pub(super) const CLOSE: i32 = -11;
}

/// Why an operation was not done.
#[derive(Debug)]
pub(crate) enum Refusal {
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
            Self::OtherVersion => f.write_str("somebody has changed it"),
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
pub(crate) struct Client {
    hosts: Vec<(String, u16)>,
    chroot: String,
    auth: Vec<(String, Secret)>,
    stream: Option<TcpStream>,
    xid: i32,
}

impl Client {
    /// Connects to one of the servers of a `zk:` URL.
    ///
    /// # Errors
    /// `Unreachable`, and `InvalidArgument` for the URL.
    pub(crate) fn connect(url: &str) -> Result<Self> {
        let mut url = EngineUrl::parse(url)?;
        let hosts = url.hosts.iter().map(|(host, port)| (host.clone(), port.unwrap_or(2181))).collect();
        let mut auth = Vec::new();
        if let Some(user) = &url.user {
            let password = url.password.as_ref().map_or("", Secret::reveal);
            auth.push(("digest".to_owned(), Secret::new(format!("{user}:{password}"))));
        }
        if let Some((scheme, credential)) = url.take("auth").as_deref().and_then(|text| text.split_once(':')) {
            auth.push((scheme.to_owned(), Secret::new(credential)));
        }
        let chroot = url.path.trim_end_matches('/').to_owned();
        let mut client = Self { hosts, chroot, auth, stream: None, xid: 0 };
        client.open().map_err(|e| Error::new(ErrorKind::Unreachable, format!("ZooKeeper cannot be reached: {e}")))?;
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
        let address = (host, port).to_socket_addrs()?.next().ok_or_else(|| io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, WITHIN)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(WITHIN))?;
        stream.set_write_timeout(Some(WITHIN))?;
        let mut hello = Vec::new();
        hello.extend(0i32.to_be_bytes());
        hello.extend(0i64.to_be_bytes());
        hello.extend(SESSION_MS.to_be_bytes());
        hello.extend(0i64.to_be_bytes());
        put(&mut hello, &[0; 16]);
        hello.push(0);
        send(&mut stream, &hello)?;
        receive(&mut stream)?;
        for (scheme, credential) in &self.auth {
            let mut body = Vec::new();
            body.extend((-4i32).to_be_bytes());
            body.extend(op::AUTH.to_be_bytes());
            body.extend(0i32.to_be_bytes());
            put(&mut body, scheme.as_bytes());
            put(&mut body, credential.reveal().as_bytes());
            send(&mut stream, &body)?;
            receive(&mut stream)?;
        }
        self.stream = Some(stream);
        Ok(())
    }

    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.chroot)
    }

    /// One operation. A session that has ended is replaced, and the operation sent again: all of them may be done twice.
    fn ask(&mut self, operation: i32, body: &[u8]) -> std::result::Result<Vec<u8>, Refusal> {
        let answer = match self.ask_once(operation, body) {
            Err(_) => {
                self.open()?;
                self.ask_once(operation, body)?
            }
            Ok(answer) => answer,
        };
        let (head, body) = answer.split_at_checked(16).ok_or_else(garbled)?;
        match number(head, 12)? {
            0 => Ok(body.to_vec()),
            -110 => Err(Refusal::Exists),
            -103 => Err(Refusal::OtherVersion),
            code => Err(Refusal::Code(code)),
        }
    }

    fn ask_once(&mut self, operation: i32, body: &[u8]) -> io::Result<Vec<u8>> {
        self.xid += 1;
        let xid = self.xid;
        let stream = self.stream.as_mut().ok_or_else(|| io::Error::other("not connected"))?;
        let message = [&xid.to_be_bytes(), &operation.to_be_bytes(), body].concat();
        let answered = send(stream, &message).and_then(|()| {
            loop {
                let answer = receive(stream)?;
                if number(&answer, 0)? == xid {
                    return Ok(answer);
                }
            }
        });
        answered.inspect_err(|_| self.stream = None)
    }

    /// Makes a node that stays.
    pub(crate) fn create(&mut self, path: &str, data: &[u8]) -> std::result::Result<(), Refusal> {
        let mut body = Vec::new();
        put(&mut body, self.path(path).as_bytes());
        put(&mut body, data);
        // Everybody may do everything.
        body.extend(1i32.to_be_bytes());
        body.extend(31i32.to_be_bytes());
        put(&mut body, b"world");
        put(&mut body, b"anyone");
        body.extend(0i32.to_be_bytes());
        self.ask(op::CREATE, &body).map(drop)
    }

    /// A node's data and version.
    pub(crate) fn get(&mut self, path: &str) -> std::result::Result<(Vec<u8>, i32), Refusal> {
        let mut body = Vec::new();
        put(&mut body, self.path(path).as_bytes());
        body.push(0);
        let answer = self.ask(op::GET_DATA, &body)?;
        let length = usize::try_from(number(&answer, 0)?).unwrap_or(0);
        let data = answer.get(4..4 + length).ok_or_else(garbled)?.to_vec();
        // The version stands behind two transaction ids and two times.
        Ok((data, number(&answer, 4 + length + 32)?))
    }

    /// Writes a node's data, if it has this version; without one, whatever it has.
    pub(crate) fn set(&mut self, path: &str, data: &[u8], version: Option<i32>) -> std::result::Result<(), Refusal> {
        let mut body = Vec::new();
        put(&mut body, self.path(path).as_bytes());
        put(&mut body, data);
        body.extend(version.unwrap_or(-1).to_be_bytes());
        self.ask(op::SET_DATA, &body).map(drop)
    }

    /// Removes a node.
    pub(crate) fn delete(&mut self, path: &str) -> std::result::Result<(), Refusal> {
        let mut body = Vec::new();
        put(&mut body, self.path(path).as_bytes());
        body.extend((-1i32).to_be_bytes());
        self.ask(op::DELETE, &body).map(drop)
    }

    /// A node's children.
    pub(crate) fn children(&mut self, path: &str) -> std::result::Result<Vec<String>, Refusal> {
        let mut body = Vec::new();
        put(&mut body, self.path(path).as_bytes());
        body.push(0);
        let answer = self.ask(op::GET_CHILDREN, &body)?;
        let mut at = 4;
        let mut all = Vec::new();
        for _ in 0..number(&answer, 0)?.max(0) {
            let length = usize::try_from(number(&answer, at)?).unwrap_or(0);
            let name = answer.get(at + 4..at + 4 + length).ok_or_else(garbled)?;
            all.push(String::from_utf8_lossy(name).into_owned());
            at += 4 + length;
        }
        Ok(all)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(stream) = &mut self.stream {
            // A session that is not closed ends by itself.
            let _ = send(stream, &[self.xid.wrapping_add(1).to_be_bytes(), op::CLOSE.to_be_bytes()].concat());
        }
    }
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is not ZooKeeper's protocol")
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(i32::try_from(bytes.len()).unwrap_or(i32::MAX).to_be_bytes());
    out.extend(bytes);
}

fn number(bytes: &[u8], at: usize) -> io::Result<i32> {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map(i32::from_be_bytes).ok_or_else(garbled)
}

fn send(stream: &mut TcpStream, body: &[u8]) -> io::Result<()> {
    let mut frame = Vec::with_capacity(body.len() + 4);
    put(&mut frame, body);
    stream.write_all(&frame)
}

fn receive(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let length = usize::try_from(i32::from_be_bytes(length)).ok().filter(|l| *l <= LONGEST).ok_or_else(garbled)?;
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    Ok(body)
}
