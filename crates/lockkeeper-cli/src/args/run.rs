//! `lockkeeper run`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ValueEnum, value_parser};
use serde::{Deserialize, Serialize};

use super::{common, values};

/// Under the help of `run`.
const AFTER_HELP: &str = "\
Exit status: the command's own (128+N when signal N killed it); 75 not obtained; 79 lost and stopped; 124 --hold-at-most
was over; 64 the command line cannot be right; 69 the engine cannot be reached or refused us; 125 our own failure;
126 not executable; 127 not found.

A server that cannot be reached at the start is tried again for 10 s, or for -w. Who stands in line waits on through an
outage and says so after 10 s; --unreachable-after ends that wait with 69, or as --on-unreachable says.

The command is stopped before its lock can pass to another: on Redis and ZooKeeper by a guardian, a second lockkeeper
process that renews the lease, also when this one is killed or stopped. What no program can promise (a machine that stands
still, a daemon that left the command's process group) is what the fencing token is for: the command finds it in
LOCKKEEPER_TOKEN, and a resource that refuses a token smaller than the greatest it has seen is safe whatever happens.
See SAFETY.md.";

/// Hold NAME while a command runs
#[derive(clap::Args, Debug)]
#[command(after_help = AFTER_HELP, override_usage = "lockkeeper run NAME [OPTIONS] -- CMD ARGS…\n       lockkeeper run NAME [OPTIONS] -c 'TEXT'")]
pub struct Args {
    /// What is locked: any text of up to 1 KiB
    #[arg(value_name = "NAME", value_parser = value_parser!(OsString))]
    pub name: OsString,
    #[command(flatten)]
    pub lock: common::Lock,
    /// Give TEXT to $SHELL, else to /bin/sh, instead of a command after --
    #[arg(short, long, value_name = "TEXT", value_parser = value_parser!(OsString), allow_hyphen_values = true)]
    pub command: Option<OsString>,
    #[command(flatten)]
    pub stop: Stop,
    /// Keep the lock at least so long after it was granted
    #[arg(long, value_name = "D", value_parser = values::duration, allow_negative_numbers = true)]
    pub hold_at_least: Option<Duration>,
    /// Stop the command so long after the lock was granted; exit 124
    #[arg(long, value_name = "D", value_parser = values::duration, allow_negative_numbers = true)]
    pub hold_at_most: Option<Duration>,
    /// When the lock is lost: stop the command, kill it at once, or only say so
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnLost::Term)]
    pub on_lost: OnLost,
    /// Exit with this code when the lock was lost and the command stopped
    #[arg(long, value_name = "CODE", value_parser = value_parser!(u8), default_value_t = 79, allow_negative_numbers = true)]
    pub lost_exit_code: u8,
    /// When the engine cannot be reached: fail, or run the command without the lock
    #[arg(long, value_name = "WHAT", value_enum, default_value_t = OnUnreachable::Fail)]
    pub on_unreachable: OnUnreachable,
    /// Become the command instead of starting it; file engine only
    #[arg(short = 'F', long)]
    pub no_fork: bool,
    /// Do not hand the lock's file descriptor to the command; file engine only
    #[arg(short = 'o', long)]
    pub close: bool,
    /// Write the outcome to FILE as one JSON object
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// The command and its arguments, exactly as given
    #[arg(last = true, value_name = "CMD", value_parser = value_parser!(OsString))]
    pub argv: Vec<OsString>,
}

/// How the command is stopped, and what its process group is.
#[derive(clap::Args, Debug)]
pub struct Stop {
    /// From TERM to KILL [default: 5s, or a fifth of the ttl or session if that is shorter; at most
    /// a third]
    #[arg(long, value_name = "D", value_parser = values::duration, allow_negative_numbers = true)]
    pub kill_after: Option<Duration>,
    /// Release without the processes that the command left behind
    #[arg(long)]
    pub leave_children: bool,
    /// Keep the command in our own process group
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
