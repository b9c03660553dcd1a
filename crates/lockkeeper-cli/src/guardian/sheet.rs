//! When the command must be stopped, on a sheet that both can read: whoever lives longest keeps to
//! it. And whose the grant is: of the one who seals the sheet first.

use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

use super::duty::Times;

/// See the module.
#[derive(Debug)]
pub struct Sheet(File);

impl Sheet {
    /// A new one, in memory.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let memory =
            memfd_create(c"lockkeeper", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        Ok(Self(File::from(memory)))
    }

    /// The one that a guardian finds as its standard output.
    pub fn of_stdout() -> Self {
        // SAFETY: it is open, and nothing of a guardian prints.
        Self(File::from(unsafe { OwnedFd::from_raw_fd(1) }))
    }

    /// The same sheet, for another process.
    ///
    /// # Errors
    /// When no descriptor is left.
    pub fn share(&self) -> io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Takes the grant; false when it was taken back. Where sealing is forbidden nobody can take it
    /// back.
    pub fn take(&self) -> bool {
        self.seal() != Err(Errno::EPERM) || !self.is_sealed()
    }

    /// Takes back what was granted; false when it was taken.
    pub fn take_back(&self) -> bool {
        self.seal().is_ok()
    }

    /// Decides, in one step, whoever of the two stands still meanwhile: a seal against seals can be
    /// set once. It keeps nobody from writing.
    fn seal(&self) -> nix::Result<i32> {
        fcntl(&self.0, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SEAL))
    }

    fn is_sealed(&self) -> bool {
        let seals = fcntl(&self.0, FcntlArg::F_GET_SEALS).unwrap_or_default();
        SealFlag::from_bits_truncate(seals).contains(SealFlag::F_SEAL_SEAL)
    }

    /// Writes when it is to be stopped.
    pub fn write(&self, times: Times) {
        let ns = |at: Duration| u64::try_from(at.as_nanos()).unwrap_or(u64::MAX).to_le_bytes();
        let bytes = [times.term, times.end].map(ns).concat();
        // Memory: it cannot fail but for want of it, and then what stands there counts, which is
        // earlier.
        _ = self.0.write_all_at(&bytes, 0);
    }

    /// Reads it; `None` when nothing stands there yet.
    pub fn read(&self) -> Option<Times> {
        let mut bytes = [0; 16];
        self.0.read_exact_at(&mut bytes, 0).ok()?;
        let mut all = bytes
            .chunks_exact(8)
            .map(|b| Duration::from_nanos(b.try_into().map_or(0, u64::from_le_bytes)));
        Some(Times { term: all.next()?, end: all.next()? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd as _;

    use super::*;

    #[test]
    fn r5_a_grant_is_taken_or_taken_back_and_never_both() {
        let times = Times::of(Duration::from_secs(100), Duration::from_secs(5));
        let both = || {
            let sheet = Sheet::new().unwrap();
            (Sheet(File::from(sheet.share().unwrap())), sheet)
        };
        let (guardian, front) = both();
        assert!(front.take() && !guardian.take_back());
        guardian.write(times);
        assert_eq!(front.read(), Some(times));
        let (guardian, front) = both();
        assert!(guardian.take_back() && !front.take());
    }

    #[test]
    fn a_grant_is_taken_where_sealing_is_forbidden() {
        let sheet = Sheet::new().unwrap();
        // The kernel forbids it on what cannot be written.
        let path = format!("/proc/self/fd/{}", sheet.0.as_raw_fd());
        let forbidden = Sheet(File::open(path).unwrap());
        assert!(!forbidden.take_back() && forbidden.take() && forbidden.take());
    }

    #[test]
    fn what_was_written_last_is_read() {
        let sheet = Sheet::new().unwrap();
        assert_eq!(sheet.read(), None);
        let other = Sheet(File::from(sheet.share().unwrap()));
        for n in 1..3 {
            let times = Times::of(Duration::from_secs(100 * n), Duration::from_secs(5));
            other.write(times);
            assert_eq!(sheet.read(), Some(times));
        }
    }
}
