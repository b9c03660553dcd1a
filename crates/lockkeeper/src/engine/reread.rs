//! What a file says that may change while a process runs: a password, an identity, certificates.
//!
//! It is read again before each dial, in a thread of its own: a file may lie on a mount that hangs,
//! and the keeper's thread renews every lease of the process. Whatever cannot be read, is empty or
//! does not make sense (a writer is at it, or the process has dropped the right to read it) leaves
//! the last content that was good in use.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::words::error::{Error, ErrorKind, Result};

/// No file of certificates is longer than this.
const LONGEST: u64 = 4 << 20;

/// How far apart a content that changed is read twice, and how often before it is given up.
const SETTLES_IN: Duration = Duration::from_millis(50);
const READ_AT_MOST: u32 = 10;

/// What a file says, made of it by `read`.
///
/// Clones share what was read.
pub(crate) struct Reread<T>(Arc<Shared<T>>);

struct Shared<T> {
    /// The file, as its option names it; for errors and the log.
    what: String,
    read: Box<Reads<T>>,
    state: watch::Sender<State<T>>,
}

/// Reads a file, whose last good content may be of use.
type Reads<T> = dyn Fn(Option<&T>) -> Result<T> + Send + Sync;

struct State<T> {
    /// What was read last that made sense.
    good: Option<T>,
    /// Why the last reading made none.
    why: Option<Error>,
    /// A thread reads.
    reading: bool,
    /// It was waited for in vain.
    late: bool,
}

impl<T: Clone + PartialEq + Send + Sync + 'static> Reread<T> {
    /// Nothing is read before somebody asks. `read` is given the last good content, and runs in a
    /// thread that may hang; `what` names the file.
    pub(crate) fn new(
        what: impl Into<String>,
        read: impl Fn(Option<&T>) -> Result<T> + Send + Sync + 'static,
    ) -> Self {
        let state = State { good: None, why: None, reading: false, late: false };
        Self(Arc::new(Shared {
            what: what.into(),
            read: Box::new(read),
            state: watch::Sender::new(state),
        }))
    }

    /// What it says now; what it said last where that cannot be had.
    ///
    /// # Errors
    /// It was never read, and why it cannot be read by `until`.
    pub(crate) async fn now(&self, until: Instant) -> Result<T> {
        let mut state = self.0.state.subscribe();
        let starts = self.0.state.send_if_modified(|state| {
            let starts = !state.reading;
            state.reading = true;
            starts
        });
        if starts {
            self.start();
        }
        let (good, late) = {
            let state = state.borrow();
            (state.good.clone(), state.late)
        };
        let now = Instant::now();
        let until = match &good {
            // A file that hangs costs the first dial a part of its time, and no later one any.
            Some(good) if late => return Ok(good.clone()),
            Some(_) => now + until.saturating_duration_since(now) / 4,
            None => until,
        };
        let told = match timeout_at(until, state.wait_for(|state| !state.reading)).await {
            Ok(Ok(state)) => match (&state.good, &state.why) {
                (Some(good), _) => Some(Ok(good.clone())),
                (None, Some(why)) => Some(Err(why.clone())),
                (None, None) => None,
            },
            _ => None,
        };
        if let Some(told) = told {
            return told;
        }
        self.0.state.send_if_modified(|state| {
            state.late = state.reading;
            false
        });
        let what = &self.0.what;
        tracing::warn!(%what, "the file is not read in time; its last content stays in use");
        let text = format!("{what} is not read in time: does it lie on a mount that hangs?");
        good.ok_or_else(|| Error::new(ErrorKind::InvalidArgument, text))
    }

    fn start(&self) {
        let shared = self.0.clone();
        let reading = std::thread::Builder::new().name("lockkeeper-file".into());
        let started = reading.spawn(move || {
            let good = shared.state.borrow().good.clone();
            let read = shared.settled(good.as_ref());
            shared.done(read);
        });
        if let Err(error) = started {
            self.0.done(Err(unreadable(&self.0.what, error)));
        }
    }
}

impl<T: PartialEq> Shared<T> {
    /// Reads it. What changed counts once it is the same a moment later: a writer may be at it.
    fn settled(&self, good: Option<&T>) -> Result<T> {
        let mut read = (self.read)(good)?;
        for _ in 0..READ_AT_MOST {
            if good.is_none_or(|good| *good == read) {
                return Ok(read);
            }
            std::thread::sleep(SETTLES_IN);
            let again = (self.read)(good)?;
            if again == read {
                return Ok(read);
            }
            read = again;
        }
        Err(unreadable(&self.what, "somebody is writing it"))
    }
}

impl<T> Shared<T> {
    fn done(&self, read: Result<T>) {
        self.state.send_modify(|state| {
            (state.reading, state.late) = (false, false);
            match read {
                Ok(good) => (state.good, state.why) = (Some(good), None),
                Err(why) => {
                    let told = state.why.as_ref().is_some_and(|w| w.message() == why.message());
                    if state.good.is_some() && !told {
                        tracing::warn!(%why, "the file's last content stays in use");
                    }
                    state.why = Some(why);
                }
            }
        });
    }
}

impl<T> Clone for Reread<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

/// What was read is never shown.
impl<T> fmt::Debug for Reread<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Reread({})", self.0.what)
    }
}

/// Whether it is the same file, whatever it says.
impl<T> PartialEq for Reread<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0.what == other.0.what
    }
}

impl<T> Eq for Reread<T> {}

/// All of a regular file: a pipe may keep its reader for ever, and so may a device.
///
/// # Errors
/// Why it is not read, by the name that `what` gives it; also that somebody wrote to it meanwhile.
pub(crate) fn bytes(what: &str, path: &Path) -> Result<Vec<u8>> {
    read(path).map_err(|error| unreadable(what, error))
}

fn unreadable(what: &str, why: impl fmt::Display) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{what} cannot be read: {why}"))
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    // Opening a pipe would wait for somebody who writes to it.
    let nonblocking = nix::fcntl::OFlag::O_NONBLOCK.bits();
    let mut file = File::options().read(true).custom_flags(nonblocking).open(path)?;
    let before = file.metadata()?;
    if !before.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    if before.len() > LONGEST {
        return Err(io::Error::other("it is longer than 4 MiB"));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(LONGEST).read_to_end(&mut bytes)?;
    let after = file.metadata()?;
    let same = before.len() == after.len() && before.modified()? == after.modified()?;
    if !same || before.len() != bytes.len() as u64 {
        return Err(io::Error::other("somebody is writing it"));
    }
    Ok(bytes)
}

/// A text of one or several lines, without the line ends behind the last.
///
/// # Errors
/// As [`bytes`]; it is empty, or no text.
pub(crate) fn text(what: &str, path: &Path) -> Result<String> {
    let text = String::from_utf8(bytes(what, path)?);
    let mut text = text.map_err(|_| unreadable(what, "it is not UTF-8"))?;
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    if text.is_empty() {
        return Err(unreadable(what, "it is empty"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
