//! Whether a hold is still what it was: the path leads to its file, and the file says so (F1).

use nix::errno::Errno;

use super::bytes::HOT_AT;
use super::dir::{Directory, shown};
use super::lockfile::{Key, LockFile, Seen};
use super::record::{About, Hot, Stamp};
use super::{Opened, boot, wire};
use crate::words::claim::Mode;
use crate::words::clock::unix_us;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::HoldId;
use crate::words::lost::Lost;

/// A hold, as far as it can be checked.
pub(super) struct Facts<'a> {
    pub(super) dir: &'a Directory,
    pub(super) key: &'a Key,
    pub(super) file: &'a LockFile,
    pub(super) id: HoldId,
    pub(super) mode: Mode,
    pub(super) number: u64,
}

/// What a look at a hold comes to.
pub(super) enum Verdict {
    /// It is held.
    Held,
    /// It is lost, for good.
    Lost(Lost),
    /// The system did not let us look: it is held as far as anybody knows, and has to be looked at
    /// again.
    Unknown(Error),
}

impl Facts<'_> {
    /// Looks now. A replaced file is a loss. In a damaged one the lock is where it was, for the
    /// kernel keeps it beside the contents: an exclusive holder writes them anew. An error of the
    /// system is neither.
    pub(super) fn verify(&self, who: Stamp) -> Verdict {
        let path = self.dir.path_of(&self.key.file);
        let seen = match path.and_then(|path| self.file.look_along(&path)) {
            Ok(Seen::Replaced) => return Verdict::Lost(Lost::Replaced),
            Ok(seen) => seen,
            Err(e) => return self.unknown("look at", e),
        };
        if self.mode != Mode::Exclusive {
            return Verdict::Held;
        }
        let mut hot = Hot::EMPTY;
        if let Err(e) = wire::read_at(self.file, &mut hot.0, HOT_AT) {
            return self.unknown("read", e);
        }
        match hot.latest() {
            Some((record, _)) if record.claim() == self.id && seen == Seen::Same => Verdict::Held,
            // Somebody granted past us: no damage does that.
            Some((record, _))
                if record.about() == About::Exclusive && record.number() > self.number =>
            {
                Verdict::Lost(Lost::Replaced)
            }
            _ => self.heal(who),
        }
    }

    fn heal(&self, mut who: Stamp) -> Verdict {
        let record = who.stamped(About::Exclusive, self.number, self.id, unix_us(), boot::id(), 0);
        match self.file.heal(self.dir, self.key, record) {
            Ok(()) => Verdict::Held,
            Err(e) => Verdict::Unknown(Error::new(ErrorKind::Unknown, e.message()).caused_by(e)),
        }
    }

    fn unknown(&self, what: &str, errno: Errno) -> Verdict {
        let path = shown(&self.dir.file(&self.key.file));
        let text = format!(
            "cannot {what} the lock file {path} now: {}: whether it is still the lock's is not \
             known",
            errno.desc()
        );
        Verdict::Unknown(
            Error::new(ErrorKind::Unknown, text).caused_by(std::io::Error::from(errno)),
        )
    }
}

impl Opened {
    pub(super) fn verify(&self, id: HoldId, hold: &super::Hold) -> Verdict {
        let (key, file, mode, number) = (&*hold.key, hold.share.file(), hold.mode, hold.number);
        Facts { dir: &self.dir, key, file, id, mode, number }.verify(self.stamp.clone())
    }
}
