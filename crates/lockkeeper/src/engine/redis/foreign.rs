//! An engine over a layout that belongs to other programs: asking, waiting for a wake-up, asking again.
//!
//! There is no line of ours on the server, so nobody is granted a lock unasked. A waiter is woken by the layout's channel or
//! by the invalidation of its key, and looks by itself when the holder's lease ends, not before 250 ms and not after 5 s.

mod asking;
mod glance;
mod inner;
mod parting;

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::dialect::Dialect;
use super::facts::Facts;
use super::options::RedisOptions;
use super::script::Call;
use super::wire::Started;
use crate::claim::Claim;
use crate::engine::{Answer, Attempt, Context, End, Engine, Line, Query, Released, Renewal, WatchId};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantee::{Class, Description};
use crate::id::{ClaimId, HoldId, LeaseId};
use inner::Inner;

/// How soon and how late a waiter looks by itself (R10).
const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

const RENEWALS_PER_CALL: usize = 100;

/// The engine.
pub(super) struct Foreign {
    pub(super) options: Arc<RedisOptions>,
    dialect: Arc<dyn Dialect>,
    inner: OnceLock<Arc<Inner>>,
}

impl Foreign {
    pub(super) fn new(options: RedisOptions, dialect: impl Dialect) -> Self {
        Self { options: Arc::new(options), dialect: Arc::new(dialect), inner: OnceLock::new() }
    }

    fn inner(&self) -> Result<&Arc<Inner>> {
        self.inner.get().ok_or_else(|| Error::new(ErrorKind::Closed, "the engine is not open"))
    }
}

impl Engine for Foreign {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let inner = Inner::new(self.options.clone(), self.dialect.clone(), context);
        if self.inner.set(inner.clone()).is_err() {
            return Answer::Now(Err(Error::new(ErrorKind::InvalidArgument, "the engine is open already")));
        }
        Answer::later(inner.open())
    }

    fn describe(&self) -> Description {
        let mut description = Description::new("redis", self.options.layout.as_str(), Class::Efficiency);
        description.hosts = true;
        description.leases = true;
        description.early = true;
        // A waiter looks when the lease ends, at the latest so much later.
        description.recovery = self.options.ttl + LOOK.0;
        description.recovery_stopped = Some(description.recovery);
        let facts = self.inner.get().and_then(|inner| inner.main.facts()).unwrap_or_default();
        facts.describe(&mut description, &self.options);
        self.dialect.describe(&mut description);
        if let Some((server_us, _)) = facts.time {
            Facts::clock_warning(&mut description, server_us, facts.read_at_us);
        }
        description
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        match self.inner() {
            Ok(inner) => inner.ask(claim, line),
            Err(error) => Answer::Now(Attempt::Failed(error)),
        }
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Attempt>> {
        match self.inner() {
            Ok(inner) => inner.recheck(claims),
            Err(error) => Answer::Now(claims.iter().map(|_| Attempt::Failed(error.clone())).collect()),
        }
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        let Ok(inner) = self.inner() else { return Answer::Now(End::NotOurs) };
        match inner.leave(claim) {
            None => Answer::Now(End::NotOurs),
            Some((call, started)) => {
                let inner = inner.clone();
                Answer::later(async move { inner.ended(claim, &call, started).await })
            }
        }
    }

    fn convert(&self, _hold: HoldId, _claim: &Claim) -> Answer<Attempt> {
        Answer::Now(Attempt::Failed(super::dialect::unsupported("this layout cannot convert a hold: use layout=native")))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let inner = match self.inner() {
            Ok(inner) => inner,
            Err(error) => return Answer::Now(leases.iter().map(|_| Renewal::Unknown(error.clone())).collect()),
        };
        inner.renew(leases)
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let Ok(inner) = self.inner() else {
            return Answer::Now(Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None });
        };
        let calls: Vec<(HoldId, Option<(Call, Started)>)> = holds.iter().map(|hold| (*hold, inner.leave(*hold))).collect();
        // Behind the release on the same connection, so after it on the server.
        let again = again.map(|claim| inner.ask(claim, Line::Join));
        let inner = inner.clone();
        Answer::later(async move {
            let mut ends = Vec::with_capacity(calls.len());
            for (hold, call) in calls {
                ends.push(match call {
                    Some((call, started)) => inner.ended(hold, &call, started).await,
                    None => End::NotOurs,
                });
            }
            let again = match again {
                Some(Answer::Later(answer)) => Some(answer.await),
                Some(Answer::Now(attempt)) => Some(attempt),
                None => None,
            };
            Released { ends, again }
        })
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<crate::claim::Entry>>> {
        match self.inner() {
            Ok(inner) => Answer::later(inner.clone().look(query.clone())),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn write(&self, change: &crate::engine::Change) -> Answer<Result<bool>> {
        match self.inner() {
            Ok(inner) => Answer::later(inner.clone().change(change.clone())),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        match self.inner() {
            Ok(inner) => Answer::later(inner.clone().watch(watch, query.clone())),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn unwatch(&self, watch: WatchId) {
        if let Ok(inner) = self.inner() {
            inner.unwatch(watch);
        }
    }

    fn close(&self) -> Answer<()> {
        let Ok(inner) = self.inner() else { return Answer::Now(()) };
        inner.closed.store(true, Ordering::Release);
        inner.looks_changed.notify_one();
        inner.watches_changed.notify_one();
        let inner = inner.clone();
        Answer::later(async move {
            // Places and holds that are being left: a server that does not know the script yet needs a second message.
            inner.main.settled(&inner.parting, inner.options.request_timeout).await;
            inner.main.close();
            inner.side.close();
        })
    }
}
