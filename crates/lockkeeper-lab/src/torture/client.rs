//! A client process: hears what it is told, and runs the client that is tortured.

use super::orders::hear;
use super::{Subject, broken, exec, raw, shipped};

/// The exit code of a client that the laboratory had no room for: no history, or no resource. That
/// is nothing about its lock.
pub(crate) const NO_ROOM: u8 = 73;

/// Why a client could not do its work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It could not write its history down, or reach the resource.
    NoRoom(String),
    /// Anything else.
    Other(String),
}

impl Failure {
    pub(crate) fn no_room(why: impl std::fmt::Display) -> Self {
        Self::NoRoom(why.to_string())
    }

    pub(crate) fn other(why: impl std::fmt::Display) -> Self {
        Self::Other(why.to_string())
    }
}

/// The helper: runs until its stdin closes. Answers the exit code.
pub(crate) fn client_main() -> u8 {
    let (orders, ended) = match hear() {
        Ok(heard) => heard,
        Err(error) => {
            eprintln!("lockkeeper: {}", error.message());
            return error.kind().exit_code();
        }
    };
    let label = orders.label.clone();
    let done = match &orders.subject {
        Subject::Shipped => shipped::run(orders, ended),
        Subject::Exec(command) => raw::run(&orders, &ended, exec::STYLE, &|_| {
            Ok(Box::new(exec::Exec::of(&orders, command)))
        }),
        Subject::Broken(name) => match broken::find(name) {
            Some(broken) => {
                raw::run(&orders, &ended, broken.style, &|task| (broken.make)(&orders, task))
            }
            None => Err(Failure::Other(format!("there is no broken client {name:?}"))),
        },
    };
    let (code, text) = match done {
        Ok(()) => return 0,
        Err(Failure::NoRoom(text)) => (NO_ROOM, text),
        Err(Failure::Other(text)) => (125, text),
    };
    eprintln!("lockkeeper: torture: {label}: {text}");
    code
}
