//! Somebody else's lock, behind a program that speaks lines; docs/torture.md describes them. One process a thread.

use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::orders::Orders;
use super::raw::{Ending, GiveUp, Grant, RawLock, Style};

/// How the threads use it.
pub(super) const STYLE: Style = Style { write_ms: (0, 5), ..Style::PLAIN };
/// How long one `acquire` may wait.
const SLICE_MS: u32 = 1_000;
/// How long a program that failed is left alone.
const BREATH: Duration = Duration::from_millis(100);

/// See the module.
pub(super) struct Exec {
    command: String,
    url: String,
    lease_ms: String,
    running: Option<Running>,
}

struct Running {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Exec {
    pub(super) fn of(orders: &Orders, command: &str) -> Self {
        let lease_ms = orders.recovery.as_millis().to_string();
        Self { command: command.to_owned(), url: orders.url.clone(), lease_ms, running: None }
    }

    fn start(&self) -> io::Result<Running> {
        let mut command = Command::new("sh");
        command.args(["-c", &self.command]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env("LOCKKEEPER_TORTURE_URL", &self.url).env("LOCKKEEPER_TORTURE_TTL_MS", &self.lease_ms);
        // SAFETY: between fork and exec one system call is made, and nothing is allocated.
        unsafe {
            use std::os::unix::process::CommandExt as _;
            command.pre_exec(|| nix::sys::prctl::set_pdeathsig(Signal::SIGKILL).map_err(Into::into));
        }
        let mut child = command.spawn()?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::ErrorKind::BrokenPipe.into());
        };
        Ok(Running { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// Says a line and hears one. A program that ended is started again with the next line.
    fn ask(&mut self, line: &str) -> io::Result<String> {
        if self.running.is_none() {
            self.running = Some(self.start()?);
        }
        let running = self.running.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let mut answer = String::new();
        let asked = writeln!(running.stdin, "{line}").and_then(|()| running.stdin.flush());
        match asked.and_then(|()| running.stdout.read_line(&mut answer)) {
            Ok(length) if length > 0 => Ok(answer.trim_end().to_owned()),
            other => {
                self.running = None;
                std::thread::sleep(BREATH);
                Err(other.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
            }
        }
    }
}

impl Exec {
    /// It holds. One that says so and does not know until when, or with which token, is ended: it may hold, and must not be asked
    /// for another lock on top.
    fn held(&mut self, deadline: &str) -> io::Result<Grant> {
        let grant = number(deadline).and_then(|deadline| Ok(Grant { token: number(&self.ask("token")?)?, deadline }));
        if grant.is_err() {
            self.running = None;
        }
        grant
    }
}

/// A number, or `-` for none.
fn number(word: &str) -> io::Result<u64> {
    if word == "-" {
        return Ok(0);
    }
    word.parse().map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{word:?} is neither a number nor -")))
}

impl RawLock for Exec {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        while !give_up.is_now() {
            let answer = self.ask(&format!("acquire {name} {SLICE_MS}"))?;
            match answer.split_once(' ') {
                Some(("held", deadline)) => return self.held(deadline).map(Some),
                None if answer == "busy" => {}
                _ => return Err(io::Error::other(answer)),
            }
        }
        Ok(None)
    }

    fn holds(&mut self) -> bool {
        self.ask("check").is_ok_and(|answer| answer == "yes")
    }

    fn release(&mut self) -> io::Result<Ending> {
        Ok(match self.ask("release")?.as_str() {
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
        Exec { command, url: String::new(), lease_ms: String::new(), running: None }
    }

    #[test]
    fn a_command_is_what_a_shell_understands_and_is_ended_after_an_answer_that_is_none() {
        for (held, token, grant) in [("7", "3", Some((7, 3))), ("-", "-", Some((0, 0))), ("soon", "3", None), ("7", "high", None)] {
            let mut exec = saying(held, token);
            assert_eq!(exec.ask("acquire a 1").unwrap(), format!("held {held}"));
            assert_eq!(exec.held(held).ok().map(|grant| (grant.deadline, grant.token)), grant);
            assert_eq!(exec.running.is_some(), grant.is_some(), "{held} {token}");
        }
    }
}
