//! What a client process is told by its controller: one line of JSON on its standard input, so that
//! no URL stands in an argument list. The end of that input is the end of its work.

use std::io::Read as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use lockkeeper::{Error, ErrorKind, Result};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};

use super::Subject;
use crate::helper;

/// See the module.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Orders {
    pub(crate) subject: Subject,
    pub(crate) url: String,
    pub(crate) history: PathBuf,
    pub(crate) socket: PathBuf,
    pub(crate) label: String,
    pub(crate) tasks: u32,
    pub(crate) names: u32,
    pub(crate) seed: u64,
    /// T of the engine: how long a lease of somebody else's may be.
    pub(crate) recovery: Duration,
}

/// Set when the work is to end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended(Arc<AtomicBool>);

impl Ended {
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// Reads the orders, and hears their end in a thread of its own.
pub(crate) fn hear() -> Result<(Orders, Ended)> {
    // A program that somebody else's lock is behind may end while we write to it.
    // SAFETY: ignoring a signal runs no code of ours.
    let _ =
        unsafe { nix::sys::signal::signal(Signal::SIGPIPE, nix::sys::signal::SigHandler::SigIgn) };
    let orders = helper::hear()?;
    let ended = Ended::default();
    let told = ended.clone();
    let listen = move || {
        // Whatever comes or does not come: when it closes, the work is over.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.0.store(true, Ordering::Release);
    };
    let started = std::thread::Builder::new().spawn(listen);
    started.map_err(|e| Error::new(ErrorKind::Refused, format!("cannot start a thread: {e}")))?;
    Ok((orders, ended))
}

/// Claims are numbered over all processes: the pid above, a counter below.
pub(crate) fn fresh_claim() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    (u64::from(std::process::id()) << 32) | NEXT.fetch_add(1, Ordering::Relaxed)
}
