//! One connection to one server: dialling it, and carrying frames to and fro.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};

use super::proto::{Connected, SessionKey, write_connect};
use crate::clock::{Clock, Ticks};
use crate::engine::tls::{Tls, shake_hands};
use crate::error::{Error, ErrorKind, Result};

/// The longest message that is read: a list of some hundred thousand children.
const FRAME_MAX: usize = 32 << 20;
/// How much is read at once.
const READ_AT_ONCE: usize = 16 << 10;

pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection on which a server answered the first message.
pub(super) struct Dialled {
    pub(super) link: Link,
    pub(super) answer: Connected,
    /// When the first message was sent.
    pub(super) sent: Ticks,
}

/// Connects to one server and hands it the session, or asks for a new one.
///
/// # Errors
/// `Refused` and `InvalidArgument` where trying again is of no use, else `Unreachable`.
pub(super) async fn dial(
    server: &(String, u16),
    tls: Option<&Tls>,
    key: &SessionKey,
    last_zxid: i64,
    timeout: Duration,
    clock: &Clock,
) -> Result<Dialled> {
    let tcp = TcpStream::connect((server.0.as_str(), server.1)).await.map_err(unreachable)?;
    // Every request is one small write that somebody waits for.
    tcp.set_nodelay(true).map_err(unreachable)?;
    let stream: Box<dyn Stream> = match tls {
        None => Box::new(tcp),
        Some(tls) => {
            let (host, at) = (&server.0, format!("{}:{}", server.0, server.1));
            Box::new(shake_hands(tls, host, &at, "leave tls out of the URL, or use its secureClientPort", tcp).await?)
        }
    };
    let mut link = Link::new(stream);
    let sent = clock.now();
    write_connect(key, last_zxid, i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX), &mut link.writing);
    let body = std::future::poll_fn(|cx| {
        link.poll_write(cx)?;
        loop {
            if let Some(frame) = link.next_frame()? {
                return Poll::Ready(Ok::<_, io::Error>(frame.to_vec()));
            }
            if link.poll_fill(cx)?.is_pending() {
                return Poll::Pending;
            }
        }
    });
    let body = body.await.map_err(|error| {
        if tls.is_some_and(|tls| tls.certificate.is_none()) && error.to_string().to_lowercase().contains("certificate") {
            let text = "the server wants a certificate from us: name it with tls_cert=FILE and tls_key=FILE";
            return Error::new(ErrorKind::Refused, text);
        }
        unreachable(error)
    })?;
    let answer = Connected::read(&body).map_err(|_| unreachable(garbled()))?;
    if answer.read_only {
        return Err(Error::new(ErrorKind::Unreachable, "the server is cut off from its ensemble and read-only"));
    }
    Ok(Dialled { link, answer, sent })
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreachable(error: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, error.to_string())
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is not ZooKeeper's protocol")
}

/// The frames of one connection.
pub(super) struct Link {
    stream: Box<dyn Stream>,
    /// Received; the first `taken` bytes are done with.
    received: Vec<u8>,
    taken: usize,
    /// To be sent; the first `written` bytes are gone.
    pub(super) writing: Vec<u8>,
    written: usize,
}

impl Link {
    fn new(stream: Box<dyn Stream>) -> Self {
        Self { stream, received: Vec::with_capacity(4096), taken: 0, writing: Vec::with_capacity(4096), written: 0 }
    }

    /// Reads what is there; pending when nothing is.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> io::Result<Poll<()>> {
        self.received.drain(..self.taken);
        self.taken = 0;
        let have = self.received.len();
        self.received.resize(have + READ_AT_ONCE, 0);
        let mut into = ReadBuf::new(self.received.get_mut(have..).unwrap_or_default());
        let polled = Pin::new(&mut self.stream).poll_read(cx, &mut into);
        let count = into.filled().len();
        self.received.truncate(have + count);
        match polled {
            Poll::Pending => Ok(Poll::Pending),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) if count == 0 => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")),
            Poll::Ready(Ok(())) => Ok(Poll::Ready(())),
        }
    }

    /// The next whole message that was received.
    pub(super) fn next_frame(&mut self) -> io::Result<Option<&[u8]>> {
        let rest = self.received.get(self.taken..).unwrap_or_default();
        let Some((prefix, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*prefix)).ok().filter(|l| *l <= FRAME_MAX).ok_or_else(garbled)?;
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        self.taken += 4 + length;
        Ok(Some(frame))
    }

    /// Writes what the connection takes; true once nothing is left.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>) -> io::Result<bool> {
        while let Some(rest) = self.writing.get(self.written..).filter(|r| !r.is_empty()) {
            match Pin::new(&mut self.stream).poll_write(cx, rest) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(count)) => self.written += count,
                Poll::Ready(Err(error)) => return Err(error),
            }
        }
        self.writing.clear();
        self.written = 0;
        match Pin::new(&mut self.stream).poll_flush(cx) {
            Poll::Pending => Ok(false),
            Poll::Ready(done) => done.map(|()| true),
        }
    }

    /// Whether everything handed in is sent.
    pub(super) fn has_room(&self) -> bool {
        self.writing.is_empty()
    }
}

/// A timer that can be set anew.
pub(super) struct Timer(Pin<Box<Sleep>>);

impl Timer {
    pub(super) fn new() -> Self {
        Self(Box::pin(tokio::time::sleep(Duration::ZERO)))
    }

    pub(super) fn set(&mut self, after: Duration) {
        self.0.as_mut().reset(Instant::now() + after);
    }

    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.as_mut().poll(cx)
    }
}
