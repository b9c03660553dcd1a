//! One run of acts 1 to 3 and 6: workers that start at the same moment and sell until every order
//! is answered.

use std::io::Write;
use std::time::{Duration, Instant};

use lockkeeper::Result;

use super::progress::Progress;
use super::stock::Record;
use super::worker::{Part, Told};
use super::{Guarding, HELPER, Options, Outcome};
use crate::helper::{Crew, Program};

/// How long everything may stand still before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many orders a process works on at the same time, at most.
const TASKS_MAX: u32 = 4;
/// For how long all first sales together wait for each other where the lock lets only one of them
/// in.
const MEET: Duration = Duration::from_millis(2_000);

/// What one run is about.
pub(super) struct Act<'a> {
    pub(super) number: u8,
    pub(super) guarding: Guarding,
    pub(super) processes: u32,
    pub(super) options: &'a Options,
    pub(super) program: &'a Program,
    pub(super) engine: &'static str,
    pub(super) name: &'a str,
}

impl Act<'_> {
    /// Plays it.
    ///
    /// # Errors
    /// What the engine or the system says; `Closed` when the user ended it.
    pub(super) fn play(
        &self,
        record: &Record<'_>,
        progress: &mut Progress<impl Write>,
    ) -> Result<Outcome> {
        record.fill(self.options.stock)?;
        let mut crew = Crew::new();
        for number in 0..self.processes {
            crew.start(self.program, HELPER, &self.told(record, number))?;
        }
        crew.hear_from_all("ready", PATIENCE)?;
        let began = Instant::now();
        crew.tell_all("go")?;
        let (mut sold, mut refused, mut repeats, mut met, mut done) = (0, 0, 0, 0, 0);
        while done < self.processes {
            match crew.hear(PATIENCE)?.line.as_str() {
                "sold" => sold += 1,
                "refused" => refused += 1,
                "repeat" => repeats += 1,
                "done" => done += 1,
                "meet" => {
                    met += 1;
                    if met == self.busy() {
                        crew.tell_all("on")?;
                    }
                }
                _ => {}
            }
            progress.show(self.number, self.guarding, sold + refused, self.options.orders, sold);
        }
        let seconds = began.elapsed().as_secs_f64();
        progress.clear();
        let left = record.left()?;
        Ok(Outcome { sold, left, repeats, seconds, ..self.outcome() })
    }

    fn outcome(&self) -> Outcome {
        Outcome {
            act: self.number,
            guarding: self.guarding,
            engine: self.engine,
            processes: self.processes,
            orders: self.options.orders,
            stock: self.options.stock,
            sold: 0,
            left: 0,
            accepted: 0,
            rejected: 0,
            repeats: 0,
            seconds: 0.0,
        }
    }

    /// How many processes have an order at all.
    fn busy(&self) -> u32 {
        self.processes.min(self.options.orders)
    }

    fn told(&self, record: &Record<'_>, number: u32) -> Told {
        let (share, rest) =
            (self.options.orders / self.processes, self.options.orders % self.processes);
        let orders = share + u32::from(number < rest);
        // Without a common lock all of them come, however slow the machine is; under it they never
        // do.
        let meet = match self.guarding {
            Guarding::Nothing | Guarding::Process | Guarding::Version => PATIENCE,
            // Its time is compared.
            _ if self.number == 6 => Duration::ZERO,
            Guarding::Lockkeeper | Guarding::Token | Guarding::Replicas => {
                MEET / self.busy().max(1)
            }
        };
        let part = Part::Seller {
            orders,
            // In act 6 as many sell at once as there are processes.
            tasks: orders.min(if self.number == 6 { 1 } else { TASKS_MAX }),
            meet_ms: u64::try_from(meet.as_millis()).unwrap_or(0),
        };
        Told {
            url: self.options.url.clone(),
            name: self.name.to_owned(),
            place: record.place().clone(),
            guarding: self.guarding,
            part,
        }
    }
}
