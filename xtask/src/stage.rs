//! Runs stages one after the other, and tells at the end what came of each and what it took. No
//! stage fails for being slow.

use std::cell::{Cell, RefCell};
use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::closing::{self, Sum};
use crate::interrupt;
use crate::project::show;
use crate::runner::again::{self, Judged};
use crate::runner::{self, Job};
use crate::sandbox::Sandbox;

/// One part of `cargo xtask test`, `lint` or `campaign`.
pub struct Stage {
    /// Its name in the table.
    pub name: &'static str,
    /// About how long it takes on two idle cores, built anew. Nothing depends on it.
    pub minutes: f64,
    /// What it does, in a few words.
    pub what: &'static str,
    /// Whether the stages after it make sense without it.
    pub vital: bool,
    /// What it does.
    pub run: fn(&Workshop) -> Outcome,
}

/// What stages share.
pub struct Workshop {
    /// Where tests run.
    pub sandbox: Sandbox,
    /// Whether everything is built, with one set of features.
    pub everything: Cell<bool>,
    /// The closing lines of every test runner.
    closing: RefCell<Vec<String>>,
    /// What failed commands said last.
    why: RefCell<Vec<String>>,
    /// What the end has to say besides.
    notes: RefCell<Vec<String>>,
    /// How many tests failed in those closing lines and passed later.
    rescued: Cell<u64>,
    /// What passed at its second try.
    flaky: RefCell<Vec<String>>,
    /// What passed with no other test in its process.
    alone: RefCell<Vec<String>>,
    /// When the stage that runs has to be ended.
    limit: Cell<Instant>,
    /// The signal that says to end it all.
    signalled: fn() -> Option<i32>,
}

/// After this something hangs: what runs then is ended, so that the table is printed before CI
/// ends us after 90 minutes.
pub const HANGS: Duration = Duration::from_secs(75 * 60);

/// How often we look whether a build has ended.
const TICK: Duration = Duration::from_millis(50);

impl Workshop {
    /// With a fresh sandbox; it ends what runs once there is a signal.
    ///
    /// # Errors
    /// The sandbox cannot be made.
    pub fn new(signalled: fn() -> Option<i32>) -> Result<Self, String> {
        let sandbox = Sandbox::new().map_err(|error| format!("no temporary directory: {error}"))?;
        let limit = Cell::new(Instant::now());
        Ok(Self {
            sandbox,
            everything: Cell::default(),
            closing: RefCell::default(),
            why: RefCell::default(),
            notes: RefCell::default(),
            rescued: Cell::default(),
            flaky: RefCell::default(),
            alone: RefCell::default(),
            limit,
            signalled,
        })
    }

    /// Whether what runs has to be ended.
    pub fn over(&self) -> impl Fn() -> bool + use<> {
        let (limit, signalled) = (self.limit.get(), self.signalled);
        move || Instant::now() > limit || signalled().is_some()
    }

    /// Says it now and at the end, where it is seen.
    pub fn note(&self, text: String) {
        println!("{text}");
        self.notes.borrow_mut().push(text);
    }

    /// Keeps all of a failure for the end; answers its first line, which the table has.
    pub fn explain(&self, message: String) -> String {
        let first = message.lines().next().unwrap_or_default().to_owned();
        self.why.borrow_mut().push(message);
        first
    }

    /// Runs a build, outside of the sandbox.
    ///
    /// # Errors
    /// It failed, or did not end in time.
    pub fn build(&self, command: &mut Command) -> Outcome {
        let child = self.sandbox.mark(command).spawn();
        self.wait_for(command, child)
    }

    /// The same for one whose output is wanted.
    ///
    /// # Errors
    /// As above.
    pub fn read(&self, command: &mut Command) -> Result<String, String> {
        let mut child =
            self.sandbox.mark(command).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let output = child.as_mut().ok().and_then(|child| child.stdout.take());
        let reader =
            thread::spawn(move || output.map_or_else(|| Ok(String::new()), io::read_to_string));
        self.wait_for(command, child)?;
        let read = reader.join().unwrap_or_else(|_| Err(io::ErrorKind::Other.into()));
        read.map_err(|error| format!("{}: {error}", show(command)))
    }

    fn wait_for(&self, command: &Command, child: io::Result<Child>) -> Outcome {
        let fail = |error| format!("{}: {error}", show(command));
        let (mut child, over) = (child.map_err(fail)?, self.over());
        loop {
            if let Some(status) = child.try_wait().map_err(fail)? {
                return if status.success() {
                    Ok(())
                } else {
                    Err(format!("{} ended with {status}", show(command)))
                };
            }
            if over() {
                // With the compilers that it started.
                self.sandbox.kill_all();
                _ = child.wait();
                return Err(format!("did not end: {}", show(command)));
            }
            thread::sleep(TICK);
        }
    }

    /// Runs our own code in the sandbox, keeps the closing lines, and refuses whatever is left
    /// behind.
    ///
    /// # Errors
    /// It failed, did not end in time, or left processes behind.
    pub fn run(&self, command: &mut Command) -> Outcome {
        self.sandbox.apply(command);
        let ended = closing::run(command, self.over(), || self.sandbox.kill_all())?;
        let verdict = runner::judge(&show(command), ended, &self.sandbox, &self.over());
        self.keep(verdict.closing, verdict.why);
        self.notes.borrow_mut().extend(verdict.not_tried);
        verdict.outcome
    }

    /// The same for several side by side, as many at a time as there are `seats`. When all have
    /// ended, the tests that failed run again.
    ///
    /// # Errors
    /// Those that failed each time, did not end or left processes behind.
    pub fn run_all(&self, jobs: Vec<Job>, seats: usize) -> Outcome {
        if jobs.is_empty() {
            return Err("there is nothing to run".to_owned());
        }
        let (mut failed, over) = (Vec::new(), self.over());
        // Our own output may be closed; the tests go on.
        runner::run(jobs, seats, &self.sandbox, &over, |done| {
            _ = done.print(&mut io::stdout());
            self.notes.borrow_mut().extend(done.verdict.not_tried.iter().cloned());
            if done.verdict.outcome.is_ok() {
                self.keep(done.verdict.closing, Vec::new());
            } else {
                failed.push(done);
            }
        });
        let again = again::run(failed, &self.sandbox, &over, |done| {
            _ = done.print(&mut io::stdout());
        });
        let mut red = Vec::new();
        for Judged { outcome, closing, why, rescued, flaky, alone } in again {
            self.keep(closing, why);
            self.rescued.set(self.rescued.get() + rescued);
            self.flaky.borrow_mut().extend(flaky);
            self.alone.borrow_mut().extend(alone);
            red.extend(outcome.err());
        }
        if red.is_empty() { Ok(()) } else { Err(red.join("\n")) }
    }

    fn keep(&self, closing: Vec<String>, why: Vec<String>) {
        self.closing.borrow_mut().extend(closing);
        self.why.borrow_mut().extend(why);
    }
}

/// A stage that was run, or not.
struct Row {
    name: &'static str,
    about: f64,
    took: Option<f64>,
    outcome: Outcome,
}

/// Runs the stages in order and prints what came of them. `hangs`: when a stage that begins then is
/// taken to hang.
///
/// # Errors
/// Any stage failed or was not run.
pub fn run_all(stages: &[&Stage], hangs: impl Fn(Instant) -> Instant) -> Outcome {
    let watch = interrupt::Watch::new();
    let workshop = Workshop::new(interrupt::caught)?;
    let rows = rows(&workshop, stages, hangs);
    let outcome = report(&rows, &workshop);
    let signal = interrupt::caught();
    // A signal ends us without clearing up.
    drop((workshop, watch));
    signal.map_or(outcome, |signal| Err(interrupt::end_by(signal)))
}

/// Runs the stages; what hangs is ended, and what would begin after that is not run.
fn rows(workshop: &Workshop, stages: &[&Stage], hangs: impl Fn(Instant) -> Instant) -> Vec<Row> {
    let over = format!("{} minutes are over", HANGS.as_secs() / 60);
    let mut rows: Vec<Row> = Vec::new();
    let mut stopped = None;
    for stage in stages {
        let start = Instant::now();
        let end = hangs(start);
        if let Some(signal) = (workshop.signalled)() {
            stopped.get_or_insert_with(|| format!("ended by signal {signal}"));
        } else if start >= end {
            stopped.get_or_insert_with(|| over.clone());
        }
        if let Some(why) = &stopped {
            rows.push(Row {
                name: stage.name,
                about: stage.minutes,
                took: None,
                outcome: Err(format!("not run: {why}")),
            });
            continue;
        }
        println!("\n=== {}: {} (about {} min)", stage.name, stage.what, stage.minutes);
        workshop.limit.set(end);
        let mut outcome = (stage.run)(workshop);
        let took = start.elapsed().as_secs_f64() / 60.0;
        if let Some(signal) = (workshop.signalled)() {
            outcome = outcome.map_err(|message| format!("ended by signal {signal}: {message}"));
        } else if Instant::now() >= end {
            outcome = outcome.map_err(|message| format!("{over}: {message}"));
        }
        if let Err(message) = &outcome {
            println!("=== {} failed: {message}", stage.name);
            stopped = stage.vital.then(|| format!("{} failed", stage.name));
        }
        rows.push(Row { name: stage.name, about: stage.minutes, took: Some(took), outcome });
    }
    rows
}

/// Prints what came of the stages, why what failed did, and last the number of tests.
fn report(rows: &[Row], workshop: &Workshop) -> Outcome {
    let closing = workshop.closing.take();
    let Sum { passed, failed, ignored, .. } = closing::sum(&closing);
    println!();
    for line in closing.iter().chain(&workshop.notes.take()).chain(&workshop.why.take()) {
        println!("{line}");
    }
    println!("\n{:<14} {:>8} {:>8}", "stage", "minutes", "about");
    for row in rows {
        let took = row.took.map_or_else(|| "-".to_owned(), |took| format!("{took:.1}"));
        let verdict = row.outcome.as_ref().map_or_else(
            |why| format!("FAILED: {}", why.replace('\n', &format!("\n{:<35}", ""))),
            |()| "ok".to_owned(),
        );
        println!("{:<14} {took:>8} {:>8.1}  {verdict}", row.name, row.about);
    }
    let total: f64 = rows.iter().filter_map(|row| row.took).sum();
    println!("{:<14} {total:>8.1} {:>8.1}\n", "all", rows.iter().map(|row| row.about).sum::<f64>());
    let (flaky, alone) = (workshop.flaky.take(), workshop.alone.take());
    for name in &alone {
        println!("passed only alone: {name}");
    }
    for name in &flaky {
        println!("flaky (passed at its second try): {name}");
    }
    let rescued = workshop.rescued.get();
    let (passed, failed) = (passed + rescued, failed.saturating_sub(rescued));
    if !closing.is_empty() {
        println!("flaky: {}", flaky.len() + alone.len());
        println!("tests: {passed} passed, {failed} failed");
    }

    let bad: Vec<&str> =
        rows.iter().filter(|row| row.outcome.is_err()).map(|row| row.name).collect();
    if !bad.is_empty() {
        return Err(format!("failed: {}", bad.join(", ")));
    }
    if failed > 0 {
        return Err(format!("{failed} tests failed in runs that ended well"));
    }
    if ignored > 0 {
        return Err(format!(
            "{ignored} tests were ignored; a test that does not run holds nothing"
        ));
    }
    if !closing.is_empty() && passed == 0 {
        return Err("no test ran".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn row(outcome: Outcome) -> Row {
        Row { name: "x", about: 1.0, took: Some(0.5), outcome }
    }

    #[test]
    fn a_run_is_good_only_if_every_stage_is_and_no_test_was_left_out() {
        let reported = |rows: &[Row], text: &str| {
            let workshop = Workshop::new(|| None).unwrap();
            let line = format!("test result: ok. {text}; finished in 0.00s");
            workshop.keep(vec![line], Vec::new());
            report(rows, &workshop)
        };
        let (good, bad) = (|| row(Ok(())), || row(Err("why".to_owned())));
        let all = "3 passed; 0 failed; 0 ignored; 0 measured; 1 filtered out";
        assert_eq!(reported(&[good()], all), Ok(()));
        assert!(reported(&[good(), bad()], all).is_err());
        assert!(
            reported(&[good()], "3 passed; 1 failed; 0 ignored")
                .is_err_and(|text| text.contains("1 tests failed"))
        );
        assert!(
            reported(&[good()], "3 passed; 0 failed; 1 ignored")
                .is_err_and(|text| text.contains("ignored"))
        );
        assert!(
            reported(&[good()], "0 passed; 0 failed; 0 ignored")
                .is_err_and(|text| text.contains("no test ran"))
        );
        assert_eq!(report(&[good()], &Workshop::new(|| None).unwrap()), Ok(()), "none has tests");
    }

    #[test]
    fn all_of_a_failure_is_said_at_the_end_and_its_first_line_in_the_table() {
        let workshop = Workshop::new(|| None).unwrap();
        assert_eq!(workshop.explain("failed: x\nwhy".to_owned()), "failed: x");
        assert_eq!(*workshop.why.borrow(), ["failed: x\nwhy"]);
    }

    /// The outcomes of a stage that does not end and of one after it, where the whole may take this
    /// long from the beginning of the first.
    fn two_stages(total: Duration, first: fn(&Workshop) -> Outcome) -> Vec<Outcome> {
        let workshop = Workshop::new(|| None).unwrap();
        let stage = |name, run| Stage { name, minutes: 10.0, what: "x", vital: false, run };
        let second: fn(&Workshop) -> Outcome = |_| Ok(());
        let (first, second) = (stage("first", first), stage("second", second));
        let end = std::cell::OnceCell::new();
        let hangs = |begun: Instant| *end.get_or_init(|| begun + total);
        rows(&workshop, &[&first, &second], hangs).into_iter().map(|row| row.outcome).collect()
    }

    #[test]
    fn a_run_that_hangs_is_ended_by_us_and_still_has_its_table() {
        let sleeps: [fn(&Workshop) -> Outcome; 2] = [
            |workshop| workshop.run(Command::new("sleep").arg("602")),
            |workshop| workshop.build(Command::new("sh").args(["-c", "sleep 603; true"])),
        ];
        for sleep in sleeps {
            let outcomes = two_stages(Duration::from_millis(300), sleep);
            let said: Vec<&str> =
                outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().as_str()).collect();
            assert!(said[0].starts_with("75 minutes are over: did not end"), "{said:?}");
            assert_eq!(said[1], "not run: 75 minutes are over");
        }
        assert_eq!(two_stages(HANGS, |_| Ok(())), [Ok(()), Ok(())]);
    }

    #[test]
    fn after_a_signal_what_runs_is_ended_and_no_stage_is_begun() {
        fn mark() -> PathBuf {
            std::env::temp_dir().join(format!("xtask-signal-{}", std::process::id()))
        }
        let workshop = Workshop::new(|| mark().exists().then_some(15)).unwrap();
        let sleeps = |workshop: &Workshop| {
            let mut command = Command::new("sh");
            command.args(["-c", "touch \"$1\"; sleep 610 & exec sleep 611", "sh"]).arg(mark());
            workshop.run_all(vec![Job::new("one", command)], 2)
        };
        let stage = |name, run| Stage { name, minutes: 10.0, what: "x", vital: false, run };
        let stages = [stage("first", sleeps), stage("second", |_| Ok(()))];
        let end = Instant::now() + HANGS;
        let rows = rows(&workshop, &[&stages[0], &stages[1]], |_| end);
        let said: Vec<&str> =
            rows.iter().map(|row| row.outcome.as_ref().unwrap_err().as_str()).collect();
        std::fs::remove_file(mark()).unwrap();
        assert!(said[0].starts_with("ended by signal 15: did not end"), "{said:?}");
        assert_eq!(said[1], "not run: ended by signal 15");
        assert!(workshop.sandbox.strays(|| false).is_empty());
    }

    #[test]
    fn a_command_that_leaves_a_process_behind_fails_and_says_which() {
        let workshop = Workshop::new(|| None).unwrap();
        workshop.limit.set(Instant::now() + HANGS);
        let mut command = Command::new("sh");
        // Until it is what it is to be: in between it shows nothing of what it is.
        command.args([
            "-c",
            "sleep 601 > /dev/null 2>&1 & until grep -qa ^sleep /proc/$!/cmdline; do :; done",
        ]);
        assert!(workshop.run(&mut command).is_err_and(|text| text.contains("sleep 601")));
        assert!(workshop.sandbox.strays(|| false).is_empty());
    }
}
