//! Server processes: how they end with us, and how they are signalled.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command};

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;

/// A server that ends with whoever starts it, whatever ends that, and that hears no Ctrl-C: whoever
/// started it does. The kernel looks at the thread that starts it, so that must be one that stays.
pub fn end_with_us(command: &mut Command) {
    command.process_group(0);
    // SAFETY: between fork and exec one system call is made, and nothing is allocated.
    unsafe {
        command.pre_exec(|| {
            nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).map_err(Into::into)
        });
    }
}

/// Signals a server's process, and nobody where there is none: what a fault did not hit did not
/// happen.
///
/// # Errors
/// When it does not run, or the signal cannot be sent.
pub fn signal_server(child: Option<&Child>, signal: Signal) -> std::io::Result<()> {
    let pid = child.and_then(|child| i32::try_from(child.id()).ok()).map(Pid::from_raw);
    // One that has ended and was not waited for yet keeps its number, and hears nothing.
    let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    let running = |pid: &Pid| matches!(waitid(Id::Pid(*pid), look), Ok(WaitStatus::StillAlive));
    let gone = || std::io::Error::new(std::io::ErrorKind::NotFound, "the server does not run");
    kill(pid.filter(running).ok_or_else(gone)?, signal).map_err(Into::into)
}
