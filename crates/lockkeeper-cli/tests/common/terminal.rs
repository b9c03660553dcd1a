//! A terminal of the test's own, with a session on it.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;
use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};

use super::{PATIENCE, Reaped, until};

/// A session on a terminal; what it writes is kept.
pub struct Terminal {
    master: File,
    seen: Arc<Mutex<String>>,
    pub leader: Reaped,
    /// Its modes before anybody had it.
    pub modes_before: Termios,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts a session whose leader is `command`, in front, with stdin, stdout and stderr on the
    /// terminal.
    pub fn start(command: Command) -> Self {
        Self::with_columns(command, 100)
    }

    /// The same on a terminal of so many columns, and 24 lines.
    pub fn with_columns(mut command: Command, columns: u16) -> Self {
        let size = Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).expect("a terminal");
        let modes_before = tcgetattr(&pty.master).expect("a terminal has modes");
        let slave = || Stdio::from(pty.slave.try_clone().expect("a descriptor"));
        command
            .stdin(slave())
            .stdout(slave())
            .stderr(slave())
            .env("TERM", "xterm")
            .env("PS1", "ready> ");
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
        // A terminal is hung up when its last master is closed: no program that a test starts may
        // have a copy.
        fcntl(&pty.master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).expect("a descriptor");
        let master = File::from(pty.master);
        let seen = Arc::new(Mutex::new(String::new()));
        let (mut reader, into) = (master.try_clone().expect("a descriptor"), Arc::clone(&seen));
        let reading = std::thread::spawn(move || {
            let mut buffer = [0; 4_096];
            // A terminal whose last user is gone answers with an error.
            // A character may come in two parts.
            let mut bytes = Vec::new();
            while let Ok(n @ 1..) = reader.read(&mut buffer) {
                bytes.extend_from_slice(&buffer[..n]);
                let whole = match std::str::from_utf8(&bytes) {
                    Err(part) if part.error_len().is_none() => part.valid_up_to(),
                    _ => bytes.len(),
                };
                *into.lock().expect("no panic there") += &String::from_utf8_lossy(&bytes[..whole]);
                bytes.drain(..whole);
            }
        });
        Self { master, seen, leader, modes_before, reader: Some(reading) }
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

    /// What was written and not waited for, once nobody has the terminal any more.
    pub fn rest(mut self) -> String {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("no panic there");
        }
        self.seen()
    }

    /// How keys come and what is shown of them.
    pub fn modes(&self) -> Termios {
        tcgetattr(&self.master).expect("the terminal is there")
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
        let answer =
            unsafe { libc::ioctl(self.master.as_raw_fd(), libc::TIOCGPGRP, &raw mut group) };
        assert_eq!(answer, 0, "within {PATIENCE:?} the terminal has somebody in front");
        group
    }
}

/// A test that failed half-way leaves nobody running or stopped in its session.
impl Drop for Terminal {
    fn drop(&mut self) {
        let session = self.leader.pid();
        let pids = std::fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|e| e.file_name().to_str()?.parse().ok());
        for pid in pids.filter(|pid: &i32| *pid != session) {
            // SAFETY: asking for a session has no effect, and only members of the test's own are
            // signalled.
            unsafe {
                if libc::getsid(pid) == session {
                    libc::kill(pid, libc::SIGKILL);
                }
            }
        }
    }
}
