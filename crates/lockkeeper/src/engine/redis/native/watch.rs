//! Watching: one name by a key of its own, every name of a beginning by a connection of its own.
//!
//! Whoever watches a name puts `RECORD:watch:DB` there for 15 s, again at every round, with a flag
//! beside the last number of that name, and listens to its channel. The scripts look at the key and
//! tell of the change: it is in the slot of the record, and 15 s after the last watcher has gone
//! nobody is told any more.
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
use crate::engine::redis::client::lane::{Ears, Lane, To};
use crate::engine::redis::client::node::Node;
use crate::engine::redis::errors;
use crate::engine::redis::name::last;
use crate::engine::redis::resp::{Command, Value};
use crate::engine::redis::script::{Call, Which};
use crate::engine::redis::together::all;
use crate::engine::{Query, WatchId};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::{Kind, Name};

/// How long a name is told of without a sign of a watcher; one is given at every round.
const WATCH_LIVES: Duration = Duration::from_secs(15);
/// A renewal changes a key as much as a grant does, and whoever watches a beginning looks through
/// all names: after one look the next one is so much later at least.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The connection that hears of every key.
pub(super) struct Tracker {
    lane: Lane,
    stirred: Arc<Stirred>,
}

/// The watches to be told that something changed.
#[derive(Default)]
struct Stirred {
    watches: Mutex<BTreeSet<WatchId>>,
    some: Notify,
    /// Somebody looks: what a node does from its first connection on is news.
    begun: AtomicBool,
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
                if let Some(subscribed) = self
                    .links
                    .main
                    .subscribe(&self.watch_of(*kind, name), &self.watch_of(*kind, name))
                    && let Ok(Ok((_, Value::Error(text)))) = subscribed.await
                {
                    return Err(errors::server(&self.links.options, "SUBSCRIBE", &text));
                }
                self.flag([(*kind, name.clone())]).await
            }
            Query::Prefix(_) => {
                let (lane, stirred) = self.tracking()?;
                // It is answered once the server knows of what to tell.
                if self.ping(&lane).await.is_err() {
                    // The server may let in no more connections: then the rounds are all there is,
                    // until it does.
                    self.ping(&self.links.main).await?;
                }
                // A node that did not answer tells nothing until it does.
                stirred.begun.store(true, Ordering::Release);
                Ok(())
            }
        }
    }

    /// Waits until every node has answered that does; one is enough.
    async fn ping(&self, lane: &Lane) -> Result<()> {
        let nodes = lane.nodes();
        let each = nodes
            .iter()
            .map(|node| self.links.command_at(lane, *node, "PING", Command::new(["PING"])));
        let answers = all(each.collect()).await;
        match answers.iter().any(Result::is_ok) {
            true => Ok(()),
            false => answers.into_iter().next().map_or(Ok(()), |answer| answer.map(drop)),
        }
    }

    fn watch_of(&self, kind: Kind, name: &Name) -> String {
        self.keys.watch(&self.keys.record(kind, name))
    }

    /// Says on names that somebody watches them, so that the scripts tell of them.
    async fn flag(&self, names: impl IntoIterator<Item = (Kind, Name)>) -> Result<()> {
        let lives = WATCH_LIVES.as_millis().to_string();
        let mut commands = Vec::new();
        for (kind, name) in names {
            let record = self.keys.record(kind, &name);
            let key = self.keys.watch(&record);
            let command = Command::new(["SET", &key, "1", "PX", &lives]);
            commands.push((To::Key(key), command));
            // A latch has no number, and each of its scripts looks.
            if kind != Kind::Latch {
                // Each is about one key, so that both are done while their slot is on its way.
                let key = last(&record);
                let (keys, arguments) = ([&key].into(), [&lives].into());
                let call = Call { script: Which::Watch, keys, arguments };
                // It is short, and one of many in a message is not asked for a second time.
                commands.push((To::Key(key), call.in_full()));
            }
        }
        self.links.commands(&self.links.main, "EVAL", commands).await
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
    fn tracking(self: &Arc<Self>) -> Result<(Lane, Arc<Stirred>)> {
        let mut tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner);
        if self.links.is_closed() {
            return Err(Error::new(ErrorKind::Closed, "the engine was closed"));
        }
        if let Some(tracker) = &*tracker {
            return Ok((tracker.lane.clone(), tracker.stirred.clone()));
        }
        let stirred = Arc::new(Stirred::default());
        let ears = Stirs { native: Arc::downgrade(self), stirred: stirred.clone() };
        let channel = format!("{}:watch", self.channel);
        let lane = self.links.tracking(self.keys.everything(), &channel, Arc::new(ears));
        let passing_on = pass_on(Arc::downgrade(self), stirred.clone());
        self.links.context.spawner.spawn(passing_on);
        *tracker = Some(Tracker { lane: lane.clone(), stirred: stirred.clone() });
        Ok((lane, stirred))
    }

    /// Nobody watches a beginning any more, or nobody watches anything.
    pub(super) fn end_tracking(&self) {
        let tracker = self.tracker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(tracker) = tracker {
            tracker.stirred.over.store(true, Ordering::Release);
            tracker.stirred.some.notify_one();
            tracker.lane.close();
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

/// What the connection that hears of every key brings.
struct Stirs {
    native: Weak<Native>,
    stirred: Arc<Stirred>,
}

impl Stirs {
    /// Whoever watches a beginning is to look again.
    fn all(&self) {
        if let Some(native) = self.native.upgrade() {
            self.stirred.add(native.watches.picked(by_beginning));
        }
    }
}

impl Ears for Stirs {
    fn push(&self, _: Node, _: u64, items: Vec<Value>) {
        if let Some(native) = self.native.upgrade() {
            self.stirred.add(native.stirred(&items));
        }
    }

    fn fresh(&self, _: Node) {}

    fn up(&self, _: Node, _: Option<(u64, Ticks)>, again: bool) {
        // What changed while it was down nobody was told.
        if again || self.stirred.begun.load(Ordering::Acquire) {
            self.all();
        }
    }

    #[cfg(feature = "cluster")]
    fn down(&self, _: Node) {}

    #[cfg(feature = "cluster")]
    fn moved(&self, _: &dyn Fn(&str) -> bool) {
        self.all();
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
