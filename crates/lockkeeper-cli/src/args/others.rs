//! The subcommands that look, and the small ones.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, value_parser};

use super::values;

/// Show which names are held or waited for
#[derive(Args, Debug)]
pub struct Ls {
    /// Only names that start with it
    #[arg(value_name = "PREFIX", default_value = "")]
    pub prefix: String,
}

/// Show who holds NAME and who waits for it
#[derive(Args, Debug)]
pub struct Status {
    /// The name
    #[arg(value_name = "NAME", value_parser = value_parser!(OsString))]
    pub name: OsString,
    /// Exit 1 when nobody holds it
    #[arg(long)]
    pub exit_code: bool,
}

/// Show what changes, as it changes
#[derive(Args, Debug)]
pub struct Watch {
    /// Only names that start with it
    #[arg(value_name = "PREFIX", default_value = "")]
    pub prefix: String,
    /// End after this long
    #[arg(
        long = "for",
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub watch_for: Option<Duration>,
}

/// Take NAME away from its holder
#[derive(Args, Debug)]
pub struct Release {
    /// The name
    #[arg(value_name = "NAME", value_parser = value_parser!(OsString))]
    pub name: OsString,
    /// Confirm it: the holder may still be at work
    #[arg(long)]
    pub force: bool,
}

/// Change the limit of the semaphore NAME
#[derive(Args, Debug)]
pub struct Permits {
    /// The semaphore
    #[arg(value_name = "NAME", value_parser = value_parser!(OsString))]
    pub name: OsString,
    /// Its new limit, 1 to 65535
    #[arg(value_name = "MAX", value_parser = values::limit, allow_negative_numbers = true)]
    pub limit: u16,
}

/// Reach the engine and say what it promises
#[derive(Args, Debug)]
pub struct Doctor {
    /// The engine to look at instead of the chosen one
    #[arg(value_name = "URL")]
    pub engine: Option<String>,
    /// Only look: do not take and give back a lock of a name of its own
    #[arg(long)]
    pub no_probe: bool,
    /// Exit 1 when there is a warning
    #[arg(long)]
    pub strict: bool,
    /// Print the options of URLs, of every engine or of the one of SCHEME, and look at none
    #[arg(
        long,
        value_name = "SCHEME",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["engine", "no_probe", "strict"]
    )]
    pub options: Option<String>,
}

/// Print the statements that make the tables of a database
#[derive(Args, Debug)]
pub struct Schema {
    /// The database instead of the chosen engine; nothing is asked there
    #[arg(value_name = "URL")]
    pub engine: Option<String>,
}

/// Remove idle lock files
#[derive(Args, Debug)]
pub struct Gc {}

/// What the laboratory's own parser reads
#[derive(Args, Debug)]
pub struct Lab {
    /// See --help of the subcommand itself
    #[arg(
        value_name = "ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_parser = value_parser!(OsString),
    )]
    pub args: Vec<OsString>,
}

impl Lab {
    /// The arguments, with what stood before the subcommand put before them.
    pub fn line(&self, global: &super::common::Global) -> Vec<OsString> {
        let json = global.json.then(|| OsString::from("--json"));
        json.into_iter().chain(self.args.iter().cloned()).collect()
    }

    /// The definition: help is the laboratory's, too.
    pub fn build(command: clap::Command) -> clap::Command {
        Self::augment_args(command).disable_help_flag(true)
    }
}

/// Print the help of a subcommand
#[derive(Args, Debug)]
pub struct Help {
    /// The subcommand [default: all of them]
    #[arg(value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Print the manual page
#[derive(Args, Debug)]
pub struct Man {
    /// run: the page of run alone, lockkeeper-run(1)
    #[arg(value_name = "PAGE", value_parser = ["run"])]
    pub command: Option<String>,
}

/// Print or install a shell's completions
#[derive(Args, Debug)]
pub struct Completions {
    /// The shell
    #[arg(value_name = "SHELL", value_enum)]
    pub shell: clap_complete::Shell,
    /// Put it where the shell looks for this user's own, and say where
    #[arg(long)]
    pub install: bool,
}
