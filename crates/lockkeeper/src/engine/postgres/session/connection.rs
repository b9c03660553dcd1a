//! One connection of ours: its settings, its questions, and what it proves.

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_postgres::{Client, SimpleQueryMessage, SimpleQueryRow};

use super::super::conn::{first, garbage};
use super::super::errors::{self, Broken};
use super::super::options::Address;
use super::super::pooler;
use super::super::wire::{Looks, dial, drive};
use super::name::Key;
use super::options::Options;
use crate::engine::BoxFuture;
use crate::engine::either::either;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{ClaimId, LeaseId};

/// What the server said about itself.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) version: String,
    pub(super) database: String,
    pub(super) user: String,
    /// It lets us say how long it keeps a connection of which it hears nothing.
    pub(super) bounded: bool,
    /// How many locks this process may have of those that the server has room for.
    pub(super) locks_max: usize,
    /// Others follow it, and may be promoted.
    pub(super) has_standby: bool,
}

/// What part of the server's lock table a process takes at most: once it is full nobody can connect
/// any more.
const SHARE: usize = 8;

/// A connection that may be left in the server, which has not noticed that it ended: its process,
/// and when that began. The number alone may be somebody else's by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ghost {
    pid: i32,
    born: i64,
}

/// See the module.
pub(super) struct Connection {
    /// The lease of all that it has.
    pub(super) lease: LeaseId,
    pub(super) ghost: Ghost,
    pub(super) facts: Facts,
    /// Before this a lock may be somebody's whose connection the server has forgotten.
    pub(super) settled: Ticks,
    /// How many locks it has.
    pub(super) holds: AtomicUsize,
    client: Client,
    options: Arc<Options>,
    end: watch::Sender<bool>,
    /// When it was answered last.
    heard: Mutex<Instant>,
}

/// How a statement that waits for a lock ended.
pub(super) enum Waited {
    Granted,
    /// Called off, by us or by somebody else: nothing of it is there.
    Cancelled,
    Broken(Error),
}

fn shared(shared: bool) -> &'static str {
    if shared { "_shared" } else { "" }
}

fn text(row: &SimpleQueryRow, at: usize) -> Option<&str> {
    row.try_get(at).ok().flatten()
}

impl Ghost {
    pub(super) fn pid(&self) -> i32 {
        self.pid
    }
}

impl Connection {
    /// Dials one address, which takes the connection by `until`, and makes it ready; with what
    /// drives it.
    ///
    /// # Errors
    /// What keeps the server from being used.
    pub(super) async fn open(
        options: &Arc<Options>,
        address: &Address,
        label: &str,
        until: Instant,
        clock: &Clock,
    ) -> Result<(Self, BoxFuture<String>)> {
        let (client, wire) = dial(&options.server, address, label, until).await?;
        let end = watch::Sender::new(false);
        let mut driver: BoxFuture<String> = Box::pin(drive(wire, end.subscribe(), |_, _| {}));
        let ready = Self::ready(client, options.clone(), end, clock);
        match either(ready, driver.as_mut()).await {
            Ok(ready) => Ok((ready?, driver)),
            Err(why) => Err(errors::unreachable(&address.to_string(), why)),
        }
    }

    async fn ready(
        client: Client,
        options: Arc<Options>,
        end: watch::Sender<bool>,
        clock: &Clock,
    ) -> Result<Self> {
        let server = &options.server;
        let failed = |error: tokio_postgres::Error| errors::statement(server, &error).error;
        // Before anything is set that could stay on a pooler's connection.
        if pooler::stands_between(&client).await.map_err(failed)? {
            return Err(pooler::refused_for_session(server));
        }
        let Looks { idle, interval, count } = Looks::within(options.session);
        let settings = include_str!("settings.sql")
            .replace("{idle}", &idle.to_string())
            .replace("{interval}", &interval.to_string())
            .replace("{count}", &count.to_string())
            .replace("{user}", &options.session.as_millis().to_string());
        client.batch_execute(&first(Duration::ZERO)).await.map_err(failed)?;
        client.simple_query(&settings).await.map_err(failed)?;
        // Not on every system that a server runs on.
        _ = client.simple_query(include_str!("watchful.sql")).await;
        let answer = client.simple_query(include_str!("facts.sql")).await.map_err(failed)?;
        // It measured its age before this.
        let told = clock.now();
        let row = rows(answer).into_iter().next().ok_or_else(|| garbage(server))?;
        let says = |at: usize| text(&row, at).map(str::to_owned).ok_or_else(|| garbage(server));
        if says(2)? == "t" {
            let text = format!(
                "the server at {} is a replica, whose advisory locks nobody else sees: name the \
                 primary",
                server.at()
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        let pid = says(0)?.parse().map_err(|_| garbage(server))?;
        let up = text(&row, 7).and_then(|up| up.parse().ok()).unwrap_or(0);
        let young = options.session.saturating_sub(Duration::from_millis(up));
        let facts = Facts {
            version: says(3)?,
            database: says(4)?,
            user: says(5)?,
            bounded: text(&row, 6).is_some_and(|time| !matches!(time, "" | "0")),
            locks_max: text(&row, 8)
                .and_then(|room| room.parse::<usize>().ok())
                .map_or(usize::MAX, |room| (room / SHARE).max(1)),
            has_standby: text(&row, 9).is_some_and(|count| count != "0"),
        };
        Ok(Self {
            lease: LeaseId(ClaimId::fresh().0),
            ghost: Ghost { pid, born: says(1)?.parse().map_err(|_| garbage(server))? },
            facts,
            settled: told.plus(young),
            holds: AtomicUsize::new(0),
            client,
            options: options.clone(),
            end,
            heard: Mutex::new(Instant::now()),
        })
    }

    /// Whether it ended, or is going to.
    pub(super) fn is_over(&self) -> bool {
        *self.end.borrow() || self.client.is_closed()
    }

    /// Ends it: nothing more is asked on it.
    pub(super) fn end(&self) {
        self.end.send_replace(true);
    }

    /// Runs a statement. A connection that has locks is given up only once the server may have
    /// given it up; any other one as soon as an answer takes too long.
    pub(super) async fn ask(&self, sql: &str) -> std::result::Result<Vec<SimpleQueryRow>, Broken> {
        let server = &self.options.server;
        let heard = || self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let mut asked = pin!(self.client.simple_query(sql));
        loop {
            if let Ok(answer) = timeout(server.request_timeout, asked.as_mut()).await {
                *heard() = Instant::now();
                return answer.map(rows).map_err(|error| errors::statement(server, &error));
            }
            let holds = self.holds.load(Ordering::Acquire) > 0;
            let patience = if holds { self.options.session } else { server.request_timeout };
            let since = began.max(*heard());
            if since.elapsed() >= patience {
                break;
            }
        }
        self.end();
        let why = format!("no answer within {:?}", server.request_timeout);
        Err(Broken::unknown(errors::unreachable(&server.at(), why)))
    }

    /// The one value that a statement answers.
    pub(super) async fn value(&self, sql: &str) -> std::result::Result<String, Broken> {
        let rows = self.ask(sql).await?;
        let value = rows.first().and_then(|row| text(row, 0)).map(str::to_owned);
        value.ok_or_else(|| Broken::unknown(garbage(&self.options.server)))
    }

    /// Whether a statement answered yes.
    async fn is(&self, sql: &str) -> std::result::Result<bool, Broken> {
        Ok(self.value(sql).await? == "t")
    }

    pub(super) async fn try_lock(
        &self,
        key: Key,
        reads: bool,
    ) -> std::result::Result<bool, Broken> {
        let (how, arguments) = (shared(reads), key.arguments());
        let try_lock = format!("SELECT pg_try_advisory_lock{how}({arguments})");
        match self.is(&try_lock).await {
            // No error takes such a lock back: it may be there.
            Err(broken) if broken.certain => match self.has(key).await {
                Ok(true) => Ok(true),
                Ok(false) if broken.repeat => self.is(&try_lock).await.map_err(Broken::doubted),
                Ok(false) => Err(broken),
                Err(unknown) => Err(unknown.doubted()),
            },
            done => done,
        }
    }

    /// Stands in the server's line until the lock is there.
    pub(super) async fn wait(&self, key: Key, reads: bool) -> Waited {
        let (how, key) = (shared(reads), key.arguments());
        let lock = format!("SELECT pg_advisory_lock{how}({key})");
        match self.client.simple_query(&lock).await {
            Ok(_) => Waited::Granted,
            Err(error) => match errors::statement(&self.options.server, &error) {
                broken if broken.repeat => Waited::Cancelled,
                broken => Waited::Broken(broken.error),
            },
        }
    }

    /// Whether the connection has a lock.
    pub(super) async fn has(&self, key: Key) -> std::result::Result<bool, Broken> {
        let (class, object, form) = key.row();
        let has = format!(
            "SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND granted \
             AND pid = pg_backend_pid() \
             AND classid = {class} AND objid = {object} AND objsubid = {form}"
        );
        match self.is(&has).await {
            Err(broken) if broken.repeat => self.is(&has).await,
            done => done,
        }
    }

    /// Gives a lock back; false: the connection did not have it.
    pub(super) async fn unlock(&self, key: Key, reads: bool) -> std::result::Result<bool, Broken> {
        let (how, key) = (shared(reads), key.arguments());
        let unlock = format!("SELECT pg_advisory_unlock{how}({key})");
        match self.is(&unlock).await {
            // Somebody meant a statement before it.
            Err(broken) if broken.repeat => self.is(&unlock).await,
            done => done,
        }
    }

    /// Whether the same process of the server still answers; when that was asked. A pooler that
    /// gives each transaction another one shows itself here.
    pub(super) async fn prove(&self, clock: &Clock) -> std::result::Result<Ticks, Broken> {
        let before = clock.now();
        if self.value("SELECT pg_backend_pid()").await? == self.ghost.pid.to_string() {
            return Ok(before);
        }
        self.end();
        Err(Broken::unknown(pooler::refused_for_session(&self.options.server)))
    }

    /// Calls off what another connection of ours waits for.
    pub(super) async fn call_off(&self, waits: &Ghost) -> std::result::Result<bool, Broken> {
        let Ghost { pid, born } = waits;
        let cancel = format!(
            "SELECT count(pg_cancel_backend(pid)) > 0 FROM pg_stat_activity WHERE pid = {pid} \
             AND (extract(epoch FROM backend_start) * 1000000)::bigint = {born}"
        );
        self.is(&cancel).await
    }

    /// Ends what a connection that broke has left in the server; false: nothing is left.
    pub(super) async fn lay(&self, ghost: &Ghost) -> std::result::Result<bool, Broken> {
        let Ghost { pid, born } = ghost;
        let end = format!(
            "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity \
             WHERE pid = {pid} AND pid <> pg_backend_pid() AND usename = current_user \
             AND (extract(epoch FROM backend_start) * 1000000)::bigint = {born}"
        );
        self.is(&end).await
    }
}

/// The rows of an answer.
fn rows(answer: Vec<SimpleQueryMessage>) -> Vec<SimpleQueryRow> {
    let row = |message| match message {
        SimpleQueryMessage::Row(row) => Some(row),
        _ => None,
    };
    answer.into_iter().filter_map(row).collect()
}
