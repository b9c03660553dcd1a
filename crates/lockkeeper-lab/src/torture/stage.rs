//! Who is there: what is tortured, the clients on it, and how they came to their ends. Faults are
//! begun and ended here (`harm` says when).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::arena::{Arena, Failed, Mended};
use super::crew::{CRASH, Crew, Fate};
use super::fault::{CROWD, Hits, KILL, STARVE, STOP};
use super::harm::World;
use super::nemesis::Planned;
use super::orders::Orders;
use super::pulse::Processes;
use super::{Conviction, Subject, say};
use crate::history::{Record, What, Writer};
use crate::judge::cost::{Sample, Spans};

/// Clients of a crowd are numbered from here on, and this many.
const CROWD_FROM: u32 = 1_000;
const CROWD_SIZE: u32 = 8;
/// How often servers are asked how much they have answered, where a crowd comes and goes.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);

/// How many of each there are.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub(super) clients: u32,
    pub(super) tasks: u32,
    pub(super) names: u32,
}

/// See the module.
pub(super) struct Stage {
    subject: Subject,
    seed: u64,
    size: Size,
    /// Where the histories are.
    dir: PathBuf,
    // Clients end before their servers.
    crew: Crew,
    pub(super) arena: Box<dyn Arena>,
    started: u32,
    /// Whether any client could be started.
    came: bool,
    nemesis: Writer,
    starving: Arc<AtomicBool>,
    /// What it costs the servers is measured in these, when a crowd is to come.
    spans: Spans,
    crowd_comes: bool,
    sampled: Instant,
    /// When what is tortured was seen to be there, and why it is gone.
    there: u64,
    gone: Option<String>,
    /// Of clients that ended otherwise than they were told to.
    crashes: Vec<Conviction>,
}

impl Stage {
    /// Without clients yet; `dir` is for their histories, `nemesis` is told of their ends, and
    /// `processes` of their processes.
    pub(super) fn new(
        subject: Subject,
        seed: u64,
        size: Size,
        dir: PathBuf,
        arena: Box<dyn Arena>,
        (nemesis, processes): (Writer, Processes),
    ) -> Self {
        Self {
            subject,
            seed,
            size,
            dir,
            crew: Crew::watched_by(processes),
            arena,
            started: 0,
            came: false,
            nemesis,
            starving: Arc::default(),
            spans: Spans::default(),
            crowd_comes: false,
            sampled: Instant::now(),
            there: Writer::now(),
            gone: None,
            crashes: Vec::new(),
        }
    }

    /// The clients come; those of a crowd later, if at all.
    pub(super) fn begin(&mut self, crowd_comes: bool) {
        self.crowd_comes = crowd_comes;
        (0..self.size.clients).for_each(|number| self.start(number));
        let sample = self.sample();
        self.spans.begin(false, sample);
    }

    /// Starts a client, or a killed one again under a new history.
    fn start(&mut self, number: u32) {
        match self.try_start(number) {
            Ok(()) => self.came = true,
            Err(error) => say(&format!("{} cannot be started: {error}", label(number))),
        }
    }

    fn try_start(&mut self, number: u32) -> Result<(), String> {
        let start = self.started;
        self.started += 1;
        let orders = Orders {
            subject: self.subject.clone(),
            url: self.arena.url(number)?,
            history: self.dir.join(format!("client-{number}-{start}.lkh")),
            socket: self.dir.join("resource"),
            label: label(number),
            tasks: self.size.tasks,
            names: self.size.names,
            seed: self.seed.wrapping_add(u64::from(start) << 20),
            recovery: self.arena.about().recovery,
        };
        self.crew.start(number, &orders, self.arena.home(number)?)
    }

    /// Whether what is tortured has gone for good: then there is nothing more to learn.
    pub(super) fn is_lost(&mut self) -> bool {
        let there = self.arena.there();
        self.look(there, |arena| arena.lost())
    }

    /// The same at the end.
    pub(super) fn look_at_the_end(&mut self) {
        let there = self.arena.there();
        self.look(there, |arena| arena.lost_at_the_end());
    }

    fn look(&mut self, there: u64, lost: fn(&mut dyn Arena) -> Option<String>) -> bool {
        if self.gone.is_none() {
            match lost(&mut *self.arena) {
                None => self.there = there,
                Some(why) => {
                    say(&format!("{why}; this torture ends here"));
                    self.gone = Some(why);
                }
            }
        }
        self.gone.is_some()
    }

    /// Whether there is nobody left who could learn anything; `returns` when one is about to come
    /// back.
    pub(super) fn is_deserted(&mut self, returns: bool) -> bool {
        if !self.crew.is_empty() || returns {
            return false;
        }
        if self.gone.is_none() {
            let why = if self.came { "no client is left" } else { "no client could be started" };
            say(&format!("{why}; this torture ends here"));
            self.gone = Some(why.to_owned());
        }
        true
    }

    /// Since when, and why, there is nothing to torture any more.
    pub(super) fn gone(&self) -> Option<(u64, &str)> {
        self.gone.as_deref().map(|why| (self.there, why))
    }

    /// Of clients that ended otherwise than they were told to.
    pub(super) fn crashes(&self) -> &[Conviction] {
        &self.crashes
    }

    /// Asks the servers now and then what they have answered.
    pub(super) fn measure(&mut self) {
        if self.crowd_comes && self.sampled.elapsed() > SAMPLE_EVERY {
            let sample = self.sample();
            self.spans.go_on(sample);
        }
    }

    /// What it costs the servers.
    pub(super) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Convicts clients that ended by themselves. Whether their locks went with them is for the
    /// checker, which hears of it now.
    pub(super) fn notice_ends(&mut self) {
        for (number, pid, how) in self.crew.ended() {
            self.convict(number, pid, &how);
        }
    }

    fn convict(&mut self, number: u32, pid: u64, fate: &Fate) {
        self.nemesis.write(Record::new(What::Exit).number(pid));
        let sentence = format!("{} (process {pid}) {}", label(number), fate.how);
        say(&sentence);
        if fate.no_room {
            self.gone.get_or_insert(sentence);
            return;
        }
        let at = Writer::now();
        self.crashes.push(Conviction {
            class: CRASH,
            name: String::new(),
            at,
            until: at,
            sentence,
        });
    }

    /// Lets clients finish, and makes those finish who do not.
    fn dismiss(&mut self, numbers: &[u32]) {
        self.notice_ends();
        numbers.iter().for_each(|number| self.crew.dismiss(*number));
        let nemesis = &self.nemesis;
        let mut before_kill = |pid| nemesis.write_text(KILL, Record::new(What::Kill).number(pid));
        let ended = self.crew.wait(numbers, &mut before_kill);
        for (number, pid, how) in ended {
            match how {
                Ok(()) => self.nemesis.write(Record::new(What::Exit).number(pid)),
                Err(how) => self.convict(number, pid, &how),
            }
        }
    }

    /// Everybody goes.
    pub(super) fn finish(&mut self) {
        self.starving.store(false, Ordering::Release);
        let sample = self.sample();
        self.spans.end(sample);
        self.dismiss(&self.crew.numbers());
    }

    /// What the servers have answered until now, where it matters.
    fn sample(&mut self) -> Option<Sample> {
        self.sampled = Instant::now();
        let calls = self.crowd_comes.then(|| self.arena.calls())??;
        Some(Sample { at: Writer::now(), calls })
    }
}

impl World for Stage {
    fn target(&mut self, planned: &Planned) -> Result<u64, String> {
        if matches!(planned.fault.hits, Hits::Client | Hits::Link) {
            self.crew.running(planned.client)
        } else {
            Ok(0)
        }
    }

    fn strike(&mut self, planned: &Planned) -> Result<(), Failed> {
        match planned.fault.name {
            STOP => self.crew.stop(planned.client, true)?,
            KILL => {
                let pid = self.crew.running(planned.client)?;
                self.crew.kill(planned.client)?;
                self.nemesis.write(Record::new(What::Exit).number(pid));
            }
            STARVE => starve(&self.starving)?,
            CROWD => {
                let sample = self.sample();
                self.spans.end(sample);
                (CROWD_FROM..CROWD_FROM + CROWD_SIZE).for_each(|number| self.start(number));
                let sample = self.sample();
                self.spans.begin(true, sample);
            }
            name => self.arena.strike(name, planned.client)?,
        }
        Ok(())
    }

    fn mend(&mut self, planned: &Planned) -> Result<Mended, String> {
        match planned.fault.name {
            STOP => self.crew.stop(planned.client, false)?,
            KILL => self.start(planned.client),
            STARVE => self.starving.store(false, Ordering::Release),
            CROWD => {
                let sample = self.sample();
                self.spans.end(sample);
                self.dismiss(&(CROWD_FROM..CROWD_FROM + CROWD_SIZE).collect::<Vec<_>>());
                let sample = self.sample();
                self.spans.begin(false, sample);
            }
            name => return self.arena.mend(name, planned.client),
        }
        Ok(Mended::Ended)
    }
}

/// Two threads a processor that do nothing but take time.
fn starve(on: &Arc<AtomicBool>) -> Result<(), String> {
    on.store(true, Ordering::Release);
    let processors = std::thread::available_parallelism().map_or(2, std::num::NonZero::get);
    for _ in 0..processors * 2 {
        let told = on.clone();
        let spin = move || {
            while told.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        };
        std::thread::Builder::new().spawn(spin).map_err(|e| {
            on.store(false, Ordering::Release);
            e.to_string()
        })?;
    }
    Ok(())
}

/// What a client is called.
fn label(number: u32) -> String {
    if number < CROWD_FROM {
        format!("client {number}")
    } else {
        format!("crowd {}", number - CROWD_FROM)
    }
}
