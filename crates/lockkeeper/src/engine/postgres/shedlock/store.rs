//! The statements, on one connection: each a question and its answer.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row as Found};

use super::claims::{Hold, Request};
use super::clocks::{self, Row};
use super::table::{self, Table};
use crate::engine::postgres::conn::{Ask, Conn, Ready};
use crate::engine::postgres::errors::Broken;
use crate::engine::postgres::facts;
use crate::engine::postgres::options::PostgresOptions;
use crate::engine::sql::record::Us;
use crate::words::clock::Clock;
use crate::words::error::Result;
use crate::words::guarantee::Warning;

/// What is known of a server and its table.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) server: facts::Facts,
    pub(super) table: Table,
    /// What there is to tell of those who lock there.
    pub(super) others: Vec<Warning>,
}

/// A connection with its statements.
pub(super) struct Store {
    conn: Conn,
    acquire: Ask,
    insert: Ask,
    renew: Ask,
    extend: Ask,
    release: Ask,
    read: Ask,
    state: Ask,
    facts: Facts,
}

/// What came of a request.
pub(super) struct Asked {
    pub(super) taken: bool,
    /// The server's clock.
    pub(super) now: Us,
    /// What stood there before.
    pub(super) was: Option<Row>,
}

/// What came of a renewal.
pub(super) struct Renewed {
    pub(super) by: String,
    pub(super) done: bool,
    /// Somebody else stands on the row.
    pub(super) blocked: bool,
    /// The server's clock.
    pub(super) now: Us,
}

impl Ready for Store {
    type Facts = Facts;

    async fn ready(
        client: Client,
        options: Arc<PostgresOptions>,
        _: &str,
        clock: &Clock,
        end: watch::Sender<bool>,
    ) -> Result<Self> {
        let (conn, server) = Conn::new(client, options.clone(), None, clock, end).await?;
        let table = table::find(&conn.client, &options).await?;
        options.stays_in(&table.schema)?;
        let prepare = async |sql: &str| conn.prepare(table.sql(&options, sql), &[]).await;
        let others = prepare(include_str!("others.sql")).await?;
        let (acquire, insert, renew, extend, release, read, state) = (
            prepare(include_str!("acquire.sql")).await?,
            prepare(include_str!("insert.sql")).await?,
            prepare(include_str!("renew.sql")).await?,
            prepare(include_str!("extend.sql")).await?,
            prepare(include_str!("release.sql")).await?,
            prepare(include_str!("read.sql")).await?,
            prepare(include_str!("state.sql")).await?,
        );
        let others = told(&conn, &others).await.map_err(|broken| broken.error)?;
        let facts = Facts { server, table, others };
        Ok(Self { conn, acquire, insert, renew, extend, release, read, state, facts })
    }

    fn facts(&self) -> &Facts {
        &self.facts
    }
}

async fn told(conn: &Conn, others: &Ask) -> Result<Vec<Warning>, Broken> {
    let found = conn.ask(others, &[]).await?;
    let Some(first) = found.first() else { return Ok(Vec::new()) };
    let now = conn.get(first, 0)?;
    let row = |row: &Found| Ok(Row { by: conn.get(row, 1)?, since: conn.get(row, 2)?, left: 0 });
    let rows: Vec<Row> = found.iter().map(row).collect::<Result<_, Broken>>()?;
    Ok(clocks::warnings(&rows, now))
}

impl Store {
    /// Takes what is free, or is ours already.
    pub(super) async fn acquire(&self, request: &Request) -> Result<Asked, Broken> {
        let Request { name, by, ttl, not_after, .. } = request;
        let rows = self.conn.ask(&self.acquire, &[&name.as_str(), ttl, &&**by, not_after]).await?;
        let row = rows.first().ok_or_else(|| self.conn.garbage())?;
        let who: Option<String> = self.conn.get(row, 2)?;
        let was = match who {
            Some(by) => {
                Some(Row { by, since: self.conn.get(row, 3)?, left: self.conn.get(row, 4)? })
            }
            None => None,
        };
        Ok(Asked { taken: self.conn.get(row, 0)?, now: self.conn.get(row, 1)?, was })
    }

    /// Takes a name that has no row; the server's clock, if it did.
    pub(super) async fn insert(&self, request: &Request) -> Result<Option<Us>, Broken> {
        let Request { name, by, ttl, not_after, .. } = request;
        let rows = self.conn.ask(&self.insert, &[&name.as_str(), ttl, &&**by, not_after]).await?;
        rows.first().map(|row| self.conn.get(row, 0)).transpose()
    }

    /// Renews holds, and waits for nobody.
    pub(super) async fn renew(&self, holds: &[Hold]) -> Result<Vec<Renewed>, Broken> {
        let names: Vec<&str> = holds.iter().map(|hold| hold.name.as_str()).collect();
        let by: Vec<&str> = holds.iter().map(|hold| &*hold.by).collect();
        let ttls: Vec<Us> = holds.iter().map(|hold| hold.ttl).collect();
        let rows = self.conn.ask(&self.renew, &[&names, &by, &ttls]).await?;
        rows.iter()
            .map(|row| {
                Ok(Renewed {
                    by: self.conn.get(row, 0)?,
                    done: self.conn.get(row, 1)?,
                    blocked: self.conn.get(row, 2)?,
                    now: self.conn.get(row, 3)?,
                })
            })
            .collect()
    }

    /// Renews one, and waits for its row; false: it is gone.
    pub(super) async fn extend(&self, hold: &Hold) -> Result<bool, Broken> {
        let arguments: [&(dyn ToSql + Sync); 3] = [&hold.name.as_str(), &&*hold.by, &hold.ttl];
        Ok(!self.conn.ask(&self.extend, &arguments).await?.is_empty())
    }

    /// Gives back; false: it is not there any more.
    pub(super) async fn release(&self, name: &str, by: &str) -> Result<bool, Broken> {
        Ok(!self.conn.ask(&self.release, &[&name, &by]).await?.is_empty())
    }

    /// One name, or all held ones that start with a text.
    pub(super) async fn read(&self, one: bool, text: &str) -> Result<Vec<(String, Row)>, Broken> {
        let rows = self.conn.ask(&self.read, &[&one, &text]).await?;
        rows.iter()
            .map(|row| {
                let (by, since) = (self.conn.get(row, 1)?, self.conn.get(row, 2)?);
                Ok((self.conn.get(row, 0)?, Row { by, since, left: self.conn.get(row, 3)? }))
            })
            .collect()
    }

    /// Something that changes whenever one name does, or one that starts with a text.
    pub(super) async fn state(&self, one: bool, text: &str) -> Result<String, Broken> {
        let rows = self.conn.ask(&self.state, &[&one, &text]).await?;
        self.conn.get(rows.first().ok_or_else(|| self.conn.garbage())?, 0)
    }

    /// A statement that is seldom needed; answers how many rows it changed.
    pub(super) async fn seldom(
        &self,
        sql: &str,
        arguments: &[&(dyn ToSql + Sync)],
        types: &'static [Type],
    ) -> Result<u64, Broken> {
        self.conn.seldom(&self.facts.table.sql(&self.conn.options, sql), arguments, types).await
    }
}
