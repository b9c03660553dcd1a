//! One connection to one server: dialling it, and carrying frames to and fro.

use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep};

use super::errors;
use super::proto::{Connected, ReplyHeader, SessionKey, write_connect};
use crate::engine::dial::connect;
use crate::engine::either::either;
use crate::engine::stream::{Reader, Stream, Writer};
use crate::engine::tls::{Tls, or_refusal, shake_hands};
use crate::open::table::scheme_hint;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, ErrorKind};

/// The longest message that is read: a list of some hundred thousand children.
const FRAME_MAX: usize = 32 << 20;
/// A longer one is passed over, of which only the head is read; what says that it is longer than
/// this is no message.
const PASSED_MAX: usize = 1 << 30;
/// How much is read at once.
const READ_AT_ONCE: usize = 16 << 10;

/// How often a server that does not answer the greeting is asked what it is.
const SILENT: Duration = Duration::from_millis(500);
/// How long a server may take to say in which state it is.
const STATE_WITHIN: Duration = Duration::from_millis(500);
/// Why a server takes no session that could write.
const READ_ONLY: &str = "the server is cut off from its ensemble and read-only";

/// A connection on which a server answered the first message.
pub(super) struct Dialled {
    pub(super) link: Link,
    pub(super) answer: Connected,
    /// When the first message was sent.
    pub(super) sent: Ticks,
}

/// A server that did not take us.
#[derive(Debug)]
pub(super) struct NotTaken {
    pub(super) why: Error,
    /// Nobody listens there, or its name leads nowhere: that was known at once.
    pub(super) is_away: bool,
}

impl From<Error> for NotTaken {
    fn from(why: Error) -> Self {
        Self { why, is_away: false }
    }
}

/// Connects to one server, which takes the connection by `until`, and hands it the session, or asks
/// for a new one.
///
/// # Errors
/// `Refused` and `InvalidArgument` where trying again is of no use, else `Unreachable`.
pub(super) async fn dial(
    server: &(String, u16),
    tls: Option<&Tls>,
    key: &SessionKey,
    last_zxid: i64,
    timeout: Duration,
    until: Instant,
    clock: &Clock,
) -> Result<Dialled, NotTaken> {
    let tcp = match connect(&server.0, server.1, until).await {
        Ok(tcp) => tcp,
        Err(error) => {
            let is_away = error.kind() != io::ErrorKind::TimedOut;
            return Err(NotTaken { is_away, why: broken(server, tls, until, error).await });
        }
    };
    let at = format!("{}:{}", server.0, server.1);
    let stream = match tls {
        None => Stream::Tcp(tcp),
        Some(tls) => {
            let host = &server.0;
            let config = tls.read(until).await?;
            Stream::Tls(Box::new(
                shake_hands(
                    tls,
                    host,
                    &at,
                    "leave tls out of the URL, or use its secureClientPort",
                    tcp,
                    config,
                )
                .await?,
            ))
        }
    };
    let mut link = Link::new(stream);
    let sent = clock.now();
    let mut hello = Vec::new();
    write_connect(
        key,
        last_zxid,
        i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX),
        &mut hello,
    );
    let body = std::future::poll_fn(|cx| {
        poll_write(&mut link.writer, cx, &mut hello)?;
        loop {
            match link.frames.next()? {
                Some(Frame::Whole(frame)) => {
                    return Poll::Ready(Ok::<_, io::Error>(frame.to_vec()));
                }
                Some(Frame::Head(_)) => return Poll::Ready(Err(garbled())),
                None => {}
            }
            match ready!(link.reader.poll_read(cx, link.frames.scratch()))? {
                0 => return Poll::Ready(Err(closed())),
                count => link.frames.filled(count),
            }
        }
    });
    // A server of another kind waits for more; a slow one of ours is not to be given up. One that
    // gave us a session needs no second connection to tell what it is.
    let asks = tls.is_none() && key.id == 0;
    let answered = match asks {
        true => either(body, another_kind(server, until)).await?,
        false => body.await,
    };
    let body = match answered {
        Ok(body) => body,
        Err(error) => return Err(broken(server, tls, until, error).await.into()),
    };
    if let Some(tls) = tls {
        tls.accepted(&at);
    }
    let answer = Connected::read(&body).map_err(|_| unreachable(garbled()))?;
    if answer.read_only {
        return Err(Error::new(ErrorKind::Unreachable, READ_ONLY).into());
    }
    Ok(Dialled { link, answer, sent })
}

/// A server that cannot be connected to, or ended the connection before it answered.
async fn broken(
    server: &(String, u16),
    tls: Option<&Tls>,
    until: Instant,
    error: io::Error,
) -> Error {
    // What a server says that is no ZooKeeper is no message, either.
    let is_told = is_end(&error) || error.kind() == io::ErrorKind::InvalidData;
    if tls.is_none()
        && is_told
        && let Some(why) = why_closed(server, until).await
    {
        return why;
    }
    or_refusal(tls, &format!("{}:{}", server.0, server.1), unreachable(error))
}

/// Whether the other side ended a connection.
fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionReset | UnexpectedEof)
}

/// Why a server closes a connection without an answer, where it says so to the question for its
/// state: one that is full closes that connection, too, and one without a quorum answers.
async fn why_closed(server: &(String, u16), until: Instant) -> Option<Error> {
    let why = match state_of(server, until).await? {
        nothing if nothing.is_empty() => {
            return Some(errors::full(&format!("{}:{}", server.0, server.1)));
        }
        state if state.contains("not currently serving") => {
            "the server serves nobody: it has no quorum, or is starting"
        }
        state if state.contains("Mode: read-only") => READ_ONLY,
        said => return redis_at(server, &said),
    };
    Some(Error::new(ErrorKind::Unreachable, why))
}

/// A server that takes the connection and does not answer may be one of Redis: it waits for the end
/// of a line, and what ends the question for the state ends that. Ends with that only: one that
/// says nothing in time is asked again.
async fn another_kind(server: &(String, u16), until: Instant) -> Error {
    loop {
        tokio::time::sleep(SILENT).await;
        let Some(said) = state_of(server, until).await else { continue };
        if let Some(error) = redis_at(server, &said) {
            return error;
        }
        if !said.is_empty() {
            std::future::pending::<()>().await;
        }
    }
}

/// The error for what only a Redis server says.
fn redis_at((host, port): &(String, u16), said: &str) -> Option<Error> {
    let is_redis = ["-ERR ", "-NOAUTH ", "-NOPERM ", "-DENIED "];
    if !is_redis.iter().any(|error| said.starts_with(error)) {
        return None;
    }
    let hint = scheme_hint("redis", &format!("redis://{host}:{port}"));
    let text = format!("what answers at {host}:{port} is a Redis server: {hint}");
    Some(Error::new(ErrorKind::InvalidArgument, text))
}

/// What a server answers to the question for its state; empty where it ends the connection.
async fn state_of(server: &(String, u16), until: Instant) -> Option<String> {
    let mut said = Vec::new();
    let asking = async {
        let tcp = match connect(&server.0, server.1, until).await {
            Ok(tcp) => tcp,
            Err(error) => return is_end(&error),
        };
        _ = tcp.writable().await.and_then(|()| tcp.try_write(b"srvr\r\n"));
        // What ends the connection ends what it says.
        while tcp.readable().await.is_ok() && said.len() < READ_AT_ONCE {
            let mut bytes = [0; 1024];
            match tcp.try_read(&mut bytes) {
                Ok(count @ 1..) => said.extend_from_slice(bytes.get(..count).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(0) | Err(_) => break,
            }
        }
        true
    };
    // A server of another kind says something and goes on listening.
    let ended = tokio::time::timeout(STATE_WITHIN, asking).await.unwrap_or(false);
    (ended || !said.is_empty()).then(|| String::from_utf8_lossy(&said).into_owned())
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn unreachable(error: io::Error) -> Error {
    Error::new(ErrorKind::Unreachable, error.to_string())
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what came is not ZooKeeper's protocol")
}

pub(super) fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server closed the connection")
}

/// Both ways of one connection.
pub(super) struct Link {
    /// A second descriptor of the socket, for callers that read; none on TLS.
    pub(super) socket: Option<Arc<OwnedFd>>,
    pub(super) reader: Reader,
    pub(super) frames: Frames,
    pub(super) writer: Writer,
    /// What callers may write to; the state of the session takes it.
    pub(super) direct: Option<Writer>,
}

impl Link {
    fn new(stream: Stream) -> Self {
        let socket = stream.socket();
        let (reader, writer, direct) = stream.split();
        Self { socket, reader, frames: Frames::new(), writer, direct: Some(direct) }
    }
}

/// One message.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Frame<'a> {
    Whole(&'a [u8]),
    /// The head of one that is too long; the rest is passed over.
    Head(&'a [u8]),
}

/// What was received, taken apart.
pub(super) struct Frames {
    scratch: Vec<u8>,
    /// The first `taken` bytes are done with.
    received: Vec<u8>,
    taken: usize,
    /// So many bytes that come next belong to a message that is passed over.
    passing: usize,
}

impl Frames {
    fn new() -> Self {
        Self {
            scratch: vec![0; READ_AT_ONCE],
            received: Vec::with_capacity(4096),
            taken: 0,
            passing: 0,
        }
    }

    /// Where to read to.
    pub(super) fn scratch(&mut self) -> &mut [u8] {
        &mut self.scratch
    }

    /// So many bytes were read there.
    pub(super) fn filled(&mut self, count: usize) {
        self.received.drain(..self.taken);
        self.taken = 0;
        self.received.extend_from_slice(self.scratch.get(..count).unwrap_or_default());
    }

    /// The next message that was received.
    pub(super) fn next(&mut self) -> io::Result<Option<Frame<'_>>> {
        let passed = self.passing.min(self.received.len() - self.taken);
        self.passing -= passed;
        self.taken += passed;
        let rest = self.received.get(self.taken..).unwrap_or_default();
        let Some((prefix, rest)) = rest.split_first_chunk::<4>() else { return Ok(None) };
        let length = usize::try_from(i32::from_be_bytes(*prefix))
            .ok()
            .filter(|l| *l <= PASSED_MAX)
            .ok_or_else(garbled)?;
        if length > FRAME_MAX {
            let Some(head) = rest.get(..ReplyHeader::LEN) else { return Ok(None) };
            self.taken += 4 + head.len();
            self.passing = length - head.len();
            return Ok(Some(Frame::Head(head)));
        }
        let Some(frame) = rest.get(..length) else { return Ok(None) };
        self.taken += 4 + length;
        Ok(Some(Frame::Whole(frame)))
    }
}

/// Writes what the connection takes; what is left stays. Says whether all is with the kernel.
pub(super) fn poll_write(
    writer: &mut Writer,
    cx: &mut Context<'_>,
    out: &mut Vec<u8>,
) -> io::Result<bool> {
    while !out.is_empty() {
        match writer.poll_write(cx, out) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
            Poll::Ready(Ok(count)) => drop(out.drain(..count)),
            Poll::Ready(Err(error)) => return Err(error),
        }
    }
    Ok(writer.poll_flush(cx)?.is_ready())
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::words::error::Result;

    fn fill(frames: &mut Frames, bytes: &[u8]) {
        frames.scratch()[..bytes.len()].copy_from_slice(bytes);
        frames.filled(bytes.len());
    }

    #[test]
    fn r13_of_a_message_that_is_too_long_the_head_is_read_and_the_next_one_whole() {
        let mut frames = Frames::new();
        let length = FRAME_MAX + 1;
        fill(&mut frames, &u32::try_from(length).unwrap().to_be_bytes());
        assert_eq!(frames.next().unwrap(), None);
        fill(&mut frames, &[7; 20]);
        assert_eq!(frames.next().unwrap(), Some(Frame::Head(&[7; ReplyHeader::LEN])));
        let mut left = length - 20;
        while left > 0 {
            let some = left.min(READ_AT_ONCE);
            fill(&mut frames, &vec![1; some]);
            assert_eq!(frames.next().unwrap(), None);
            assert!(frames.received.len() <= READ_AT_ONCE + 24, "it is not kept");
            left -= some;
        }
        fill(&mut frames, &[0, 0, 0, 2, 5, 6]);
        assert_eq!(frames.next().unwrap(), Some(Frame::Whole(&[5, 6])));
        assert_eq!(frames.next().unwrap(), None);
    }

    /// Dials a server of the test's for a session.
    async fn dialled(at: std::net::SocketAddr, id: i64) -> Result<Dialled> {
        let server = (at.ip().to_string(), at.port());
        let key = SessionKey { id, ..SessionKey::fresh() };
        let until = Instant::now() + Duration::from_secs(120);
        let clock = Clock::real();
        let dialling = dial(&server, None, &key, 0, Duration::from_secs(10), until, &clock);
        let dialled = tokio::time::timeout(Duration::from_secs(120), dialling).await;
        dialled.expect("it hangs").map_err(|not| not.why)
    }

    /// The first answer of a server: session 7 for ten seconds.
    fn welcome() -> Vec<u8> {
        let mut body = vec![0; 4];
        body.extend(10_000i32.to_be_bytes());
        body.extend(7i64.to_be_bytes());
        body.extend(16i32.to_be_bytes());
        body.extend([0; 17]);
        let length = u32::try_from(body.len()).unwrap();
        [length.to_be_bytes().to_vec(), body].concat()
    }

    /// Both at once, on a runtime of the test's.
    fn both<T>(server: impl Future<Output = T>, client: impl Future<Output = Result<Dialled>>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (_kept, dialled) = runtime.block_on(async { tokio::join!(server, client) });
        assert_eq!(dialled.map(|dialled| dialled.answer.key.id).unwrap(), 7);
    }

    fn listening() -> (std::net::TcpListener, std::net::SocketAddr) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    #[test]
    fn w2_a_slow_server_is_heard_while_it_is_asked_again_and_again_what_it_is() {
        let (listener, at) = listening();
        let server = async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (first, _) = listener.accept().await.unwrap();
            // Nobody answers the questions.
            let asked = [listener.accept().await.unwrap(), listener.accept().await.unwrap()];
            first.writable().await.unwrap();
            first.try_write(&welcome()).unwrap();
            (first, asked)
        };
        both(server, dialled(at, 0));
    }

    #[test]
    fn w2_a_server_that_gave_the_session_is_waited_for_on_one_connection() {
        let (listener, at) = listening();
        let server = async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            let (first, _) = listener.accept().await.unwrap();
            let other = tokio::time::timeout(SILENT + SILENT / 2, listener.accept()).await;
            assert!(other.is_err(), "{other:?}");
            first.writable().await.unwrap();
            first.try_write(&welcome()).unwrap();
            first
        };
        both(server, dialled(at, 7));
    }

    #[test]
    fn w2_a_redis_server_that_refuses_whoever_connects_is_named() {
        let (listener, at) = listening();
        let denied = b"-DENIED Redis is running in protected mode because protected mode is on\r\n";
        let server = async {
            let listener = tokio::net::TcpListener::from_std(listener).unwrap();
            loop {
                let (one, _) = listener.accept().await.unwrap();
                one.writable().await.unwrap();
                one.try_write(denied).unwrap();
            }
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let dialled = runtime.block_on(async {
            tokio::select! {
                dialled = dialled(at, 0) => dialled,
                () = server => panic!("it serves for ever"),
            }
        });
        let error = dialled.map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(error.message().contains("is a Redis server"), "{error}");
    }

    #[test]
    fn what_is_no_message_ends_the_connection() {
        for bytes in [*b"HTTP", [255; 4]] {
            let mut frames = Frames::new();
            fill(&mut frames, &bytes);
            assert_eq!(frames.next().unwrap_err().kind(), io::ErrorKind::InvalidData);
        }
    }
}
