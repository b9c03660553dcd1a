//! Connecting to a Redis server.

use std::pin::pin;
use std::sync::Arc;
use std::{fmt, io};

use tokio::net::UnixStream;
use tokio::time::{Instant, timeout_at};

use super::super::errors;
use super::super::options::{Address, RedisOptions};
use crate::engine::BoxFuture;
use crate::engine::dial::connect;
use crate::engine::either::either;
use crate::engine::password::Login;
use crate::engine::stream::Stream;
use crate::engine::tls::shake_hands;
use crate::words::error::Result;

/// Says where the server is now, each time before it is dialled: a deployment whose master moves
/// asks those who know.
pub(crate) trait Resolve: fmt::Debug + Send + Sync {
    /// Where to dial. It is a part of connecting, and ends with its time.
    ///
    /// # Errors
    /// Nobody knows, and why.
    fn resolve(self: Arc<Self>) -> BoxFuture<Result<Address>>;

    /// Ends with the reason once the server is known to be somewhere else than at this address.
    fn moved(&self, from: &Address) -> BoxFuture<String>;
}

/// A stream, where it was dialled if somebody had to say that, and with what password.
pub(in crate::engine) struct Dialled {
    pub(in crate::engine) stream: Stream,
    pub(in crate::engine) at: Option<Address>,
    pub(in crate::engine) login: Option<Login>,
}

/// Connects to where the options say, by `until`. `dials` hears where that is, if somebody had to
/// say it, before it is dialled.
///
/// # Errors
/// [`ErrorKind::Unreachable`] with the reason, and what [`Resolve`] says; what a server said that
/// refused the password, and is not dialled with it again yet.
pub(in crate::engine) async fn open(
    options: &RedisOptions,
    until: Instant,
    dials: impl FnOnce(&Address),
) -> Result<Dialled> {
    let Some(resolve) = &options.resolve else {
        let login = login(&options.address, options, until).await?;
        let stream = dial(&options.address, options, until).await?;
        return Ok(Dialled { stream, at: None, login });
    };
    let at = resolve.clone().resolve().await?;
    // Also where it is not dialled yet for its last answer: a master that moves ends that.
    dials(&at);
    let login = login(&at, options, until).await?;
    #[cfg(feature = "sentinel")]
    if let Address::Service(service) = &options.address {
        service.dialled(&at);
    }
    let dialling = pin!(dial(&at, options, until));
    match either(dialling, pin!(resolve.moved(&at))).await {
        Ok(stream) => Ok(Dialled { stream: stream?, at: Some(at.clone()), login }),
        Err(why) => Err(errors::unreachable(&options.address, why)),
    }
}

async fn login(at: &Address, options: &RedisOptions, until: Instant) -> Result<Option<Login>> {
    match &options.password {
        Some(password) => password.to_dial(&at.to_string(), until).await.map(Some),
        None => Ok(None),
    }
}

/// When what keeps a dial is told at last: before its time is over.
pub(in crate::engine::redis) fn before(until: Instant) -> Instant {
    until - until.saturating_duration_since(Instant::now()) / 8
}

/// TLS with a server that took the connection, by `until`. Silence is noted before all of the time
/// is over, so that nobody who waits for more than this is told less; one that is only slow may
/// answer still.
#[cfg(any(test, feature = "sentinel"))]
pub(in crate::engine::redis) async fn noting_silence<T>(
    shaking: impl Future<Output = Result<T>>,
    until: Instant,
    note: impl FnOnce(),
) -> Result<T> {
    let mut shaking = pin!(shaking);
    match timeout_at(before(until), shaking.as_mut()).await {
        Ok(shaken) => shaken,
        Err(_) => {
            note();
            shaking.await
        }
    }
}

/// A plain port says nothing to most greetings in TLS, because it waits for the end of a line. A
/// server that stands still says nothing either, so this is no reason to do without TLS.
pub(in crate::engine::redis) fn says_nothing(instead: &str) -> String {
    format!(
        "it took the connection, and says nothing in TLS, as a port without TLS does: {instead} \
         if this is another port, or see why it does not answer"
    )
}

async fn dial(address: &Address, options: &RedisOptions, until: Instant) -> Result<Stream> {
    let failed = |error: io::Error| errors::unreachable(&options.address, error);
    match address {
        Address::Tcp(host, port) => {
            #[cfg(all(test, feature = "redlock", feature = "test-util"))]
            if let Some(near) = crate::engine::stream::memory::dial(host) {
                return near.map(Stream::Memory).map_err(failed);
            }
            let stream = connect(host, *port, until).await.map_err(failed)?;
            let Some(tls) = &options.tls else { return Ok(Stream::Tcp(stream)) };
            let hint = format!("give its TLS port, or {}", options.spelling.no_tls);
            let at = address.to_string();
            let config = tls.read(before(until)).await?;
            let shaking = shake_hands(tls, host, &at, &hint, stream, config);
            // Told before all of the time is over: whoever waits for no more than that is told it.
            let Ok(shaken) = timeout_at(before(until), shaking).await else {
                return Err(failed(io::Error::other(says_nothing("give its TLS port"))));
            };
            Ok(Stream::Tls(Box::new(shaken?)))
        }
        Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await.map_err(failed)?)),
        #[cfg(feature = "sentinel")]
        Address::Service(_) => Err(errors::unreachable(address, "nobody said where it is")),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::time::sleep_until;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_is_slow_is_noted_as_silent_and_comes_to_its_end() {
        let eighth = Duration::from_secs(1);
        for (takes, is_noted) in [(6, false), (7, true)] {
            let (from, noted) = (Instant::now(), Cell::new(None));
            let shaking = async {
                sleep_until(from + eighth * takes + eighth / 2).await;
                Ok(takes)
            };
            let note = || noted.set(Some(Instant::now()));
            let shaken = noting_silence(shaking, from + eighth * 8, note).await;
            assert_eq!(shaken.ok(), Some(takes));
            assert_eq!(noted.get(), is_noted.then_some(from + eighth * 7));
        }
    }
}
