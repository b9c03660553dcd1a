//! Torture: real processes, real servers, a seeded schedule of faults, a judgement and a picture.
//!
//! The controller ([`run`]) starts what is tortured (`arena`), a resource with a fenced and an unfenced register a lock
//! (`resource`), client processes (`crew`, and inside of them `client`) that run the shipped library (`shipped`), and a nemesis
//! that draws faults from a seed (`nemesis`, `fault`, `links`). Everybody records a history; [`crate::check`] judges it; what a
//! fault is documented to do is expected (`excuse`), all else is not (`verdict`); [`picture`] draws it.

mod arena;
mod client;
mod controller;
mod crew;
mod excuse;
mod fault;
mod links;
mod nemesis;
mod orders;
pub mod picture;
mod random;
mod resource;
mod resp;
mod shipped;
mod storm;
mod verdict;

pub use client::client_main;
pub use controller::run;
pub use random::Random;

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The hidden subcommand under which the program starts itself as a client.
pub const CLIENT_WORD: &str = "__torture-client";

/// Whose lock is tortured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// This library's.
    #[default]
    Shipped,
}

/// What to do for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is tortured: `file:auto`, `redis:auto`, or a URL, which gets only the faults that need no server control.
    pub url: String,
    /// Whose client.
    pub client: Subject,
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
            client: Subject::default(),
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
