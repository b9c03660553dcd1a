//! What a measurement leaves behind, and who clears it away: a helper process that outlives this
//! one.
//!
//! Ctrl-C, a KILL or a full disk may end a measurement anywhere, with a hundred thousand leases
//! held. So each one has names of its own in the engine, and the helper removes them once its
//! standard input closes.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use lockkeeper::engine::Keep;
use lockkeeper::{Error, ErrorKind, Locks};
use serde::{Deserialize, Serialize};

use super::text;
use crate::{engines, helper};

/// The kind of helper that clears away.
pub(crate) const HELPER: &str = "bench-traces";

/// How long the server may take to do what the ended process had sent.
const SETTLES: Duration = Duration::from_millis(100);
/// How often it is looked for more: a server that never is without any is used by somebody else
/// under our names.
const LOOKS_MAX: u32 = 1_000;
/// How often a directory is removed again in which something was written meanwhile.
const REMOVALS_MAX: u32 = 20;

/// What is a measurement's own.
#[derive(Serialize, Deserialize)]
enum Place {
    /// A directory of lock files.
    Directory(PathBuf),
    /// The names that begin with this word, on the server of this URL.
    Names { word: String, url: String },
}

/// The helper; dropping it has the place cleared away, and waits for that.
pub(crate) struct Traces(Child);

/// A word that nobody else begins names with.
pub(crate) fn own_word(begin: &str) -> String {
    Locks::sweep_word(begin)
}

impl Traces {
    /// The URL to measure on, and who clears away what begins with `own`. Of a directory it is one
    /// of its own inside of it. An engine whose locks leave nothing is measured as it is.
    pub(super) fn of(url: &str, own: &str) -> Result<(String, Option<Self>), String> {
        if engines::registration(url).map_err(text)?.keep == Keep::Process {
            return Ok((url.to_owned(), None));
        }
        match engines::of(url).directory(url, own).map_err(text)? {
            Some((url, directory)) => Ok((url, Some(Self::directory(&directory)?))),
            None => Ok((url.to_owned(), Some(Self::names(url, own)?))),
        }
    }

    /// Has a directory removed.
    pub(crate) fn directory(path: &Path) -> Result<Self, String> {
        Self::start(&Place::Directory(path.to_owned()))
    }

    /// Has the names that begin with this word removed from a server.
    pub(crate) fn names(url: &str, word: &str) -> Result<Self, String> {
        Self::start(&Place::Names { word: word.to_owned(), url: url.to_owned() })
    }

    fn start(place: &Place) -> Result<Self, String> {
        let program = helper::Program::this().map_err(text)?;
        let mut traces = Self(program.helper(HELPER).stdout(Stdio::null()).spawn().map_err(text)?);
        helper::tell(&mut traces.0, place).map_err(text)?;
        Ok(traces)
    }

    /// Has the place cleared away, and answers whether it was.
    pub(crate) fn end(mut self) -> Result<(), Stay> {
        drop(self.0.stdin.take());
        match self.0.wait() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) if status.code().is_some() => Err(Stay::Said),
            Ok(status) => Err(Stay::Ended(format!("its helper was ended: {status}"))),
            Err(error) => Err(Stay::Ended(text(error))),
        }
    }
}

/// Why something is not cleared away.
pub(crate) enum Stay {
    /// The helper has said it.
    Said,
    /// The helper ended before it could say anything.
    Ended(String),
}

impl Drop for Traces {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        // It says itself what it could not clear away.
        let _ = self.0.wait();
    }
}

/// The helper: waits for the end of who started it, and clears its place away.
///
/// # Errors
/// What could not be cleared away, and why.
pub(crate) fn clear() -> lockkeeper::Result<()> {
    let place: Place = helper::hear()?;
    // Nothing more is said: this is the end of who started us.
    let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
    let cleared = match &place {
        Place::Directory(directory) => {
            remove(directory).map_err(|e| format!("{} stays: {e}", directory.display()))
        }
        Place::Names { word, url } => {
            sweep(word, url).map_err(|e| format!("what begins with {word} stays: {}", e.message()))
        }
    };
    cleared.map_err(|why| {
        eprintln!("lockkeeper: {why}");
        Error::new(ErrorKind::Refused, why)
    })
}

/// Removes a directory. A server that was killed with its parent may be writing there until it is
/// dead.
fn remove(directory: &Path) -> std::io::Result<()> {
    let mut looks = 0;
    loop {
        match std::fs::remove_dir_all(directory) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(e) if looks == REMOVALS_MAX => return Err(e),
            Err(_) => looks += 1,
            Ok(()) => return Ok(()),
        }
        std::thread::sleep(SETTLES);
    }
}

/// Removes every name. What its process had sent may still be done: only two empty looks in a row
/// are the end.
fn sweep(word: &str, url: &str) -> lockkeeper::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime
        .map_err(|e| Error::new(ErrorKind::Refused, format!("cannot start a runtime: {e}")))?;
    runtime.block_on(async {
        let locks = Locks::open(url).await?;
        let (mut empty, mut looks) = (0, 0);
        while empty < 2 && looks < LOOKS_MAX {
            if empty > 0 {
                tokio::time::sleep(SETTLES).await;
            }
            looks += 1;
            empty = if locks.sweep(word).await? { 0 } else { empty + 1 };
        }
        // Nothing was locked, so nothing can stay unknown.
        let _ = locks.close().await;
        Ok(())
    })
}
