//! One open lock file: making it, checking that it is what it should be, and seeing that it is still the one (F1).

use std::ffi::CString;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat};
use nix::unistd::{Gid, Uid, fchown, fdatasync, ftruncate, geteuid};

use super::bytes::{FILE, Grip, HEADER, HEADER_AT, HOT_AT, LAYOUT, PAGE, Span};
use super::dir::{Anchor, Directory, refused, shown};
use super::fork::Descriptor;
use super::record::{About, Header, Stamp, header};
use super::{boot, names, wire};
use crate::clock::unix_us;
use crate::error::{Error, ErrorKind, Result};
use crate::id::ClaimId;
use crate::name::{Kind, Name};
use crate::token::next_number;

/// A lock's name, and that of its file.
#[derive(Clone, Debug)]
pub(super) struct Key {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) file: CString,
}

impl Key {
    pub(super) fn new(kind: Kind, name: &Name) -> Self {
        Self { kind, name: name.clone(), file: names::file_name(kind, name) }
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
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// How often something that another process is just doing is looked at again, a millisecond apart.
const PATIENCE: u32 = 50;

impl LockFile {
    /// Opens the lock's file, and makes it if there is none.
    pub(super) fn open(dir: &Directory, key: &Key) -> Result<Self> {
        Self::open_or(dir, key, true)?.ok_or_else(|| Error::new(ErrorKind::Refused, "the lock file went away again and again"))
    }

    /// Opens the lock's file if there is one.
    pub(super) fn open_existing(dir: &Directory, key: &Key) -> Result<Option<Self>> {
        Self::open_or(dir, key, false)
    }

    /// Opens the lock's file only to read it, if there is one and something stands in it.
    pub(super) fn open_to_look(dir: &Directory, key: &Key) -> Result<Option<Self>> {
        let path = || dir.file(&key.file);
        let mut anchor = dir.anchor();
        if !dir.is_still(&anchor) {
            anchor = dir.reopen()?;
        }
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
        let fd = match openat(&*anchor, key.file.as_c_str(), flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::ENOENT) => return Ok(None),
            Err(e) => return Err(Self::not_opened(dir, &anchor, key, e)),
        };
        let stat = fstat(&fd).map_err(|e| refused("look at the lock file", &path(), e))?;
        let file = Self { fd: Descriptor::new(fd), dev: stat.st_dev, ino: stat.st_ino, anchor };
        file.judge(dir, key, &stat)?;
        match file.header().map_err(|e| refused("read the lock file", &path(), e))? {
            Header::Fresh => Ok(None),
            said => file.is_of(dir, key, said).map(|()| Some(file)),
        }
    }

    /// The name that a file's header tells, if the file is a lock file of that kind and carries the right name itself.
    pub(super) fn name_in(dir: &Directory, kind: Kind, file_name: &str) -> Option<Name> {
        let file_name = CString::new(file_name).ok()?;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
        let fd = openat(&*dir.anchor(), file_name.as_c_str(), flags, Mode::empty()).ok()?;
        let mut bytes = [0; HEADER];
        let read = wire::read_at(&fd, &mut bytes, HEADER_AT).ok()?;
        match Header::read(bytes.get(..read)?) {
            Header::Of(of, name) if of == kind && names::file_name(kind, &name) == file_name => Some(name),
            _ => None,
        }
    }

    fn open_or(dir: &Directory, key: &Key, make: bool) -> Result<Option<Self>> {
        let path = || dir.file(&key.file);
        let mut anchor = dir.anchor();
        for _ in 0..PATIENCE {
            // Non-blocking, because somebody may have put a pipe there.
            let flags = OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
            match openat(&*anchor, key.file.as_c_str(), flags, Mode::empty()) {
                Ok(fd) => {
                    let stat = fstat(&fd).map_err(|e| refused("look at the lock file", &path(), e))?;
                    let file = Self { fd: Descriptor::new(fd), dev: stat.st_dev, ino: stat.st_ino, anchor };
                    file.judge(dir, key, &stat)?;
                    file.prepare(dir, key)?;
                    return Ok(Some(file));
                }
                Err(Errno::ENOENT) if !make && dir.is_still(&anchor) => return Ok(None),
                Err(Errno::ENOENT) if !make => anchor = dir.reopen()?,
                // Made with O_EXCL and never opened with O_CREAT: what a neighbour laid there is judged first.
                Err(Errno::ENOENT) => {
                    match openat(&*anchor, key.file.as_c_str(), flags | OFlag::O_CREAT | OFlag::O_EXCL, anchor.file_mode()) {
                        Ok(fd) => Self::settle(&anchor, &fd).map_err(|e| refused("set the permissions of the lock file", &path(), e))?,
                        Err(Errno::EEXIST) => {}
                        Err(Errno::ENOENT) => anchor = dir.reopen()?,
                        Err(e) => return Err(refused("make the lock file", &path(), e)),
                    }
                }
                Err(Errno::EACCES | Errno::EPERM) if Self::is_being_made(&anchor, key) => std::thread::sleep(Duration::from_millis(1)),
                Err(e) => return Err(Self::not_opened(dir, &anchor, key, e)),
            }
        }
        Ok(None)
    }

    /// Gives a file that we made the owner and the permissions that everybody who shares the directory needs.
    fn settle(anchor: &Anchor, fd: impl AsFd) -> Result<(), Errno> {
        let stat = fstat(&fd)?;
        if geteuid().is_root() && anchor.owner != 0 && !anchor.is_shared() {
            // A job under sudo must not lock the owner out of the own directory.
            fchown(&fd, Some(Uid::from_raw(anchor.owner)), Some(Gid::from_raw(anchor.group)))?;
        }
        if stat.st_mode & 0o777 != anchor.file_mode().bits() { fchmod(&fd, anchor.file_mode()) } else { Ok(()) }
    }

    /// An empty file that we may not open: whoever made it sets its permissions just now.
    fn is_being_made(anchor: &Anchor, key: &Key) -> bool {
        anchor.is_shared() && matches!(wire::look(anchor, &key.file), Ok(Some(stat)) if stat.st_size == 0)
    }

    fn not_opened(dir: &Directory, anchor: &Anchor, key: &Key, errno: Errno) -> Error {
        let path = dir.file(&key.file);
        let Ok(Some(stat)) = wire::look(anchor, &key.file) else { return refused("open the lock file", &path, errno) };
        if let Err(error) = Self::is_plain(&path, &stat) {
            return error;
        }
        match errno {
            Errno::EACCES | Errno::EPERM => Error::new(
                ErrorKind::Refused,
                format!(
                    "may not open the lock file {}: it belongs to user {} and is closed to us: ask that user to open or to remove it",
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
            format!("the lock file {} {what}, made by user {}: remove it if it is not wanted there", shown(path), stat.st_uid),
        ))
    }

    /// Refuses what is no lock file of ours: a link, a device, a foreign length, an owner whom this directory does not trust.
    fn judge(&self, dir: &Directory, key: &Key, stat: &FileStat) -> Result<()> {
        let path = dir.file(&key.file);
        Self::is_plain(&path, stat)?;
        if !self.anchor.trusts(stat.st_uid) {
            return Err(Error::new(
                ErrorKind::Refused,
                format!(
                    "the lock file {} belongs to user {}, who has no business in this directory of user {}: find out why, then remove it",
                    shown(&path),
                    stat.st_uid,
                    self.anchor.owner
                ),
            ));
        }
        Ok(())
    }

    /// Reads the header, writes it into a fresh file, and refuses a file that is not this lock's.
    pub(super) fn prepare(&self, dir: &Directory, key: &Key) -> Result<()> {
        let path = || dir.file(&key.file);
        let mut said = self.header().map_err(|e| refused("read the lock file", &path(), e))?;
        let size = fstat(self).map_err(|e| refused("look at the lock file", &path(), e))?.st_size;
        if said == Header::Fresh
            || (size != FILE as i64 && matches!(&said, Header::Of(kind, name) if (*kind, name) == (key.kind, &key.name)))
        {
            said = self.begin(dir, key)?;
        }
        self.is_of(dir, key, said)
    }

    fn header(&self) -> Result<Header, Errno> {
        let mut bytes = [0; HEADER];
        let read = wire::read_at(self, &mut bytes, HEADER_AT)?;
        Ok(Header::read(bytes.get(..read).unwrap_or_default()))
    }

    /// Refuses a file whose header is not this lock's.
    fn is_of(&self, dir: &Directory, key: &Key, said: Header) -> Result<()> {
        let path = || dir.file(&key.file);
        match said {
            Header::Of(kind, name) if kind == key.kind && name == key.name => Ok(()),
            Header::Of(kind, name) => Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the lock file {} is that of the {kind} {:?}: the file system takes both names for one; rename one of the two locks",
                    shown(&path()),
                    name.as_str()
                ),
            )),
            Header::Newer(layout) => Err(Error::new(
                ErrorKind::NewerLayout,
                format!("the lock file {} has layout {layout} and this release knows layout {LAYOUT}: update this one", shown(&path())),
            )),
            Header::Fresh | Header::Unreadable => Err(self.unreadable(dir, key)),
        }
    }

    /// The error of a file whose contents make no sense.
    pub(super) fn unreadable(&self, dir: &Directory, key: &Key) -> Error {
        let owner = fstat(self).map_or(0, |stat| stat.st_uid);
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "the lock file {} of user {owner} cannot be read as one: once nobody holds this lock, `lockkeeper gc` removes the file, \
                 and the next acquisition makes a new one",
                shown(&dir.file(&key.file))
            ),
        )
    }

    /// Gives a fresh file its contents: allocated first, so that no later write needs room; the length comes last.
    fn begin(&self, dir: &Directory, key: &Key) -> Result<Header> {
        let failed = |e| refused("write the lock file", &dir.file(&key.file), e);
        let mut patience = PATIENCE;
        while !wire::try_lock(self, Span::INIT, Grip::Write).map_err(failed)? {
            patience -= 1;
            if patience == 0 {
                let path = shown(&dir.file(&key.file));
                return Err(Error::new(
                    ErrorKind::Unknown,
                    format!("another process is writing the fresh lock file {path} and does not come to an end"),
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let outcome = self.fill(dir, key).map_err(failed);
        let _ = wire::unlock(self, Span::INIT);
        outcome
    }

    fn fill(&self, dir: &Directory, key: &Key) -> Result<Header, Errno> {
        let said = self.header()?;
        if !matches!(said, Header::Fresh) {
            // Somebody was faster. A length that is not ours means that the one who wrote it died before the end.
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
        page[at..at + 128].copy_from_slice(Stamp::nobody().stamped(About::Number, number, ClaimId(0), now, boot::id(), 0));
        wire::write_at(self, &page, 0)?;
        ftruncate(self, FILE as i64)?;
        if dir.durable {
            fdatasync(self)?;
        }
        Ok(Header::Of(key.kind, key.name.clone()))
    }

    /// Looks whether the path still leads here (F1): after locking, after every wait, and whenever a holder asks.
    pub(super) fn check(&self, key: &Key) -> Result<Seen, Errno> {
        Ok(match wire::look(&*self.anchor, &key.file)? {
            Some(stat) if stat.st_ino == self.ino && stat.st_dev == self.dev && stat.st_nlink == 1 => {
                if stat.st_size == FILE as i64 {
                    Seen::Same
                } else {
                    Seen::Cut
                }
            }
            _ => Seen::Replaced,
        })
    }

    /// Whether the directory it was opened in is still the one that its path leads to; dearer than [`Self::check`].
    pub(super) fn is_in(&self, dir: &Directory) -> bool {
        dir.is_still(&self.anchor)
    }

    /// A second descriptor of the same open file description: it shares the locks.
    pub(super) fn twin(&self) -> Result<Self, Errno> {
        let fd = self.as_fd().try_clone_to_owned().map_err(|e| Errno::from_raw(e.raw_os_error().unwrap_or(0)))?;
        Ok(Self { fd: Descriptor::new(fd), dev: self.dev, ino: self.ino, anchor: self.anchor.clone() })
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
