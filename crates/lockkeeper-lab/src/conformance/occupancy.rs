//! Who is inside, counted in memory that processes share: the last word on whether a lock excludes.

use std::fs::OpenOptions;
use std::num::NonZeroUsize;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use lockkeeper::Token;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// What the file holds; all zero at first.
#[repr(C)]
struct Page {
    writers: AtomicU32,
    readers: AtomicU32,
    violations: AtomicU64,
    turns: AtomicU64,
    last_token: AtomicU64,
}

const SIZE: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// A count of who is inside, shared by every process that opens the same file.
#[derive(Debug)]
pub struct Occupancy {
    page: NonNull<Page>,
}

// SAFETY: the page holds nothing but atomics, and stays mapped for as long as the value lives.
unsafe impl Send for Occupancy {}
// SAFETY: as above.
unsafe impl Sync for Occupancy {}

impl Occupancy {
    /// Opens the count in this file, and makes it if it is not there.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn open(file: &Path) -> std::io::Result<Self> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(file)?;
        file.set_len(SIZE.get() as u64)?;
        // SAFETY: a fresh mapping of a file that is as long as the mapping; nobody shortens it.
        let page = unsafe {
            mmap(
                None,
                SIZE,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                &file,
                0,
            )
        }?;
        Ok(Self { page: page.cast() })
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped, aligned to a page, long enough, and only atomics.
        unsafe { self.page.as_ref() }
    }

    /// One turn alone: counts what breaks the rules, with `inside` run in the middle.
    pub async fn alone<T>(&self, token: Option<Token>, inside: impl Future<Output = T>) -> T {
        let page = self.page();
        let others =
            page.writers.fetch_add(1, Ordering::SeqCst) + page.readers.load(Ordering::SeqCst);
        let behind = token.is_some_and(|token| {
            page.last_token.swap(token.get(), Ordering::SeqCst) >= token.get()
        });
        if others > 0 || behind {
            page.violations.fetch_add(1, Ordering::SeqCst);
        }
        let value = inside.await;
        page.turns.fetch_add(1, Ordering::SeqCst);
        page.writers.fetch_sub(1, Ordering::SeqCst);
        value
    }

    /// One turn beside other readers.
    pub async fn beside<T>(&self, inside: impl Future<Output = T>) -> T {
        let page = self.page();
        page.readers.fetch_add(1, Ordering::SeqCst);
        if page.writers.load(Ordering::SeqCst) > 0 {
            page.violations.fetch_add(1, Ordering::SeqCst);
        }
        let value = inside.await;
        page.turns.fetch_add(1, Ordering::SeqCst);
        page.readers.fetch_sub(1, Ordering::SeqCst);
        value
    }

    /// How often somebody was inside who must not have been, or came with an old token.
    pub fn violations(&self) -> u64 {
        self.page().violations.load(Ordering::SeqCst)
    }

    /// How many turns there were.
    pub fn turns(&self) -> u64 {
        self.page().turns.load(Ordering::SeqCst)
    }
}

impl Drop for Occupancy {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this size, and unmapped only here.
        let _ = unsafe { munmap(self.page.cast(), SIZE.get()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn two_at_once_and_an_old_token_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let here = Occupancy::open(&dir.path().join("count")).unwrap();
        let there = Occupancy::open(&dir.path().join("count")).unwrap();
        here.alone(Token::raw(2), async {}).await;
        assert_eq!((here.violations(), there.turns()), (0, 1));
        here.alone(Token::raw(3), there.alone(Token::raw(4), async {})).await;
        assert_eq!(there.violations(), 1);
        here.alone(Token::raw(4), async {}).await;
        assert_eq!(there.violations(), 2, "not greater than the last");
        here.beside(there.beside(async {})).await;
        assert_eq!(there.violations(), 2);
        here.beside(there.alone(None, async {})).await;
        assert_eq!(there.violations(), 3);
    }
}
