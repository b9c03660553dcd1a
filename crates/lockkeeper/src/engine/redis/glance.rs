//! Telling who holds what in a layout of other programs, changing it, and watching.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::dialect::unsupported;
use super::errors;
use super::foreign::Inner;
use super::resp::Value;
use super::script::Call;
use super::wire::either;
use crate::claim::{Entry, Holder, Mode};
use crate::engine::{Change, Event, Query, WatchId};
use crate::error::Result;
use crate::name::{Kind, Name};

/// A lease that ends by itself tells nobody: whoever watches looks again after this.
const WATCH_EVERY: Duration = Duration::from_secs(5);

impl Inner {
    async fn call(&self, call: Call) -> Result<Value> {
        let started = self.main.start(&[call.by_name()]);
        self.run(&self.main, started, &call, self.options.connect_timeout).await
    }

    /// Who holds one name.
    pub(super) async fn look(self: Arc<Self>, query: Query) -> Result<Vec<Entry>> {
        let Query::One(kind, name) = query else {
            return Err(unsupported(format!(
                "layout={} cannot list its names: they are keys like any other",
                self.options.layout.as_str()
            )));
        };
        let value = self.call(self.dialect.inspect(kind, &name)?).await?;
        let [count, holders] = value.items() else { return Err(errors::garbage(&self.options)) };
        let mut entry = Entry::new(kind, name);
        entry.count = count.text().and_then(|text| text.parse().ok());
        entry.holders = holders.items().iter().filter_map(holder).collect();
        Ok(vec![entry])
    }

    /// Changes a latch, or takes a lock away.
    pub(super) async fn change(self: Arc<Self>, change: Change) -> Result<bool> {
        let call = match &change {
            Change::LatchSet(name, count) => self.dialect.latch(name, Some(*count))?,
            Change::LatchCountDown(name, _) => self.dialect.latch(name, None)?,
            Change::Force(kind, name) => self.dialect.force(*kind, name)?,
            Change::Resize(..) => return Err(unsupported("this layout does not store a limit: use layout=native")),
        };
        let value = self.call(call).await?;
        let done = value.items().get(1).and_then(Value::unsigned).ok_or_else(|| errors::garbage(&self.options))?;
        Ok(done > 0)
    }

    /// Watches one name.
    pub(super) async fn watch(self: Arc<Self>, watch: WatchId, query: Query) -> Result<()> {
        let Query::One(kind, name) = &query else {
            return Err(unsupported("this layout cannot watch names by their beginning: use layout=native"));
        };
        if let Some(channel) = self.dialect.channel(*kind, name) {
            self.hear_channel(&channel);
        } else {
            // Looking at it arms the server's word of its next change.
            self.call(self.dialect.inspect(*kind, name)?).await?;
        }
        let first = {
            let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
            watches.insert(watch, query);
            watches.len() == 1
        };
        if first {
            self.context.spawner.spawn(self.clone().keep_watching());
        }
        Ok(())
    }

    pub(super) fn unwatch(&self, watch: WatchId) {
        let gone = self.watches.lock().unwrap_or_else(PoisonError::into_inner).remove(&watch);
        if let Some(Query::One(kind, name)) = gone
            && let Some(channel) = self.dialect.channel(kind, &name)
        {
            self.hush_channel(&channel);
        }
        self.watches_changed.notify_one();
    }

    async fn keep_watching(self: Arc<Self>) {
        loop {
            _ = either(sleep(WATCH_EVERY), self.watches_changed.notified()).await;
            let ids: Vec<WatchId> = self.watches.lock().unwrap_or_else(PoisonError::into_inner).keys().copied().collect();
            if ids.is_empty() || self.closed.load(Ordering::Acquire) {
                return;
            }
            for watch in ids {
                self.context.events.send(Event::Changed { watch });
            }
        }
    }

    /// Tells the watches of the names that `about` picks.
    pub(super) fn changed(&self, about: impl Fn(Kind, &Name) -> bool) {
        let told: Vec<WatchId> = {
            let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
            watches.iter().filter(|(_, query)| matches!(query, Query::One(kind, name) if about(*kind, name))).map(|(id, _)| *id).collect()
        };
        for watch in told {
            self.context.events.send(Event::Changed { watch });
        }
    }
}

/// One holder: whoever wrote the record is shown as the layout names it.
fn holder(value: &Value) -> Option<Holder> {
    let [who, mode, _count, rest] = value.items() else { return None };
    let mode = match mode.text()? {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => None,
    };
    let who = String::from_utf8_lossy(who.bytes()?).chars().flat_map(char::escape_debug).take(200).collect();
    let expires_in = rest.integer().and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    Some(Holder { label: Some(who), mode, expires_in, ..Holder::default() })
}
