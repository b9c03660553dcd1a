//! What a URL with `layout=session` says.

use std::sync::Arc;
use std::time::Duration;

use super::super::errors::wrong;
use super::super::options::{Pooler, PostgresOptions};
use crate::engine::Common;
use crate::open::url::EngineUrl;
use crate::words::error::Result;

/// How long a silent connection is kept unless the URL says otherwise.
pub(in crate::engine::postgres) const SESSION: Duration = Duration::from_secs(15);
/// The server counts whole seconds, and needs one for its last look.
const SHORTEST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) server: Arc<PostgresOptions>,
    /// Names that are no keys are hashed to one.
    pub(super) hashed: bool,
    /// How long the server keeps a connection of which it hears nothing.
    pub(super) session: Duration,
}

impl Options {
    /// Takes everything out of the URL.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what to write instead.
    pub(super) fn take(url: &mut EngineUrl, common: &Common) -> Result<Self> {
        if url.option("schema").is_some() {
            return Err(wrong("schema belongs to layout=table: an advisory lock is in no schema"));
        }
        if url.option("create").is_some() {
            return Err(wrong("create belongs to layout=table: an advisory lock is in no table"));
        }
        let hashed = url.take("names").is_some_and(|names| names == "hash");
        let session = url.take_duration("session_timeout")?.unwrap_or(SESSION);
        if !(SHORTEST..=LONGEST).contains(&session) || session.subsec_nanos() != 0 {
            return Err(wrong("session_timeout is a number of whole seconds from 2s to 1h"));
        }
        let mut server = PostgresOptions::take(url, common)?;
        if server.pooler != Pooler::Unsaid {
            // It may give two clients one connection, in which the server grants both the same
            // lock; nothing that a client can ask shows that for sure.
            return Err(wrong(
                "advisory locks belong to a connection of the server's, which a pooler shares: \
                 name the server itself, or use layout=table",
            ));
        }
        server.silence = Some(session);
        Ok(Self { server: Arc::new(server), hashed, session })
    }
}
