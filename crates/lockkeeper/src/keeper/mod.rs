//! Runs the machines: entries, leases, events, the thread behind them.

pub(crate) mod caller_io;
pub(crate) mod cell;
pub(crate) mod driver;
pub(crate) mod entry;
mod events;
#[cfg(feature = "test-util")]
pub(crate) mod hosted;
mod leases;
mod outages;
#[cfg(test)]
#[cfg(feature = "test-util")]
mod tests;

use std::collections::HashMap;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use crate::engine::{Answer, Context, Engine, EventSink, Spawner, WatchId};
use crate::observe::{Observer, Seen};
use crate::protocol::lease::Drift;
use crate::protocol::line::Rules;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use crate::words::claim::Identity;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Can, Expiry};
use crate::words::id::{ClaimId, fork_generation, shrink};
use crate::words::name::{Kind, Name};
use cell::TurnCell;
use driver::Driver;
use entry::Entry;

/// What the user chose.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) ttl: Duration,
    pub(crate) rules: Rules,
    pub(crate) drift: Drift,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    /// Every runtime in which a task waits has an I/O driver.
    pub(crate) io: bool,
    /// Runs the keeper in place of its thread.
    #[cfg(feature = "test-util")]
    pub(crate) host: Option<Arc<dyn hosted::Host>>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(30),
            rules: Rules::default(),
            drift: Drift::default(),
            observer: None,
            io: false,
            #[cfg(feature = "test-util")]
            host: None,
        }
    }
}

/// What never changes about an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(crate) engine: &'static str,
    pub(crate) hand_off: bool,
    pub(crate) expiry: Expiry,
    pub(crate) early: bool,
    pub(crate) request_timeout: Option<Duration>,
    pub(crate) can: Can,
    pub(crate) elsewhere: &'static [(Can, &'static str)],
    pub(crate) layout: &'static str,
}

const OPEN: u8 = 0;
const CLOSING: u8 = 1;
const CLOSED: u8 = 2;

/// One a `Locks`.
pub(crate) struct Keeper {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) facts: Facts,
    pub(crate) clock: Clock,
    pub(crate) who: Arc<Identity>,
    pub(crate) settings: Settings,
    /// The rules of every line.
    rules: Arc<Rules>,
    pub(crate) driver: Driver,
    entries: Mutex<HashMap<(Kind, Name), Weak<Entry>>>,
    claims: events::Claims,
    leases: Mutex<leases::Book>,
    watches: Mutex<HashMap<WatchId, Arc<tokio::sync::Notify>>>,
    /// The engine's socket in the runtimes of callers.
    watched: Mutex<Vec<caller_io::Watched>>,
    /// How long the session lasts that carries all holds, in nanoseconds; zero where there is none.
    session_ns: AtomicU64,
    state: AtomicU8,
    forks: u32,
}

impl Keeper {
    /// A keeper for an engine that is not opened yet.
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        clock: Clock,
        who: Arc<Identity>,
        settings: Settings,
    ) -> Arc<Self> {
        let description = engine.describe();
        let facts = Facts {
            engine: description.engine,
            hand_off: description.hand_off,
            expiry: description.expiry,
            early: description.early,
            request_timeout: description.request_timeout,
            can: description.can,
            elsewhere: description.elsewhere,
            layout: description.layout,
        };
        #[cfg(feature = "test-util")]
        let driver = Driver::on(clock.clone(), settings.host.clone());
        #[cfg(not(feature = "test-util"))]
        let driver = Driver::new(clock.clone());
        Arc::new(Self {
            engine,
            facts,
            driver,
            clock,
            who,
            leases: Mutex::new(leases::Book::new(settings.drift)),
            rules: Arc::new(settings.rules.clone()),
            settings,
            entries: Mutex::default(),
            claims: events::Claims::default(),
            watches: Mutex::default(),
            watched: Mutex::default(),
            session_ns: AtomicU64::new(0),
            state: AtomicU8::new(OPEN),
            forks: fork_generation(),
        })
    }

    /// What the engine is given when it is opened.
    pub(crate) fn context(self: &Arc<Self>) -> Context {
        let (for_events, for_tasks) = (Arc::downgrade(self), Arc::downgrade(self));
        let for_begun = Arc::downgrade(self);
        Context {
            clock: self.clock.clone(),
            events: EventSink::new(move |event| {
                if let Some(keeper) = for_events.upgrade() {
                    keeper.event(event);
                }
            }),
            spawner: Spawner::new(move |task| {
                if let Some(keeper) = for_tasks.upgrade() {
                    keeper.run(task);
                }
            })
            .beginning(move |task| {
                if let Some(keeper) = for_begun.upgrade() {
                    keeper.begin(task);
                }
            }),
            who: self.who.clone(),
        }
    }

    /// Runs a future on the keeper's thread.
    pub(crate) fn run(self: &Arc<Self>, future: impl Future<Output = ()> + Send + 'static) {
        if let Err(error) = self.driver.run(self, Box::pin(future)) {
            tracing::error!(
                engine = self.facts.engine,
                %error,
                "a task of the engine could not be started"
            );
        }
    }

    /// Waits for an answer wherever it comes from, polled by the keeper.
    pub(crate) async fn answer<T: Send + 'static>(
        self: &Arc<Self>,
        answer: Answer<T>,
    ) -> Result<T> {
        match answer {
            Answer::Now(value) => Ok(value),
            Answer::Later(future) => {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                let work = async move {
                    // Nobody listens any more: the engine's work is done all the same (R5).
                    let _ = sender.send(future.await);
                };
                self.driver.run(self, Box::pin(work))?;
                receiver.await.map_err(|_| self.closed())
            }
        }
    }

    /// The time now; where no hold has a lease of its own, by one clock alone. It is never later
    /// than all clocks say, and whether a session is over is decided by guards and by the table of
    /// leases, which read them all (R15).
    pub(crate) fn now(&self) -> Ticks {
        if self.facts.expiry.is_per_hold() {
            self.clock.now()
        } else {
            self.clock.now_without_leases()
        }
    }

    /// The time now for what decides nothing about a lease: by one clock, and never later than
    /// [`Keeper::now`].
    pub(crate) fn glance(&self) -> Ticks {
        self.clock.now_without_leases()
    }

    /// How long the session lasts that carries all holds, if there is one.
    pub(crate) fn session(&self) -> Option<Duration> {
        Some(Duration::from_nanos(self.session_ns.load(Ordering::Acquire)))
            .filter(|session| !session.is_zero())
    }

    /// The engine has connected: what was negotiated is known.
    pub(crate) fn note_session(&self) {
        let session = self.engine.describe().expiry.session().unwrap_or_default();
        self.session_ns
            .store(u64::try_from(session.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    pub(crate) fn closed(&self) -> Error {
        Error::new(ErrorKind::Closed, "its Locks was closed; open a new one")
            .engine(self.facts.engine)
    }

    /// Refuses work after `close`, and in a forked child, where the keeper's thread does not exist
    /// (R15).
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.state.load(Ordering::Acquire) != OPEN {
            return Err(self.closed());
        }
        if self.is_forked() {
            let text = "this Locks was opened before a fork; open a new one in the child";
            return Err(Error::new(ErrorKind::Closed, text).engine(self.facts.engine));
        }
        Ok(())
    }

    /// In a forked child other threads' locks may stay locked for ever: nothing here is touched
    /// there (R15).
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != fork_generation()
    }

    pub(crate) fn is_closed_for_good(&self) -> bool {
        self.state.load(Ordering::Acquire) == CLOSED
    }

    /// The entry of a name; made when nobody has it.
    pub(crate) fn entry(self: &Arc<Self>, kind: Kind, name: &Name) -> Arc<Entry> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind, name.clone());
        if let Some(entry) = entries.get(&key).and_then(Weak::upgrade) {
            return entry;
        }
        let entry = Arc::new(Entry::new(self.clone(), kind, name.clone()));
        entries.insert(key, Arc::downgrade(&entry));
        entry
    }

    /// The entry of a name that somebody here asks for or holds.
    fn entry_if_known(&self, kind: Kind, name: &Name) -> Option<Arc<Entry>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.get(&(kind, name.clone())).and_then(Weak::upgrade)
    }

    /// An entry is gone, unless another has taken its place meanwhile.
    pub(crate) fn forget_entry(&self, kind: Kind, name: &Name) {
        if self.is_forked() {
            return;
        }
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (kind, name.clone());
        if entries.get(&key).is_some_and(|e| e.strong_count() == 0) {
            entries.remove(&key);
            shrink(&mut entries);
        }
    }

    /// Reads from the engine.
    pub(crate) async fn read(
        self: &Arc<Self>,
        query: &crate::engine::Query,
    ) -> Result<Vec<crate::words::claim::Entry>> {
        self.check_open()?;
        let answer = self.engine.read(query);
        let entries = self.answer(answer).await?.map_err(|e| e.engine(self.facts.engine))?;
        if let crate::engine::Query::One(..) = query {
            // Whoever asks about one name must not take "cannot be read" for "free" or "open".
            entries
                .iter()
                .try_for_each(crate::words::claim::Entry::readable)
                .map_err(|e| e.engine(self.facts.engine))?;
        }
        Ok(entries)
    }

    /// Changes something at the engine; once begun it happens, also when this future is dropped.
    pub(crate) async fn write(self: &Arc<Self>, change: &crate::engine::Change) -> Result<bool> {
        self.check_open()?;
        let answer = self.engine.write(change);
        self.answer(answer).await?.map_err(|e| e.engine(self.facts.engine))
    }

    pub(crate) fn add_watch(&self, id: WatchId, changed: Arc<tokio::sync::Notify>) {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).insert(id, changed);
    }

    pub(crate) fn has_watch(&self, id: WatchId) -> bool {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).contains_key(&id)
    }

    pub(crate) fn remove_watch(&self, id: WatchId) {
        if self.is_forked() {
            return;
        }
        self.watches.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.engine.unwatch(id);
    }

    /// In the order of their names, so that a simulation replays.
    fn all_entries(&self) -> Vec<Arc<Entry>> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<_> = entries.values().filter_map(Weak::upgrade).collect();
        drop(entries);
        all.sort_unstable_by(|one, other| (one.kind, &one.name).cmp(&(other.kind, &other.name)));
        all
    }

    /// What is kept about claims, leases and names, for tests that look for what is left.
    #[cfg(feature = "test-util")]
    pub(crate) fn residue(&self) -> hosted::Residue {
        let names = self
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .values()
            .filter(|e| e.strong_count() > 0)
            .count();
        let claims = self.claims.len();
        let leases = self.leases.lock().unwrap_or_else(PoisonError::into_inner).len();
        let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner).len();
        let (tasks, timers) = self.driver.load();
        hosted::Residue { names, claims, leases, watches, tasks, timers }
    }

    /// Tells the observer, whatever it does with it.
    pub(crate) fn observe(&self, entry: &Entry, what: Seen) {
        self.observe_name(entry.kind, &entry.name, what);
    }

    /// The same for a name of which no claim may be left.
    pub(crate) fn observe_name(&self, kind: Kind, name: &Name, what: Seen) {
        if let Some(observer) = &self.settings.observer {
            self.tell(observer, kind, name, &what);
        }
        #[cfg(feature = "metrics")]
        crate::observe::metrics::seen(self.facts.engine, &what);
    }

    /// Tells it that opening the engine goes on.
    pub(crate) fn observe_trying(&self, why: &Error) {
        if let Some(observer) = &self.settings.observer {
            self.bear(|| observer.trying(why));
        }
    }

    fn tell(&self, observer: &Arc<dyn Observer>, kind: Kind, name: &Name, what: &Seen) {
        let at = self.clock.now();
        self.bear(|| observer.seen(at, kind, name, what));
    }

    /// Runs what an observer does, whatever that is.
    fn bear(&self, observe: impl FnOnce()) {
        if catch_unwind(AssertUnwindSafe(observe)).is_err() {
            let engine = self.facts.engine;
            tracing::error!(engine, "the observer panicked; the lock goes on without it");
        }
    }

    pub(crate) fn took(&self, cell: &Arc<TurnCell>) {
        let deadline = cell.lease.as_ref().map(|l| l.deadline());
        let token = cell.token();
        tracing::debug!(
            engine = self.facts.engine,
            name = %cell.entry.name,
            token = token.map(crate::Token::get),
            "acquired"
        );
        self.observe(
            &cell.entry,
            Seen::Got { claim: cell.seq, hold: cell.hold, mode: cell.mode(), token, deadline },
        );
        // The observer may have heard of a renewal before it knew this turn: report it again.
        let later = cell
            .lease
            .as_ref()
            .map(|l| l.deadline())
            .filter(|later| deadline.is_some_and(|told| *later > told));
        if let (Some(observer), Some(deadline)) = (&self.settings.observer, later) {
            let renewed = Seen::Renewed { hold: cell.hold, deadline };
            self.tell(observer, cell.entry.kind, &cell.entry.name, &renewed);
        }
    }

    pub(crate) fn releasing(&self, cell: &Arc<TurnCell>) {
        self.observe(&cell.entry, Seen::Releasing { claim: cell.seq, hold: cell.hold });
        #[cfg(feature = "metrics")]
        crate::observe::metrics::held(self.facts.engine, self.clock.now().since(cell.granted));
    }

    /// Says once that a turn is lost, whoever noticed first.
    pub(crate) fn lost(&self, cell: &Arc<TurnCell>) {
        let Some(why) = cell.lost().filter(|_| cell.announce()) else { return };
        let token = cell.token().map(crate::Token::get);
        tracing::error!(
            parent: cell.span.as_ref().and_then(|span| span.id()),
            engine = self.facts.engine,
            name = %cell.entry.name,
            token,
            %why,
            "lost"
        );
        self.observe(&cell.entry, Seen::Lost { claim: cell.seq, why });
    }

    /// Refuses new claims, makes held guards lost, and waits up to `patience` for their release.
    /// Answers what stayed unknown.
    pub(crate) async fn close(self: &Arc<Self>, patience: Duration) -> Vec<ClaimId> {
        if self.state.compare_exchange(OPEN, CLOSING, Ordering::AcqRel, Ordering::Acquire).is_err()
        {
            return Vec::new();
        }
        let mut open = Vec::new();
        for entry in self.all_entries() {
            open.extend(entry.close());
        }
        let end = self.clock.now().plus(patience);
        let mut unknown = Vec::new();
        for (hold, answer) in open {
            let left = end.since(self.clock.now());
            match self.within(left, answer).await {
                Some(Ok(told)) if !matches!(told.end, crate::engine::End::Unknown(_)) => {}
                _ => unknown.push(hold),
            }
        }
        self.state.store(CLOSED, Ordering::Release);
        let left = end.since(self.clock.now()).max(Duration::from_millis(100));
        let closing = self.engine.close();
        match closing {
            Answer::Now(()) => {}
            Answer::Later(future) => {
                let (sender, receiver) = tokio::sync::oneshot::channel();
                self.run(async move {
                    future.await;
                    let _ = sender.send(());
                });
                self.within(left, receiver).await;
            }
        }
        for changed in self.watches.lock().unwrap_or_else(PoisonError::into_inner).values() {
            changed.notify_one();
        }
        self.unregister_sockets();
        self.driver.stop();
        for entry in self.all_entries() {
            entry.drop_listeners();
        }
        unknown
    }

    /// Waits for `future`, but not longer than `time`.
    pub(crate) async fn within<F: Future>(
        self: &Arc<Self>,
        time: Duration,
        future: F,
    ) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        let mut sleep = std::pin::pin!(self.driver.sleep(self, time));
        std::future::poll_fn(|context| {
            if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
                return std::task::Poll::Ready(Some(value));
            }
            sleep.as_mut().poll(context).map(|()| None)
        })
        .await
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("engine", &self.facts.engine).finish_non_exhaustive()
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // Engines end their threads and watches here when nobody called `close`.
        if !self.is_forked() && *self.state.get_mut() == OPEN {
            drop(self.engine.close());
        }
    }
}
