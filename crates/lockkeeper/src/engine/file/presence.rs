//! Who waits and who holds with others, told by records that count only while their byte is locked:
//! the kernel frees the byte with its process, so a record never outlives its writer, whatever
//! becomes of its pid (F7).

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;

use super::bytes::{FLAGS_AT, Grip, RECORD, SHOWN, SHOWN_AT, Span, WAITER, WAITERS, WAITERS_AT};
use super::record::{Hot, Record, read_waiter};
use super::{living, wire};
use crate::words::claim::{Holder, Waiter};

/// The place that the waiters beyond the table share: they count for those who must give way, and
/// are not shown.
const BEYOND: u16 = WAITERS as u16;

/// Where a search for a free place starts, so that processes do not all try the same ones.
fn hint(places: usize) -> usize {
    std::process::id() as usize % places
}

/// Stands in the table of waiters, and sets the flag that makes others give way (R11); `None` when
/// its caller has left.
pub(super) fn announce(
    file: impl AsFd,
    record: &[u8; WAITER],
    left: impl Fn() -> bool,
) -> Result<Option<u16>, Errno> {
    if left() {
        return Ok(None);
    }
    let file = file.as_fd();
    for step in 0..WAITERS {
        let place = ((hint(WAITERS) + step) % WAITERS) as u16;
        if wire::try_lock(file, Span::waiter(place), Grip::Write)? {
            // Without room on the disk it waits unseen.
            let _ = wire::write_at(file, record, WAITERS_AT + u64::from(place) * WAITER as u64);
            wire::write_at(file, &[1], FLAGS_AT + u64::from(place))?;
            return Ok(Some(place));
        }
    }
    // Refused only while somebody sweeps the flag away, which takes a moment, unless that one is
    // stopped.
    while !wire::try_lock(file, Span::waiter(BEYOND), Grip::Read)? {
        if left() {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    wire::write_at(file, &[1], FLAGS_AT + u64::from(BEYOND))?;
    Ok(Some(BEYOND))
}

/// Leaves the table of waiters.
pub(super) fn retract(file: impl AsFd, place: u16) {
    clear(&file, place);
    let _ = wire::unlock(&file, Span::waiter(place));
}

/// Clears the flag of a place whose byte we have. One that stays, here or after a crash, costs the
/// next acquisition one look: see [`somebody_waits`].
pub(super) fn clear(file: impl AsFd, place: u16) {
    if place != BEYOND {
        let _ = wire::write_at(file, &[0], FLAGS_AT + u64::from(place));
    }
}

/// Gives back everything that an exclusive hold has. Its place in the line comes last: whoever
/// waits is woken before. Until its byte is free nobody else has the place, so no flag of another
/// is cleared; and a process that dies in between leaves no more than a flag.
pub(super) fn free(file: impl AsFd, place: Option<u16>) -> Result<(), Errno> {
    if let Some(place) = place {
        wire::unlock(&file, Span::ALL)?;
        clear(&file, place);
    }
    wire::unlock_all(file)
}

/// Whether any of the flags is true; sweeps away those that the dead left. Whoever sweeps has the
/// byte as no waiter has it, so that nobody takes it for one.
pub(super) fn somebody_waits(file: impl AsFd, hot: &Hot) -> Result<bool, Errno> {
    let file = file.as_fd();
    if wire::is_taken(file, Span::TABLE, Grip::Read)? {
        return Ok(true);
    }
    if wire::in_the_way(file, Span::waiter(BEYOND), Grip::Write)?
        .is_some_and(|locked| locked.grip == Grip::Read)
    {
        return Ok(true);
    }
    for (place, _) in hot.flags().iter().enumerate().filter(|(_, flag)| **flag != 0) {
        let place = place as u16;
        let span = Span::waiter(place);
        if wire::try_lock(file, span, sweeping(place))? {
            let _ = wire::write_at(file, &[0], FLAGS_AT + u64::from(place));
            wire::unlock(file, span)?;
        }
    }
    Ok(false)
}

/// How a place is locked by whoever sweeps its flag away: a waiter has one of the table alone, and
/// shares the one beyond.
fn sweeping(place: u16) -> Grip {
    if place == BEYOND { Grip::Write } else { Grip::Read }
}

/// Whether somebody waits in this place of the table.
fn waits(file: impl AsFd, place: usize) -> Result<bool, Errno> {
    wire::is_taken(file, Span::waiter(place as u16), Grip::Read)
}

/// The record of a place in the table; nothing when it cannot be read.
fn record_of(file: BorrowedFd<'_>, place: usize, limit: u16) -> Result<Option<Waited>, Errno> {
    let mut bytes = [0; WAITER];
    let read = wire::read_at(file, &mut bytes, WAITERS_AT + (place * WAITER) as u64)?;
    Ok(bytes.get(..read).and_then(|bytes| read_waiter(bytes, limit)))
}

/// Since when somebody waits, and who.
type Waited = (u64, Waiter);

/// The places of the table whose flags are set. One that an exclusive holder has kept from its wait
/// is no waiter's, also in the middle of its release, when the next may have written its own record
/// already.
fn flagged(file: BorrowedFd<'_>, hot: &Hot) -> Result<Vec<usize>, Errno> {
    let mut places = Vec::new();
    let flags = hot.flags().iter().enumerate().take(WAITERS).filter(|(_, flag)| **flag != 0);
    for (place, _) in flags {
        let mut is_kept = false;
        for record in hot.records().filter(|r| r.kept_place() == Some(place as u16)) {
            let holder = record.holder(0);
            // Another that has the place by now is another process, or came later.
            is_kept |= record_of(file, place, 0)?.is_some_and(|(since, waiter)| {
                since <= record.since_us()
                    && (waiter.pid, &waiter.host) == (holder.pid, &holder.host)
            });
        }
        if !is_kept {
            places.push(place);
        }
    }
    Ok(places)
}

/// How many wait and are shown.
pub(super) fn count(file: impl AsFd, hot: &Hot) -> Result<u32, Errno> {
    let mut count = 0;
    for place in flagged(file.as_fd(), hot)? {
        count += u32::from(waits(&file, place)?);
    }
    Ok(count)
}

/// Everybody who waits and has a record, in the order in which they came.
pub(super) fn waiters(file: impl AsFd, hot: &Hot, limit: u16) -> Result<Vec<Waiter>, Errno> {
    let file = file.as_fd();
    let mut found = Vec::new();
    for place in flagged(file, hot)? {
        if let Some(waiter) = record_of(file, place, limit)?
            && waits(file, place)?
        {
            found.push(waiter);
        }
    }
    found.sort_by_key(|(since, _)| *since);
    let number = |(ahead, (_, waiter))| Waiter { ahead: u32::try_from(ahead).ok(), ..waiter };
    Ok(found.into_iter().enumerate().map(number).collect())
}

/// Shows a shared holder; `used` says which places this open file description has already, for its
/// own locks never refuse it. `None` when the table or the disk is full: it holds all the same,
/// unseen.
pub(super) fn show(
    file: BorrowedFd<'_>,
    record: &[u8; RECORD],
    used: impl Fn(u16) -> bool,
) -> Result<Option<u16>, Errno> {
    for step in 0..SHOWN {
        let place = ((hint(SHOWN) + step) % SHOWN) as u16;
        if !used(place) && wire::try_lock(file, Span::shown(place), Grip::Write)? {
            if write_shown(file, place, record).is_ok() {
                return Ok(Some(place));
            }
            wire::unlock(file, Span::shown(place))?;
            return Ok(None);
        }
    }
    Ok(None)
}

/// Writes the record of a place that is ours.
pub(super) fn write_shown(
    file: BorrowedFd<'_>,
    place: u16,
    record: &[u8; RECORD],
) -> Result<(), Errno> {
    wire::write_at(file, record, SHOWN_AT + u64::from(place) * RECORD as u64)
}

/// Everybody who holds with others and has a record.
pub(super) fn shown(file: impl AsFd, limit: u16) -> Result<Vec<Holder>, Errno> {
    let file = file.as_fd();
    let mut table = vec![0; SHOWN * RECORD];
    let read = wire::read_at(file, &mut table, SHOWN_AT)?;
    let mut found = Vec::new();
    for (place, bytes) in table.get(..read).unwrap_or_default().chunks_exact(RECORD).enumerate() {
        if let Some(record) = Record::read(bytes)
            && wire::is_taken(file, Span::shown(place as u16), Grip::Write)?
        {
            found.push((
                record.since_us(),
                living::named(file, Span::shown(place as u16), record.holder(limit)),
            ));
        }
    }
    found.sort_by_key(|(since, _)| *since);
    Ok(found.into_iter().map(|(_, holder)| holder).collect())
}
