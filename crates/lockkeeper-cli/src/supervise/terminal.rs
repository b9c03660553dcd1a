//! The controlling terminal: who is in front, and handing the front over.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};

use nix::libc;
use nix::sys::stat::{SFlag, fstat};
use nix::unistd::{Pid, getpgrp, tcgetpgrp, tcsetpgrp};

/// The controlling terminal of our session.
#[derive(Debug)]
pub struct Terminal {
    tty: File,
    ours: Pid,
}

impl Terminal {
    /// Ours, if we have one.
    pub fn find() -> Option<Self> {
        let tty = OpenOptions::new().read(true).write(true).open("/dev/tty").ok()?;
        Some(Self { tty, ours: getpgrp() })
    }

    /// Whether our own process group is in front.
    pub fn is_ours(&self) -> bool {
        tcgetpgrp(&self.tty).is_ok_and(|front| front == self.ours)
    }

    /// Puts a process group in front. SIGTTOU must be blocked.
    pub fn give(&self, group: Pid) {
        _ = tcsetpgrp(&self.tty, group);
    }

    /// Puts our own group in front again, if `group` is there: if somebody else is, it is theirs.
    pub fn take_back(&self, group: Pid) {
        if tcgetpgrp(&self.tty).is_ok_and(|front| front == group) {
            self.give(self.ours);
        }
    }

    /// The descriptor's number, for a forked child.
    pub fn raw(&self) -> i32 {
        self.tty.as_raw_fd()
    }
}

/// Whether we stand in a pipeline: the other members share our process group and the terminal with
/// us.
pub fn in_pipeline() -> bool {
    let stdio = [libc::STDIN_FILENO, libc::STDOUT_FILENO];
    stdio.into_iter().any(|fd| {
        // SAFETY: both are open, by our caller or by us at the start.
        let fd = unsafe { BorrowedFd::borrow_raw(fd) };
        fstat(fd).is_ok_and(|stat| {
            let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
            kind == SFlag::S_IFIFO || kind == SFlag::S_IFSOCK
        })
    })
}

/// The width of the terminal behind a descriptor in columns; `None` when it is no terminal.
pub fn width(fd: impl AsFd) -> Option<usize> {
    size(fd).map(|(columns, _)| columns)
}

/// The columns and lines of the terminal behind a descriptor; `None` when it is no terminal.
pub fn size(fd: impl AsFd) -> Option<(usize, usize)> {
    let mut size = libc::winsize { ws_row: 0, ws_col: 0, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the call fills a `winsize` and nothing else.
    let answer = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), libc::TIOCGWINSZ, &raw mut size) };
    let or = |n: u16, usual: usize| if n == 0 { usual } else { usize::from(n) };
    (answer == 0).then(|| (or(size.ws_col, 80), or(size.ws_row, 24)))
}
