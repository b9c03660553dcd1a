//! The options of `bench`.

use std::time::Duration;

use clap::{Args as ClapArgs, value_parser};

/// Measure engines beside the same job without lockkeeper
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// The engines to measure; file:auto, postgres:auto, redis:auto, redis+cluster:auto,
    /// redis+sentinel:auto, redlock:auto and zk:auto start one for the measurement [default:
    /// file:auto and memory]
    #[arg(value_name = "URL")]
    pub urls: Vec<String>,
    /// For how long, everything together
    #[arg(
        long,
        value_name = "N",
        default_value_t = 40,
        value_parser = value_parser!(u64).range(1..=86_400),
    )]
    pub seconds: u64,
    /// One row only: uncontended, turn, many-names, one-name, process-handoff, places, leases, run
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Exit 1 when a target is missed
    #[arg(long)]
    pub strict: bool,
}

impl Args {
    /// The time for everything.
    pub fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}
