//! `lockkeeper elect`.

use std::ffi::OsString;
use std::time::Duration;

use clap::value_parser;

use super::{common, run, values};

/// Run a command while leader of NAME
#[derive(clap::Args, Debug)]
#[command(override_usage = "lockkeeper elect NAME [OPTIONS] -- CMD ARGS…")]
pub struct Args {
    /// The election's name: any text of up to 1 KiB
    #[arg(value_name = "NAME", value_parser = value_parser!(OsString))]
    pub name: OsString,
    /// What others see as the leader [default: the host's name and this process's id]
    #[arg(long, help_heading = common::LOCK, value_name = "ID")]
    pub id: Option<String>,
    /// A text that others see beside the leader
    #[arg(long, help_heading = common::LOCK, value_name = "TEXT")]
    pub label: Option<String>,
    /// Stop waiting, with exit 69, once the engine has not answered for this long [default: wait
    /// on]; a leader that stands again waits until it has reached the engine, however long
    #[arg(
        long,
        help_heading = common::WAITING,
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub unreachable_after: Option<Duration>,
    /// How long the lease lasts without renewal, 200ms to 24h [default: 30s]; changes nothing on
    /// file; on zookeeper and with postgres' layout=session it is the URL's session_timeout that
    /// does
    #[arg(
        long,
        help_heading = common::LEASE,
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub ttl: Option<Duration>,
    /// Stand for election again when the command has ended, and run it again
    #[arg(long, help_heading = run::COMMAND)]
    pub again: bool,
    #[command(flatten)]
    pub stop: run::Stop,
    /// The command and its arguments, exactly as given
    #[arg(
        last = true,
        help_heading = None::<&str>,
        value_name = "CMD",
        value_parser = value_parser!(OsString),
    )]
    pub argv: Vec<OsString>,
}

impl Args {
    /// The options that it shares with the others.
    pub fn lock(&self) -> common::Lock {
        common::Lock {
            shared: false,
            exclusive: true,
            permits: None,
            nonblock: false,
            wait: None,
            unreachable_after: self.unreachable_after,
            conflict_exit_code: 75,
            ttl: self.ttl,
            no_renew: false,
            label: self.label.clone(),
        }
    }
}
