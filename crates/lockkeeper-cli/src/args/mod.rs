//! The definition of the command line: parser, help, completions and manual page all come from
//! here.

pub mod acquire;
pub mod bench;
pub mod common;
pub mod demo;
pub mod elect;
pub mod explain;
pub mod help;
pub mod others;
pub mod run;
#[cfg(test)]
mod shown;
pub mod suggest;
pub mod torture;
pub mod values;

use std::ffi::OsString;

use clap::{ArgMatches, Args as _, Command, FromArgMatches as _};

use self::common::Global;

/// Everything that was said on the command line, apart from the options that every subcommand
/// takes.
pub enum Sub {
    /// Hold a name while a command runs.
    Run(Box<run::Args>),
    /// Hold a name until told otherwise.
    Acquire(Box<acquire::Args>),
    /// Run a command while leader.
    Elect(Box<elect::Args>),
    /// Who holds and who waits.
    Ls(others::Ls),
    /// One name.
    Status(others::Status),
    /// What changes.
    Watch(others::Watch),
    /// Take a lock away.
    Release(others::Release),
    /// Change a semaphore's limit.
    Permits(others::Permits),
    /// What the engine is and promises.
    Doctor(others::Doctor),
    /// What makes a database's tables.
    Schema(others::Schema),
    /// Remove idle lock files.
    Gc(others::Gc),
    /// Judge a history.
    Check(others::Lab),
    /// Figures beside their floors.
    Bench(bench::Args),
    /// Faults under a schedule.
    Torture(Box<torture::Args>),
    /// The overselling story, and contenders for one lock.
    Demo(demo::Args),
    /// A shell's completions.
    Completions(others::Completions),
    /// The manual page.
    Man(others::Man),
    /// The help of a subcommand, or of the program.
    Help(others::Help),
    /// Which version this is.
    Version,
}

/// A subcommand: name, what it does, and what adds its options.
type Subcommand = (&'static str, &'static str, fn(Command) -> Command);

const SUBCOMMANDS: [Subcommand; 19] = [
    ("run", "Hold NAME while a command runs", run::Args::augment_args),
    (
        "acquire",
        "Hold NAME until stdin closes, a time is over, or a signal comes",
        acquire::Args::augment_args,
    ),
    ("ls", "Show which names are held or waited for", others::Ls::augment_args),
    ("status", "Show who holds NAME and who waits for it", others::Status::augment_args),
    ("watch", "Show what changes, as it changes", others::Watch::augment_args),
    ("release", "Take NAME away from its holder", others::Release::augment_args),
    ("elect", "Run a command while leader of NAME", elect::Args::augment_args),
    ("permits", "Change the limit of the semaphore NAME", others::Permits::augment_args),
    ("doctor", "Reach the engine and say what it promises", others::Doctor::augment_args),
    (
        "schema",
        "Print the statements that make the tables of a database",
        others::Schema::augment_args,
    ),
    ("gc", "Remove idle lock files", others::Gc::augment_args),
    ("check", "Judge histories of locks", others::Lab::build),
    ("bench", "Measure engines beside the same job without lockkeeper", bench::Args::augment_args),
    (
        "torture",
        "Try to break a lock: real processes under a seeded schedule of faults",
        torture::Args::augment_args,
    ),
    (
        "demo",
        "Show what a lock is for: a stock that is oversold without one, and ten contenders for one",
        demo::Args::augment_args,
    ),
    ("completions", "Print or install a shell's completions", others::Completions::augment_args),
    ("man", "Print the manual page", others::Man::augment_args),
    ("help", "Print the help of a subcommand", others::Help::augment_args),
    ("version", "Print which build this is: version, commit, engines", |command| command),
];

/// The whole definition.
pub fn command() -> Command {
    command_with(&SUBCOMMANDS)
}

fn command_with(subcommands: &[Subcommand]) -> Command {
    // The doc comment of the shared options would become the program's if it came last.
    Global::augment_args(Command::new("lockkeeper"))
        .version(env!("CARGO_PKG_VERSION"))
        .about("One distributed lock, every engine: hold a lock while a command runs")
        .after_help(help::end("lockkeeper"))
        .subcommand_required(true)
        .arg_required_else_help(true)
        .disable_help_subcommand(true)
        .args_override_self(true)
        .subcommands(subcommands.iter().map(|(name, about, build)| {
            // Not deferred: the options that all share would come first in the help.
            build(Command::new(*name)).about(*about).after_help(help::end(name))
        }))
}

/// What clap makes of a line. `run` is to start in no time, so only the subcommand that the line
/// seems to name is built; when that is not the whole truth the whole definition decides.
fn matches(line: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let named =
        line.iter().skip(1).find_map(|word| SUBCOMMANDS.iter().find(|(name, ..)| word == name));
    if let Some(Ok(matches)) = named.map(|one| command_with(&[*one]).try_get_matches_from(line)) {
        return Ok(matches);
    }
    command().try_get_matches_from(line)
}

/// Reads a command line.
///
/// # Errors
/// What clap says; [`explain`] puts it into one line.
pub fn parse(line: &[OsString]) -> Result<(Global, Sub), clap::Error> {
    let mut matches = matches(line)?;
    let mut global = Global::from_arg_matches(&matches)?;
    // Of the two the quiet one holds.
    global.verbose &= !global.quiet;
    let Some((name, mut sub)) = matches.remove_subcommand() else {
        return Err(
            command().error(clap::error::ErrorKind::MissingSubcommand, "a command is missing")
        );
    };
    let sub = match name.as_str() {
        "run" => Sub::Run(Box::new(run::Args::from_arg_matches_mut(&mut sub)?)),
        "acquire" => Sub::Acquire(Box::new(acquire::Args::from_arg_matches_mut(&mut sub)?)),
        "elect" => Sub::Elect(Box::new(elect::Args::from_arg_matches_mut(&mut sub)?)),
        "ls" => Sub::Ls(others::Ls::from_arg_matches_mut(&mut sub)?),
        "status" => Sub::Status(others::Status::from_arg_matches_mut(&mut sub)?),
        "watch" => Sub::Watch(others::Watch::from_arg_matches_mut(&mut sub)?),
        "release" => Sub::Release(others::Release::from_arg_matches_mut(&mut sub)?),
        "permits" => Sub::Permits(others::Permits::from_arg_matches_mut(&mut sub)?),
        "doctor" => Sub::Doctor(others::Doctor::from_arg_matches_mut(&mut sub)?),
        "schema" => Sub::Schema(others::Schema::from_arg_matches_mut(&mut sub)?),
        "gc" => Sub::Gc(others::Gc::from_arg_matches_mut(&mut sub)?),
        "check" => Sub::Check(others::Lab::from_arg_matches_mut(&mut sub)?),
        "bench" => Sub::Bench(bench::Args::from_arg_matches_mut(&mut sub)?),
        "torture" => Sub::Torture(Box::new(torture::Args::from_arg_matches_mut(&mut sub)?)),
        "demo" => Sub::Demo(demo::Args::from_arg_matches_mut(&mut sub)?),
        "completions" => Sub::Completions(others::Completions::from_arg_matches_mut(&mut sub)?),
        "help" => Sub::Help(others::Help::from_arg_matches_mut(&mut sub)?),
        "version" => Sub::Version,
        _ => Sub::Man(others::Man::from_arg_matches_mut(&mut sub)?),
    };
    Ok((global, sub))
}
