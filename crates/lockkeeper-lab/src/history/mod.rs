//! Histories: what a process did with its locks, one record of 64 bytes an event, in a
//! memory-mapped file a process.
//!
//! The pages belong to the kernel from the moment a record is written, so that a killed or stopped
//! process loses nothing. Read in this order: [`record`](Record) (the 64 bytes), `header` (the
//! first page), `name` (how names are written down), `map` (the growing file), [`Writer`],
//! [`Reader`], [`Merge`]. The layout is described in `docs/history.md`.

mod asking;
mod header;
mod map;
mod merge;
mod name;
mod reader;
mod record;
mod recorder;
mod writer;

pub use asking::asked;
pub use header::{BadHeader, HEADER_SIZE, Header, LAYOUT, Role, State};
pub use merge::{Item, Merge, Source};
pub use name::{Label, LockId, NameTable, NameTaken};
pub use reader::{ReadError, Reader};
pub use record::{Flags, HoldMode, RECORD_SIZE, Record, What, fold};
pub use recorder::Recorder;
pub use writer::{StopReason, Stopped, Summary, WriteError, Writer, WriterOptions};

/// What the names of history files end with.
pub const EXTENSION: &str = "lkh";
