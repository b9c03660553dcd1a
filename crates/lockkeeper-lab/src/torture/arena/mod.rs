//! What is tortured: how clients reach it, what can be done to it, and what it promises.

pub(crate) mod clock;
pub(crate) mod disk;
mod given;

use std::path::Path;
use std::time::Duration;

use lockkeeper::{Ability, Class, Expiry};

use super::fault::Fault;
use super::links::Links;
use super::network::Namespace;
use crate::engines;
use crate::history::Writer;

/// What an engine says about itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) engine: &'static str,
    pub(crate) class: Class,
    /// How a hold ends that nobody gives back.
    pub(crate) expiry: Expiry,
    /// T, the recovery that is promised after a death.
    pub(crate) recovery: Duration,
    /// Whether a line keeps the order of those who wait for a lock, and for permits.
    pub(crate) fair: bool,
    pub(crate) fair_permits: bool,
    /// Whether every hold but those of permits has a fencing token.
    pub(crate) fenced: bool,
}

impl About {
    pub(crate) fn of(url: &str) -> Result<Self, (u8, String)> {
        let locks = lockkeeper::blocking::Locks::open(url)
            .map_err(|e| (e.kind().exit_code(), e.to_string()))?;
        let about = locks.describe();
        let _ = locks.close();
        let (fair, fair_permits) =
            (about.can.has(Ability::Fair), about.can.has(Ability::FairPermits));
        let (engine, class, expiry) = (about.engine, about.class, about.expiry);
        let (recovery, fenced) = (about.recovery, about.fenced);
        Ok(Self { engine, class, expiry, recovery, fair, fair_permits, fenced })
    }
}

/// Where nothing better is known: longer than any place lives without a sign of life.
const LINGER: Duration = Duration::from_secs(20);

/// Why a fault did not begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failed {
    /// There was nobody that it could hit, or it could not be done, and nothing of it is left.
    Undone(String),
    /// It is not known how much of it was done: that has to be mended.
    Half(String),
}

impl From<&str> for Failed {
    fn from(why: &str) -> Self {
        Self::Undone(why.to_owned())
    }
}

impl From<String> for Failed {
    fn from(why: String) -> Self {
        Self::Undone(why)
    }
}

/// What became of a fault that began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mended {
    /// It is over.
    Ended,
    /// It turned out that it had hit nobody.
    HitNobody(&'static str),
}

/// See the module. Dropping it stops its servers.
pub(crate) trait Arena {
    /// How client `number` reaches it.
    fn url(&mut self, number: u32) -> Result<String, String>;
    /// Where its processes have to live for that, if not where everybody does. It ends with the
    /// arena, and they have to end before.
    fn home(&mut self, number: u32) -> Result<Option<&Namespace>, String> {
        self.links().map_or(Ok(None), |links| links.home(number))
    }
    /// The links between its clients and its servers, if it has any.
    fn links(&mut self) -> Option<&mut Links> {
        None
    }
    /// What it promises.
    fn about(&self) -> About;

    /// Whether it is to be measured how long a commit takes, as a grant to a waiter is one.
    fn commits(&self) -> bool {
        false
    }
    /// Told before any client starts which faults will be asked of it, that no others will, and
    /// what is random in them hangs on.
    fn is_to_suffer(&mut self, faults: &[&'static str], seed: u64) {
        if let Some(links) = self.links() {
            links.are_to_suffer(faults, seed);
        }
    }
    /// The faults it has, besides those that need no control over a server.
    fn faults(&self) -> Vec<Fault> {
        Vec::new()
    }
    /// Begins a fault; it lasts until [`Arena::mend`].
    fn strike(&mut self, fault: &'static str, _client: u32) -> Result<(), Failed> {
        Err(format!("nothing here knows how to begin {fault}").into())
    }
    /// Ends a fault that began, or what was done of one that began by half. After an error it is
    /// under way still, and may be tried again.
    fn mend(&mut self, fault: &'static str, _client: u32) -> Result<Mended, String> {
        Err(format!("nothing here knows how to end {fault}"))
    }
    /// Why there is nothing to torture any more: a server that no fault has ended has ended.
    fn lost(&mut self) -> Option<String> {
        None
    }
    /// When it was seen to be there last, on the clock of histories.
    fn there(&self) -> u64 {
        Writer::now()
    }
    /// The same as [`Arena::lost`] at the end: what may only have been slow until now is waited
    /// for.
    fn lost_at_the_end(&mut self) -> Option<String> {
        self.lost()
    }
    /// How many requests the server has answered, where it can be asked.
    fn calls(&mut self) -> Option<u64> {
        None
    }
    /// How long the place of somebody who died may stay in the engine.
    fn linger(&self) -> Duration {
        LINGER
    }
    /// Faults that this machine does not allow, and why.
    fn left_out(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Opens the arena that the URL names; `dir` is for its files. The number is the exit code.
pub(crate) fn open(url: &str, dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
    let (start, options) = url.split_once('?').unwrap_or((url, ""));
    let Some(scheme) = start.strip_suffix(":auto") else {
        return Ok(Box::new(given::Given::open(url)?));
    };
    let Some(lab) = engines::started_by(scheme) else {
        let autos = engines::autos();
        return Err((64, format!("{start}: torture starts its own server for {autos}")));
    };
    lab.arena(options, dir)
}

/// Takes one option out of those of an `auto` URL; the others are the engine's.
pub(crate) fn take<'a>(options: &'a str, wanted: &str) -> (Option<&'a str>, String) {
    let mut found = None;
    let mut others = Vec::new();
    for option in options.split('&').filter(|o| !o.is_empty()) {
        match option.split_once('=') {
            Some((name, value)) if name == wanted => found = Some(value),
            _ => others.push(option),
        }
    }
    (found, others.join("&"))
}

/// Whether an option is among them.
pub(crate) fn has(options: &str, wanted: &str) -> bool {
    options.split('&').any(|o| o.split('=').next() == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_of_torture_is_taken_and_the_engines_stay() {
        assert_eq!(
            take("ttl=1s&durable=true&drift=5%", "durable"),
            (Some("true"), "ttl=1s&drift=5%".to_owned())
        );
        assert_eq!(take("", "durable"), (None, String::new()));
        assert!(has("a=1&ttl=2", "ttl") && !has("attl=2", "ttl"));
    }
}
