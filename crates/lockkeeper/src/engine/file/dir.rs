//! The directory of the lock files: opening it, what it says about who shares it, and its errors.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open, openat};
use nix::sys::stat::{Mode, SFlag, fstat, mkdirat};
use nix::unistd::{Gid, Uid, fchown, geteuid, mkdir};

use super::fork::Descriptor;
use crate::words::error::{Error, ErrorKind, Result};

/// A directory of lock files.
pub(super) struct Directory {
    path: PathBuf,
    pub(super) durable: bool,
    anchor: Mutex<Arc<Anchor>>,
}

/// One opened incarnation of the directory; a deleted and remade one is another.
pub(super) struct Anchor {
    fd: Descriptor,
    pub(super) dev: u64,
    pub(super) ino: u64,
    pub(super) owner: u32,
    pub(super) group: u32,
    /// Permission bits.
    pub(super) mode: u32,
    /// Its time of change is the kernel's own, and tells of every name that comes, goes, or is
    /// taken over.
    dated: bool,
}

impl AsFd for Anchor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Anchor {
    fn open(path: &Path) -> Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = match open(path, flags, Mode::empty()) {
            Err(Errno::ENOENT) => {
                make(path)?;
                open(path, flags, Mode::empty())
            }
            opened => opened,
        };
        let fd = fd.map_err(|e| match e {
            Errno::ENOTDIR => Error::new(
                ErrorKind::Refused,
                format!(
                    "{} is not a directory: name the directory that holds the lock files",
                    shown(path)
                ),
            ),
            e => refused("open the lock directory", path, e),
        })?;
        let stat = fstat(&fd).map_err(|e| refused("look at the lock directory", path, e))?;
        Ok(Self {
            dated: super::describe::is_local(&fd),
            fd: Descriptor::new(fd),
            dev: stat.st_dev,
            ino: stat.st_ino,
            owner: stat.st_uid,
            group: stat.st_gid,
            mode: stat.st_mode & 0o7777,
        })
    }

    /// When a name in it last came, went, or was taken over, in nanoseconds; `None` where that
    /// cannot be relied on.
    pub(super) fn changed_at(&self) -> Option<i128> {
        let stat = if self.dated { fstat(self).ok()? } else { return None };
        Some(i128::from(stat.st_ctime) * 1_000_000_000 + i128::from(stat.st_ctime_nsec))
    }

    /// Whether anybody but its owner can make files in it.
    pub(super) fn is_shared(&self) -> bool {
        self.mode & 0o022 != 0
    }

    /// Whether everybody can make files in it and anybody can replace anybody's.
    pub(super) fn is_unprotected(&self) -> bool {
        self.mode & 0o002 != 0 && self.mode & 0o1000 == 0
    }

    /// The permissions of a new lock file: whoever can make files here can use ours.
    pub(super) fn file_mode(&self) -> Mode {
        let group =
            if self.mode & 0o020 != 0 { Mode::S_IRGRP | Mode::S_IWGRP } else { Mode::empty() };
        let other = if self.mode & 0o002 != 0 {
            Mode::S_IRGRP | Mode::S_IWGRP | Mode::S_IROTH | Mode::S_IWOTH
        } else {
            Mode::empty()
        };
        Mode::S_IRUSR | Mode::S_IWUSR | group | other
    }

    /// Whether a lock file of that owner may be used here: in a shared directory everybody's (that
    /// is what it is for), in a private one ours, root's and the directory's owner's.
    pub(super) fn trusts(&self, owner: u32) -> bool {
        self.is_shared() || owner == self.owner || owner == 0 || Uid::from_raw(owner) == geteuid()
    }
}

fn make(path: &Path) -> Result<()> {
    let made = match mkdir(path, Mode::S_IRWXU) {
        Err(Errno::ENOENT) => {
            make_above(path)?;
            mkdir(path, Mode::S_IRWXU)
        }
        made => made,
    };
    match made {
        Ok(()) | Err(Errno::EEXIST) => Ok(()),
        Err(e) => Err(refused("make the lock directory", path, e)),
    }
}

/// Makes the user's state directory, which a fresh account does not have, in a home that is there;
/// no other missing one.
fn make_above(path: &Path) -> Result<()> {
    let above = path.parent().unwrap_or(path);
    let state =
        crate::open::home::state_home().filter(|(state, base)| state == above && base.is_dir());
    if let Some((state, base)) = state {
        return make_state(&state, &base)
            .map_err(|e| refused("make the state directory", &state, e));
    }
    let missing =
        path.ancestors().skip(1).take_while(|above| !above.exists()).last().unwrap_or(above);
    Err(Error::new(
        ErrorKind::Refused,
        format!(
            "the lock directory {} cannot be made because {} does not exist: make that first, or \
             name another directory",
            shown(path),
            shown(missing)
        ),
    ))
}

/// Makes what is missing of a state directory, with the permissions of the XDG specification. What
/// root makes in the home of another user belongs to that user: programs of theirs use it, too.
fn make_state(state: &Path, base: &Path) -> Result<(), Errno> {
    const SEARCH: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_CLOEXEC);
    let mut at = open(base, SEARCH, Mode::empty())?;
    let home = fstat(&at)?;
    let inside = state.strip_prefix(base).unwrap_or(state);
    for part in inside.components() {
        let is_made = match mkdirat(&at, part.as_os_str(), Mode::S_IRWXU) {
            Ok(()) => true,
            Err(Errno::EEXIST) => false,
            Err(e) => return Err(e),
        };
        let follow = if is_made { OFlag::O_NOFOLLOW } else { OFlag::empty() };
        let next = openat(&at, part.as_os_str(), SEARCH | follow, Mode::empty())?;
        let (above, made) = (fstat(&at)?, fstat(&next)?);
        // Nothing is given away that was there before: not to a user who moves things about, and
        // not behind a link.
        let is_fresh = is_made && made.st_nlink <= 2 && above.st_uid == home.st_uid;
        if is_fresh && made.st_uid == 0 && home.st_uid != 0 {
            let (user, group) = (Uid::from_raw(home.st_uid), Gid::from_raw(home.st_gid));
            // A container's root need not be able to.
            _ = fchown(&next, Some(user), Some(group));
        }
        at = next;
    }
    Ok(())
}

impl Directory {
    /// Opens the directory, and makes it (for its owner alone) if only its last component is
    /// missing.
    pub(super) fn open(path: &Path, durable: bool) -> Result<Self> {
        let path = std::path::absolute(path).map_err(|e| {
            Error::new(
                ErrorKind::InvalidArgument,
                format!("the lock directory {}: {e}", shown(path)),
            )
        })?;
        let anchor = Anchor::open(&path)?;
        Ok(Self { path, durable, anchor: Mutex::new(Arc::new(anchor)) })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The incarnation that was there when it was last looked for.
    pub(super) fn anchor(&self) -> Arc<Anchor> {
        self.anchor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The incarnation that the path leads to now.
    pub(super) fn current(&self) -> Result<Arc<Anchor>> {
        let anchor = self.anchor();
        let still = self
            .is_still(&anchor)
            .map_err(|e| refused("look at the lock directory", &self.path, e))?;
        if still { Ok(anchor) } else { self.reopen() }
    }

    /// Opens the path again: the incarnation that we know was deleted or moved away.
    pub(super) fn reopen(&self) -> Result<Arc<Anchor>> {
        let fresh = Arc::new(Anchor::open(&self.path)?);
        *self.anchor.lock().unwrap_or_else(PoisonError::into_inner) = fresh.clone();
        Ok(fresh)
    }

    /// Whether the path leads to the same incarnation as that one. It does not where another stands
    /// there, or none: an error of the system proves neither.
    pub(super) fn is_still(&self, anchor: &Anchor) -> Result<bool, Errno> {
        match nix::sys::stat::stat(&self.path) {
            Ok(stat) => Ok(stat.st_dev == anchor.dev
                && stat.st_ino == anchor.ino
                && SFlag::S_IFDIR.bits() & stat.st_mode != 0),
            Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The whole path of one file in it.
    pub(super) fn path_of(&self, name: &CStr) -> Result<CString, Errno> {
        let path = [self.path.as_os_str().as_bytes(), b"/", name.to_bytes()].concat();
        CString::new(path).map_err(|_| Errno::EINVAL)
    }

    /// The path of one file in it, for messages.
    pub(super) fn file(&self, name: &CStr) -> PathBuf {
        self.path.join(std::path::Path::new(&*name.to_string_lossy()))
    }
}

/// A path in a message: control characters of a neighbour's choice never reach a terminal.
pub(super) fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().collect()
}

/// Who may do something about a denied access: the owner of the nearest directory that can be
/// looked at.
fn denied(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let us = geteuid();
    let nearest =
        path.ancestors().find_map(|at| std::fs::metadata(at).ok().map(|about| (at, about)));
    let owner = nearest.filter(|(_, about)| about.uid() != us.as_raw()).map(|(at, about)| {
        let mode = about.mode() & 0o7777;
        format!(
            "{} belongs to user {} (mode {mode:o}) and this process is user {us}: ",
            shown(at),
            about.uid()
        )
    });
    format!(
        "{}let this user read and write there, or use another directory",
        owner.unwrap_or_default()
    )
}

/// What the system refused, to which path, and what to do about it.
pub(super) fn refused(what: &str, path: &Path, errno: Errno) -> Error {
    let advice = match errno {
        Errno::EACCES | Errno::EPERM => &denied(path),
        Errno::ENOSPC | Errno::EDQUOT => "make room on that disk",
        Errno::EROFS => "that file system is mounted read-only: use another directory",
        Errno::EMFILE => "this process has as many files open as it may: raise `ulimit -n`",
        Errno::ENFILE => "the system has as many files open as it can",
        Errno::ENOLCK => "the kernel, or the file server, has no room for another lock",
        Errno::EFBIG => "raise `ulimit -f`",
        _ => "see what is wrong with that path",
    };
    let temporary = matches!(
        errno,
        Errno::EMFILE | Errno::ENFILE | Errno::ENOLCK | Errno::ENOSPC | Errno::EDQUOT
    );
    Error::new(
        ErrorKind::Refused,
        format!("cannot {what} {}: {}: {advice}", shown(path), errno.desc()),
    )
    .temporary(temporary)
    .caused_by(std::io::Error::from(errno))
}
