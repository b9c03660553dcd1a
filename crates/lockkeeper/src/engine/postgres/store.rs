//! The statements, on one connection: each a question and its answer.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::watch;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row as Found};

use super::asks::{self, Sql};
use super::conn::{Ask, Conn, Ready};
use super::errors::Broken;
use super::facts::{Facts, tables};
use super::options::PostgresOptions;
use crate::engine::sql::claims::Renewing;
use crate::engine::sql::line::{Plan, Seen};
use crate::engine::sql::record::{Place, Row, Us, kind_number, kind_of};
use crate::words::clock::Clock;
use crate::words::error::Result;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// A connection with its statements.
pub(super) struct Store {
    conn: Conn,
    acquire: Ask,
    release: Ask,
    renew: Ask,
    read: Ask,
    update: Ask,
    insert: Ask,
    join: Ask,
    together: Ask,
    rows: Ask,
    alive: Ask,
    list: Ask,
    state: Ask,
    shared: Ask,
    pub(super) facts: Facts,
}

/// Whether something was written.
pub(super) enum Written {
    Done,
    /// The first row of a name, which has this version.
    First(i64),
    /// Others wrote first, or it is too late; with the server's clock.
    Not(Us),
}

/// What came of a renewal.
pub(super) struct Renewed {
    pub(super) claim: ClaimId,
    /// The number of a holder that is alone, and was renewed.
    pub(super) number: Option<u64>,
    /// Somebody else stands on the row.
    pub(super) blocked: bool,
    /// The server's clock.
    pub(super) now: Us,
}

fn bytes(claim: ClaimId) -> Vec<u8> {
    claim.0.to_be_bytes().to_vec()
}

fn claim(bytes: &[u8]) -> Option<ClaimId> {
    Some(ClaimId(u128::from_be_bytes(bytes.try_into().ok()?)))
}

impl Ready for Store {
    type Facts = Facts;

    async fn ready(
        client: Client,
        options: Arc<PostgresOptions>,
        channel: &str,
        clock: &Clock,
        end: watch::Sender<bool>,
    ) -> Result<Self> {
        let (conn, mut facts) =
            Conn::new(client, options.clone(), Some(channel), clock, end).await?;
        (facts.schema, facts.indexed) = tables(&conn).await?;
        options.stays_in(&facts.schema)?;
        let prepare = async |Sql(text, types): Sql| {
            conn.prepare(options.sql_in(Some(&facts.schema), text), types).await
        };
        Ok(Self {
            acquire: prepare(asks::ACQUIRE).await?,
            release: prepare(asks::RELEASE).await?,
            renew: prepare(asks::RENEW).await?,
            read: prepare(asks::READ).await?,
            update: prepare(asks::UPDATE).await?,
            insert: prepare(asks::INSERT).await?,
            join: prepare(asks::JOIN).await?,
            together: prepare(asks::TOGETHER).await?,
            rows: prepare(asks::ROWS).await?,
            alive: prepare(asks::ALIVE).await?,
            list: prepare(asks::LIST).await?,
            state: prepare(asks::STATE).await?,
            shared: prepare(asks::SHARED).await?,
            conn,
            facts,
        })
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }
}

impl Store {
    /// Takes what is free: its version, its number, and the server's clock.
    pub(super) async fn acquire(
        &self,
        kind: Kind,
        name: &Name,
        place: &Place,
        not_after: Us,
    ) -> Result<Option<(i64, u64, Us)>, Broken> {
        let lasts = place.ttl.saturating_add(place.delay);
        let rows = self
            .conn
            .ask(
                &self.acquire,
                &[
                    &kind_number(kind),
                    &name.as_str().as_bytes(),
                    &bytes(place.claim),
                    &lasts,
                    &not_after,
                    &place.granted_text(),
                ],
            )
            .await?;
        let Some(row) = rows.first() else { return Ok(None) };
        let number: i64 = self.conn.get(row, 1)?;
        let number = u64::try_from(number).map_err(|_| self.conn.garbage())?;
        Ok(Some((self.conn.get(row, 0)?, number, self.conn.get(row, 2)?)))
    }

    /// Gives back what its only holder has; false: there is more to it.
    pub(super) async fn release(
        &self,
        kind: Kind,
        name: &Name,
        claim: ClaimId,
        delay: Us,
    ) -> Result<bool, Broken> {
        let rows = self
            .conn
            .ask(
                &self.release,
                &[&kind_number(kind), &name.as_str().as_bytes(), &bytes(claim), &delay],
            )
            .await?;
        Ok(!rows.is_empty())
    }

    /// Renews those who hold alone, and waits for nobody.
    pub(super) async fn renew(
        &self,
        leases: &BTreeMap<ClaimId, Renewing>,
    ) -> Result<Vec<Renewed>, Broken> {
        let kinds: Vec<i16> = leases.values().map(|lease| kind_number(lease.kind)).collect();
        let names: Vec<&[u8]> =
            leases.values().map(|lease| lease.name.as_str().as_bytes()).collect();
        let claims: Vec<Vec<u8>> = leases.keys().map(|claim| bytes(*claim)).collect();
        let ttls: Vec<Us> = leases.values().map(|lease| lease.ttl).collect();
        let delays: Vec<Us> = leases.values().map(|lease| lease.delay).collect();
        let rows = self.conn.ask(&self.renew, &[&kinds, &names, &claims, &ttls, &delays]).await?;
        rows.iter()
            .map(|row| {
                let id: Vec<u8> = self.conn.get(row, 0)?;
                let number: Option<i64> = self.conn.get(row, 1)?;
                let claim = claim(&id).ok_or_else(|| self.conn.garbage())?;
                let number =
                    number.map(u64::try_from).transpose().map_err(|_| self.conn.garbage())?;
                Ok(Renewed {
                    claim,
                    number,
                    blocked: self.conn.get(row, 2)?,
                    now: self.conn.get(row, 3)?,
                })
            })
            .collect()
    }

    /// Reads a name, so many places of its line, and one claim's place; `counted`: and how many
    /// stand there, instead of whether there are more than were read.
    pub(super) async fn read(
        &self,
        kind: Kind,
        name: &Name,
        me: Option<ClaimId>,
        (window, counted): (i64, bool),
    ) -> Result<Seen, Broken> {
        let me = me.map(bytes);
        // One more may be the claim's own, which leaves.
        let most = if counted { i64::MAX } else { window.saturating_add(2) };
        let arguments: [&(dyn ToSql + Sync); 5] =
            [&kind_number(kind), &name.as_str().as_bytes(), &me, &window, &most];
        let rows = self.conn.ask(&self.read, &arguments).await?;
        let row = rows.first().ok_or_else(|| self.conn.garbage())?;
        let mut seen = self.seen(row)?;
        let count = |at: usize| -> Result<usize, Broken> {
            let count: Option<i64> = self.conn.get(row, at)?;
            Ok(usize::try_from(count.unwrap_or(0)).unwrap_or(0))
        };
        seen.waiting = count(9)?;
        seen.counted = counted;
        seen.tail = self.conn.get::<Option<i64>>(row, 10)?.unwrap_or(0);
        let mine: Option<String> = self.conn.get(row, 11)?;
        if let Some(place) = mine {
            let ahead = count(12)?;
            seen.mine = seen.place(&place).map(|place| (place, ahead));
        }
        Ok(seen)
    }

    /// The columns that reading and listing have in common.
    fn seen(&self, row: &Found) -> Result<Seen, Broken> {
        let mut seen = Seen { now: self.conn.get(row, 0)?, ..Seen::default() };
        let version: Option<i64> = self.conn.get(row, 1)?;
        if let Some(version) = version {
            let id: Option<Vec<u8>> = self.conn.get(row, 3)?;
            seen.row = Some(Row {
                version,
                number: self.conn.get(row, 2)?,
                claim: id.as_deref().and_then(claim),
                ends: self.conn.get(row, 4)?,
                since: self.conn.get(row, 5)?,
                line: self.conn.get(row, 6)?,
                record: self.conn.get(row, 7)?,
            });
        }
        let places: Option<Vec<String>> = self.conn.get(row, 8)?;
        for place in places.unwrap_or_default() {
            let place = seen.place(&place);
            seen.places.extend(place);
        }
        seen.waiting = seen.places.len();
        Ok(seen)
    }

    /// Writes what was decided, if nobody wrote since it was read, and it is not too late.
    pub(super) async fn write(
        &self,
        kind: Kind,
        name: &Name,
        plan: &Plan,
        now: Us,
        not_after: Us,
    ) -> Result<Written, Broken> {
        let (row, kind, name) = (&plan.row, kind_number(kind), name.as_str().as_bytes());
        let id = row.claim.map(bytes);
        let come = plan.joined.as_ref();
        let seq = come.map_or(-1, |place| place.seq);
        let place_claim = come.map_or_else(Vec::new, |place| bytes(place.claim));
        let alive = come.map_or(0, |place| place.alive);
        let text = come.map_or_else(String::new, Place::text);
        let rows = if plan.seen == 0 {
            self.conn
                .ask(
                    &self.insert,
                    &[
                        &kind,
                        &name,
                        &row.number,
                        &id,
                        &row.ends,
                        &row.since,
                        &row.line,
                        &row.record,
                        &not_after,
                        &seq,
                        &place_claim,
                        &alive,
                        &text,
                    ],
                )
                .await?
        } else {
            let channels: Vec<&str> = plan.words.iter().map(|(to, _)| to.as_str()).collect();
            let words: Vec<String> = plan.words.iter().map(|(_, word)| word.text()).collect();
            self.conn
                .ask(
                    &self.update,
                    &[
                        &kind,
                        &name,
                        &plan.seen,
                        &row.version,
                        &row.number,
                        &id,
                        &row.ends,
                        &row.since,
                        &row.line,
                        &row.record,
                        &not_after,
                        &plan.removed,
                        &now,
                        &plan.asked,
                        &seq,
                        &place_claim,
                        &alive,
                        &text,
                        &channels,
                        &words,
                    ],
                )
                .await?
        };
        let row = rows.first().ok_or_else(|| self.conn.garbage())?;
        let written: i64 = self.conn.get(row, 0)?;
        Ok(match written {
            1 if plan.seen == 0 => Written::First(self.conn.get(row, 2)?),
            1 => Written::Done,
            _ => Written::Not(self.conn.get(row, 1)?),
        })
    }

    /// Stands in the line of a lock that is held, whatever else was written since it was read;
    /// false: it is not held, or the place is there.
    pub(super) async fn join(
        &self,
        kind: Kind,
        name: &Name,
        place: &Place,
        not_after: Us,
    ) -> Result<bool, Broken> {
        let rows = self
            .conn
            .ask(
                &self.join,
                &[
                    &kind_number(kind),
                    &name.as_str().as_bytes(),
                    &bytes(place.claim),
                    &not_after,
                    &place.text(),
                ],
            )
            .await?;
        Ok(!rows.is_empty())
    }

    /// Makes empty rows for names that have none.
    pub(super) async fn rows(&self, names: &[(Kind, Name)]) -> Result<(), Broken> {
        let kinds: Vec<i16> = names.iter().map(|(kind, _)| kind_number(*kind)).collect();
        let names: Vec<&[u8]> = names.iter().map(|(_, name)| name.as_str().as_bytes()).collect();
        self.conn.ask(&self.rows, &[&kinds, &names]).await.map(drop)
    }

    /// Writes the rows of several names, all or none.
    pub(super) async fn together(
        &self,
        plans: &[(Kind, Name, Plan)],
        not_after: Us,
    ) -> Result<Written, Broken> {
        let rows = || plans.iter().map(|(_, _, plan)| &plan.row);
        let kinds: Vec<i16> = plans.iter().map(|(kind, ..)| kind_number(*kind)).collect();
        let names: Vec<&[u8]> = plans.iter().map(|(_, name, _)| name.as_str().as_bytes()).collect();
        let seen: Vec<i64> = plans.iter().map(|(_, _, plan)| plan.seen).collect();
        let versions: Vec<i64> = rows().map(|row| row.version).collect();
        let numbers: Vec<i64> = rows().map(|row| row.number).collect();
        let claims: Vec<Option<Vec<u8>>> = rows().map(|row| row.claim.map(bytes)).collect();
        let ends: Vec<Us> = rows().map(|row| row.ends).collect();
        let since: Vec<Us> = rows().map(|row| row.since).collect();
        let lines: Vec<bool> = rows().map(|row| row.line).collect();
        let records: Vec<&str> = rows().map(|row| row.record.as_str()).collect();
        let count = i64::try_from(plans.len()).unwrap_or(0);
        let rows = self
            .conn
            .ask(
                &self.together,
                &[
                    &kinds, &names, &seen, &versions, &numbers, &claims, &ends, &since, &lines,
                    &records, &count, &not_after,
                ],
            )
            .await?;
        let row = rows.first().ok_or_else(|| self.conn.garbage())?;
        let written: i64 = self.conn.get(row, 0)?;
        Ok(if written == count { Written::Done } else { Written::Not(self.conn.get(row, 1)?) })
    }

    /// A sign of life of a place; false: it is not there any more.
    pub(super) async fn alive(&self, kind: Kind, name: &Name, id: ClaimId) -> Result<bool, Broken> {
        let arguments: [&(dyn ToSql + Sync); 3] =
            [&kind_number(kind), &name.as_str().as_bytes(), &bytes(id)];
        Ok(!self.conn.ask(&self.alive, &arguments).await?.is_empty())
    }

    /// Every name that starts with a text and is not idle.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<(Kind, Name, Seen)>, Broken> {
        let rows = self.conn.ask(&self.list, &[&prefix.as_bytes()]).await?;
        let mut listed = Vec::with_capacity(rows.len());
        for row in &rows {
            let name: Vec<u8> = self.conn.get(row, 10)?;
            let name = String::from_utf8(name).ok().and_then(|name| Name::new(name).ok());
            // A row of somebody else's is no name of ours.
            if let (Some(kind), Some(name)) = (kind_of(self.conn.get(row, 9)?), name) {
                listed.push((kind, name, self.seen(row)?));
            }
        }
        Ok(listed)
    }

    /// Something that changes whenever a name does, or every name that starts with a text.
    pub(super) async fn state(&self, kind: Option<Kind>, text: &str) -> Result<String, Broken> {
        let kind = kind.map_or(-1, kind_number);
        let rows = self.conn.ask(&self.state, &[&kind, &text.as_bytes()]).await?;
        let row = rows.first().ok_or_else(|| self.conn.garbage())?;
        self.conn.get(row, 0)
    }

    /// Whether the transaction of a holder keeps a lock from passing; `None` while somebody stands
    /// on the whole row, or there is none.
    pub(super) async fn is_kept(&self, kind: Kind, name: &Name) -> Result<Option<bool>, Broken> {
        let arguments: [&(dyn ToSql + Sync); 2] = [&kind_number(kind), &name.as_str().as_bytes()];
        let rows = self.conn.ask(&self.shared, &arguments).await?;
        let row = rows.first().ok_or_else(|| self.conn.garbage())?;
        let (whole, part): (bool, bool) = (self.conn.get(row, 0)?, self.conn.get(row, 1)?);
        Ok((whole || part).then_some(!whole))
    }

    /// A statement that is seldom needed; answers how many rows it changed.
    pub(super) async fn seldom(
        &self,
        Sql(text, types): Sql,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Broken> {
        let text = self.conn.options.sql_in(Some(&self.facts.schema), text);
        self.conn.seldom(&text, arguments, types).await
    }
}
