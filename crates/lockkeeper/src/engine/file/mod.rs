//! The file engine: kernel locks on byte ranges of one small file a name, no server.
//!
//! The kernel is the arbiter: it frees a lock the moment its holder dies, and never before. Read
//! [`bytes`] for the plan of a file, [`recipe`] for the protocol, `driver` for its meeting with the
//! kernel, `wait` for how a blocked wait ends.

mod acquire;
mod boot;
pub mod bytes;
mod convert;
mod describe;
mod dir;
pub mod direct;
mod driver;
mod fork;
mod fresh;
mod gc;
mod inspect;
mod latch;
mod living;
mod lockfile;
mod name;
mod permit_wait;
mod permits;
mod presence;
pub mod recipe;
mod record;
mod registration;
mod semaphore;
mod state;
mod threads;
mod value;
mod verify;
mod wait;
mod watch;
mod wire;

#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::oneshot;

use crate::engine::{
    Answer, Attempt, Change, Claim, ClaimId, Context, Description, End, Engine, Entry, Error,
    ErrorKind, HoldId, LeaseId, Line, OwnWait, Query, Released, Renewal, Result, Standing, WatchId,
};
use crate::words::guarantee::Warning;
use crate::words::id::fork_generation;
use crate::words::name::{Kind, Name};
use dir::Directory;
use record::Stamp;
pub(crate) use registration::registration;
use state::{Hold, State, UnderWay};
use threads::WaitThreads;
use verify::Verdict;

/// How often a small write is tried again while others write; each try has a patience of its own.
const WRITE_AGAIN_MAX: u32 = 100;

/// Kernel locks in one directory.
pub(crate) struct File(Arc<Shared>);

struct Shared {
    path: PathBuf,
    durable: bool,
    born: u32,
    opened: OnceLock<Opened>,
    state: Mutex<State>,
    wait_threads: WaitThreads,
    watcher: Arc<watch::Watcher>,
}

struct Opened {
    dir: Directory,
    context: Context,
    stamp: Stamp,
}

impl File {
    /// An engine for the lock files of a directory; `durable` syncs every number to the disk before
    /// its grant.
    pub(crate) fn new(path: impl Into<PathBuf>, durable: bool) -> Self {
        Self(Arc::new(Shared {
            path: path.into(),
            durable,
            born: fork_generation(),
            opened: OnceLock::new(),
            state: Mutex::default(),
            wait_threads: WaitThreads::default(),
            watcher: Arc::default(),
        }))
    }
}

impl File {
    /// Asks in a thread: a sync takes as long as the disk does. Until it is done the claim is under
    /// way, and whoever takes it back waits for that.
    fn sync(
        &self,
        claim: &Claim,
        converts: Option<HoldId>,
        ask: impl FnOnce(&Arc<Shared>, &Claim) -> Attempt + Send + 'static,
    ) -> Answer<Attempt> {
        struct Way(Arc<Shared>, ClaimId);
        impl Drop for Way {
            fn drop(&mut self) {
                let way = self.0.state().under_way.remove(&self.1);
                for told in way.into_iter().flat_map(|way| way.arrived) {
                    // Whoever took it back may not care.
                    let _ = told.send(());
                }
            }
        }
        self.0.state().under_way.insert(claim.id, UnderWay { converts, arrived: Vec::new() });
        let (way, claim) = (Way(self.0.clone(), claim.id), claim.clone());
        offload(&self.0.wait_threads, Attempt::Failed, move || ask(&way.0, &claim))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The open directory; an error before `open`, and in a forked child, whose descriptors are
    /// closed (R15).
    fn opened(&self) -> Result<&Opened> {
        if self.born != fork_generation() {
            return Err(Error::new(
                ErrorKind::Closed,
                "this process is a fork of the one that opened these locks: open them anew",
            ));
        }
        self.opened
            .get()
            .ok_or_else(|| Error::new(ErrorKind::Closed, "these locks are not open yet"))
    }

    fn is_ours(&self) -> bool {
        self.born == fork_generation()
    }
}

impl Opened {
    /// The prepared record of who asks.
    fn stamp(&self, claim: &Claim) -> Stamp {
        if Arc::ptr_eq(&claim.who, &self.context.who) {
            self.stamp.clone()
        } else {
            Stamp::of(&claim.who)
        }
    }
}

/// Work that the caller must not wait for: done by a waiting thread, answered when it is done.
fn offload<T: Send + 'static>(
    wait_threads: &WaitThreads,
    failed: fn(Error) -> T,
    work: impl FnOnce() -> T + Send + 'static,
) -> Answer<T> {
    let (sender, receiver) = oneshot::channel();
    let started = wait_threads.run(move || {
        // Whoever asked may be gone.
        let _ = sender.send(work());
    });
    match started {
        Err(error) => Answer::Now(failed(error)),
        Ok(()) => {
            let lost = failed(Error::new(
                ErrorKind::Unknown,
                "the thread that asked the kernel ended early",
            ));
            Answer::later(async move { receiver.await.unwrap_or(lost) })
        }
    }
}

impl Engine for File {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        Answer::Now(Directory::open(&self.0.path, self.0.durable).and_then(|dir| {
            let stamp = Stamp::of(&context.who);
            let opened = Opened { dir, context, stamp };
            self.0
                .opened
                .set(opened)
                .map_err(|_| Error::new(ErrorKind::InvalidArgument, "a file engine is opened once"))
        }))
    }

    fn describe(&self) -> Description {
        self.0.opened.get().map_or_else(describe::unopened, |opened| describe::of(&opened.dir))
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        if !self.0.durable {
            return Answer::Now(self.0.attempt(claim, line));
        }
        self.sync(claim, None, move |shared, claim| shared.attempt(claim, line))
    }

    fn attempt_here(&self, claim: &Claim) -> (Answer<Attempt>, Option<OwnWait>) {
        if self.0.durable {
            return (self.attempt(claim, Line::Join), None);
        }
        let (attempt, own_wait) = self.0.attempt_here(claim);
        (Answer::Now(attempt), own_wait)
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let gone = |why: &dyn std::fmt::Display| {
            Standing::Gone(Error::new(ErrorKind::Lost, why.to_string()))
        };
        let opened = match self.0.opened() {
            Ok(opened) => opened,
            Err(error) => return Answer::Now(vec![Standing::Gone(error); claims.len()]),
        };
        let mut state = self.0.state();
        let mut lost = Vec::new();
        let mut check =
            |id: &ClaimId| match state.holds.get(id).map(|hold| opened.verify(*id, hold)) {
                // The disk is slow; what comes of it is told by the answer.
                None if state.under_way.contains_key(id) => {
                    Standing::Unknown(Error::new(ErrorKind::Unknown, "it is being asked for"))
                }
                Some(Verdict::Lost(why)) => {
                    // Final (R2): what it had in the old file frees nobody and hinders nobody.
                    lost.extend(state.holds.remove(id));
                    gone(&why)
                }
                Some(Verdict::Unknown(error)) => Standing::Unknown(error),
                _ => state
                    .known(*id)
                    .or_else(|| state.converted_by(*id))
                    .unwrap_or_else(|| gone(&"it is neither held nor in line")),
            };
        let standings = claims.iter().map(&mut check).collect();
        drop(state);
        lost.into_iter().for_each(|hold| hold.share.let_go());
        Answer::Now(standings)
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        self.0.withdraw(claim)
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        if !self.0.durable {
            return Answer::Now(self.0.convert(hold, claim));
        }
        self.sync(claim, Some(hold), move |shared, claim| shared.convert(hold, claim))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        // There are none: the kernel's lock lasts as long as its holder.
        Answer::Now(leases.iter().map(|_| Renewal::Gone(crate::Lost::TakenAway)).collect())
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        if let ([hold], None) = (holds, again) {
            // By far the most, and worth no list of answers.
            return self.0.release(*hold).map(|end| Released { ends: vec![end], again: None });
        }
        let ends: Vec<_> = holds.iter().map(|hold| self.0.release(*hold)).collect();
        if ends.iter().all(|end| matches!(end, Answer::Now(_)))
            && (again.is_none() || !self.0.durable)
        {
            let now = |end| if let Answer::Now(end) = end { Some(end) } else { None };
            let again = again.map(|claim| self.0.attempt(claim, Line::Join));
            return Answer::Now(Released {
                ends: ends.into_iter().filter_map(now).collect(),
                again,
            });
        }
        let again = again.map(|claim| self.attempt(claim, Line::Join));
        Answer::later(async move {
            let mut told = Vec::with_capacity(ends.len());
            for end in ends {
                told.push(finish(end).await);
            }
            let again = match again {
                Some(answer) => Some(finish(answer).await),
                None => None,
            };
            Released { ends: told, again }
        })
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        Answer::Now(self.0.opened().and_then(|opened| inspect::entries(&opened.dir, query)))
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        let write = |opened: &Opened, change: &Change| match change {
            Change::LatchSet(name, count) => latch::set(&opened.dir, name, *count),
            Change::LatchCountDown(name, id) => latch::count_down(&opened.dir, name, *id),
            Change::Resize(name, limit) => semaphore::resize(&opened.dir, name, *limit),
            Change::Force(..) => Err(Error::new(
                ErrorKind::Unsupported,
                "the kernel takes no lock from a living process: stop the process that holds it \
                 (`lockkeeper status` says which)",
            )),
        };
        // Others may be writing the same, one after the other: that is waited for in a thread, not
        // in the caller.
        let (shared, change) = (self.0.clone(), change.clone());
        offload(&self.0.wait_threads, Err, move || {
            let opened = shared.opened()?;
            let again = |done: &Result<bool>| {
                done.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unknown)
            };
            let mut done = write(opened, &change);
            for _ in 0..WRITE_AGAIN_MAX {
                if !again(&done) || shared.state().closed {
                    break;
                }
                done = write(opened, &change);
            }
            done
        })
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let (shared, name) = (self.0.clone(), name.clone());
        let remove = move || gc::remove_one(&shared.opened()?.dir, Kind::Lock, &name, gc::Age::Any);
        offload(&self.0.wait_threads, Err, move || remove().map(|_| Vec::new()))
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        Answer::Now(self.0.opened().map(|opened| self.0.watch(opened, watch, query)))
    }

    fn unwatch(&self, watch: WatchId) {
        self.0.unwatch(watch);
    }

    fn close(&self) -> Answer<()> {
        self.0.watcher.close();
        {
            let mut state = self.0.state();
            state.closed = true;
            state.drop_idle();
            for waiting in state.waits.values() {
                waiting.wait.stop();
            }
        }
        match self.0.wait_threads.close() {
            None => Answer::Now(()),
            Some(told) => Answer::later(async move {
                // The sender goes only with the threads.
                let _ = told.await;
            }),
        }
    }
}

async fn finish<T>(answer: Answer<T>) -> T {
    match answer {
        Answer::Now(value) => value,
        Answer::Later(future) => future.await,
    }
}

impl Drop for File {
    fn drop(&mut self) {
        // Waiting threads hold the shared state: without an end of their waits nobody would free
        // it.
        if self.0.is_ours() {
            drop(self.close());
        }
    }
}
