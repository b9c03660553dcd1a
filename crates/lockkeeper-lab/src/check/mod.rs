//! The checker of histories.
//!
//! [`Checker`] is pure: it takes the events of all clients in the order of time and answers a
//! [`Report`]; it and its rules stand in `judge`. [`check_files`] feeds it from files, [`print()`]
//! and [`print_json`] show the report, [`main_check`] is the command line.

mod cli;
mod files;
mod print;

pub use crate::judge::{
    Checker, Class, Client, Counts, Durations, Late, Moment, Options, RecordRef, Report,
    STANDS_STILL, Verdict, Violation,
};
pub use cli::main_check;
pub(crate) use files::expand;
pub use files::{CheckError, check_files};
pub use print::{print, print_json, summary_json, violation_json};
