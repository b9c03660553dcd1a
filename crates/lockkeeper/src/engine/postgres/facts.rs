//! What the server is, and the tables that it has.

use tokio_postgres::Row as Found;
use tokio_postgres::types::Type;

use super::conn::{Conn, garbage};
use super::errors;
use super::options::PostgresOptions;
use crate::engine::sql::record::{LAYOUT, Us};
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, ErrorKind, Result};

/// Two clients that make the same tables at once are made to wait for each other.
const SCHEMA_LOCK: i64 = 0x6c6f_636b_6b70_7201;

/// What the server said about itself.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) now: Us,
    /// Our reading from before the server read its clock.
    pub(super) before: Ticks,
    pub(super) version: String,
    pub(super) replica: bool,
    pub(super) read_only: bool,
    pub(super) fsync: bool,
    pub(super) full_page_writes: bool,
    pub(super) database: String,
    pub(super) user: String,
    /// The schema of the tables.
    pub(super) schema: String,
    /// A pooler gives each transaction one of its connections.
    pub(super) pooled: bool,
    /// How many standbys follow it.
    pub(super) standbys: i64,
    /// Commits wait for a standby.
    pub(super) synchronous: bool,
    /// A unique index has the number, so a holder's transaction can keep it.
    pub(super) indexed: bool,
}

/// Asks the server about itself.
///
/// # Errors
/// The server's.
pub(super) async fn facts(conn: &Conn, clock: &Clock) -> Result<Facts> {
    let options = &*conn.options;
    let before = clock.now();
    let sql = options.sql(include_str!("facts.sql"));
    let rows = conn.once(&sql, &[], &[]).await.map_err(|broken| broken.error)?;
    let row = rows.first().ok_or_else(|| garbage(options))?;
    let text = |at: usize| row.try_get::<_, String>(at).map_err(|_| garbage(options));
    let is = |at: usize| row.try_get::<_, bool>(at).map_err(|_| garbage(options));
    Ok(Facts {
        now: row.try_get(0).map_err(|_| garbage(options))?,
        before,
        version: text(1)?,
        replica: is(2)?,
        read_only: is(3)?,
        fsync: text(4)? == "on",
        full_page_writes: text(5)? == "on",
        database: text(6)?,
        user: text(7)?,
        standbys: row.try_get(8).map_err(|_| garbage(options))?,
        synchronous: is(9)?,
        schema: String::new(),
        pooled: conn.pooled().is_some(),
        indexed: false,
    })
}

/// Looks for the tables, lets the first connection make them where they are missing, and compares
/// the layout's number; answers in which schema they are, and whether their number is indexed.
///
/// # Errors
/// `NewerLayout`; the server's.
pub(super) async fn tables(conn: &Conn) -> Result<(String, bool)> {
    let (client, options) = (&conn.client, &*conn.options);
    let number = options.sql(include_str!("layout.sql"));
    let make = async || {
        let make = format!(
            "{}; SELECT pg_advisory_xact_lock({SCHEMA_LOCK}); {} COMMIT",
            conn.pooled().unwrap_or("BEGIN"),
            options.schema_sql()
        );
        let made = client.batch_execute(&make).await;
        if made.is_err() {
            _ = client.batch_execute("ROLLBACK").await;
        }
        made.map_err(|error| errors::statement(options, &error).error)
    };
    let (locks, line) = (format!("{}_locks", options.prefix), format!("{}_line", options.prefix));
    let ask = async || {
        let rows = conn.once(&number, &[&locks, &line], &[Type::TEXT, Type::TEXT]).await?;
        rows.into_iter().next().ok_or_else(|| conn.garbage())
    };
    let known = i32::try_from(LAYOUT).unwrap_or(0);
    let found = match ask().await {
        // An index that is missing is not made here: on a large table nobody could write meanwhile.
        Ok(row) => row,
        Err(broken) if options.makes() && broken.missing => {
            // Others make them as well, one after the other, and nobody waits for long for a lock:
            // whoever comes later finds them. Whoever dials has a limit for all of this.
            loop {
                let made = make().await;
                match (ask().await, made) {
                    (Ok(row), _) => break row,
                    (Err(broken), _) if !broken.missing => return Err(broken.error),
                    (_, Err(error)) if !error.is_temporary() => return Err(error),
                    _ => {}
                }
            }
        }
        Err(broken) => return Err(broken.error),
    };
    let stored: Option<i32> = found.try_get(0).ok().flatten();
    match stored {
        Some(stored) if stored == known => {
            let schema: String = found.try_get(1).map_err(|_| garbage(options))?;
            are_ours(options, &schema, &found)?;
            Ok((schema, found.try_get(4).map_err(|_| garbage(options))?))
        }
        Some(stored) => {
            let text = format!(
                "the tables in the server at {} have layout {stored}, and this lockkeeper has \
                 {LAYOUT}: use the same release everywhere, or another prefix",
                options.at()
            );
            Err(Error::new(ErrorKind::NewerLayout, text))
        }
        None => {
            let (layout, why) = (options.sql("{layout}"), "it has no layout's number");
            Err(not_ours(options, &layout, why, "drop it where nobody uses it"))
        }
    }
}

/// Refuses what has the tables' names and is not as we make them.
fn are_ours(options: &PostgresOptions, schema: &str, found: &Found) -> Result<()> {
    let tables = [
        (2, 5, "{locks}", "PRIMARY KEY", "(kind, name)"),
        (3, 6, "{line}", "UNIQUE", "(claim, kind, name)"),
    ];
    for (kind, keyed, table, key, columns) in tables {
        let table = options.sql_in(Some(schema), table);
        let kind: Option<String> = found.try_get(kind).map_err(|_| garbage(options))?;
        let keyed: bool = found.try_get(keyed).map_err(|_| garbage(options))?;
        match kind.as_deref() {
            None => {
                let why = format!("there is no {table}");
                return Err(Error::new(ErrorKind::Refused, errors::no_tables(options, &why)));
            }
            Some("v" | "m") => {
                return Err(not_ours(options, &table, "it is a view", "put a table in its place"));
            }
            Some(_) if !keyed => {
                let why = format!("it has no {} {columns}", key.to_lowercase());
                let add = format!("add it: ALTER TABLE {table} ADD {key} {columns}");
                return Err(not_ours(options, &table, &why, &add));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// A table that was made by hand, or copied.
fn not_ours(options: &PostgresOptions, table: &str, why: &str, what_to_do: &str) -> Error {
    let text = format!(
        "the table {table} in the server at {} is not as lockkeeper makes it: {why}; \
         {what_to_do}, or use another prefix",
        options.at()
    );
    Error::new(ErrorKind::Refused, text)
}
