//! Runs stages one after the other, keeps their time, and tells at the end what each took of its
//! share.

use std::cell::{Cell, RefCell};
use std::io;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::closing::{self, Sum};
use crate::interrupt;
use crate::packages::in_ci;
use crate::project::show;
use crate::runner::{self, Job, Verdict};
use crate::sandbox::Sandbox;

/// One part of `cargo xtask test`.
pub struct Stage {
    /// Its name in the table.
    pub name: &'static str,
    /// Its share of the time on two cores.
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
    /// The closing lines of every test runner.
    closing: RefCell<Vec<String>>,
    /// What failed commands said last.
    why: RefCell<Vec<String>>,
    /// What the end has to say besides.
    notes: RefCell<Vec<String>>,
    /// When the stage that runs has to be ended.
    limit: Cell<Instant>,
    /// The signal that says to end it all.
    signalled: fn() -> Option<i32>,
}

/// What the whole may take: whoever runs it may stop it after 90 minutes, and then nobody sees a
/// table.
pub const TOTAL_MAX: Duration = Duration::from_secs(84 * 60);

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
            closing: RefCell::default(),
            why: RefCell::default(),
            notes: RefCell::default(),
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
        self.keep(runner::judge(&show(command), ended, &self.sandbox))
    }

    /// The same for several side by side, as many at a time as there are `seats`.
    ///
    /// # Errors
    /// Those that failed, did not end in time or left processes behind.
    pub fn run_all(&self, jobs: Vec<Job>, seats: usize) -> Outcome {
        let mut failed = Vec::new();
        let mut out = io::stdout();
        runner::run(jobs, seats, &self.sandbox, &self.over(), |done| {
            // Our own output may be closed; the tests go on.
            _ = done.print(&mut out);
            failed.extend(self.keep(done.verdict).err());
        });
        if failed.is_empty() { Ok(()) } else { Err(failed.join("\n")) }
    }

    fn keep(&self, verdict: Verdict) -> Outcome {
        self.closing.borrow_mut().extend(verdict.closing);
        self.why.borrow_mut().extend(verdict.why);
        self.notes.borrow_mut().extend(verdict.not_tried);
        verdict.outcome
    }
}

/// A stage that was run, or not.
struct Row {
    name: &'static str,
    share: f64,
    took: Option<f64>,
    outcome: Outcome,
}

/// Runs the stages in order and prints what came of them. `began`: when the whole began.
///
/// # Errors
/// Any stage failed, was not run, or took more than three times its share in continuous
/// integration.
pub fn run_all(stages: &[&Stage], began: Instant) -> Outcome {
    let watch = interrupt::Watch::new();
    let workshop = Workshop::new(interrupt::caught)?;
    let rows = rows(&workshop, stages, began + TOTAL_MAX);
    let (closing, notes, why) =
        (workshop.closing.take(), workshop.notes.take(), workshop.why.take());
    // The table comes last: of a long output the end is what is read, and sometimes all that is
    // kept.
    for line in closing.iter().chain(&why).chain(&notes) {
        println!("{line}");
    }
    let outcome = report(&rows, closing::sum(&closing), closing.len());
    let signal = interrupt::caught();
    // A signal ends us without clearing up.
    drop((workshop, watch));
    signal.map_or(outcome, |signal| Err(interrupt::end_by(signal)))
}

/// Runs the stages until `end`; what runs then is ended, and the rest is not run.
fn rows(workshop: &Workshop, stages: &[&Stage], end: Instant) -> Vec<Row> {
    let over = format!("the {} minutes of the whole are over", TOTAL_MAX.as_secs() / 60);
    let mut rows: Vec<Row> = Vec::new();
    let mut stopped = None;
    for stage in stages {
        if let Some(signal) = (workshop.signalled)() {
            stopped.get_or_insert_with(|| format!("ended by signal {signal}"));
        } else if Instant::now() >= end {
            stopped.get_or_insert_with(|| over.clone());
        }
        if let Some(why) = &stopped {
            rows.push(Row {
                name: stage.name,
                share: stage.minutes,
                took: None,
                outcome: Err(format!("not run: {why}")),
            });
            continue;
        }
        println!("\n=== {}: {} (up to {} min)", stage.name, stage.what, stage.minutes);
        let start = Instant::now();
        // A test that hangs must not hang us; a slow machine is no hang.
        let limit =
            start + Duration::from_secs(600).max(Duration::from_secs_f64(stage.minutes * 240.0));
        workshop.limit.set(limit.min(end));
        let mut outcome = (stage.run)(workshop);
        let took = start.elapsed().as_secs_f64() / 60.0;
        // Shared machines take twice as long on some days, with nothing wrong.
        if outcome.is_ok() && in_ci() && took > 3.0 * stage.minutes {
            outcome = Err(format!(
                "took {took:.1} min, more than three times its share of {} min",
                stage.minutes
            ));
        }
        if let Some(signal) = (workshop.signalled)() {
            outcome = outcome.map_err(|message| format!("ended by signal {signal}: {message}"));
        } else if Instant::now() >= end {
            outcome = outcome.map_err(|message| format!("{over}: {message}"));
        }
        if let Err(message) = &outcome {
            println!("=== {} failed: {message}", stage.name);
            stopped = stage.vital.then(|| format!("{} failed", stage.name));
        }
        rows.push(Row { name: stage.name, share: stage.minutes, took: Some(took), outcome });
    }
    rows
}

/// Prints what each stage took and why it failed.
fn report(rows: &[Row], tests: Sum, runners: usize) -> Outcome {
    let Sum { passed, failed, ignored } = tests;
    println!(
        "\ntests: {passed} passed, {failed} failed, {ignored} ignored, of {runners} runners\n"
    );
    println!("{:<14} {:>8} {:>8}", "stage", "minutes", "share");
    for row in rows {
        let took = row.took.map_or_else(|| "-".to_owned(), |took| format!("{took:.1}"));
        let verdict = row.outcome.as_ref().map_or_else(
            |why| format!("FAILED: {}", why.replace('\n', &format!("\n{:<35}", ""))),
            |()| "ok".to_owned(),
        );
        println!("{:<14} {took:>8} {:>8.1}  {verdict}", row.name, row.share);
    }
    let total: f64 = rows.iter().filter_map(|row| row.took).sum();
    println!("{:<14} {total:>8.1} {:>8.1}\n", "all", rows.iter().map(|row| row.share).sum::<f64>());

    let bad: Vec<&str> =
        rows.iter().filter(|row| row.outcome.is_err()).map(|row| row.name).collect();
    if !bad.is_empty() {
        return Err(format!("failed: {}", bad.join(", ")));
    }
    if ignored > 0 {
        return Err(format!(
            "{ignored} tests were ignored; a test that does not run holds nothing"
        ));
    }
    if passed == 0 {
        return Err("no test ran".to_owned());
    }
    println!("All good.");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    fn row(outcome: Outcome) -> Row {
        Row { name: "x", share: 1.0, took: Some(0.5), outcome }
    }

    #[test]
    fn a_run_is_good_only_if_every_stage_is_and_no_test_was_left_out() {
        let tests = |passed, ignored| Sum { passed, failed: 0, ignored };
        assert_eq!(report(&[row(Ok(()))], tests(3, 0), 1), Ok(()));
        assert!(report(&[row(Ok(())), row(Err("why".to_owned()))], tests(3, 0), 1).is_err());
        assert!(report(&[row(Ok(()))], tests(3, 1), 1).is_err_and(|text| text.contains("ignored")));
        assert!(
            report(&[row(Ok(()))], tests(0, 0), 0).is_err_and(|text| text.contains("no test ran"))
        );
    }

    #[test]
    fn all_of_a_failure_is_said_at_the_end_and_its_first_line_in_the_table() {
        let workshop = Workshop::new(|| None).unwrap();
        assert_eq!(workshop.explain("failed: x\nwhy".to_owned()), "failed: x");
        assert_eq!(*workshop.why.borrow(), ["failed: x\nwhy"]);
    }

    /// The outcomes of a stage that does not end and of one after it, where the whole may take this
    /// long.
    fn two_stages(total: Duration, first: fn(&Workshop) -> Outcome) -> Vec<Outcome> {
        let workshop = Workshop::new(|| None).unwrap();
        let stage = |name, run| Stage { name, minutes: 10.0, what: "x", vital: false, run };
        let second: fn(&Workshop) -> Outcome = |_| Ok(());
        let (first, second) = (stage("first", first), stage("second", second));
        rows(&workshop, &[&first, &second], Instant::now() + total)
            .into_iter()
            .map(|row| row.outcome)
            .collect()
    }

    #[test]
    fn a_whole_that_takes_too_long_is_ended_by_us_and_still_has_its_table() {
        let sleeps: [fn(&Workshop) -> Outcome; 2] = [
            |workshop| workshop.run(Command::new("sleep").arg("602")),
            |workshop| workshop.build(Command::new("sh").args(["-c", "sleep 603; true"])),
        ];
        for sleep in sleeps {
            let began = Instant::now();
            let outcomes = two_stages(Duration::from_millis(300), sleep);
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
            let said: Vec<&str> =
                outcomes.iter().map(|outcome| outcome.as_ref().unwrap_err().as_str()).collect();
            assert!(
                said[0].starts_with("the 84 minutes of the whole are over: did not end"),
                "{said:?}"
            );
            assert_eq!(said[1], "not run: the 84 minutes of the whole are over");
        }
        assert_eq!(two_stages(Duration::from_secs(600), |_| Ok(())), [Ok(()), Ok(())]);
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
            workshop.run_all(
                vec![Job { name: "one".to_owned(), command, seconds: 1.0, alone: false }],
                2,
            )
        };
        let stage = |name, run| Stage { name, minutes: 10.0, what: "x", vital: false, run };
        let stages = [stage("first", sleeps), stage("second", |_| Ok(()))];
        let rows =
            rows(&workshop, &[&stages[0], &stages[1]], Instant::now() + Duration::from_secs(60));
        let said: Vec<&str> =
            rows.iter().map(|row| row.outcome.as_ref().unwrap_err().as_str()).collect();
        std::fs::remove_file(mark()).unwrap();
        assert!(said[0].starts_with("ended by signal 15: did not end"), "{said:?}");
        assert_eq!(said[1], "not run: ended by signal 15");
        assert!(workshop.sandbox.strays(Duration::from_secs(30)).is_empty());
    }

    #[test]
    fn a_command_that_leaves_a_process_behind_fails_and_says_which() {
        let workshop = Workshop::new(|| None).unwrap();
        workshop.limit.set(Instant::now() + Duration::from_secs(60));
        let mut command = Command::new("sh");
        // Until it is what it is to be: in between it shows nothing of what it is.
        command.args([
            "-c",
            "sleep 601 > /dev/null 2>&1 & until grep -qa ^sleep /proc/$!/cmdline; do :; done",
        ]);
        assert!(workshop.run(&mut command).is_err_and(|text| text.contains("sleep 601")));
        assert!(workshop.sandbox.strays(Duration::from_secs(30)).is_empty());
    }
}
