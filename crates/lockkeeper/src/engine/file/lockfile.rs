//! One open lock file: making it, checking that it is what it should be, and seeing that it is
//! still the one (F1).

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Gid, Uid, fchown, geteuid};

use super::bytes::FILE;
use super::dir::{Anchor, Directory, refused, shown};
use super::fork::Descriptor;
use super::record::Header;
use super::{name, wire};
use crate::words::clock::unix_us;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::{Kind, Name};

/// A lock's name, and that of its file.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) file: CString,
}

impl Key {
    pub(super) fn new(kind: Kind, name: &Name) -> Self {
        Self { kind, name: name.clone(), file: name::file_name(kind, name) }
    }
}

/// What the path of an open lock file leads to now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// To it.
    Same,
    /// To it, and its length is not ours any more.
    Cut,
    /// To another file, or to nothing.
    Replaced,
}

/// An open lock file: one open file description, and with it one owner of range locks.
pub(super) struct LockFile {
    fd: Descriptor,
    dev: u64,
    ino: u64,
    anchor: Arc<Anchor>,
    /// The directory's time of change at a moment when the path led here, and long enough before
    /// that moment.
    settled: Option<i128>,
    /// Until when that is believed.
    believed_until: Duration,
    /// How often not to try that: the directory is changing all the time.
    restless: u8,
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How long ago the last change of a directory must be for its date to be its own; the coarsest
/// clocks tick every 10 ms.
const SETTLES_AFTER_NS: i128 = 50_000_000;

/// For how long the directory's own date is believed. A directory above it may be renamed, which
/// that date does not tell.
const BELIEVED_FOR: Duration = Duration::from_millis(500);

/// How often something that another process is just doing is looked at again, a millisecond apart.
pub(super) const PATIENCE: u32 = 50;

impl LockFile {
    /// Opens the lock's file, and makes it if there is none.
    pub(super) fn open(dir: &Directory, key: &Key) -> Result<Self> {
        let path = || dir.file(&key.file);
        let mut anchor = dir.current()?;
        for _ in 0..PATIENCE {
            // Non-blocking, because somebody may have put a pipe there.
            let flags = OFlag::O_RDWR
                | OFlag::O_NOFOLLOW
                | OFlag::O_CLOEXEC
                | OFlag::O_NOCTTY
                | OFlag::O_NONBLOCK;
            match openat(&*anchor, key.file.as_c_str(), flags, Mode::empty()) {
                Ok(fd) => {
                    let file = Self::judged(dir, key, anchor, fd)?;
                    file.prepare(dir, key)?;
                    return Ok(file);
                }
                // Made with O_EXCL and never opened with O_CREAT: what a neighbour laid there is
                // judged first.
                Err(Errno::ENOENT) => {
                    match openat(
                        &*anchor,
                        key.file.as_c_str(),
                        flags | OFlag::O_CREAT | OFlag::O_EXCL,
                        anchor.file_mode(),
                    ) {
                        Ok(fd) => Self::settle(&anchor, &fd).map_err(|e| {
                            refused("set the permissions of the lock file", &path(), e)
                        })?,
                        Err(Errno::EEXIST) => {}
                        Err(Errno::ENOENT) => anchor = dir.reopen()?,
                        Err(e) => return Err(refused("make the lock file", &path(), e)),
                    }
                }
                Err(Errno::EACCES | Errno::EPERM) if Self::is_being_made(&anchor, key) => {
                    std::thread::sleep(Duration::from_millis(1))
                }
                Err(e) => return Err(Self::not_opened(dir, &anchor, key, e)),
            }
        }
        let text =
            format!("the lock file {} comes and goes: find out who removes it", shown(&path()));
        Err(Error::new(ErrorKind::Refused, text).temporary(true))
    }

    /// Opens the lock's file only to read it, if there is one and something stands in it.
    pub(super) fn open_to_look(dir: &Directory, key: &Key) -> Result<Option<Self>> {
        let anchor = dir.current()?;
        let flags = OFlag::O_RDONLY
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC
            | OFlag::O_NOCTTY
            | OFlag::O_NONBLOCK;
        let fd = match openat(&*anchor, key.file.as_c_str(), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(Self::not_opened(dir, &anchor, key, e)),
        };
        let file = Self::judged(dir, key, anchor, fd)?;
        match Header::of(&file)
            .map_err(|e| refused("read the lock file", &dir.file(&key.file), e))?
        {
            Header::Fresh => Ok(None),
            said => file.is_of(dir, key, said).map(|()| Some(file)),
        }
    }

    fn judged(dir: &Directory, key: &Key, anchor: Arc<Anchor>, fd: OwnedFd) -> Result<Self> {
        let stat =
            fstat(&fd).map_err(|e| refused("look at the lock file", &dir.file(&key.file), e))?;
        let file = Self {
            fd: Descriptor::new(fd),
            dev: stat.st_dev,
            ino: stat.st_ino,
            anchor,
            settled: None,
            believed_until: Duration::ZERO,
            restless: 0,
        };
        file.judge(dir, key, &stat).map(|()| file)
    }

    /// The name of the lock that a file of ours belongs to, as its header tells; of one whose
    /// header cannot be read, as its own name tells. `None` for a fresh file, and for what never
    /// was ours.
    pub(super) fn name_in(dir: &Directory, kind: Kind, file_name: &str) -> Option<Name> {
        let file = CString::new(file_name).ok()?;
        let flags = OFlag::O_RDONLY
            | OFlag::O_NOFOLLOW
            | OFlag::O_CLOEXEC
            | OFlag::O_NOCTTY
            | OFlag::O_NONBLOCK;
        let fd = match openat(&*dir.anchor(), file.as_c_str(), flags, Mode::empty()) {
            Ok(fd) => fd,
            // Closed to us: what is as long as a lock file, and lies where lock files lie, is taken
            // for one.
            Err(Errno::EACCES | Errno::EPERM) => {
                let stat = wire::look(&*dir.anchor(), &file).ok()??;
                let is_file = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits();
                return (is_file && stat.st_size == FILE as i64)
                    .then(|| name::name_of(kind, file_name))
                    .flatten();
            }
            Err(_) => return None,
        };
        match Header::of(&fd).ok()? {
            Header::Of(of, name) if of == kind && name::file_name(kind, &name) == file => {
                Some(name)
            }
            Header::Newer(_) | Header::Of(..) => name::name_of(kind, file_name),
            Header::Unreadable if Header::was_ours(&fd, fstat(&fd).ok()?.st_size).ok()? => {
                name::name_of(kind, file_name)
            }
            _ => None,
        }
    }

    /// Gives a file that we made the owner and the permissions that everybody who shares the
    /// directory needs.
    fn settle(anchor: &Anchor, fd: impl AsFd) -> Result<(), Errno> {
        let stat = fstat(&fd)?;
        if geteuid().is_root() && anchor.owner != 0 && !anchor.is_shared() {
            // A job under sudo must not lock the owner out of the own directory.
            fchown(&fd, Some(Uid::from_raw(anchor.owner)), Some(Gid::from_raw(anchor.group)))?;
        }
        if stat.st_mode & 0o777 != anchor.file_mode().bits() {
            fchmod(&fd, anchor.file_mode())
        } else {
            Ok(())
        }
    }

    /// An empty file that we may not open: whoever made it sets its permissions just now.
    fn is_being_made(anchor: &Anchor, key: &Key) -> bool {
        anchor.is_shared()
            && matches!(wire::look(anchor, &key.file), Ok(Some(stat)) if stat.st_size == 0)
    }

    fn not_opened(dir: &Directory, anchor: &Anchor, key: &Key, errno: Errno) -> Error {
        let path = dir.file(&key.file);
        let Ok(Some(stat)) = wire::look(anchor, &key.file) else {
            return refused("open the lock file", &path, errno);
        };
        if let Err(error) = Self::is_plain(&path, &stat) {
            return error;
        }
        match errno {
            Errno::EACCES | Errno::EPERM => Error::new(
                ErrorKind::Refused,
                format!(
                    "may not open the lock file {}: it belongs to user {} and cannot be opened: \
                     ask that user to open it to others or to remove it",
                    shown(&path),
                    stat.st_uid
                ),
            ),
            errno => refused("open the lock file", &path, errno),
        }
    }

    fn is_plain(path: &std::path::Path, stat: &FileStat) -> Result<()> {
        let what = match SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) {
            SFlag::S_IFREG if stat.st_nlink > 1 => "is a file with more than one name",
            SFlag::S_IFREG => return Ok(()),
            SFlag::S_IFLNK => "is a symbolic link",
            SFlag::S_IFDIR => "is a directory",
            _ => "is not a regular file",
        };
        Err(Error::new(
            ErrorKind::Refused,
            format!(
                "the lock file {} {what}, made by user {}: remove it if it is not wanted there",
                shown(path),
                stat.st_uid
            ),
        ))
    }

    /// Refuses what is no lock file of ours: a link, a device, a foreign length, an owner whom this
    /// directory does not trust.
    fn judge(&self, dir: &Directory, key: &Key, stat: &FileStat) -> Result<()> {
        let path = dir.file(&key.file);
        Self::is_plain(&path, stat)?;
        if !self.anchor.trusts(stat.st_uid) {
            return Err(Error::new(
                ErrorKind::Refused,
                format!(
                    "the lock file {} belongs to user {}, who has no business in this directory of \
                     user {}: find out why, then remove it",
                    shown(&path),
                    stat.st_uid,
                    self.anchor.owner
                ),
            ));
        }
        Ok(())
    }

    /// Sees whether the path still leads here (F1), after locking and after every wait.
    ///
    /// As long as no name in the directory came, went or was taken over, the path leads where it
    /// led; and asking when that happened last is half as dear as following the path. The directory
    /// may have gone with one above it, which its own time of change does not tell: so the path is
    /// followed from time to time, and after a wait ([`LockFile::look_along`]).
    pub(super) fn check(&mut self, dir: &Directory, key: &Key) -> Result<Seen, Errno> {
        if self.restless > 0 {
            self.restless -= 1;
            return self.look_from_the_top(dir, key);
        }
        let (changed_at, at) = (self.anchor.changed_at(), steady());
        if changed_at.is_some() && changed_at == self.settled && at < self.believed_until {
            return Ok(Seen::Same);
        }
        let seen = self.look_from_the_top(dir, key)?;
        let now = i128::from(unix_us()) * 1_000;
        // The kernel dates changes by a clock of some milliseconds: one right after the last could
        // have the same date.
        self.settled = changed_at.filter(|at| seen == Seen::Same && now - at > SETTLES_AFTER_NS);
        if self.settled.is_none() {
            self.restless = 16;
        }
        self.believed_until = at.saturating_add(BELIEVED_FOR);
        Ok(seen)
    }

    /// Follows the whole path: through the directory that it leads to now. An error of the system
    /// is no proof of a replacement.
    fn look_from_the_top(&self, dir: &Directory, key: &Key) -> Result<Seen, Errno> {
        match (self.look(key), dir.is_still(&self.anchor)) {
            (Ok(Seen::Replaced), _) | (_, Ok(false)) => Ok(Seen::Replaced),
            (seen, Ok(true)) => seen,
            (_, Err(e)) => Err(e),
        }
    }

    /// Follows the whole path in one look: whoever opens it now has our file. That says nothing of
    /// the directory that it was opened in.
    pub(super) fn look_along(&self, path: &CStr) -> Result<Seen, Errno> {
        wire::look_but_for_times(path).map(|found| self.seen(found))
    }

    /// Follows the path in the directory that it was opened in, whatever is known.
    pub(super) fn look(&self, key: &Key) -> Result<Seen, Errno> {
        wire::look(&*self.anchor, &key.file).map(|found| self.seen(found))
    }

    /// What a look at a path has found.
    fn seen(&self, found: Option<FileStat>) -> Seen {
        let is_it = |stat: &FileStat| {
            stat.st_ino == self.ino && stat.st_dev == self.dev && stat.st_nlink == 1
        };
        match found.filter(is_it) {
            Some(stat) if stat.st_size == FILE as i64 => Seen::Same,
            Some(_) => Seen::Cut,
            None => Seen::Replaced,
        }
    }

    /// A second descriptor of the same open file description: it shares the locks.
    pub(super) fn twin(&self) -> Result<Self, Errno> {
        let fd = self
            .as_fd()
            .try_clone_to_owned()
            .map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
        Ok(Self {
            fd: Descriptor::new(fd),
            dev: self.dev,
            ino: self.ino,
            anchor: self.anchor.clone(),
            settled: None,
            believed_until: Duration::ZERO,
            restless: 0,
        })
    }

    pub(super) fn descriptor(&self) -> &Descriptor {
        &self.fd
    }

    pub(super) fn anchor(&self) -> &Arc<Anchor> {
        &self.anchor
    }

    /// Device and inode, for those who wonder whether two paths are one lock (F8).
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.dev, self.ino)
    }
}

/// A cheap clock that is never set; some milliseconds coarse.
fn steady() -> Duration {
    clock_gettime(ClockId::CLOCK_MONOTONIC_COARSE).map_or(Duration::MAX, Duration::from)
}

/// Whether the whole path leads to this open file, and to nothing else.
pub(super) fn leads_to(dir: &Directory, key: &Key, file: impl AsFd) -> Result<bool, Errno> {
    let open = fstat(file)?;
    let found = wire::look(AT_FDCWD, &dir.path_of(&key.file)?)?;
    Ok(found.is_some_and(|stat| {
        stat.st_ino == open.st_ino && stat.st_dev == open.st_dev && stat.st_nlink == 1
    }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn f1_a_file_whose_directory_stood_still_for_long_is_seen_to_be_replaced_at_once() {
        let replace: [fn(&std::path::Path); 6] = [
            |dir| fs::remove_file(dir.join("x.lock")).unwrap(),
            |dir| fs::rename(dir.join("x.lock"), dir.join("away")).unwrap(),
            |dir| {
                fs::write(dir.join("new"), "").unwrap();
                fs::rename(dir.join("new"), dir.join("x.lock")).unwrap();
            },
            |dir| fs::remove_dir_all(dir).unwrap(),
            |dir| fs::rename(dir, dir.with_extension("away")).unwrap(),
            |dir| {
                fs::rename(dir, dir.with_extension("away")).unwrap();
                fs::create_dir(dir).unwrap();
            },
        ];
        for replace in replace {
            let temp = tempfile::tempdir().unwrap();
            let dir = Directory::open(&temp.path().join("locks"), false).unwrap();
            let key = Key::new(Kind::Lock, &Name::new("x").unwrap());
            let mut file = LockFile::open(&dir, &key).unwrap();
            while file.settled.is_none() {
                assert_eq!(file.check(&dir, &key), Ok(Seen::Same));
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(file.check(&dir, &key), Ok(Seen::Same));
            let path = dir.path_of(&key.file).unwrap();
            assert_eq!(file.look_along(&path), Ok(Seen::Same));
            replace(dir.path());
            assert_eq!(file.look_along(&path), Ok(Seen::Replaced));
            assert_eq!(file.check(&dir, &key), Ok(Seen::Replaced));
        }
    }

    #[test]
    fn f1_a_kept_file_whose_directory_went_with_one_above_it_is_noticed_soon() {
        let temp = tempfile::tempdir().unwrap();
        let above = temp.path().join("above");
        fs::create_dir(&above).unwrap();
        let dir = Directory::open(&above.join("locks"), false).unwrap();
        let key = Key::new(Kind::Lock, &Name::new("x").unwrap());
        let mut file = LockFile::open(&dir, &key).unwrap();
        while file.settled.is_none() {
            assert_eq!(file.check(&dir, &key), Ok(Seen::Same));
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::rename(&above, temp.path().join("away")).unwrap();
        fs::create_dir(&above).unwrap();
        let start = std::time::Instant::now();
        while file.check(&dir, &key) == Ok(Seen::Same) {
            assert!(
                start.elapsed() < Duration::from_secs(120),
                "the directory itself has not changed, and never will"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
