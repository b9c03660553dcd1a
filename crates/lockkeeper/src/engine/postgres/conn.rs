//! A connection that statements are asked on: its settings, and how long an answer may take.
//!
//! Behind a pooler in transaction mode nothing lasts longer than a transaction: neither a setting
//! nor a statement's name. There each question is a transaction with its settings, in three
//! messages that leave together, and its statement has no name. It also asks for a mark that nobody
//! else has: a pooler that mixes up whose answer is whose must not tell somebody that he holds what
//! another was granted (pgbouncer before 1.21 can, where a client dies between two transactions).

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::types::{FromSql, ToSql, Type};
use tokio_postgres::{Client, Row as Found, SimpleQueryMessage, Statement};

use super::errors::{self, Broken};
use super::facts::{Facts, facts};
use super::options::{Pooler, PostgresOptions};
use super::pooler;
use super::wire::lock_timeout;
use crate::words::clock::Clock;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;

/// See the module.
pub(super) struct Conn {
    pub(super) client: Client,
    pub(super) options: Arc<PostgresOptions>,
    end: watch::Sender<bool>,
    /// When it was answered last.
    heard: Mutex<Instant>,
    /// What begins a transaction behind a pooler.
    begin: Option<String>,
    /// Whose messages leave.
    turn: Mutex<()>,
}

/// A statement that is asked again and again.
pub(super) enum Ask {
    Prepared(Statement),
    /// Behind a pooler it has no name: its text, and the types of its arguments.
    Unnamed(String, &'static [Type]),
}

type Reply<T> = std::result::Result<T, tokio_postgres::Error>;

/// What is made of a connection before it is used.
pub(super) trait Ready: Send + Sync + Sized + 'static {
    /// What the server said about itself.
    type Facts: Clone + Send;

    /// Makes a connection ready, on which is listened to `channel`; `end` gives it up.
    ///
    /// # Errors
    /// What keeps the server from being used.
    fn ready(
        client: Client,
        options: Arc<PostgresOptions>,
        channel: &str,
        clock: &Clock,
        end: watch::Sender<bool>,
    ) -> impl Future<Output = Result<Self>> + Send;

    fn facts(&self) -> &Self::Facts;
}

pub(super) fn garbage(options: &PostgresOptions) -> Error {
    let text = format!(
        "the server at {} answers what lockkeeper did not ask: are its tables lockkeeper's?",
        options.at()
    );
    Error::new(ErrorKind::Corrupt, text)
}

impl Conn {
    /// Sets how the server is to run what is asked, and asks what it is; a server that takes no
    /// writes is refused.
    ///
    /// # Errors
    /// What keeps the server from being used.
    pub(super) async fn new(
        client: Client,
        options: Arc<PostgresOptions>,
        listen: Option<&str>,
        clock: &Clock,
        end: watch::Sender<bool>,
    ) -> Result<(Self, Facts)> {
        let failed = |error: tokio_postgres::Error| errors::statement(&options, &error).error;
        // First, because what is set on a pooler's connection stays there for the next client.
        let pooled = match options.pooler {
            Pooler::Session => false,
            Pooler::Transaction => true,
            Pooler::Unsaid => pooler::stands_between(&client).await.map_err(failed)?,
        };
        if pooled && listen.is_none() {
            return Err(pooler::refused(&options));
        }
        if !pooled {
            let listen =
                listen.map(|channel| format!("; LISTEN \"{channel}\"")).unwrap_or_default();
            let settings = format!(
                "SET default_transaction_isolation = 'read committed'; \
                 SELECT set_config(name, '0', false) FROM pg_settings \
                 WHERE name = 'idle_session_timeout'; {}{listen}",
                settings(&options, false)
            );
            client.batch_execute(&first(options.request_timeout)).await.map_err(failed)?;
            client.batch_execute(&settings).await.map_err(failed)?;
        }
        let begin = pooled.then(|| {
            format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL search_path TO DEFAULT; {}",
                settings(&options, true)
            )
        });
        let heard = Mutex::new(Instant::now());
        let conn = Self { client, options, end, heard, begin, turn: Mutex::new(()) };
        let facts = facts(&conn, clock).await?;
        let options = &conn.options;
        if facts.replica || facts.read_only {
            let text = format!(
                "the server at {} takes no writes: it is a replica, or its transactions are \
                 read-only; name the primary",
                options.at()
            );
            return Err(Error::new(ErrorKind::Refused, text));
        }
        Ok((conn, facts))
    }

    /// What begins a transaction, if a pooler gives each one another connection.
    pub(super) fn pooled(&self) -> Option<&str> {
        self.begin.as_deref()
    }

    /// Makes a statement ready, whose arguments have these types.
    ///
    /// # Errors
    /// The server's.
    pub(super) async fn prepare(&self, text: String, types: &'static [Type]) -> Result<Ask> {
        if self.begin.is_some() {
            return Ok(Ask::Unnamed(text, types));
        }
        let prepared = self.client.prepare_typed(&text, types).await;
        prepared.map(Ask::Prepared).map_err(|error| self.broken(&error).error)
    }

    /// Ends the connection: nothing more is asked on it.
    pub(super) fn end(&self) {
        self.end.send_replace(true);
    }

    /// Runs a statement. A connection on which nothing is answered for so long is given up; one
    /// that is behind others which are waits.
    pub(super) async fn ask(
        &self,
        ask: &Ask,
        arguments: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Found>, Broken> {
        match ask {
            Ask::Prepared(statement) => {
                let asked = self.client.query(statement, arguments);
                self.within(async { asked.await.map_err(|error| self.broken(&error)) }).await
            }
            Ask::Unnamed(text, types) => self.once(text, arguments, types).await,
        }
    }

    /// A statement that has no name.
    pub(super) async fn once(
        &self,
        sql: &str,
        arguments: &[&(dyn ToSql + Sync)],
        types: &[Type],
    ) -> Result<Vec<Found>, Broken> {
        let arguments = typed(arguments, types);
        self.within(self.whole(self.client.query_typed(sql, &arguments))).await
    }

    /// A statement that is seldom needed; answers how many rows it changed.
    pub(super) async fn seldom(
        &self,
        sql: &str,
        arguments: &[&(dyn ToSql + Sync)],
        types: &'static [Type],
    ) -> Result<u64, Broken> {
        let arguments = typed(arguments, types);
        self.within(self.whole(self.client.execute_typed(sql, &arguments))).await
    }

    fn broken(&self, error: &tokio_postgres::Error) -> Broken {
        // It is no answer to what was asked, and those behind it would be taken for the next ones'.
        // A server that takes no writes any more is left: another one may be where it was.
        let read_only = |db: &DbError| *db.code() == SqlState::READ_ONLY_SQL_TRANSACTION;
        if error.as_db_error().is_none_or(read_only) {
            self.end();
        }
        errors::statement(&self.options, error)
    }

    /// What is asked; behind a pooler as a transaction of its own.
    async fn whole<T>(&self, asked: impl Future<Output = Reply<T>>) -> Result<T, Broken> {
        let Some(begin) = &self.begin else {
            return asked.await.map_err(|error| self.broken(&error));
        };
        let mark = ClaimId::fresh().to_string();
        let begin = format!("{begin}; SELECT '{mark}'");
        let mut begun = pin!(self.client.simple_query(&begin));
        let mut asked = pin!(asked);
        let mut ended = pin!(self.client.batch_execute("COMMIT"));
        let (mut first, mut answer, mut last) = (None, None, None);
        let mut sent = false;
        let all = poll_fn(|cx| {
            // Each is sent when it is polled first: nothing of another question comes between.
            let turn = (!sent).then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
            sent = true;
            poll(cx, &mut first, begun.as_mut());
            poll(cx, &mut answer, asked.as_mut());
            poll(cx, &mut last, ended.as_mut());
            drop(turn);
            if first.is_none() || last.is_none() {
                return Poll::Pending;
            }
            match answer.take() {
                Some(answer) => Poll::Ready((first.take(), answer, last.take())),
                None => Poll::Pending,
            }
        });
        match all.await {
            (Some(Ok(begun)), _, _) if !bears(&begun, &mark) => Err(self.garbage()),
            // Nothing began, and the statement may have been carried out all the same. No error
            // bears a mark, either: it may be another's.
            (Some(Err(error)), _, _) => Err(self.broken(&error).doubted()),
            (_, Err(error), _) | (_, Ok(_), Some(Err(error))) => Err(self.broken(&error)),
            (_, Ok(answer), _) => Ok(answer),
        }
    }

    async fn within<T>(&self, asked: impl Future<Output = Result<T, Broken>>) -> Result<T, Broken> {
        let within = self.options.request_timeout + Duration::from_millis(100);
        let heard = || self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let mut asked = pin!(asked);
        let mut until = Instant::now() + within;
        loop {
            if let Ok(answer) = timeout_at(until, asked.as_mut()).await {
                *heard() = Instant::now();
                return answer;
            }
            let next = *heard() + within;
            if next <= until {
                break;
            }
            until = next;
        }
        self.end();
        let why = format!("no answer within {:?}", self.options.request_timeout);
        Err(Broken::unknown(errors::unreachable(&self.options.at(), why)))
    }

    /// What came is no answer to what was asked. Through a pooler it may be another's, and those
    /// behind it, too.
    pub(super) fn garbage(&self) -> Broken {
        if self.begin.is_some() {
            self.end();
        }
        Broken::unknown(garbage(&self.options))
    }

    /// A column of a row.
    pub(super) fn get<'a, T: FromSql<'a>>(&self, row: &'a Found, at: usize) -> Result<T, Broken> {
        row.try_get(at).map_err(|_| self.garbage())
    }
}

/// Whether what came first is the answer to what was asked first.
fn bears(answer: &[SimpleQueryMessage], mark: &str) -> bool {
    answer.iter().any(|one| match one {
        SimpleQueryMessage::Row(row) => row.try_get(0).is_ok_and(|said| said == Some(mark)),
        _ => false,
    })
}

/// What is said first, alone: all that one message holds is under the limit that it began with,
/// and the role's own may be shorter than what follows takes.
pub(super) fn first(statement_timeout: Duration) -> String {
    format!("SET statement_timeout = {}", statement_timeout.as_millis())
}

/// How the server is to run what is asked: for the connection, or for the transaction that began.
fn settings(options: &PostgresOptions, local: bool) -> String {
    let (wait, lock) = (options.request_timeout, lock_timeout(options.request_timeout));
    let set = if local { "SET LOCAL" } else { "SET" };
    // A client that stops before its last message has left must not stand on a row.
    let idle = if local { wait } else { Duration::ZERO };
    format!(
        "{set} statement_timeout = {}; {set} lock_timeout = {}; \
         {set} idle_in_transaction_session_timeout = {}; {set} client_min_messages = warning; \
         SELECT set_config('synchronous_commit', 'on', {local}) \
         WHERE current_setting('synchronous_commit') IN ('off', 'local')",
        wait.as_millis(),
        lock.as_millis(),
        idle.as_millis()
    )
}

fn typed<'a>(
    arguments: &[&'a (dyn ToSql + Sync)],
    types: &[Type],
) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    debug_assert_eq!(arguments.len(), types.len(), "a type for each");
    arguments.iter().copied().zip(types.iter().cloned()).collect()
}

/// Polls a future that has not ended yet, and keeps its output.
fn poll<T>(cx: &mut Context<'_>, done: &mut Option<T>, future: Pin<&mut impl Future<Output = T>>) {
    if done.is_none()
        && let Poll::Ready(output) = future.poll(cx)
    {
        *done = Some(output);
    }
}
