//! A plain, blocking ZooKeeper client: for what tests and measurements do to a server beside the library.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::zookeeper_proxy::op;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

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
pub struct Client {
    stream: TcpStream,
    xid: i32,
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
        let mut stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut hello = Vec::new();
        hello.extend_from_slice(&0i32.to_be_bytes());
        hello.extend_from_slice(&0i64.to_be_bytes());
        hello.extend_from_slice(&10_000i32.to_be_bytes());
        hello.extend_from_slice(&0i64.to_be_bytes());
        put_bytes(&mut hello, &[0; 16]);
        hello.push(0);
        send(&mut stream, &hello)?;
        let mut client = Self { stream, xid: 0 };
        client.receive()?;
        Ok(client)
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
        Ok(text(&self.answer()?))
    }

    /// Deletes a node.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn delete(&mut self, path: &str) -> io::Result<()> {
        self.ask_delete(path)?;
        self.answer().map(drop)
    }

    /// The names of a node's children.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn children(&mut self, path: &str) -> io::Result<Vec<String>> {
        let mut body = with_path(path);
        body.push(0);
        self.ask(op::GET_CHILDREN, &body)?;
        let answer = self.answer()?;
        let mut rest = answer.get(4..).unwrap_or_default();
        let mut names = Vec::new();
        while !rest.is_empty() {
            let name = text(rest);
            rest = rest.get(4 + name.len()..).unwrap_or_default();
            names.push(name);
        }
        Ok(names)
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
            Ok(names) => names.iter().try_for_each(|name| self.delete_all(&format!("{path}/{name}")))?,
            Err(error) => fine(Err(error))?,
        }
        fine(self.delete(path))
    }

    /// Reads a node's data and watches it.
    ///
    /// # Errors
    /// As [`Client::create`].
    pub fn watch(&mut self, path: &str) -> io::Result<()> {
        let mut body = with_path(path);
        body.push(1);
        self.ask(op::GET_DATA, &body)?;
        self.answer().map(drop)
    }

    /// Waits for a watch to fire.
    ///
    /// # Errors
    /// When nothing comes, or something else does.
    pub fn event(&mut self) -> io::Result<()> {
        let message = self.receive()?;
        if message.get(..4) == Some(&(-1i32).to_be_bytes()) { Ok(()) } else { Err(io::Error::other("no event")) }
    }

    /// Sends a create without waiting for its answer; [`Client::answer`] reads it.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn ask_create(&mut self, path: &str, data: &[u8], kind: Kind) -> io::Result<()> {
        let mut body = with_path(path);
        put_bytes(&mut body, data);
        body.extend_from_slice(&1i32.to_be_bytes());
        body.extend_from_slice(&31i32.to_be_bytes());
        put_bytes(&mut body, b"world");
        put_bytes(&mut body, b"anyone");
        body.extend_from_slice(&if kind == Kind::Persistent { 0i32 } else { 3 }.to_be_bytes());
        self.ask(op::CREATE, &body)
    }

    /// Sends a delete without waiting for its answer.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn ask_delete(&mut self, path: &str) -> io::Result<()> {
        let mut body = with_path(path);
        body.extend_from_slice(&(-1i32).to_be_bytes());
        self.ask(op::DELETE, &body)
    }

    /// The next answer, without its head.
    ///
    /// # Errors
    /// The server's code as text; or the connection's.
    pub fn answer(&mut self) -> io::Result<Vec<u8>> {
        let message = self.receive()?;
        let code = message.get(12..16).and_then(|b| <[u8; 4]>::try_from(b).ok()).map_or(0, i32::from_be_bytes);
        if code != 0 {
            return Err(io::Error::other(format!("ZooKeeper answered {code}")));
        }
        Ok(message.get(16..).unwrap_or_default().to_vec())
    }

    fn ask(&mut self, operation: i32, body: &[u8]) -> io::Result<()> {
        self.xid += 1;
        let mut message = self.xid.to_be_bytes().to_vec();
        message.extend_from_slice(&operation.to_be_bytes());
        message.extend_from_slice(body);
        send(&mut self.stream, &message)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut message = vec![0; usize::try_from(i32::from_be_bytes(length)).unwrap_or(0)];
        self.stream.read_exact(&mut message)?;
        Ok(message)
    }
}

fn send(stream: &mut TcpStream, message: &[u8]) -> io::Result<()> {
    let mut framed = Vec::with_capacity(message.len() + 4);
    put_bytes(&mut framed, message);
    stream.write_all(&framed)
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&i32::try_from(bytes.len()).unwrap_or(i32::MAX).to_be_bytes());
    out.extend_from_slice(bytes);
}

fn with_path(path: &str) -> Vec<u8> {
    let mut body = Vec::new();
    put_bytes(&mut body, path.as_bytes());
    body
}

/// The text at the beginning of an answer.
fn text(answer: &[u8]) -> String {
    let Some((length, rest)) = answer.split_first_chunk::<4>() else { return String::new() };
    let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
    String::from_utf8_lossy(rest.get(..length).unwrap_or_default()).into_owned()
}
