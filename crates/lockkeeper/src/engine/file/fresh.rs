//! What stands in a lock file from the start, and what is done about one in which something else
//! stands.

use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::stat::fstat;
use nix::unistd::{fdatasync, ftruncate};

use super::bytes::{FILE, Grip, HEADER, HOT_AT, LAYOUT, PAGE, RECORD, Span};
use super::dir::{Directory, refused, shown};
use super::lockfile::{Key, LockFile, PATIENCE};
use super::record::{About, Header, Stamp, header};
use super::{boot, wire};
use crate::words::clock::unix_us;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::token::next_number;

/// How often something brief that another is just doing is looked at again before a look costs a
/// millisecond.
const LOOKS_AT_ONCE: u32 = 20;

/// Somebody who is doing something brief does not come to an end.
pub(super) fn stopped(dir: &Directory, key: &Key) -> Error {
    let path = shown(&dir.file(&key.file));
    Error::new(
        ErrorKind::Unknown,
        format!("another process holds {path} longer than a change takes: is it stopped?"),
    )
}

/// Looks again and again at something that takes a moment, which is microseconds, unless the
/// processors are taken; `None` when it does not come to an end.
pub(super) fn patiently<T>(
    mut look: impl FnMut() -> Result<Option<T>, Errno>,
) -> Result<Option<T>, Errno> {
    for looked in 0..LOOKS_AT_ONCE + PATIENCE {
        if let Some(found) = look()? {
            return Ok(Some(found));
        }
        if looked < LOOKS_AT_ONCE {
            std::thread::yield_now()
        } else {
            std::thread::sleep(Duration::from_millis(1))
        }
    }
    Ok(None)
}

impl LockFile {
    /// Reads the header, writes it into a fresh file, and refuses a file that is not this lock's.
    pub(super) fn prepare(&self, dir: &Directory, key: &Key) -> Result<()> {
        let path = || dir.file(&key.file);
        let mut said = Header::of(self).map_err(|e| refused("read the lock file", &path(), e))?;
        let size = fstat(self).map_err(|e| refused("look at the lock file", &path(), e))?.st_size;
        if said == Header::Fresh
            || (size != FILE as i64
                && matches!(
                    &said,
                    Header::Of(kind, name) if (*kind, name) == (key.kind, &key.name)
                ))
        {
            said = self.begin(dir, key)?;
        }
        self.is_of(dir, key, said)
    }

    /// Refuses a file whose header is not this lock's.
    pub(super) fn is_of(&self, dir: &Directory, key: &Key, said: Header) -> Result<()> {
        let path = || dir.file(&key.file);
        match said {
            Header::Of(kind, name) if kind == key.kind && name == key.name => Ok(()),
            Header::Of(kind, name) => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the lock file {} is that of the {kind} {:?}: the file system takes both names \
                     for one; rename one of the two locks",
                    shown(&path()),
                    name.as_str()
                ),
            )),
            Header::Newer(layout) => Err(Error::new(
                ErrorKind::NewerLayout,
                format!(
                    "the lock file {} has layout {layout} and this release knows layout {LAYOUT}: \
                     update this one",
                    shown(&path())
                ),
            )),
            Header::Fresh | Header::Unreadable => Err(self.unreadable(dir, key)),
        }
    }

    /// The error of a file whose contents make no sense, with the way out.
    pub(super) fn unreadable(&self, dir: &Directory, key: &Key) -> Error {
        let (path, stat) = (shown(&dir.file(&key.file)), fstat(self));
        let (owner, size) = stat.map_or((0, 0), |stat| (stat.st_uid, stat.st_size));
        let way_out = if Header::was_ours(self, size).unwrap_or(false)
            || matches!(Header::of(self), Ok(Header::Of(..)))
        {
            "once nobody holds this lock, `lockkeeper gc` removes the file, and the next \
             acquisition makes a new one"
        } else {
            "it does not look like one of ours: move it away, or keep the locks in a directory of \
             their own"
        };
        Error::new(
            ErrorKind::Corrupt,
            format!("the lock file {path} of user {owner} cannot be read as one: {way_out}"),
        )
    }

    /// Does something small that main does not cover, alone with the file. Nobody holds this for
    /// longer than a moment, so it is tried again and not waited for: a caller that must not block
    /// comes here too.
    pub(super) fn briefly<T>(
        &self,
        dir: &Directory,
        key: &Key,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if !self
            .one_at_a_time(Span::BRIEF)
            .map_err(|e| refused("lock the lock file", &dir.file(&key.file), e))?
        {
            return Err(stopped(dir, key));
        }
        let outcome = work();
        // What cannot be unlocked goes when the file is closed.
        let _ = wire::unlock(self, Span::BRIEF);
        outcome
    }

    /// Locks a byte that nobody has for longer than a moment; false when somebody does not come to
    /// an end.
    pub(super) fn one_at_a_time(&self, byte: Span) -> Result<bool, Errno> {
        patiently(|| wire::try_lock(self, byte, Grip::Write).map(|locked| locked.then_some(())))
            .map(|locked| locked.is_some())
    }

    /// Gives a fresh file its contents: allocated first, so that no later write needs room; the
    /// length comes last.
    fn begin(&self, dir: &Directory, key: &Key) -> Result<Header> {
        self.briefly(dir, key, || {
            self.fill(dir, key).map_err(|e| refused("write the lock file", &dir.file(&key.file), e))
        })
    }

    /// Writes a damaged file anew around the record of the exclusive holder, who alone may do that.
    pub(super) fn heal(&self, dir: &Directory, key: &Key, record: &[u8; RECORD]) -> Result<()> {
        self.briefly(dir, key, || {
            let mut page = [0; PAGE];
            page[..HEADER].copy_from_slice(&header(key.kind, &key.name));
            page[HOT_AT as usize..HOT_AT as usize + RECORD].copy_from_slice(record);
            let healed = wire::write_at(self, &page, 0).and_then(|()| ftruncate(self, FILE as i64));
            healed.map_err(|e| refused("repair the lock file", &dir.file(&key.file), e))
        })
    }

    fn fill(&self, dir: &Directory, key: &Key) -> Result<Header, Errno> {
        let said = Header::of(self)?;
        if !matches!(said, Header::Fresh) {
            // Somebody was faster. A length that is not ours means that the one who wrote it died
            // before the end.
            if matches!(said, Header::Of(..)) && fstat(self)?.st_size != FILE as i64 {
                ftruncate(self, FILE as i64)?;
            }
            return Ok(said);
        }
        match fallocate(self, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, PAGE as i64) {
            // Where the file system cannot, the write below takes the room.
            Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => {}
            Err(e) => return Err(e),
        }
        let mut page = [0; PAGE];
        page[..HEADER].copy_from_slice(&header(key.kind, &key.name));
        let now = unix_us();
        let number = next_number(0, now).ok_or(Errno::EOVERFLOW)?;
        let at = HOT_AT as usize;
        page[at..at + RECORD].copy_from_slice(Stamp::nobody().stamped(
            About::Number,
            number,
            ClaimId(0),
            now,
            boot::id(),
            0,
        ));
        wire::write_at(self, &page, 0)?;
        ftruncate(self, FILE as i64)?;
        if dir.durable {
            fdatasync(self)?;
        }
        Ok(Header::Of(key.kind, key.name.clone()))
    }
}
