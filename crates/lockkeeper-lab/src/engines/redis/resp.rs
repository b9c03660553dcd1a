//! Just enough of Redis' protocol, blocking: for the nemesis, and for clients that were written
//! after an article.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Nil,
    Number(i64),
    Text(String),
    List(Vec<Reply>),
    Error(String),
}

impl Reply {
    pub(crate) fn is_ok(&self) -> bool {
        *self == Self::Text("OK".to_owned()) || *self == Self::Number(1)
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }
}

/// A connection; made when it is wanted, and made anew after an error.
pub(crate) struct Resp {
    port: u16,
    patience: Duration,
    stream: Option<BufReader<TcpStream>>,
}

impl Resp {
    pub(crate) fn to(port: u16, patience: Duration) -> Self {
        Self { port, patience, stream: None }
    }

    fn stream(&mut self) -> io::Result<&mut BufReader<TcpStream>> {
        if self.stream.is_none() {
            let address = (Ipv4Addr::LOCALHOST, self.port).into();
            let stream =
                TcpStream::connect_timeout(&address, self.patience.max(Duration::from_millis(1)))?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(self.patience))?;
            self.stream = Some(BufReader::new(stream));
        }
        self.stream.as_mut().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Sends a command and reads its answer. After an error the connection is gone.
    pub(crate) fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        let answer = self.send(words).and_then(|()| self.read());
        if answer.is_err() {
            self.stream = None;
        }
        answer
    }

    /// Sends a command.
    pub(crate) fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
        }
        let sent = self.stream()?.get_mut().write_all(&bytes);
        if sent.is_err() {
            self.stream = None;
        }
        sent
    }

    /// Waits for something that the server says unasked; `None`: nothing came in that time.
    pub(crate) fn hear(&mut self, within: Duration) -> io::Result<Option<Reply>> {
        let stream = self.stream()?;
        let until = Instant::now() + within;
        stream.get_ref().set_read_timeout(Some(within.max(Duration::from_millis(1))))?;
        let ready = loop {
            match stream.fill_buf() {
                Ok([]) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => break Ok(true),
                Err(e) if e.kind() == io::ErrorKind::Interrupted && Instant::now() < until => {}
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
                {
                    break Ok(false);
                }
                Err(e) => break Err(e),
            }
        };
        let patience = self.patience;
        let heard = match ready {
            Ok(true) => self
                .stream()?
                .get_ref()
                .set_read_timeout(Some(patience))
                .and_then(|()| self.read())
                .map(Some),
            Ok(false) => Ok(None),
            Err(e) => Err(e),
        };
        if heard.is_err() {
            self.stream = None;
        }
        heard
    }

    fn read(&mut self) -> io::Result<Reply> {
        let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not an answer of Redis");
        let stream = self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?;
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(wrong)?;
        Ok(match kind {
            "+" => Reply::Text(rest.to_owned()),
            "-" => Reply::Error(rest.to_owned()),
            ":" => Reply::Number(rest.parse().map_err(|_| wrong())?),
            "$" => match usize::try_from(rest.parse::<i64>().map_err(|_| wrong())?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    let mut text = vec![0; length + 2];
                    stream.read_exact(&mut text)?;
                    text.truncate(length);
                    Reply::Text(String::from_utf8_lossy(&text).into_owned())
                }
            },
            "*" => match usize::try_from(rest.parse::<i64>().map_err(|_| wrong())?) {
                Err(_) => Reply::Nil,
                Ok(length) => {
                    Reply::List((0..length).map(|_| self.read()).collect::<io::Result<_>>()?)
                }
            },
            _ => return Err(wrong()),
        })
    }
}
