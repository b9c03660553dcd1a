//! What a `postgres:` URL says.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use crate::engine::Common;
use crate::engine::password::Password;
use crate::engine::tls::Tls;
use crate::open::url::EngineUrl;
use crate::words::error::{Error, ErrorKind, Result};

use super::errors::{self, wrong};

pub(super) const PORT: u16 = 5432;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Address {
    Tcp(String, u16),
    /// The directory of a socket, and its number.
    Unix(PathBuf, u16),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp(host, port) => write!(f, "{host}:{port}"),
            Self::Unix(dir, port) => write!(f, "{}/.s.PGSQL.{port}", dir.display()),
        }
    }
}

/// What stands between us and the server, as the URL says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooler {
    /// It is looked for.
    Unsaid,
    /// Each client has a connection of the server's of its own.
    Session,
    /// Each transaction has any of them.
    Transaction,
}

/// A server's database, and how to use it.
#[derive(Clone, Debug)]
pub(super) struct PostgresOptions {
    pub(super) addresses: Vec<Address>,
    pub(super) user: Option<String>,
    pub(super) password: Option<Password>,
    pub(super) database: Option<String>,
    pub(super) tls: Option<Tls>,
    pub(super) schema: Option<String>,
    pub(super) prefix: String,
    /// ShedLock's table, in that layout.
    pub(super) table: String,
    pub(super) create: bool,
    pub(super) pooler: Pooler,
    /// The default lease; each claim says its own.
    pub(super) ttl: Duration,
    pub(super) drift_permille: u32,
    pub(super) connect_timeout: Duration,
    pub(super) request_timeout: Duration,
    /// The kernel ends a connection on which nothing was heard for so long.
    pub(super) silence: Option<Duration>,
    /// In which schema the first connection found the tables.
    found: OnceLock<String>,
}

impl PostgresOptions {
    /// Takes everything out of the URL.
    ///
    /// # Errors
    /// `InvalidArgument`, naming what to write instead.
    pub(super) fn take(url: &mut EngineUrl, common: &Common) -> Result<Self> {
        let addresses = addresses(url)?;
        let database = std::mem::take(&mut url.path);
        let database = database.trim_start_matches('/').to_owned();
        if [&database].into_iter().chain(&url.user).any(|text| text.contains('\0')) {
            return Err(wrong("the user and the database of a URL have no NUL (%00) in them"));
        }
        let tls = tls(url, &addresses)?;
        let time = |time: Option<Duration>, default: u64| {
            time.unwrap_or_else(|| Duration::from_secs(default))
        };
        let connect_timeout = time(url.take_duration("connect_timeout")?, 5);
        let request_timeout = time(url.take_duration("request_timeout")?, 2);
        if connect_timeout.is_zero() || request_timeout.is_zero() {
            return Err(wrong("connect_timeout and request_timeout cannot be 0"));
        }
        let prefix = url.take("prefix").unwrap_or_else(|| "lockkeeper".to_owned());
        let table = url.take("table").unwrap_or_else(|| "shedlock".to_owned());
        let schema = url.take("schema");
        let named =
            [("prefix", Some(&prefix)), ("table", Some(&table)), ("schema", schema.as_ref())];
        for (option, text) in named {
            // The server cuts longer names.
            if text.is_some_and(|text| text.len() > 48 || text.is_empty()) {
                return Err(wrong(format!("{option} has 1 to 48 bytes")));
            }
            // Braces are where the statements have the names of the tables.
            let odd = |c: char| c.is_control() || matches!(c, '{' | '}');
            if text.is_some_and(|text| text.contains(odd)) {
                let text = format!("{option} has neither braces nor control characters");
                return Err(wrong(text));
            }
        }
        Ok(Self {
            addresses,
            user: url.user.take(),
            password: Password::take(url)?,
            database: (!database.is_empty()).then_some(database),
            tls,
            schema,
            prefix,
            table,
            pooler: match url.take("pooler").as_deref() {
                Some("session") => Pooler::Session,
                Some("transaction") => Pooler::Transaction,
                _ => Pooler::Unsaid,
            },
            create: url.take_bool("create")?.unwrap_or(true),
            ttl: common.ttl,
            drift_permille: common.drift_per_mille,
            connect_timeout,
            request_timeout,
            silence: None,
            found: OnceLock::new(),
        })
    }

    /// Other tables than those of the first connection would grant what is held.
    ///
    /// # Errors
    /// `Refused`: a search path changed.
    pub(super) fn stays_in(&self, schema: &str) -> Result<()> {
        let first = self.found.get_or_init(|| schema.to_owned());
        if first == schema {
            return Ok(());
        }
        let text = format!(
            "the tables in the server at {} are found in the schema {schema:?} now, and were in \
             {first:?}: say which with schema=",
            self.at()
        );
        Err(Error::new(ErrorKind::Refused, text))
    }

    /// Whether a connection may make what is missing. A later one than the first may have another
    /// search path, unless the URL names the schema.
    pub(super) fn makes(&self) -> bool {
        self.create && (self.schema.is_some() || self.found.get().is_none())
    }

    /// Where the server is, as messages say it.
    pub(super) fn at(&self) -> String {
        let at: Vec<String> = self.addresses.iter().map(Address::to_string).collect();
        at.join(", ")
    }

    /// A statement, with the names of the tables in it.
    pub(super) fn sql(&self, statement: &str) -> String {
        self.sql_in(self.schema.as_deref(), statement)
    }

    /// The same, with the schema of the tables, or as the connection's search path finds them.
    pub(super) fn sql_in(&self, schema: Option<&str>, statement: &str) -> String {
        let table = |what: &str| {
            let table = quoted(&format!("{}_{what}", self.prefix));
            match schema {
                Some(schema) => format!("{}.{table}", quoted(schema)),
                None => table,
            }
        };
        statement
            .replace("{locks}", &table("locks"))
            .replace("{line}", &table("line"))
            .replace("{layout}", &table("layout"))
            .replace("{numbers}", &quoted(&format!("{}_locks_number", self.prefix)))
            .replace("{claims}", &quoted(&format!("{}_line_claim", self.prefix)))
            .replace("{now}", "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint")
    }

    /// The same with the least rights for the user of the URL.
    pub(super) fn schema_and_rights(&self) -> String {
        let user = quoted(self.user.as_deref().unwrap_or("lockkeeper"));
        let usage = self
            .schema
            .as_ref()
            .map(|schema| format!("GRANT USAGE ON SCHEMA {} TO {user};\n", quoted(schema)));
        let rights = self.sql(&format!(
            "GRANT SELECT ON {layout} TO {user};\n\
             GRANT SELECT, INSERT, UPDATE, DELETE ON {locks}, {line} TO {user};\n",
            layout = "{layout}",
            locks = "{locks}",
            line = "{line}"
        ));
        let under = self.sql(
            "-- Another role that runs the statements of guard.statement() needs USAGE on the\n\
             -- schema, and GRANT SELECT, UPDATE (line) ON {locks} TO that_role;\n",
        );
        format!("{}{}{rights}{under}", self.schema_sql(), usage.unwrap_or_default())
    }

    /// The statements that make the tables.
    pub(super) fn schema_sql(&self) -> String {
        let schema = self
            .schema
            .as_ref()
            .map(|schema| format!("CREATE SCHEMA IF NOT EXISTS {};\n", quoted(schema)));
        format!("{}{}", schema.unwrap_or_default(), self.sql(include_str!("schema.sql")))
    }
}

pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn addresses(url: &mut EngineUrl) -> Result<Vec<Address>> {
    let socket = url.take("socket").map(PathBuf::from);
    if let Some(dir) = socket {
        if url.hosts.iter().any(|(host, _)| !host.is_empty()) {
            return Err(wrong("socket= goes without a host: write postgres:///db?socket=/dir"));
        }
        if !dir.is_absolute() {
            return Err(wrong("socket= is the absolute path of the directory of the socket"));
        }
        return Ok(vec![Address::Unix(dir, PORT)]);
    }
    let of =
        |(host, port): &(String, Option<u16>)| Address::Tcp(host.clone(), port.unwrap_or(PORT));
    let addresses: Vec<_> = url.hosts.iter().map(of).collect();
    if addresses.is_empty() {
        return Err(wrong(
            "the URL names no host: write postgres://host/db, or postgres:///db?socket=/dir for a \
             server on this machine",
        ));
    }
    Ok(addresses)
}

/// Encrypted and checked, except to this machine.
fn tls(url: &mut EngineUrl, addresses: &[Address]) -> Result<Option<Tls>> {
    let here = |address: &Address| match address {
        Address::Unix(..) => true,
        Address::Tcp(host, _) => {
            host == "localhost"
                || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
        }
    };
    let on = match url.take("sslmode").as_deref() {
        Some("disable") => false,
        Some(_) => true,
        None => !addresses.iter().all(here),
    };
    for (ours, libpq) in [("tls_ca", "sslrootcert"), ("tls_cert", "sslcert"), ("tls_key", "sslkey")]
    {
        if let Some(file) = url.take(libpq) {
            url.set(ours, file);
        }
    }
    let tls = Tls::take(url, on, "add sslmode=verify-full");
    tls.map_err(errors::libpq)
}
