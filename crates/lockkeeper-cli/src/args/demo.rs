//! The options of `demo`.

use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};

use super::values::{self, Stock};
use crate::failure::Failure;

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
    /// Processes sell from one stock record: unguarded, with a lock inside each process, and with
    /// lockkeeper
    Oversell(Oversell),
    /// Threads or processes want one lock: who waits behind whom, and whose release wakes whom
    Contenders(Contenders),
}

/// Sell a stock with many processes, with and without a lock
#[derive(ClapArgs, Debug)]
#[command(after_help = super::help::end("demo oversell"))]
pub struct Oversell {
    /// How many pieces there are [default: 50]; the URL of a PostgreSQL database keeps them there,
    /// wherever the lock is. May be given twice, once as each
    #[arg(long, value_name = "N|URL", value_parser = values::stock)]
    pub stock: Vec<Stock>,
    /// How many processes sell them
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub workers: u32,
    /// How many customers order one
    #[arg(long, value_name = "N", default_value_t = 400)]
    pub orders: u32,
}

impl Oversell {
    /// How many pieces there are, and where they are kept, as far as `--stock` says.
    ///
    /// # Errors
    /// When it says one of them twice.
    pub fn stock(&self) -> Result<(Option<u64>, Option<String>), Failure> {
        let (mut pieces, mut store) = (None, None);
        for said in &self.stock {
            let twice = match said {
                Stock::Pieces(number) => pieces.replace(*number).is_some(),
                Stock::At(url) => store.replace(url.clone()).is_some(),
            };
            if twice {
                let text = "--stock is given twice: it takes one number and one URL";
                return Err(Failure::usage(text));
            }
        }
        Ok((pieces, store))
    }
}

/// Show who waits behind whom for one lock, and whose release wakes whom
#[derive(ClapArgs, Debug)]
#[command(after_help = super::help::end("demo contenders"))]
pub struct Contenders {
    /// How many threads of one process contend
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub threads: u32,
    /// Processes contend, in place of threads; 10 of them unless N says otherwise
    #[arg(
        long,
        value_name = "N",
        num_args = 0..=1,
        default_missing_value = "10",
        conflicts_with = "threads",
    )]
    pub processes: Option<u32>,
    /// How long each of them holds the lock
    #[arg(long, value_name = "D", value_parser = values::duration, default_value = "2s")]
    pub hold: Duration,
}
