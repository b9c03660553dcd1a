//! Act 4: a holder is stopped for longer than its lease lasts, somebody else sells the last piece,
//! and the first one writes.

use std::time::{Duration, Instant};

use lockkeeper::{Description, Error, ErrorKind, Result};
use nix::sys::signal::Signal;

use super::stock::Record;
use super::worker::{Part, Told};
use super::{Guarding, HELPER, Options, Outcome};
use crate::helper::{Crew, Program};

/// The lease that the holder asks for; where a session is the lease, that one counts.
const TTL: Duration = Duration::from_secs(1);
/// How long the next holder may take beyond what the engine promises.
const GRACE: Duration = Duration::from_secs(10);

/// What act 4 is about.
pub(super) struct Late<'a> {
    pub(super) guarding: Guarding,
    pub(super) options: &'a Options,
    pub(super) program: &'a Program,
    pub(super) about: &'a Description,
    pub(super) name: &'a str,
}

impl Late<'_> {
    /// Plays it.
    ///
    /// # Errors
    /// What the engine or the system says; `Closed` when the user ended it.
    pub(super) fn play(&self, record: &Record<'_>) -> Result<Outcome> {
        record.fill(1)?;
        let began = Instant::now();
        let ttl_ms = u64::try_from(TTL.as_millis()).unwrap_or(u64::MAX);
        let mut crew = Crew::new();
        let late = crew.start(self.program, HELPER, &self.told(record, Part::Late { ttl_ms }))?;
        let next = crew.start(self.program, HELPER, &self.told(record, Part::Next { ttl_ms }))?;
        crew.hear_from_all("ready", GRACE)?;
        crew.tell(late, "go")?;
        self.expect(&mut crew, late, "read", GRACE)?;
        crew.signal(late, Signal::SIGSTOP);
        crew.tell(next, "go")?;
        self.expect(&mut crew, next, "sold", self.about.recovery.max(TTL) + GRACE)?;
        crew.tell(late, "on")?;
        crew.signal(late, Signal::SIGCONT);
        let (mut sold, mut accepted, mut rejected, mut done) = (1, 0, 0, 0);
        while done < 2 {
            match crew.hear(GRACE)?.line.as_str() {
                "accepted" => (sold, accepted) = (sold + 1, accepted + 1),
                "rejected" => rejected += 1,
                "done" => done += 1,
                _ => {}
            }
        }
        let (engine, left, seconds) =
            (self.about.engine, record.left()?, began.elapsed().as_secs_f64());
        Ok(Outcome {
            act: 4,
            guarding: self.guarding,
            engine,
            processes: 2,
            orders: 2,
            stock: 1,
            sold,
            left,
            accepted,
            rejected,
            repeats: 0,
            seconds,
        })
    }

    fn expect(&self, crew: &mut Crew, helper: usize, word: &str, patience: Duration) -> Result<()> {
        loop {
            let said = crew.hear(patience)?;
            if said.helper != helper || said.line == "done" {
                continue;
            }
            if said.line == word {
                return Ok(());
            }
            return Err(Error::new(
                ErrorKind::Unknown,
                format!("a worker said {:?} where {word:?} was due", said.line),
            ));
        }
    }

    fn told(&self, record: &Record<'_>, part: Part) -> Told {
        Told {
            url: self.options.url.clone(),
            name: self.name.to_owned(),
            place: record.place().clone(),
            guarding: self.guarding,
            part,
        }
    }
}
