//! `lockkeeper demo contenders`: threads or processes on one lock, who waits behind whom, and whose
//! release wakes whom.
//!
//! `mod` tells the story, `line` is who waits and who holds as far as it was told, `worker` is what
//! each process does, `show` is what people and programs see of it.

mod line;
mod show;
pub(crate) mod worker;

use std::io::Write;
use std::time::{Duration, Instant};

use lockkeeper::engine::Keep;
use lockkeeper::{Ability, Description, Error, ErrorKind, Kind, Locks, Result, Waiter};

use super::stock::block_on;
use super::{describe, interruptible, started};
use crate::bench::{Traces, own_word};
use crate::engines;
use crate::engines::own::Own;
use crate::helper::{Crew, Program};
use crate::scratch::Scratch;
use line::Line;
use show::Shown;
use worker::{Said, Told};

/// The kind of helper that this module starts.
pub(crate) const HELPER: &str = "contenders";

const CONTENDERS_MAX: u32 = 64;
const HOLD_MAX: Duration = Duration::from_secs(3600);
/// How long nothing may be heard, beyond the time for which the lock is held.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a contender may take to be seen in line, and how often it is looked for.
const IN_LINE_WITHIN: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Who contends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contenders {
    /// So many threads of one process: they queue in memory.
    Threads(u32),
    /// So many processes: they stand in the engine's line, where it has one.
    Processes(u32),
}

impl Contenders {
    fn count(self) -> u32 {
        match self {
            Self::Threads(count) | Self::Processes(count) => count,
        }
    }
}

/// What to play.
#[derive(Clone, Debug)]
pub struct Options {
    /// The engine's URL.
    pub url: String,
    /// Who contends.
    pub contenders: Contenders,
    /// How long each holds the lock.
    pub hold: Duration,
    /// One JSON object an event instead of lines for people.
    pub json: bool,
    /// How the program starts itself; `None` as [`Program::this`] says.
    pub program: Option<Program>,
}

impl Options {
    fn check(&self) -> Result<()> {
        let wrong = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
        let (option, count) = match self.contenders {
            Contenders::Threads(count) => ("--threads", count),
            Contenders::Processes(count) => ("--processes", count),
        };
        if !(2..=CONTENDERS_MAX).contains(&count) {
            return wrong(format!("{option} {count} is not between 2 and {CONTENDERS_MAX}"));
        }
        if self.hold > HOLD_MAX {
            return wrong("--hold is one hour at most".to_owned());
        }
        let registered = engines::registration(&self.url)?;
        if matches!(self.contenders, Contenders::Processes(_)) && registered.keep == Keep::Process {
            return wrong(format!(
                "the engine {}: is private to one process: choose another engine, or --threads",
                registered.engine
            ));
        }
        Ok(())
    }
}

/// Plays the story and answers the exit code: 0 when one held at a time, everybody had a turn and
/// no token went back; else 1, and 128 + N after signal N.
///
/// # Errors
/// `InvalidArgument` for numbers out of range; what the engine says.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<u8> {
    options.check()?;
    let own = started(&options.url, !options.json)?;
    let url = own.as_ref().map_or(options.url.as_str(), Own::url).to_owned();
    let options = Options { url, ..options.clone() };
    interruptible(|| play(&options, out))
}

/// What the engine keeps about the lock is removed with this.
struct Cleared<'a> {
    url: &'a str,
    name: &'a str,
    _traces: Option<Traces>,
}

impl<'a> Cleared<'a> {
    fn afterwards(url: &'a str, name: &'a str) -> Result<Self> {
        let is_private = engines::registration(url)?.keep == Keep::Process;
        let traces = if !is_private && engines::of(url).directory(url, name)?.is_none() {
            Some(Traces::names(url, name).map_err(|why| Error::new(ErrorKind::Refused, why))?)
        } else {
            None
        };
        Ok(Self { url, name, _traces: traces })
    }
}

impl Drop for Cleared<'_> {
    fn drop(&mut self) {
        // A file that cannot be removed stays idle until `lockkeeper gc`.
        let _ = engines::of(self.url).forget(self.url, self.name);
    }
}

fn play(options: &Options, out: &mut dyn Write) -> Result<bool> {
    let program = options.program.clone().map_or_else(Program::this, Ok)?;
    let about = describe(&options.url)?;
    // Nobody else has this name, and nothing under it stays. Dropped after the crew, so that nobody
    // is at work any more.
    let name = own_word("contenders");
    let _cleared = Cleared::afterwards(&options.url, &name)?;
    let place = Scratch::new("lockkeeper-demo-");
    let place = place.map_err(|e| {
        Error::new(
            ErrorKind::Refused,
            format!("cannot make a directory in {}: {e}", std::env::temp_dir().display()),
        )
    })?;
    let told = |numbers| Told {
        url: options.url.clone(),
        name: name.clone(),
        place: place.path().to_owned(),
        hold: options.hold,
        numbers,
    };
    let mut crew = Crew::new();
    let count = options.contenders.count();
    match options.contenders {
        Contenders::Threads(_) => _ = crew.start(&program, HELPER, &told((0..count).collect()))?,
        Contenders::Processes(_) => {
            for number in 0..count {
                crew.start(&program, HELPER, &told(vec![number]))?;
            }
        }
    }
    crew.hear_from_all("ready", PATIENCE)?;
    let pids = (0..count as usize)
        .map(|number| crew.pid(number).and_then(|pid| u32::try_from(pid.as_raw()).ok()))
        .collect();
    let story = Story {
        options,
        about: &about,
        name: &name,
        pids,
        crew,
        line: Line::default(),
        began: Instant::now(),
    };
    story.tell(Shown::new(options, &about, out))
}

/// Threads queue in memory, whatever the layout; processes need a layout that shows who waits.
/// Without a line nobody is woken as the next one: waiters look whether the lock is free. Where a
/// hold is a lease and no order is kept, nothing on the servers shows who waits.
fn has_line(options: &Options, about: &Description) -> bool {
    !matches!(options.contenders, Contenders::Processes(_))
        || about.can.has(Ability::Fair)
        || about.can.has(Ability::Identity) && !about.expiry.is_per_hold()
}

/// The story while it is told.
struct Story<'a> {
    options: &'a Options,
    about: &'a Description,
    name: &'a str,
    /// The process of each contender that has one of its own.
    pids: Vec<Option<u32>>,
    crew: Crew,
    line: Line,
    began: Instant,
}

impl Story<'_> {
    fn tell(mut self, mut shown: Shown<'_>) -> Result<bool> {
        shown.begin()?;
        let count = self.options.contenders.count();
        let has_line = self.has_line();
        let locks = if has_line && self.is_processes() {
            Some(block_on(Locks::open(&self.options.url))??)
        } else {
            None
        };
        self.ask(0)?;
        self.hear_until(&mut shown, |line| line.holds(0))?;
        for number in 1..count {
            self.ask(number)?;
            self.hear_until(&mut shown, |line| line.has_asked(number))?;
            let behind = match &locks {
                Some(locks) => Some(self.behind(locks, number)?),
                None => has_line.then(|| number - 1),
            };
            self.line.waits_behind(number, behind);
            shown.waits(number, behind, self.pid(number), self.began.elapsed())?;
        }
        // Everybody stands in line: the first one may let go as soon as it has held for its time.
        self.crew.tell(0, "go")?;
        self.hear_until(&mut shown, |line| line.ended() == count)?;
        self.crew.tell_all("end")?;
        if let Some(locks) = locks {
            // Nothing was locked, so nothing can stay unknown.
            let _ = block_on(locks.close());
        }
        let promised = self.line.is_as_promised(count);
        shown.end(&self.line, promised, self.began.elapsed())?;
        Ok(promised)
    }

    fn is_processes(&self) -> bool {
        matches!(self.options.contenders, Contenders::Processes(_))
    }

    fn has_line(&self) -> bool {
        has_line(self.options, self.about)
    }

    fn pid(&self, number: u32) -> Option<u32> {
        if self.is_processes() { self.pids.get(number as usize).copied().flatten() } else { None }
    }

    fn ask(&mut self, number: u32) -> Result<()> {
        let helper = if self.is_processes() { number as usize } else { 0 };
        self.crew.tell(helper, &format!("ask {number}"))
    }

    /// Takes in what is said, and shows what follows from it.
    fn hear_until(&mut self, shown: &mut Shown<'_>, enough: impl Fn(&Line) -> bool) -> Result<()> {
        while !enough(&self.line) {
            let said = self.crew.hear(PATIENCE + self.options.hold)?.line;
            let Some(said) = Said::read(&said) else { continue };
            for step in self.line.hear(said) {
                shown.step(&step, self.pid(step.contender), self.began.elapsed())?;
            }
        }
        Ok(())
    }

    /// Waits until the engine shows a contender in line; answers who is right before it.
    fn behind(&self, locks: &Locks, number: u32) -> Result<u32> {
        let until = Instant::now() + IN_LINE_WITHIN;
        loop {
            if crate::interrupt::caught().is_some() {
                return Err(Error::new(ErrorKind::Closed, "interrupted"));
            }
            let mut waiters = block_on(locks.status(Kind::Lock, self.name))??.waiters;
            waiters.sort_by_key(|waiter| (waiter.ahead, waiter.since));
            if let Some(behind) = self.before(&waiters, number) {
                return Ok(behind);
            }
            if Instant::now() > until {
                return Err(Error::new(
                    ErrorKind::TimedOut,
                    format!("process {number} does not stand in line after {IN_LINE_WITHIN:?}"),
                ));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Who is right before a contender, once it is seen: by its process where the layout tells it,
    /// else by their number.
    fn before(&self, waiters: &[Waiter], number: u32) -> Option<u32> {
        let contender = |waiter: &Waiter| {
            (0..number + 1).find(|n| waiter.pid.is_some() && self.pid(*n) == waiter.pid)
        };
        if waiters.iter().any(|waiter| waiter.pid.is_none()) {
            return (waiters.len() >= number as usize).then(|| number - 1);
        }
        let at = waiters.iter().position(|waiter| contender(waiter) == Some(number))?;
        match at.checked_sub(1) {
            None => Some(0),
            Some(before) => waiters.get(before).and_then(contender),
        }
    }
}
