//! ShedLock's table: its name, how it is made, and whether it is the one.

use tokio_postgres::{Client, Row as Found};

use crate::engine::postgres::conn::garbage;
use crate::engine::postgres::errors;
use crate::engine::postgres::options::{PostgresOptions, quoted};
use crate::words::error::{Error, ErrorKind, Result};

/// Who takes a lock has to fit, beside the least that is told of its process.
const BY_LEAST: usize = 64;
/// More than this is not written.
const BY_MOST: usize = 255;

/// What is known of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    /// The schema that it is in.
    pub(super) schema: String,
    /// Its times have a zone.
    zoned: bool,
    /// How many characters a name may have.
    pub(super) name_most: usize,
    /// How many bytes `locked_by` may have.
    pub(super) by_most: usize,
}

/// The table's name as the URL has it, which the connection's search path may complete.
fn name(options: &PostgresOptions) -> String {
    name_in(options.schema.as_deref(), options)
}

fn name_in(schema: Option<&str>, options: &PostgresOptions) -> String {
    let table = quoted(&options.table);
    match schema {
        Some(schema) => format!("{}.{table}", quoted(schema)),
        None => table,
    }
}

/// The statements that make the table.
fn schema_sql(options: &PostgresOptions) -> String {
    let schema = options.schema.as_ref();
    let schema = schema.map(|schema| format!("CREATE SCHEMA IF NOT EXISTS {};\n", quoted(schema)));
    let table = include_str!("schema.sql").replace("{table}", &name(options));
    format!("{}{table}", schema.unwrap_or_default())
}

/// The same with the least rights for the user of the URL.
pub(super) fn schema_and_rights(options: &PostgresOptions) -> String {
    let user = quoted(options.user.as_deref().unwrap_or("lockkeeper"));
    let usage = options
        .schema
        .as_ref()
        .map(|schema| format!("GRANT USAGE ON SCHEMA {} TO {user};\n", quoted(schema)));
    let table = name(options);
    format!(
        "{}{}GRANT SELECT, INSERT, UPDATE, DELETE ON {table} TO {user};\n",
        schema_sql(options),
        usage.unwrap_or_default()
    )
}

/// Looks for the table, and makes it where it is missing; a connection that comes after the first
/// one makes none, because its search path may have changed.
///
/// # Errors
/// A table that is missing, or that is not ShedLock's.
pub(super) async fn find(client: &Client, options: &PostgresOptions) -> Result<Table> {
    let failed = |error: tokio_postgres::Error| errors::statement(options, &error).error;
    let columns = include_str!("columns.sql");
    let mut rows = client.query(columns, &[&name(options)]).await.map_err(failed)?;
    if rows.is_empty() && options.makes() {
        let made = client.batch_execute(&schema_sql(options)).await;
        rows = client.query(columns, &[&name(options)]).await.map_err(failed)?;
        // Two that make it at once: one of them is told that it is there.
        if rows.is_empty() {
            made.map_err(failed)?;
        }
    }
    if rows.is_empty() {
        let text = format!(
            "the table {} is not in the server at {}: let somebody with the right to create it run \
             what `lockkeeper schema URL` prints, or name another with table=",
            name(options),
            options.at()
        );
        return Err(Error::new(ErrorKind::Refused, text));
    }
    let columns: Option<Vec<Column>> = rows.iter().map(Column::of).collect();
    let columns = columns.ok_or_else(|| garbage(options))?;
    Table::of(&columns).map_err(|why| {
        let text = format!(
            "the table {} in the server at {} is not one of ShedLock's: {why}",
            name(options),
            options.at()
        );
        Error::new(ErrorKind::Refused, text)
    })
}

/// One column, as the catalogue has it.
struct Column {
    schema: String,
    name: String,
    kind: String,
    must_be_given: bool,
    unique: bool,
}

impl Column {
    fn of(row: &Found) -> Option<Self> {
        Some(Self {
            schema: row.try_get(0).ok()?,
            name: row.try_get(1).ok()?,
            kind: row.try_get(2).ok()?,
            must_be_given: row.try_get(3).ok()?,
            unique: row.try_get(4).ok()?,
        })
    }

    /// How many characters fit; `None` for what is no text.
    fn characters(&self) -> Option<usize> {
        if matches!(self.kind.as_str(), "text" | "character varying") {
            return Some(usize::MAX);
        }
        self.kind.strip_prefix("character varying(")?.strip_suffix(')')?.parse().ok()
    }

    /// Whether its times have a zone; `None` for what is no time, or one in whole seconds.
    fn zoned(&self) -> Option<bool> {
        let (kind, zone) = self.kind.split_once(' ')?;
        let digits = match kind.strip_prefix("timestamp(") {
            Some(digits) => digits.strip_suffix(')')?.parse().ok()?,
            None if kind == "timestamp" => 6,
            None => return None,
        };
        match zone {
            "without time zone" if digits >= 3 => Some(false),
            "with time zone" if digits >= 3 => Some(true),
            _ => None,
        }
    }
}

impl Table {
    fn of(columns: &[Column]) -> std::result::Result<Self, String> {
        let column = |name: &str| {
            columns
                .iter()
                .find(|c| c.name == name)
                .ok_or_else(|| format!("it has no column {name}"))
        };
        let is =
            |c: &Column, what: &str| format!("its column {} is {} and not {what}", c.name, c.kind);
        let time = |c: &Column| {
            let time = "a timestamp to the millisecond or finer";
            c.zoned().ok_or_else(|| is(c, time))
        };
        let (name, by) = (column("name")?, column("locked_by")?);
        let (until, at) = (column("lock_until")?, column("locked_at")?);
        let name_most = name.characters().ok_or_else(|| is(name, "varchar"))?;
        let fits = by.characters().filter(|most| *most >= BY_LEAST);
        let by_most = fits.ok_or_else(|| is(by, &format!("varchar({BY_LEAST}) or longer")))?;
        let zoned = time(until)?;
        if time(at)? != zoned {
            return Err("one of its times has a time zone, and the other has none".to_owned());
        }
        if !name.unique {
            return Err("its column name is not the primary key".to_owned());
        }
        let known = ["name", "lock_until", "locked_at", "locked_by"];
        let other = columns.iter().find(|c| c.must_be_given && !known.contains(&c.name.as_str()));
        if let Some(other) = other {
            return Err(format!("its column {} is not null and has no default", other.name));
        }
        Ok(Self { schema: name.schema.clone(), zoned, name_most, by_most: by_most.min(BY_MOST) })
    }

    /// A statement, with the clock and the table's name in it: in the schema where it was found,
    /// whatever the search path becomes.
    pub(super) fn sql(&self, options: &PostgresOptions, statement: &str) -> String {
        let now =
            if self.zoned { "clock_timestamp()" } else { "timezone('utc', clock_timestamp())" };
        // A time without end is one, too: somebody who wants a task not to run writes it by hand.
        let since = "CASE WHEN isfinite(s.locked_at) \
                     THEN (extract(epoch FROM s.locked_at) * 1000000)::bigint ELSE 0 END";
        let left = "(extract(epoch FROM \
                    least(greatest(s.lock_until, {now}), {now} + interval '1 year') - {now}) \
                    * 1000000)::bigint";
        statement
            .replace("{table}", &name_in(Some(&self.schema), options))
            .replace("{since}", since)
            .replace("{left}", left)
            .replace("{now}", now)
            .replace("{us}", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Common;
    use crate::open::url::EngineUrl;

    fn columns(change: impl Fn(&mut Column)) -> std::result::Result<Table, String> {
        let column = |name: &str, kind: &str| {
            let (name, kind, schema) = (name.to_owned(), kind.to_owned(), "public".to_owned());
            let mut column =
                Column { unique: name == "name", name, kind, schema, must_be_given: true };
            change(&mut column);
            column
        };
        Table::of(&[
            column("name", "character varying(64)"),
            column("lock_until", "timestamp without time zone"),
            column("locked_at", "timestamp without time zone"),
            column("locked_by", "character varying(255)"),
        ])
    }

    #[test]
    fn statements_name_the_schema_in_which_the_table_was_found() {
        let mut url = EngineUrl::parse("postgres://127.0.0.1/x?table=odd%20%22one").unwrap();
        let common = Common::new(std::time::Duration::from_secs(30), 100);
        let options = PostgresOptions::take(&mut url, &common).unwrap();
        let mut table = columns(|_| ()).unwrap();
        table.schema = "its \"own\"".to_owned();
        assert_eq!(table.sql(&options, "{table}"), "\"its \"\"own\"\"\".\"odd \"\"one\"");
    }

    #[test]
    fn the_tables_of_shedlocks_documentation_are_its_own() {
        let table = columns(|_| ()).unwrap();
        assert_eq!((table.name_most, table.by_most, table.zoned), (64, 255, false));
        let zoned = columns(|column| {
            if column.kind.starts_with("timestamp") {
                column.kind = "timestamp(3) with time zone".into();
            }
        });
        assert!(zoned.unwrap().zoned);
        let text = columns(|column| {
            if column.kind.starts_with("character") {
                column.kind = "text".into();
            }
        });
        assert_eq!(text.unwrap().by_most, 255);
    }

    #[test]
    fn another_table_is_refused_with_what_is_wrong_about_it() {
        let other = |name: &'static str, kind: &'static str| {
            columns(move |column| {
                if column.name == name {
                    column.kind = kind.into();
                }
            })
            .unwrap_err()
        };
        let times = "timestamp(0) without time zone and not a timestamp to the millisecond";
        for (name, kind, says) in [
            ("name", "character(64)", "its column name is character(64) and not varchar"),
            ("locked_by", "character varying(40)", "varchar(64) or longer"),
            ("lock_until", "timestamp(0) without time zone", times),
            ("lock_until", "bigint", "its column lock_until is bigint"),
            ("locked_at", "timestamp with time zone", "one of its times has a time zone"),
        ] {
            assert!(other(name, kind).contains(says), "{}", other(name, kind));
        }
        let missing = columns(|column| {
            if column.name == "locked_at" {
                column.name = "since".into();
            }
        });
        assert_eq!(missing.unwrap_err(), "it has no column locked_at");
        let key = columns(|column| column.unique = false).unwrap_err();
        assert_eq!(key, "its column name is not the primary key");
    }
}
