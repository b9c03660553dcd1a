//! `S:auto` for the demo and the bench: a server, or a directory, that is started for one run.
//!
//! Its files lie in one directory, which is removed after Ctrl-C, an error and a KILL, too; the
//! kernel ends the server with us.

use std::any::Any;

use lockkeeper::engine::Keep;
use lockkeeper::{Error, ErrorKind, Result};

use super::{autos, registration, started_by};
use crate::bench::Stay;
use crate::scratch::Scratch;

/// A server's URL, and what ends the server when it is dropped.
pub(crate) type Started = (String, Box<dyn Any>);

/// See the module. Dropping it ends the server and has its files removed.
pub(crate) struct Own {
    url: String,
    // Ended before its directory is removed.
    server: Option<Box<dyn Any>>,
    dir: Option<Scratch>,
}

impl Own {
    /// Starts what a URL of the form `S:auto?OPTIONS` names; `None` for any other URL. It ends with
    /// the thread that calls this.
    ///
    /// # Errors
    /// `InvalidArgument` for a URL that cannot be right; `Refused` when it does not start, naming
    /// the package that is missing.
    pub(crate) fn start(url: &str) -> Result<Option<Self>> {
        let (start, options) = url.split_once('?').unwrap_or((url, ""));
        let Some(scheme) = start.strip_suffix(":auto") else { return Ok(None) };
        let Some(lab) = started_by(scheme) else {
            // The memory of a process may have any name.
            if registration(url)?.keep == Keep::Process {
                return Ok(None);
            }
            let text = format!("{start}: lockkeeper starts a server of its own for {}", autos());
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        let refused = |text: String| Error::new(ErrorKind::Refused, text);
        let dir = Scratch::new("lockkeeper-auto-");
        let dir = dir.map_err(|e| refused(format!("no directory for {start}: {e}")))?;
        let (url, server) = lab.start(options, dir.path()).map_err(|(code, text)| {
            let is_usage = code == ErrorKind::InvalidArgument.exit_code();
            let kind = if is_usage { ErrorKind::InvalidArgument } else { ErrorKind::Refused };
            Error::new(kind, text)
        })?;
        Ok(Some(Self { url, server: Some(server), dir: Some(dir) }))
    }

    /// Where it is reached.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Ends the server, and answers whether its files are removed.
    pub(crate) fn end(mut self) -> Result<(), Stay> {
        drop(self.server.take());
        self.dir.take().map_or(Ok(()), Scratch::end)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        drop(self.server.take());
    }
}

/// A URL with these options.
pub(crate) fn with_options(url: &str, options: &str) -> String {
    if options.is_empty() { url.to_owned() } else { format!("{url}?{options}") }
}
