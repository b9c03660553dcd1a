//! The floor of the file engine: the calls that the rules require, and nothing else.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::libc;

/// A file for bare locks.
pub(crate) struct Bare(File);

impl Bare {
    pub(crate) fn open(path: &Path) -> std::io::Result<Self> {
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        file.set_len(4096)?;
        Ok(Self(file))
    }

    fn range(&self, command: libc::c_int, kind: libc::c_int) -> nix::Result<()> {
        let range = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: 0,
            l_start: 0,
            l_len: 3,
            l_pid: 0,
        };
        // SAFETY: the descriptor is open, and the range is a value of ours that outlives the call.
        let done = unsafe { libc::fcntl(self.0.as_fd().as_raw_fd(), command, &raw const range) };
        Errno::result(done).map(drop)
    }

    /// Takes the range, or fails.
    pub(crate) fn try_lock(&self) -> nix::Result<()> {
        self.range(libc::F_OFD_SETLK, libc::F_WRLCK)
    }

    /// Takes the range, waiting in the kernel.
    pub(crate) fn lock(&self) -> nix::Result<()> {
        self.range(libc::F_OFD_SETLKW, libc::F_WRLCK)
    }

    /// Gives it back.
    pub(crate) fn unlock(&self) -> nix::Result<()> {
        self.range(libc::F_OFD_SETLK, libc::F_UNLCK)
    }

    /// Lock, look at the file, read one record, write one, unlock.
    pub(crate) fn cycle(&self) -> std::io::Result<()> {
        let mut record = [0u8; 256];
        self.try_lock()?;
        self.0.metadata()?;
        self.0.read_exact_at(&mut record, 0)?;
        self.0.write_all_at(&record[..128], 128)?;
        self.unlock()?;
        Ok(())
    }

    /// flock and unlock alone.
    pub(crate) fn flock_cycle(&self) -> std::io::Result<()> {
        self.0.lock()?;
        self.0.unlock()
    }
}
