//! Connecting to a Redis server.

use std::{fmt, io};

use tokio::net::{TcpStream, UnixStream};

use super::super::errors;
use super::super::options::{Address, RedisOptions};
use crate::engine::BoxFuture;
use crate::engine::stream::Stream;
use crate::engine::tls::shake_hands;
use crate::error::Result;

/// Says where the server is now, each time before it is dialled: a deployment whose master moves
/// asks those who know.
pub(crate) trait Resolve: fmt::Debug + Send + Sync {
    /// Where to dial. It is a part of connecting, and ends with its time.
    ///
    /// # Errors
    /// Nobody knows, and why.
    fn resolve(&self) -> BoxFuture<Result<Address>>;
}

/// Connects to where the options say.
///
/// # Errors
/// [`ErrorKind::Unreachable`] with the reason, and what [`Resolve`] says.
pub(in crate::engine) async fn open(options: &RedisOptions) -> Result<Stream> {
    let resolved;
    let address = match &options.resolve {
        Some(resolve) => {
            resolved = resolve.resolve().await?;
            &resolved
        }
        None => &options.address,
    };
    let failed = |error: io::Error| errors::unreachable(address, error);
    match address {
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            match &options.tls {
                Some(tls) => Ok(Stream::Tls(Box::new(
                    shake_hands(
                        tls,
                        host,
                        &address.to_string(),
                        "use redis:// or its TLS port",
                        stream,
                    )
                    .await?,
                ))),
                None => Ok(Stream::Tcp(stream)),
            }
        }
        Address::Unix(path) => Ok(Stream::Unix(UnixStream::connect(path).await.map_err(failed)?)),
    }
}
