//! The steps of an acquisition that only a semaphore has, and changing its limit.

use std::sync::Arc;

use super::bytes::{HOT_AT, Span};
use super::dir::{Directory, refused};
use super::driver::Driver;
use super::fresh::stopped;
use super::inspect::limit_of;
use super::lockfile::{Key, LockFile};
use super::permit_wait::Doze;
use super::permits::Pool;
use super::recipe::Event;
use super::record::{About, Hot, Stamp};
use super::{boot, wire};
use crate::words::claim::Mode;
use crate::words::clock::unix_us;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::Name;
use crate::words::token::next_number;

impl Driver<'_> {
    /// The limit that counts. The first acquisition stores its own; after that another one is
    /// refused, naming both. A resize while the claim waits does not refuse it, unless it asks for
    /// more than there are now.
    pub(super) fn agree_on_limit(&mut self) -> Result<u16> {
        let Mode::Permits { count, limit: asked } = self.claim.mode else { return Ok(0) };
        let stored = match self.hot.latest().and_then(|(record, _)| limit_of(record)) {
            Some(stored) => stored,
            None => {
                store_limit(self.dir, self.key, &self.file, asked, About::Limit)?.unwrap_or(asked)
            }
        };
        compare(stored, if self.limit_agreed { stored } else { asked }, count)?;
        self.limit_agreed = true;
        Ok(stored)
    }

    pub(super) fn pick(&mut self) -> Result<Event> {
        let Mode::Permits { count, .. } = self.claim.mode else { return Ok(Event::Failed) };
        let pool = match self.pool.take().filter(|pool| pool.is_of(&self.file)) {
            Some(pool) => pool,
            None => Arc::new(Pool::new(LockFile::open(self.dir, self.key)?)),
        };
        if !pool.is_of(&self.file) {
            return Ok(Event::Replaced);
        }
        self.picked = pool.pick(count, self.limit).map_err(|e| self.failed("lock", e))?;
        self.pool = Some(pool);
        Ok(if self.picked.is_some() { Event::Yes } else { Event::No })
    }

    /// Has the counting to itself.
    pub(super) fn count(&mut self) -> Result<Event> {
        if self.file.one_at_a_time(Span::COUNT).map_err(|e| self.failed("lock", e))? {
            return Ok(Event::Yes);
        }
        self.error = Some(stopped(self.dir, self.key));
        Ok(Event::Stopped)
    }

    pub(super) fn sleep(&mut self) -> Result<Event> {
        let Some(wait) = self.wait else { return Ok(Event::Failed) };
        if self.doze.is_none() {
            self.doze =
                Some(Doze::new(self.dir, &self.key.file).map_err(|e| self.failed("watch", e))?);
        }
        match &mut self.doze {
            Some(doze) => wait
                .doze(doze)
                .map_err(|e| refused("watch the lock file", &self.dir.file(&self.key.file), e)),
            None => Ok(Event::Failed),
        }
    }
}

/// Refuses another limit than the stored one, and more permits than there are.
fn compare(stored: u16, asked: u16, count: u16) -> Result<()> {
    if stored != asked {
        let text = format!(
            "its stored limit is {stored} and {asked} was requested: request {stored}, or resize it"
        );
        return Err(Error::new(ErrorKind::LimitMismatch, text));
    }
    if count == 0 || count > stored {
        let text =
            format!("{count} permits were requested and there are {stored}: request 1 to {stored}");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    Ok(())
}

/// Compares a claim with the stored limit before it stands in line.
pub(super) fn check_limit(file: &LockFile, mode: Mode) -> Result<()> {
    let Mode::Permits { count, limit } = mode else { return Ok(()) };
    let mut hot = Hot::EMPTY;
    let read = wire::read_at(file, &mut hot.0, HOT_AT);
    match hot.latest().and_then(|(record, _)| limit_of(record)) {
        Some(stored) if read.is_ok() => compare(stored, limit, count),
        _ => Ok(()),
    }
}

/// Stores a limit. Without being chosen by a resize it gives way to one that is there already,
/// which is the answer.
fn store_limit(
    dir: &Directory,
    key: &Key,
    file: &LockFile,
    limit: u16,
    about: About,
) -> Result<Option<u16>> {
    file.briefly(dir, key, || {
        let failed =
            |what: &str, e| refused(&format!("{what} the lock file"), &dir.file(&key.file), e);
        let mut hot = Hot::EMPTY;
        wire::read_at(file, &mut hot.0, HOT_AT).map_err(|e| failed("read", e))?;
        let Some((record, next_at)) = hot.latest() else { return Err(file.unreadable(dir, key)) };
        let stored = limit_of(record);
        if stored == Some(limit) && record.about() == about
            || stored.is_some() && about == About::Limit
        {
            return Ok(stored);
        }
        let now = unix_us();
        let number = next_number(record.number(), now).ok_or_else(|| file.unreadable(dir, key))?;
        let mut stamp = Stamp::nobody();
        let bytes = stamp.stamped(about, number, ClaimId(0), now, boot::id(), u64::from(limit));
        wire::write_at(file, bytes, next_at).map_err(|e| failed("write", e))?;
        Ok(stored)
    })
}

/// Changes the stored limit for everybody; answers whether that changed anything. Permits that are
/// out stay out.
pub(super) fn resize(dir: &Directory, name: &Name, limit: u16) -> Result<bool> {
    let key = Key::new(crate::words::name::Kind::Semaphore, name);
    let file = LockFile::open(dir, &key)?;
    let before = store_limit(dir, &key, &file, limit, About::ChosenLimit)?;
    Ok(before != Some(limit))
}
