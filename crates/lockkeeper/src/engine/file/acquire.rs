//! Asking for a lock, in the caller as far as that goes, then in a waiting thread; and giving it
//! back.

use std::sync::Arc;

use super::driver::{Driver, goal_of};
use super::inspect;
use super::lockfile::{Key, LockFile};
use super::recipe::{End as Came, Event as Yes, Recipe};
use super::record::Stamp;
use super::state::{Hold, Idle, Share, State, Waiting};
use super::wait::{Wait, can_be_called_off};
use super::{Shared, finish, presence, semaphore, wire};
use crate::engine::{
    Answer, Attempt, ClaimId, End, Error, ErrorKind, Event, Grant, HoldId, Kind, Line, Mode,
    Number, OwnWait, Place, Standing,
};
use crate::words::claim::Claim;
use crate::words::error::Result;

/// How many names one process can wait for at once (R13): each is a thread.
const WAITING_MAX: usize = 1_024;

/// A claim on its way into a waiting thread.
pub(super) struct Order {
    pub(super) claim: Claim,
    pub(super) key: Arc<Key>,
    pub(super) recipe: Recipe,
    pub(super) file: LockFile,
    pub(super) stamp: Stamp,
    /// For a conversion: its hold, and a descriptor of it that nobody exchanges.
    pub(super) converts: Option<(HoldId, LockFile)>,
}

/// A wait in the kernel, for whichever thread does it: `tell` hears how it ended, and nothing when
/// it was called off.
pub(super) struct Waits {
    shared: Arc<Shared>,
    order: Order,
    wait: Arc<Wait>,
}

impl Waits {
    fn run(self, tell: impl FnOnce(Event)) {
        self.shared.wait_for(self.order, &self.wait, tell);
    }
}

/// A wait that was left to the caller's thread. One that does not come to it goes on in another.
struct Here(Option<Waits>);

impl Drop for Here {
    fn drop(&mut self) {
        if let Some(waits) = self.0.take() {
            // Without a thread it is off the books, and nobody waits for it.
            let _ = waits.shared.clone().start(waits);
        }
    }
}

pub(super) fn grant(mode: Mode, number: u64) -> Grant {
    let number = if mode.permits().is_some() { Number::None } else { Number::Ours(number) };
    Grant { number, lease: None }
}

impl State {
    /// What became of a claim that was asked before (R3).
    pub(super) fn known(&self, id: ClaimId) -> Option<Standing> {
        if let Some(hold) = self.holds.get(&id) {
            return Some(Standing::Held(grant(hold.mode, hold.number)));
        }
        if self.waits.is_empty() {
            return None;
        }
        self.waits.get(&id).map(|_| Standing::InLine(Place::default()))
    }

    /// The hold that this claim has converted.
    pub(super) fn converted_by(&self, id: ClaimId) -> Option<Standing> {
        let hold =
            self.holds.values().find(|hold| hold.converted.is_some_and(|(by, _)| by == id))?;
        Some(Standing::Held(grant(hold.mode, hold.number)))
    }
}

impl Shared {
    /// Asks for a lock; what cannot be had at once goes on in a waiting thread.
    pub(super) fn attempt(self: &Arc<Self>, claim: &Claim, line: Line) -> Attempt {
        let started = self.try_now(claim, line).and_then(|(attempt, wait)| {
            wait.map_or(Ok(()), |wait| self.start(wait)).map(|()| attempt)
        });
        started.unwrap_or_else(Attempt::Failed)
    }

    /// The same for a thread that waits for nothing else: there the kernel wakes the caller itself.
    /// One that could not be called off, as closing does, is left to a thread of ours.
    pub(super) fn attempt_here(self: &Arc<Self>, claim: &Claim) -> (Attempt, Option<OwnWait>) {
        let (attempt, wait) = match self.try_now(claim, Line::Join) {
            Ok((attempt, Some(wait))) => (attempt, wait),
            Ok((attempt, None)) => return (attempt, None),
            Err(error) => return (Attempt::Failed(error), None),
        };
        if !can_be_called_off() {
            let started = self.start(wait);
            return (started.map_or_else(Attempt::Failed, |()| attempt), None);
        }
        let lent = self.wait_threads.lend();
        let mut here = Here(Some(wait));
        let own_wait = move || {
            let mut told = None;
            if let Some(wait) = here.0.take() {
                wait.run(|event| told = Some(event));
            }
            drop(lent);
            told
        };
        (attempt, Some(Box::new(own_wait)))
    }

    /// Answers also the wait that has to go on somewhere, of what is in line.
    fn try_now(self: &Arc<Self>, claim: &Claim, line: Line) -> Result<(Attempt, Option<Waits>)> {
        let now = |attempt| Ok((attempt, None));
        let opened = self.opened()?;
        self.open_eye(opened);
        let pool;
        let idle = {
            let mut state = self.state();
            if state.closed {
                return Err(Error::new(ErrorKind::Closed, "these locks were closed"));
            }
            if let Some(known) = state.known(claim.id) {
                return now(known.into());
            }
            pool = if claim.kind == Kind::Semaphore { state.pool(&claim.name) } else { None };
            state.take_idle(claim.kind, &claim.name)
        };
        let Idle { key, file } = match idle {
            Some(idle) => idle,
            None => {
                let key = Arc::new(Key::new(claim.kind, &claim.name));
                let file = LockFile::open(&opened.dir, &key)?;
                Idle { key, file }
            }
        };
        let mut recipe = Recipe::new(goal_of(claim.mode), line == Line::Join);
        let mut driver = Driver::new(&opened.dir, &key, claim, opened.stamp(claim), file);
        driver.pool = pool;
        match driver.run(&mut recipe, Yes::Yes) {
            Some(Came::Granted) => {
                let number = driver.number;
                let (share, idle) = driver.into_share();
                let mut state = self.state();
                if let Share::Permits(pool, _) = &share {
                    state.put_pool(&claim.name, pool);
                }
                state.holds.insert(
                    claim.id,
                    Hold { key: key.clone(), share, mode: claim.mode, number, converted: None },
                );
                drop(state);
                if let Some(file) = idle {
                    self.keep(Idle { key, file });
                }
                now(Attempt::Granted(grant(claim.mode, number)))
            }
            Some(Came::Busy) => {
                let holder = inspect::holder(&driver.file, &key);
                let file = driver.file;
                self.keep(Idle { key, file });
                now(Attempt::Busy(holder))
            }
            Some(Came::Stopped | Came::Failed) => Err(driver.into_error()),
            None => {
                semaphore::check_limit(&driver.file, claim.mode)?;
                let place = Place {
                    ahead: inspect::ahead(&driver.file),
                    holder: inspect::holder(&driver.file, &key),
                    ask_at: None,
                };
                let (file, stamp) = (driver.file, driver.stamp);
                let order =
                    Order { claim: claim.clone(), key, recipe, file, stamp, converts: None };
                self.stand(order).map(|wait| (Attempt::InLine(place), Some(wait)))
            }
        }
    }

    /// Keeps a file that has no locks any more for the next time.
    pub(super) fn keep(&self, idle: Idle) {
        let mut state = self.state();
        let old = if state.closed { Some(idle) } else { state.put_idle(idle) };
        drop(state);
        self.watcher.files_are_kept();
        // Closed here, outside of the lock.
        drop(old);
    }

    /// Puts a claim in line; answers what waits there.
    pub(super) fn stand(self: &Arc<Self>, order: Order) -> Result<Waits> {
        let id = order.claim.id;
        let wait = Arc::new(Wait::new(order.file.anchor().clone()));
        {
            let mut state = self.state();
            if state.waits.len() >= WAITING_MAX {
                let text = format!(
                    "this process waits for {WAITING_MAX} names already, and each is a thread: \
                     wait for fewer at once"
                );
                return Err(Error::new(ErrorKind::Refused, text).temporary(true));
            }
            let converts = order.converts.as_ref().map(|(hold, _)| *hold);
            state.waits.insert(
                id,
                Waiting { wait: wait.clone(), key: order.key.clone(), converts, left: Vec::new() },
            );
        }
        Ok(Waits { shared: self.clone(), order, wait })
    }

    /// Hands a wait to a waiting thread.
    pub(super) fn start(&self, waits: Waits) -> Result<()> {
        let (id, shared) = (waits.order.claim.id, waits.shared.clone());
        let tell = move |event| {
            if let Ok(opened) = shared.opened() {
                opened.context.events.send(event);
            }
        };
        self.wait_threads.run(move || waits.run(tell)).inspect_err(|_| {
            self.state().waits.remove(&id);
        })
    }

    /// The waiting thread's work: from standing in line to the grant, or out of it.
    fn wait_for(self: &Arc<Self>, order: Order, wait: &Wait, tell: impl FnOnce(Event)) {
        let Order { claim, key, mut recipe, file, stamp, converts } = order;
        let (converts, keep) =
            converts.map_or((None, None), |(hold, keep)| (Some(hold), Some(keep)));
        let Ok(opened) = self.opened() else { return };
        // Until it is told how this ended: whoever is woken waits for no call that is not needed.
        let _through = wait.let_through();
        let mut driver = Driver::new(&opened.dir, &key, &claim, stamp, file);
        driver.wait = Some(wait);
        driver.keep = keep;
        driver.limit_agreed = true;
        driver.pool = if key.kind == Kind::Semaphore { self.state().pool(&key.name) } else { None };
        driver.holder = converts.unwrap_or(claim.id);
        let mut end = driver.run(&mut recipe, Yes::Yes).unwrap_or(Came::Failed);
        if end == Came::Granted {
            let mut state = self.state();
            // Under this lock a withdrawal comes either before, and the grant is given back, or
            // after, and finds a hold.
            let wanted = !wait.is_called_off() && !state.closed;
            let number = driver.number;
            match converts {
                _ if !wanted => end = Came::Stopped,
                None => {
                    let mode = claim.mode;
                    let event = Event::Granted { claim: claim.id, grant: grant(mode, number) };
                    let (share, idle) = driver.into_share();
                    if let Share::Permits(pool, _) = &share {
                        state.put_pool(&claim.name, pool);
                    }
                    state.holds.insert(
                        claim.id,
                        Hold { key: key.clone(), share, mode, number, converted: None },
                    );
                    self.leave(state, claim.id);
                    drop(idle);
                    return tell(event);
                }
                Some(id) => match state.holds.get_mut(&id) {
                    Some(hold) => {
                        hold.converted = Some((claim.id, hold.mode));
                        (hold.mode, hold.number) = (claim.mode, number);
                        self.leave(state, claim.id);
                        drop(driver);
                        let grant = grant(claim.mode, number);
                        return tell(Event::Granted { claim: claim.id, grant });
                    }
                    None => end = Came::Stopped,
                },
            }
        }
        if end == Came::Stopped {
            driver.undo(recipe.goal());
        }
        let error = (end == Came::Failed && !wait.is_called_off()).then(|| driver.into_error());
        self.leave(self.state(), claim.id);
        if let Some(error) = error {
            tell(Event::Failed { claim: claim.id, error });
        }
    }

    /// Takes a wait off the books and tells those who called it off.
    fn leave(&self, mut state: std::sync::MutexGuard<'_, State>, id: ClaimId) {
        let waiting = state.waits.remove(&id);
        drop(state);
        for left in waiting.into_iter().flat_map(|waiting| waiting.left) {
            // Whoever called it off may not care.
            let _ = left.send(());
        }
    }

    /// Leaves the line, gives back a grant, or undoes a conversion.
    pub(super) fn withdraw(self: &Arc<Self>, claim: ClaimId) -> Answer<End> {
        if !self.is_ours() {
            return Answer::Now(End::NotOurs);
        }
        let mut state = self.state();
        if let Some(way) = state.under_way.get_mut(&claim) {
            let (arrived, told) = tokio::sync::oneshot::channel();
            way.arrived.push(arrived);
            let shared = self.clone();
            return Answer::later(async move {
                // The sender goes only when it has arrived.
                let _ = told.await;
                finish(shared.withdraw(claim)).await
            });
        }
        if let Some(waiting) = state.waits.get_mut(&claim) {
            let (left, told) = tokio::sync::oneshot::channel();
            waiting.left.push(left);
            waiting.wait.stop();
            return Answer::later(async move {
                // The sender goes only with the wait itself.
                let _ = told.await;
                End::Freed
            });
        }
        let converted = state
            .holds
            .iter()
            .find(|(_, hold)| hold.converted.is_some_and(|(by, _)| by == claim))
            .map(|(id, _)| *id);
        drop(state);
        match converted {
            Some(hold) => Answer::Now(self.unconvert(hold)),
            None => self.release(claim),
        }
    }

    /// Gives one hold back (R3: this one, and nothing by name).
    pub(super) fn release(self: &Arc<Self>, hold: HoldId) -> Answer<End> {
        if !self.is_ours() {
            // The parent's; its descriptors are closed here already (R15).
            return Answer::Now(End::NotOurs);
        }
        let mut state = self.state();
        if let Some(way) = state.under_way.values_mut().find(|way| way.converts == Some(hold)) {
            // It is changing the locks of this very hold.
            let (arrived, told) = tokio::sync::oneshot::channel();
            way.arrived.push(arrived);
            let shared = self.clone();
            return Answer::later(async move {
                let _ = told.await;
                finish(shared.release(hold)).await
            });
        }
        let Some(Hold { key, share, .. }) = state.holds.remove(&hold) else {
            return Answer::Now(End::NotOurs);
        };
        let (file, place) = match share {
            Share::Own { file, place, .. } => (file, place),
            Share::Permits(pool, picked) => {
                drop(state);
                let failed = |e| {
                    Error::new(
                        ErrorKind::Unknown,
                        format!("its permits could not be given back: {e}"),
                    )
                };
                return Answer::Now(
                    pool.give_back(picked)
                        .map_or_else(|e| End::Unknown(failed(e)), |()| End::Freed),
                );
            }
        };
        let converting = if state.waits.is_empty() {
            None
        } else {
            state.waits.iter_mut().find(|(_, w)| w.converts == Some(hold))
        };
        if let Some((_, waiting)) = converting {
            // The thread shares the open file description, and may be changing its locks.
            let (left, told) = tokio::sync::oneshot::channel();
            waiting.left.push(left);
            waiting.wait.stop();
            drop(state);
            return Answer::later(async move {
                let _ = told.await;
                // Closing frees it only once the thread has closed its own, and every child that
                // was forked meanwhile.
                let _ = wire::unlock_all(&file);
                End::Freed
            });
        }
        drop(state);
        // What cannot be unlocked is closed, which unlocks it too.
        if presence::free(&file, place).is_ok() {
            if is_watched(&key) {
                wire::ring(&file);
            }
            self.keep(Idle { key, file });
        }
        Answer::Now(End::Freed)
    }
}

/// Whether whoever watches must hear of a release: the kernel tells nobody.
fn is_watched(key: &Key) -> bool {
    key.kind == Kind::Election
}
