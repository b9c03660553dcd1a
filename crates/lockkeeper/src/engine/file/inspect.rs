//! Who has a lock and who waits, read without taking anything.

use std::ffi::CString;

use nix::errno::Errno;

use super::bytes::{Grip, HOT_AT, Span};
use super::dir::{Directory, refused};
use super::lockfile::{Key, LockFile};
use super::record::{About, Hot, Record};
use super::{latch, living, name, presence, value, wire};
use crate::engine::Query;
use crate::words::claim::{Entry, Holder};
use crate::words::error::Result;
use crate::words::name::Kind;

/// What is known about one name; an entry also when nothing is stored.
pub(super) fn entry(dir: &Directory, key: &Key) -> Result<Entry> {
    let mut entry = Entry::new(key.kind, key.name.clone());
    if let Some(file) = LockFile::open_to_look(dir, key)? {
        let mut hot = Hot::EMPTY;
        let failed = |e| refused("read the lock file", &dir.file(&key.file), e);
        wire::read_at(&file, &mut hot.0, HOT_AT).map_err(failed)?;
        let Some((record, _)) = hot.latest() else { return Err(file.unreadable(dir, key)) };
        fill(&mut entry, &file, &hot, record).map_err(failed)?;
    }
    Ok(entry)
}

/// What is known about one name, or about every name with a prefix that somebody holds or waits
/// for, or that keeps a value.
pub(super) fn entries(dir: &Directory, query: &Query) -> Result<Vec<Entry>> {
    let prefix = match query {
        Query::One(kind, name) => {
            return entry(dir, &Key::new(*kind, name)).map(|entry| vec![entry]);
        }
        Query::Prefix(prefix) => prefix,
    };
    let mut found = Vec::new();
    for file_name in file_names(dir)? {
        let Some(kind) =
            name::kind_of(&file_name).filter(|_| name::may_start_with(&file_name, prefix))
        else {
            continue;
        };
        // A file that is none of ours says nothing; one that was ours is told even when it cannot
        // be read.
        let Some(name) = LockFile::name_in(dir, kind, &file_name)
            .filter(|name| name.as_str().starts_with(prefix))
        else {
            continue;
        };
        // Its file's own name, for where the header cannot be read the lock's name may be cut.
        let Ok(file) = CString::new(file_name) else { continue };
        let key = Key { kind, name, file };
        let told = entry(dir, &key).unwrap_or_else(|error| {
            let mut entry = Entry::new(kind, key.name);
            entry.unreadable = Some(error.into());
            entry
        });
        found.extend(Some(told).filter(Entry::is_in_use));
    }
    found.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    Ok(found)
}

/// The names of the files in the directory, as far as they can be ours.
pub(super) fn file_names(dir: &Directory) -> Result<Vec<String>> {
    let failed = |e: std::io::Error| {
        refused(
            "list the lock directory",
            dir.path(),
            Errno::from_raw(e.raw_os_error().unwrap_or(0)),
        )
    };
    let found: std::io::Result<Vec<_>> = std::fs::read_dir(dir.path()).map_err(failed)?.collect();
    Ok(found
        .map_err(failed)?
        .into_iter()
        .filter_map(|found| found.file_name().into_string().ok())
        .collect())
}

fn fill(entry: &mut Entry, file: &LockFile, hot: &Hot, record: Record<'_>) -> Result<(), Errno> {
    match entry.kind {
        Kind::Latch => {
            entry.count = latch::count(record);
            return Ok(());
        }
        Kind::Semaphore => {
            let limit = limit_of(record);
            entry.limit = limit;
            entry.holders = presence::shown(file, limit.unwrap_or(0))?;
        }
        Kind::Lock | Kind::Election => entry.holders = holders(file, record)?,
    }
    entry.waiters = presence::waiters(file, hot, entry.limit.unwrap_or(0))?;
    Ok(())
}

/// A semaphore's stored limit.
pub(super) fn limit_of(record: Record<'_>) -> Option<u16> {
    matches!(record.about(), About::Limit | About::ChosenLimit)
        .then(|| u16::try_from(record.extra()).unwrap_or(u16::MAX))
}

/// Who has the lock: the last record's writer while somebody has main alone, else those who are
/// shown.
fn holders(file: &LockFile, record: Record<'_>) -> Result<Vec<Holder>, Errno> {
    if !wire::is_taken(file, Span::MAIN, Grip::Read)? {
        return presence::shown(file, 0);
    }
    let mut holder = if record.about() == About::Exclusive {
        living::named(file, Span::MAIN, record.holder(0))
    } else {
        Holder::default()
    };
    holder.value =
        value::read(file, record.number())?.and_then(|text| String::from_utf8(text).ok());
    Ok(vec![holder])
}

/// One who stands in the way, for the answer to a failed try; nothing when it left meanwhile or is
/// not shown.
pub(super) fn holder(file: &LockFile, key: &Key) -> Option<Box<Holder>> {
    let mut hot = Hot::EMPTY;
    wire::read_at(file, &mut hot.0, HOT_AT).ok()?;
    let (record, _) = hot.latest()?;
    let found = match key.kind {
        Kind::Lock | Kind::Election => holders(file, record),
        Kind::Semaphore => presence::shown(file, limit_of(record).unwrap_or(0)),
        Kind::Latch => return None,
    };
    found.ok()?.into_iter().next().map(Box::new)
}

/// How many stand in line now.
pub(super) fn ahead(file: &LockFile) -> Option<u32> {
    let mut hot = Hot::EMPTY;
    wire::read_at(file, &mut hot.0, HOT_AT).ok()?;
    presence::count(file, &hot).ok()
}
