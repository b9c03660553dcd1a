//! Removing lock files that nobody uses.
//!
//! A file is removed only while every byte of it is locked here, so nobody holds, waits or writes;
//! whoever opened it just before sees after locking that the path leads elsewhere, and opens it
//! again (F1). A try that meets us is not refused for our sake: it sees by the range that we are no
//! holder, and looks again.

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::bytes::{FILE, Grip, HOT_AT, Span};
use super::dir::{Directory, refused};
use super::fork::Descriptor;
use super::record::{About, Header, Hot};
use super::{inspect, latch, name, wire};
use crate::words::clock::unix_us;
use crate::words::error::Result;
use crate::words::name::{Kind, Name};
use crate::words::token::next_number;

/// For how long a file that nobody has locked yet is its maker's, who needs microseconds, unless
/// the processors are taken.
const MAKERS_US: u64 = 200_000;

/// Removes the idle files of a directory; answers how many. Kept are latches that are not open,
/// semaphores whose limit somebody chose, and whatever is no lock file of ours.
pub(super) fn sweep(dir: &Directory) -> Result<usize> {
    let mut removed = 0;
    for file_name in inspect::file_names(dir)? {
        if let Some(kind) = name::kind_of(&file_name)
            && remove(dir, kind, &file_name, Age::Matters)
                .map_err(|e| refused("remove a file in the lock directory", dir.path(), e))?
        {
            removed += 1;
        }
    }
    Ok(removed)
}

/// Removes the idle file of one name; answers whether it did.
pub(super) fn remove_one(dir: &Directory, kind: Kind, name: &Name, age: Age) -> Result<bool> {
    let file_name = name::file_name(kind, name);
    let removed =
        file_name.to_str().map_or(Ok(false), |file_name| remove(dir, kind, file_name, age));
    removed.map_err(|e| refused("remove a file in the lock directory", dir.path(), e))
}

/// Whether a new file may be somebody's who has not locked it yet: not where nobody else knows the
/// name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Age {
    Matters,
    Any,
}

fn remove(dir: &Directory, kind: Kind, file_name: &str, age: Age) -> Result<bool, Errno> {
    let anchor = dir.anchor();
    let flags =
        OFlag::O_RDWR | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | OFlag::O_NOCTTY | OFlag::O_NONBLOCK;
    let file = match openat(&*anchor, file_name, flags, Mode::empty()) {
        Ok(fd) => Descriptor::new(fd),
        // Not there any more, not ours to touch, or no file at all.
        Err(
            Errno::ENOENT
            | Errno::EACCES
            | Errno::EPERM
            | Errno::ELOOP
            | Errno::ENXIO
            | Errno::EISDIR
            | Errno::ETXTBSY,
        ) => {
            return Ok(false);
        }
        Err(e) => return Err(e),
    };
    let stat = fstat(&file)?;
    let plain = stat.st_mode & SFlag::S_IFMT.bits() == SFlag::S_IFREG.bits() && stat.st_nlink == 1;
    if !plain
        || !anchor.trusts(stat.st_uid)
        || !wire::try_lock(&file, Span::EVERYTHING, Grip::Write)?
    {
        return Ok(false);
    }
    let name = std::ffi::CString::new(file_name).map_err(|_| Errno::EINVAL)?;
    let now = wire::look(&*anchor, &name)?
        .filter(|now| (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino));
    let Some(now) = now else { return Ok(false) };
    if !is_idle(&file, kind, &now, age)? {
        return Ok(false);
    }
    match unlinkat(&*anchor, file_name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) => Ok(true),
        // Somebody else's, in a directory where only owners remove.
        Err(Errno::EPERM | Errno::EACCES | Errno::ENOENT) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether nothing in the file is worth keeping. The caller has every byte locked.
fn is_idle(file: &Descriptor, kind: Kind, stat: &FileStat, age: Age) -> Result<bool, Errno> {
    let is_new = || age == Age::Matters && is_new(stat);
    let size = stat.st_size;
    match Header::of(file)? {
        Header::Newer(_) => return Ok(false),
        Header::Fresh | Header::Unreadable if !Header::was_ours(file, size)? => return Ok(false),
        Header::Fresh => return Ok(!is_new()),
        Header::Unreadable => return Ok(true),
        Header::Of(of, _) if of != kind => return Ok(false),
        Header::Of(..) => {}
    }
    let mut hot = Hot::EMPTY;
    wire::read_at(file, &mut hot.0, HOT_AT)?;
    let Some((record, _)) = hot.latest() else { return Ok(size <= FILE as i64) };
    if record.about() == About::Number && is_new() {
        return Ok(false);
    }
    // After the clock was set back, a new file would start below this one's number.
    let ahead = next_number(0, unix_us()).is_none_or(|fresh| fresh <= record.number());
    Ok(!ahead && latch::count(record).is_none() && record.about() != About::ChosenLimit)
}

/// Whether a file was written a moment ago.
fn is_new(stat: &FileStat) -> bool {
    let (seconds, ns) =
        (u64::try_from(stat.st_mtime).unwrap_or(0), u64::try_from(stat.st_mtime_nsec).unwrap_or(0));
    let written = seconds.saturating_mul(1_000_000).saturating_add(ns / 1_000);
    unix_us().abs_diff(written) < MAKERS_US
}
