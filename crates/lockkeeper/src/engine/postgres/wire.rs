//! One connection to a server: dialling, and a driver that reads it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};

use super::errors;
use super::options::{Address, PostgresOptions};
use crate::engine::{dial, tls};
use crate::words::error::{Error, ErrorKind, Result};

/// What asks a server whether it speaks TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// A stream of any kind.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

type Wire = Connection<Box<dyn Stream>, tokio_postgres::tls::NoTlsStream>;

/// Dials one address, which takes the connection by `until`, and says hello.
///
/// # Errors
/// What keeps the server from being used.
pub(super) async fn dial(
    options: &PostgresOptions,
    address: &Address,
    label: &str,
    until: Instant,
) -> Result<(Client, Wire)> {
    let at = address.to_string();
    let login = match &options.password {
        Some(password) => Some((password, password.to_dial(&at, until).await?)),
        None => None,
    };
    let stream = open(options, address, &at, until).await?;
    let mut config = Config::new();
    config.application_name(label);
    if let Some(user) = &options.user {
        config.user(user);
    }
    if let Some((_, login)) = &login {
        config.password(login.password.reveal());
    }
    if let Some(database) = &options.database {
        config.dbname(database);
    }
    config.ssl_mode(tokio_postgres::config::SslMode::Disable);
    let dialled = config.connect_raw(stream, NoTls).await;
    match (&dialled, &login) {
        (Ok(_), Some((password, login))) => password.accepted(&at, login),
        (Err(error), Some((password, login))) if errors::is_about_password(error) => {
            return Err(password.refused(&at, login, errors::dial(options, &at, error)));
        }
        _ => {}
    }
    let tls = options.tls.as_ref();
    if let (Ok(_), Some(tls)) = (&dialled, tls) {
        tls.accepted(&at);
    }
    dialled.map_err(|error| {
        errors::libpq(tls::or_refusal(tls, &at, errors::dial(options, &at, &error)))
    })
}

async fn open(
    options: &PostgresOptions,
    address: &Address,
    at: &str,
    until: Instant,
) -> Result<Box<dyn Stream>> {
    let unreachable = |error: std::io::Error| errors::unreachable(at, error);
    let (host, mut stream) = match address {
        Address::Unix(..) => {
            return Ok(Box::new(UnixStream::connect(at).await.map_err(unreachable)?));
        }
        Address::Tcp(host, port) => {
            let stream = dial::connect(host, *port, until).await.map_err(unreachable)?;
            if let Some(silence) = options.silence {
                keep_alive(&stream, silence).map_err(unreachable)?;
            }
            (host, stream)
        }
    };
    let Some(tls) = &options.tls else { return Ok(Box::new(stream)) };
    stream.write_all(&SSL_REQUEST).await.map_err(unreachable)?;
    let answer = stream.read_u8().await.map_err(unreachable)?;
    if answer != b'S' {
        let text = format!(
            "the server at {at} speaks no TLS: set ssl=on there, or add sslmode=disable where the \
             network is trusted"
        );
        return Err(Error::new(ErrorKind::Refused, text));
    }
    let hint = "add sslmode=disable where the network is trusted";
    let config = tls.read(until).await.map_err(errors::libpq)?;
    let stream =
        tls::shake_hands(tls, host, at, hint, stream, config).await.map_err(errors::libpq)?;
    Ok(Box::new(stream))
}

/// When a kernel looks whether who says nothing is still there, in seconds: at first, then again,
/// and how often.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Looks {
    pub(super) idle: u64,
    pub(super) interval: u64,
    pub(super) count: u32,
}

impl Looks {
    /// Linux looks at most so often.
    const MOST: u32 = 127;

    /// They end after exactly this, in whole seconds, two at least.
    pub(super) fn within(silence: Duration) -> Self {
        let whole = silence.as_secs().max(2);
        let rest = whole - (whole / 3).max(1);
        let interval = rest.div_ceil(u64::from(Self::MOST));
        let looks = rest / interval;
        let count = u32::try_from(looks).unwrap_or(Self::MOST);
        Self { idle: whole - looks * interval, interval, count }
    }
}

/// Lets the kernel find out that a server is gone, also while nothing is asked.
fn keep_alive(stream: &TcpStream, silence: Duration) -> std::io::Result<()> {
    let socket = socket2::SockRef::from(stream);
    let Looks { idle, interval, count } = Looks::within(silence);
    let [idle, interval] = [idle, interval].map(Duration::from_secs);
    let alive = socket2::TcpKeepalive::new().with_time(idle).with_interval(interval);
    socket.set_tcp_keepalive(&alive.with_retries(count))?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(silence))?;
    Ok(())
}

/// Reads a connection until it ends or is to end, and says why it did.
pub(super) async fn drive(
    mut wire: Wire,
    mut end: watch::Receiver<bool>,
    mut hear: impl FnMut(&str, &str),
) -> String {
    let mut ending = pin!(async move { _ = end.wait_for(|end| *end).await });
    poll_fn(move |cx| {
        if ending.as_mut().poll(cx).is_ready() {
            return Poll::Ready("the connection was given up".to_owned());
        }
        loop {
            match wire.poll_message(cx) {
                Poll::Ready(Some(Ok(AsyncMessage::Notification(word)))) => {
                    hear(word.channel(), word.payload());
                }
                Poll::Ready(Some(Ok(_))) => {}
                Poll::Ready(Some(Err(error))) => {
                    return Poll::Ready(error.to_string());
                }
                Poll::Ready(None) => return Poll::Ready("the server closed it".to_owned()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await
}

/// Waits for all of several, in their order.
pub(super) async fn all<T>(futures: Vec<crate::engine::BoxFuture<T>>) -> Vec<T> {
    let mut waiting: Vec<_> = futures.into_iter().map(|future| (Some(future), None)).collect();
    poll_fn(move |cx| {
        let mut pending = false;
        for (future, done) in &mut waiting {
            let Some(polled) = future else { continue };
            match polled.as_mut().poll(cx) {
                Poll::Ready(value) => (*future, *done) = (None, Some(value)),
                Poll::Pending => pending = true,
            }
        }
        if pending {
            return Poll::Pending;
        }
        Poll::Ready(waiting.iter_mut().filter_map(|(_, done)| done.take()).collect())
    })
    .await
}

/// How long a server may take for a statement before it gives up waiting for somebody's row.
pub(super) fn lock_timeout(request_timeout: Duration) -> Duration {
    (request_timeout / 4).max(Duration::from_millis(10))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_looks_as_often_as_it_can_and_ends_in_time() {
        for whole in 2..=3600 {
            let Looks { idle, interval, count } = Looks::within(Duration::from_secs(whole));
            assert!(idle >= 1 && interval >= 1 && (1..=Looks::MOST).contains(&count), "{whole}");
            assert_eq!(idle + interval * u64::from(count), whole);
        }
        let usual = Looks { idle: 5, interval: 1, count: 10 };
        assert_eq!(Looks::within(Duration::from_secs(15)), usual);
    }
}
