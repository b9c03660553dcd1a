//! Telling who holds what, and changing what is no lock.

use std::sync::Arc;
use std::time::Duration;

use super::Native;
use crate::engine::redis::name::{last, line};
use crate::engine::redis::opened::Inspects;
use crate::engine::redis::record;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::{Call, Which};
use crate::engine::redis::{beside, errors};
use crate::engine::{Change, Query, WatchId};
use crate::words::claim::Entry;
use crate::words::error::Result;
use crate::words::guarantee::Warning;
use crate::words::name::{Kind, Name};

/// How many waiters of one name are told of.
const WAITERS_SHOWN: u64 = 1000;
/// The longest text that a script of ours writes: label and value of 1 KiB each, escaped, and the
/// rest.
const TEXT_BYTES_MAX: u64 = 16 << 10;
/// The most fields of a record: one for each permit, and the summary.
const FIELDS_MAX: u64 = 1 + u16::MAX as u64;
/// How many bytes of records one answer holds before the rest of its names is asked for in another
/// one.
const RECORD_BYTES_ENOUGH: u64 = 1 << 20;

impl Inspects for Native {
    async fn look(self: Arc<Self>, query: Query) -> Result<Vec<Entry>> {
        match query {
            Query::One(kind, name) => self.look_at(&[(kind, name)]).await,
            Query::Prefix(prefix) => self.list(&prefix).await,
        }
    }

    async fn change(self: Arc<Self>, change: Change) -> Result<bool> {
        let value = match &change {
            Change::LatchSet(name, count) => {
                self.about(Which::Latch, Kind::Latch, name, vec!["set".into(), count.to_string()])
                    .await?
            }
            Change::LatchCountDown(name, id) => {
                self.about(Which::Latch, Kind::Latch, name, vec!["down".into(), id.to_string()])
                    .await?
            }
            Change::Force(kind, name, from) => {
                let claims = from.iter().filter_map(|holder| holder.claim);
                let claims = claims.map(|claim| claim.to_string()).collect();
                self.about(Which::Force, *kind, name, claims).await?
            }
            Change::Resize(name, limit) => {
                self.about(Which::Resize, Kind::Semaphore, name, vec![limit.to_string()]).await?
            }
        };
        let done = value
            .items()
            .get(2)
            .and_then(Value::unsigned)
            .ok_or_else(|| errors::garbage(&self.links.options))?;
        Ok(done > 0)
    }

    async fn watch(self: Arc<Self>, watch: WatchId, query: Query) -> Result<()> {
        self.begin_watching(watch, query).await
    }

    async fn other_layouts(self: Arc<Self>, name: Name) -> Result<Vec<Warning>> {
        beside::look(&self.links, name.as_str(), &name).await
    }

    async fn clear_probe(self: Arc<Self>, name: Name) -> Result<Vec<Warning>> {
        let value = self.about(Which::Clear, Kind::Lock, &name, Vec::new()).await?;
        let refused = value.items().get(1).and_then(Value::text).filter(|why| !why.is_empty());
        Ok(refused.map(|_| errors::unheard(&self.links.options)).into_iter().collect())
    }

    fn unwatch(&self, watch: WatchId) {
        self.end_watching(watch);
    }
}

impl Native {
    /// Runs one script about one name.
    async fn about(
        &self,
        script: Which,
        kind: Kind,
        name: &Name,
        arguments: Vec<String>,
    ) -> Result<Value> {
        let keys = self.recipe().keys(&self.keys.record(kind, name));
        self.links.call(Call { script, keys, arguments: arguments.into() }).await
    }

    /// Tells of the first name at least, and of as many behind it as one answer holds.
    pub(super) async fn look_at(&self, names: &[(Kind, Name)]) -> Result<Vec<Entry>> {
        let value = self.links.call(self.inspection(names)).await?;
        self.told(names, &value)
    }

    /// Asks about these names.
    pub(super) fn inspection(&self, names: &[(Kind, Name)]) -> Call {
        let limits = [WAITERS_SHOWN, TEXT_BYTES_MAX, FIELDS_MAX, RECORD_BYTES_ENOUGH];
        let mut call = Call::new(Which::Inspect);
        call.arguments.extend(limits.map(|limit| limit.to_string()));
        for (kind, name) in names {
            let record = self.keys.record(*kind, name);
            call.keys.extend([record.clone(), line(&record), last(&record)]);
        }
        call
    }

    /// What was answered about these names, or about the first of them.
    pub(super) fn told(&self, names: &[(Kind, Name)], value: &Value) -> Result<Vec<Entry>> {
        let (now_us, each) = match value.items().split_first() {
            Some((now, each)) if each.is_empty() == names.is_empty() => {
                (now.unsigned().unwrap_or(0), each)
            }
            _ => return Err(errors::garbage(&self.links.options)),
        };
        let told = names.iter().zip(each);
        Ok(told
            .map(|((kind, name), found)| {
                entry(*kind, name, &self.keys.record(*kind, name), now_us, found)
            })
            .collect())
    }
}

/// What `inspect.lua` found about one name.
fn entry(kind: Kind, name: &Name, record: &str, now_us: u64, found: &Value) -> Entry {
    let mut entry = Entry::new(kind, name.clone());
    let [record_type, value, left, places, last, trouble] = found.items() else { return entry };
    let wrong = trouble.text().filter(|words| !words.is_empty()).map(str::to_owned);
    if let Some(wrong) = wrong.or_else(|| misread(kind, record, record_type, value, places, last)) {
        entry.unreadable = Some(errors::of_our_script(&wrong).into());
        return entry;
    }
    if kind == Kind::Semaphore {
        entry.limit = last.text().and_then(record::limit_in);
    }
    let limit = entry.limit.unwrap_or(0);
    match (record_type.text(), kind) {
        (Some("string"), Kind::Latch) => {
            entry.count = value.text().and_then(|v| v.split(' ').nth(1)?.parse().ok())
        }
        (Some("string"), _) => {
            let text = value.text().unwrap_or_default();
            let whole = record::ttl_of(text) + record::delay_of(text);
            // Without a time to live, or with a longer one than it began with, the next script
            // gives it this one.
            let left = left
                .unsigned()
                .map(Duration::from_millis)
                .filter(|left| *left <= whole)
                .unwrap_or(whole);
            let left = left.saturating_sub(record::delay_of(text));
            entry
                .holders
                .extend(record::holder(text, kind, limit, Some(left)).filter(|_| !left.is_zero()));
        }
        (Some("hash"), _) => {
            for (deadline_us, text) in several(value) {
                let left = Duration::from_micros(deadline_us.saturating_sub(now_us));
                entry.holders.extend(
                    record::holder(text, kind, limit, Some(left)).filter(|_| !left.is_zero()),
                );
            }
            entry.holders.sort_by_key(|h| (h.since, h.claim));
        }
        _ => {}
    }
    if kind == Kind::Latch {
        return entry;
    }
    // In the order of joining, each with the end of its sign of life.
    for (place, until) in places.pairs() {
        let lives =
            until.text().and_then(|u| u.parse::<f64>().ok()).is_some_and(|u| u > now_us as f64);
        let Some(text) = place.text().filter(|_| lives) else { continue };
        let ahead = u32::try_from(entry.waiters.len()).unwrap_or(u32::MAX);
        entry.waiters.extend(record::waiter(text, limit, ahead));
    }
    entry
}

/// The holders of a hash: deadline and text.
fn several(value: &Value) -> impl Iterator<Item = (u64, &str)> {
    let fields = value.pairs().into_iter().filter(|(field, _)| field.text() != Some("="));
    fields.filter_map(|(_, text)| {
        let (deadline_us, text) = text.text()?.split_once(' ')?;
        Some((deadline_us.parse().ok()?, text))
    })
}

/// What keeps a name from being locked, in the words of the script that would refuse it.
fn misread(
    kind: Kind,
    key: &str,
    record_type: &Value,
    value: &Value,
    places: &Value,
    last_text: &Value,
) -> Option<String> {
    let corrupt = || format!("CORRUPT {key}");
    let of_last = || {
        let last = last(key);
        last_text.bytes().and_then(|_| {
            last_text
                .text()
                .map_or(Some(format!("CORRUPT {last}")), |text| record::last_misread(text, &last))
        })
    };
    let of_places = || {
        let line = line(key);
        let mut each = places.pairs().into_iter();
        each.find_map(|(place, _)| record::place_misread(place.text()?, &line))
    };
    let wrong = match (record_type.text(), kind) {
        (Some("string"), Kind::Latch) => {
            value.text().map_or_else(|| Some(corrupt()), |text| record::latch_misread(text, key))
        }
        (Some("string"), _) => {
            value.text().map_or_else(|| Some(corrupt()), |text| record::holder_misread(text, key))
        }
        (Some("hash"), Kind::Latch) => Some(format!("TYPE {key}")),
        (Some("hash"), _) => {
            let pairs = value.pairs();
            let summary = pairs
                .iter()
                .find(|(field, _)| field.text() == Some("="))
                .and_then(|(_, text)| text.text());
            let wrong = summary
                .map_or_else(|| Some(corrupt()), |summary| record::summary_misread(summary, key));
            let read = || several(value).count() + 1 == pairs.len();
            wrong
                .or_else(|| several(value).find_map(|(_, text)| record::holder_misread(text, key)))
                .or_else(|| (!read()).then(corrupt))
        }
        _ => None,
    };
    if kind == Kind::Latch { wrong } else { wrong.or_else(of_last).or_else(of_places) }
}
