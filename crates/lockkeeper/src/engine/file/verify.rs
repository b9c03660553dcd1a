//! Whether a hold is still what it was: the path leads to its file, and the file says so (F1).

use super::bytes::HOT_AT;
use super::dir::Directory;
use super::lockfile::{Key, LockFile, Seen};
use super::record::{About, Hot, Stamp};
use super::{Opened, boot, wire};
use crate::claim::Mode;
use crate::clock::unix_us;
use crate::id::HoldId;
use crate::lost::Lost;

/// A hold, as far as it can be checked.
pub(super) struct Facts<'a> {
    pub(super) dir: &'a Directory,
    pub(super) key: &'a Key,
    pub(super) file: &'a LockFile,
    pub(super) id: HoldId,
    pub(super) mode: Mode,
    pub(super) number: u64,
}

impl Facts<'_> {
    /// Looks now. A replaced file is a loss. In a damaged one the lock is where it was, for the kernel keeps it beside
    /// the contents: an exclusive holder writes them anew. An error of the system is neither.
    pub(super) fn verify(&self, who: Stamp) -> Result<(), Lost> {
        let seen = self.file.look(self.key);
        if seen == Ok(Seen::Replaced) || !self.file.is_in(self.dir) {
            return Err(Lost::Replaced);
        }
        if self.mode != Mode::Exclusive {
            return Ok(());
        }
        let mut hot = Hot::EMPTY;
        if wire::read_at(self.file, &mut hot.0, HOT_AT).is_err() {
            return Ok(());
        }
        match hot.latest() {
            Some((record, _)) if record.claim() == self.id && seen == Ok(Seen::Same) => Ok(()),
            // Somebody granted past us: no damage does that.
            Some((record, _)) if record.about() == About::Exclusive && record.number() > self.number => Err(Lost::Replaced),
            _ => self.heal(who),
        }
    }

    fn heal(&self, mut who: Stamp) -> Result<(), Lost> {
        let record = who.stamped(About::Exclusive, self.number, self.id, unix_us(), boot::id(), 0);
        self.file.heal(self.dir, self.key, record).map_err(|_| Lost::Replaced)
    }
}

impl Opened {
    pub(super) fn verify(&self, id: HoldId, hold: &super::Hold) -> Result<(), Lost> {
        let (key, file, mode, number) = (&*hold.key, hold.share.file(), hold.mode, hold.number);
        Facts { dir: &self.dir, key, file, id, mode, number }.verify(self.stamp.clone())
    }
}
