//! Connecting to a Redis server.

use std::io;

use tokio::net::{TcpStream, UnixStream};

use super::super::errors;
use super::super::options::{Address, RedisOptions};
use crate::engine::stream::Stream;
use crate::engine::tls::shake_hands;
use crate::error::Result;

/// Connects to where the options say.
///
/// # Errors
/// [`ErrorKind::Unreachable`] with the reason.
pub(in crate::engine) async fn open(options: &RedisOptions) -> Result<Stream> {
    let failed = |error: io::Error| errors::unreachable(&options.address, error);
    match &options.address {
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
            stream.set_nodelay(true).map_err(failed)?;
            match &options.tls {
                Some(tls) => Ok(Stream::Tls(Box::new(
                    shake_hands(
                        tls,
                        host,
                        &options.address.to_string(),
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
