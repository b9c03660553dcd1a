//! Who holds and who waits, as pg_locks and pg_stat_activity show it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::SimpleQueryRow;

use super::super::errors::Broken;
use super::super::watch::{Looks, Watches};
use super::connection::Connection;
use super::name::Key;
use super::pool::{Need, Opened};
use crate::engine::{Context, Place, Query};
use crate::words::claim::{Ends, Entry, Holder, Mode, Waiter};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// A row of pg_locks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    key: Key,
    mode: Mode,
    granted: bool,
    /// The server's process.
    backend: i32,
    program: String,
    address: Option<String>,
    since: Option<SystemTime>,
    /// Our claim, if it is one.
    claim: Option<ClaimId>,
}

/// What is known of some keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Places(Vec<Row>);

impl Row {
    fn read(row: &SimpleQueryRow) -> Option<Self> {
        let text = |at: usize| row.try_get(at).ok().flatten();
        let (class, object) = (text(0)?.parse().ok()?, text(1)?.parse().ok()?);
        let since = text(8).and_then(|us| us.parse().ok());
        Some(Self {
            key: Key::of_row(class, object, text(2)?.parse().ok()?)?,
            mode: if text(3)? == "ShareLock" { Mode::Shared } else { Mode::Exclusive },
            granted: text(4)? == "t",
            backend: text(5)?.parse().ok()?,
            program: text(6).unwrap_or_default().to_owned(),
            address: text(7).map(str::to_owned),
            since: since.and_then(|us| UNIX_EPOCH.checked_add(Duration::from_micros(us))),
            claim: None,
        })
    }

    /// What a row says of who it is: the name under which it is connected, and where from.
    fn holder(&self) -> Holder {
        let from = self.address.as_ref().map(|from| format!(" from {from}")).unwrap_or_default();
        let who = if self.program.is_empty() { "somebody" } else { &self.program };
        Holder {
            claim: self.claim,
            label: Some(format!("{who} (server process {}{from})", self.backend)),
            mode: Some(self.mode),
            ends: Some(Ends::Session),
            ..Holder::default()
        }
    }
}

impl Places {
    /// Who holds it, if somebody does.
    pub(super) fn first_holder(&self) -> Option<Box<Holder>> {
        self.0.iter().find(|row| row.granted).map(|row| Box::new(row.holder()))
    }

    /// Where a process of the server waits.
    pub(super) fn of(&self, backend: i32) -> Option<Place> {
        let ahead = self.waiting().position(|row| row.backend == backend)?;
        let ahead = u32::try_from(ahead).ok();
        Some(Place { ahead, holder: self.first_holder(), ask_at: None })
    }

    /// Where one of our claims waits.
    pub(super) fn of_claim(&self, claim: ClaimId) -> Option<Place> {
        let row = self.waiting().find(|row| row.claim == Some(claim))?;
        let same = |other: &&Row| other.key == row.key;
        let of_key = Self(self.0.iter().filter(same).cloned().collect());
        of_key.of(row.backend)
    }

    fn waiting(&self) -> impl Iterator<Item = &Row> {
        self.0.iter().filter(|row| !row.granted)
    }

    fn entry(&self, name: Name) -> Entry {
        let mut entry = Entry::new(Kind::Lock, name);
        entry.holders = self.0.iter().filter(|row| row.granted).map(Row::holder).collect();
        let waiters = self.waiting().enumerate().map(|(ahead, row)| Waiter {
            since: row.since,
            ahead: u32::try_from(ahead).ok(),
            mode: Some(row.mode),
            ..Waiter::default()
        });
        entry.waiters = waiters.collect();
        entry
    }
}

impl Opened {
    /// Who has a key and who waits for it, or all keys.
    pub(super) async fn places(
        &self,
        connection: &Connection,
        key: Option<Key>,
    ) -> std::result::Result<Places, Broken> {
        let of = key.map(|key| {
            let (class, object, form) = key.row();
            format!("AND l.classid = {class} AND l.objid = {object} AND l.objsubid = {form}")
        });
        let sql = include_str!("place.sql").replace("{of}", &of.unwrap_or_default());
        let rows = connection.ask(&sql).await?;
        let ours: BTreeMap<(i32, Key), ClaimId> = {
            let state = self.state();
            let of = |slot: &super::pool::Slot| {
                let backend = slot.connection.ghost.pid();
                let keys = slot.keys.iter();
                keys.map(|(key, claim)| ((backend, *key), *claim)).collect::<Vec<_>>()
            };
            state.slots.values().flat_map(of).collect()
        };
        let places = rows.iter().filter_map(Row::read).map(|mut row| {
            row.claim = ours.get(&(row.backend, row.key)).copied();
            row
        });
        Ok(Places(places.collect()))
    }

    /// Tells who holds and who waits.
    pub(super) async fn look(self: &Arc<Self>, query: &Query) -> Result<Vec<Entry>> {
        let told = |broken: Broken| broken.error;
        match query {
            Query::One(Kind::Lock, name) => {
                let key = self.key(name).await?;
                let connection = self.take(Need::Look).await?;
                let places = self.places(&connection, Some(key)).await.map_err(told)?;
                Ok(vec![places.entry(name.clone())])
            }
            Query::One(kind, name) => Ok(vec![Entry::new(*kind, name.clone())]),
            Query::Prefix(prefix) => {
                let connection = self.take(Need::Look).await?;
                let all = self.places(&connection, None).await.map_err(told)?;
                let mut keys: BTreeMap<Key, Places> = BTreeMap::new();
                for row in all.0 {
                    keys.entry(row.key).or_default().0.push(row);
                }
                let named = keys.into_iter().filter_map(|(key, places)| {
                    let name = key.name().filter(|name| name.as_str().starts_with(prefix))?;
                    Some(places.entry(name))
                });
                Ok(named.collect())
            }
        }
    }
}

impl Looks for Opened {
    fn watches(&self) -> &Watches {
        &self.watches
    }

    fn context(&self) -> &Context {
        &self.context
    }

    async fn state(&self, query: &Query) -> Result<std::result::Result<String, Broken>> {
        let closed = || Error::new(ErrorKind::Closed, "the engine is closed");
        let opened = self.me.upgrade().ok_or_else(closed)?;
        let seen = opened.look(query).await;
        Ok(seen.map(|seen| format!("{seen:?}")).map_err(Broken::unsent))
    }
}
