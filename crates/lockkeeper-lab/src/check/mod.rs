//! The judge of histories.
//!
//! [`Checker`] is pure: it takes the events of all clients in the order of time and answers a
//! [`Report`]. [`check_files`] feeds it from files, [`print()`] and [`print_json`] show the report,
//! [`main_check`] is the command line. Each rule has a file: who holds at once (`occupancy`),
//! tokens (`tokens`), refused tries (`busy`), the line (`line`), deadlines (`lease`), recovery
//! (`recovery`), the resource's log (`resource`); `lock` joins them for one lock.

mod book;
mod busy;
mod checker;
mod claims;
mod class;
mod cli;
mod converts;
mod events;
mod files;
mod lease;
mod line;
mod lock;
mod occupancy;
mod print;
mod recovery;
mod report;
mod resource;
mod surroundings;
mod tokens;

pub use checker::Checker;
pub use class::{Class, Verdict};
pub use cli::main_check;
pub(crate) use files::expand;
pub use files::{CheckError, check_files};
pub use print::{print, print_json, summary_json, violation_json};
pub use recovery::STANDS_STILL;
pub use report::{Client, Counts, Durations, Late, Moment, Options, RecordRef, Report, Violation};
