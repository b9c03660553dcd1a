//! Just enough of Redis' protocol, blocking: for the nemesis, and for clients that were written
//! after an article.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// What a server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing is there.
    Nil,
    /// A number.
    Number(i64),
    /// A simple string or one of bytes.
    Text(String),
    /// Several answers in one.
    List(Vec<Reply>),
    /// What the server says unasked, since version 3 of the protocol.
    Push(Vec<Reply>),
    /// Why it was not done.
    Error(String),
}

impl Reply {
    /// Whether it is `OK` or the number 1.
    pub fn is_ok(&self) -> bool {
        *self == Self::Text("OK".to_owned()) || *self == Self::Number(1)
    }

    /// The text, if it is one.
    pub fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    /// Its lines, lists flattened; an error comes as its text with a minus before it, nil as
    /// `(nil)`.
    pub fn lines(self) -> Vec<String> {
        match self {
            Self::Nil => vec!["(nil)".to_owned()],
            Self::Number(number) => vec![number.to_string()],
            Self::Text(text) => vec![text],
            Self::Error(text) => vec![format!("-{text}")],
            Self::List(all) | Self::Push(all) => all.into_iter().flat_map(Self::lines).collect(),
        }
    }
}

/// A command of plain words.
pub fn command(words: &[&str]) -> Vec<u8> {
    encode(&words.iter().map(|word| word.as_bytes()).collect::<Vec<_>>())
}

/// A command as it goes over the wire.
pub fn encode(words: &[impl AsRef<[u8]>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        let word = word.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A connection; made when it is wanted, and made anew after an error.
pub struct Resp {
    port: u16,
    patience: Duration,
    stream: Option<BufReader<TcpStream>>,
}

impl Resp {
    /// To a port of the loopback; connecting, and each answer, may take as long as `patience`.
    pub fn to(port: u16, patience: Duration) -> Self {
        Self { port, patience, stream: None }
    }

    /// Connects, unless it is connected.
    ///
    /// # Errors
    /// When the server is not there.
    pub fn open(&mut self) -> io::Result<()> {
        self.stream().map(drop)
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
    ///
    /// # Errors
    /// When the server does not answer, or not in Redis' protocol.
    pub fn ask(&mut self, words: &[&str]) -> io::Result<Reply> {
        let answer = self.send(words).and_then(|()| self.read());
        if answer.is_err() {
            self.stream = None;
        }
        answer
    }

    /// Sends a command.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let sent = self.stream()?.get_mut().write_all(&command(words));
        if sent.is_err() {
            self.stream = None;
        }
        sent
    }

    /// Waits for something that the server says unasked; `None`: nothing came in that time.
    ///
    /// # Errors
    /// When the connection breaks.
    pub fn hear(&mut self, within: Duration) -> io::Result<Option<Reply>> {
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

    /// Reads one answer.
    ///
    /// # Errors
    /// As [`Resp::ask`].
    pub fn read(&mut self) -> io::Result<Reply> {
        read(self.stream.as_mut().ok_or(io::ErrorKind::NotConnected)?)
    }
}

/// Reads one answer, of either version of the protocol.
///
/// # Errors
/// When the connection ends, or something else comes.
pub fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, "not an answer of Redis");
    let mut line = String::new();
    if from.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(wrong)?;
    // Less than nothing stands for nil.
    let count = || match rest.parse::<i64>() {
        Ok(count) => Ok(usize::try_from(count).ok()),
        Err(_) => Err(wrong()),
    };
    Ok(match kind {
        "+" | "," | "#" | "(" => Reply::Text(rest.to_owned()),
        "-" => Reply::Error(rest.to_owned()),
        ":" => Reply::Number(rest.parse().map_err(|_| wrong())?),
        "_" => Reply::Nil,
        "$" | "=" => match count()? {
            None => Reply::Nil,
            Some(length) => {
                let mut text = vec![0; length + 2];
                from.read_exact(&mut text)?;
                text.truncate(length);
                Reply::Text(String::from_utf8_lossy(&text).into_owned())
            }
        },
        "*" | "~" | "%" | ">" => match count()? {
            None => Reply::Nil,
            Some(count) => {
                let count = if kind == "%" { 2 * count } else { count };
                let all = (0..count).map(|_| read(from)).collect::<io::Result<_>>()?;
                if kind == ">" { Reply::Push(all) } else { Reply::List(all) }
            }
        },
        _ => return Err(wrong()),
    })
}

/// Asks a server of this machine once, over a connection of its own, for an answer's
/// [lines](Reply::lines).
///
/// # Errors
/// When it does not answer.
pub fn ask_once(
    port: u16,
    patience: Duration,
    password: Option<&str>,
    words: &[&str],
) -> Result<Vec<String>, String> {
    let mut client = Resp::to(port, patience);
    let failed = |e| format!("the server at port {port} does not answer: {e}");
    if let Some(password) = password {
        client.ask(&["AUTH", password]).map_err(failed)?;
    }
    client.ask(words).map(Reply::lines).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_versions_of_the_protocol_are_read() {
        let text = |text: &str| Reply::Text(text.to_owned());
        let mut bytes: &[u8] = b"%1\r\n+a\r\n:2\r\n>2\r\n$1\r\nb\r\n_\r\n*-1\r\n$-1\r\n#t\r\n";
        let mut next = || read(&mut bytes).unwrap();
        assert_eq!(next(), Reply::List(vec![text("a"), Reply::Number(2)]));
        assert_eq!(next(), Reply::Push(vec![text("b"), Reply::Nil]));
        assert_eq!([next(), next(), next()], [Reply::Nil, Reply::Nil, text("t")]);
        assert!(bytes.is_empty());
        for wrong in [&b"?1\r\n"[..], b":x\r\n", b"*1\r\n", b"\r\n", b""] {
            assert!(read(&mut { wrong }).is_err());
        }
    }

    #[test]
    fn an_answer_is_told_in_lines_whatever_it_is_made_of() {
        let list = Reply::List(vec![
            Reply::Number(1),
            Reply::Nil,
            Reply::List(vec![Reply::Text("a".to_owned()), Reply::Error("ERR b".to_owned())]),
        ]);
        assert_eq!(list.lines(), ["1", "(nil)", "a", "-ERR b"]);
        assert_eq!(Reply::List(Vec::new()).lines(), [""; 0]);
        assert_eq!(command(&["GET", "é"]), b"*2\r\n$3\r\nGET\r\n$2\r\n\xc3\xa9\r\n");
    }
}
