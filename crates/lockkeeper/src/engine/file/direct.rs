//! The file engine without keeper, runtime or tasks: what `run` of the command line uses. An
//! uncontended lock is a few system calls in the calling thread and nothing else; only a wait
//! starts a thread.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};

use super::dir::{Directory, refused};
use super::driver::{Driver, goal_of};
use super::lockfile::{Key, LockFile};
use super::recipe::{End, Event, Goal, Recipe};
use super::record::Stamp;
use super::state::Share;
use super::verify::{Facts, Verdict};
use super::wait::Wait;
use super::{describe, gc, inspect, presence, semaphore, threads, wire};
use crate::engine::{Line, Place, Query};
use crate::words::claim::{Claim, Entry, Holder, Identity, Mode};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Description, Warning};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};
use crate::words::token::Token;

/// An opened lock directory.
#[derive(Clone)]
pub struct Files(Arc<Directory>);

/// What an attempt came to.
pub enum Begin {
    /// The lock is held.
    Got(Held),
    /// Somebody has it or stands in line, and nothing of ours is left there.
    Busy(Option<Box<Holder>>),
    /// Standing in line.
    Waiting(Pending),
}

/// The directory that the path of a `file:` URL names, or the default one.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for a relative path, with the absolute one to write.
pub fn directory(path: &str) -> Result<PathBuf> {
    crate::open::home::lock_directory(path)
}

/// That another user than us and root owns a directory, if it is there; what [`Files::describe`]
/// says about it too.
pub fn foreign_owner(directory: &Path) -> Option<Warning> {
    use std::os::unix::fs::MetadataExt;
    describe::foreign(directory, std::fs::metadata(directory).ok()?.uid())
}

impl Files {
    /// Opens the directory, and makes it for its owner alone if only its last component is missing.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] with the path and what to do.
    pub fn open(dir: &Path, durable: bool) -> Result<Self> {
        Directory::open(dir, durable).map(|dir| Self(Arc::new(dir)))
    }

    /// What the engine promises there.
    pub fn describe(&self) -> Description {
        describe::of(&self.0)
    }

    /// Asks for a lock. Never blocks.
    ///
    /// # Errors
    /// What keeps the lock from being asked for: the file or the directory, a record that cannot be
    /// read, another limit.
    pub fn begin(&self, claim: &Claim, line: Line) -> Result<Begin> {
        let key = Arc::new(Key::new(claim.kind, &claim.name));
        let file = LockFile::open(&self.0, &key)?;
        let mut recipe = Recipe::new(goal_of(claim.mode), line == Line::Join);
        let mut driver = Driver::new(&self.0, &key, claim, Stamp::of(&claim.who), file);
        match driver.run(&mut recipe, Event::Yes) {
            Some(End::Granted) => Ok(Begin::Got(Held::of(&self.0, &key, driver))),
            Some(End::Busy) => Ok(Begin::Busy(inspect::holder(&driver.file, &key))),
            Some(End::Stopped | End::Failed) => Err(driver.into_error()),
            None => {
                semaphore::check_limit(&driver.file, claim.mode)?;
                let (file, stamp) = (driver.file, driver.stamp);
                Pending::start(self.0.clone(), key, claim.clone(), file, stamp, recipe)
                    .map(Begin::Waiting)
            }
        }
    }

    /// Asks for a share beside one whose holder ends only after us (a parent that waits for its
    /// child). It passes those who wait, because they wait for that holder; `None` when the lock is
    /// not shared now, and nothing of ours is left. Never blocks.
    ///
    /// # Errors
    /// As [`Files::begin`].
    pub fn begin_beside(&self, claim: &Claim) -> Result<Option<Held>> {
        let key = Arc::new(Key::new(claim.kind, &claim.name));
        let file = LockFile::open(&self.0, &key)?;
        let mut recipe = Recipe::new(Goal::Beside, false);
        let mut driver = Driver::new(&self.0, &key, claim, Stamp::of(&claim.who), file);
        match driver.run(&mut recipe, Event::Yes) {
            Some(End::Granted) => Ok(Some(Held::of(&self.0, &key, driver))),
            Some(End::Busy) | None => Ok(None),
            Some(End::Stopped | End::Failed) => Err(driver.into_error()),
        }
    }

    /// A semaphore's stored limit; `None` when nobody used it yet.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn limit(&self, name: &Name) -> Result<Option<u16>> {
        inspect::entry(&self.0, &Key::new(Kind::Semaphore, name)).map(|entry| entry.limit)
    }

    /// Changes a semaphore's limit, or stores it; answers whether that changed anything. Permits
    /// that are out stay out.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn resize(&self, name: &Name, limit: u16) -> Result<bool> {
        semaphore::resize(&self.0, name, limit)
    }

    /// Who holds and who waits.
    ///
    /// # Errors
    /// A directory or record that cannot be read.
    pub fn read(&self, query: &Query) -> Result<Vec<Entry>> {
        inspect::entries(&self.0, query)
    }

    /// Removes the lock files that nobody uses; answers how many. One that was made within the last
    /// 200 ms may be about to be locked, and stays.
    ///
    /// # Errors
    /// A directory that cannot be listed, or a file that the system refuses to remove.
    pub fn gc(&self) -> Result<usize> {
        gc::sweep(&self.0)
    }

    /// Removes the lock file of a name that nobody else knows, if nobody uses it; answers whether
    /// it did. One that was made a moment ago is nobody's either: whoever made it has ended.
    ///
    /// # Errors
    /// A file that the system refuses to remove.
    pub fn remove_own(&self, kind: Kind, name: &Name) -> Result<bool> {
        gc::remove_one(&self.0, kind, name, gc::Age::Any)
    }
}

/// A place in line. Dropping it leaves the line.
pub struct Pending {
    shared: Arc<Shared>,
    place: Place,
}

struct Shared {
    wait: Wait,
    over: EventFd,
    outcome: Mutex<Outcome>,
}

enum Outcome {
    Open,
    Over(Box<Result<Held>>),
    Taken,
}

impl Shared {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pending {
    fn start(
        dir: Arc<Directory>,
        key: Arc<Key>,
        claim: Claim,
        file: LockFile,
        stamp: Stamp,
        recipe: Recipe,
    ) -> Result<Self> {
        let (ahead, holder) = (inspect::ahead(&file), inspect::holder(&file, &key));
        let place = Place { ahead, holder, ..Place::default() };
        let over = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|e| refused("make a descriptor to wait for", &dir.file(&key.file), e))?;
        let shared = Arc::new(Shared {
            wait: Wait::new(file.anchor().clone()),
            over,
            outcome: Mutex::new(Outcome::Open),
        });
        let of_thread = shared.clone();
        threads::start(move || {
            let got = wait_for(&dir, &key, &claim, file, stamp, recipe, &of_thread.wait);
            let mut outcome = of_thread.outcome();
            // Left in the meantime: then what was got goes here, and with it the lock.
            if matches!(*outcome, Outcome::Open) {
                *outcome = Outcome::Over(Box::new(got));
            }
            drop(outcome);
            let _ = of_thread.over.write(1);
        })?;
        Ok(Self { shared, place })
    }

    /// A descriptor that becomes readable when the wait is over.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.over.as_fd()
    }

    /// How many stood in line, and who held the lock, when this wait began.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Takes what the wait came to; blocks until it is over.
    ///
    /// # Errors
    /// The wait failed.
    pub fn finish(self) -> Result<Held> {
        loop {
            let taken = {
                let mut outcome = self.shared.outcome();
                if matches!(*outcome, Outcome::Open) {
                    Outcome::Open
                } else {
                    std::mem::replace(&mut *outcome, Outcome::Taken)
                }
            };
            match taken {
                Outcome::Over(got) => return *got,
                Outcome::Taken => {
                    return Err(Error::new(ErrorKind::Closed, "the wait was over already"));
                }
                Outcome::Open => {
                    let mut fds =
                        [nix::poll::PollFd::new(self.as_fd(), nix::poll::PollFlags::POLLIN)];
                    // Interrupted or not, the outcome is looked at again.
                    let _ = nix::poll::poll(&mut fds, nix::poll::PollTimeout::NONE);
                }
            }
        }
    }

    /// Leaves the line, and returns when nothing of the wait is left. Dropping it leaves the line
    /// too, a moment later.
    pub fn cancel(self) {
        self.shared.wait.stop();
        // What it came to goes here, and with it a lock that had just been won.
        drop(self.finish());
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let left = std::mem::replace(&mut *self.shared.outcome(), Outcome::Taken);
        self.shared.wait.stop();
        // Closed outside of the lock.
        drop(left);
    }
}

fn wait_for(
    dir: &Arc<Directory>,
    key: &Arc<Key>,
    claim: &Claim,
    file: LockFile,
    stamp: Stamp,
    mut recipe: Recipe,
    wait: &Wait,
) -> Result<Held> {
    let mut driver = Driver::new(dir, key, claim, stamp, file);
    let _through = wait.let_through();
    driver.wait = Some(wait);
    driver.limit_agreed = true;
    match driver.run(&mut recipe, Event::Yes) {
        Some(End::Granted) => Ok(Held::of(dir, key, driver)),
        Some(End::Failed) => Err(driver.into_error()),
        _ => Err(Error::new(ErrorKind::Closed, "the wait was called off")),
    }
}

/// A hold. Dropping it gives it back, unless a child has inherited it: then it lasts as long as the
/// last process that has it.
pub struct Held {
    dir: Arc<Directory>,
    key: Arc<Key>,
    id: crate::ClaimId,
    mode: Mode,
    number: u64,
    share: Share,
    who: Arc<Identity>,
    /// Some child may have it too.
    passed_on: AtomicBool,
}

impl Held {
    /// What a granted run has got.
    fn of(dir: &Arc<Directory>, key: &Arc<Key>, driver: Driver<'_>) -> Self {
        let (claim, number) = (driver.claim, driver.number);
        Self {
            dir: dir.clone(),
            key: key.clone(),
            id: claim.id,
            mode: claim.mode,
            number,
            who: claim.who.clone(),
            share: driver.into_share().0,
            passed_on: AtomicBool::new(false),
        }
    }

    /// The fencing token; permits have none.
    pub fn token(&self) -> Option<Token> {
        if self.mode.permits().is_some() { None } else { Token::of(self.number, 0) }
    }

    /// The descriptor that carries the lock.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.share.file().as_fd()
    }

    /// A second descriptor of the same lock: it lasts until both are closed.
    ///
    /// # Errors
    /// No room for another descriptor.
    pub fn duplicate(&self) -> Result<OwnedFd> {
        self.fd().try_clone_to_owned().map_err(|e| {
            self.failed(
                "duplicate the descriptor of",
                Errno::from_raw(e.raw_os_error().unwrap_or(0)),
            )
        })
    }

    /// Whether programs that this process starts inherit the lock; they do not unless told.
    ///
    /// # Errors
    /// The kernel refused to change the descriptor's flag.
    pub fn set_inherit(&self, inherit: bool) -> Result<()> {
        self.share.file().descriptor().survive_forks(inherit);
        self.passed_on.fetch_or(inherit, Ordering::AcqRel);
        if let Share::Own { file, place: Some(place), .. } = &self.share
            && inherit
        {
            // Whoever frees it in the end knows nothing of a line.
            presence::clear(file, *place);
        }
        let flags = if inherit { FdFlag::empty() } else { FdFlag::FD_CLOEXEC };
        fcntl(self.fd(), FcntlArg::F_SETFD(flags))
            .map(drop)
            .map_err(|e| self.failed("pass on the descriptor of", e))
    }

    /// Whether it is still held: the path leads to its file, and the file says so. Where the system
    /// does not let us look, nothing is known, and it is held until the next look says otherwise.
    ///
    /// # Errors
    /// Why it is lost.
    pub fn verify(&self) -> Result<(), Lost> {
        let (dir, key, file) = (&*self.dir, &*self.key, self.share.file());
        let facts = Facts { dir, key, file, id: self.id, mode: self.mode, number: self.number };
        match facts.verify(Stamp::of(&self.who)) {
            Verdict::Lost(why) => Err(why),
            Verdict::Held | Verdict::Unknown(_) => Ok(()),
        }
    }

    /// Gives it back. Once it was passed on this only closes the descriptor and never unlocks, so
    /// that the lock lives on in the children that inherited it.
    pub fn release(self) {}

    fn failed(&self, what: &str, errno: Errno) -> Error {
        refused(&format!("{what} the lock file"), &self.dir.file(&self.key.file), errno)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A child of another thread's, caught between fork and exec, has a copy of every
        // descriptor: closing alone would free the lock only at its exec.
        if !*self.passed_on.get_mut() && self.share.file().descriptor().is_ours() {
            let _ = self.share.unlock();
            if self.mode.permits().is_some() {
                wire::ring(self.share.file());
            }
        }
    }
}
