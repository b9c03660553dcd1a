//! Somebody else's lock, behind a program that speaks lines; docs/torture.md describes them. One
//! process a thread.

use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::orders::Orders;
use super::raw::{Ending, GiveUp, Grant, RawLock, Style};

/// How the threads use it.
pub(super) const STYLE: Style = Style { write_ms: (0, 5), ..Style::PLAIN };
/// How long one `acquire` may wait.
const SLICE_MS: u32 = 1_000;
/// How long a program that failed is left alone.
const BREATH: Duration = Duration::from_millis(100);
/// Within which time every answer has to come; that to `acquire` may take as much longer as it may
/// wait.
const ANSWERS_WITHIN: Duration = Duration::from_secs(10);
/// Within which time a program that was started has to read its first line.
const STARTS_WITHIN: Duration = Duration::from_secs(30);
/// How often a program that starts is looked at: nothing tells when somebody reads from a pipe.
const LOOKS_EVERY: Duration = Duration::from_millis(2);
/// At most so much of a wait counts at a time: somebody who was stopped meanwhile did not wait.
const COUNTS: Duration = Duration::from_millis(100);
/// How long an answer may be.
const ANSWER_MAX: usize = 4_096;

/// See the module.
pub(super) struct Exec {
    command: String,
    url: String,
    lease_ms: String,
    label: String,
    answers_within: Duration,
    starts_within: Duration,
    running: Option<Running>,
    /// It was started, and has read an `acquire` that nobody has heard the answer to.
    asked: bool,
    /// It was told that it holds.
    holding: bool,
    /// What holds did not answer, or ended. It is ended once it is written down that its hold is
    /// over, and nobody else is asked to release.
    failed: bool,
}

struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    /// What came after the last line.
    rest: Vec<u8>,
}

impl Running {
    fn say(&mut self, line: &str) -> io::Result<()> {
        writeln!(self.stdin, "{line}").and_then(|()| self.stdin.flush())
    }

    /// The next line, within a time.
    fn hear(&mut self, mut left: Duration) -> io::Result<String> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.rest.drain(..=end).collect();
                return Ok(String::from_utf8_lossy(&line).trim_end().to_owned());
            }
            if left.is_zero() || self.rest.len() > ANSWER_MAX {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let began = Instant::now();
            let wait = PollTimeout::try_from(left.min(COUNTS)).unwrap_or(PollTimeout::ZERO);
            if poll(&mut [PollFd::new(self.stdout.as_fd(), PollFlags::POLLIN)], wait)? > 0 {
                let mut bytes = [0; 1_024];
                let length = self.stdout.read(&mut bytes)?;
                self.rest.extend(bytes.iter().take(length));
                if length == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            left = left.saturating_sub(counted(began.elapsed()));
        }
    }
}

impl Running {
    /// Waits until the program has read what was said to it, or answers, or has ended.
    fn reads(&self, mut left: Duration, give_up: &GiveUp) -> io::Result<()> {
        while rustix::io::ioctl_fionread(&self.stdin)? > 0 {
            if left.is_zero() || give_up.is_now() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let began = Instant::now();
            let look = PollTimeout::try_from(LOOKS_EVERY).unwrap_or(PollTimeout::ZERO);
            if poll(&mut [PollFd::new(self.stdout.as_fd(), PollFlags::POLLIN)], look)? > 0 {
                break;
            }
            left = left.saturating_sub(counted(began.elapsed()));
        }
        Ok(())
    }
}

impl Drop for Running {
    /// Ends it, and all that it started: it stays in the group of its client, which is stopped and
    /// killed as one.
    fn drop(&mut self) {
        let all = descendants(self.child.id());
        // It may have ended by itself.
        let _ = self.child.kill();
        for pid in all.into_iter().filter_map(|pid| i32::try_from(pid).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        let _ = self.child.wait();
    }
}

/// How much of the time that one look took counts.
fn counted(took: Duration) -> Duration {
    took.clamp(Duration::from_millis(1), COUNTS)
}

/// The processes that this one started, and those that they did.
fn descendants(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(parent) = all.get(next).copied() {
        for task in
            std::fs::read_dir(format!("/proc/{parent}/task")).into_iter().flatten().flatten()
        {
            let children =
                std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
            all.extend(children.split_whitespace().filter_map(|word| word.parse::<u32>().ok()));
        }
        next += 1;
    }
    all.split_off(1)
}

impl Exec {
    pub(super) fn of(orders: &Orders, command: &str) -> Self {
        let lease_ms = orders.recovery.as_millis().to_string();
        let (url, label) = (orders.url.clone(), orders.label.clone());
        let command = command.to_owned();
        Self {
            command,
            url,
            lease_ms,
            label,
            answers_within: ANSWERS_WITHIN,
            starts_within: STARTS_WITHIN,
            running: None,
            asked: false,
            holding: false,
            failed: false,
        }
    }

    fn start(&self) -> io::Result<Running> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command
            .env("LOCKKEEPER_TORTURE_URL", &self.url)
            .env("LOCKKEEPER_TORTURE_TTL_MS", &self.lease_ms);
        // SAFETY: between fork and exec one system call is made, and nothing is allocated.
        unsafe {
            use std::os::unix::process::CommandExt as _;
            command
                .pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
        }
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Running { child, stdin, stdout, rest: Vec::new() })
    }

    /// Says a line and hears one, within a time. A program that ended is started again with the
    /// next line; one that does not answer is ended.
    fn ask(&mut self, line: &str, within: Duration) -> io::Result<String> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let running = self.running.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let asked = if std::mem::take(&mut self.asked) { Ok(()) } else { running.say(line) };
        let heard = asked.and_then(|()| running.hear(within));
        let verb = line.split(' ').next().unwrap_or_default();
        heard.inspect_err(|error| {
            self.is_over(
                error,
                &format!("did not answer {verb:?} within {} s", within.as_secs_f32()),
            )
        })
    }

    /// The program has ended, or does not do in time what it has to.
    fn is_over(&mut self, error: &io::Error, late: &str) {
        if error.kind() == io::ErrorKind::TimedOut {
            eprintln!("lockkeeper: torture: {}: the command {late}, and is ended", self.label);
        }
        if self.holding {
            self.failed = true;
        } else {
            self.running = None;
            std::thread::sleep(BREATH);
        }
    }
}

impl Exec {
    /// It holds. One that says so and does not know until when, or with which token, is ended: it
    /// may hold, and must not be asked for another lock on top.
    fn held(&mut self, deadline: &str) -> io::Result<Grant> {
        let within = self.answers_within;
        let grant = number(deadline).and_then(|deadline| {
            Ok(Grant { token: number(&self.ask("token", within)?)?, deadline })
        });
        self.holding = grant.is_ok();
        if grant.is_err() {
            self.running = None;
        }
        grant
    }
}

/// The line that asks for a lock.
fn acquire(name: &str) -> String {
    format!("acquire {name} {SLICE_MS}")
}

/// A number, or `-` for none.
fn number(word: &str) -> io::Result<u64> {
    if word == "-" {
        return Ok(0);
    }
    word.parse().map_err(|_| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{word:?} is neither a number nor -"))
    })
}

impl RawLock for Exec {
    /// Starts the program where it does not run, and waits until it has read its first line.
    fn ready(&mut self, name: &str, give_up: &GiveUp) -> io::Result<()> {
        if self.running.is_some() {
            return Ok(());
        }
        let mut running = self.start()?;
        let reads =
            running.say(&acquire(name)).and_then(|()| running.reads(self.starts_within, give_up));
        self.asked = reads.is_ok();
        self.running = Some(running);
        if give_up.is_now() {
            // It was told to end while its program started: nothing is wrong with that.
            self.running = self.running.take().filter(|_| self.asked);
            return reads;
        }
        reads.inspect_err(|error| {
            self.is_over(
                error,
                &format!("read nothing within {} s of its start", self.starts_within.as_secs_f32()),
            )
        })
    }

    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let within = Duration::from_millis(SLICE_MS.into()) + self.answers_within;
        // An answer that is under way is heard: the program may hold.
        while self.asked || !give_up.is_now() {
            let answer = self.ask(&acquire(name), within)?;
            match answer.split_once(' ') {
                Some(("held", deadline)) => return self.held(deadline).map(Some),
                None if answer == "busy" => {}
                _ => return Err(io::Error::other(answer)),
            }
        }
        Ok(None)
    }

    fn holds(&mut self) -> bool {
        !self.failed && self.ask("check", self.answers_within).is_ok_and(|answer| answer == "yes")
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.holding = false;
        if std::mem::take(&mut self.failed) {
            self.running = None;
            return Ok(Ending::Unknown);
        }
        Ok(match self.ask("release", self.answers_within)?.as_str() {
            "released" => Ending::Released,
            "not-ours" => Ending::NotOurs,
            _ => Ending::Unknown,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saying(held: &str, token: &str) -> Exec {
        let answers = format!("case $line in token) echo {token};; *) echo held {held};; esac");
        let command = format!("cd / && while read -r line; do {answers}; done");
        exec(command)
    }

    fn exec(command: String) -> Exec {
        let orders = Orders { label: "client 1".to_owned(), ..Orders::default() };
        Exec { answers_within: Duration::from_secs(2), ..Exec::of(&orders, &command) }
    }

    /// Answers everything but one word, and has a child of its own.
    fn silent_on(word: &str, dir: &std::path::Path) -> Exec {
        let answers = format!(
            "case $line in {word}*) ;; acquire*) echo held -;; token) echo -;; check) echo yes;; \
             *) echo released;; esac"
        );
        let note = "echo $$ >> pids; sleep 1000 & echo $! >> pids";
        exec(format!(
            "cd '{}' && {{ {note}; while read -r line; do {answers}; done; }}",
            dir.display()
        ))
    }

    fn pids(dir: &std::path::Path) -> Vec<String> {
        std::fs::read_to_string(dir.join("pids")).unwrap().lines().map(str::to_owned).collect()
    }

    fn lives(pid: &str) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state
            .rsplit(')')
            .next()
            .is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with('Z'))
    }

    #[test]
    fn a_command_that_does_not_answer_is_ended_with_all_that_it_started_and_one_that_holds_only_after_its_hold_is_over()
     {
        let give_up = || GiveUp::within(Duration::from_secs(60));
        for word in ["acquire", "token", "check", "release"] {
            let dir = tempfile::tempdir().unwrap();
            let mut exec = silent_on(word, dir.path());
            let got = exec.acquire("a", &give_up());
            if word == "acquire" || word == "token" {
                assert_eq!(got.unwrap_err().kind(), io::ErrorKind::TimedOut, "{word}");
            } else {
                assert_eq!(got.unwrap(), Some(Grant::default()));
                assert_eq!(exec.holds(), word != "check");
                assert!(
                    pids(dir.path()).iter().all(|pid| lives(pid)),
                    "{word}: it may hold until that is written down"
                );
                let released = exec.release();
                assert!(
                    if word == "check" {
                        released.unwrap() == Ending::Unknown
                    } else {
                        released.is_err()
                    },
                    "{word}"
                );
            }
            let pids = pids(dir.path());
            assert_eq!(pids.len(), 2, "{word}: nobody is started to release what another holds");
            let until = Instant::now() + Duration::from_secs(10);
            while pids.iter().any(|pid| lives(pid)) {
                assert!(Instant::now() < until, "{word}: {pids:?} live on");
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn c17_a_program_is_ready_once_it_has_read_its_first_line_and_what_it_answered_is_not_asked_again()
     {
        let dir = tempfile::tempdir().unwrap();
        let go = dir.path().join("go");
        nix::unistd::mkfifo(&go, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let answers = "while read -r line; do echo \"$line\" >> asked; echo held 7; done";
        let mut exec =
            exec(format!("cd '{}' && read -r _ < go && {answers}", dir.path().display()));
        // Until somebody writes into it the program starts.
        let give_up = GiveUp::within(Duration::from_millis(300));
        let begun = Instant::now();
        assert_eq!(exec.ready("a", &give_up).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(begun.elapsed() >= Duration::from_millis(300) && exec.running.is_none());
        let starts = std::thread::spawn(move || std::fs::write(go, "now\n").unwrap());
        let give_up = GiveUp::within(Duration::from_secs(20));
        exec.ready("a", &give_up).unwrap();
        starts.join().unwrap();
        assert_eq!(exec.ask("acquire a 1000", Duration::from_secs(20)).unwrap(), "held 7");
        exec.ready("a", &give_up).unwrap();
        assert!(!exec.asked, "it runs");
        assert_eq!(std::fs::read_to_string(dir.path().join("asked")).unwrap(), "acquire a 1000\n");
    }

    #[test]
    fn c17_a_program_that_ends_before_it_reads_or_never_reads_is_not_ready() {
        let give_up = GiveUp::within(Duration::from_secs(60));
        let mut ends = exec("exit 3".to_owned());
        // What it was told may have been read by nobody, or lie in a pipe that nobody has.
        assert!(ends.ready("a", &give_up).and_then(|()| ends.acquire("a", &give_up)).is_err());
        let mut never =
            Exec { starts_within: Duration::from_millis(50), ..exec("exec sleep 1000".to_owned()) };
        assert_eq!(never.ready("a", &give_up).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(never.running.is_none(), "it is ended");
    }

    #[test]
    fn the_time_in_which_a_client_stood_still_with_its_command_counts_for_no_more_than_one_look() {
        assert_eq!(counted(Duration::from_secs(30)), COUNTS);
        assert_eq!(counted(COUNTS / 2), COUNTS / 2);
        assert!(
            !counted(Duration::ZERO).is_zero(),
            "a command that sends and sends comes to its end"
        );
    }

    #[test]
    fn a_command_is_what_a_shell_understands_and_is_ended_after_an_answer_that_is_none() {
        for (held, token, grant) in [
            ("7", "3", Some((7, 3))),
            ("-", "-", Some((0, 0))),
            ("soon", "3", None),
            ("7", "high", None),
        ] {
            let mut exec = saying(held, token);
            assert_eq!(
                exec.ask("acquire a 1", Duration::from_secs(20)).unwrap(),
                format!("held {held}")
            );
            exec.answers_within = Duration::from_secs(20);
            assert_eq!(exec.held(held).ok().map(|grant| (grant.deadline, grant.token)), grant);
            assert_eq!(exec.running.is_some(), grant.is_some(), "{held} {token}");
        }
    }
}
