//! `lockkeeper acquire`.

use std::ffi::OsString;
use std::time::Duration;

use clap::value_parser;

use super::{common, values};

/// Hold NAME until stdin closes, a time is over, or a signal comes
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The lock's name: any text of up to 1 KiB
    #[arg(value_name = "NAME", value_parser = value_parser!(OsString))]
    pub name: OsString,
    #[command(flatten)]
    pub lock: common::Lock,
    /// Release it after this long
    #[arg(
        long = "for",
        help_heading = common::LEASE,
        value_name = "D",
        value_parser = values::duration,
        allow_negative_numbers = true,
    )]
    pub hold_for: Option<Duration>,
    /// Exit with this code when the lock was lost
    #[arg(
        long,
        help_heading = common::LEASE,
        value_name = "CODE",
        value_parser = value_parser!(u8),
        default_value_t = 79,
        allow_negative_numbers = true,
    )]
    pub lost_exit_code: u8,
}
