//! PostgreSQL: one row a name, the optimistic lock on its version, and NOTIFY for those who wait.
//!
//! | file | what it is |
//! |---|---|
//! | `options`, `registration`, `describe`, `errors` | what the URL says, what the server promises, what its errors mean |
//! | `environment` | what libpq would read there, and we refuse |
//! | `*.sql`, `asks` | the tables and the statements; the types of their arguments |
//! | `wire`, `conn`, `link` | one connection; what is asked on it; how it is made again |
//! | `facts` | what the server is, and its tables |
//! | `store` | the statements with their questions and answers |
//! | `doing` | reading, deciding and writing, until nobody wrote in between |
//! | `leases`, `together`, `watch` | leases; several names at once; watches |
//! | `statement`, `kept` | what a holder's own transaction asks, and the names that it keeps |
//! | `session` | the layout `session`: advisory locks of a connection |
//! | `shedlock` | the layout `shedlock`: the table of the Java library ShedLock |
//! | `pooler` | whether something stands between us and the server |
//!
//! Who is granted and what stands in the rows is [`super::sql`]. One connection a process asks and
//! listens: no statement of ours waits for longer than `lock_timeout`, which is set on it. Behind a
//! pooler in transaction mode it hears nothing, and whoever waits there looks.

mod asks;
mod conn;
mod describe;
mod doing;
mod environment;
mod errors;
mod facts;
mod kept;
mod leases;
mod link;
mod options;
mod pooler;
mod registration;
mod session;
mod shedlock;
mod statement;
mod store;
#[cfg(test)]
mod tests;
mod together;
mod watch;
mod wire;

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use self::doing::Opened;
use self::link::Link;
use self::options::PostgresOptions;
pub(crate) use self::registration::registration;
use super::parting::Partings;
use super::sql::ask::entry;
use super::sql::claims::{Claims, Rules};
use super::sql::push::Push;
use super::{
    Answer, Attempt, Change, Claim, Context, End, Engine, Line, Query, Released, Renewal, Standing,
    Statement, WatchId,
};
use crate::words::claim::Entry;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Description, Warning};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::name::{Kind, Name};

/// How many waiters of one name are told of.
const WAITERS_SHOWN: i64 = 1000;

/// The engine; nothing is sent before [`Engine::open`].
pub(crate) struct Postgres {
    options: Arc<PostgresOptions>,
    opened: OnceLock<Arc<Opened>>,
}

impl Postgres {
    fn new(options: PostgresOptions) -> Self {
        Self { options: Arc::new(options), opened: OnceLock::new() }
    }

    fn opened(&self) -> Result<&Arc<Opened>> {
        self.opened.get().ok_or_else(|| Error::new(ErrorKind::Closed, "the engine is not open"))
    }

    /// Asks what is open; before that, the answer is what `closed` makes of the error.
    fn answer<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        ask: impl FnOnce(Arc<Opened>) -> F,
        closed: impl FnOnce(Error) -> T,
    ) -> Answer<T> {
        match self.opened() {
            Ok(opened) => Answer::later(ask(opened.clone())),
            Err(error) => Answer::Now(closed(error)),
        }
    }

    fn ask(&self, claim: &Claim, line: Line, hold: Option<HoldId>) -> Answer<Attempt> {
        if claim.kind == Kind::Latch {
            let error = Error::new(ErrorKind::Unsupported, "a latch is not held");
            return Answer::Now(Attempt::Failed(error));
        }
        let opened = match self.opened() {
            Ok(opened) => opened.clone(),
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        };
        let now = opened.link.context.clock.now();
        opened.claims().ask(now, claim, line, hold);
        let left = claim.give_up.map_or(Duration::MAX, |at| at.since(now));
        Answer::later(opened.asked(claim.id, self.options.connect_timeout.min(left)))
    }
}

impl Engine for Postgres {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let channel = format!("lockkeeper_{}", ClaimId::fresh());
        let rules = Rules {
            channel: channel.clone(),
            drift_permille: self.options.drift_permille,
            request_timeout: self.options.request_timeout,
        };
        let opened = Arc::new_cyclic(|weak: &std::sync::Weak<Opened>| {
            let weak = weak.clone();
            let hear = Arc::new(move |word: &str| {
                let Some(opened) = weak.upgrade() else { return };
                let clock = &opened.link.context.clock;
                let (now, stepped) = (clock.now(), clock.last_step());
                let push = Push::parse(word);
                let event = push.and_then(|push| {
                    let mut claims = opened.claims();
                    claims.stepped(stepped);
                    claims.pushed(now, &push)
                });
                if let Some(event) = event {
                    opened.link.context.events.send(event);
                }
            });
            Opened {
                link: Arc::new(Link::new(self.options.clone(), context, channel, hear)),
                claims: Mutex::new(Claims::new(rules)),
                watches: watch::Watches::default(),
                kept: kept::Kept::default(),
                parting: Partings::default(),
            }
        });
        if self.opened.set(opened.clone()).is_err() {
            let error = Error::new(ErrorKind::InvalidArgument, "the engine is open already");
            return Answer::Now(Err(error));
        }
        Answer::later(async move {
            let driver = opened.link.connect().await?;
            if let Some(facts) = opened.link.facts() {
                let mut claims = opened.claims();
                claims.heard(facts.now, facts.before);
                claims.hears(!facts.pooled);
            }
            let link = opened.link.clone();
            opened.link.context.spawner.spawn(link.keep(driver));
            Ok(())
        })
    }

    fn describe(&self) -> Description {
        let facts = self.opened.get().and_then(|opened| opened.link.facts());
        describe::describe(&self.options, facts.as_ref())
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.ask(claim, line, None)
    }

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        let (claims, count) = (claims.to_vec(), claims.len());
        self.answer(
            |opened| async move { opened.asked_all(claims).await },
            |error| vec![Attempt::Failed(error); count],
        )
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let (claims, count) = (claims.to_vec(), claims.len());
        self.answer(
            |opened| async move { opened.recheck(&claims).await },
            |error| vec![Standing::Gone(error); count],
        )
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        let leave = |opened: Arc<Opened>| {
            let parting = opened.parting.clone();
            parting.count(async move { opened.leave(claim, None).await.0 })
        };
        self.answer(leave, |_| End::NotOurs)
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        self.ask(claim, Line::Join, Some(hold))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let (leases, count) = (leases.to_vec(), leases.len());
        self.answer(
            |opened| async move { opened.renew(&leases).await },
            |error| vec![Renewal::Unknown(error); count],
        )
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let (holds, count, again) = (holds.to_vec(), holds.len(), again.cloned());
        let release = |opened: Arc<Opened>| {
            let parting = opened.parting.clone();
            parting.count(async move { opened.release_all(&holds, again.as_ref()).await })
        };
        self.answer(release, |_| Released { ends: vec![End::NotOurs; count], again: None })
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        let query = query.clone();
        let look = |opened: Arc<Opened>| async move {
            let store = opened.store().await?;
            match query {
                Query::One(kind, name) => {
                    let seen = store.read(kind, &name, None, (WAITERS_SHOWN, true)).await;
                    let seen = seen.map_err(|broken| broken.error)?;
                    Ok(vec![entry(kind, name, &seen)])
                }
                Query::Prefix(prefix) => {
                    let listed = store.list(&prefix).await.map_err(|broken| broken.error)?;
                    let entries =
                        listed.into_iter().map(|(kind, name, seen)| entry(kind, name, &seen));
                    Ok(entries.filter(Entry::is_in_use).collect())
                }
            }
        };
        self.answer(look, Err)
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        let change = change.clone();
        let write = |opened: Arc<Opened>| async move {
            match change {
                Change::LatchSet(name, count) => {
                    let set = opened.change(Kind::Latch, &name, |work| Ok(work.latch_set(count)));
                    set.await
                }
                Change::LatchCountDown(name, id) => {
                    opened.change(Kind::Latch, &name, |work| Ok(work.latch_down(id))).await
                }
                Change::Force(kind, name, from) => {
                    let from: Vec<ClaimId> = from.iter().filter_map(|h| h.claim).collect();
                    opened.change(kind, &name, |work| work.force(&from)).await
                }
                Change::Resize(name, limit) => {
                    opened.change(Kind::Semaphore, &name, |work| work.resize(limit)).await
                }
            }
        };
        self.answer(write, Err)
    }

    fn statement(&self, hold: HoldId) -> Answer<Result<Statement>> {
        self.answer(|opened| async move { opened.statement(hold).await }, Err)
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        match self.opened() {
            Ok(opened) => {
                watch::Watches::begin(opened, watch, query.clone());
                Answer::Now(Ok(()))
            }
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn unwatch(&self, watch: WatchId) {
        if let Ok(opened) = self.opened() {
            opened.watches.end(watch);
        }
    }

    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let name = name.clone();
        let clear = |opened: Arc<Opened>| async move {
            let kind = super::sql::record::kind_number(Kind::Lock);
            let store = opened.store().await?;
            let cleared = store.seldom(asks::CLEAR, &[&kind, &name.as_str().as_bytes()]).await;
            cleared.map(|_| Vec::new()).map_err(|broken| broken.error)
        };
        self.answer(clear, Err)
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let word = word.to_owned();
        let sweep = |opened: Arc<Opened>| async move {
            let store = opened.store().await?;
            let swept = store.seldom(asks::SWEEP, &[&word.as_bytes()]).await;
            swept.map(|rows| rows > 0).map_err(|broken| broken.error)
        };
        self.answer(sweep, Err)
    }

    fn close(&self) -> Answer<()> {
        let Ok(opened) = self.opened() else { return Answer::Now(()) };
        opened.watches.end_all();
        let opened = opened.clone();
        Answer::later(async move { opened.close().await })
    }
}
