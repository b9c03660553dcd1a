//! The schemes and options of PostgreSQL URLs, as the reference lists them; `options` reads them.

use super::options::{PORT, PostgresOptions};
use super::session;
use super::shedlock::{self, ShedLock};
use super::{Postgres, environment};
use crate::engine::{Common, Engine, Keep, Registration, UrlOption, Value};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

const OPTIONS: [UrlOption; 17] = [
    UrlOption::new(
        "layout",
        Value::OneOf(&["table", "session", "shedlock"]),
        "table",
        "how locks are written down: a row each, advisory locks of a connection, or ShedLock's \
         table",
    )
    .identity(),
    UrlOption::new(
        "names",
        Value::OneOf(&["key", "hash"]),
        "key",
        "key: a name is a number, or two; hash: any other name is hashed to one",
    )
    .needs("layout", "session"),
    UrlOption::new(
        "session_timeout",
        Value::Duration,
        "15s",
        "how long the server keeps a connection that is silent, 2s to 1h",
    )
    .needs("layout", "session"),
    UrlOption::new(
        "schema",
        Value::Text("NAME"),
        "",
        "the schema of the tables; the user's first one without it",
    )
    .identity(),
    UrlOption::new(
        "prefix",
        Value::Text("NAME"),
        "lockkeeper",
        "what the names of the tables begin with",
    )
    .identity()
    .needs("layout", "table"),
    UrlOption::new("table", Value::Text("NAME"), "shedlock", "the name of ShedLock's table")
        .identity()
        .needs("layout", "shedlock"),
    UrlOption::new(
        "create",
        Value::Switch,
        "true",
        "whether the tables are made where they are missing",
    ),
    UrlOption::new(
        "socket",
        Value::Text("DIRECTORY"),
        "",
        "the directory of the server's socket, in place of a host",
    )
    .identity(),
    UrlOption::new(
        "pooler",
        Value::OneOf(&["none", "session", "transaction"]),
        "none",
        "what a pooler gives each server connection to, if there is one; none: it is looked for",
    ),
    UrlOption::new(
        "sslmode",
        Value::OneOf(&["disable", "verify-full"]),
        "",
        "TLS with a checked certificate, or none; verify-full where the host is not this machine",
    ),
    UrlOption::new(
        "sslrootcert",
        Value::Text("FILE"),
        "",
        "the certificates to trust, PEM; the system's without it",
    ),
    UrlOption::new(
        "sslcert",
        Value::Text("FILE"),
        "",
        "the client's certificate, PEM; goes with sslkey",
    ),
    UrlOption::new("sslkey", Value::Text("FILE"), "", "its key, PEM; goes with sslcert"),
    UrlOption::new("connect_timeout", Value::Duration, "5s", "how long connecting may take"),
    UrlOption::new("request_timeout", Value::Duration, "2s", "how long an answer may take"),
    UrlOption::new(
        "password_file",
        Value::Text("FILE"),
        "",
        "the file that holds the password; read again for each connection",
    ),
    UrlOption::new(
        "password_env",
        Value::Text("NAME"),
        "",
        "the environment variable that holds the password",
    ),
];

pub(crate) fn registration() -> Registration {
    let schemes = &["postgres", "postgresql"];
    let mut postgres = Registration::new("postgres", schemes, Keep::Lease, open);
    postgres.port = Some(PORT);
    let session = Keep::Session { option: "session_timeout", default: session::SESSION };
    postgres.keep_with = Some(("layout", "session", session));
    postgres.place = Some(place);
    postgres.schema = Some(schema);
    postgres.options = OPTIONS.into();
    postgres
}

fn schema(url: &mut EngineUrl, common: &Common) -> Result<String> {
    match url.take("layout").as_deref() {
        Some("session") => Err(session::needs_no_tables()),
        Some("shedlock") => Ok(shedlock::schema(&PostgresOptions::take(url, common)?)),
        _ => Ok(PostgresOptions::take(url, common)?.schema_and_rights()),
    }
}

/// Both schemes mean the same.
fn place(url: &mut EngineUrl) -> Result<()> {
    "postgres".clone_into(&mut url.scheme);
    Ok(())
}

fn open(url: &mut EngineUrl, common: &Common) -> Result<Box<dyn Engine>> {
    match url.take("layout").as_deref() {
        Some("session") => session::open(url, common),
        Some("shedlock") => Ok(Box::new(ShedLock::new(tables(url, common)?))),
        _ => Ok(Box::new(Postgres::new(tables(url, common)?))),
    }
}

/// The options of the layouts that keep locks in tables.
fn tables(url: &mut EngineUrl, common: &Common) -> Result<PostgresOptions> {
    let options = PostgresOptions::take(url, common)?;
    environment::check()?;
    Ok(options)
}
