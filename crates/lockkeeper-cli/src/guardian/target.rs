//! What a guardian looks after: a command's process group, or, where it shares its caller's, the
//! command and its descendants.

use std::os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpgid};

use crate::supervise::group;

/// See the module.
pub struct Target {
    pid: Pid,
    own_group: bool,
    /// Readable when the command itself has ended.
    end: Option<OwnedFd>,
    /// The group that it shares.
    shared: Option<Pid>,
    /// The environment's line that all its descendants carry.
    mark: String,
}

impl Target {
    /// The command that has just been started; `hold` is what it finds as `LOCKKEEPER_OWNER`.
    pub fn new(own_group: bool, pid: i32, hold: Option<&str>) -> Self {
        let pid = Pid::from_raw(pid);
        // SAFETY: the call takes two numbers and answers a descriptor of our own, or -1.
        let end = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0) };
        let end = i32::try_from(end).ok().filter(|fd| *fd >= 0);
        // SAFETY: it was just made, and nobody else has it.
        let end = end.map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let shared = if own_group { None } else { getpgid(Some(pid)).ok() };
        Self {
            pid,
            own_group,
            end,
            shared,
            mark: format!("LOCKKEEPER_OWNER={}", hold.unwrap_or_default()),
        }
    }

    /// What to wait on, until the command itself has ended.
    pub fn end(&self) -> Option<BorrowedFd<'_>> {
        self.end.as_ref().map(|fd| fd.as_fd())
    }

    /// Whether the command itself has ended.
    pub fn has_ended(&self) -> bool {
        match &self.end {
            Some(end) => poll(&mut [PollFd::new(end.as_fd(), PollFlags::POLLIN)], 0u8)
                .is_ok_and(|ready| ready > 0),
            None => !group::runs(self.pid),
        }
    }

    /// Whether anything of it still runs.
    pub fn is_alive(&self) -> bool {
        if self.own_group {
            group::is_alive(self.pid)
        } else {
            !self.has_ended() || !self.left_behind().is_empty()
        }
    }

    /// Sends a signal to everything of it. What is stopped acts on it only when it goes on.
    pub fn signal(&self, signal: Signal) {
        if self.own_group {
            let group = Pid::from_raw(-self.pid.as_raw());
            _ = kill(group, signal);
            _ = kill(group, Signal::SIGCONT);
            return;
        }
        for signal in [signal, Signal::SIGCONT] {
            if !self.has_ended() {
                group::signal_tree(Some(self.pid), &[], signal);
            }
            self.left_behind().into_iter().for_each(|pid| _ = kill(pid, signal));
        }
    }

    /// Members of the shared group that carry our mark: the command's own, also when their parents
    /// are gone.
    fn left_behind(&self) -> Vec<Pid> {
        self.shared.map(|shared| group::marked(shared, self.mark.as_bytes())).unwrap_or_default()
    }
}
