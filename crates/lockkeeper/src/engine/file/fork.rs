//! What a forked child must not keep (R15).
//!
//! A range lock belongs to an open file description, and a fork shares those: without this, a child
//! that never heard of the lock would keep it locked after its parent's death. So every descriptor
//! of this engine is listed here, and a handler closes them in the child. `run` takes the one out
//! that it passes on deliberately.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::words::id::fork_generation;

const WORDS: usize = 1024;

/// One bit a descriptor that a child must close; descriptors above 65 535 are left to
/// close-on-exec.
static LISTED: [AtomicU64; WORDS] = [const { AtomicU64::new(0) }; WORDS];
/// One more than the last word in use.
static USED: AtomicUsize = AtomicUsize::new(0);
static WATCH_FORKS: Once = Once::new();

fn bit(fd: RawFd) -> Option<(usize, u64)> {
    let fd = usize::try_from(fd).ok()?;
    (fd / 64 < WORDS).then_some((fd / 64, 1 << (fd % 64)))
}

fn list(fd: RawFd) {
    WATCH_FORKS.call_once(|| {
        // SAFETY: the handler only reads atomics and calls close(2), both async-signal-safe as a
        // child of a threaded process needs.
        let _ = unsafe { nix::libc::pthread_atfork(None, None, Some(close_in_child)) };
    });
    if let Some((word, mask)) = bit(fd) {
        USED.fetch_max(word + 1, Ordering::AcqRel);
        LISTED[word].fetch_or(mask, Ordering::AcqRel);
    }
}

fn unlist(fd: RawFd) {
    if let Some((word, mask)) = bit(fd) {
        LISTED[word].fetch_and(!mask, Ordering::AcqRel);
    }
}

extern "C" fn close_in_child() {
    for (word, listed) in LISTED.iter().enumerate().take(USED.load(Ordering::Acquire)) {
        let mut bits = listed.swap(0, Ordering::AcqRel);
        while bits != 0 {
            let fd = word * 64 + bits.trailing_zeros() as usize;
            // SAFETY: the number was listed by its owner, and the owner's copy in this child never
            // closes it again because its generation differs.
            unsafe { nix::libc::close(fd as RawFd) };
            bits &= bits - 1;
        }
    }
}

/// An open descriptor that a forked child closes, and that its copy in the child leaves alone.
#[derive(Debug)]
pub(super) struct Descriptor {
    raw: RawFd,
    born: u32,
}

impl Descriptor {
    /// Takes a descriptor over.
    pub(super) fn new(fd: OwnedFd) -> Self {
        let raw = fd.into_raw_fd();
        list(raw);
        Self { raw, born: fork_generation() }
    }

    /// Whether this process is the one that opened it; a fork of it must not use the number.
    pub(super) fn is_ours(&self) -> bool {
        self.born == fork_generation()
    }

    /// Lets forked children keep it, or not.
    pub(super) fn survive_forks(&self, keep: bool) {
        if keep { unlist(self.raw) } else { list(self.raw) }
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open until drop in the process that made it; engine calls check `is_ours` before
        // they come here.
        unsafe { BorrowedFd::borrow_raw(self.raw) }
    }
}

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.raw
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        if self.is_ours() {
            unlist(self.raw);
            // SAFETY: taken over in `new`, and only this value owns it.
            drop(unsafe { OwnedFd::from_raw_fd(self.raw) });
        }
    }
}
