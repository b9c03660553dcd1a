//! Options that several subcommands share.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, value_parser};
use lockkeeper::{ErrorKind, Mode, Name, Require, Result};

use super::values;

/// Where the engine comes from, under the help of every command.
pub const AFTER_HELP: &str = "\
The engine is the one of --url, else of LOCKKEEPER_URL, else of url = \"…\" in \
    ~/.config/lockkeeper/config.toml, else in
/etc/lockkeeper/config.toml, else kernel file locks in LOCKKEEPER_DIR, $XDG_STATE_HOME/lockkeeper or
~/.local/state/lockkeeper; without HOME in $STATE_DIRECTORY/lockkeeper, or the home of the password
database. Paths are absolute. `lockkeeper doctor` says which one it is and what it promises.";

/// The groups of options in the help of commands with many.
pub const LOCK: &str = "What to lock";
pub const WAITING: &str = "Waiting";
pub const LEASE: &str = "Lease";
pub const OUTPUT: &str = "Engine and output";

/// Options that stand before or after the subcommand.
#[derive(Args, Debug, Default, Clone)]
#[command(next_help_heading = OUTPUT)]
pub struct Global {
    /// The engine, such as redis://host?password_file=PATH
    #[arg(long, value_name = "URL", global = true)]
    pub url: Option<String>,
    /// What the engine must promise: hosts, timed, fenced
    #[arg(
        long,
        value_name = "WHAT",
        global = true,
        value_delimiter = ',',
        value_parser = values::require,
    )]
    pub require: Vec<Require>,
    /// Say nothing but errors
    #[arg(short, long, global = true)]
    pub quiet: bool,
    /// Say more
    #[arg(short, long, global = true)]
    pub verbose: bool,
    /// Print JSON, one object a line
    #[arg(long, global = true)]
    pub json: bool,
}

/// In which way a name is asked for, and for how long.
#[derive(Args, Debug)]
#[command(next_help_heading = LOCK)]
pub struct Lock {
    /// Hold it with other readers
    #[arg(short, long, conflicts_with = "permits", overrides_with = "exclusive")]
    pub shared: bool,
    /// Hold it alone (the default)
    #[arg(
        short = 'x',
        visible_short_alias = 'e',
        long,
        conflicts_with = "permits",
        overrides_with = "shared"
    )]
    pub exclusive: bool,
    /// Hold N permits of a semaphore with the limit MAX
    #[arg(long, value_name = "N/MAX", value_parser = values::permits, allow_hyphen_values = true)]
    pub permits: Option<Mode>,
    /// Do not wait
    #[arg(help_heading = WAITING, short = 'n', long, visible_alias = "nb")]
    pub nonblock: bool,
    /// At most 2s, 500ms, 1h30m
    #[arg(
        help_heading = WAITING,
        short,
        long,
        visible_alias = "timeout",
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub wait: Option<Duration>,
    /// Exit 69 once the engine is silent this long
    #[arg(
        help_heading = WAITING,
        long,
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub unreachable_after: Option<Duration>,
    /// Exit code when not obtained
    #[arg(
        help_heading = WAITING,
        short = 'E',
        long,
        value_name = "CODE",
        value_parser = value_parser!(u8),
        default_value_t = 75,
        allow_negative_numbers = true,
    )]
    pub conflict_exit_code: u8,
    /// Length of the lease, 200ms to 24h [default: 30s]
    #[arg(
        help_heading = LEASE,
        long,
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub ttl: Option<Duration>,
    /// Do not renew the lease
    #[arg(help_heading = LEASE, long)]
    pub no_renew: bool,
    /// A text that others see beside the holder
    #[arg(long, value_name = "TEXT")]
    pub label: Option<String>,
}

impl Lock {
    /// The mode that the options ask for.
    pub fn mode(&self) -> Mode {
        self.permits.unwrap_or(if self.shared { Mode::Shared } else { Mode::Exclusive })
    }

    /// How long to wait; zero for not at all, `None` for ever.
    pub fn patience(&self) -> Option<Duration> {
        if self.nonblock { Some(Duration::ZERO) } else { self.wait }
    }
}

/// Reads a lock's name.
///
/// # Errors
/// [`ErrorKind::InvalidName`] for what no lock can be called.
pub fn name(text: &OsString) -> Result<Name> {
    match text.to_str() {
        Some(text) => Name::new(text),
        None => Err(lockkeeper::Error::new(
            ErrorKind::InvalidName,
            "a lock's name is UTF-8 text, and this one is not: spell it in UTF-8",
        )),
    }
}
