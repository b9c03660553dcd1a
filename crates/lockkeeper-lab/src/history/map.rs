//! A file that grows in steps, one step of which is mapped for writing at a time.

use std::fs::File;
use std::num::NonZeroUsize;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::fcntl::posix_fallocate;
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{SysconfVar, sysconf};

/// One mapped step of a file. Its blocks are allocated, so that writing to it cannot run out of
/// space (which would be a `SIGBUS`, the death of the program that is only being watched).
pub(super) struct Step {
    base: NonNull<std::ffi::c_void>,
    mapped: usize,
    /// Where the step begins inside the mapping: mappings start at pages, and pages may be larger
    /// than the header.
    skip: usize,
    length: usize,
    /// Where it begins in the file, and how much of it is in the page cache.
    offset: u64,
    ready: usize,
}

/// How much is brought into the page cache at a time: enough to be cheap, too little to be felt.
static WINDOW: [u8; 65_536] = [0; 65_536];

// SAFETY: the mapping is memory of the process, reached only through `&mut self`, and not bound to
// a thread.
unsafe impl Send for Step {}

impl Step {
    /// Allocates and maps `length` bytes of `file` from `offset` on.
    ///
    /// # Errors
    /// `ENOSPC` and `EDQUOT` when the disk is full, `EFBIG` at the process's file size limit,
    /// `ENOMEM`, `EIO`.
    pub(super) fn new(file: &File, offset: u64, length: usize) -> Result<Self, Errno> {
        check_size_limit(offset.saturating_add(length as u64))?;
        let signed = |value: u64| i64::try_from(value).map_err(|_| Errno::EFBIG);
        posix_fallocate(file, signed(offset)?, signed(length as u64)?)?;
        let page = sysconf(SysconfVar::PAGE_SIZE)?
            .and_then(|p| u64::try_from(p).ok())
            .filter(|p| p.is_power_of_two())
            .unwrap_or(65_536);
        let skip = (offset & (page - 1)) as usize;
        let mapped = length + skip;
        let Some(size) = NonZeroUsize::new(mapped) else { return Err(Errno::EINVAL) };
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice; nothing else refers to it.
        let base = unsafe {
            mmap(None, size, protection, MapFlags::MAP_SHARED, file, signed(offset - skip as u64)?)
        }?;
        Ok(Self { base, mapped, skip, length, offset, ready: 0 })
    }

    /// Writes 64 bytes at `at` inside the step; false when they do not fit. Places are filled in
    /// order.
    ///
    /// # Errors
    /// `ENOSPC` on file systems that do not keep what they allocated.
    pub(super) fn write(
        &mut self,
        file: &File,
        at: usize,
        bytes: &[u8; 64],
    ) -> Result<bool, Errno> {
        let Some(end) = at.checked_add(bytes.len()).filter(|end| *end <= self.length) else {
            return Ok(false);
        };
        while end > self.ready {
            self.make_ready(file)?;
        }
        // SAFETY: `skip + at + 64 <= skip + length = mapped`, the mapping is writable, and
        // `&mut self` excludes others.
        unsafe {
            let to = self.base.cast::<u8>().add(self.skip + at);
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len());
        }
        Ok(true)
    }

    /// Writes zeros the ordinary way into the next window. A page that is in the cache and dirty
    /// costs a third of the fault that one of a hole costs; and what the file system cannot keep is
    /// an error here and not a signal.
    fn make_ready(&mut self, file: &File) -> Result<(), Errno> {
        let window = WINDOW.get(..(self.length - self.ready).min(WINDOW.len())).unwrap_or_default();
        let done = file.write_all_at(window, self.offset + self.ready as u64);
        done.map_err(|e| e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))?;
        // All its pages at once cost less than a fault each. Where that cannot be had they come one
        // by one.
        let at = self.skip + self.ready;
        // SAFETY: inside the mapping, and it changes nothing that can be read.
        let _ = unsafe {
            madvise(self.base.byte_add(at), window.len(), MmapAdvise::MADV_POPULATE_WRITE)
        };
        self.ready += window.len();
        Ok(())
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        // SAFETY: unmaps exactly what `new` mapped; nobody keeps a pointer into it.
        let _ = unsafe { munmap(self.base, self.mapped) };
    }
}

/// Growing a file past `RLIMIT_FSIZE` would kill the program with `SIGXFSZ`; so it is asked first.
pub(super) fn check_size_limit(end: u64) -> Result<(), Errno> {
    let (soft, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if end > soft { Err(Errno::EFBIG) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_step_is_written_where_it_stands_and_nowhere_else() {
        let mut file = tempfile::tempfile().unwrap();
        let mut step = Step::new(&file, 4096 + 192, 192).unwrap();
        assert_eq!(step.write(&file, 0, &[1; 64]), Ok(true));
        assert_eq!(step.write(&file, 128, &[2; 64]), Ok(true));
        assert_eq!(step.write(&file, 129, &[3; 64]), Ok(false));
        assert_eq!(step.write(&file, usize::MAX, &[3; 64]), Ok(false));
        drop(step);
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 4096 + 192 + 192);
        let written: Vec<_> = all.iter().map(|b| *b as usize).collect();
        assert_eq!(written.iter().sum::<usize>(), 64 + 128);
        assert!(all[4288..4352].iter().all(|b| *b == 1) && all[4416..].iter().all(|b| *b == 2));
    }

    #[test]
    fn every_byte_of_a_step_longer_than_a_window_can_be_written() {
        let mut file = tempfile::tempfile().unwrap();
        let length = 2 * WINDOW.len() + 128;
        let mut step = Step::new(&file, 4096, length).unwrap();
        for at in (0..length).step_by(64) {
            assert_eq!(step.write(&file, at, &[(at / 64) as u8 | 1; 64]), Ok(true));
        }
        assert_eq!(step.write(&file, length, &[1; 64]), Ok(false));
        drop(step);
        let mut all = Vec::new();
        file.read_to_end(&mut all).unwrap();
        assert_eq!(all.len(), 4096 + length);
        assert!(
            all[4096..]
                .chunks(64)
                .zip(0usize..)
                .all(|(chunk, number)| chunk == [number as u8 | 1; 64])
        );
    }

    #[test]
    fn the_size_limit_is_an_error_and_not_a_signal() {
        assert_eq!(check_size_limit(0), Ok(()));
        assert_eq!(
            check_size_limit(u64::MAX),
            if unlimited() { Ok(()) } else { Err(Errno::EFBIG) }
        );
    }

    fn unlimited() -> bool {
        getrlimit(Resource::RLIMIT_FSIZE).unwrap().0 == u64::MAX
    }
}
