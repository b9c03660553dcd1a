//! Locks in a table of PostgreSQL, and its advisory locks behind a pooler.

mod advisory_through_pooler;
mod for_share_blocks_renewal;
mod now_instead_of_clock;
mod update_without_version;

use std::io;
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::time::timeout;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::history::Writer;
use crate::torture::broken::{self, Broken, Strike, TTL};
use crate::torture::orders::Orders;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock};

pub(crate) const ALL: &[&Broken] = &[
    &advisory_through_pooler::THIS,
    &now_instead_of_clock::THIS,
    &update_without_version::THIS,
    &for_share_blocks_renewal::THIS,
];

/// What they have in common.
const BASE: Broken = Broken { url: "postgres:auto?ttl=300ms", ..broken::BASE };

/// How often they ask again.
const EVERY: Duration = Duration::from_millis(5);
/// How long they wait for an answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// A connection that waits for each answer. One that broke is made again for the next question.
struct Sql {
    runtime: Runtime,
    client: Option<Client>,
    url: String,
}

impl Sql {
    fn to(orders: &Orders) -> Result<Self, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|e| format!("no runtime: {e}"))?;
        // The options behind the database are lockkeeper's own.
        let url = orders.url.split('?').next().unwrap_or_default();
        Ok(Self { runtime, client: None, url: format!("{url}?sslmode=disable") })
    }

    /// The first column of each row, and how many rows were changed or told.
    fn ask(&mut self, text: &str) -> io::Result<(Vec<String>, u64)> {
        let (url, client) = (&self.url, &mut self.client);
        let ask = async {
            let connected = match client.take() {
                Some(client) => client,
                None => {
                    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
                    tokio::spawn(async move { _ = connection.await });
                    client
                }
            };
            let said = connected.simple_query(text).await?;
            *client = Some(connected);
            Ok::<_, tokio_postgres::Error>(said)
        };
        let asked = self.runtime.block_on(async { timeout(PATIENCE, ask).await });
        let said = asked.map_err(io::Error::other)?.map_err(io::Error::other)?;
        let (mut rows, mut count) = (Vec::new(), 0);
        for message in said {
            match message {
                SimpleQueryMessage::Row(row) => {
                    rows.push(row.get(0).unwrap_or_default().to_owned());
                }
                SimpleQueryMessage::CommandComplete(changed) => count = changed,
                _ => {}
            }
        }
        Ok((rows, count))
    }

    /// The first answer of the first row.
    fn first(&mut self, text: &str) -> io::Result<Option<String>> {
        Ok(self.ask(text)?.0.into_iter().next())
    }
}

/// A row a name: who has it, and until when.
struct Row {
    sql: Sql,
    name: String,
    holder: String,
}

impl Row {
    fn of(orders: &Orders, task: u32) -> Result<Self, String> {
        let holder = format!("{}:{}:{task}", orders.label, std::process::id());
        Ok(Self { sql: Sql::to(orders)?, name: String::new(), holder })
    }

    /// Makes the row of a name, which is free.
    fn ready(&mut self, name: &str, give_up: &GiveUp) -> io::Result<()> {
        if self.name == name {
            return Ok(());
        }
        let make = format!(
            "CREATE TABLE IF NOT EXISTS broken (name text PRIMARY KEY, holder text, \
             ends timestamptz NOT NULL); \
             INSERT INTO broken VALUES ('{name}', NULL, '-infinity') ON CONFLICT DO NOTHING"
        );
        // Two that make the table at once are in each other's way.
        let made = give_up.poll(EVERY, || Ok(self.sql.ask(&make).is_ok().then_some(())))?;
        if made.is_some() {
            self.name = name.to_owned();
        }
        Ok(())
    }

    /// Frees it where it is still ours.
    fn free(&mut self) -> io::Result<Ending> {
        let (name, holder) = (&self.name, &self.holder);
        let free = format!(
            "UPDATE broken SET holder = NULL, ends = '-infinity' \
             WHERE name = '{name}' AND holder = '{holder}'"
        );
        let (_, changed) = self.sql.ask(&free)?;
        Ok(if changed == 1 { Ending::Released } else { Ending::NotOurs })
    }
}

/// An interval as SQL has it.
fn interval() -> String {
    format!("interval '{} milliseconds'", TTL.as_millis())
}

/// What a holder believes in that asked at `before`, where clocks may differ by a tenth.
fn grant(before: u64) -> Grant {
    let lease = u64::try_from(TTL.as_nanos()).unwrap_or(0) / 10 * 9;
    Grant { token: 0, deadline: before + lease }
}

type Take = fn(&mut Row, &GiveUp) -> io::Result<Option<Grant>>;

/// A row with a way of its own to take it.
struct OneRow {
    row: Row,
    take: Take,
}

impl OneRow {
    fn boxed(row: Result<Row, String>, take: Take) -> Result<Box<dyn RawLock>, String> {
        Ok(Box::new(Self { row: row?, take }))
    }
}

impl RawLock for OneRow {
    fn ready(&mut self, name: &str, give_up: &GiveUp) -> io::Result<()> {
        self.row.ready(name, give_up)
    }

    fn acquire(&mut self, _: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        (self.take)(&mut self.row, give_up)
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.row.free()
    }
}
