//! `lockkeeper run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use serde::{Deserialize, Serialize};

use super::{common, values};

/// The group of options about the command.
pub const COMMAND: &str = "The command";
/// The group of options about what can go wrong.
const TROUBLE: &str = "When the lock is lost, or the engine is out of reach";

/// Hold NAME while a command runs
#[derive(clap::Args, Debug)]
#[command(
    override_usage = "lockkeeper run NAME [OPTIONS] -- CMD ARGS…\n       lockkeeper run NAME \
                      [OPTIONS] -c 'TEXT'"
)]
pub struct Args {
    /// The lock's name: any text of up to 1 KiB
    #[arg(value_name = "NAME", value_parser = value_parser!(OsString))]
    pub name: OsString,
    #[command(flatten)]
    pub lock: common::Lock,
    /// Give TEXT to $SHELL, else /bin/sh; in place of -- CMD
    #[arg(
        help_heading = COMMAND,
        short,
        long,
        value_name = "TEXT",
        value_parser = value_parser!(OsString),
        allow_hyphen_values = true,
    )]
    pub command: Option<OsString>,
    #[command(flatten)]
    pub stop: Stop,
    /// Keep the lock at least this long
    #[arg(
        help_heading = common::LEASE,
        long,
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub hold_at_least: Option<Duration>,
    /// Stop the command after this long; exit 124
    #[arg(
        help_heading = common::LEASE,
        long,
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub hold_at_most: Option<Duration>,
    /// term, kill at once, or warn
    #[arg(
        help_heading = TROUBLE,
        long,
        value_name = "WHAT",
        value_enum,
        hide_possible_values = true,
        default_value_t = OnLost::Term,
    )]
    pub on_lost: OnLost,
    /// Exit code when it was lost
    #[arg(
        help_heading = TROUBLE,
        long,
        value_name = "CODE",
        value_parser = value_parser!(u8),
        default_value_t = 79,
        allow_negative_numbers = true,
    )]
    pub lost_exit_code: u8,
    /// fail with 69, or run unlocked
    #[arg(
        help_heading = TROUBLE,
        long,
        value_name = "WHAT",
        value_enum,
        hide_possible_values = true,
        default_value_t = OnUnreachable::Fail,
    )]
    pub on_unreachable: OnUnreachable,
    /// Become the command; file engine only
    #[arg(help_heading = COMMAND, short = 'F', long)]
    pub no_fork: bool,
    /// Keep the lock's descriptor from it; file engine only
    #[arg(help_heading = COMMAND, short = 'o', long)]
    pub close: bool,
    /// Write the outcome to FILE as one JSON object
    #[arg(help_heading = common::OUTPUT, long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The command and its arguments, exactly as given
    #[arg(
        last = true,
        help_heading = None::<&str>,
        value_name = "CMD",
        value_parser = value_parser!(OsString),
    )]
    pub argv: Vec<OsString>,
}

/// How the command is stopped, and what its process group is.
#[derive(clap::Args, Debug)]
#[command(next_help_heading = COMMAND)]
pub struct Stop {
    /// From TERM to KILL [default: 5s, or ttl/5 if shorter]
    #[arg(long, value_name = "D", value_parser = values::duration, allow_negative_numbers = true)]
    pub kill_after: Option<Duration>,
    /// Leave processes of the command behind, and release
    #[arg(long)]
    pub leave_children: bool,
    /// Keep the command in lockkeeper's process group
    #[arg(long)]
    pub foreground: bool,
}

/// What to do with the command when its lock is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum OnLost {
    /// TERM, and KILL after --kill-after
    Term,
    /// KILL at once
    Kill,
    /// Nothing but a line
    Warn,
}

/// What to do when the engine cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnUnreachable {
    /// Exit 69
    Fail,
    /// Run the command unlocked, and say so
    Run,
}
