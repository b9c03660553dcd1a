//! Whether a hold is still what it was: the path leads to its file, and the file says so (F1).

use super::Opened;
use super::bytes::HOT_AT;
use super::dir::Directory;
use super::lockfile::{Key, LockFile, Seen};
use super::record::Hot;
use super::wire;
use crate::claim::Mode;
use crate::id::HoldId;
use crate::lost::Lost;

/// Looks now; an error of the system is no loss.
pub(super) fn hold(dir: &Directory, key: &Key, file: &LockFile, id: HoldId, mode: Mode) -> Result<(), Lost> {
    if matches!(file.look(key), Ok(Seen::Replaced | Seen::Cut)) || !file.is_in(dir) {
        return Err(Lost::Replaced);
    }
    if mode == Mode::Exclusive {
        let mut hot = Hot::EMPTY;
        if wire::read_at(file, &mut hot.0, HOT_AT).is_ok() && hot.latest().is_none_or(|(record, _)| record.claim() != id) {
            return Err(Lost::Replaced);
        }
    }
    Ok(())
}

impl Opened {
    pub(super) fn verify(&self, id: HoldId, hold: &super::Hold) -> Result<(), Lost> {
        self::hold(&self.dir, &hold.key, hold.share.file(), id, hold.mode)
    }
}
