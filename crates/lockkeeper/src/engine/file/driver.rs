//! Carries out what a recipe says: the one place where the protocol meets the kernel.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::sync::Arc;

use nix::errno::Errno;
use nix::unistd::fdatasync;

use super::bytes::{Grip, HOT_AT, Span};
use super::dir::{Directory, refused};
use super::fresh::{patiently, stopped};
use super::lockfile::{Key, LockFile, Seen};
use super::permit_wait::Doze;
use super::permits::{Picked, Pool};
use super::recipe::{Action, End, Event, Goal, Recipe};
use super::record::{About, Hot, Stamp, waiter};
use super::state::Share;
use super::wait::Wait;
use super::{boot, presence, value, wire};
use crate::words::claim::{Claim, Mode};
use crate::words::clock::unix_us;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{ClaimId, HoldId};
use crate::words::token::next_number;

/// One acquisition under way.
pub(super) struct Driver<'a> {
    pub(super) dir: &'a Directory,
    pub(super) key: &'a Key,
    pub(super) claim: &'a Claim,
    /// The id that the hold has, or will have.
    pub(super) holder: HoldId,
    pub(super) stamp: Stamp,
    /// The open file description that takes the locks. An upgrade has a twin of the hold's.
    pub(super) file: LockFile,
    /// A second twin, for an upgrade that is called off: then `file` is closed under it.
    pub(super) keep: Option<LockFile>,
    /// Where it may block, and what calls it off; `None` in a caller that must not block.
    pub(super) wait: Option<&'a Wait>,
    pub(super) hot: Hot,
    /// The process's permits of this semaphore, once it has some, and those that this acquisition
    /// took.
    pub(super) pool: Option<Arc<Pool>>,
    pub(super) picked: Option<Picked>,
    /// The stored limit; and whether the claim's own was compared with it, which is done once.
    pub(super) limit: u16,
    pub(super) limit_agreed: bool,
    pub(super) doze: Option<Doze>,
    /// The number of the grant.
    pub(super) number: u64,
    /// The place where the holder is shown.
    pub(super) shown: Option<u16>,
    waits_at: Option<u16>,
    /// The whole path, for the look after a wait.
    path: Option<CString>,
    pub(super) error: Option<Error>,
}

impl<'a> Driver<'a> {
    pub(super) fn new(
        dir: &'a Directory,
        key: &'a Key,
        claim: &'a Claim,
        stamp: Stamp,
        file: LockFile,
    ) -> Self {
        Self {
            dir,
            key,
            claim,
            holder: claim.id,
            stamp,
            file,
            keep: None,
            wait: None,
            hot: Hot::EMPTY,
            pool: None,
            picked: None,
            limit: 0,
            limit_agreed: false,
            doze: None,
            number: 0,
            shown: None,
            waits_at: None,
            path: None,
            error: None,
        }
    }

    /// Runs the recipe to its end, or to where it must wait and may not: then the answer is `None`,
    /// and a driver with a [`Wait`] goes on from there with the same recipe.
    pub(super) fn run(&mut self, recipe: &mut Recipe, mut event: Event) -> Option<End> {
        loop {
            let action = recipe.step(event);
            match action {
                Action::Done(end) => return Some(end),
                Action::Stand if self.wait.is_none() => return None,
                action => {
                    event = self.perform(action, recipe).unwrap_or_else(|error| {
                        self.error.get_or_insert(error);
                        Event::Failed
                    });
                }
            }
        }
    }

    /// What a granted run has got; for permits, its own file is free again.
    pub(super) fn into_share(self) -> (Share, Option<LockFile>) {
        match (self.pool, self.picked) {
            (Some(pool), Some(picked)) => (Share::Permits(pool, picked), Some(self.file)),
            _ => (Share::Own { file: self.file, shown: self.shown, place: self.waits_at }, None),
        }
    }

    /// The error of a run that ended in `Failed`.
    pub(super) fn into_error(self) -> Error {
        self.error.unwrap_or_else(|| {
            let path = super::dir::shown(&self.dir.file(&self.key.file));
            Error::new(
                ErrorKind::Refused,
                format!("the lock file {path} is replaced again and again: find out by whom"),
            )
        })
    }

    fn perform(&mut self, action: Action, recipe: &Recipe) -> Result<Event> {
        let goal = recipe.goal();
        match action {
            Action::Try(span, grip) if recipe.joins() => {
                let locked =
                    wire::try_lock(&self.file, span, grip).map_err(|e| self.failed("lock", e))?;
                Ok(if locked { Event::Yes } else { Event::No })
            }
            Action::Try(span, grip) => self.take_or_see_who_has_it(span, grip),
            Action::Count => self.count(),
            Action::Wait(span, grip) => match self.wait {
                Some(wait) => wait.lock(&self.file, span, grip).map_err(|e| self.failed("lock", e)),
                None => Ok(Event::Failed),
            },
            Action::Free(span) => wire::unlock(&self.file, span)
                .map(|()| Event::Yes)
                .map_err(|e| self.failed("unlock", e)),
            Action::Check => {
                let seen = match &self.path {
                    Some(path) => self.file.look_along(path),
                    None => self.file.check(self.dir, self.key),
                };
                match seen.map_err(|e| self.failed("look at", e))? {
                    Seen::Same => Ok(Event::Yes),
                    // Somebody emptied it: what we hold is the lock all the same, and an empty file
                    // is a fresh one.
                    Seen::Cut => self.file.prepare(self.dir, self.key).map(|()| Event::Yes),
                    Seen::Replaced => Ok(Event::Replaced),
                }
            }
            Action::Look => self.look(goal),
            Action::Pick => self.pick(),
            Action::Sleep => self.sleep(),
            Action::Write => self.write(goal).map(|()| Event::Yes),
            Action::Show => self.show().map(|()| Event::Yes),
            Action::Announce => {
                let path = self.dir.path_of(&self.key.file);
                self.path = Some(path.map_err(|e| self.failed("look at", e))?);
                // Read once a process, and not between a wake-up and a grant.
                boot::id();
                let record = waiter(&self.claim.who, self.claim.mode, unix_us());
                let left = || self.wait.is_some_and(Wait::is_called_off);
                self.waits_at = presence::announce(&self.file, &record, left)
                    .map_err(|e| self.failed("wait at", e))?;
                Ok(if self.waits_at.is_some() { Event::Yes } else { Event::Stopped })
            }
            Action::Retract => {
                self.retract();
                Ok(Event::Yes)
            }
            Action::Undo => {
                self.undo(goal);
                Ok(Event::Yes)
            }
            Action::Reopen => {
                self.file = LockFile::open(self.dir, self.key)?;
                // What it watched is the old one.
                self.doze = None;
                Ok(Event::Yes)
            }
            Action::Stand | Action::Done(_) => Ok(Event::Yes),
        }
    }

    /// Locks a range for somebody who does not wait, and so is refused only for the sake of one who
    /// may keep it: who only sweeps has every byte for a moment, and who has let go meanwhile is in
    /// nobody's way.
    fn take_or_see_who_has_it(&self, span: Span, grip: Grip) -> Result<Event> {
        let mut sweeps = false;
        let took = patiently(|| {
            if wire::try_lock(&self.file, span, grip)? {
                return Ok(Some(Event::Yes));
            }
            let locked = wire::in_the_way(&self.file, span, grip)?;
            sweeps = locked.is_some_and(|locked| locked.sweeps());
            Ok(locked.filter(|_| !sweeps).map(|_| Event::No))
        });
        match took.map_err(|e| self.failed("lock", e))? {
            Some(event) => Ok(event),
            None if sweeps => Err(stopped(self.dir, self.key)),
            // One after the other had it.
            None => Ok(Event::No),
        }
    }

    pub(super) fn failed(&self, what: &str, errno: Errno) -> Error {
        refused(&format!("{what} the lock file"), &self.dir.file(&self.key.file), errno)
    }

    pub(super) fn read_hot(&mut self) -> Result<()> {
        let read = wire::read_at(&self.file, &mut self.hot.0, HOT_AT)
            .map_err(|e| self.failed("read", e))?;
        self.hot.0.iter_mut().skip(read).for_each(|byte| *byte = 0);
        Ok(())
    }

    /// Reads the last number and the flags. For a shared hold the number is settled here: one more
    /// than the last exclusive one, and every exclusive one leaves that free.
    fn look(&mut self, goal: Goal) -> Result<Event> {
        self.read_hot()?;
        if self.hot.latest().is_none() {
            // Somebody emptied it: what we hold is the lock all the same, and an empty file is a
            // fresh one.
            self.file.prepare(self.dir, self.key)?;
            self.read_hot()?;
        }
        let Some((record, _)) = self.hot.latest() else {
            return Err(self.file.unreadable(self.dir, self.key));
        };
        let (mut last, of_this_boot) = (record.number(), record.boot() == boot::id());
        let must_give_way = self.wait.is_none()
            && !matches!(goal, Goal::Upgrade | Goal::Beside)
            && self.hot.has_line();
        if must_give_way
            && presence::somebody_waits(&self.file, &self.hot)
                .map_err(|e| self.failed("look at", e))?
        {
            return Ok(Event::No);
        }
        if goal == Goal::Permits {
            self.limit = self.agree_on_limit()?;
        } else if matches!(goal, Goal::Shared | Goal::Beside | Goal::Upgradable) {
            if !of_this_boot {
                last = self.renumber()?;
            }
            self.number = last + 1;
        }
        Ok(Event::Yes)
    }

    /// Starts from the clock again where the record may be older than what was granted: once a file
    /// and boot. The caller has main, so no exclusive holder writes meanwhile.
    fn renumber(&mut self) -> Result<u64> {
        let twin = self.file.twin().map_err(|e| self.failed("duplicate the descriptor of", e))?;
        let (dir, key) = (self.dir, self.key);
        twin.briefly(dir, key, || self.renumber_locked())
    }

    fn renumber_locked(&mut self) -> Result<u64> {
        self.read_hot()?;
        let Some((record, next_at)) = self.hot.latest() else {
            return Err(self.file.unreadable(self.dir, self.key));
        };
        if record.boot() == boot::id() {
            return Ok(record.number());
        }
        let now = unix_us();
        let number = next_number(record.number() + 1, now).ok_or_else(used_up)?;
        let mut stamp = Stamp::nobody();
        let bytes = stamp.stamped(About::Number, number, ClaimId(0), now, boot::id(), 0);
        wire::write_at(&self.file, bytes, next_at).map_err(|e| self.failed("write", e))?;
        Ok(number)
    }

    /// Writes the next number and the holder, alone with the file. What cannot be written is not
    /// granted (F5).
    fn write(&mut self, goal: Goal) -> Result<()> {
        let Some((record, next_at)) = self.hot.latest() else {
            return Err(self.file.unreadable(self.dir, self.key));
        };
        let now = unix_us();
        let number = next_number(record.number() + 1, now).ok_or_else(used_up)?;
        if let Some(text) = &self.claim.value {
            value::write(&self.file, number, text.as_bytes())
                .map_err(|e| self.failed("write", e))?;
        }
        let keeps = self.waits_at.filter(|_| goal == Goal::Exclusive);
        let extra = keeps.map_or(0, |place| u64::from(place) + 1);
        let stamp = &mut self.stamp;
        let bytes = stamp.stamped(About::Exclusive, number, self.holder, now, boot::id(), extra);
        wire::write_at(&self.file, bytes, next_at).map_err(|e| self.failed("write", e))?;
        if self.dir.durable {
            fdatasync(&self.file).map_err(|e| self.failed("sync", e))?;
        }
        self.number = number;
        Ok(())
    }

    fn show(&mut self) -> Result<()> {
        let about = About::of_mode(self.claim.mode);
        let extra = self.claim.mode.permits().map_or(0, u64::from);
        let bytes =
            self.stamp.stamped(about, self.number, self.holder, unix_us(), boot::id(), extra);
        if let (Some(pool), Some(picked)) = (&self.pool, &mut self.picked) {
            return pool
                .show(picked, bytes)
                .map_err(|e| refused("lock the lock file", &self.dir.file(&self.key.file), e));
        }
        self.shown = presence::show(self.file.as_fd(), bytes, |_| false)
            .map_err(|e| self.failed("lock", e))?;
        Ok(())
    }

    fn retract(&mut self) {
        if let Some(place) = self.waits_at.take() {
            presence::retract(self.keep.as_ref().unwrap_or(&self.file), place);
        }
    }

    /// Gives everything back. Errors change nothing here: who gets an end other than `Granted`
    /// closes the descriptor.
    pub(super) fn undo(&mut self, goal: Goal) {
        let rescued = self.wait.and_then(Wait::take_rescued);
        let kept = self.keep.as_ref().unwrap_or(&self.file);
        let file = rescued.as_ref().map_or(kept.as_fd(), AsFd::as_fd);
        if let Some(place) = self.waits_at.take() {
            presence::retract(file, place);
        }
        self.shown = None;
        match goal {
            Goal::Exclusive | Goal::Shared | Goal::Beside | Goal::Upgradable | Goal::Permits => {
                let _ = wire::unlock_all(file);
                if let (Some(pool), Some(picked)) = (&self.pool, self.picked.take()) {
                    let _ = pool.give_back(picked);
                }
            }
            Goal::Upgrade => {
                let _ = wire::try_lock(file, Span::MAIN, Grip::Read);
                let _ = wire::unlock(file, Span::GATE);
            }
        }
    }
}

fn used_up() -> Error {
    Error::new(
        ErrorKind::Refused,
        "the numbers of this lock are used up: is the clock of this machine set to a year far \
         ahead?",
    )
}

/// What a mode asks of the recipe.
pub(super) fn goal_of(mode: Mode) -> Goal {
    match mode {
        Mode::Exclusive => Goal::Exclusive,
        Mode::Shared => Goal::Shared,
        Mode::Upgradable => Goal::Upgradable,
        Mode::Permits { .. } => Goal::Permits,
    }
}
