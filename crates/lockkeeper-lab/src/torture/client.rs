//! A client process: hears what it is told, and runs the client that is tortured.

use super::orders::hear;
use super::{Subject, broken, exec, raw, shipped};

/// The hidden subcommand: runs until its stdin closes. Answers the exit code.
pub fn client_main(_: &[std::ffi::OsString]) -> u8 {
    let (orders, ended) = match hear() {
        Ok(heard) => heard,
        Err(text) => {
            eprintln!("lockkeeper: {text}");
            return 64;
        }
    };
    let label = orders.label.clone();
    let done = match &orders.subject {
        Subject::Shipped => shipped::run(orders, ended),
        Subject::Exec(command) => raw::run(&orders, &ended, exec::STYLE, &|_| Ok(Box::new(exec::Exec::of(&orders, command)))),
        Subject::Broken(name) => match broken::find(name) {
            Some(broken) => raw::run(&orders, &ended, broken.style, &|task| (broken.make)(&orders, task)),
            None => Err(format!("there is no broken client {name:?}")),
        },
    };
    match done {
        Ok(()) => 0,
        Err(text) => {
            eprintln!("lockkeeper: torture: {label}: {text}");
            125
        }
    }
}
