//! Telling who holds what in a layout of other programs, changing it, and watching.

use std::sync::Arc;
use std::time::Duration;

use super::Foreign;
use crate::engine::redis::dialect::{LatchStep, unsupported};
use crate::engine::redis::opened::Inspects;
use crate::engine::redis::resp::Value;
use crate::engine::redis::{beside, errors};
use crate::engine::{Change, Query, WatchId};
use crate::words::claim::{Ends, Entry, Holder, Mode, Waiter};
use crate::words::error::Result;
use crate::words::guarantee::Warning;
use crate::words::name::{Kind, Name};

/// How much of an identity is shown.
const SHOWN_MAX: usize = 200;

impl Inspects for Foreign {
    async fn look(self: Arc<Self>, query: Query) -> Result<Vec<Entry>> {
        let Query::One(kind, name) = query else {
            return Err(unsupported(format!(
                "layout={} cannot list its names: they are keys like any other",
                self.links.options.layout.as_str()
            )));
        };
        let value = self.links.call(self.dialect.inspect(kind, &name)?).await?;
        let [count, holders, rest @ ..] = value.items() else {
            return Err(errors::garbage(&self.links.options));
        };
        let mut entry = Entry::new(kind, name);
        let count: Option<u64> = count.text().and_then(|text| text.parse().ok());
        match kind {
            Kind::Semaphore => entry.limit = count.and_then(|limit| u16::try_from(limit).ok()),
            _ => entry.count = count,
        }
        entry.holders =
            holders.items().iter().filter_map(|value| holder(value, entry.limit)).collect();
        let waiting = rest.first().map(Value::items).unwrap_or_default();
        entry.waiters = (0..waiting.len())
            .map(|at| Waiter { ahead: u32::try_from(at).ok(), ..Waiter::default() })
            .collect();
        Ok(vec![entry])
    }

    async fn change(self: Arc<Self>, change: Change) -> Result<bool> {
        let call = match &change {
            Change::LatchSet(name, count) => self.dialect.latch(name, LatchStep::Set(*count))?,
            Change::LatchCountDown(name, id) => self.dialect.latch(name, LatchStep::Down(*id))?,
            Change::Force(kind, name, from) => {
                // What was shown of them is what their records say, unless it was cut or escaped.
                let whole = |who: &&str| who.chars().count() < SHOWN_MAX && !who.contains('\\');
                let all: Vec<&str> = from.iter().filter_map(|h| h.label.as_deref()).collect();
                let known = all.len() == from.len() && all.iter().all(whole);
                self.dialect.force(*kind, name, if known { &all } else { &[] })?
            }
            Change::Resize(name, limit) => self.dialect.resize(name, *limit)?,
        };
        let value = self.links.call(call).await?;
        let done = value
            .items()
            .get(1)
            .and_then(Value::unsigned)
            .ok_or_else(|| errors::garbage(&self.links.options))?;
        Ok(done > 0)
    }

    async fn watch(self: Arc<Self>, watch: WatchId, query: Query) -> Result<()> {
        let Query::One(kind, name) = &query else {
            return Err(unsupported(
                "this layout cannot watch names by their beginning: ask about a name that you \
                 know (lockkeeper status NAME)",
            ));
        };
        if let Some(channel) = self.dialect.channel(*kind, name) {
            let key = self.dialect.inspect(*kind, name)?.keys.first().map(str::to_owned);
            self.hear_channel(&channel, &key.unwrap_or_default());
        } else {
            // Looking at it arms the server's word of its next change.
            self.links.call(self.dialect.inspect(*kind, name)?).await?;
        }
        self.watches.add(watch, query);
        if self.watches.must_keep() {
            self.links.context.spawner.spawn(self.clone().keep_watching());
        }
        Ok(())
    }

    async fn other_layouts(self: Arc<Self>, name: Name) -> Result<Vec<Warning>> {
        let key = self.dialect.inspect(Kind::Lock, &name)?.keys.first().map(str::to_owned);
        beside::look(&self.links, &key.unwrap_or_default(), &name).await
    }

    async fn clear_probe(self: Arc<Self>, name: Name) -> Result<Vec<Warning>> {
        if let Some(call) = self.dialect.clear(&name) {
            self.links.call(call).await?;
        }
        let Some(channel) = self.dialect.waits_at(&name) else { return Ok(Vec::new()) };
        // Nobody else of this process has a channel of this name.
        let key = self.dialect.inspect(Kind::Lock, &name)?.keys.first().map(str::to_owned);
        let subscribed = self.links.main.subscribe(&channel, &key.unwrap_or_default());
        let listens = self.heard(subscribed).await;
        self.links.main.unsubscribe(&channel);
        Ok(listens.err().iter().map(errors::listens_to_nobody).collect())
    }

    fn unwatch(&self, watch: WatchId) {
        if let Some(Query::One(kind, name)) = self.watches.remove(watch, |_| ())
            && let Some(channel) = self.dialect.channel(kind, &name)
        {
            self.hush_channel(&channel);
        }
    }
}

impl Foreign {
    async fn keep_watching(self: Arc<Self>) {
        loop {
            let ids = self.watches.round().await;
            if ids.is_empty() || self.links.is_closed() {
                return;
            }
            self.links.changed(ids);
        }
    }

    /// Tells the watches of the names that `about` picks.
    pub(super) fn changed(&self, about: impl Fn(Kind, &Name) -> bool) {
        self.links.changed(
            self.watches
                .picked(|query| matches!(query, Query::One(kind, name) if about(*kind, name))),
        );
    }
}

/// One holder: whoever wrote the record is shown as the layout names it.
fn holder(value: &Value, limit: Option<u16>) -> Option<Holder> {
    let [who, mode, count, rest] = value.items() else { return None };
    let mode = match mode.text()? {
        "x" => Some(Mode::Exclusive),
        "s" => Some(Mode::Shared),
        _ => count
            .text()
            .and_then(|count| count.parse().ok())
            .zip(limit)
            .map(|(count, limit)| Mode::Permits { count, limit }),
    };
    let left = rest.integer().and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
    Some(Holder { label: shown(who), mode, ends: ends(mode, left), ..Holder::default() })
}

/// How a hold ends whose key has so long to live: a lock that has no time to live stays.
pub(super) fn ends(mode: Option<Mode>, left: Option<Duration>) -> Option<Ends> {
    let stays = (mode == Some(Mode::Exclusive)).then_some(Ends::Never);
    left.map(Ends::Lease).or(stays)
}

/// An identity that others wrote, fit to be shown; nothing when there is none.
pub(super) fn shown(who: &Value) -> Option<String> {
    let bytes = who.bytes().filter(|bytes| !bytes.is_empty())?;
    Some(
        String::from_utf8_lossy(bytes)
            .chars()
            .flat_map(char::escape_debug)
            .take(SHOWN_MAX)
            .collect(),
    )
}
