//! Latches: a count in the record, changed in a brief turn alone with the file, watched by whoever
//! waits for zero.

use super::bytes::HOT_AT;
use super::dir::{Directory, refused};
use super::lockfile::{Key, LockFile};
use super::record::{About, Hot, Record, Stamp};
use super::{boot, value, wire};
use crate::words::clock::unix_us;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};
use crate::words::token::next_number;

/// How many count-downs are remembered, so that one sent twice counts once (R3).
const REMEMBERED: usize = 64;

/// A latch's count; nothing when it was never set, or is open.
pub(super) fn count(record: Record<'_>) -> Option<u64> {
    (record.about() == About::Latch).then(|| record.extra()).filter(|count| *count > 0)
}

/// Sets the count if the latch is open; answers whether it did.
pub(super) fn set(dir: &Directory, name: &Name, to: u64) -> Result<bool> {
    change(dir, name, |now, ids| {
        ids.clear();
        (now == 0, to)
    })
    .map(|(changed, _)| changed)
}

/// Counts down by one, once for each id; answers whether the latch is open now.
pub(super) fn count_down(dir: &Directory, name: &Name, id: ClaimId) -> Result<bool> {
    let (_, count) = change(dir, name, |now, ids| {
        if now == 0 || ids.contains(&id) {
            return (false, now);
        }
        ids.truncate(REMEMBERED - 1);
        ids.insert(0, id);
        (true, now - 1)
    })?;
    Ok(count == 0)
}

/// One change, alone with the file. `decide` is given the count and the ids that counted, and
/// answers whether to write, and what; the answer is whether that was done, and the count
/// afterwards.
fn change(
    dir: &Directory,
    name: &Name,
    decide: impl Fn(u64, &mut Vec<ClaimId>) -> (bool, u64),
) -> Result<(bool, u64)> {
    let key = Key::new(Kind::Latch, name);
    // A file that is replaced while it is written is written again: what was written to the old one
    // nobody sees.
    for _ in 0..super::lockfile::PATIENCE {
        let file = LockFile::open(dir, &key)?;
        let changed = file.briefly(dir, &key, || write(dir, &key, &file, &decide))?;
        if file.look(&key).map_err(|e| refused("look at the lock file", &dir.file(&key.file), e))?
            == super::lockfile::Seen::Same
        {
            return Ok(changed);
        }
    }
    Err(Error::new(
        ErrorKind::Refused,
        "the latch's file is replaced again and again: find out by whom",
    ))
}

fn write(
    dir: &Directory,
    key: &Key,
    file: &LockFile,
    decide: impl Fn(u64, &mut Vec<ClaimId>) -> (bool, u64),
) -> Result<(bool, u64)> {
    let failed = |what: &str, e| refused(&format!("{what} the lock file"), &dir.file(&key.file), e);
    let mut hot = Hot::EMPTY;
    wire::read_at(file, &mut hot.0, HOT_AT).map_err(|e| failed("read", e))?;
    let Some((record, next_at)) = hot.latest() else { return Err(file.unreadable(dir, key)) };
    let before = count(record).unwrap_or(0);
    let mut ids = value::read(file, record.number())
        .map_err(|e| failed("read", e))?
        .map_or_else(Vec::new, |bytes| unpack(&bytes));
    let (wanted, after) = decide(before, &mut ids);
    if !wanted {
        return Ok((false, before));
    }
    let now = unix_us();
    let number = next_number(record.number(), now).ok_or_else(|| file.unreadable(dir, key))?;
    value::write(file, number, &pack(&ids)).map_err(|e| failed("write", e))?;
    let mut stamp = Stamp::nobody();
    wire::write_at(
        file,
        stamp.stamped(About::Latch, number, ClaimId(0), now, boot::id(), after),
        next_at,
    )
    .map_err(|e| failed("write", e))?;
    if dir.durable {
        nix::unistd::fdatasync(file).map_err(|e| failed("sync", e))?;
    }
    Ok((true, after))
}

fn pack(ids: &[ClaimId]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.0.to_le_bytes()).collect()
}

fn unpack(bytes: &[u8]) -> Vec<ClaimId> {
    bytes
        .chunks_exact(16)
        .filter_map(|id| id.try_into().ok())
        .map(|id| ClaimId(u128::from_le_bytes(id)))
        .collect()
}
