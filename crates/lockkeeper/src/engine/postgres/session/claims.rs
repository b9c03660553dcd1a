//! One claim's way to its lock, and back.
//!
//! A task follows each claim, because a statement's answer may come after its caller has left: what
//! it brings then is given back. The caller waits for where the claim stands.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::super::errors;
use super::connection::{Connection, Waited};
use super::name::{Key, refused};
use super::pool::{Need, Opened};
use crate::engine::either::either;
use crate::engine::{Attempt, End, Event, Grant, Lease, Line, Number, Place};
use crate::words::claim::{Claim, Holder, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{ClaimId, LeaseId};
use crate::words::name::{Kind, Name};

/// How long is waited before it is looked again whether the server has put us in line.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// How often a wait is called off before its connection is given up.
const CALLS: u32 = 4;

/// A claim on its way, in line, or with its lock.
pub(super) struct Entry {
    pub(super) claim: Claim,
    pub(super) stand: watch::Sender<Stand>,
    /// Its caller has left.
    left: watch::Sender<bool>,
    /// How often in a row the server did not know that it waits.
    pub(super) missed: AtomicU32,
}

/// Where a claim stands.
#[derive(Clone, Debug)]
pub(super) enum Stand {
    Asking,
    InLine(Place),
    /// On which connection, under which key, and until when it is proven.
    Held(LeaseId, Key, Ticks),
    Releasing,
    // What follows is final; the claim is not known any more.
    Busy(Option<Box<Holder>>),
    Failed(Error),
    Unknown(Error),
    /// Left or given back.
    Left,
    /// The server did not have it.
    NotThere,
    Lost,
}

impl Entry {
    fn has_left(&self) -> bool {
        *self.left.borrow()
    }

    async fn until_left(&self) {
        _ = self.left.subscribe().wait_for(|left| *left).await;
    }

    fn reads(&self) -> bool {
        self.claim.mode == Mode::Shared
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::Lost, "it is neither held nor in line")
}

fn left_behind() -> Error {
    let text = "a connection that broke may have it still; the server is asked to end that one";
    Error::new(ErrorKind::Unknown, text)
}

impl Opened {
    /// Follows a claim, unless that is done already (R3).
    pub(super) fn follow(self: &Arc<Self>, claim: &Claim, line: Line) -> Arc<Entry> {
        let entry = Arc::new(Entry {
            claim: claim.clone(),
            stand: watch::Sender::new(Stand::Asking),
            left: watch::Sender::new(false),
            missed: AtomicU32::new(0),
        });
        {
            let mut state = self.state();
            if let Some(known) = state.claims.get(&claim.id) {
                return known.clone();
            }
            state.claims.insert(claim.id, entry.clone());
        }
        let (opened, followed) = (self.clone(), entry.clone());
        self.context.spawner.spawn(async move {
            let stand = opened.obtain(&followed, line).await;
            if let Some(stand) = stand {
                opened.over(&followed, stand);
            }
        });
        entry
    }

    pub(super) fn known(&self, id: ClaimId) -> Option<Arc<Entry>> {
        self.state().claims.get(&id).cloned()
    }

    /// A claim's way is over.
    fn over(&self, entry: &Entry, stand: Stand) {
        self.state().claims.remove(&entry.claim.id);
        entry.stand.send_replace(stand);
    }

    /// What came of a claim's request.
    pub(super) async fn answer(&self, entry: &Entry) -> Attempt {
        let server = &self.options.server;
        let patience = server.connect_timeout + server.request_timeout;
        let mut stand = entry.stand.subscribe();
        let stand = timeout(patience, stand.wait_for(|stand| !matches!(stand, Stand::Asking)));
        let stand = match stand.await {
            Ok(Ok(stand)) => stand.clone(),
            _ => {
                let why = format_args!("no answer within {patience:?}");
                return Attempt::Unknown(errors::unreachable(&server.at(), why));
            }
        };
        match stand {
            Stand::Held(on, _, since) => Attempt::Granted(self.grant(on, since)),
            Stand::InLine(place) => Attempt::InLine(place),
            Stand::Busy(holder) => Attempt::Busy(holder),
            Stand::Failed(error) => Attempt::Failed(error),
            Stand::Unknown(error) => Attempt::Unknown(error),
            _ => Attempt::Failed(gone()),
        }
    }

    pub(super) fn grant(&self, on: LeaseId, since: Ticks) -> Grant {
        let ttl = self.options.session;
        let lease = Lease { id: on, ttl, since: Some(since), confirm: false };
        Grant { number: Number::None, lease: Some(lease) }
    }

    /// The key of a name.
    ///
    /// # Errors
    /// `InvalidName`; the server's, which hashes.
    pub(super) async fn key(self: &Arc<Self>, name: &Name) -> Result<Key> {
        if let Some(key) = Key::said(name.as_str()) {
            return Ok(key);
        }
        if !self.options.hashed {
            return Err(refused(name));
        }
        if let Some(key) = self.state().hashes.get(name) {
            return Ok(*key);
        }
        let hex: String = name.as_str().bytes().map(|byte| format!("{byte:02x}")).collect();
        // No text with a backslash: what that means is a setting of the role's.
        let hash =
            format!("SELECT hashtextextended(convert_from(decode('{hex}', 'hex'), 'UTF8'), 0)");
        let connection = self.take(Need::Look).await?;
        let hashed = connection.value(&hash).await.map_err(|broken| broken.error)?;
        let Ok(hashed) = hashed.parse() else {
            return Err(super::super::conn::garbage(&self.options.server));
        };
        self.state().remember(name, Key::One(hashed));
        Ok(Key::One(hashed))
    }

    /// Waits until no lock can be somebody's whose connection the server has forgotten.
    async fn settled(&self, connection: &Connection) -> Result<()> {
        let left = connection.settled.since(self.context.clock.now());
        if left > self.options.server.request_timeout {
            let text = format!(
                "the server at {} has just started, and who held a lock before may not have \
                 noticed: locks are granted again in {left:?}",
                self.options.server.at()
            );
            return Err(Error::new(ErrorKind::Unreachable, text).temporary(true));
        }
        if !left.is_zero() {
            sleep(left).await;
        }
        Ok(())
    }

    /// Asks for a claim's lock, and waits for it where it may; answers where the claim stands if
    /// that is final.
    async fn obtain(self: &Arc<Self>, entry: &Arc<Entry>, line: Line) -> Option<Stand> {
        let supported = entry.claim.kind == Kind::Lock
            && matches!(entry.claim.mode, Mode::Exclusive | Mode::Shared);
        if !supported {
            let text = "layout=session has exclusive and shared locks only: use layout=table";
            return Some(Stand::Failed(Error::new(ErrorKind::Unsupported, text)));
        }
        let key = match self.key(&entry.claim.name).await {
            Ok(key) => key,
            Err(error) => return Some(Stand::Failed(error)),
        };
        self.until_released(key).await;
        match self.try_once(entry, key, line).await {
            Ok(Some(stand)) => return Some(stand).filter(|s| !matches!(s, Stand::Held(..))),
            Ok(None) => {}
            Err(stand) => return Some(stand),
        }
        let mut told = false;
        loop {
            match self.wait_once(entry, key, &mut told).await {
                Ok(Some(stand)) => return Some(stand).filter(|s| !matches!(s, Stand::Held(..))),
                // Somebody else called the wait off: from the end of the line.
                Ok(None) => {}
                Err(stand) => {
                    if told {
                        // Its caller was told that it stands in line: it asks again.
                        self.over(entry, stand);
                        self.context.events.send(Event::Wake { claim: entry.claim.id });
                        return None;
                    }
                    return Some(stand);
                }
            }
        }
    }

    /// The connection on which a claim may be asked for; `None` where it has left meanwhile.
    async fn connection_for(
        self: &Arc<Self>,
        entry: &Entry,
        key: Key,
        need: Need,
    ) -> std::result::Result<Option<Arc<Connection>>, Stand> {
        // What is left of an earlier connection may be granted it.
        let connection = self.take(need).await.map_err(|error| {
            if self.may_be_left(entry.claim.id) {
                Stand::Unknown(error)
            } else {
                Stand::Failed(error)
            }
        })?;
        if let Err(error) = self.settled(&connection).await {
            self.free(&connection, key);
            return Err(Stand::Failed(error));
        }
        if entry.has_left() {
            self.free(&connection, key);
            return Ok(None);
        }
        Ok(Some(connection))
    }

    /// Tries; `None` where somebody has it and the claim waits.
    async fn try_once(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        key: Key,
        line: Line,
    ) -> std::result::Result<Option<Stand>, Stand> {
        let id = entry.claim.id;
        let Some(connection) = self.connection_for(entry, key, Need::Try(key, id)).await? else {
            return Ok(Some(Stand::Left));
        };
        // Before it is asked: what is left there may end meanwhile.
        let may_have_it = self.may_be_left(id);
        let since = self.context.clock.now();
        match connection.try_lock(key, entry.reads()).await {
            Ok(true) => Ok(Some(self.granted(entry, &connection, key, since).await)),
            Ok(false) => {
                self.free(&connection, key);
                if line == Line::Join {
                    return Ok(None);
                }
                if may_have_it {
                    return Err(Stand::Unknown(left_behind()));
                }
                let places = self.places(&connection, Some(key)).await.unwrap_or_default();
                Ok(Some(Stand::Busy(places.first_holder())))
            }
            Err(broken) if broken.certain => {
                self.free(&connection, key);
                Err(Stand::Failed(broken.error))
            }
            // The key stays taken here: the server may have given the lock to this connection.
            Err(broken) => {
                connection.end();
                Err(Stand::Unknown(broken.error))
            }
        }
    }

    /// Stands in the server's line; `None` where the wait was called off by somebody else.
    async fn wait_once(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        key: Key,
        told: &mut bool,
    ) -> std::result::Result<Option<Stand>, Stand> {
        let id = entry.claim.id;
        let Some(connection) = self.connection_for(entry, key, Need::Wait(key, id)).await? else {
            return Ok(Some(Stand::Left));
        };
        let mut waiting = pin!(connection.wait(key, entry.reads()));
        let mut outcome = self.until_granted(entry, &connection, key, waiting.as_mut(), told).await;
        if let Waited::Cancelled = outcome {
            // No error takes such a lock back: it may have been granted just before.
            outcome = match connection.has(key).await {
                Ok(true) => Waited::Granted,
                Ok(false) => Waited::Cancelled,
                Err(broken) => Waited::Broken(broken.error),
            };
        }
        let left = entry.has_left();
        match outcome {
            Waited::Granted if left => {
                let given = connection.unlock(key, entry.reads()).await;
                // What called it off may meet the next statement.
                connection.end();
                if given.is_ok() {
                    self.free(&connection, key);
                }
                given.map(|_| Some(Stand::Left)).map_err(|broken| Stand::Unknown(broken.error))
            }
            Waited::Granted => match connection.prove(&self.context.clock).await {
                // The server had this connection once the lock was there.
                Ok(since) => {
                    let stand = self.granted(entry, &connection, key, since).await;
                    if let Stand::Held(on, _, since) = stand {
                        let grant = self.grant(on, since);
                        self.context.events.send(Event::Granted { claim: id, grant });
                    }
                    Ok(Some(stand))
                }
                Err(broken) => {
                    connection.end();
                    Err(Stand::Unknown(broken.error))
                }
            },
            Waited::Cancelled => {
                if left {
                    // It may have been called off twice.
                    connection.end();
                }
                self.free(&connection, key);
                Ok(left.then_some(Stand::Left))
            }
            Waited::Broken(error) => {
                connection.end();
                Err(Stand::Unknown(error))
            }
        }
    }

    /// Waits for the outcome, tells where in line it is, and calls it off once the caller leaves.
    async fn until_granted(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        connection: &Arc<Connection>,
        key: Key,
        mut waiting: Pin<&mut (impl Future<Output = Waited> + Send)>,
        told: &mut bool,
    ) -> Waited {
        let mut pause = LOOK_AGAIN;
        while !entry.has_left() {
            let looking = async {
                let asks = self.take(Need::Look).await.ok()?;
                self.places(&asks, Some(key)).await.ok()?.of(connection.ghost.pid())
            };
            match either(looking, waiting.as_mut()).await {
                Ok(Some(place)) => {
                    *told = true;
                    entry.stand.send_replace(Stand::InLine(place));
                    break;
                }
                Ok(None) => {
                    if let Err(outcome) = either(sleep(pause), waiting.as_mut()).await {
                        return outcome;
                    }
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(outcome) => return outcome,
            }
        }
        if let Err(outcome) = either(entry.until_left(), waiting.as_mut()).await {
            return outcome;
        }
        for _ in 0..CALLS {
            let calling = async {
                if let Ok(asks) = self.take(Need::Look).await {
                    _ = asks.call_off(&connection.ghost).await;
                }
                sleep(self.options.server.request_timeout / 4).await;
            };
            if let Err(outcome) = either(calling, waiting.as_mut()).await {
                return outcome;
            }
        }
        connection.end();
        waiting.await
    }

    /// The server says that the connection has the lock.
    async fn granted(
        self: &Arc<Self>,
        entry: &Arc<Entry>,
        connection: &Arc<Connection>,
        key: Key,
        since: Ticks,
    ) -> Stand {
        let held = Stand::Held(connection.lease, key, since);
        {
            let mut state = self.state();
            // Either it is marked here, or whoever leaves finds it held.
            if !entry.has_left() && Self::has(&mut state, connection) {
                entry.stand.send_replace(held.clone());
                return held;
            }
        }
        match connection.unlock(key, entry.reads()).await {
            Ok(_) => {
                self.free(connection, key);
                Stand::Left
            }
            Err(broken) => {
                connection.end();
                Stand::Unknown(broken.error)
            }
        }
    }

    /// Leaves the line, or gives back.
    pub(super) async fn leave(self: &Arc<Self>, id: ClaimId) -> End {
        let Some(entry) = self.known(id) else {
            return match self.may_be_left(id) {
                true => End::Unknown(left_behind()),
                false => End::NotOurs,
            };
        };
        let held = {
            let mut state = self.state();
            entry.left.send_replace(true);
            let stand = entry.stand.borrow().clone();
            match stand {
                Stand::Held(on, key, _) => {
                    entry.stand.send_replace(Stand::Releasing);
                    Self::begin_release(&mut state, key);
                    Some((on, key))
                }
                _ => None,
            }
        };
        if let Some((on, key)) = held {
            let (opened, entry) = (self.clone(), entry.clone());
            self.context.spawner.spawn(async move { opened.release(&entry, on, key).await });
        }
        let patience = self.options.server.request_timeout * 5 / 4;
        let mut stand = entry.stand.subscribe();
        let pending =
            |stand: &Stand| matches!(stand, Stand::Asking | Stand::InLine(_) | Stand::Releasing);
        let ended = timeout(patience, stand.wait_for(|stand| !pending(stand))).await;
        match ended {
            Ok(Ok(stand)) => match &*stand {
                Stand::Left => End::Freed,
                Stand::Unknown(error) => End::Unknown(error.clone()),
                _ => End::NotOurs,
            },
            _ => {
                let why = format_args!("no answer within {patience:?}");
                End::Unknown(errors::unreachable(&self.options.server.at(), why))
            }
        }
    }

    async fn release(self: Arc<Self>, entry: &Entry, on: LeaseId, key: Key) {
        let connection = self.state().slots.get(&on).map(|slot| slot.connection.clone());
        let stand = match connection {
            None => Stand::Lost,
            Some(connection) => {
                let given = connection.unlock(key, entry.reads()).await;
                connection.holds.fetch_sub(1, Ordering::AcqRel);
                match given {
                    Ok(was) => {
                        self.free(&connection, key);
                        if was { Stand::Left } else { Stand::NotThere }
                    }
                    Err(broken) => {
                        connection.end();
                        Stand::Unknown(broken.error)
                    }
                }
            }
        };
        self.end_release(key);
        self.over(entry, stand);
    }
}
