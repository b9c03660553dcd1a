//! Torture: real processes, real servers, a seeded schedule of faults, a judgement and a picture.
//!
//! The controller ([`run`]) starts what is tortured (`arena`), a resource with a fenced and an unfenced register a lock
//! (`resource`), client processes that run the shipped library (`client`), and a nemesis that draws faults from a seed
//! (`nemesis`). Everybody records a history; [`crate::check`] judges it; [`picture`] draws it.

mod arena;
mod client;
mod controller;
mod nemesis;
pub mod picture;
mod random;
mod resource;
mod verdict;

pub use client::client_main;
pub use controller::run;
pub use random::Random;

use std::path::PathBuf;
use std::time::Duration;

/// The hidden subcommand under which the program starts itself as a client.
pub const CLIENT_WORD: &str = "__torture-client";

/// What to do for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is tortured: `file:auto`, or a URL, which gets only the faults that need no server control.
    pub url: String,
    /// For how long.
    pub time: Duration,
    /// How many client processes.
    pub clients: u32,
    /// How many tasks in each.
    pub tasks: u32,
    /// How many names they contend for.
    pub names: u32,
    /// Which faults; empty = all that the arena has.
    pub faults: Vec<String>,
    /// What the schedule is drawn from.
    pub seed: u64,
    /// Where the picture goes.
    pub report: Option<PathBuf>,
    /// One JSON line at the end instead of words.
    pub json: bool,
    /// Draw the picture for a terminal as well.
    pub ascii: bool,
    /// Show progress on stderr.
    pub progress: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: "file:auto".to_owned(),
            time: Duration::from_secs(30),
            clients: 4,
            tasks: 4,
            names: 4,
            faults: Vec::new(),
            seed: 1,
            report: None,
            json: false,
            ascii: false,
            progress: false,
        }
    }
}
