//! Passes a test runner's output through, and keeps its closing lines.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, IsTerminal, Read, Write, stdout};
use std::mem;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::interrupt;
use crate::project::show;
use crate::stacks;

/// How often we look whether a silent command has ended.
const TICK: Duration = Duration::from_millis(200);
/// The same after its output ended.
const SOON: Duration = Duration::from_millis(5);
/// How long its output may stay open after it ended.
const LINGER: Duration = Duration::from_secs(5);

/// After how long without a line a program hangs.
const HANGS: Duration = Duration::from_secs(600);

/// How many lines are kept of what a command said last, and of each runner's failures.
const KEPT: usize = 40;

/// How a command ended, and the closing lines of the test runners in it.
pub struct Ended {
    /// `None` where it had to be ended by us.
    pub status: Option<ExitStatus>,
    /// Where its threads were when it had printed nothing for so long that it was ended.
    pub hung: Option<Vec<String>>,
    /// `test result: …`, untouched.
    pub closing: Vec<String>,
    /// What there is to say of a failure: each runner's part on its failed tests, or else the last
    /// lines.
    pub why: Vec<String>,
    /// The names in each runner's list of its failures, a list for a closing line.
    pub failed: Vec<Vec<String>>,
    /// What no slow machine explains: a line that says it of a lock, or that a test failed and the
    /// program ended without telling why.
    pub wrong: Option<String>,
    /// The tests that ran for long when it ended.
    pub long: Vec<String>,
    /// What it says could not be tried.
    pub not_tried: Vec<String>,
}

/// What is kept of a command's output, line by line.
#[derive(Default)]
struct Kept {
    closing: Vec<String>,
    failures: Vec<String>,
    last: VecDeque<String>,
    /// What stands below the last `failures:` since the last closing line.
    listed: Option<Vec<String>>,
    /// Whether a test has failed of which nothing is known but that.
    unexplained: bool,
    failed: Vec<Vec<String>>,
    wrong: Option<String>,
    /// What the runner said takes long, and has not ended since.
    long: Vec<String>,
    not_tried: Vec<String>,
    /// Lines that the present runner's part on its failures may still have; `None` outside of one.
    room: Option<usize>,
}

impl Kept {
    fn take(&mut self, line: String) {
        let text = plain(&line);
        if text == "failures:" {
            self.listed = Some(Vec::new());
        } else if let (Some(listed), Some(name)) = (&mut self.listed, text.strip_prefix("    ")) {
            listed.push(name.to_owned());
        }
        // Why, it is told at the end.
        self.unexplained |= test_of(&text, " ... FAILED").is_some();
        if self.wrong.is_none() && says_that_a_lock_is_wrong(&text) {
            self.wrong = Some(text.clone());
        }
        // It may stand behind the name of its test.
        let said = text.strip_prefix("test ").and_then(|rest| rest.split_once(" ... "));
        let said = said.map_or(&*text, |(_, said)| said);
        self.not_tried.extend(said.starts_with("NOT TRIED: ").then(|| said.to_owned()));
        if text.starts_with("test result: ") {
            self.room = None;
            self.failed.push(self.listed.take().unwrap_or_default());
            self.unexplained = false;
            self.closing.push(line.clone());
        } else if text == "failures:" && self.room.is_none() {
            self.room = Some(KEPT);
        } else if let Some(room) = self.room.filter(|room| *room > 0 && !text.is_empty()) {
            self.room = Some(room - 1);
            self.failures.push(line.clone());
        }
        if let Some(name) = test_of(&text, " has been running for over ") {
            self.long.push(name.to_owned());
        } else if let Some(name) = test_of(&text, " ... ") {
            self.long.retain(|long| long != name);
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    fn ended(mut self, status: Option<ExitStatus>, hung: Option<Vec<String>>) -> Ended {
        let (failures, last) = (mem::take(&mut self.failures), mem::take(&mut self.last));
        let why = if failures.is_empty() { last.into() } else { failures };
        let Self { closing, failed, mut wrong, long, not_tried, .. } = self;
        // A program that hung and was ended says why of none of its failures, and runs again.
        if self.unexplained && hung.is_none() {
            wrong.get_or_insert_with(|| "a test failed, and why is not known".to_owned());
        }
        Ended { status, hung, closing, why, failed, wrong, long, not_tried }
    }
}

impl Ended {
    /// What the last runner said, of a program that is one: the closing lines before its own come
    /// from runners that its tests have started.
    pub fn of_one_runner(mut self) -> Self {
        let before = self.closing.len().saturating_sub(1);
        self.closing.drain(..before);
        self.failed.drain(..before);
        self
    }
}

/// Two holders, a token that goes back, a lost update: what tests say of it, and the checker's
/// violations as torture prints them, as JSON and as they are debugged.
fn says_that_a_lock_is_wrong(line: &str) -> bool {
    /// The classes that `Class::verdict` calls broken, but for a try that was refused.
    const BROKEN: [(&str, &str); 15] = [
        ("overlap", "Overlap"),
        ("readers-with-writer", "ReadersWithWriter"),
        ("permits-exceeded", "PermitsExceeded"),
        ("token-order", "TokenOrder"),
        ("token-repeated", "TokenRepeated"),
        ("reentry-token", "ReentryToken"),
        ("reentry-after-loss", "ReentryAfterLoss"),
        ("foreign-release", "ForeignRelease"),
        ("double-release", "DoubleRelease"),
        ("hold-vanished", "HoldVanished"),
        ("held-after-deadline", "HeldAfterDeadline"),
        ("held-after-end", "HeldAfterEnd"),
        ("renewed-after-end", "RenewedAfterEnd"),
        ("stale-write-accepted", "StaleWriteAccepted"),
        ("lost-update", "LostUpdate"),
    ];
    if line.contains("BROKEN LOCK") {
        return true;
    }
    // A text within a text.
    let line = line.replace('\\', "");
    let violations = line.split_once("\"violations\":[").map_or("", |(_, rest)| rest);
    let violations = violations.split("\"expected_violations\":").next().unwrap_or_default();
    BROKEN.iter().any(|(word, debugged)| {
        violations.contains(&format!("\"class\":\"{word}"))
            || line.contains(&format!("class: {debugged}"))
    })
}

/// What the closing lines add up to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sum {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
    /// Tests that did not run.
    pub ignored: u64,
}

impl Sum {
    /// Tests of which something is said.
    pub fn ran(&self) -> u64 {
        self.passed + self.failed + self.ignored
    }
}

/// Runs a command to its end, printing what it prints; once it is `over` it calls `end`, which has
/// to end it.
///
/// # Errors
/// The command cannot be started or waited for.
pub fn run(
    command: &mut Command,
    over: impl Fn() -> bool,
    end: impl Fn(),
) -> Result<Ended, String> {
    follow(
        stdout(),
        command,
        |command| command.stdout(Stdio::piped()).spawn().map(with_output),
        None,
        over,
        end,
    )
}

/// The same for a command whose output, both kinds of it in their order, goes to `ours`. It is
/// ended as well when it has printed nothing for ten minutes.
///
/// # Errors
/// As above.
pub fn run_into(
    ours: impl Write + Send + 'static,
    command: &mut Command,
    over: impl Fn() -> bool,
    end: impl Fn(),
) -> Result<Ended, String> {
    follow(ours, command, with_one_output, Some(HANGS), over, end)
}

/// A command that was started, and what it prints.
type Started = (Child, Box<dyn Read + Send>);

fn with_output(mut child: Child) -> Started {
    let output = child.stdout.take();
    (
        child,
        output.map_or_else(
            || Box::new(io::empty()) as Box<dyn Read + Send>,
            |output| Box::new(output),
        ),
    )
}

fn with_one_output(command: &mut Command) -> io::Result<Started> {
    let (output, end) = io::pipe()?;
    command.stdout(end.try_clone()?).stderr(end);
    let child = command.spawn();
    // The command keeps its ends of the pipe, and the output would never end.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok((child?, Box::new(output)))
}

fn follow(
    ours: impl Write + Send + 'static,
    command: &mut Command,
    start: impl Fn(&mut Command) -> io::Result<Started>,
    hangs: Option<Duration>,
    over: impl Fn() -> bool,
    end: impl Fn(),
) -> Result<Ended, String> {
    let fail = |command: &Command, error| format!("{}: {error}", show(command));
    interrupt::with_default_signals(command.stdin(Stdio::null()));
    let (mut child, output) = start(command).map_err(|error| fail(command, error))?;
    let (sender, lines) = channel();
    thread::spawn(move || relay(output, ours, |line| _ = sender.send(line)));
    let mut kept = Kept::default();
    let (mut ended, mut said) = (None, Instant::now());
    loop {
        let line = lines.recv_timeout(TICK);
        let silent = line.is_err();
        match line {
            Ok(line) => {
                said = Instant::now();
                kept.take(line);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) if ended.is_some() => break,
            // It ends in a moment, or has closed its output and goes on.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(SOON),
        }
        // The output outlives the command where a process that it started has it too. That is for
        // the caller to name.
        let now = Instant::now();
        if ended.is_some_and(|when| now > when + if silent { LINGER } else { 12 * LINGER }) {
            break;
        }
        if ended.is_none() && child.try_wait().map_err(|error| fail(command, error))?.is_some() {
            ended = Some(now);
        }
        let hung = hangs.is_some_and(|hangs| now.saturating_duration_since(said) > hangs);
        if ended.is_none() && (hung || over()) {
            let hung = hung.then(|| stacks::of(child.id()));
            end();
            _ = child.kill();
            _ = child.wait();
            // What it said before that.
            let drained = Instant::now() + LINGER;
            while let Ok(line) = lines.recv_timeout(TICK) {
                kept.take(line);
                if Instant::now() > drained {
                    break;
                }
            }
            return Ok(kept.ended(None, hung));
        }
    }
    let status = child.wait().map_err(|error| fail(command, error))?;
    Ok(kept.ended(Some(status), None))
}

fn relay(output: impl Read, mut ours: impl Write, mut keep: impl FnMut(String)) {
    let mut reader = BufReader::new(output);
    let mut line = Vec::new();
    while reader.read_until(b'\n', &mut line).is_ok_and(|read| read > 0) {
        // Our own output may be closed; the tests go on.
        _ = ours.write_all(&line);
        keep(String::from_utf8_lossy(&line).trim_end().to_owned());
        line.clear();
    }
}

/// Whether a runner that writes to our pipe should colour its lines.
pub fn colour() -> &'static str {
    if stdout().is_terminal() { "always" } else { "never" }
}

/// Which test a line of a runner is about, if it goes on with these words.
fn test_of<'a>(line: &'a str, then: &str) -> Option<&'a str> {
    line.strip_prefix("test ")?.split_once(then).map(|(name, _)| name)
}

/// A line without its colours.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, after)| after))
}

/// Adds closing lines up.
pub fn sum(closing: &[String]) -> Sum {
    let mut sum = Sum::default();
    for line in closing {
        let line = plain(line);
        for part in line.split([';', '.']) {
            let mut words = part.split_whitespace();
            let Some(count) = words.next().and_then(|word| word.parse::<u64>().ok()) else {
                continue;
            };
            match words.next() {
                Some("passed") => sum.passed += count,
                Some("failed") => sum.failed += count,
                Some("ignored") => sum.ignored += count,
                _ => {}
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use nix::sys::signal::Signal;

    use super::*;

    /// Until a hang is a hang.
    const PATIENCE: Duration = Duration::from_secs(600);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn quiet(script: &str, limit: Duration) -> Ended {
        let until = Instant::now() + limit;
        run_into(io::sink(), &mut shell(script), || Instant::now() > until, || {}).unwrap()
    }

    #[test]
    fn closing_lines_are_kept_as_they_are_and_added_up() {
        let script = "echo running; echo 'test result: ok. 3 passed; 0 failed; 1 ignored; \
                      0 measured; 2 filtered out; finished in 0.01s'; \
                      printf 'test result: \\033[31mFAILED\\033[0m. 1 passed; 2 failed; 0 ignored; \
                      0 measured\\n'; exit 7";
        let ended = quiet(script, PATIENCE);
        assert_eq!(ended.status.and_then(|status| status.code()), Some(7));
        assert_eq!(ended.closing.len(), 2);
        assert!(ended.closing[0].ends_with("finished in 0.01s"));
        assert_eq!(sum(&ended.closing), Sum { passed: 4, failed: 2, ignored: 1 });
    }

    #[test]
    fn what_failed_is_kept_for_the_end_and_is_short() {
        let ended = quiet("seq 100; echo 'torn apart'; exit 1", PATIENCE);
        assert_eq!(
            (ended.why.len(), ended.why.last().map(String::as_str)),
            (KEPT, Some("torn apart"))
        );
        let runner = "echo 'test a::test ... FAILED'; echo 'test b::test ... ok'; \
                      echo failures:; echo '---- a::test stdout ----'; echo 'left: 1'; seq 100; \
                      echo failures:; echo '    a::test'; echo 'test result: FAILED. 0 passed'";
        let ended = quiet(&format!("{runner}; {runner}; echo after; exit 1"), PATIENCE);
        assert_eq!((ended.why.len(), ended.closing.len()), (2 * KEPT, 2));
        assert_eq!(ended.why[..2], ["---- a::test stdout ----", "left: 1"]);
        assert_eq!((ended.failed, ended.wrong), (vec![vec!["a::test".to_owned()]; 2], None));
    }

    #[test]
    fn what_was_not_tried_is_kept_for_the_end() {
        let script = "echo 'NOT TRIED: a'; echo 'test x ... NOT TRIED: b'; echo 'test x ... ok'";
        let ended = quiet(script, PATIENCE);
        assert_eq!(ended.not_tried, ["NOT TRIED: a", "NOT TRIED: b"]);
    }

    #[test]
    fn what_a_test_prints_as_it_fails_is_no_list_of_failures() {
        let script = "echo 'test result: ok. 9 passed'; echo failures:; \
                      echo '---- a::b stdout ----'; echo failures:; echo '    no::test'; echo; \
                      echo 'test result: FAILED. 0 passed; 7 failed'; echo failures:; \
                      echo '    a::b'; echo '    c::d'; echo; \
                      echo 'test result: FAILED. 0 passed; 2 failed'";
        let ended = quiet(script, PATIENCE).of_one_runner();
        assert_eq!(ended.failed, [["a::b", "c::d"]]);
        assert_eq!(sum(&ended.closing).failed, 2);
        assert!(quiet("echo failures:; echo '    a::b'", PATIENCE).failed.is_empty(), "no end");
    }

    #[test]
    fn a_failure_whose_reason_was_not_told_any_more_is_no_slowness() {
        let ended = quiet("echo 'test a::b ... FAILED'; exec sleep 600", Duration::from_secs(5));
        assert!(ended.status.is_none() && ended.wrong.is_some());
        let told = "echo 'test a::b ... FAILED'; echo 'test result: FAILED. 0 passed; 1 failed'";
        assert_eq!(quiet(told, PATIENCE).wrong, None);
    }

    #[test]
    fn what_no_slow_machine_explains_is_kept() {
        let wrong = |said: &str| {
            let script = format!("cat <<'E'\n{said}\nE\n");
            quiet(&script, PATIENCE).wrong.is_some()
        };
        for said in [
            "  left: 2, right: 1: BROKEN LOCK: two holders",
            r#"out: "{\"violations\":[{\"class\":\"lost-update-fenced\",\"count\":1}]}""#,
            "[Violation { class: Overlap, name: \"a\" }]",
        ] {
            assert!(wrong(said), "{said}");
        }
        for said in [
            "not within 10s: it is granted",
            "layout=plain does not exclude layout=native, so there can be two holders",
            r#"{"violations":[{"class":"late-loss"}],"expected_violations":[{"class":"overlap"}]}"#,
        ] {
            assert!(!wrong(said), "{said}");
        }
    }

    #[test]
    fn a_program_starts_with_its_signals_at_their_defaults() {
        let ignored = interrupt::ignoring(Signal::SIGUSR1);
        let ended = quiet("kill -USR1 $$; exit 3", PATIENCE);
        drop(ignored);
        assert_eq!(ended.status.and_then(|status| status.signal()), Some(Signal::SIGUSR1 as i32));
    }

    #[test]
    fn a_test_that_hangs_is_named() {
        let long = "has been running for over 60 seconds";
        let script = format!(
            "echo 'test a::b {long}'; echo 'test c::d {long}'; echo 'test a::b ... ok'; \
             echo 'test e::f ... ok'; exec sleep 600"
        );
        let ended = quiet(&script, Duration::from_secs(5));
        assert_eq!((ended.status, ended.long), (None, vec!["c::d".to_owned()]));
    }

    #[test]
    fn a_process_that_keeps_the_output_open_does_not_keep_us() {
        let ended = quiet(
            "sleep 600 2> /dev/null & echo \"test result: $! is the sleeper\"",
            Duration::from_secs(600),
        );
        assert!(ended.status.is_some_and(|status| status.success()));
        let sleeper = ended.closing[0].split_whitespace().nth(2).unwrap();
        assert!(
            shell(&format!("kill {sleeper}")).status().unwrap().success(),
            "it lives on, for the caller to name"
        );
    }

    #[test]
    fn a_program_that_is_silent_for_long_hangs_and_its_stacks_are_kept() {
        let quick = Some(Duration::from_millis(300));
        let mut sleep = shell("exec sleep 600");
        let ended =
            follow(io::sink(), &mut sleep, with_one_output, quick, || false, || {}).unwrap();
        assert!(ended.status.is_none() && ended.hung.is_some_and(|stacks| !stacks.is_empty()));
        assert!(quiet("exec sleep 600", Duration::from_millis(100)).hung.is_none(), "it was ended");
    }

    #[test]
    fn a_command_that_does_not_end_is_ended() {
        for script in ["exec sleep 600", "exec sleep 600 >&- 2>&-"] {
            assert!(quiet(script, Duration::from_millis(100)).status.is_none(), "{script}");
        }
    }
}
