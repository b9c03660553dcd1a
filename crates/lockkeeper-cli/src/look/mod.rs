//! The subcommands that look at locks without holding one: everything through the library's public API.

pub mod change;
pub mod doctor;
pub mod list;
pub mod table;
pub mod watch;

use lockkeeper::blocking::Locks;
use lockkeeper::{Entry, ErrorKind, Kind, Name};

use crate::args::common::Global;
use crate::choice::Choice;
use crate::failure::Failure;

/// The chosen engine, opened.
pub struct Opened {
    pub choice: Choice,
    pub locks: Locks,
    /// The engine's name.
    pub engine: &'static str,
}

/// Opens the chosen engine and checks what it must promise.
///
/// # Errors
/// What the choice or the engine says.
pub fn open(global: &Global) -> Result<Opened, Failure> {
    open_chosen(Choice::make(global)?)
}

/// Opens an engine and checks what it must promise.
///
/// # Errors
/// What the engine says.
pub fn open_chosen(choice: Choice) -> Result<Opened, Failure> {
    let locks = Locks::open(&choice.url).map_err(|e| Failure::from(e).engine(Some(choice.scheme().to_owned())))?;
    for require in &choice.require {
        locks.require(*require)?;
    }
    let engine = locks.describe().engine;
    Ok(Opened { choice, locks, engine })
}

impl Opened {
    /// What there is under a name, in every name space that the engine has; the lock's entry when there is nothing.
    ///
    /// # Errors
    /// What the engine says.
    pub fn about(&self, name: &Name) -> Result<Vec<Entry>, Failure> {
        let can = self.locks.describe().can;
        let is_there = |kind: &Kind| match kind {
            Kind::Semaphore => can.permits,
            Kind::Election => can.election,
            Kind::Latch => can.latch,
            _ => true,
        };
        let mut found = Vec::new();
        for kind in Kind::ALL.into_iter().filter(is_there) {
            match self.locks.status(kind, name) {
                Ok(entry) => found.push(entry),
                Err(error) if error.kind() == ErrorKind::Unsupported => {}
                Err(error) => return Err(error.into()),
            }
        }
        let is_used = |e: &Entry| !e.holders.is_empty() || !e.waiters.is_empty() || e.limit.is_some() || e.count.is_some_and(|c| c > 0);
        if found.iter().any(is_used) {
            found.retain(is_used);
        } else {
            found.truncate(1);
        }
        Ok(found)
    }

    /// Which engine it is and where that was said.
    pub fn says(&self) -> String {
        format!("engine {} ({})", self.choice.redacted(), self.choice.source)
    }
}
