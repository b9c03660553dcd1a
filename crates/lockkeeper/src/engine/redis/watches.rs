//! Who watches what, and when everybody looks again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::engine::either::either;
use crate::engine::{Query, WatchId};
use crate::words::name::{Kind, Name};

/// A lease that ends by itself tells nobody, and a message can be lost: whoever watches looks again
/// after this.
const WATCH_EVERY: Duration = Duration::from_secs(5);

/// What is watched.
#[derive(Default)]
pub(super) struct Watches {
    state: Mutex<State>,
    /// Nobody watches any more, or something may have been missed.
    sooner: Notify,
}

#[derive(Default)]
struct State {
    by_id: BTreeMap<WatchId, Query>,
    /// A task calls [`Watches::round`].
    kept: bool,
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches from now on.
    pub(super) fn add(&self, watch: WatchId, query: Query) {
        self.lock().by_id.insert(watch, query);
    }

    /// Whether the caller has to start the task that makes the rounds.
    pub(super) fn must_keep(&self) -> bool {
        !std::mem::replace(&mut self.lock().kept, true)
    }

    /// Stops watching, and tells what it was; `last` is called when nobody watches that name, or
    /// any beginning of names, any more, and before anybody can again.
    pub(super) fn remove(&self, watch: WatchId, last: impl FnOnce(&Query)) -> Option<Query> {
        let mut state = self.lock();
        let gone = state.by_id.remove(&watch);
        if state.by_id.is_empty() {
            self.sooner.notify_one();
        }
        let by_prefix = |query: &Query| matches!(query, Query::Prefix(_));
        if let Some(gone) = &gone
            && !state
                .by_id
                .values()
                .any(|query| query == gone || by_prefix(query) && by_prefix(gone))
        {
            last(gone);
        }
        gone
    }

    /// Changes may have gone by unheard: the next round begins now.
    pub(super) fn missed(&self) {
        if self.lock().kept {
            self.sooner.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.lock().by_id.clear();
        self.sooner.notify_one();
    }

    /// The names that are watched as such, each once.
    pub(super) fn names(&self) -> BTreeSet<(Kind, Name)> {
        let state = self.lock();
        let names = state.by_id.values().filter_map(|query| match query {
            Query::One(kind, name) => Some((*kind, name.clone())),
            Query::Prefix(_) => None,
        });
        names.collect()
    }

    /// The watches whose query `about` picks.
    pub(super) fn picked(&self, about: impl Fn(&Query) -> bool) -> Vec<WatchId> {
        self.lock().by_id.iter().filter(|(_, query)| about(query)).map(|(id, _)| *id).collect()
    }

    /// Waits until it is time to look again: who does. Nobody: the rounds are over.
    pub(super) async fn round(&self) -> Vec<WatchId> {
        _ = either(sleep(WATCH_EVERY), self.sooner.notified()).await;
        let mut state = self.lock();
        state.kept = !state.by_id.is_empty();
        state.by_id.keys().copied().collect()
    }
}
