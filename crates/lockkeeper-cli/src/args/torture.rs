//! The options of `torture`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args as ClapArgs;

use super::values::duration;

/// Try to break a lock: real processes under a seeded schedule of faults
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// What to torture: file:auto, redis:auto, redis:auto?durable=true, redis+cluster:auto,
    /// redis+sentinel:auto, redlock:auto, zk:auto, zk:auto?nodes=3 or postgres:auto, which start
    /// their own servers, or an engine's URL, which gets only the faults that need no control over
    /// its server [default: what a broken client is for, else file:auto; an engine that the
    /// environment or a file chooses must be named here]
    #[arg(value_name = "URL")]
    pub target: Option<String>,
    /// Whose lock: lockkeeper, broken:NAME, one of those that are known to be wrong, or
    /// exec:COMMAND, a program that speaks lines (docs/torture.md)
    #[arg(
        long,
        value_name = "CLIENT",
        default_value = "lockkeeper",
        value_parser = lockkeeper_lab::torture::Subject::parse,
    )]
    pub client: lockkeeper_lab::torture::Subject,
    /// List the clients that can be tortured, and what is wrong with them
    #[arg(long)]
    pub list_clients: bool,
    /// For how long [default: 30; a broken client until it is convicted, 60 at most]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub seconds: Option<Duration>,
    /// How many client processes [default: 4; a broken client has its own three numbers]
    #[arg(long, value_name = "N")]
    pub clients: Option<u32>,
    /// How many tasks in each [default: 8]
    #[arg(long, value_name = "N")]
    pub tasks: Option<u32>,
    /// How many names they contend for [default: 8]
    #[arg(long, value_name = "N")]
    pub names: Option<u32>,
    /// Which faults, with commas between [default: all, or those that convict a broken client;
    /// none: no fault]
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
