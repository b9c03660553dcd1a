//! Watching the directory: one inotify instance and one task of the keeper's, started by the
//! first acquisition.
//!
//! It tells a holder at once when its file is replaced or deleted (F1), sends waiters of such a
//! file to the new one, and serves watches. Without watches it asks the kernel only about names
//! that appear and vanish, which costs an acquisition nothing; with them it also hears of every
//! record. What the kernel tells nobody, a range that is unlocked, it sees by looking at the held
//! locks a few times a second, as long as somebody watches.

use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::future::Future;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;

use super::lockfile::{Key, LockFile};
use super::verify::Verdict;
use super::{Opened, Shared, inspect, name};
use crate::engine::{Event, HoldId, Query, WatchId, Which};
use crate::words::claim::Entry;
use crate::words::lost::Lost;
use crate::words::name::Kind;

/// How often the held locks that somebody watches are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a directory that is gone is looked for, what could not be looked at is looked at
/// again, and files are closed that were not used since the last time.
const SEEK_EVERY: Duration = Duration::from_secs(1);
/// How long after telling of changes the next are gathered: a busy directory changes a hundred
/// thousand times a second.
const GATHER: Duration = Duration::from_millis(5);

#[derive(Default)]
pub(super) struct Watcher {
    open: AtomicBool,
    /// Idle files are kept, and somebody must close them in the end.
    keeps: AtomicBool,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    inotify: Option<Arc<Instance>>,
    watches: HashMap<WatchId, Query>,
    /// Watches that the task has not looked at yet.
    fresh: Vec<WatchId>,
    closed: bool,
}

/// A descriptor in the form that the reactor takes.
struct Polled<T>(T);

impl<T: AsFd> AsRawFd for Polled<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

type Instance = Polled<Inotify>;
type Timer = AsyncFd<Polled<TimerFd>>;

fn polled<T: AsRawFd>(source: T) -> Option<AsyncFd<T>> {
    // SAFETY: the descriptor is owned by the value that is registered, which never exchanges it.
    unsafe { AsyncFd::register_with_interest(source, Interest::READABLE) }.ok()
}

impl Watcher {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Files are kept for the next time: the task closes those that are not used any more. Wakes it
    /// only the first time.
    pub(super) fn files_are_kept(&self) {
        if !self.keeps.load(Ordering::Acquire) && !self.keeps.swap(true, Ordering::AcqRel) {
            self.changed.notify_one();
        }
    }

    /// Ends the task.
    pub(super) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.watches.clear();
        drop(state);
        self.changed.notify_one();
    }

    /// Asks the kernel for what is needed now; answers whether it agreed.
    fn aim(&self, opened: &Opened) -> bool {
        let state = self.state();
        let mut mask = AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_MOVE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        if !state.watches.is_empty() {
            mask |= AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_CLOSE_WRITE;
        }
        state
            .inotify
            .as_ref()
            .is_some_and(|inotify| inotify.0.add_watch(opened.dir.path(), mask).is_ok())
    }
}

impl Shared {
    /// Begins to watch, once.
    pub(super) fn open_eye(self: &Arc<Self>, opened: &Opened) {
        if self.watcher.open.load(Ordering::Acquire)
            || self.watcher.open.swap(true, Ordering::AcqRel)
        {
            return;
        }
        // Without an instance (a user has 128) holders hear of a replaced file when they ask, and
        // watchers by the clock.
        self.watcher.state().inotify =
            Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK)
                .ok()
                .map(|i| Arc::new(Polled(i)));
        self.watcher.aim(opened);
        let weak = Arc::downgrade(self);
        opened.context.spawner.spawn(keep_open(self.watcher.clone(), weak));
    }

    pub(super) fn watch(self: &Arc<Self>, opened: &Opened, id: WatchId, query: &Query) {
        {
            let mut state = self.watcher.state();
            state.watches.insert(id, query.clone());
            state.fresh.push(id);
        }
        self.open_eye(opened);
        self.watcher.aim(opened);
        self.watcher.changed.notify_one();
    }

    pub(super) fn unwatch(&self, id: WatchId) {
        let last = {
            let mut state = self.watcher.state();
            state.watches.remove(&id);
            state.watches.is_empty()
        };
        if let (true, Ok(opened)) = (last, self.opened()) {
            self.watcher.aim(opened);
        }
    }

    /// Looks at every hold and every wait of these files, or at all; forgets the holds that are
    /// lost, and says which.
    pub(super) fn look(&self, opened: &Opened, files: Option<&HashSet<OsString>>) -> Looked {
        let concerned = |key: &Key| {
            files.is_none_or(|files| files.contains(OsStr::from_bytes(key.file.to_bytes())))
        };
        let mut looked = Looked::default();
        let mut state = self.state();
        for (id, hold) in state.holds.iter().filter(|(_, hold)| concerned(&hold.key)) {
            match opened.verify(*id, hold) {
                Verdict::Held => {}
                Verdict::Lost(_) => looked.lost.push(*id),
                Verdict::Unknown(_) => looked.again = true,
            }
        }
        let gone: Vec<_> = looked.lost.iter().filter_map(|id| state.holds.remove(id)).collect();
        if files.is_none() {
            // Kept for a directory that may be another now.
            state.drop_idle();
        }
        for waiting in state.waits.values() {
            if concerned(&waiting.key) {
                looked.again |= waiting.wait.look_again(&opened.dir, &waiting.key).is_err();
            }
        }
        drop(state);
        // Given up outside of the lock.
        gone.into_iter().for_each(|hold| hold.share.let_go());
        looked
    }
}

/// What a look at the holds and waits came to.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Looked {
    pub(super) lost: Vec<HoldId>,
    /// The system did not let us look at some of them, which proves nothing.
    pub(super) again: bool,
}

/// What the task remembers between two looks.
#[derive(Default)]
struct Memory {
    /// The watched locks that somebody holds or waits for, as they were at the last look.
    active: HashMap<OsString, Entry>,
    /// The directory is gone, another one has its path, or something in it could not be looked at.
    blind: bool,
}

/// What woke the task.
#[derive(Default)]
struct Seen {
    /// Files that were written, and files whose names came, went or were taken over.
    written: HashSet<OsString>,
    moved: HashSet<OsString>,
    /// The directory itself is another now.
    gone: bool,
    /// The kernel could not keep up.
    missed: bool,
}

async fn keep_open(watcher: Arc<Watcher>, weak: Weak<Shared>) {
    // An executor without a reactor cannot watch; verifying, and the looks of whoever watches,
    // remain.
    if tokio::runtime::Handle::try_current().is_err() {
        return;
    }
    let instance = watcher.state().inotify.clone();
    let inotify = instance.and_then(polled);
    let timer =
        TimerFd::new(ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)
            .ok();
    let Some(timer) = timer.and_then(|timer| polled(Polled(timer))) else { return };
    let mut memory = Memory::default();
    let mut swept = Instant::now();
    loop {
        let (watching, closed) = {
            let state = watcher.state();
            (!state.watches.is_empty(), state.closed)
        };
        if closed {
            return;
        }
        let held = memory.active.values().any(|entry| entry.kind != Kind::Latch);
        let look_after = match (watching && (held || inotify.is_none()), memory.blind) {
            (true, _) => Some(LOOK_EVERY),
            (false, blind) if blind || watcher.keeps.load(Ordering::Acquire) => Some(SEEK_EVERY),
            (false, _) => None,
        };
        set(&timer, look_after);
        let seen = next(&watcher, inotify.as_ref(), &timer).await;
        let told = {
            let Some(shared) = weak.upgrade() else { return };
            let Ok(opened) = shared.opened() else { return };
            if watcher.keeps.load(Ordering::Acquire) && swept.elapsed() >= SEEK_EVERY {
                swept = Instant::now();
                watcher.keeps.store(false, Ordering::Release);
                let (old, left) = shared.state().sweep();
                if left {
                    watcher.keeps.store(true, Ordering::Release);
                }
                drop(old);
            }
            react(&shared, opened, &mut memory, &seen)
        };
        if told {
            set(&timer, Some(GATHER));
            if let Ok(mut ready) = timer.readable().await {
                ready.clear_ready();
            }
        }
    }
}

fn set(timer: &Timer, after: Option<Duration>) {
    // A timer that cannot be set never fires; the kernel refuses no time of this size.
    let _ = match after {
        Some(after) => timer
            .get_ref()
            .0
            .set(Expiration::OneShot(TimeSpec::from_duration(after)), TimerSetTimeFlags::empty()),
        None => timer.get_ref().0.unset(),
    };
}

/// Waits for the kernel, the clock, or a change of the watches.
async fn next(watcher: &Watcher, inotify: Option<&AsyncFd<Arc<Instance>>>, timer: &Timer) -> Seen {
    let mut changed = pin!(watcher.changed.notified());
    std::future::poll_fn(|context| {
        if let Some(inotify) = inotify
            && let Poll::Ready(Ok(mut ready)) = inotify.poll_read_ready(context)
        {
            let seen = read(&inotify.get_ref().0);
            ready.clear_ready();
            return Poll::Ready(seen);
        }
        if let Poll::Ready(Ok(mut ready)) = timer.poll_read_ready(context) {
            ready.clear_ready();
            return Poll::Ready(Seen::default());
        }
        changed.as_mut().poll(context).map(|()| Seen::default())
    })
    .await
}

/// Everything that the kernel has to tell now.
fn read(inotify: &Inotify) -> Seen {
    use AddWatchFlags as Flags;
    let mut seen = Seen::default();
    while let Ok(events) = inotify.read_events() {
        for event in events {
            seen.missed |= event.mask.contains(Flags::IN_Q_OVERFLOW);
            seen.gone |= event.mask.intersects(
                Flags::IN_DELETE_SELF | Flags::IN_MOVE_SELF | Flags::IN_UNMOUNT | Flags::IN_IGNORED,
            );
            if let Some(name) = event.name {
                let moved = event.mask.intersects(Flags::IN_DELETE | Flags::IN_MOVE);
                if moved {
                    seen.moved.insert(name)
                } else {
                    seen.written.insert(name)
                };
            }
        }
    }
    seen
}

/// Tells holders of their losses and watchers of changes; answers whether it told a watcher.
fn react(shared: &Arc<Shared>, opened: &Opened, memory: &mut Memory, seen: &Seen) -> bool {
    let everything = seen.gone || seen.missed || memory.blind;
    if seen.gone || memory.blind {
        // Before the holds are looked at: what happens in between is seen twice, and not never.
        memory.blind = !shared.watcher.aim(opened);
    }
    if everything || !seen.moved.is_empty() {
        let looked = shared.look(opened, (!everything).then_some(&seen.moved));
        memory.blind |= looked.again;
        for hold in looked.lost {
            opened
                .context
                .events
                .send(Event::Ended { which: Which::Hold(hold), why: Lost::Replaced });
        }
    }
    let (watches, fresh) = {
        let mut state = shared.watcher.state();
        let fresh = std::mem::take(&mut state.fresh);
        (state.watches.clone(), fresh)
    };
    if watches.is_empty() {
        memory.active.clear();
        return false;
    }
    for query in fresh.iter().filter_map(|id| watches.get(id)) {
        memory.learn(opened, query);
    }
    let mut changed: HashSet<OsString> = seen.written.union(&seen.moved).cloned().collect();
    changed.extend(memory.look(opened));
    let mut told = false;
    for (id, query) in &watches {
        if everything || changed.iter().any(|file| concerns(query, file)) {
            opened.context.events.send(Event::Changed { watch: *id });
            told = true;
        }
    }
    for file in &changed {
        if watches.values().any(|query| concerns(query, file)) {
            memory.learn_file(opened, file);
        }
    }
    told
}

/// Whether the answer to a query depends on this file.
fn concerns(query: &Query, file: &OsStr) -> bool {
    match query {
        Query::One(kind, name) => name::file_name(*kind, name).as_bytes() == file.as_bytes(),
        Query::Prefix(prefix) => file.to_str().is_some_and(|file| {
            name::kind_of(file).is_some() && name::may_start_with(file, prefix)
        }),
    }
}

impl Memory {
    /// Learns what a fresh watch looks at.
    fn learn(&mut self, opened: &Opened, query: &Query) {
        for entry in inspect::entries(&opened.dir, query).into_iter().flatten() {
            let file = name::file_name(entry.kind, &entry.name);
            self.keep(OsStr::from_bytes(file.as_bytes()).to_owned(), entry);
        }
    }

    fn learn_file(&mut self, opened: &Opened, file: &OsStr) {
        match entry_of(opened, file) {
            Some(entry) => self.keep(file.to_owned(), entry),
            None => drop(self.active.remove(file)),
        }
    }

    fn keep(&mut self, file: OsString, entry: Entry) {
        if entry.holders.is_empty() && entry.waiters.is_empty() {
            self.active.remove(&file);
        } else {
            self.active.insert(file, entry);
        }
    }

    /// The held locks that are not as they were.
    fn look(&self, opened: &Opened) -> Vec<OsString> {
        let differs =
            |(file, was): &(&OsString, &Entry)| entry_of(opened, file).is_none_or(|is| is != **was);
        self.active.iter().filter(differs).map(|(file, _)| file.clone()).collect()
    }
}

fn entry_of(opened: &Opened, file: &OsStr) -> Option<Entry> {
    let file = file.to_str()?;
    let kind = name::kind_of(file)?;
    let name = LockFile::name_in(&opened.dir, kind, file)?;
    inspect::entry(&opened.dir, &Key::new(kind, &name)).ok()
}
