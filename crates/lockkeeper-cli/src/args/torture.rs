//! The options of `torture`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::values::duration;

/// Break it: real processes under a seeded schedule of faults
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// What to torture: file:auto or redis:auto (redis:auto?durable=true with all on disk), which start their own servers, or
    /// an engine's URL, which gets only the faults that need no control over its server [default: file:auto, unless the
    /// environment or a file chooses an engine: that one must be named]
    #[arg(value_name = "URL")]
    pub target: Option<String>,
    /// For how long
    #[arg(long, value_name = "DURATION", default_value = "30", value_parser = duration)]
    pub seconds: Duration,
    /// How many client processes
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub clients: u32,
    /// How many tasks in each
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub tasks: u32,
    /// How many names they contend for
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub names: u32,
    /// Which faults, with commas between [default: all; none: no fault]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub faults: Vec<String>,
    /// What the schedule of faults is drawn from
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// The schedule of an earlier run again: the same faults, not the same interleaving
    #[arg(long, value_name = "SEED", conflicts_with = "seed")]
    pub replay: Option<u64>,
    /// Write a picture of what happened, one HTML file
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Draw what happened on the terminal
    #[arg(long)]
    pub ascii: bool,
}
