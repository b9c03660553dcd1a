//! The stock as a row of a table of its own, in the database that keeps the lock, or in another
//! one.

use std::sync::Arc;

use lockkeeper::url::EngineUrl;
use lockkeeper::{Result, Token};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::client::{answered, connect, quoted, reaches, schema, table};
use crate::demo::stock::{Doing, Shelf, Stock};

/// A record in a row.
pub(crate) struct Rows;

impl Shelf for Rows {
    fn place(&self, url: &str, lock: &str) -> Option<String> {
        let id = lock.rsplit('/').next().unwrap_or(lock);
        reaches(url).then(|| format!("lockkeeper_demo_{id}"))
    }

    fn has_versions(&self) -> bool {
        true
    }

    fn open<'a>(&self, url: &'a str, at: &'a str) -> Doing<'a, Box<dyn Stock>> {
        Box::pin(async move { Ok(Box::new(RowStock::open(url, at).await?) as Box<dyn Stock>) })
    }

    fn fill<'a>(&self, url: &'a str, at: &'a str, pieces: u64) -> Doing<'a, ()> {
        Box::pin(async move {
            let (client, table) = (connect(url).await?, table(url, at));
            // It is there already where the lock is here, too.
            if let Some(schema) = schema(url) {
                let there = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
                let found =
                    answered("look for the schema", client.query_one(there, &[&schema])).await?;
                if found.get::<_, i64>(0) == 0 {
                    let make = format!("CREATE SCHEMA IF NOT EXISTS {}", quoted(&schema));
                    answered("make the schema", client.batch_execute(&make)).await?;
                }
            }
            let text = format!(
                "CREATE TABLE IF NOT EXISTS {table} (sku text PRIMARY KEY, n bigint NOT NULL \
                 CHECK (n >= 0), version bigint NOT NULL, fence bigint NOT NULL); \
                 INSERT INTO {table} AS t VALUES ('{SKU}', {pieces}, 1, 0) ON CONFLICT (sku) \
                 DO UPDATE SET n = excluded.n, version = t.version + 1, fence = 0"
            );
            answered("make the stock's table", client.batch_execute(&text)).await
        })
    }

    fn clear<'a>(&self, url: &'a str, at: &'a str, lock: &'a str) -> Doing<'a, ()> {
        Box::pin(async move {
            let client = connect(url).await?;
            // The server may not have noticed yet that a worker is gone in a transaction.
            let patience = client.batch_execute("SET lock_timeout = '4s'");
            answered("use the database", patience).await?;
            if !at.is_empty() {
                let text = format!("DROP TABLE IF EXISTS {}", table(url, at));
                answered("remove the stock's table", client.batch_execute(&text)).await?;
            }
            let prefix = EngineUrl::parse(url)?.take("prefix");
            let prefix = prefix.as_deref().unwrap_or("lockkeeper");
            let locks = table(url, &format!("{prefix}_locks"));
            // There is none where the lock is elsewhere.
            let there = "SELECT to_regclass($1) IS NOT NULL";
            let found =
                answered("look for the lock's row", client.query_one(there, &[&locks])).await?;
            if !found.get::<_, bool>(0) {
                return Ok(());
            }
            // Whoever held it or stood in line is gone, and nobody asks for this name again. The
            // row goes first: the clients' writes begin with it, too. Both are one transaction.
            let line = table(url, &format!("{prefix}_line"));
            let hex: String = lock.bytes().map(|byte| format!("{byte:02x}")).collect();
            let of = format!("kind = {LOCK} AND name = decode('{hex}', 'hex')");
            let text = format!("DELETE FROM {locks} WHERE {of}; DELETE FROM {line} WHERE {of}");
            answered("remove the lock's rows", client.batch_execute(&text)).await
        })
    }
}

/// The kind of a lock, in lockkeeper's tables.
const LOCK: i16 = 0;

/// The one article.
const SKU: &str = "sku-42";

/// The stock in a row: the pieces that are left, the version of the row, and the greatest token
/// that was shown with a write.
struct RowStock {
    client: Arc<Client>,
    read: Statement,
    write: Statement,
    fenced: Statement,
    take: Statement,
}

impl RowStock {
    async fn open(url: &str, at: &str) -> Result<Self> {
        let (client, table) = (connect(url).await?, table(url, at));
        let prepared =
            async |text: String| answered("use the stock's table", client.prepare(&text)).await;
        let set = format!("UPDATE {table} SET n = $1, version = version + 1");
        let read = prepared(format!("SELECT n, version FROM {table} WHERE sku = '{SKU}'")).await?;
        let write = prepared(format!("{set} WHERE sku = '{SKU}'")).await?;
        let fenced =
            prepared(format!("{set}, fence = $2 WHERE sku = '{SKU}' AND fence <= $2")).await?;
        let take = prepared(format!(
            "UPDATE {table} SET n = n - 1, version = version + 1 \
             WHERE sku = '{SKU}' AND version = $1 AND n > 0"
        ))
        .await?;
        Ok(Self { client, read, write, fenced, take })
    }

    async fn row(&self) -> Result<Row> {
        answered("read the stock", self.client.query_one(&self.read, &[])).await
    }

    /// Whether the row was written.
    async fn did(&self, statement: &Statement, values: &[&(dyn ToSql + Sync)]) -> Result<bool> {
        let written = answered("write the stock", self.client.execute(statement, values)).await;
        written.map(|rows| rows > 0)
    }
}

fn pieces(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

fn left(row: &Row) -> u64 {
    u64::try_from(row.get::<_, i64>(0)).unwrap_or(0)
}

impl Stock for RowStock {
    fn read(&mut self) -> Doing<'_, u64> {
        Box::pin(async { self.row().await.map(|row| left(&row)) })
    }

    fn write(&mut self, left: u64) -> Doing<'_, ()> {
        Box::pin(async move { self.did(&self.write, &[&pieces(left)]).await.map(drop) })
    }

    fn write_fenced(&mut self, left: u64, token: Token) -> Doing<'_, bool> {
        Box::pin(async move { self.did(&self.fenced, &[&pieces(left), &token.as_i64()]).await })
    }

    fn read_version(&mut self) -> Doing<'_, (u64, i64)> {
        Box::pin(async { self.row().await.map(|row| (left(&row), row.get(1))) })
    }

    fn take_at_version(&mut self, version: i64) -> Doing<'_, bool> {
        Box::pin(async move { self.did(&self.take, &[&version]).await })
    }
}
