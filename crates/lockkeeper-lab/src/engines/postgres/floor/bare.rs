//! A plain client that writes what lockkeeper writes, and nothing else.

use lockkeeper::url::EngineUrl;
use tokio_postgres::{Client, Connection, Socket, Statement, tls::NoTlsStream};

use crate::bench::uncontended::in_parallel;
use crate::bench::{Subject, text};
use crate::engines::postgres::client::{answered, dial, table};

/// What the rows of a URL look like.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Layout {
    Table,
    Session,
    ShedLock,
}

impl Layout {
    pub(super) fn of(url: &str) -> Self {
        let url = EngineUrl::parse(url).ok();
        match url.as_ref().and_then(|url| url.option("layout")) {
            Some("session") => Self::Session,
            Some("shedlock") => Self::ShedLock,
            _ => Self::Table,
        }
    }

    /// What it is measured beside.
    pub(super) fn floor(self) -> &'static str {
        match self {
            Self::Table => "the same UPDATEs alone, each a commit",
            Self::Session => "pg_try_advisory_lock and pg_advisory_unlock alone",
            Self::ShedLock => "ShedLock's UPDATEs alone, each a commit",
        }
    }

    /// The layout of our own has targets.
    pub(super) fn target(self, target: &'static str) -> &'static str {
        if self == Self::Table { target } else { "-" }
    }

    /// The statements that take and give back the lock of a name, `$1`. Each finds one row.
    fn statements(self, url: &str) -> [String; 2] {
        match self {
            Self::Table => {
                let locks = locks(url);
                let of = "kind = 0 AND name = convert_to($1, 'UTF8') AND NOT line";
                [
                    format!(
                        "UPDATE {locks} SET version = version + 1, \
                         number = greatest(number + 1, ({NOW} - 1767225600000000) / 16), \
                         claim = '\\x00112233445566778899aabbccddeeff', since = {NOW}, \
                         ends = {NOW} + 30000000, record = repeat('floor ', 20) \
                         WHERE {of} AND record = '' AND ends <= {NOW} \
                         RETURNING version, number, {NOW}"
                    ),
                    format!(
                        "UPDATE {locks} SET version = version + 1, number = number + 1, \
                         claim = NULL, since = 0, ends = 0, record = '' \
                         WHERE {of} AND claim = '\\x00112233445566778899aabbccddeeff' \
                         AND ends > {NOW} RETURNING version"
                    ),
                ]
            }
            Self::Session => {
                let key = "hashtextextended($1, 0)";
                [
                    format!("SELECT 1 WHERE pg_try_advisory_lock({key})"),
                    format!("SELECT 1 WHERE pg_advisory_unlock({key})"),
                ]
            }
            Self::ShedLock => {
                let own = EngineUrl::parse(url).ok().and_then(|mut url| url.take("table"));
                let locks = table(url, own.as_deref().unwrap_or("shedlock"));
                let now = "timezone('utc', clock_timestamp())";
                [
                    format!(
                        "UPDATE {locks} SET lock_until = {now} + interval '30 s', \
                         locked_at = {now} WHERE name = $1 AND lock_until <= {now} RETURNING 1"
                    ),
                    format!(
                        "UPDATE {locks} SET lock_until = {now} \
                         WHERE name = $1 AND lock_until > {now} RETURNING 1"
                    ),
                ]
            }
        }
    }
}

/// The server's clock, as lockkeeper reads it.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";

/// The table of locks.
pub(super) fn locks(url: &str) -> String {
    let prefix = EngineUrl::parse(url).ok().and_then(|mut url| url.take("prefix"));
    table(url, &format!("{}_locks", prefix.as_deref().unwrap_or("lockkeeper")))
}

/// A connection of its own, whose commits are waited for as lockkeeper's are.
pub(super) async fn open(url: &str) -> Result<(Client, Connection<Socket, NoTlsStream>), String> {
    dial(url).await.map_err(text)
}

/// Sets what lockkeeper sets.
pub(super) async fn settle(client: &Client) -> Result<(), String> {
    let on = client.batch_execute("SET synchronous_commit = on");
    answered("use the database", on).await.map_err(text)
}

/// The same with its notifications left unread.
pub(super) async fn connect(url: &str) -> Result<Client, String> {
    let (client, connection) = open(url).await?;
    // Whoever asks hears that it ended.
    tokio::spawn(async move { _ = connection.await });
    settle(&client).await?;
    Ok(client)
}

/// Lets lockkeeper make the rows of these names, which are free then.
pub(super) fn make_rows(subject: &Subject, names: &[String]) -> Result<(), String> {
    let mutexes: Vec<_> = names.iter().map(|name| subject.locks.mutex(name)).collect();
    let count = u32::try_from(mutexes.len()).unwrap_or(u32::MAX);
    subject.runtime.block_on(async {
        in_parallel(&mutexes, count).await?;
        // A release is not waited for by whoever drops a guard.
        for mutex in &mutexes {
            _ = mutex.lock().await.map_err(text)?.release().await;
        }
        Ok(())
    })
}

/// See the module.
pub(super) struct Bare {
    client: Client,
    take: Statement,
    give: Statement,
}

impl Bare {
    pub(super) async fn connect(url: &str, layout: Layout) -> Result<Self, String> {
        let client = connect(url).await?;
        let [take, give] = layout.statements(url);
        let take = client.prepare(&take).await.map_err(text)?;
        let give = client.prepare(&give).await.map_err(text)?;
        Ok(Self { client, take, give })
    }

    async fn one(&self, statement: &Statement, name: &str) -> Result<(), String> {
        match self.client.query(statement, &[&name]).await.map_err(text)?.len() {
            1 => Ok(()),
            _ => Err(format!("the floor's own row of {name} was not found as it was left")),
        }
    }

    /// Takes the lock of a name and gives it back, so often. As with a guard that is dropped, the
    /// answer that it was given back is not waited for before it is taken again.
    pub(super) async fn cycles(&self, name: &str, count: u32) -> Result<(), String> {
        self.one(&self.take, name).await?;
        for _ in 1..count {
            let (gave, took) = tokio::join!(self.one(&self.give, name), self.one(&self.take, name));
            gave.and(took)?;
        }
        self.one(&self.give, name).await
    }
}
