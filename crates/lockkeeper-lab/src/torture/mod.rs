//! Torture: real processes, real servers, a seeded schedule of faults, a judgement and a picture.
//!
//! The controller ([`run`]) starts what is tortured (`arena`), a resource with a fenced and an
//! unfenced register a lock (`resource`), client processes (`stage`, `crew`, and inside of them
//! `client`) that run the shipped library (`shipped`), and a nemesis that draws faults from a seed
//! (`nemesis`, `fault`, `links`, `network`), which are begun and ended (`harm`). Everybody records
//! a history; [`crate::check`] and the judges beside it (`judge`) judge it; what a fault is
//! documented to do is expected (`excuse`), all else is not (`verdict`); `picture` draws it.

pub(crate) mod arena;
mod background;
pub(crate) mod broken;
pub(crate) mod client;
mod controller;
mod crew;
mod excuse;
mod exec;
pub(crate) mod fault;
mod harm;
pub(crate) mod links;
mod loss;
mod nemesis;
pub(crate) mod network;
pub(crate) mod orders;
mod picture;
pub(crate) mod pulse;
mod random;
pub(crate) mod raw;
mod resource;
mod shipped;
mod stage;
pub(crate) mod storm;
mod timetable;
mod verdict;
mod waiting;

pub use crate::judge::Conviction;
pub(crate) use client::client_main;
pub use controller::run;
pub use random::Random;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::judge::ns;

/// The kind of helper that is a client.
pub(crate) const HELPER: &str = "torture-client";

/// Whose lock is tortured.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Subject {
    /// This library's.
    #[default]
    Shipped,
    /// One of the deliberately broken ones; [`list_clients`] has their names.
    Broken(String),
    /// Somebody else's, behind a program that speaks lines (docs/torture.md).
    Exec(String),
}

impl Subject {
    /// From the word of the command line: `lockkeeper`, `broken:NAME`, `exec:COMMAND`.
    ///
    /// # Errors
    /// What is wrong with it, and what there is.
    pub fn parse(word: &str) -> Result<Self, String> {
        match word.split_once(':') {
            None if word == "lockkeeper" => Ok(Self::Shipped),
            Some(("broken", name)) if broken::find(name).is_some() => {
                Ok(Self::Broken(name.to_owned()))
            }
            Some(("broken", name)) => Err(format!(
                "there is no broken client {name:?}: lockkeeper torture --list-clients lists them"
            )),
            Some(("exec", command)) if !command.trim().is_empty() => {
                Ok(Self::Exec(command.to_owned()))
            }
            _ => Err(format!(
                "{word:?} is not a client: lockkeeper, broken:NAME (lockkeeper torture \
                 --list-clients lists them), or exec:COMMAND"
            )),
        }
    }

    /// What is tortured with it unless something is named.
    pub fn usual_url(&self) -> &'static str {
        self.broken().map_or(crate::engines::USUAL, |broken| broken.url)
    }

    /// How reports call it. A command may hold a secret, and is not repeated.
    fn shown(&self) -> String {
        match self {
            Self::Shipped => "lockkeeper".to_owned(),
            Self::Broken(name) => format!("broken:{name}"),
            Self::Exec(_) => "exec".to_owned(),
        }
    }

    /// What [`Subject::parse`] reads, with a word for a command.
    fn argument(&self) -> Option<String> {
        match self {
            Self::Shipped => None,
            Self::Broken(_) => Some(self.shown()),
            Self::Exec(_) => Some("exec:COMMAND".to_owned()),
        }
    }

    fn broken(&self) -> Option<&'static broken::Broken> {
        if let Self::Broken(name) = self { broken::find(name) } else { None }
    }
}

/// Tells the user something at once.
fn say(text: &str) {
    eprintln!("lockkeeper: torture: {text}");
}

/// Prints the clients that can be tortured, and what is wrong with those that are broken.
///
/// # Errors
/// When `out` cannot be written.
pub fn list_clients(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{:<32} this library", "lockkeeper")?;
    writeln!(
        out,
        "{:<32} another lock, behind a program that speaks lines (docs/torture.md)",
        "exec:COMMAND"
    )?;
    for broken in broken::all() {
        writeln!(out, "{:<32} {}", format!("broken:{}", broken.name), broken.what)?;
    }
    Ok(())
}

/// What to do for how long.
#[derive(Clone, Debug)]
pub struct Options {
    /// What is tortured: `file:auto`, `redis:auto`, or a URL, which gets only the faults that need
    /// no server control.
    pub url: String,
    /// Whose client.
    pub client: Subject,
    /// For how long; 30 s, or until a broken client is convicted, for at most 60 s.
    pub time: Option<Duration>,
    /// How many client processes; 4 unless the client has a number of its own, and so with the next
    /// two.
    pub clients: Option<u32>,
    /// How many tasks in each; 8.
    pub tasks: Option<u32>,
    /// How many names they contend for; 8.
    pub names: Option<u32>,
    /// Which faults; empty = all that the arena has, or those that convict a broken client.
    pub faults: Vec<String>,
    /// What the schedule is drawn from.
    pub seed: u64,
    /// Where the picture goes.
    pub report: Option<PathBuf>,
    /// How a file is written that the user named; a failure is a sentence for that user.
    pub write: fn(&Path, &str) -> Result<(), String>,
    /// How a word is written so that a shell reads it as one.
    pub quote: fn(&str) -> String,
    /// One JSON line at the end instead of words.
    pub json: bool,
    /// Draw the picture for a terminal as well.
    pub ascii: bool,
    /// Show progress on stderr.
    pub progress: bool,
}

impl Options {
    /// The command that plays the same schedule again. A URL or a command that was given may hold a
    /// secret, and is not repeated.
    fn replay(&self, time: Duration, [clients, tasks, names]: [u32; 3]) -> String {
        let mut words = vec!["lockkeeper".to_owned(), "torture".to_owned()];
        let ours = self.url.split('?').next().is_some_and(|start| start.ends_with(":auto"));
        words.push(if ours { (self.quote)(&self.url) } else { "URL".to_owned() });
        if let Some(client) = self.client.argument() {
            words.extend(["--client".to_owned(), client]);
        }
        let seconds = time.as_secs_f64();
        words.push(format!(
            "--seconds {seconds} --clients {clients} --tasks {tasks} --names {names}"
        ));
        if !self.faults.is_empty() {
            words.extend(["--faults".to_owned(), (self.quote)(&self.faults.join(","))]);
        }
        words.push(format!("--replay {}", self.seed));
        words.join(" ")
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            url: crate::engines::USUAL.to_owned(),
            client: Subject::default(),
            time: None,
            clients: None,
            tasks: None,
            names: None,
            faults: Vec::new(),
            seed: 1,
            report: None,
            write: |file, text| {
                std::fs::write(file, text).map_err(|e| format!("{}: {e}", file.display()))
            },
            quote: str::to_owned,
            json: false,
            ascii: false,
            progress: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_that_replays_a_run_has_everything_that_the_schedule_hangs_on_and_no_secret() {
        let quote = |word: &str| {
            if word.contains(['?', ' ']) { format!("'{word}'") } else { word.to_owned() }
        };
        let run = |url: &str, client: &str, faults: &[&str]| {
            let faults = faults.iter().map(|f| (*f).to_owned()).collect();
            let options = Options {
                url: url.to_owned(),
                client: Subject::parse(client).unwrap(),
                faults,
                seed: 7,
                quote,
                ..Options::default()
            };
            options.replay(Duration::from_millis(2_500), [3, 1, 2])
        };
        let same = "--seconds 2.5 --clients 3 --tasks 1 --names 2";
        assert_eq!(
            run("redis:auto", "lockkeeper", &[]),
            format!("lockkeeper torture redis:auto {same} --replay 7")
        );
        assert_eq!(
            run("redis:auto?durable=true", "exec:PASS=secret ./lock", &["flush", "stop-client"]),
            format!(
                "lockkeeper torture 'redis:auto?durable=true' --client exec:COMMAND {same} \
                 --faults flush,stop-client --replay 7"
            )
        );
        assert_eq!(
            run("redis://:secret@h", "lockkeeper", &["none"]),
            format!("lockkeeper torture URL {same} --faults none --replay 7")
        );
    }
}
