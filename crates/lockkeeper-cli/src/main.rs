//! `lockkeeper`: one distributed lock, on every engine, for scripts and people.
//!
//! Where to read on: [`args`] defines the command line, [`choice`] finds the engine, [`run`] holds
//! a name while a command runs, and [`supervise`] looks after that command.
#![cfg_attr(not(test), no_main)]

mod acquire;
mod args;
mod choice;
mod complete;
mod elect;
mod engine;
mod failure;
mod guardian;
mod json;
mod kill_after;
mod lab;
mod line;
mod look;
mod out;
mod pages;
mod run;
mod secrets;
mod start;
mod supervise;
mod text;
mod under;
mod urls;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;

use crate::args::Sub;
use crate::args::common::Global;
use crate::args::explain::{Said, explain, name, report_file, wants_json};
use crate::failure::{Failure, exit};
use crate::text::wrap;

#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The entry point for the C runtime.
///
/// Rust's own would ignore SIGPIPE, hide whether it was ignored before, and open /dev/null where a
/// standard descriptor is closed; all three would pass to the command, which must start as its
/// caller meant it to.
#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main(argc: std::ffi::c_int, argv: *const *const std::ffi::c_char) -> std::ffi::c_int {
    // SAFETY: these are the runtime's own, and nothing was started yet.
    unsafe {
        line::keep(argc, argv);
        secrets::hide(argc, argv);
    }
    let code = std::panic::catch_unwind(|| program(line::words())).unwrap_or(exit::INTERNAL);
    std::process::exit(i32::from(code))
}

#[cfg(test)]
fn main() {
    std::process::exit(i32::from(program(line::words())))
}

/// Reads the command line and does what it says; answers the exit code.
fn program(line: &[OsString]) -> u8 {
    start::begin();
    if let Some(code) = guardian::hired(line).or_else(|| lockkeeper_lab::helper::started(line)) {
        return code;
    }
    if let Some(code) = complete::asked(line) {
        return code;
    }
    obey(line)
}

fn obey(line: &[OsString]) -> u8 {
    let (global, sub) = match args::parse(line) {
        Ok(parsed) => parsed,
        Err(error) => return refused(&error, line),
    };
    let json = global.json;
    let done = perform(global, sub);
    // What could not be printed may be the answer: no code but this one would be true.
    let failure = match (out::failure(), done) {
        (Some(failure), _) => failure,
        (None, Ok(code)) => return code,
        (None, Err(failure)) => failure,
    };
    failure.print(json);
    failure.exit
}

fn refused(error: &clap::Error, line: &[OsString]) -> u8 {
    match explain(error, line) {
        Said::Asked(text) => match (out::print(&wrap::help(&text)), out::failure()) {
            (_, Some(failure)) => {
                failure.print(wants_json(line));
                failure.exit
            }
            (code, None) => code,
        },
        Said::Help(text) => {
            _ = std::io::stderr().write_all(wrap::help(&text).as_bytes());
            exit::USAGE
        }
        Said::Wrong(failure) => {
            // What is wrong with a line is said of the line; programs get the lock's name, too.
            let named = match name(line) {
                Some(name) => failure.clone().name(name),
                None => failure.clone(),
            };
            let json = wants_json(line);
            let said = if json { &named } else { &failure };
            said.print(json);
            if let Some(file) = report_file(line) {
                run::report::of_a_wrong_line(file.as_ref(), &named);
            }
            failure.exit
        }
    }
}

/// Does what an option that prints would do behind these words.
fn asked_for(global: &Global, words: &[String], option: &str) -> u8 {
    let json = global.json.then_some("--json");
    let words = words.iter().map(String::as_str).chain(json).chain([option]);
    obey(&std::iter::once("lockkeeper").chain(words).map(OsString::from).collect::<Vec<_>>())
}

fn perform(global: Global, sub: Sub) -> Result<u8, Failure> {
    let named = |name: &OsStr, done: Result<u8, Failure>| {
        done.map_err(|failure| failure.name(name.to_string_lossy()))
    };
    match sub {
        Sub::Run(args) => Ok(run::run(&global, &args)),
        Sub::Elect(args) => named(&args.name, elect::elect(&global, &args)),
        Sub::Acquire(args) => Ok(acquire::acquire(&global, &args)),
        Sub::Ls(args) => look::list::ls(&global, &args).map_err(look::looked),
        Sub::Status(args) => {
            named(&args.name, look::list::status(&global, &args).map_err(look::looked))
        }
        Sub::Watch(args) => look::watch::watch(&global, &args).map_err(look::looked),
        Sub::Release(args) => named(&args.name, look::change::release(&global, &args)),
        Sub::Permits(args) => named(&args.name, look::change::permits(&global, &args)),
        Sub::Doctor(args) => look::doctor::doctor(&global, &args),
        Sub::Schema(args) => look::schema::schema(&global, &args),
        Sub::Gc(args) => look::change::gc(&global, &args),
        Sub::Check(args) => Ok(lockkeeper_lab::check::main_check(
            args.line(&global),
            &mut out::Out,
            &mut std::io::stderr().lock(),
        )),
        Sub::Bench(args) => lab::bench(&global, &args),
        Sub::Demo(args) => lab::demo(&global, &args),
        Sub::Torture(args) => lab::torture(&global, *args),
        Sub::Completions(args) => complete::completions(&args),
        Sub::Man(man) => pages::man(man.command.is_some()),
        Sub::Version => Ok(pages::version(&global)),
        Sub::Help(args) => Ok(asked_for(&global, &args.command, "--help")),
    }
}
