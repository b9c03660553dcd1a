//! How the world was when we started: the clock, the standard descriptors, and what was ignored.

use std::fs::OpenOptions;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::sync::OnceLock;
use std::time::Duration;

use nix::libc;
use nix::time::{ClockId, clock_gettime};

/// An instant of the boot-time clock, which runs on in suspend.
pub type Moment = Duration;

static BEGAN: OnceLock<Moment> = OnceLock::new();

/// The instant now.
pub fn moment() -> Moment {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).unwrap_or_default()
}

/// The instant at which the program began: `-w` counts from here.
pub fn began() -> Moment {
    *BEGAN.get_or_init(moment)
}

/// To be called first of all.
pub fn begin() {
    began();
    occupy_standard_descriptors();
}

/// Puts /dev/null where stdin, stdout or stderr is closed, so that no lock file takes its number
/// and is written to as if it were the terminal. It is closed again when a command starts: the
/// command finds the descriptor as we found it.
fn occupy_standard_descriptors() {
    // SAFETY: asking for a descriptor's flags has no effect, whether it is open or not.
    while (0..3).any(|fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1) {
        match OpenOptions::new().read(true).write(true).open("/dev/null") {
            // The lowest free number is taken, and the file is opened close-on-exec.
            Ok(null) if null.as_raw_fd() < 3 => _ = null.into_raw_fd(),
            _ => return,
        }
    }
}

/// Whether a standard descriptor is one that we put there.
pub fn was_closed(fd: i32) -> bool {
    // Inherited descriptors cannot be close-on-exec, or they would not be here.
    // SAFETY: asking for a descriptor's flags has no effect.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
    flags == -1 || flags & libc::FD_CLOEXEC != 0
}
