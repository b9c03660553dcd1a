//! Runs programs side by side: the longest first, some alone, and the output of each as a whole.

pub mod list;
mod weights;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::closing::{self, Ended};
use crate::project::show;
use crate::sandbox::Sandbox;

/// After how long a silence we say what runs.
const SILENCE: Duration = Duration::from_secs(60);
/// How long what a program started may take to end after it. A helper whose server has gone tries
/// for a while before it gives up; our own tests leave nothing that would end by itself.
const GRACE: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 20 });

/// Whether what runs has to be ended.
pub type Over<'a> = &'a (dyn Fn() -> bool + Sync);

/// A program to be run.
pub struct Job {
    /// What it is called, in a word.
    pub name: String,
    /// What it is.
    pub command: Command,
    /// About how long it takes.
    pub seconds: f64,
    /// Whether nothing of ours may run beside it.
    pub alone: bool,
}

/// What a program came to.
pub struct Verdict {
    /// Whether it failed, did not end, or left processes behind.
    pub outcome: Outcome,
    /// The closing lines of the test runners in it.
    pub closing: Vec<String>,
    /// What there is to say of a failure.
    pub why: Vec<String>,
    /// What it says could not be tried.
    pub not_tried: Vec<String>,
}

/// A program that has ended.
pub struct Done {
    /// What it is called.
    pub name: String,
    /// What it came to.
    pub verdict: Verdict,
    took: Duration,
    output: Vec<u8>,
    /// How many have ended, with this one, of how many.
    of: [usize; 2],
}

impl Done {
    /// Prints its output under its name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let (verdict, [number, all]) =
            (if self.verdict.outcome.is_ok() { "ok" } else { "FAILED" }, self.of);
        writeln!(
            out,
            "\n--- {number}/{all} {}: {verdict} after {:.1} s",
            self.name,
            self.took.as_secs_f64()
        )?;
        out.write_all(&self.output)?;
        if let Err(message) = &self.verdict.outcome {
            writeln!(out, "--- {message}")?;
        }
        out.flush()
    }
}

/// Judges a program that has ended, and ends what it left behind in its sandbox.
pub fn judge(program: &str, ended: Ended, sandbox: &Sandbox) -> Verdict {
    let Ended { status, closing, mut why, failed, long, not_tried } = ended;
    let outcome = match status {
        None => {
            let hangs = if long.is_empty() {
                "what it printed last says where".to_owned()
            } else {
                long.join(", ")
            };
            Err(format!("did not end ({hangs}): {program}"))
        }
        Some(status) => {
            let which = if failed.is_empty() {
                String::new()
            } else {
                format!(" ({} failed)", failed.join(", "))
            };
            let strays = sandbox.strays(GRACE);
            sandbox.kill(&strays);
            let texts: Vec<&str> = strays.iter().map(|stray| stray.text.as_str()).collect();
            match (strays.is_empty(), status.success()) {
                (true, true) => Ok(()),
                (true, false) => Err(format!("{program} ended with {status}{which}")),
                (false, _) => {
                    let left = texts.join("\n  ");
                    Err(format!(
                        "{program} ended with {status}{which} and left processes behind (ended \
                         now):\n  {left}"
                    ))
                }
            }
        }
    };
    if status.is_some_and(|status| status.success()) {
        why.clear();
    } else {
        why.insert(0, format!("--- {program}"));
    }
    Verdict { outcome, closing, why, not_tried }
}

/// Runs them, `seats` at a time, and tells of each when it has ended; once it is `over` it ends
/// those that run and begins no more.
pub fn run(
    mut jobs: Vec<Job>,
    seats: usize,
    sandbox: &Sandbox,
    over: Over<'_>,
    mut tell: impl FnMut(Done),
) {
    jobs.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let mut of = [0, jobs.len()];
    let (alone, shared): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.alone);
    for (jobs, seats) in [(shared, seats), (alone, 1)] {
        let offset = of[0];
        side_by_side(jobs, seats, sandbox, offset, over, &mut |mut done| {
            of[0] += 1;
            done.of = of;
            tell(done);
        });
    }
}

/// `offset`: how many have rooms in the sandbox already.
fn side_by_side(
    jobs: Vec<Job>,
    seats: usize,
    sandbox: &Sandbox,
    offset: usize,
    over: Over<'_>,
    tell: &mut dyn FnMut(Done),
) {
    let waiting: Mutex<VecDeque<(usize, Job)>> = Mutex::new((offset..).zip(jobs).collect());
    let running = Mutex::new(Vec::new());
    thread::scope(|scope| {
        let (sender, ended) = channel();
        for _ in 0..seats {
            let (sender, waiting, running) = (sender.clone(), &waiting, &running);
            scope.spawn(move || {
                while let Some((number, job)) = { locked(waiting).pop_front() } {
                    let name = job.name.clone();
                    locked(running).push(name.clone());
                    let done = one(job, number, sandbox, over);
                    locked(running).retain(|other| *other != name);
                    _ = sender.send(done);
                }
            });
        }
        drop(sender);
        loop {
            match ended.recv_timeout(SILENCE) {
                Ok(done) => tell(done),
                Err(RecvTimeoutError::Timeout) => {
                    println!("... running: {}", locked(&running).join(", "))
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
}

fn one(mut job: Job, number: usize, sandbox: &Sandbox, over: Over<'_>) -> Done {
    let began = Instant::now();
    let output = Output::default();
    let verdict = if over() {
        Err(format!("not run: {}", job.name))
    } else {
        let room = sandbox
            .room(number, &job.name)
            .map_err(|error| format!("no directory for {}: {error}", job.name));
        room.and_then(|room| {
            room.apply(&mut job.command);
            let ended =
                closing::run_into(output.clone(), &mut job.command, over, || room.kill_all())?;
            let program = format!("{} ({})", job.name, show(&job.command));
            Ok(judge(&program, ended, &room))
        })
    };
    let verdict = verdict.unwrap_or_else(|message| Verdict {
        outcome: Err(message),
        closing: Vec::new(),
        why: Vec::new(),
        not_tried: Vec::new(),
    });
    let output = std::mem::take(&mut *locked(&output.0));
    Done { name: job.name, verdict, took: began.elapsed(), output, of: [0, 0] }
}

/// What a program has printed.
#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        locked(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn locked<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
