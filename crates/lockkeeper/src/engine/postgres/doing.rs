//! What is done to one name: read, decide, and write if it is still as it was read.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::sleep;

use super::errors::{Broken, not_known};
use super::kept::{Kept, pause, refused};
use super::link::Link;
use super::store::{Store, Written};
use crate::engine::parting::Partings;
use crate::engine::sql::ask::Reply;
use crate::engine::sql::claims::{Claims, Leaving, Request, Verdict};
use crate::engine::sql::line::{LIVES, Seen, Stop, Work};
use crate::engine::sql::record::{Place, Us};
use crate::engine::{Attempt, Claim, End, Line};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// How often a request is sent again because it came late by the server's clock.
const LATE_TRIES: usize = 3;
/// How often in a row a claim comes whatever others write, before it is read again.
const TRIES: u32 = 4;
/// How much of a line is read at first.
const WINDOW: i64 = 4;
/// A place whose sign of life is this old gives another one.
const SIGN_AGAIN: Us = 2_000_000;

/// What runs once the engine is open.
pub(super) struct Opened {
    pub(super) link: Arc<Link>,
    pub(super) claims: Mutex<Claims>,
    pub(super) watches: super::watch::Watches,
    pub(super) kept: Kept,
    pub(super) parting: Partings,
}

/// What came of a name.
pub(super) struct Done<T> {
    pub(super) value: T,
    /// The row's version when it was so.
    version: i64,
    /// Our reading from before it can have happened.
    before: Ticks,
    seen: Seen,
    /// It holds with this number, whatever was decided.
    took: Option<u64>,
}

/// What became of a claim that comes whatever others write.
enum Came {
    Holds { version: i64, number: u64, before: Ticks },
    Stands,
    Not,
}

/// Where somebody works, and until when it counts.
#[derive(Clone, Copy)]
struct At<'a> {
    kind: Kind,
    name: &'a Name,
    me: Option<ClaimId>,
    /// Who is told what is in the way.
    waits: Option<ClaimId>,
    not_after: Us,
    patience: Duration,
    /// It may be under a holder's transaction, which is looked for before the lock passes.
    stated: bool,
    /// Somebody may come to stand in line, and is told how many stand there.
    joins: bool,
    /// The place of one who asks for the lock.
    place: Option<&'a Place>,
}

impl<'a> At<'a> {
    /// Of somebody who is no claim, and has all the time that there is.
    fn new(kind: Kind, name: &'a Name, patience: Duration) -> Self {
        let (me, waits, place, not_after) = (None, None, None, Us::MAX);
        Self { kind, name, me, waits, not_after, patience, stated: false, joins: false, place }
    }
}

pub(super) fn late() -> Error {
    Error::new(ErrorKind::TimedOut, "the request arrived after its time")
}

/// A kind whose free locks are one statement; of a semaphore the limit has to be read first.
pub(super) fn is_plain(kind: Kind) -> bool {
    matches!(kind, Kind::Lock | Kind::Election)
}

impl Opened {
    pub(super) fn claims(&self) -> MutexGuard<'_, Claims> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Ticks {
        self.link.context.clock.now()
    }

    /// Reads a name, lets `decide` work on it, and writes if nobody wrote meanwhile; else again,
    /// for most of `request_timeout`. Answers `None` where the time is over by the server's clock.
    async fn step<T>(
        &self,
        at: At<'_>,
        mut decide: impl FnMut(&mut Work) -> Result<T, Stop>,
        wanted: impl Fn() -> bool,
    ) -> Result<Option<Done<T>>, Broken> {
        let mut window = (WINDOW, at.joins);
        let (mut last, mut kept, mut conflicted) = (None::<Broken>, false, false);
        // Before the request is late for the server: that would be told in its place.
        let most = self.link.options.request_timeout * 3 / 4;
        let (began, mut lost) = (self.now(), false);
        for round in 0u32.. {
            let in_the_way = (conflicted || last.is_some()) && !kept;
            if in_the_way && self.now().since(began) > most {
                break;
            }
            let store = self.link.store(at.patience).await.map_err(Broken::unsent)?;
            let looked = kept || self.was_kept(at.kind, at.name);
            if looked {
                kept = self.is_kept(&store, at.kind, at.name).await?;
            }
            let before = self.now();
            let seen = match store.read(at.kind, at.name, at.me, window).await {
                Ok(seen) => seen,
                // A question changes nothing.
                Err(broken) => return Err(Broken { certain: true, ..broken }),
            };
            {
                let mut claims = self.claims();
                claims.heard(seen.now, before);
                // A connection that was made again may be another way to the server.
                claims.hears(!store.facts.pooled);
            }
            let decided = Work::on(&seen, at.me).map_err(Stop::from).and_then(|mut work| {
                work.keep(kept);
                let value = decide(&mut work)?;
                Ok((value, work))
            });
            let (value, work) = match decided {
                Ok(decided) => decided,
                Err(Stop::More) => {
                    window = (window.0.saturating_mul(32), true);
                    continue;
                }
                Err(Stop::Error(error)) => return Err(Broken::unsent(error.name(at.name))),
            };
            let lapsed = work.has_lapsed();
            let Some(plan) = work.plan() else {
                let version = seen.row.as_ref().map_or(0, |row| row.version);
                return Ok(Some(Done { value, version, before, seen, took: None }));
            };
            if !wanted() {
                return Err(Broken::unsent(left()));
            }
            if is_plain(at.kind) && plan.passes(&seen) {
                if kept {
                    if last.is_none() {
                        let why = refused(&self.link.options.at(), at.name);
                        self.link.hindered((at.kind, at.name), at.waits, began, &why);
                    }
                    // It would wait, and everything behind it.
                    if self.now().since(began) > self.link.options.request_timeout {
                        return Err(refused(&self.link.options.at(), at.name));
                    }
                    pause(round).await;
                    continue;
                }
                let may_be = !looked && (at.stated || lapsed);
                if may_be && self.is_kept(&store, at.kind, at.name).await? {
                    kept = true;
                    continue;
                }
            }
            let joins = plan.joins_alone().is_some();
            let alone =
                |place: &&Place| conflicted && (joins || plan.takes_alone(&seen, place.claim));
            let written = match at.place.filter(alone) {
                None => store.write(at.kind, at.name, &plan, seen.now, at.not_after).await,
                Some(place) => match self.comes(&store, &at, place, joins, &wanted).await {
                    Ok(Came::Holds { version, number, before }) => {
                        let took = Some(number);
                        return Ok(Some(Done { value, version, before, seen, took }));
                    }
                    Ok(Came::Stands) => {
                        // The next look finds it there; one that fails has not undone it (R4).
                        self.claims().stands(place.claim);
                        continue;
                    }
                    Ok(Came::Not) => Ok(Written::Not(seen.now)),
                    Err(broken) => Err(broken),
                },
            };
            match written {
                Ok(written @ (Written::Done | Written::First(_))) => {
                    let version = match written {
                        Written::First(version) => version,
                        _ => plan.row.version,
                    };
                    return Ok(Some(Done { value, version, before, seen, took: None }));
                }
                // Somebody stood on the row until it was too late: that is the reason, and nobody
                // holds it. Another conflict is none.
                Ok(Written::Not(now)) if now > at.not_after => {
                    return last.filter(|broken| broken.waited).map_or(Ok(None), Err);
                }
                Ok(Written::Not(_)) => (conflicted, lost) = (true, true),
                Err(broken) if broken.repeat => {
                    self.link.hindered((at.kind, at.name), at.waits, began, &broken);
                    if broken.waited && is_plain(at.kind) {
                        kept = self.is_kept(&store, at.kind, at.name).await?;
                    }
                    (last, lost) = (Some(broken), false);
                }
                Err(broken) => return Err(broken),
            }
            // Who comes whatever others write needs no long pauses.
            sleep(jitter(at.place.map_or(round, |_| round.min(4)))).await;
        }
        let broken = last.unwrap_or_else(|| {
            let text = "others write it again and again: ask later";
            let error = Error::new(ErrorKind::Unreachable, text).temporary(true);
            Broken::unsent(error.name(at.name))
        });
        Err(Broken { conflict: lost, ..broken })
    }

    /// Puts a place into the line of what somebody holds, or takes what nobody does, whatever
    /// others wrote since it was read. Beside one who takes and frees it all the time it has become
    /// the other one of the two by the time that its commit was waited for: so first what was read,
    /// then the other one, in turns.
    async fn comes(
        &self,
        store: &Store,
        at: &At<'_>,
        place: &Place,
        joins: bool,
        wanted: impl Fn() -> bool,
    ) -> Result<Came, Broken> {
        for tried in 0..TRIES {
            let stands = if tried % 2 == 0 { joins } else { !joins && at.joins };
            if stands {
                if store.join(at.kind, at.name, place, at.not_after).await? {
                    return Ok(Came::Stands);
                }
            } else {
                let before = self.now();
                let took = store.acquire(at.kind, at.name, place, at.not_after).await?;
                if let Some((version, number, now)) = took {
                    self.claims().heard(now, before);
                    return Ok(Came::Holds { version, number, before });
                }
            }
            if !wanted() {
                return Err(Broken::unsent(left()));
            }
        }
        Ok(Came::Not)
    }

    /// Follows a claim's request to its answer.
    pub(super) async fn asked(self: Arc<Self>, id: ClaimId, patience: Duration) -> Attempt {
        for _ in 0..LATE_TRIES {
            let Some(request) = self.claims().request(self.now(), id) else {
                return self.claims().unsent(id, left());
            };
            let outcome = self.request(id, &request, patience).await;
            let now = self.now();
            let verdict = match outcome {
                Ok((before, version, reply)) => {
                    self.claims().answered(now, before, id, version, reply)
                }
                Err(broken) => {
                    // A conversion is no place: it would be asked for anew for ever.
                    let asks_anew = broken.conflict && request.asked.place.hold.is_none();
                    let told = self.claims().unanswered(now, id, broken.certain, broken.error);
                    Verdict::Tell(match told {
                        // Others were in the way, and nothing is there: it asks anew.
                        Attempt::Failed(error) if asks_anew => Attempt::Unknown(error),
                        told => told,
                    })
                }
            };
            if let Verdict::Tell(attempt) = verdict {
                self.leave_if_refused(id, &attempt);
                return attempt;
            }
        }
        let text = "the server's clock refuses the request as late, again and again";
        self.claims().doubted(id, Error::new(ErrorKind::Unknown, text))
    }

    async fn request(
        &self,
        id: ClaimId,
        request: &Request,
        patience: Duration,
    ) -> Result<(Ticks, i64, Reply), Broken> {
        let Request { name, asked, not_after, fresh, stood } = request;
        let (kind, place) = (asked.kind, &asked.place);
        let mut stood_on = None;
        if *fresh && is_plain(kind) && !self.was_kept(kind, name) {
            let store = self.link.store(patience).await.map_err(Broken::unsent)?;
            let before = self.now();
            match store.acquire(kind, name, place, *not_after).await {
                Ok(Some((version, number, now))) => {
                    self.claims().heard(now, before);
                    return Ok((before, version, Reply::Granted { number, lease: place.ttl }));
                }
                Ok(None) => {}
                Err(broken) if broken.repeat => {
                    self.link.hindered((kind, name), Some(id), before, &broken);
                    if broken.waited {
                        self.is_kept(&store, kind, name).await?;
                        stood_on = Some(broken);
                    }
                }
                Err(broken) => return Err(broken),
            }
        }
        let stated = place.hold.is_some_and(|hold| self.claims().is_stated(hold));
        let joins = asked.line == Line::Join && !*stood;
        let at = At {
            me: Some(id),
            waits: Some(id),
            not_after: *not_after,
            stated,
            joins,
            place: Some(place).filter(|place| place.hold.is_none() && is_plain(kind)),
            ..At::new(kind, name, patience)
        };
        let decide = |work: &mut Work| match place.hold {
            Some(_) => work.convert(asked),
            None => work.stand(asked),
        };
        let mut gone = false;
        loop {
            let Some(done) = self.step(at, decide, || self.claims().wants(id)).await? else {
                return stood_on.map_or(Ok((self.now(), 0, Reply::Late)), Err);
            };
            if let Some(number) = done.took {
                let reply = Reply::Granted { number, lease: place.ttl };
                return Ok((done.before, done.version, reply));
            }
            if let (Reply::InLine { .. }, Some((mine, _))) = (&done.value, &done.seen.mine) {
                // Its own row, so that nobody who writes the name's is in the way.
                let old = mine.alive < done.seen.now + LIVES - SIGN_AGAIN;
                if old || mine.asked > mine.alive - LIVES {
                    let store = self.link.store(patience).await.map_err(Broken::unsent)?;
                    let lives = store.alive(kind, name, id).await?;
                    // It was granted or removed meanwhile.
                    if !lives && !std::mem::replace(&mut gone, true) {
                        continue;
                    }
                }
            }
            return Ok((done.before, done.version, done.value));
        }
    }

    /// A claim that was refused, while a copy of its request may still be on its way: that one must
    /// find that its caller has left.
    pub(super) fn leave_if_refused(self: &Arc<Self>, id: ClaimId, attempt: &Attempt) {
        if !matches!(attempt, Attempt::Busy(_) | Attempt::Failed(_)) || !self.claims().wants(id) {
            return;
        }
        let opened = self.clone();
        let leave = async move { _ = opened.leave(id, None).await };
        self.link.context.spawner.spawn(self.parting.count(leave));
    }

    /// Leaves the line, or gives back; `again` stands in line in the same message.
    pub(super) async fn leave(
        self: &Arc<Self>,
        id: ClaimId,
        again: Option<&Claim>,
    ) -> (End, Option<Attempt>) {
        let leaving = self.claims().leave(self.now(), id);
        let Some(leaving) = leaving else {
            let again = self.attempt_again(again).await;
            return (End::NotOurs, again);
        };
        let (end, again) = self.left(id, leaving, again).await;
        if !matches!(end, End::Unknown(_)) {
            self.claims().forget(id);
        }
        (end, again)
    }

    pub(super) async fn attempt_again(self: &Arc<Self>, again: Option<&Claim>) -> Option<Attempt> {
        let claim = again?;
        self.claims().ask(self.now(), claim, Line::Join, None);
        Some(self.clone().asked(claim.id, self.link.options.connect_timeout).await)
    }

    async fn left(
        self: &Arc<Self>,
        id: ClaimId,
        leaving: Leaving,
        again: Option<&Claim>,
    ) -> (End, Option<Attempt>) {
        let patience = self.link.options.connect_timeout;
        let ended = |was: bool| if was { End::Freed } else { End::NotOurs };
        match leaving {
            Leaving::Held { kind, name, delay, refuse, stated } => {
                let stated = stated || self.was_kept(kind, &name);
                let one = again.is_none() && refuse == 0 && is_plain(kind) && !stated;
                match self.release(id, kind, &name, delay, one.then_some(patience)).await {
                    Ok(true) => return (End::Freed, None),
                    Ok(false) => {}
                    Err(error) => return (End::Unknown(error), None),
                }
                let again = again.filter(|again| again.name == name && again.kind == kind);
                let request = again.and_then(|again| {
                    let mut claims = self.claims();
                    claims.ask(self.now(), again, Line::Join, None);
                    claims.request(self.now(), again.id)
                });
                let at = At {
                    me: Some(id),
                    waits: again.map(|again| again.id),
                    stated,
                    joins: request.is_some(),
                    ..At::new(kind, &name, patience)
                };
                let decide = |work: &mut Work| {
                    work.release(id, refuse, request.as_ref().map(|request| &request.asked))
                };
                match self.step(at, decide, || true).await {
                    Ok(Some(Done { value: (was, reply), version, before, .. })) => {
                        let attempt = again.zip(reply).map(|(again, reply)| {
                            let now = self.now();
                            match self.claims().answered(now, before, again.id, version, reply) {
                                Verdict::Tell(attempt) => attempt,
                                Verdict::Again => Attempt::Unknown(late()),
                            }
                        });
                        (ended(was), attempt)
                    }
                    Ok(None) => (End::Unknown(late()), self.doubt(again, &late())),
                    Err(broken) => {
                        let attempt = self.doubt(again, &broken.error);
                        (End::Unknown(broken.error), attempt)
                    }
                }
            }
            Leaving::Asking { kind, name, place, refuse } => {
                let at = At { me: Some(id), waits: Some(id), ..At::new(kind, &name, patience) };
                match self.step(at, |work| work.withdraw(&place, refuse), || true).await {
                    Ok(Some(done)) => (ended(done.value), None),
                    Ok(None) => (End::Unknown(late()), None),
                    Err(broken) => (End::Unknown(broken.error), None),
                }
            }
        }
    }

    fn doubt(&self, again: Option<&Claim>, error: &Error) -> Option<Attempt> {
        let claim = again?;
        Some(self.claims().unanswered(self.now(), claim.id, false, error.clone()))
    }

    /// The one statement that gives back what nobody waits for.
    async fn release(
        &self,
        id: ClaimId,
        kind: Kind,
        name: &Name,
        delay: Us,
        patience: Option<Duration>,
    ) -> Result<bool> {
        let Some(patience) = patience else { return Ok(false) };
        let store = self.link.store(patience).await?;
        match store.release(kind, name, id, delay).await {
            Ok(done) => Ok(done),
            Err(broken) if broken.repeat => Ok(false),
            Err(broken) => Err(broken.error),
        }
    }

    /// Renews holds of one name that are not alone; the number that each holds with.
    pub(super) async fn renew_name(
        &self,
        ids: &[ClaimId],
        kind: Kind,
        name: &Name,
    ) -> Result<(Vec<Option<u64>>, Ticks)> {
        let at = At::new(kind, name, self.link.options.request_timeout);
        let renew = |work: &mut Work| Ok(ids.iter().map(|id| work.renew(*id)).collect());
        match self.step(at, renew, || true).await {
            Ok(Some(done)) => Ok((done.value, done.before)),
            Ok(None) => Err(late()),
            Err(broken) => Err(broken.error),
        }
    }

    /// Changes something about a name that is no claim of ours.
    pub(super) async fn change<T>(
        &self,
        kind: Kind,
        name: &Name,
        decide: impl FnMut(&mut Work) -> Result<T, Stop>,
    ) -> Result<T> {
        // Forced release: whose transaction may be there nobody here knows.
        let at = At { stated: true, ..At::new(kind, name, self.link.options.connect_timeout) };
        match self.step(at, decide, || true).await {
            Ok(Some(done)) => Ok(done.value),
            Ok(None) => Err(late()),
            Err(broken) if broken.certain => Err(broken.error),
            Err(broken) => Err(not_known(&broken.error)),
        }
    }

    /// The connection, for questions.
    pub(super) async fn store(&self) -> Result<Arc<Store>> {
        self.link.store(self.link.options.connect_timeout).await
    }
}

fn left() -> Error {
    Error::new(ErrorKind::Closed, "its caller has left")
}

/// How long is waited before a name is read again: longer each time, and never the same in two
/// processes.
pub(super) fn jitter(round: u32) -> Duration {
    let most = 200u64 << round.min(6);
    Duration::from_micros(u64::try_from(ClaimId::fresh().0 >> 64).unwrap_or(0) % most)
}
