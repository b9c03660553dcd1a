//! The layout while it is open: asking and looking again, keeping, giving back, telling.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout_at};
use tokio_postgres::types::Type;

use super::claims::{Claims, Hold, Orphan, Reply, Request, Said};
use super::record;
use super::store::Store;
use crate::engine::parting::Partings;
use crate::engine::postgres::doing::jitter;
use crate::engine::postgres::errors::Broken;
use crate::engine::postgres::link::Link;
use crate::engine::postgres::watch::{Looks, Watches};
use crate::engine::postgres::wire::{all, lock_timeout};
use crate::engine::sql::record::{Us, left};
use crate::engine::{
    Attempt, BoxFuture, Context, End, Event, Grant, Lease, Line, Number, Query, Released, Renewal,
    Standing,
};
use crate::words::claim::{Claim, Entry, Holder, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// How often a request is sent again because it came late by the server's clock.
const LATE_TRIES: usize = 3;
/// How often a name is asked for again because others wrote at the same time.
const CONFLICTS_MAX: u32 = 8;
/// How many leases one statement renews.
const RENEWED_AT_ONCE: usize = 500;
/// How many names are asked about at once.
const ASKED_AT_ONCE: usize = 64;

/// What runs once the engine is open.
pub(super) struct Opened {
    pub(super) link: Arc<Link<Store>>,
    pub(super) claims: Mutex<Claims>,
    pub(super) watches: Watches,
    pub(super) parting: Partings,
}

pub(super) fn unsupported(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}

/// What the layout cannot say about a name, whoever asks.
fn kind_of(kind: Kind) -> Result<()> {
    match kind {
        Kind::Lock => Ok(()),
        other => Err(unsupported(format!(
            "layout=shedlock has only exclusive locks: an {other} needs layout=table"
        ))),
    }
}

impl Opened {
    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Ticks {
        self.link.context.clock.now()
    }

    /// The connection, for questions.
    pub(super) async fn store(&self) -> Result<Arc<Store>> {
        self.link.store(self.link.options.connect_timeout).await
    }

    /// Refuses what the layout cannot say (R12).
    pub(super) fn can(&self, claim: &Claim) -> Result<()> {
        kind_of(claim.kind)?;
        if claim.mode != Mode::Exclusive {
            return Err(unsupported(format!(
                "layout=shedlock has only exclusive locks: {} needs layout=table",
                claim.mode.as_str()
            )));
        }
        if !claim.lock_delay.is_zero() {
            return Err(unsupported("layout=shedlock has no lock_delay: use layout=table"));
        }
        self.fits(&claim.name)
    }

    /// Refuses a name that the column cannot hold.
    fn fits(&self, name: &Name) -> Result<()> {
        let most = self.link.facts().map_or(64, |facts| facts.table.name_most);
        let has = name.as_str().chars().count();
        if has <= most {
            return Ok(());
        }
        let why = format!(
            "ShedLock's names have {most} characters at most, and this one has {has}: use a \
             shorter one, or layout=table"
        );
        Err(Error::new(ErrorKind::InvalidName, why).name(name))
    }

    /// What a claim of this process writes.
    pub(super) fn by(&self, claim: &Claim) -> String {
        let most = self.link.facts().map_or(255, |facts| facts.table.by_most);
        record::locked_by(claim.id, &claim.who, most)
    }

    /// Tells what an answer came to.
    fn tell(self: &Arc<Self>, said: Said) -> Option<Attempt> {
        if let Some(orphan) = said.orphan {
            self.free_later(orphan);
        }
        if let Some((name, warning)) = said.warning {
            let warned = Event::Warned { kind: Kind::Lock, name, warning };
            self.link.context.events.send(warned);
        }
        said.attempt
    }

    /// Follows a claim's request to its answer.
    pub(super) async fn asked(self: Arc<Self>, id: ClaimId, patience: Duration) -> Attempt {
        for _ in 0..LATE_TRIES {
            let request = self.claims().request(self.now(), id);
            let Some(request) = request else { return Attempt::Busy(None) };
            let outcome = self.request(id, &request, patience).await;
            let now = self.now();
            let said = match outcome {
                Ok((before, server, reply)) => {
                    self.claims().answered(now, before, server, id, &request, reply)
                }
                Err(Broken { certain, error, .. }) => {
                    self.claims().unanswered(now, id, Some(&request), certain, error)
                }
            };
            if let Some(attempt) = self.tell(said) {
                return attempt;
            }
        }
        let text = "the server's clock refuses the request as late, again and again";
        let error = Error::new(ErrorKind::Unknown, text);
        let said = self.claims().unanswered(self.now(), id, None, false, error.clone());
        self.tell(said).unwrap_or(Attempt::Unknown(error))
    }

    /// What its caller has left is not asked for: nobody would give it back.
    fn still_wanted(&self, id: ClaimId) -> Result<(), Broken> {
        if self.claims().wants(id) {
            return Ok(());
        }
        Err(Broken::unsent(Error::new(ErrorKind::Closed, "its caller has left")))
    }

    async fn request(
        &self,
        id: ClaimId,
        request: &Request,
        patience: Duration,
    ) -> Result<(Ticks, Us, Reply), Broken> {
        let mut last: Option<Broken> = None;
        let began = self.now();
        for round in 0..CONFLICTS_MAX {
            let store = self.link.store(patience).await.map_err(Broken::unsent)?;
            self.still_wanted(id)?;
            let before = self.now();
            let asked = match store.acquire(request).await {
                Ok(asked) => asked,
                Err(broken) if broken.repeat => {
                    self.link.hindered((Kind::Lock, &request.name), Some(id), began, &broken);
                    last = Some(broken);
                    if self.now().since(began) > self.link.options.request_timeout {
                        break;
                    }
                    sleep(jitter(round)).await;
                    continue;
                }
                Err(broken) => return Err(broken),
            };
            let said = |reply| Ok((before, asked.now, reply));
            match asked.was {
                was if asked.taken => return said(Reply::Granted(was)),
                Some(row) if row.left > 0 => return said(Reply::Busy(row)),
                // Somebody stood on the row until it was too late: nobody is told that it is held.
                // Another conflict is no reason.
                _ if asked.now > request.not_after => {
                    let stood = last.filter(|broken| broken.waited);
                    return stood.map_or_else(|| said(Reply::Late), Err);
                }
                // It was taken at the same time.
                Some(_) => {}
                None => {
                    self.still_wanted(id)?;
                    let before = self.now();
                    match store.insert(request).await {
                        Ok(Some(now)) => return Ok((before, now, Reply::Granted(None))),
                        Ok(None) => {}
                        Err(broken) if broken.repeat => {
                            self.link.hindered(
                                (Kind::Lock, &request.name),
                                Some(id),
                                began,
                                &broken,
                            );
                            last = Some(broken);
                        }
                        Err(broken) => return Err(broken),
                    }
                }
            }
            if round + 1 == CONFLICTS_MAX && last.is_none() {
                return said(Reply::Contended);
            }
            sleep(jitter(round)).await;
        }
        Err(last.unwrap_or_else(|| {
            let text = "others write it again and again: ask later";
            Broken::unsent(Error::new(ErrorKind::Unreachable, text).temporary(true))
        }))
    }

    /// Leaves, or gives back.
    pub(super) async fn leave(self: &Arc<Self>, id: ClaimId) -> End {
        let Some(hold) = self.claims().leave(id) else { return End::NotOurs };
        let end = self.free(&hold.name, &hold.by).await;
        if !matches!(end, End::Unknown(_)) {
            self.forget(id);
        }
        end
    }

    async fn free(&self, name: &Name, by: &str) -> End {
        let store = match self.link.store(self.link.options.connect_timeout).await {
            Ok(store) => store,
            Err(error) => return End::Unknown(error),
        };
        match store.release(name.as_str(), by).await {
            Ok(true) => End::Freed,
            Ok(false) => End::NotOurs,
            Err(broken) => End::Unknown(broken.error),
        }
    }

    fn forget(self: &Arc<Self>, id: ClaimId) {
        let orphan = self.claims().forget(self.now(), id);
        if let Some(orphan) = orphan {
            self.free_later(orphan);
        }
    }

    /// A copy of a request of somebody who left may arrive over a connection that broke, and the
    /// table has no place for a word that would stop it: what it took is given back once no copy is
    /// in time any more, and again until that is known (R4).
    fn free_later(self: &Arc<Self>, orphan: Orphan) {
        let opened = self.clone();
        self.link.context.spawner.spawn(self.parting.count(async move {
            let clock = &opened.link.context.clock;
            let mut next = orphan.from;
            while clock.now() < orphan.until {
                sleep(next.since(clock.now())).await;
                if !matches!(opened.free(&orphan.name, &orphan.by).await, End::Unknown(_)) {
                    return;
                }
                next = clock.now().plus(opened.link.options.request_timeout / 8);
            }
        }));
    }

    /// Gives holds back; `again` is asked for behind the last one.
    pub(super) async fn release_all(
        self: &Arc<Self>,
        holds: &[HoldId],
        again: Option<&Claim>,
    ) -> Released {
        let last = holds.last().copied();
        let (hold, run_until) = {
            let claims = self.claims();
            let hold = last.and_then(|id| claims.hold(id));
            (hold, last.and_then(|id| claims.run_until(id)))
        };
        let mut ends = Vec::with_capacity(holds.len());
        for id in holds {
            ends.push(self.leave(*id).await);
        }
        let Some(claim) = again else { return Released { ends, again: None } };
        if let Err(error) = self.can(claim) {
            return Released { ends, again: Some(Attempt::Failed(error)) };
        }
        let waits = {
            let hold = hold.as_ref().filter(|hold| hold.name == claim.name);
            let by = || self.by(claim);
            self.claims().ask_again(self.now(), claim, hold, run_until, by)
        };
        let again = match waits {
            Some(waits) => waits,
            None => self.clone().asked(claim.id, self.link.options.connect_timeout).await,
        };
        Released { ends, again: Some(again) }
    }

    /// Renews leases, many in one statement.
    pub(super) async fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(leases.len());
        for some in leases.chunks(RENEWED_AT_ONCE) {
            renewals.extend(self.renew_some(some).await);
        }
        renewals
    }

    async fn renew_some(self: &Arc<Self>, leases: &[LeaseId]) -> Vec<Renewal> {
        let known: Vec<(LeaseId, Hold)> = {
            let claims = self.claims();
            let of = |lease: &LeaseId| Some((*lease, claims.hold(ClaimId(lease.0))?));
            leases.iter().filter_map(of).collect()
        };
        let holds: Vec<Hold> = known.iter().map(|(_, hold)| hold.clone()).collect();
        let before = self.now();
        let renewed = match self.link.store(self.link.options.request_timeout).await {
            Ok(store) if !holds.is_empty() => {
                store.renew(&holds).await.map_err(|broken| broken.error).map(|all| (store, all))
            }
            Ok(store) => Ok((store, Vec::new())),
            Err(error) => Err(error),
        };
        let (store, renewed) = match renewed {
            Ok(renewed) => renewed,
            Err(error) => return vec![Renewal::Unknown(error); leases.len()],
        };
        // All rows together are waited for no longer than one.
        let until = Instant::now() + lock_timeout(self.link.options.request_timeout);
        let mut outcomes = BTreeMap::new();
        for one in renewed {
            self.claims().heard(one.now, before);
            let mine = |(_, hold): &&(LeaseId, Hold)| *hold.by == *one.by;
            let Some((lease, hold)) = known.iter().find(mine) else { continue };
            let outcome = match (one.done, one.blocked) {
                (true, _) => Renewal::Extended { ttl: left(hold.ttl), since: Some(before) },
                (false, false) => Renewal::Gone(Lost::TakenAway),
                (false, true) => {
                    let before = self.now();
                    match timeout_at(until, store.extend(hold)).await {
                        Ok(Ok(true)) => {
                            Renewal::Extended { ttl: left(hold.ttl), since: Some(before) }
                        }
                        Ok(Ok(false)) => Renewal::Gone(Lost::TakenAway),
                        Ok(Err(broken)) => Renewal::Unknown(broken.error),
                        Err(_) => Renewal::Unknown(stands(&hold.name)),
                    }
                }
            };
            if matches!(outcome, Renewal::Gone(_)) {
                self.forget(ClaimId(lease.0));
            }
            outcomes.insert(*lease, outcome);
        }
        let outcome = |lease: &LeaseId| outcomes.get(lease).cloned();
        leases.iter().map(|l| outcome(l).unwrap_or(Renewal::Gone(Lost::TakenAway))).collect()
    }

    /// Asks about claims that wait, and about holds by renewing them.
    pub(super) async fn recheck(self: &Arc<Self>, claims: &[ClaimId]) -> Vec<Standing> {
        let (asking, holds): (Vec<ClaimId>, Vec<ClaimId>) =
            claims.iter().partition(|id| !self.claims().holds(**id));
        let mut standings = BTreeMap::new();
        for some in asking.chunks(ASKED_AT_ONCE) {
            // What cannot be sent now is not waited for: the next link asks again.
            let one = |id: &ClaimId| -> BoxFuture<Standing> {
                let (id, opened) = (*id, self.clone());
                Box::pin(async move { opened.asked(id, Duration::ZERO).await.into() })
            };
            let stand = all(some.iter().map(one).collect()).await;
            standings.extend(some.iter().copied().zip(stand));
        }
        let leases: Vec<LeaseId> = holds.iter().map(|id| (*id).into()).collect();
        for (id, renewal) in holds.iter().zip(self.renew(&leases).await) {
            standings.insert(*id, self.standing(*id, renewal));
        }
        let gone = || Standing::Gone(Error::new(ErrorKind::Lost, "the hold is not ours any more"));
        claims.iter().map(|id| standings.remove(id).unwrap_or_else(gone)).collect()
    }

    fn standing(&self, id: ClaimId, renewal: Renewal) -> Standing {
        match renewal {
            Renewal::Extended { ttl, since } if self.claims().holds(id) => {
                let lease = Lease { id: id.into(), ttl, since, confirm: false };
                Standing::Held(Grant { number: Number::None, lease: Some(lease) })
            }
            Renewal::Unknown(error) => Standing::Unknown(error),
            _ => Standing::Gone(Error::new(ErrorKind::Lost, "the hold is not ours any more")),
        }
    }

    /// Who holds what.
    pub(super) async fn look(&self, query: &Query) -> Result<Vec<Entry>> {
        let told = |broken: Broken| broken.error;
        match query {
            Query::One(kind, name) => {
                kind_of(*kind)?;
                self.fits(name)?;
                let found = self.store().await?.read(true, name.as_str()).await.map_err(told)?;
                let mut entry = Entry::new(*kind, name.clone());
                let held = found.iter().filter(|(_, row)| row.left > 0);
                entry.holders = held.map(|(_, row)| holder(row)).collect();
                Ok(vec![entry])
            }
            Query::Prefix(prefix) => {
                let found = self.store().await?.read(false, prefix).await.map_err(told)?;
                let entry = |(name, row): &(String, super::clocks::Row)| {
                    let mut entry = Entry::new(Kind::Lock, Name::new(name).ok()?);
                    entry.holders = vec![holder(row)];
                    Some(entry)
                };
                Ok(found.iter().filter_map(entry).collect())
            }
        }
    }

    /// Takes a lock away from these holders, or from whoever has it; whether somebody did.
    pub(super) async fn force(&self, kind: Kind, name: &Name, from: &[Holder]) -> Result<bool> {
        kind_of(kind)?;
        self.fits(name)?;
        let store = self.store().await?;
        let found = store.read(true, name.as_str()).await.map_err(|broken| broken.error)?;
        for (_, row) in found.iter().filter(|(_, row)| row.left > 0) {
            if !from.is_empty() && !from.iter().any(|one| one.is_same_hold(&holder(row))) {
                continue;
            }
            let force = include_str!("force.sql");
            let types = &[Type::TEXT, Type::TEXT, Type::INT8];
            let done = store.seldom(force, &[&name.as_str(), &row.by, &row.since], types).await;
            return done.map(|rows| rows > 0).map_err(|broken| broken.error);
        }
        Ok(false)
    }

    /// Waits for what is being given back, and ends the connection.
    pub(super) async fn close(&self) {
        let within = self.link.options.request_timeout * 5 / 4;
        self.parting.settled(within, || true).await;
        self.link.close();
    }

    /// Asks for a claim, at once or when it has let others pass.
    pub(super) fn begin(&self, claim: &Claim, line: Line) -> Result<Option<Attempt>> {
        self.can(claim)?;
        Ok(self.claims().ask(self.now(), claim, line, || self.by(claim)))
    }

    /// How long a claim waits for a connection.
    pub(super) fn patience(&self, claim: &Claim) -> Duration {
        let left = claim.give_up.map_or(Duration::MAX, |at| at.since(self.now()));
        self.link.options.connect_timeout.min(left)
    }
}

impl Looks for Opened {
    fn watches(&self) -> &Watches {
        &self.watches
    }

    fn context(&self) -> &Context {
        &self.link.context
    }

    async fn state(&self, query: &Query) -> Result<Result<String, Broken>> {
        let store = self.store().await?;
        Ok(match query {
            Query::One(_, name) => store.state(true, name.as_str()).await,
            Query::Prefix(prefix) => store.state(false, prefix).await,
        })
    }
}

fn holder(row: &super::clocks::Row) -> Holder {
    record::holder(&row.by, row.since, row.left)
}

fn stands(name: &Name) -> Error {
    let text = "somebody's transaction stands on the lock's row";
    Error::new(ErrorKind::Unreachable, text).temporary(true).name(name)
}
