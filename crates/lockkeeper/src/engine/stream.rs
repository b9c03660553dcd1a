//! The byte stream below a connection: TCP, a unix socket, or TLS over TCP; and how it is lent to
//! callers that read.

#[cfg(all(test, feature = "redlock", feature = "test-util"))]
pub(crate) mod memory;

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio_rustls::client::TlsStream;

type SharedTls = Arc<Mutex<TlsStream<TcpStream>>>;

/// A connected stream.
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg_attr(not(feature = "redis"), allow(dead_code, reason = "only Redis listens there"))]
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(all(test, feature = "redlock", feature = "test-util"))]
    Memory(memory::Near),
}

impl Stream {
    /// A second descriptor of the socket, for callers that read; none on TLS.
    pub(crate) fn socket(&self) -> Option<Arc<OwnedFd>> {
        let socket = match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Unix(stream) => stream.as_fd(),
            Self::Tls(_) => return None,
            #[cfg(all(test, feature = "redlock", feature = "test-util"))]
            Self::Memory(_) => return None,
        };
        // Without one the driver reads everything.
        socket.try_clone_to_owned().ok().map(Arc::new)
    }

    /// The reading half, the driver's writing half, and the half that any thread may try to write
    /// to. Who writes holds a lock of its own, so that bytes leave in their order.
    pub(crate) fn split(self) -> (Reader, Writer, Writer) {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                let writer = Arc::new(writer);
                (Reader::Tcp(reader), Writer::Tcp(Arc::clone(&writer)), Writer::Tcp(writer))
            }
            Self::Unix(stream) => {
                let (reader, writer) = stream.into_split();
                let writer = Arc::new(writer);
                (Reader::Unix(reader), Writer::Unix(Arc::clone(&writer)), Writer::Unix(writer))
            }
            Self::Tls(stream) => {
                // A caller that writes never waits for its lock, and the driver no longer than the
                // caller's write takes, which does not block.
                let stream = Arc::new(Mutex::new(*stream));
                (
                    Reader::Tls(Arc::clone(&stream)),
                    Writer::Tls(Arc::clone(&stream)),
                    Writer::Tls(stream),
                )
            }
            #[cfg(all(test, feature = "redlock", feature = "test-util"))]
            Self::Memory(near) => {
                (Reader::Memory(near.clone()), Writer::Memory(near.clone()), Writer::Memory(near))
            }
        }
    }
}

pub(crate) enum Reader {
    Tcp(tcp::OwnedReadHalf),
    Unix(unix::OwnedReadHalf),
    Tls(SharedTls),
    #[cfg(all(test, feature = "redlock", feature = "test-util"))]
    Memory(memory::Near),
}

impl Reader {
    /// Reads what is there; 0 is the end of the stream.
    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(into);
        // This way a short read is known to be the last for now, without asking the kernel again.
        ready!(match self {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, &mut buffer),
            Self::Tls(stream) => with_tls(stream, |stream| stream.poll_read(cx, &mut buffer)),
            #[cfg(all(test, feature = "redlock", feature = "test-util"))]
            Self::Memory(near) => near.poll_read(cx, &mut buffer),
        })?;
        Poll::Ready(Ok(buffer.filled().len()))
    }
}

pub(crate) enum Writer {
    Tcp(Arc<tcp::OwnedWriteHalf>),
    Unix(Arc<unix::OwnedWriteHalf>),
    Tls(SharedTls),
    #[cfg(all(test, feature = "redlock", feature = "test-util"))]
    Memory(memory::Near),
}

impl Writer {
    /// Writes what the socket takes at once. TLS may keep some of it back
    /// ([`Writer::keeps_back`]), which leaves before anything else does.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tls(stream) => match stream.try_lock() {
                Ok(mut stream) => encrypt(&mut stream, bytes),
                // The driver reads just now, or a caller panicked: the driver finds out.
                Err(_) => Err(io::ErrorKind::WouldBlock.into()),
            },
            #[cfg(all(test, feature = "redlock", feature = "test-util"))]
            Self::Memory(near) => near.write(bytes),
        }
    }

    /// Whether something of what was written is not with the kernel: the driver has to flush it.
    pub(crate) fn keeps_back(&self) -> bool {
        match self {
            Self::Tcp(_) | Self::Unix(_) => false,
            #[cfg(all(test, feature = "redlock", feature = "test-util"))]
            Self::Memory(_) => false,
            Self::Tls(stream) => {
                stream.try_lock().map_or(true, |stream| stream.get_ref().1.wants_write())
            }
        }
    }

    /// Writes, or wakes the driver once there is room.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            match self {
                Self::Tcp(stream) => ready!((**stream).as_ref().poll_write_ready(cx))?,
                Self::Unix(stream) => ready!((**stream).as_ref().poll_write_ready(cx))?,
                Self::Tls(stream) => {
                    return with_tls(stream, |stream| stream.poll_write(cx, bytes));
                }
                #[cfg(all(test, feature = "redlock", feature = "test-util"))]
                Self::Memory(_) => {}
            }
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Lets go of what TLS still keeps back.
    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            #[cfg(all(test, feature = "redlock", feature = "test-util"))]
            Self::Memory(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => with_tls(stream, |stream| stream.poll_flush(cx)),
        }
    }
}

/// A connection's socket as it is lent to a caller that waits for an answer.
pub(crate) struct Lent {
    /// `None` on TLS, where the driver reads.
    socket: Option<Arc<OwnedFd>>,
    /// A thread waits on it.
    watched: AtomicBool,
}

impl Lent {
    pub(crate) fn new(socket: Option<Arc<OwnedFd>>) -> Self {
        Self { socket, watched: AtomicBool::new(false) }
    }

    pub(crate) fn socket(&self) -> Option<&Arc<OwnedFd>> {
        self.socket.as_ref()
    }

    /// Makes the calling thread the one that waits on it, unless there is one.
    pub(crate) fn watch(&self) -> bool {
        !self.watched.swap(true, Ordering::AcqRel)
    }

    pub(crate) fn unwatch(&self) {
        self.watched.store(false, Ordering::Release);
    }
}

/// The reader's place, for a caller; `None`: somebody else reads, and the caller is not patient
/// enough to wait for that.
pub(crate) fn input_for_caller<T>(input: &Mutex<T>, patient: bool) -> Option<MutexGuard<'_, T>> {
    match input.try_lock() {
        Ok(input) => Some(input),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) if patient => {
            Some(input.lock().unwrap_or_else(PoisonError::into_inner))
        }
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Encrypts what fits and hands it to the socket, behind what was kept back.
fn encrypt(stream: &mut TlsStream<TcpStream>, bytes: &[u8]) -> io::Result<usize> {
    let (socket, session) = stream.get_mut();
    while session.wants_write() {
        session.write_tls(&mut Tries(socket))?;
    }
    let length = session.writer().write(bytes)?;
    while session.wants_write() {
        match session.write_tls(&mut Tries(socket)) {
            Ok(_) => {}
            // It is encrypted, so it counts as written; the driver finds what is wrong.
            Err(_) => break,
        }
    }
    Ok(length)
}

/// A socket that is written to without waiting.
struct Tries<'a>(&'a TcpStream);

impl Write for Tries<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, bytes: &[io::IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn with_tls<T>(stream: &SharedTls, act: impl FnOnce(Pin<&mut TlsStream<TcpStream>>) -> T) -> T {
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    act(Pin::new(&mut *stream))
}
