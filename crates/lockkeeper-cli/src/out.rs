//! What is printed: to a reader that may have gone, or to a disk that may be full.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

use nix::sys::signal::Signal;

use crate::failure::{Failure, exit, os_words};
use crate::supervise::signals::die_of;

/// The first failure to write.
static FAILED: Mutex<Option<(io::ErrorKind, String)>> = Mutex::new(None);

/// Our stdout, which remembers that something could not be written; [`failure`] says so in the end.
pub struct Out;

impl Write for Out {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        io::stdout().lock().write(buffer).inspect_err(note)
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stdout().lock().flush().inspect_err(note)
    }
}

fn note(error: &io::Error) {
    if error.kind() != io::ErrorKind::Interrupted {
        FAILED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(|| (error.kind(), os_words(error)));
    }
}

/// Prints to stdout; what could not be written is told by [`failure`].
pub fn print(text: &str) -> u8 {
    match Out.write_all(text.as_bytes()).and_then(|()| Out.flush()) {
        Ok(()) => 0,
        Err(_) => exit::INTERNAL,
    }
}

/// Whether something could not be written.
pub fn has_failed() -> bool {
    FAILED.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// What could not be written, if anything. A reader that has gone away ends us the way it ends
/// every filter, also where SIGPIPE was ignored.
pub fn failure() -> Option<Failure> {
    // A failure is noted; std would drop it at the exit.
    _ = Out.flush();
    let (kind, words) = FAILED.lock().unwrap_or_else(PoisonError::into_inner).take()?;
    if kind == io::ErrorKind::BrokenPipe {
        die_of(Signal::SIGPIPE, false);
    }
    Some(Failure::internal(format!(
        "stdout cannot be written: {words}: the output is not complete"
    )))
}
