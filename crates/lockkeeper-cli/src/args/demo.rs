//! The options of `demo`.

use clap::{Args as ClapArgs, Subcommand};

/// Show what a lock is for
#[derive(ClapArgs, Debug)]
pub struct Args {
    /// Which story
    #[command(subcommand)]
    pub story: Story,
}

/// The stories.
#[derive(Subcommand, Debug)]
pub enum Story {
    /// Processes sell from one stock record: unguarded, with a lock inside each process, and with lockkeeper
    Oversell(Oversell),
}

/// Sell a stock with many processes, with and without a lock
#[derive(ClapArgs, Debug)]
pub struct Oversell {
    /// How many pieces there are
    #[arg(long, value_name = "N", default_value_t = 50)]
    pub stock: u64,
    /// How many processes sell them
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub workers: u32,
    /// How many customers order one
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub orders: u32,
}
