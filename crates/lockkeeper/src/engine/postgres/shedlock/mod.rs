//! The layout `shedlock`: the table of the Java library ShedLock, as its JDBC providers write it.
//!
//! | file | what it is |
//! |---|---|
//! | `table`, `*.sql` | the table, whether it is the one, and the statements |
//! | `claims` | the claims of one process, pure |
//! | `who`, `clocks` | what stands in `locked_by`; by which clock others lock |
//! | `store`, `opened` | the statements with their answers; the layout while it is open |
//! | `describe` | what it promises |
//!
//! A name is locked while its row's `lock_until` has not passed, by the server's clock in UTC.
//! There is no line, no token, and nobody is told of a release. A holder's `locked_by` has its
//! claim in it, so that nobody's release frees somebody else's lock.

mod claims;
mod clocks;
mod describe;
mod opened;
mod record;
mod store;
mod table;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, OnceLock};

use tokio_postgres::types::Type;

use self::claims::{Claims, Rules};
use self::opened::{Opened, unsupported};
use super::link::Link;
use super::options::PostgresOptions;
use super::watch::Watches;
use crate::engine::parting::Partings;
use crate::engine::{
    Answer, Attempt, Change, Claim, Context, End, Engine, Line, Query, Released, Renewal, Standing,
    WatchId,
};
use crate::words::claim::Entry;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Description, Warning};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::name::Name;

/// The engine; nothing is sent before [`Engine::open`].
pub(super) struct ShedLock {
    options: Arc<PostgresOptions>,
    opened: OnceLock<Arc<Opened>>,
}

/// What makes the table, and the rights that its user needs.
pub(super) fn schema(options: &PostgresOptions) -> String {
    table::schema_and_rights(options)
}

impl ShedLock {
    pub(super) fn new(options: PostgresOptions) -> Self {
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
}

impl Engine for ShedLock {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let rules = Rules {
            drift_permille: self.options.drift_permille,
            request_timeout: self.options.request_timeout,
        };
        let nothing = Arc::new(|_: &str| ());
        let opened = Arc::new(Opened {
            link: Arc::new(Link::new(self.options.clone(), context, String::new(), nothing)),
            claims: Mutex::new(Claims::new(rules)),
            watches: Watches::default(),
            parting: Partings::default(),
        });
        if self.opened.set(opened.clone()).is_err() {
            let error = Error::new(ErrorKind::InvalidArgument, "the engine is open already");
            return Answer::Now(Err(error));
        }
        Answer::later(async move {
            let driver = opened.link.connect().await?;
            if let Some(facts) = opened.link.facts() {
                opened.claims().heard(facts.server.now, facts.server.before);
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
        let opened = match self.opened() {
            Ok(opened) => opened.clone(),
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        };
        match opened.begin(claim, line) {
            Err(error) => Answer::Now(Attempt::Failed(error)),
            Ok(Some(waits)) => Answer::Now(waits),
            Ok(None) => {
                let patience = opened.patience(claim);
                Answer::later(opened.asked(claim.id, patience))
            }
        }
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
            parting.count(async move { opened.leave(claim).await })
        };
        self.answer(leave, |_| End::NotOurs)
    }

    fn convert(&self, _: HoldId, _: &Claim) -> Answer<Attempt> {
        let error = unsupported("layout=shedlock cannot convert a hold: use layout=table");
        Answer::Now(Attempt::Failed(error))
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
        self.answer(
            |opened| {
                let parting = opened.parting.clone();
                parting.count(async move { opened.release_all(&holds, again.as_ref()).await })
            },
            |_| Released { ends: vec![End::NotOurs; count], again: None },
        )
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        let query = query.clone();
        self.answer(|opened| async move { opened.look(&query).await }, Err)
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        match change.clone() {
            Change::Force(kind, name, from) => {
                self.answer(|opened| async move { opened.force(kind, &name, &from).await }, Err)
            }
            Change::LatchSet(..) | Change::LatchCountDown(..) => {
                Answer::Now(Err(unsupported("layout=shedlock has no latches: use layout=table")))
            }
            Change::Resize(..) => {
                Answer::Now(Err(unsupported("layout=shedlock stores no limit: use layout=table")))
            }
        }
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        match self.opened() {
            Ok(opened) => {
                Watches::begin(opened, watch, query.clone());
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
            let store = opened.store().await?;
            let cleared =
                store.seldom(include_str!("clear.sql"), &[&name.as_str()], &[Type::TEXT]).await;
            cleared.map(|_| Vec::new()).map_err(|broken| broken.error)
        };
        self.answer(clear, Err)
    }

    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let word = word.to_owned();
        let sweep = |opened: Arc<Opened>| async move {
            let store = opened.store().await?;
            let swept =
                store.seldom(include_str!("sweep.sql"), &[&word.as_str()], &[Type::TEXT]).await;
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
