//! Watches: what is looked at is asked for now and then, so that those who lock need not tell.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::doing::Opened;
use super::errors::Broken;
use crate::engine::{Context, Event, Query, WatchId};
use crate::words::error::Result;

/// How often is asked whether something changed.
const LOOK: Duration = Duration::from_millis(250);

/// Who watches what.
#[derive(Default)]
pub(super) struct Watches(Mutex<State>);

#[derive(Default)]
struct State {
    watched: Vec<Watched>,
    runs: bool,
}

#[derive(Clone)]
struct Watched {
    id: WatchId,
    query: Query,
    last: Option<String>,
}

/// Whose watches they are.
pub(super) trait Looks: Send + Sync + 'static {
    fn watches(&self) -> &Watches;

    fn context(&self) -> &Context;

    /// Something that changes whenever the answer to the question does.
    ///
    /// # Errors
    /// Outside: there is no connection; inside: this one cannot be asked about.
    fn state(
        &self,
        query: &Query,
    ) -> impl Future<Output = Result<std::result::Result<String, Broken>>> + Send;
}

impl Watches {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks from now on.
    pub(super) fn begin(of: &Arc<impl Looks>, id: WatchId, query: Query) {
        let mut state = of.watches().state();
        state.watched.push(Watched { id, query, last: None });
        if std::mem::replace(&mut state.runs, true) {
            return;
        }
        drop(state);
        let looks = of.clone();
        of.context().spawner.spawn(async move { watch(&*looks).await });
    }

    pub(super) fn end(&self, id: WatchId) {
        self.state().watched.retain(|watched| watched.id != id);
    }

    /// Ends all of them.
    pub(super) fn end_all(&self) {
        self.state().watched.clear();
    }
}

async fn watch(of: &impl Looks) {
    loop {
        let watched = {
            let mut state = of.watches().state();
            if state.watched.is_empty() {
                state.runs = false;
                return;
            }
            state.watched.clone()
        };
        for one in watched {
            // Out of reach: the next look tells.
            let Ok(asked) = of.state(&one.query).await else { break };
            // One that cannot be asked about is no reason to overlook the others.
            let Ok(now) = asked else { continue };
            let mut state = of.watches().state();
            let Some(watched) = state.watched.iter_mut().find(|other| other.id == one.id) else {
                continue;
            };
            let changed = watched.last.replace(now.clone()) != Some(now);
            drop(state);
            // The first look, too: it may have changed since the watch was asked for.
            if changed {
                of.context().events.send(Event::Changed { watch: one.id });
            }
        }
        sleep(LOOK).await;
    }
}

impl Looks for Opened {
    fn watches(&self) -> &Watches {
        &self.watches
    }

    fn context(&self) -> &Context {
        &self.link.context
    }

    async fn state(&self, query: &Query) -> Result<std::result::Result<String, Broken>> {
        let store = self.store().await?;
        Ok(match query {
            Query::One(kind, name) => store.state(Some(*kind), name.as_str()).await,
            Query::Prefix(prefix) => store.state(None, prefix).await,
        })
    }
}
