//! The command as a job: its process, its process group, and its part in the terminal.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use nix::errno::Errno;
use nix::libc;
use nix::sys::prctl::set_child_subreaper;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid, setpgid};

use super::group::{self, Minded};
use super::signals::{Before, stop_by};
use super::terminal::{Terminal, in_pipeline};
use crate::failure::exit;

/// What to start.
pub struct Start<'a> {
    /// The program and its arguments.
    pub argv: &'a [OsString],
    /// Environment variables to set, or to remove where there is no value.
    pub environment: &'a [(&'static str, Option<OsString>)],
    /// A descriptor to leave open in the command, at a number that scripts do not use.
    pub inherit: Option<BorrowedFd<'a>>,
    /// How the command's process says that it is there, before it becomes the command.
    pub announce: Option<Announce<'a>>,
}

/// How a process that is about to become a command says so.
#[derive(Clone, Copy)]
pub struct Announce<'a> {
    /// Where to.
    pub line: BorrowedFd<'a>,
    /// Says whether it leads a group, and its process id; makes only async-signal-safe calls.
    pub say: fn(RawFd, bool, i32) -> io::Result<()>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// With this code.
    Exited(i32),
    /// By the signal of this number, which may be a realtime one.
    Killed(i32),
    /// Somebody else reaped it: that it ended is all that is known.
    Unknown,
}

impl Status {
    /// As an exit code: 128+N for a signal; our own failure where it is not known, and never
    /// success.
    pub fn code(self) -> u8 {
        match self {
            Self::Exited(code) => u8::try_from(code & 0xff).unwrap_or(u8::MAX),
            Self::Killed(signal) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
            Self::Unknown => exit::INTERNAL,
        }
    }
}

/// A signal's name: `SIGTERM`, `SIGRTMIN+3`.
pub fn signal_name(number: i32) -> String {
    match (Signal::try_from(number), number - libc::SIGRTMIN()) {
        (Ok(signal), _) => signal.as_str().to_owned(),
        (Err(_), 0) => "SIGRTMIN".to_owned(),
        (Err(_), above @ 1..) => format!("SIGRTMIN+{above}"),
        (Err(_), _) => format!("signal {number}"),
    }
}

/// What became of the command since it was last asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It ended.
    Ended(Status),
    /// It was stopped by this signal.
    Stopped(Signal),
}

/// A command that was started.
#[derive(Debug)]
pub struct Job {
    pid: Pid,
    own_group: bool,
    /// Whether its end was told, so that its number may be another's by now.
    ended: bool,
    /// The children that we had before it, when it is in our group.
    before: Vec<Pid>,
    _minded: Minded,
    terminal: Option<Terminal>,
    /// Whether our group was in front when it was started.
    in_front: bool,
}

/// Whether a command gets a process group of its own, and the terminal that goes with it.
#[derive(Debug)]
pub struct Plan {
    /// Whether the command gets a group of its own.
    pub own_group: bool,
    terminal: Option<Terminal>,
    in_front: bool,
}

impl Plan {
    /// Decides. On a terminal the other members of a pipeline must stay in front with the command.
    pub fn make(foreground: bool) -> Self {
        let terminal = Terminal::find();
        let in_front = terminal.as_ref().is_some_and(Terminal::is_ours);
        Self { own_group: !(foreground || in_front && in_pipeline()), terminal, in_front }
    }
}

impl Job {
    /// Starts a command.
    ///
    /// # Errors
    /// What kept it from being executed.
    pub fn start(start: &Start<'_>, plan: Plan, before: Before) -> io::Result<Self> {
        let mut command = command(start);
        let own_group = plan.own_group;
        if !own_group {
            // In our group only descent tells who belongs to the command, also after it has ended.
            // Where the system cannot do that, those whom it left behind are out of reach.
            _ = set_child_subreaper(true);
        }
        let children = if own_group { Vec::new() } else { group::children() };
        let tty = plan.terminal.as_ref().filter(|_| own_group && plan.in_front).map(Terminal::raw);
        let inherit = start.inherit.map(|fd| fd.as_raw_fd());
        let announce = start.announce.map(|to| (to.line.as_raw_fd(), to.say));
        // SAFETY: the closure makes only async-signal-safe calls and does not allocate.
        unsafe {
            command.pre_exec(move || {
                if own_group {
                    _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
                }
                if let Some(tty) = tty {
                    // SIGTTOU is still blocked, so that the group may put itself in front.
                    libc::tcsetpgrp(tty, getpid().as_raw());
                }
                if let Some(fd) = inherit {
                    leave_open(fd);
                }
                if let Some((line, say)) = announce {
                    say(line, own_group, getpid().as_raw())?;
                }
                before.restore();
                Ok(())
            });
        }
        let child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                if let Some(terminal) = plan.terminal.filter(|_| tty.is_some()) {
                    // The process that put its group in front is gone, and so nobody is in front.
                    terminal.give(nix::unistd::getpgrp());
                }
                return Err(error);
            }
        };
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX));
        let terminal = plan.terminal.filter(|_| own_group);
        Ok(Self {
            pid,
            own_group,
            ended: false,
            before: children,
            _minded: Minded::new(pid),
            terminal,
            in_front: tty.is_some(),
        })
    }

    /// Whether it has a group of its own.
    pub fn has_own_group(&self) -> bool {
        self.own_group
    }

    /// Whether the keyboard's signals went to its group instead of ours.
    pub fn was_in_front(&self) -> bool {
        self.in_front
    }

    /// What became of it.
    pub fn change(&mut self) -> Option<Change> {
        let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOHANG;
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
        // SAFETY: the call fills `info`, or leaves the zeroes; the fields that are read are those
        // of a waited-for child.
        let (answer, came, pid, value) = unsafe {
            let answer = libc::waitid(
                libc::P_PID,
                self.pid.as_raw().unsigned_abs(),
                info.as_mut_ptr(),
                flags,
            );
            let info = info.assume_init();
            (Errno::result(answer), info.si_code, info.si_pid(), info.si_status())
        };
        let change = match (answer, came) {
            (Err(Errno::ECHILD), _) => Some(Change::Ended(Status::Unknown)),
            (Ok(_), _) if pid == 0 => None,
            (Ok(_), libc::CLD_EXITED) => Some(Change::Ended(Status::Exited(value))),
            (Ok(_), libc::CLD_KILLED | libc::CLD_DUMPED) => {
                Some(Change::Ended(Status::Killed(value)))
            }
            (Ok(_), libc::CLD_STOPPED) => Signal::try_from(value).ok().map(Change::Stopped),
            _ => None,
        };
        self.ended |= matches!(change, Some(Change::Ended(_)));
        change
    }

    /// The command, as long as its number is its own.
    fn command(&self) -> Option<Pid> {
        (!self.ended).then_some(self.pid)
    }

    /// Sends a signal to its group, or to the command alone when it is in ours.
    pub fn signal(&self, signal: Signal) {
        let group = self.own_group.then(|| Pid::from_raw(-self.pid.as_raw()));
        _ = group.or(self.command()).map(|target| kill(target, signal));
    }

    /// Sends a signal that is to end it: to its group, or, in our group, to the command and its
    /// descendants.
    pub fn end(&self, signal: Signal) {
        if self.own_group {
            self.signal(signal);
        } else {
            group::signal_tree(self.command(), &self.before, signal);
        }
        // A stopped process acts on a signal only when it goes on.
        if signal != Signal::SIGKILL {
            self.signal(Signal::SIGCONT);
        }
    }

    /// Whether a process of its group still runs, after the command itself has ended; in our group,
    /// one that it started.
    pub fn group_is_alive(&self) -> bool {
        if self.own_group {
            group::is_alive(self.pid)
        } else {
            group::is_anybody_below(&self.before)
        }
    }

    /// Sees to those who came to us when the process above them ended: as the first process of a
    /// container everybody does, and nobody else could reap them.
    pub fn reap_orphans(&self) {
        if group::are_first() {
            group::reap_if_first();
        } else if !self.own_group {
            group::reap_orphans(self.pid);
        }
    }

    /// The command was stopped: with job control, we and those around us stop too, and it goes on
    /// when we do.
    pub fn stopped(&self, by: Signal) {
        let Some(terminal) = &self.terminal else { return };
        let wants_front = matches!(by, Signal::SIGTTIN | Signal::SIGTTOU);
        // Who sent it a STOP meant it alone, and will send it a CONT.
        if !wants_front && by != Signal::SIGTSTP {
            return;
        }
        if wants_front && terminal.is_ours() {
            return self.resume();
        }
        terminal.take_back(self.pid);
        // Where nobody could let us go on we do not stop, and nobody would let the command go on.
        // One that reads from a terminal that is not ours would only be stopped again, over and
        // over.
        if stop_by(by) || !wants_front {
            self.resume();
        }
    }

    /// We go on, and so does the command: in front, if that is where we are now.
    pub fn resume(&self) {
        if let Some(terminal) = &self.terminal
            && terminal.is_ours()
        {
            terminal.give(self.pid);
        }
        self.signal(Signal::SIGCONT);
    }

    /// Takes the terminal back after the last process of the group.
    pub fn take_terminal_back(&self) {
        if let Some(terminal) = &self.terminal {
            terminal.take_back(self.pid);
        }
    }
}

/// Becomes the command; returns only what kept it from being executed.
pub fn become_command(start: &Start<'_>, before: Before) -> io::Error {
    let mut command = command(start);
    let inherit = start.inherit.map(|fd| fd.as_raw_fd());
    // SAFETY: the closure makes only async-signal-safe calls and does not allocate.
    unsafe {
        command.pre_exec(move || {
            if let Some(fd) = inherit {
                leave_open(fd);
            }
            before.restore();
            Ok(())
        });
    }
    command.exec()
}

fn command(start: &Start<'_>) -> Command {
    let (program, arguments) =
        start.argv.split_first().map_or((OsStr::new(""), &[][..]), |(p, a)| (p.as_os_str(), a));
    let mut command = Command::new(program);
    command.args(arguments);
    for (key, value) in start.environment {
        match value {
            Some(value) => command.env(key, value),
            None => command.env_remove(key),
        };
    }
    command
}

/// Leaves a descriptor open over exec, above the numbers that scripts use for their own.
fn leave_open(fd: RawFd) {
    // SAFETY: plain system calls on a descriptor that our caller keeps open.
    unsafe {
        let flags = if libc::fcntl(fd, libc::F_DUPFD, 100) == -1 { 0 } else { libc::FD_CLOEXEC };
        libc::fcntl(fd, libc::F_SETFD, flags);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::waitpid;

    #[test]
    fn an_end_that_somebody_else_was_told_of_is_never_a_success() {
        let argv = ["true".into()];
        let start = Start { argv: &argv, environment: &[], inherit: None, announce: None };
        let signals = super::super::signals::Signals::take().unwrap();
        let mut job = Job::start(&start, Plan::make(true), signals.before()).unwrap();
        waitpid(job.pid, None).unwrap();
        assert_eq!(job.change(), Some(Change::Ended(Status::Unknown)));
        assert_eq!(Status::Unknown.code(), 125);
    }

    #[test]
    fn signals_have_names_and_codes_realtime_ones_too() {
        assert_eq!((signal_name(15), Status::Killed(15).code()), ("SIGTERM".to_owned(), 143));
        let lowest = libc::SIGRTMIN();
        assert_eq!(
            (signal_name(lowest), signal_name(lowest + 3)),
            ("SIGRTMIN".to_owned(), "SIGRTMIN+3".to_owned())
        );
        assert_eq!(Status::Killed(lowest).code(), 128 + u8::try_from(lowest).unwrap());
    }
}
