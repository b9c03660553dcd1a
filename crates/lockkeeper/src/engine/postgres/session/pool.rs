//! The connections of a process, and what each has.
//!
//! A connection never has one key twice: PostgreSQL would count, and two claims of this process
//! would both hold it, or a reader would pass a writer that waits. One that waits for a lock has
//! nothing else, because it is asked nothing until the lock is there.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::super::errors;
use super::super::watch::Watches;
use super::claims::{Entry, Stand};
use super::connection::{Connection, Facts, Ghost};
use super::name::Key;
use super::options::Options;
use crate::engine::either::either;
use crate::engine::{BoxFuture, Context, Event, Which};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{ClaimId, LeaseId};
use crate::words::lost::Lost;
use crate::words::name::Name;

/// How many connections a process has at most.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// How long one that is not needed stays, beside the last.
const IDLE: Duration = Duration::from_secs(10);
/// How many connections that broke are remembered until the server has them no more.
const GHOSTS_MAX: usize = CONNECTIONS_MAX;
/// How soon and how late it is looked again whether it has.
const LOOK_AFTER: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(5));
/// How many names' hashes are remembered.
const HASHES_MAX: usize = 4096;
/// What the server cuts.
const LABEL_MAX: usize = 63;

/// What runs once the engine is open.
pub(super) struct Opened {
    pub(super) options: Arc<Options>,
    pub(super) context: Context,
    pub(super) watches: Watches,
    pub(super) me: Weak<Self>,
    label: String,
    state: Mutex<State>,
    /// Counts keys that became free.
    changed: watch::Sender<u64>,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) slots: BTreeMap<LeaseId, Slot>,
    pub(super) claims: BTreeMap<ClaimId, Arc<Entry>>,
    pub(super) hashes: BTreeMap<Name, Key>,
    /// Keys that are being given back, and how often.
    releasing: BTreeMap<Key, usize>,
    ghosts: Vec<Left>,
    /// Somebody ends them.
    laying: bool,
    facts: Option<Facts>,
    dialling: usize,
    closed: bool,
}

/// A connection, and what it has or is asked for.
pub(super) struct Slot {
    pub(super) connection: Arc<Connection>,
    pub(super) keys: BTreeMap<Key, ClaimId>,
    waits: bool,
    idle_since: Instant,
}

/// What a connection that broke has left in the server.
struct Left {
    ghost: Ghost,
    /// Claims that were never answered whether they have their locks there.
    claims: Vec<ClaimId>,
}

/// What a connection is needed for.
#[derive(Clone, Copy)]
pub(super) enum Need {
    /// A question.
    Look,
    /// A try for a key, beside others.
    Try(Key, ClaimId),
    /// Waiting for a key.
    Wait(Key, ClaimId),
}

/// A dial that is counted, also when it is not waited for any longer.
struct Dialling<'a>(&'a Opened);

impl Drop for Dialling<'_> {
    fn drop(&mut self) {
        self.0.state().dialling -= 1;
    }
}

impl Slot {
    fn serves(&self, need: Need) -> bool {
        !self.waits
            && !self.connection.is_over()
            && match need {
                Need::Look => true,
                Need::Try(key, _) => !self.keys.contains_key(&key),
                Need::Wait(..) => self.keys.is_empty(),
            }
    }

    fn take(&mut self, need: Need) -> Arc<Connection> {
        if let Need::Try(key, claim) | Need::Wait(key, claim) = need {
            self.keys.insert(key, claim);
        }
        self.waits |= matches!(need, Need::Wait(..));
        self.idle_since = Instant::now();
        self.connection.clone()
    }
}

impl State {
    /// Whether this process has as many locks as it may, and how many that are.
    fn is_full(&self, need: Need) -> Option<usize> {
        let most = self.facts.as_ref()?.locks_max;
        let wants = matches!(need, Need::Try(..) | Need::Wait(..));
        let keys = || self.slots.values().map(|slot| slot.keys.len()).sum::<usize>();
        (wants && keys() >= most).then_some(most)
    }

    pub(super) fn remember(&mut self, name: &Name, key: Key) {
        if self.hashes.len() >= HASHES_MAX {
            self.hashes.clear();
        }
        self.hashes.insert(name.clone(), key);
    }
}

impl Opened {
    pub(super) fn new(options: Arc<Options>, context: Context) -> Arc<Self> {
        let who = &context.who;
        let program = who.program.rsplit('/').next().unwrap_or_default();
        let mut label = format!("lockkeeper:{program}:{}@{}", who.pid, who.host);
        while label.len() > LABEL_MAX {
            label.pop();
        }
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            options,
            context,
            watches: Watches::default(),
            label,
            state: Mutex::default(),
            changed: watch::Sender::new(0),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn facts(&self) -> Option<Facts> {
        self.state().facts.clone()
    }

    /// A connection that serves the need, which has the key from then on.
    ///
    /// # Errors
    /// What keeps the server from being used.
    pub(super) async fn take(self: &Arc<Self>, need: Need) -> Result<Arc<Connection>> {
        loop {
            {
                let mut state = self.state();
                if state.closed {
                    return Err(Error::new(ErrorKind::Closed, "the engine is closed"));
                }
                if let Some(most) = state.is_full(need) {
                    let text = format!(
                        "this process has or waits for {most} advisory locks, an eighth of what \
                         the server has room for: raise its max_locks_per_transaction, or use \
                         layout=table, which has no such limit"
                    );
                    return Err(Error::new(ErrorKind::Refused, text).temporary(true));
                }
                if let Some(slot) = state.slots.values_mut().find(|slot| slot.serves(need)) {
                    return Ok(slot.take(need));
                }
                // One is left to ask on.
                let most = CONNECTIONS_MAX - usize::from(matches!(need, Need::Wait(..)));
                if state.slots.len() + state.dialling >= most {
                    let text = format!(
                        "this process has {CONNECTIONS_MAX} connections with locks or waiting for \
                         one, which is the limit of layout=session"
                    );
                    return Err(Error::new(ErrorKind::Unreachable, text).temporary(true));
                }
                state.dialling += 1;
            }
            let (connection, driver) = {
                let _counted = Dialling(self);
                self.dial().await?
            };
            self.keep(Arc::new(connection), driver);
        }
    }

    /// Dials the first of the servers that can be used.
    async fn dial(&self) -> Result<(Connection, BoxFuture<String>)> {
        let server = &self.options.server;
        let mut last = Error::new(ErrorKind::Unreachable, "there is no server");
        for address in &server.addresses {
            let until = Instant::now() + server.connect_timeout;
            let (options, clock) = (&self.options, &self.context.clock);
            let open = Connection::open(options, address, &self.label, until, clock);
            match timeout_at(until, open).await {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(error)) => last = errors::either(last, error),
                Err(_) => {
                    let why = format_args!("no answer within {:?}", server.connect_timeout);
                    last = errors::either(last, errors::unreachable(&address.to_string(), why));
                }
            }
        }
        Err(last)
    }

    fn keep(self: &Arc<Self>, connection: Arc<Connection>, driver: BoxFuture<String>) {
        {
            let mut state = self.state();
            state.facts = Some(connection.facts.clone());
            let slot = Slot {
                connection: connection.clone(),
                keys: BTreeMap::new(),
                waits: false,
                idle_since: Instant::now(),
            };
            if state.closed {
                connection.end();
            }
            state.slots.insert(connection.lease, slot);
        }
        self.context.spawner.spawn(self.clone().serve(connection, driver));
        self.lay_ghosts();
    }

    /// Looks after a connection until it ends.
    async fn serve(self: Arc<Self>, connection: Arc<Connection>, mut driver: BoxFuture<String>) {
        let beats = self.beats(&connection);
        let broke = either(beats, driver.as_mut()).await.is_err();
        drop(driver);
        if broke {
            self.broke(&connection);
        }
    }

    /// Proves the connection while it has locks; ends when it is not needed.
    async fn beats(&self, connection: &Arc<Connection>) {
        loop {
            sleep(self.options.session / 4).await;
            {
                let mut state = self.state();
                let last = state.slots.len() <= 1;
                let Some(slot) = state.slots.get(&connection.lease) else { return };
                if slot.waits {
                    continue;
                }
                if slot.keys.is_empty() {
                    if last || slot.idle_since.elapsed() < IDLE {
                        continue;
                    }
                    state.slots.remove(&connection.lease);
                    return;
                }
            }
            if let Ok(since) = connection.prove(&self.context.clock).await {
                let (lease, ttl) = (connection.lease, self.options.session);
                self.context.events.send(Event::Renewed { lease, ttl, since });
            }
        }
    }

    /// A connection broke: what it had is lost, whether the server has noticed or not.
    fn broke(self: &Arc<Self>, connection: &Arc<Connection>) {
        let (mut lost, mut claims) = (false, Vec::new());
        let left_something = {
            let state = &mut *self.state();
            let Some(slot) = state.slots.get_mut(&connection.lease) else { return };
            let left_something = !slot.keys.is_empty() && !state.closed;
            // What is told as lost is not asked for any more; the others may have theirs still.
            slot.keys.retain(|_, claim| {
                let held = |entry: &&Arc<Entry>| matches!(*entry.stand.borrow(), Stand::Held(..));
                let Some(entry) = state.claims.get(claim).filter(held).cloned() else {
                    claims.push(*claim);
                    return true;
                };
                state.claims.remove(claim);
                entry.stand.send_replace(Stand::Lost);
                lost = true;
                false
            });
            left_something
        };
        if lost {
            // Before anything makes room for others (R2).
            let (which, why) = (Which::Lease(connection.lease), Lost::SessionEnded);
            self.context.events.send(Event::Ended { which, why });
        }
        {
            let mut state = self.state();
            state.slots.remove(&connection.lease);
            if left_something && state.ghosts.len() < GHOSTS_MAX {
                state.ghosts.push(Left { ghost: connection.ghost.clone(), claims });
            }
        }
        self.wake();
        self.lay_ghosts();
    }

    /// Ends in the server what connections that broke have left there, until nothing is.
    fn lay_ghosts(self: &Arc<Self>) {
        {
            let mut state = self.state();
            if state.ghosts.is_empty() || std::mem::replace(&mut state.laying, true) {
                return;
            }
        }
        let opened = self.clone();
        self.context.spawner.spawn(async move {
            let mut pause = LOOK_AFTER.0;
            loop {
                let left: Vec<Ghost> = {
                    let mut state = opened.state();
                    state.laying = !state.ghosts.is_empty();
                    if !state.laying {
                        return;
                    }
                    state.ghosts.iter().map(|left| left.ghost.clone()).collect()
                };
                if let Ok(connection) = opened.take(Need::Look).await {
                    for ghost in left {
                        if let Ok(false) = connection.lay(&ghost).await {
                            opened.state().ghosts.retain(|left| left.ghost != ghost);
                        }
                    }
                } else {
                    let mut state = opened.state();
                    // One that was made meanwhile found this at work; the next one begins it again.
                    if !state.slots.values().any(|slot| !slot.connection.is_over()) {
                        state.laying = false;
                        return;
                    }
                }
                sleep(pause).await;
                pause = (pause * 2).min(LOOK_AFTER.1);
            }
        });
    }

    /// Whether a claim may have its lock on a connection that broke.
    pub(super) fn may_be_left(&self, claim: ClaimId) -> bool {
        let state = self.state();
        let on = |slot: &Slot| {
            slot.connection.is_over() && slot.keys.values().any(|other| *other == claim)
        };
        state.ghosts.iter().any(|left| left.claims.contains(&claim)) || state.slots.values().any(on)
    }

    /// The connection that a claim is asked for on.
    pub(super) fn connection_of(&self, claim: ClaimId) -> Option<Arc<Connection>> {
        let state = self.state();
        let slot = state.slots.values().find(|slot| slot.keys.values().any(|id| *id == claim))?;
        Some(slot.connection.clone())
    }

    /// A key that a connection was asked for is not there, or not any more.
    pub(super) fn free(&self, connection: &Connection, key: Key) {
        {
            let mut state = self.state();
            if let Some(slot) = state.slots.get_mut(&connection.lease) {
                slot.keys.remove(&key);
                slot.waits = false;
                slot.idle_since = Instant::now();
            }
        }
        self.wake();
    }

    /// A connection does not wait any more, and has its key.
    pub(super) fn has(state: &mut State, connection: &Connection) -> bool {
        let Some(slot) = state.slots.get_mut(&connection.lease) else { return false };
        if connection.is_over() {
            return false;
        }
        slot.waits = false;
        connection.holds.fetch_add(1, Ordering::AcqRel);
        true
    }

    pub(super) fn begin_release(state: &mut State, key: Key) {
        *state.releasing.entry(key).or_default() += 1;
    }

    pub(super) fn end_release(&self, key: Key) {
        {
            let mut state = self.state();
            if let Some(count) = state.releasing.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    state.releasing.remove(&key);
                }
            }
        }
        self.wake();
    }

    /// Waits until what this process is giving back of a key is given back: on another connection
    /// a question could overtake it.
    pub(super) async fn until_released(&self, key: Key) {
        let mut changed = self.changed.subscribe();
        let free = changed.wait_for(|_| !self.state().releasing.contains_key(&key));
        _ = timeout(self.options.server.request_timeout, free).await;
    }

    fn wake(&self) {
        self.changed.send_modify(|count| *count += 1);
    }

    /// Ends all connections, and makes none again.
    pub(super) fn close(&self) {
        let slots = {
            let mut state = self.state();
            state.closed = true;
            std::mem::take(&mut state.slots)
        };
        for slot in slots.values() {
            slot.connection.end();
        }
    }
}
