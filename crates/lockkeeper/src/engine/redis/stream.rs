//! The byte stream below a connection: TCP, a unix socket, or TLS over TCP.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::client::TlsStream;

use super::errors;
use super::options::{Address, RedisOptions};
use crate::error::Result;

/// Connects to where the options say.
///
/// # Errors
/// [`ErrorKind::Unreachable`] with the reason.
pub(super) async fn open(options: &RedisOptions) -> Result<Stream> {
    let failed = |error: io::Error| errors::unreachable(&options.address, error);
    match &options.address {
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            match &options.tls {
                Some(tls) => Ok(Stream::Tls(Box::new(super::tls::shake_hands(options, tls, host, stream).await?))),
                None => Ok(Stream::Tcp(stream)),
            }
        }
        Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await.map_err(failed)?)),
    }
}

type SharedTls = Arc<Mutex<TlsStream<TcpStream>>>;

/// A connected stream.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// The reading half, the driver's writing half, and the half that any thread may try to write to.
    pub(super) fn split(self) -> (Reader, Writer, Option<Writer>) {
        match self {
            Self::Tcp(stream) => {
                let stream = Arc::new(stream);
                (Reader::Tcp(Arc::clone(&stream)), Writer::Tcp(Arc::clone(&stream)), Some(Writer::Tcp(stream)))
            }
            Self::Unix(stream) => {
                let stream = Arc::new(stream);
                (Reader::Unix(Arc::clone(&stream)), Writer::Unix(Arc::clone(&stream)), Some(Writer::Unix(stream)))
            }
            Self::Tls(stream) => {
                // Only the driver touches it; the lock is never waited for.
                let stream = Arc::new(Mutex::new(*stream));
                (Reader::Tls(Arc::clone(&stream)), Writer::Tls(stream), None)
            }
        }
    }
}

pub(super) enum Reader {
    Tcp(Arc<TcpStream>),
    Unix(Arc<UnixStream>),
    Tls(SharedTls),
}

impl Reader {
    /// Reads what is there; 0 is the end of the stream.
    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let tried = match self {
                Self::Tcp(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    stream.try_read(into)
                }
                Self::Unix(stream) => {
                    ready!(stream.poll_read_ready(cx))?;
                    stream.try_read(into)
                }
                Self::Tls(stream) => {
                    let mut buffer = ReadBuf::new(into);
                    ready!(with_tls(stream, |stream| stream.poll_read(cx, &mut buffer)))?;
                    Ok(buffer.filled().len())
                }
            };
            match tried {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }
}

pub(super) enum Writer {
    Tcp(Arc<TcpStream>),
    Unix(Arc<UnixStream>),
    Tls(SharedTls),
}

impl Writer {
    /// Writes what the socket takes at once.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(stream) => stream.try_write(bytes),
            Self::Unix(stream) => stream.try_write(bytes),
            Self::Tls(_) => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Writes, or wakes the driver once there is room.
    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            match self {
                Self::Tcp(stream) => ready!(stream.poll_write_ready(cx))?,
                Self::Unix(stream) => ready!(stream.poll_write_ready(cx))?,
                Self::Tls(stream) => return with_tls(stream, |stream| stream.poll_write(cx, bytes)),
            }
            match self.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return Poll::Ready(done),
            }
        }
    }

    /// Lets go of what TLS still keeps.
    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => Poll::Ready(Ok(())),
            Self::Tls(stream) => with_tls(stream, |stream| stream.poll_flush(cx)),
        }
    }
}

fn with_tls<T>(stream: &SharedTls, act: impl FnOnce(Pin<&mut TlsStream<TcpStream>>) -> T) -> T {
    let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
    act(Pin::new(&mut *stream))
}
