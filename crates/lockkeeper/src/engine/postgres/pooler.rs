//! Whether a pooler stands between us and the server.
//!
//! A pooler in transaction mode gives each transaction another of the server's connections. What is
//! listened to is not heard there, and prepared statements are somebody else's. It greets with a
//! process id of its own, while `pg_backend_pid()` is the server's. Which mode it is in it does not
//! tell: unless the URL says otherwise it is taken for one in transaction mode.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use super::options::PostgresOptions;
use crate::words::error::{Error, ErrorKind};

/// Keeps what is written to it.
struct Kept(Arc<Mutex<Vec<u8>>>);

impl AsyncRead for Kept {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Kept {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Whether the connection was greeted by somebody else than the process that serves it.
///
/// # Errors
/// The server's.
pub(super) async fn stands_between(client: &Client) -> Result<bool, tokio_postgres::Error> {
    let Some(greeted) = backend(client).await else { return Ok(false) };
    // In a text, because a statement that is prepared stays on a pooler's connection.
    let serves = client.simple_query("SELECT pg_backend_pid()").await?;
    let serves = serves.iter().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => row.get(0)?.parse::<i32>().ok(),
        _ => None,
    });
    Ok(serves.is_some_and(|serves| serves != greeted))
}

/// The process id with which the connection was greeted. The client does not tell it: it is read
/// from a request to cancel, which is sent to nobody.
async fn backend(client: &Client) -> Option<i32> {
    let written = Arc::new(Mutex::new(Vec::new()));
    client.cancel_token().cancel_query_raw(Kept(written.clone()), NoTls).await.ok()?;
    let written = written.lock().unwrap_or_else(PoisonError::into_inner);
    Some(i32::from_be_bytes(written.get(8..12)?.try_into().ok()?))
}

/// What is said then in the layout `shedlock`.
pub(super) fn refused(options: &PostgresOptions) -> Error {
    named(
        options,
        "name the server itself, or add pooler=session if each client has a server connection of \
         its own there",
    )
}

/// The same in the layout `session`, which has no such option.
pub(super) fn refused_for_session(options: &PostgresOptions) -> Error {
    named(options, "name the server itself, since layout=session goes through no pooler")
}

fn named(options: &PostgresOptions, what_to_do: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("a pooler answers at {}: {what_to_do}", options.at()))
}
