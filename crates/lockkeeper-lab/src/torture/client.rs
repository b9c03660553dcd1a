//! A client process: hears what it is told, and runs the client that is tortured.

use super::orders::{Orders, hear};
use super::{Subject, shipped};

/// The hidden subcommand: runs until its stdin closes. Answers the exit code.
pub fn client_main(_: &[std::ffi::OsString]) -> u8 {
    let (orders, ended) = match hear() {
        Ok(heard) => heard,
        Err(text) => {
            eprintln!("lockkeeper: {text}");
            return 64;
        }
    };
    let Orders { label, .. } = &orders;
    let label = label.clone();
    let done = match &orders.subject {
        Subject::Shipped => shipped::run(orders, ended),
    };
    match done {
        Ok(()) => 0,
        Err(text) => {
            eprintln!("lockkeeper: torture: {label}: {text}");
            125
        }
    }
}
