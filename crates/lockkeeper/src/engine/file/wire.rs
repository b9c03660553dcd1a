//! The kernel calls of this engine: range locks of open file descriptions, reads and writes at an
//! offset, and looks at what a path leads to.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::libc;
use nix::sys::stat::{FileStat, fstatat};

use super::bytes::{BELL_AT, Grip, Span};

/// What a wait for a range came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    /// The range is locked.
    Locked,
    /// A signal came first, or the descriptor was exchanged under the call: the reason stands in
    /// the wait.
    Interrupted,
}

fn flock(span: Span, kind: libc::c_int) -> libc::flock {
    // SAFETY: a plain struct of integers, for which zeroes are valid; `l_pid` must be 0 for these
    // calls.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::from(span.start);
    lock.l_len = libc::off_t::from(span.len);
    lock
}

fn kind_of(grip: Grip) -> libc::c_int {
    match grip {
        Grip::Read => libc::F_RDLCK,
        Grip::Write => libc::F_WRLCK,
    }
}

fn call(fd: BorrowedFd<'_>, command: libc::c_int, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the descriptor is open for the time of the borrow and `lock` is a valid struct that
    // outlives the call.
    Errno::result(unsafe { libc::fcntl(fd.as_raw_fd(), command, std::ptr::from_mut(lock)) })
        .map(drop)
}

/// Locks a range if nobody has it; answers whether it did. Also turns a read grip into a write grip
/// and back, atomically.
pub(super) fn try_lock(fd: impl AsFd, span: Span, grip: Grip) -> Result<bool, Errno> {
    match call(fd.as_fd(), libc::F_OFD_SETLK, &mut flock(span, kind_of(grip))) {
        Ok(()) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Locks a range, and blocks until nobody else has it.
pub(super) fn wait_lock(fd: impl AsFd, span: Span, grip: Grip) -> Result<Waited, Errno> {
    match call(fd.as_fd(), libc::F_OFD_SETLKW, &mut flock(span, kind_of(grip))) {
        Ok(()) => Ok(Waited::Locked),
        Err(Errno::EINTR | Errno::EBADF) => Ok(Waited::Interrupted),
        Err(e) => Err(e),
    }
}

/// Unlocks a range.
pub(super) fn unlock(fd: impl AsFd, span: Span) -> Result<(), Errno> {
    call(fd.as_fd(), libc::F_OFD_SETLK, &mut flock(span, libc::F_UNLCK))
}

/// Unlocks everything that this open file description has.
pub(super) fn unlock_all(fd: impl AsFd) -> Result<(), Errno> {
    call(fd.as_fd(), libc::F_OFD_SETLK, &mut flock(Span { start: 0, len: 0 }, libc::F_UNLCK))
}

/// A range that another open file description has locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Locked {
    first: u64,
    /// Behind its last byte.
    end: u64,
    pub(super) grip: Grip,
}

impl Locked {
    /// Whether whoever has it only looks whether the file is used by anybody, to remove it if not:
    /// nobody else ever has so much, and nobody has it for longer than a moment.
    pub(super) fn sweeps(&self) -> bool {
        (self.first, self.end) == Span::EVERYTHING.bounds()
    }

    /// What it has of a range: the first byte, and how many.
    fn within(&self, span: Span) -> (u32, u32) {
        let (first, end) = span.bounds();
        let (start, stop) = (self.first.max(first), self.end.min(end).max(self.first.max(first)));
        (start as u32, (stop - start) as u32)
    }
}

/// Some range of another open file description that is in the way of locking this one; not
/// necessarily the first.
pub(super) fn in_the_way(fd: impl AsFd, span: Span, grip: Grip) -> Result<Option<Locked>, Errno> {
    let mut lock = flock(span, kind_of(grip));
    call(fd.as_fd(), libc::F_OFD_GETLK, &mut lock)?;
    let grip = match libc::c_int::from(lock.l_type) {
        libc::F_UNLCK => return Ok(None),
        libc::F_RDLCK => Grip::Read,
        _ => Grip::Write,
    };
    let first = u64::try_from(lock.l_start).unwrap_or(0);
    // A length of zero means "to the end of the file, wherever that will be".
    let end = match u64::try_from(lock.l_len).unwrap_or(0) {
        0 => u64::MAX,
        len => first.saturating_add(len),
    };
    Ok(Some(Locked { first, end, grip }))
}

/// The same, cut to what was asked about: the first byte, and how many.
pub(super) fn obstacle(fd: impl AsFd, span: Span, grip: Grip) -> Result<Option<(u32, u32)>, Errno> {
    in_the_way(fd, span, grip).map(|found| found.map(|locked| locked.within(span)))
}

/// Whether somebody else has any of the range locked, alone or (asked with `Write`) in any way. Who
/// sweeps does not count.
pub(super) fn is_taken(fd: impl AsFd, span: Span, grip: Grip) -> Result<bool, Errno> {
    in_the_way(fd, span, grip).map(|found| found.is_some_and(|locked| !locked.sweeps()))
}

/// Reads at an offset; answers how many bytes there were.
pub(super) fn read_at(fd: impl AsFd, bytes: &mut [u8], at: u64) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match nix::sys::uio::pread(fd.as_fd(), rest, offset(at, done)?) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes at an offset, all of it or an error.
pub(super) fn write_at(fd: impl AsFd, bytes: &[u8], at: u64) -> Result<(), Errno> {
    let mut done = 0;
    while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
        match nix::sys::uio::pwrite(fd.as_fd(), rest, offset(at, done)?) {
            Ok(0) => return Err(Errno::ENOSPC),
            Ok(n) => done += n,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn offset(at: u64, done: usize) -> Result<libc::off_t, Errno> {
    libc::off_t::try_from(at + done as u64).map_err(|_| Errno::EOVERFLOW)
}

/// Wakes whoever watches the file: the kernel tells nobody about an unlocked range.
pub(super) fn ring(fd: impl AsFd) {
    // A lost ring costs a watcher its next look by the clock.
    let _ = write_at(fd, &[1], BELL_AT);
}

/// What a file name in a directory leads to now; `None` when to nothing. Symbolic links are looked
/// at, not followed.
pub(super) fn look(directory: impl AsFd, name: &CStr) -> Result<Option<FileStat>, Errno> {
    there(fstatat(directory, name, AtFlags::AT_SYMLINK_NOFOLLOW))
}

fn there(stat: Result<FileStat, Errno>) -> Result<Option<FileStat>, Errno> {
    match stat {
        Ok(stat) => Ok(Some(stat)),
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        Err(e) => Err(e),
    }
}

/// The same for a whole path, and without the times, which are zero: newer kernels date the first
/// write after somebody has read them by a finer clock, which makes that write dearer.
pub(super) fn look_but_for_times(path: &CStr) -> Result<Option<FileStat>, Errno> {
    const WANTED: libc::c_uint = libc::STATX_TYPE
        | libc::STATX_MODE
        | libc::STATX_NLINK
        | libc::STATX_UID
        | libc::STATX_GID
        | libc::STATX_INO
        | libc::STATX_SIZE;
    // SAFETY: plain structs of integers, for which zeroes are valid.
    let (mut said, mut stat): (libc::statx, FileStat) = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with its zero, and the struct outlives the call.
    let done = unsafe {
        libc::statx(libc::AT_FDCWD, path.as_ptr(), libc::AT_SYMLINK_NOFOLLOW, WANTED, &raw mut said)
    };
    match Errno::result(done) {
        Ok(_) => {}
        // A sandbox that does not know the call.
        Err(Errno::ENOSYS | Errno::EPERM) => return look(AT_FDCWD, path),
        Err(e) => return there(Err(e)),
    }
    stat.st_dev = libc::makedev(said.stx_dev_major, said.stx_dev_minor);
    stat.st_ino = said.stx_ino as _;
    stat.st_nlink = said.stx_nlink as _;
    stat.st_mode = libc::mode_t::from(said.stx_mode);
    (stat.st_uid, stat.st_gid) = (said.stx_uid, said.stx_gid);
    stat.st_size = said.stx_size as _;
    Ok(Some(stat))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_without_the_times_tells_what_stat_does() {
        let (file, _, path) = two_descriptions();
        let name = std::ffi::CString::new(path.path().as_os_str().as_encoded_bytes()).unwrap();
        file.set_len(70_000).unwrap();
        let found = look_but_for_times(&name).unwrap().unwrap();
        let stat = nix::sys::stat::fstat(&file).unwrap();
        let about = |stat: FileStat| {
            let (owner, size) = ((stat.st_uid, stat.st_gid), stat.st_size);
            (stat.st_dev, stat.st_ino, stat.st_nlink, stat.st_mode, owner, size)
        };
        assert_eq!(about(found), about(stat));
        drop(path);
        assert!(look_but_for_times(&name).unwrap().is_none());
    }

    fn two_descriptions() -> (std::fs::File, std::fs::File, tempfile::NamedTempFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || std::fs::File::options().read(true).write(true).open(file.path()).unwrap();
        (open(), open(), file)
    }

    #[test]
    fn f2_a_lock_belongs_to_its_description_and_not_to_the_process() {
        let (a, b, path) = two_descriptions();
        assert_eq!(try_lock(&a, Span::ALL, Grip::Write), Ok(true));
        assert_eq!(try_lock(&b, Span::MAIN, Grip::Read), Ok(false));
        drop(std::fs::File::open(path.path()).unwrap());
        assert_eq!(
            try_lock(&b, Span::MAIN, Grip::Read),
            Ok(false),
            "closing another descriptor of the file frees nothing"
        );
        unlock(&a, Span::MAIN_AND_GATE).unwrap();
        assert_eq!(try_lock(&b, Span::MAIN, Grip::Read), Ok(true));
        assert_eq!(try_lock(&b, Span::ALL, Grip::Write), Ok(false), "upgrade is still taken");
        unlock_all(&a).unwrap();
        assert_eq!(try_lock(&b, Span::ALL, Grip::Write), Ok(true));
    }

    #[test]
    fn two_readers_cannot_both_become_writers() {
        let (a, b, _path) = two_descriptions();
        assert_eq!(try_lock(&a, Span::MAIN, Grip::Read), Ok(true));
        assert_eq!(try_lock(&b, Span::MAIN, Grip::Read), Ok(true));
        assert_eq!(try_lock(&a, Span::MAIN, Grip::Write), Ok(false));
        assert_eq!(try_lock(&b, Span::MAIN, Grip::Write), Ok(false));
        unlock_all(&b).unwrap();
        assert_eq!(try_lock(&a, Span::MAIN, Grip::Write), Ok(true));
    }

    #[test]
    fn an_obstacle_is_cut_to_the_range_that_was_asked_about() {
        let (a, b, _path) = two_descriptions();
        assert_eq!(obstacle(&b, Span::PERMITS, Grip::Write), Ok(None));
        assert_eq!(try_lock(&a, Span::permits(10, 20), Grip::Write), Ok(true));
        assert_eq!(obstacle(&a, Span::PERMITS, Grip::Write), Ok(None), "own locks are none");
        assert_eq!(
            obstacle(&b, Span::permits(15, 100), Grip::Write),
            Ok(Some((Span::permits(15, 1).start, 15)))
        );
        assert_eq!(
            obstacle(&b, Span::permits(0, 11), Grip::Write),
            Ok(Some((Span::permits(10, 1).start, 1)))
        );
        unlock_all(&a).unwrap();
        assert_eq!(try_lock(&a, Span { start: 0, len: 0 }, Grip::Write), Ok(true));
        assert_eq!(
            obstacle(&b, Span::permits(5, 3), Grip::Write),
            Ok(Some((Span::permits(5, 1).start, 3)))
        );
    }
}
