//! Runs programs side by side: the longest first, some alone, and the output of each as a whole.

pub mod again;
pub mod list;
pub mod weights;

use std::collections::VecDeque;
use std::io::{self, Write};
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::closing::{self, Ended};
use crate::machine;
use crate::project::show;
use crate::sandbox::Sandbox;

/// After how long a silence we say what runs.
const SILENCE: Duration = Duration::from_secs(60);
/// After how long what a program started is no longer on its way out but left behind: as long as
/// only a hang takes. Our own tests leave what would never end by itself.
const GRACE: Duration = Duration::from_secs(if cfg!(test) { 5 } else { 300 });

/// Tests that take time by a clock have names that begin so: on a machine that is slow they fail
/// without a fault. The gate leaves them out, and the campaign runs them.
pub const TIMED: &str = "timed_";

/// Searches that have no short form have names that begin so. The gate leaves them out, and the
/// campaign's models run them.
pub const EXHAUSTIVE: &str = "exhaustive_";

/// Unit tests that fail without root have names that begin so. Without root they are left out, and
/// named.
pub const NEEDS_ROOT: &str = "needs_root_";

/// Whether what runs has to be ended.
pub type Over<'a> = &'a (dyn Fn() -> bool + Sync);

/// Which tests of a program run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tests {
    /// Whatever it has: a program that cannot be told, and of which all runs again.
    All,
    /// Those of these whole names: a part of a name may stand in others', too. One at least.
    Named(Vec<String>),
}

impl Tests {
    /// Their names, where they are known.
    pub fn names(&self) -> &[String] {
        match self {
            Tests::All => &[],
            Tests::Named(names) => names,
        }
    }
}

/// A program to be run.
pub struct Job {
    /// What it is called, in a word.
    pub name: String,
    /// What it is.
    pub command: Command,
    /// Which of its tests run.
    pub tests: Tests,
    /// How many of them run at a time, where that is not one a core.
    pub threads: Option<u8>,
    /// About how long it takes.
    pub seconds: f64,
    /// Whether nothing of ours may run beside it.
    pub alone: bool,
}

impl Job {
    /// A program that runs as it is, beside others; if its tests fail, all of it runs again.
    pub fn new(name: &str, command: Command) -> Self {
        Self {
            name: name.to_owned(),
            command,
            tests: Tests::All,
            threads: None,
            seconds: 0.0,
            alone: false,
        }
    }

    /// What its test runner is told.
    fn words(&self) -> Vec<String> {
        let Tests::Named(names) = &self.tests else { return Vec::new() };
        let mut words = vec!["--color".to_owned(), closing::colour().to_owned()];
        let threads =
            self.threads.map(|threads| ["--test-threads".to_owned(), threads.to_string()]);
        words.extend(threads.into_iter().flatten());
        words.push("--exact".to_owned());
        words.extend(names.iter().cloned());
        words
    }
}

/// What a program came to.
pub struct Verdict {
    /// Whether it failed, did not end, or left processes behind.
    pub outcome: Outcome,
    /// The closing lines of the test runners in it.
    pub closing: Vec<String>,
    /// What there is to say of a failure.
    pub why: Vec<String>,
    /// What of it may run again.
    pub again: Again,
    /// What it says could not be tried.
    pub not_tried: Vec<String>,
}

/// What may run again of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Again {
    /// Nothing: it ended well, or no slow machine explains how it ended.
    Nothing,
    /// These tests, which failed and of which nothing else is known.
    Tests(Vec<String>),
    /// All of it, for it hung.
    All,
}

impl Verdict {
    fn failed(message: String) -> Self {
        let (closing, why, not_tried) = (Vec::new(), Vec::new(), Vec::new());
        Self { outcome: Err(message), closing, why, again: Again::Nothing, not_tried }
    }
}

/// A program that has ended.
pub struct Done {
    /// What it was.
    pub job: Job,
    /// What it came to.
    pub verdict: Verdict,
    took: Duration,
    output: Vec<u8>,
    /// How many have ended, with this one, of how many.
    of: Option<[usize; 2]>,
}

impl Done {
    /// Prints its output under its name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let verdict = if self.verdict.outcome.is_ok() { "ok" } else { "FAILED" };
        let of = self.of.map_or(String::new(), |[number, all]| format!("{number}/{all} "));
        writeln!(
            out,
            "\n--- {of}{}: {verdict} after {:.1} s",
            self.job.name,
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
pub fn judge(program: &str, ended: Ended, sandbox: &Sandbox, over: Over<'_>) -> Verdict {
    let Ended { status, hung, closing, mut why, failed, wrong, long, not_tried } = ended;
    let failed = failed.concat();
    let mut left_nothing = true;
    let mut outcome = match status {
        None => {
            let hangs = if long.is_empty() {
                "what it printed last says where".to_owned()
            } else {
                long.join(", ")
            };
            why.extend(hung.iter().flatten().cloned());
            let how = if hung.is_some() { "printed nothing for long" } else { "did not end" };
            Err(format!("{how} ({hangs}): {program}"))
        }
        Some(status) => {
            let which = if failed.is_empty() {
                String::new()
            } else {
                format!(" ({} failed)", failed.join(", "))
            };
            let until = Instant::now() + GRACE;
            let strays = sandbox.strays(|| Instant::now() >= until || over());
            sandbox.kill(&strays);
            let texts: Vec<&str> = strays.iter().map(|stray| stray.text.as_str()).collect();
            left_nothing = strays.is_empty();
            match (left_nothing, status.success()) {
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
    if let Some(line) = &wrong {
        outcome = outcome.map_err(|text| format!("{text}; not run again: {}", line.trim()));
    }
    let ended_itself = status.is_some_and(|status| status.code().is_some());
    let known = !failed.is_empty() && failed.len() as u64 == closing::sum(&closing).failed;
    let again = match (&outcome, &wrong) {
        (Err(_), None) if hung.is_some() => Again::All,
        (Err(_), None) if ended_itself && left_nothing && known => Again::Tests(failed),
        _ => Again::Nothing,
    };
    Verdict { outcome, closing, why, again, not_tried }
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
    machine::watch();
    jobs.sort_by(|one, other| other.seconds.total_cmp(&one.seconds));
    let mut of = [0, jobs.len()];
    let (alone, shared): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.alone);
    for (jobs, seats) in [(shared, seats), (alone, 1)] {
        let offset = of[0];
        side_by_side(jobs, seats, sandbox, offset, over, &mut |mut done| {
            of[0] += 1;
            done.of = Some(of);
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

fn one(job: Job, number: usize, sandbox: &Sandbox, over: Over<'_>) -> Done {
    let began = Instant::now();
    let output = Output::default();
    let verdict = if over() {
        Err(format!("not run: {}", job.name))
    } else if matches!(&job.tests, Tests::Named(names) if names.is_empty()) {
        Err(format!("{} has no test to run", job.name))
    } else {
        let room = sandbox
            .room(number, &job.name)
            .map_err(|error| format!("no directory for {}: {error}", job.name));
        room.and_then(|room| {
            let mut command = copy(&job.command);
            let program = format!("{} ({})", job.name, show(&command));
            room.apply(command.args(job.words()));
            let ended = closing::run_into(output.clone(), &mut command, over, || room.kill_all())?;
            let Tests::Named(names) = &job.tests else {
                return Ok(judge(&program, ended, &room, over));
            };
            let mut verdict = judge(&program, ended.of_one_runner(), &room, over);
            let (ran, all) = (closing::sum(&verdict.closing).ran(), names.len() as u64);
            if verdict.outcome.is_ok() && ran != all {
                verdict.outcome = Err(format!("{program} ran {ran} of {all} tests"));
            }
            Ok(verdict)
        })
    };
    let mut verdict = verdict.unwrap_or_else(Verdict::failed);
    if verdict.outcome.is_err() && !verdict.why.is_empty() {
        verdict.why.push(machine::told(began));
    }
    let output = std::mem::take(&mut *locked(&output.0));
    Done { job, verdict, took: began.elapsed(), output, of: None }
}

/// The same command, not yet started.
fn copy(command: &Command) -> Command {
    let mut copy = Command::new(command.get_program());
    copy.args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        copy.current_dir(folder);
    }
    for (variable, value) in command.get_envs() {
        match value {
            Some(value) => copy.env(variable, value),
            None => copy.env_remove(variable),
        };
    }
    copy
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
