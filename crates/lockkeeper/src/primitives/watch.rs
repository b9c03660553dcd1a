//! Following what an engine knows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::{Answer, Query, WatchId};
use crate::keeper::Keeper;
use crate::words::claim::{Ends, Entry};
use crate::words::error::Result;

/// The net under a change that was not told.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// What changes under a prefix or at a name, as whole states. Dropping it ends the watch.
pub struct Watch {
    keeper: Arc<Keeper>,
    id: WatchId,
    query: Query,
    changed: Arc<Notify>,
    /// What was told last, and whether that was all.
    last: Option<(Vec<Entry>, bool)>,
}

impl Watch {
    pub(crate) async fn new(keeper: Arc<Keeper>, query: Query) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        keeper.check_open()?;
        let id = WatchId(NEXT.fetch_add(1, Ordering::Relaxed));
        let changed = Arc::new(Notify::new());
        keeper.add_watch(id, changed.clone());
        let watch = Self { keeper, id, query, changed, last: None };
        let started = match watch.keeper.engine.watch(id, &watch.query) {
            Answer::Later(started) => {
                let keeper = watch.keeper.clone();
                Answer::later(async move {
                    let started = started.await;
                    // Its caller left before it had begun, so that there was nothing to end yet
                    // (R5).
                    if !keeper.has_watch(id) {
                        keeper.engine.unwatch(id);
                    }
                    started
                })
            }
            now => now,
        };
        watch.keeper.answer(started).await?.map_err(|e| e.engine(watch.keeper.facts.engine))?;
        Ok(watch)
    }

    /// Waits until something may have changed since the last hint.
    pub(crate) async fn hint(&mut self) -> Result<()> {
        self.keeper.within(LOOK_EVERY, self.changed.notified()).await;
        self.keeper.check_open()
    }

    /// The state now at the first call, and after that whenever it has changed.
    ///
    /// # Errors
    /// `Unreachable`, `Refused`, `Closed`. Where names are kept by several servers and one does not
    /// answer, the error has what the others told ([`Error::partial`](crate::Error::partial)), and
    /// the watch goes on: the next call waits for the next change.
    ///
    /// # Cancel safety
    /// Cancel safe: a change that was not fetched is fetched by the next call.
    pub async fn next(&mut self) -> Result<Vec<Entry>> {
        loop {
            if self.last.is_some() {
                self.keeper.check_open()?;
                self.keeper.within(LOOK_EVERY, self.changed.notified()).await;
                self.keeper.check_open()?;
            }
            let told = self.keeper.read(&self.query).await;
            let now = match &told {
                Ok(entries) => (entries.clone(), true),
                Err(error) => match error.partial() {
                    Some(entries) => (entries.to_vec(), false),
                    None => return told,
                },
            };
            if self.last.as_ref().is_none_or(|last| last.1 != now.1 || !same(&last.0, &now.0)) {
                self.last = Some(now);
                return told;
            }
        }
    }
}

/// Equal but for the time that leases have left, which always changes.
fn same(one: &[Entry], other: &[Entry]) -> bool {
    let timeless = |entries: &[Entry]| -> Vec<Entry> {
        let mut entries = entries.to_vec();
        for holder in entries.iter_mut().flat_map(|e| e.holders.iter_mut()) {
            if let Some(Ends::Lease(left)) = &mut holder.ends {
                *left = Duration::ZERO;
            }
        }
        entries
    };
    timeless(one) == timeless(other)
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.keeper.remove_watch(self.id);
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("query", &self.query).finish_non_exhaustive()
    }
}
