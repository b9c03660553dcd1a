//! The guardian's process, as whoever hired it sees it.

use std::cell::Cell;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, poll};
use nix::unistd::Pid;

use crate::guardian::{Heard, Line, Order, Sheet, Tell, WORD, read};
use crate::start::{Moment, moment};
use crate::supervise::group::{self, Minded};
use crate::supervise::timeout;

/// How long it may take to end once it is not wanted any more.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// The guardian's process. Dropping it lets it go: it gives back what it has, and ends.
pub(super) struct Guardian {
    pub(super) child: Child,
    pub(super) _minded: Option<Minded>,
    pub(super) line: Line,
    pub(super) sheet: Sheet,
    /// Its end of the line is closed: it is gone.
    pub(super) gone: Cell<bool>,
    /// Whether its end is waited for.
    pub(super) is_waited_for: Cell<bool>,
}

impl Guardian {
    /// Starts it. The order goes over the line: it holds the URL with its password.
    pub(super) fn hire(order: &Order) -> std::io::Result<Self> {
        let (line, its_end) = Line::pair()?;
        let sheet = Sheet::new()?;
        line.say(order)?;
        // This very program, also when its file was replaced or removed meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lockkeeper").args([WORD, &order.name]);
        command.stdin(its_end).stdout(sheet.share()?).stderr(Stdio::null());
        // SAFETY: setsid(2) is async-signal-safe.
        unsafe {
            command.pre_exec(|| {
                nix::unistd::setsid()?;
                Ok(())
            });
        }
        let child = command.spawn()?;
        let minded = i32::try_from(child.id()).ok().map(|pid| Minded::new(Pid::from_raw(pid)));
        let (gone, is_waited_for) = (Cell::new(false), Cell::new(true));
        Ok(Self { child, _minded: minded, line, sheet, gone, is_waited_for })
    }

    pub(super) fn is_stopped(&self) -> bool {
        i32::try_from(self.child.id()).is_ok_and(|pid| group::is_stopped(Pid::from_raw(pid)))
    }

    /// Whether it keeps nothing any more: it is gone, or the lease is over, or as good as over for
    /// a command that would have to be stopped.
    pub(super) fn has_let_go(&self, stops: bool) -> bool {
        let until = self.sheet.read().map(|times| if stops { times.term } else { times.end });
        self.line.is_closed() || until.is_some_and(|until| moment() >= until)
    }

    /// Ends one that we have given up: its lease ends by itself.
    pub(super) fn end(&mut self) {
        _ = self.child.kill();
        self.gone.set(true);
    }

    /// The next thing that it tells.
    pub(super) fn tells(&self) -> Option<Tell> {
        while !self.gone.get() {
            match self.line.hear() {
                Heard::Nothing => return None,
                // What it said is read whole or not at all.
                Heard::Message(message) => match read(&message) {
                    Some(tell) => return Some(tell),
                    None => continue,
                },
                Heard::Gone => self.gone.set(true),
            }
        }
        None
    }

    /// The next thing that it tells, within this time.
    pub(super) fn tells_until(&self, until: Moment) -> Option<Tell> {
        loop {
            let told = self.tells();
            let left = until.saturating_sub(moment());
            if told.is_some() || self.gone.get() || left.is_zero() {
                return told;
            }
            _ = poll(&mut [PollFd::new(self.line.as_fd(), PollFlags::POLLIN)], timeout(Some(left)));
        }
    }
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.line.close();
        let within = if self.is_waited_for.get() { ENDS_WITHIN } else { Duration::ZERO };
        let until = moment() + within;
        while !self.gone.get() && moment() < until {
            self.tells_until(until);
        }
        // One that is still at it ends by itself; one that somebody has stopped would stay for
        // ever.
        if !self.gone.get() && self.is_stopped() {
            self.end();
        }
        if self.gone.get() {
            _ = self.child.wait();
        }
    }
}
