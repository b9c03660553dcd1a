//! Watching: one name by a key of its own, every name of a beginning by a connection of its own.
//!
//! Whoever watches a name puts `RECORD:watch:DB` there for 15 s, again at every round, and listens
//! to the channel of that name. The scripts look at the key and tell of the change: it is in the
//! slot of the record, and 15 s after the last watcher has gone nobody is told any more.
//!
//! A beginning of names has no key that the scripts could look at. The server tells of every key of
//! the namespace that changes (CLIENT TRACKING … BCAST), on a connection that is there for as long
//! as somebody watches so. That connection listens to a channel, too: as a subscriber's, what waits
//! to be read there is limited by the server (client-output-buffer-limit pubsub, 32 MB), which ends
//! it when a stopped process does not read. Everything is looked at again after a reconnect. Where
//! tracking is denied, and while there is no second connection to be had, the rounds are all there
//! is.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::Native;
use crate::engine::redis::errors;
use crate::engine::redis::resp::{Command, Value};
use crate::engine::redis::wire::{Link, Tracking};
use crate::engine::{Query, WatchId};
use crate::error::{Error, ErrorKind, Result};
use crate::name::{Kind, Name};

/// How long a name is told of without a sign of a watcher; one is given at every round.
const WATCH_LIVES: Duration = Duration::from_secs(15);
/// A renewal changes a key as much as a grant does, and whoever watches a beginning looks through
/// all names: after one look the next one is so much later at least.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The connection that hears of every key.
pub(super) struct Tracker {
    link: Arc<Link>,
    stirred: Arc<Stirred>,
}

/// The watches to be told that something changed.
#[derive(Default)]
struct Stirred {
    watches: Mutex<BTreeSet<WatchId>>,
    some: Notify,
    over: AtomicBool,
}

impl Stirred {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<WatchId>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, watches: Vec<WatchId>) {
        if !watches.is_empty() {
            self.lock().extend(watches);
            self.some.notify_one();
        }
    }
}

impl Native {
    /// Watches from now on: what is read after this has returned misses nothing.
    pub(super) async fn begin_watching(
        self: Arc<Self>,
        watch: WatchId,
        query: Query,
    ) -> Result<()> {
        self.watches.add(watch, query.clone());
        if let Err(error) = self.reach(&query).await {
            self.end_watching(watch);
            return Err(error);
        }
        if self.watches.must_keep() {
            self.links.context.spawner.spawn(self.clone().keep_watching());
        }
        Ok(())
    }

    pub(super) fn end_watching(&self, watch: WatchId) {
        self.watches.remove(watch, |query| match query {
            Query::One(kind, name) => self.links.main.unsubscribe(&self.watch_of(*kind, name)),
            Query::Prefix(_) => self.end_tracking(),
        });
    }

    async fn reach(self: &Arc<Self>, query: &Query) -> Result<()> {
        match query {
            Query::One(kind, name) => {
                if let Some(subscribed) = self.links.main.subscribe(&self.watch_of(*kind, name))
                    && let Ok(Ok((_, Value::Error(text)))) = subscribed.await
                {
                    return Err(errors::server(&self.links.options, "SUBSCRIBE", &text));
                }
                self.flag([(*kind, name.clone())]).await
            }
            Query::Prefix(_) => {
                let ping = Command::new(["PING"]);
                let link = self.tracking()?;
                // It is answered once the server knows of what to tell.
                let Err(_) = self.links.command(&link, "PING", ping.clone()).await else {
                    return Ok(());
                };
                // The server may let in no more connections: then the rounds are all there is,
                // until it does.
                self.links.command(&self.links.main, "PING", ping).await.map(drop)
            }
        }
    }

    fn watch_of(&self, kind: Kind, name: &Name) -> String {
        self.keys.watch(&self.keys.record(kind, name))
    }

    /// Says on names that somebody watches them, so that the scripts tell of them.
    async fn flag(&self, names: impl IntoIterator<Item = (Kind, Name)>) -> Result<()> {
        let lives = WATCH_LIVES.as_millis().to_string();
        let commands = names.into_iter().map(|(kind, name)| {
            let key = self.watch_of(kind, &name);
            Command::new(["SET", &key, "1", "PX", &lives])
        });
        self.links.commands(&self.links.main, "SET", commands.collect()).await
    }

    /// A lease that ends by itself tells nobody, and a message can be lost: so everybody looks
    /// again now and then.
    async fn keep_watching(self: Arc<Self>) {
        loop {
            let ids = self.watches.round().await;
            if ids.is_empty() || self.links.is_closed() {
                return;
            }
            // When it fails, the next round tries again.
            _ = self.flag(self.watches.names()).await;
            self.links.changed(ids);
        }
    }

    /// A record changed.
    pub(super) fn changed(&self, record: &str) {
        let Some((kind, name)) = self.keys.parse(record) else { return };
        let about = |query: &Query| matches!(query, Query::One(k, n) if *k == kind && *n == name);
        self.links.changed(self.watches.picked(about));
    }

    /// The connection that hears of every key, made by the first who needs it.
    fn tracking(self: &Arc<Self>) -> Result<Arc<Link>> {
        let mut tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.links.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "the engine was closed"));
        }
        if let Some(tracker) = &*tracker {
            return Ok(tracker.link.clone());
        }
        let stirred = Arc::new(Stirred::default());
        let (native, told) = (Arc::downgrade(self), stirred.clone());
        let hear = move |_, items: Vec<Value>| {
            if let Some(native) = native.upgrade() {
                told.add(native.stirred(&items));
            }
        };
        let link = self.links.another("watch", Arc::new(hear));
        link.track(Tracking::Prefix(self.keys.everything()));
        _ = link.subscribe(&format!("{}:watch", self.channel));
        let (native, told, began) = (Arc::downgrade(self), stirred.clone(), AtomicBool::new(false));
        let tell = move |up| {
            // What changed while it was down nobody was told.
            if up
                && began.swap(true, Ordering::Relaxed)
                && let Some(native) = native.upgrade()
            {
                told.add(native.watches.picked(by_beginning));
            }
        };
        let spawner = &self.links.context.spawner;
        spawner.spawn(link.clone().keep(None::<std::future::Pending<String>>, tell));
        spawner.spawn(pass_on(Arc::downgrade(self), stirred.clone()));
        *tracker = Some(Tracker { link: link.clone(), stirred });
        Ok(link)
    }

    /// Nobody watches a beginning any more, or nobody watches anything.
    pub(super) fn end_tracking(&self) {
        let tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tracker) = tracker {
            tracker.stirred.over.store(true, Ordering::Release);
            tracker.stirred.some.notify_one();
            tracker.link.close();
        }
    }

    /// The watches of a beginning that a push is about.
    fn stirred(&self, items: &[Value]) -> Vec<WatchId> {
        match items {
            [word, keys] if word.text() == Some("invalidate") => {
                let Value::Array(keys) = keys else {
                    // Everything was flushed.
                    return self.watches.picked(by_beginning);
                };
                let names = keys.iter().filter_map(|key| Some(self.keys.parse(key.text()?)?.1));
                let names: Vec<Name> = names.collect();
                let begins = |prefix: &str| names.iter().any(|n| n.as_str().starts_with(prefix));
                self.watches
                    .picked(|query| matches!(query, Query::Prefix(prefix) if begins(prefix)))
            }
            _ => Vec::new(),
        }
    }
}

fn by_beginning(query: &Query) -> bool {
    matches!(query, Query::Prefix(_))
}

/// Tells whoever watches a beginning, once for all that changes within a short time.
async fn pass_on(native: Weak<Native>, stirred: Arc<Stirred>) {
    loop {
        stirred.some.notified().await;
        let Some(native) = native.upgrade().filter(|_| !stirred.over.load(Ordering::Acquire))
        else {
            return;
        };
        let watches = std::mem::take(&mut *stirred.lock());
        native.links.changed(watches.into_iter().collect());
        drop(native);
        sleep(LOOK_AGAIN).await;
    }
}
