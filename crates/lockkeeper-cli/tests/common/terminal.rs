//! A terminal of the test's own, with a session on it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::pty::{Winsize, openpty};

use super::{PATIENCE, Reaped, until};

/// A session on a terminal; what it writes is kept.
pub struct Terminal {
    master: File,
    seen: Arc<Mutex<String>>,
    pub leader: Reaped,
}

impl Terminal {
    /// Starts a session whose leader is `command`, in front, with stdin, stdout and stderr on the terminal.
    pub fn start(mut command: Command) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a terminal");
        let slave = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        command.stdin(slave()).stdout(slave()).stderr(slave()).env("TERM", "xterm").env("PS1", "ready> ");
        // SAFETY: only async-signal-safe calls between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::setsid();
                libc::ioctl(0, libc::TIOCSCTTY, 0);
                Ok(())
            });
        }
        let leader = Reaped::spawn(&mut command);
        drop(command);
        drop(pty.slave);
        // A terminal is hung up when its last master is closed: no program that a test starts may have a copy.
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("a descriptor");
        let master = File::from(pty.master);
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut reader, into) = (master.try_clone().expect("a descriptor"), Arc::clone(&seen));
        std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            // A terminal whose last user is gone answers with an error.
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                *into.lock().expect("no panic there") += &String::from_utf8_lossy(&buffer[..n]);
            }
        });
        Self { master, seen, leader }
    }

    /// An interactive shell with job control.
    pub fn shell(place: &super::Place) -> Self {
        let mut bash = place.program("bash");
        bash.args(["--norc", "--noprofile", "-i"]);
        let terminal = Self::start(bash);
        terminal.expect("ready> ");
        terminal
    }

    /// Types.
    pub fn type_in(&self, text: &str) {
        (&self.master).write_all(text.as_bytes()).expect("the terminal is there");
    }

    /// What was written so far.
    pub fn seen(&self) -> String {
        self.seen.lock().expect("no panic there").clone()
    }

    /// Waits until a text was written, and forgets what came before and itself.
    pub fn expect(&self, text: &str) -> String {
        until(&format!("the terminal shows {text:?}, and it shows {:?}", self.seen()), || {
            let mut seen = self.seen.lock().expect("no panic there");
            let at = seen.find(text)?;
            let before = seen[..at].to_owned();
            *seen = seen[at + text.len()..].to_owned();
            Some(before)
        })
    }

    /// The process group in front.
    pub fn front(&self) -> i32 {
        let mut group = 0;
        // SAFETY: the call writes one pid.
        let answer = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCGPGRP, &raw mut group) };
        assert_eq!(answer, 0, "within {PATIENCE:?} the terminal has somebody in front");
        group
    }
}

/// A test that failed half-way leaves nobody running or stopped in its session.
impl Drop for Terminal {
    fn drop(&mut self) {
        let session = self.leader.pid();
        let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok());
        for pid in pids.filter(|pid: &i32| *pid != session) {
            // SAFETY: asking for a session has no effect, and only members of the test's own are signalled.
            unsafe {
                if libc::getsid(pid) == session {
                    libc::kill(pid, libc::SIGKILL);
                }
            }
        }
    }
}
