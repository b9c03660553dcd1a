//! The claims of one process on ShedLock's table as a pure machine: what to ask, when to look
//! again, and what an answer means.
//!
//! The table has no line and tells nobody of a release. A waiter looks again and again, each time
//! later, and when the holder's time runs out at the latest. Whoever asks first has the lock, and
//! that is the process that has just given it back: after [`RUN`] it lets others pass.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::clocks::Row;
use super::record;
use crate::engine::anchor::Anchor;
use crate::engine::sql::record::{Us, left, micros};
use crate::engine::{Attempt, Grant, Lease, Line, Number, Place};
use crate::protocol::lease::{Drift, deadline};
use crate::protocol::table::Table;
use crate::words::claim::Claim;
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::Warning;
use crate::words::id::ClaimId;
use crate::words::name::Name;

/// How soon a waiter looks again, at first and later on.
pub(super) const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(1));
/// How far those may be apart that look when a holder's time runs out.
pub(super) const APART: Duration = Duration::from_millis(20);
/// For how long a process has the lock, hold upon hold, before it lets others pass.
const RUN: Duration = Duration::from_millis(50);
/// For how long it does.
const PAUSE: Duration = LOOK.0;
/// For how long a process that nobody competed with does not.
const ALONE: Duration = Duration::from_millis(2_500);
/// How often the same is told of a name.
const TOLD_EVERY: Duration = Duration::from_secs(3_600);

/// What does not change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rules {
    pub(super) drift_permille: u32,
    /// A request is refused on arrival after this time (R3), and its statement ends after it.
    pub(super) request_timeout: Duration,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Claims {
    rules: Rules,
    anchor: Option<Anchor>,
    claims: Table<ClaimId, Entry>,
    /// Names that nobody else asks for, as far as was seen, and until when that counts.
    alone: BTreeMap<Name, Ticks>,
    /// Names of which something was told lately, and until when it is not told again.
    told: BTreeMap<Name, Ticks>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Entry {
    name: Name,
    by: Arc<str>,
    ttl: Us,
    line: Line,
    give_up: Option<Ticks>,
    phase: Phase,
    /// Requests that were not answered yet.
    in_flight: u32,
    /// A request whose outcome is not known.
    doubtful: bool,
    leaving: bool,
    /// It has been told to wait before.
    waited: bool,
    /// Until when the server takes a request of its that is still on its way.
    in_time_until: Ticks,
    looks: u32,
    /// When it was looked at last, by the server's clock, and what stood there.
    seen: Option<(Us, Row)>,
    /// Until when the process has the lock, hold upon hold, before it lets others pass.
    run_until: Option<Ticks>,
    pause: Option<Pause>,
}

/// A claim lets others pass.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pause {
    until: Ticks,
    /// Who gave the lock back. Where it still stands there, nobody else came.
    left_by: Arc<str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Asked,
    Waiting,
    Held,
}

/// What to send for a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    pub(super) name: Name,
    pub(super) by: Arc<str>,
    pub(super) ttl: Us,
    pub(super) not_after: Us,
    pub(super) in_time_until: Ticks,
}

/// What the server says to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Reply {
    /// Ours; and what stood there before.
    Granted(Option<Row>),
    /// Somebody else's.
    Busy(Row),
    /// Somebody else wrote at the same time, again and again.
    Contended,
    /// The time of the request is over.
    Late,
}

/// What somebody may hold for a caller who has left: it is given back from then on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Orphan {
    pub(super) name: Name,
    pub(super) by: Arc<str>,
    pub(super) from: Ticks,
    pub(super) until: Ticks,
}

/// A hold, as its statements name it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    pub(super) name: Name,
    pub(super) by: Arc<str>,
    pub(super) ttl: Us,
}

/// What an answer comes to.
#[derive(Debug)]
pub(super) struct Said {
    /// What to tell the keeper; `None`: ask again, the server's clock is known better now.
    pub(super) attempt: Option<Attempt>,
    pub(super) orphan: Option<Orphan>,
    pub(super) warning: Option<(Name, Warning)>,
}

impl From<Attempt> for Said {
    fn from(attempt: Attempt) -> Self {
        Self { attempt: Some(attempt), orphan: None, warning: None }
    }
}

/// When a waiter looks again that has looked so often; no two of them at the same moments.
fn look_in(id: ClaimId, looks: u32, rest: Us) -> Duration {
    let [drawn, ..] = id.0.rotate_left(8 * (looks % 16)).to_be_bytes();
    let most = (LOOK.0 * (1 << looks.min(8))).min(LOOK.1);
    let look = most + most / 4 * drawn.into() / 256;
    let over = left(rest) + Duration::from_millis(1) + APART * drawn.into() / 256;
    look.min(over)
}

impl Claims {
    pub(super) fn new(rules: Rules) -> Self {
        let (alone, told) = (BTreeMap::new(), BTreeMap::new());
        Self { rules, anchor: None, claims: Table::default(), alone, told }
    }

    /// Takes the server's time from any answer; `before` was read before its request was sent.
    pub(super) fn heard(&mut self, now: Us, before: Ticks) {
        let anchor = Anchor::new(u64::try_from(now).unwrap_or(0), before);
        self.anchor = Some(self.anchor.map_or(anchor, |old| old.newer(anchor)));
    }

    /// Knows a claim from here on, and until when its caller waits. Answers at once for one that
    /// lets others pass.
    pub(super) fn ask(
        &mut self,
        now: Ticks,
        claim: &Claim,
        line: Line,
        by: impl FnOnce() -> String,
    ) -> Option<Attempt> {
        if self.claims.get(&claim.id).is_none() {
            let entry = Entry {
                name: claim.name.clone(),
                by: by().into(),
                ttl: micros(claim.ttl),
                line,
                give_up: None,
                phase: Phase::Asked,
                in_flight: 0,
                doubtful: false,
                leaving: false,
                waited: false,
                in_time_until: Ticks::default(),
                looks: 0,
                seen: None,
                run_until: None,
                pause: None,
            };
            self.claims.insert(claim.id, entry);
        }
        let entry = self.claims.get_mut(&claim.id)?;
        entry.give_up = claim.give_up;
        let pause = entry.pause.as_mut().filter(|pause| now < pause.until)?;
        // It competes before the time of its present caller is over.
        if let Some(give_up) = claim.give_up {
            pause.until = pause.until.min(now.plus(give_up.since(now) / 2));
        }
        let ask_at = Some(pause.until);
        Some(Attempt::InLine(Place { ask_at, ..Place::default() }))
    }

    /// The same for a claim that follows on a hold which is given back.
    pub(super) fn ask_again(
        &mut self,
        now: Ticks,
        claim: &Claim,
        hold: Option<&Hold>,
        run_until: Option<Ticks>,
        by: impl FnOnce() -> String,
    ) -> Option<Attempt> {
        _ = self.ask(now, claim, Line::Join, by);
        let entry = self.claims.get_mut(&claim.id)?;
        let alone = self.alone.get(&claim.name).copied();
        match (hold, run_until.max(alone)) {
            (Some(hold), Some(until)) if until <= now => {
                let pause = claim.give_up.map_or(PAUSE, |at| PAUSE.min(at.since(now) / 2));
                let until = now.plus(pause);
                (entry.phase, entry.waited) = (Phase::Waiting, true);
                entry.pause = Some(Pause { until, left_by: hold.by.clone() });
                Some(Attempt::InLine(Place { ask_at: Some(until), ..Place::default() }))
            }
            _ => {
                entry.run_until = run_until;
                None
            }
        }
    }

    /// When the process has to let others pass from a lock that it has.
    pub(super) fn run_until(&self, hold: ClaimId) -> Option<Ticks> {
        self.claims.get(&hold)?.run_until
    }

    /// The request for a claim; `None` when it is not wanted any more.
    pub(super) fn request(&mut self, now: Ticks, id: ClaimId) -> Option<Request> {
        let until = now.plus(self.rules.request_timeout);
        let anchor = self.anchor;
        let entry = self.claims.get_mut(&id)?;
        if entry.leaving {
            return None;
        }
        let give_up = entry.give_up.map_or(until, |at| at.min(until));
        // Without an anchor nothing is known about the server's clock.
        let not_after =
            anchor.map_or(Us::MAX, |a| Us::try_from(a.server_us_at(give_up)).unwrap_or(Us::MAX));
        if entry.phase != Phase::Held {
            entry.phase = Phase::Asked;
        }
        entry.in_flight += 1;
        entry.in_time_until = entry.in_time_until.max(give_up);
        Some(Request {
            name: entry.name.clone(),
            by: entry.by.clone(),
            ttl: entry.ttl,
            not_after,
            in_time_until: give_up,
        })
    }

    /// Whether a request may still be sent; a withdrawn claim's may not.
    pub(super) fn wants(&self, id: ClaimId) -> bool {
        self.claims.get(&id).is_some_and(|entry| !entry.leaving)
    }

    /// What the answer to a request means; `server` is the server's clock in it.
    pub(super) fn answered(
        &mut self,
        now: Ticks,
        before: Ticks,
        server: Us,
        id: ClaimId,
        request: &Request,
        reply: Reply,
    ) -> Said {
        self.heard(server, before);
        let Some(entry) = self.claims.get_mut(&id) else {
            let granted = matches!(reply, Reply::Granted(_));
            let orphan = granted.then(|| self.orphan(request, now));
            return Said { orphan, ..Attempt::Busy(None).into() };
        };
        entry.in_flight = entry.in_flight.saturating_sub(1);
        match reply {
            Reply::Granted(_) if entry.leaving => {
                let orphan = Some(self.orphan(request, now));
                Said { orphan, ..Attempt::Busy(None).into() }
            }
            Reply::Granted(was) => self.granted(now, before, server, id, was),
            // It crossed a grant; the hold's own time decides.
            _ if entry.phase == Phase::Held => {
                let error = Error::new(ErrorKind::Unknown, "the answer crossed a grant");
                Attempt::Unknown(error).into()
            }
            Reply::Busy(row) => self.busy(now, server, id, Some(row)),
            Reply::Contended => self.busy(now, server, id, None),
            Reply::Late if !entry.leaving && entry.give_up.is_none_or(|at| at > now) => {
                Said { attempt: None, orphan: None, warning: None }
            }
            Reply::Late => {
                let text = "the request arrived after its time";
                let error = Error::new(ErrorKind::TimedOut, text);
                let orphan = self.forget(now, id);
                Said { orphan, ..Attempt::Failed(error).into() }
            }
        }
    }

    fn granted(
        &mut self,
        now: Ticks,
        before: Ticks,
        server: Us,
        id: ClaimId,
        was: Option<Row>,
    ) -> Said {
        let drift = Drift { per_mille: self.rules.drift_permille, ..Drift::default() };
        let Some(entry) = self.claims.get_mut(&id) else { return Attempt::Busy(None).into() };
        let ttl = left(entry.ttl);
        if deadline(before, ttl, drift) <= now {
            // Read so late that its time is over: others may have had the lock since.
            entry.doubtful = true;
            let text = "the answer was read after its lease was over";
            return Attempt::Unknown(Error::new(ErrorKind::Unknown, text)).into();
        }
        entry.phase = Phase::Held;
        let pause = entry.pause.take();
        let run_until = entry.run_until.filter(|_| pause.is_none());
        entry.run_until = Some(run_until.unwrap_or_else(|| now.plus(RUN)));
        let stood = |pause: Pause| was.as_ref().is_some_and(|was| *was.by == *pause.left_by);
        if pause.is_some_and(stood) {
            let name = entry.name.clone();
            self.alone.retain(|_, until| now < *until);
            self.alone.insert(name, now.plus(ALONE));
        }
        let warning = was.and_then(|was| self.off(now, server, id, &was));
        let lease = Lease { id: id.into(), ttl, since: Some(before), confirm: false };
        let grant = Grant { number: Number::None, lease: Some(lease) };
        Said { warning, ..Attempt::Granted(grant).into() }
    }

    fn busy(&mut self, now: Ticks, server: Us, id: ClaimId, row: Option<Row>) -> Said {
        let warning = row.as_ref().and_then(|row| self.off(now, server, id, row));
        let Some(entry) = self.claims.get_mut(&id) else { return Attempt::Busy(None).into() };
        (entry.pause, entry.run_until) = (None, None);
        self.alone.remove(&entry.name);
        let rest = row.as_ref().map_or(0, |row| row.left);
        let holder = row.as_ref().map(|row| Box::new(record::holder(&row.by, row.since, row.left)));
        if entry.line == Line::Try {
            let orphan = self.forget(now, id);
            return Said { orphan, warning, ..Attempt::Busy(holder).into() };
        }
        let look = look_in(id, entry.looks, rest);
        entry.phase = Phase::Waiting;
        entry.waited = true;
        entry.looks = entry.looks.saturating_add(1);
        entry.seen = row.map(|row| (server, row));
        let place = Place { holder, ask_at: Some(now.plus(look)), ..Place::default() };
        Said { warning, ..Attempt::InLine(place).into() }
    }

    /// What to tell of the clock of whoever wrote this row, unless it was told lately.
    fn off(&mut self, now: Ticks, server: Us, id: ClaimId, row: &Row) -> Option<(Name, Warning)> {
        let entry = self.claims.get(&id)?;
        // Another row stood there when it was looked at: this one was written since.
        let since = |(at, seen): &(Us, Row)| {
            let same = seen.by == row.by && seen.since == row.since;
            (!same).then_some(*at)
        };
        let warning = row.warning(entry.seen.as_ref().and_then(since), server)?;
        let name = entry.name.clone();
        self.told.retain(|_, until| now < *until);
        if self.told.contains_key(&name) {
            return None;
        }
        self.told.insert(name.clone(), now.plus(TOLD_EVERY));
        Some((name, warning))
    }

    /// A request whose answer did not come: `certain` when it did nothing.
    pub(super) fn unanswered(
        &mut self,
        now: Ticks,
        id: ClaimId,
        request: Option<&Request>,
        certain: bool,
        error: Error,
    ) -> Said {
        let Some(entry) = self.claims.get_mut(&id) else {
            let over = |request: &Request| self.no_copy_after(request.in_time_until);
            let request = request.filter(|_| !certain);
            let orphan = request.map(|request| self.orphan(request, over(request)));
            return Said { orphan, ..Attempt::Failed(error).into() };
        };
        entry.in_flight = entry.in_flight.saturating_sub(u32::from(request.is_some()));
        entry.doubtful |= !certain;
        if entry.waited && entry.in_flight == 0 && entry.phase == Phase::Asked {
            entry.phase = Phase::Waiting;
        }
        // Who waits goes on waiting over a server that is away for a while.
        if entry.doubtful || entry.leaving || entry.waited || entry.phase == Phase::Held {
            return Attempt::Unknown(error).into();
        }
        let orphan = self.forget(now, id);
        Said { orphan, ..Attempt::Failed(error).into() }
    }

    /// Leaves, or gives back. `None`: there is nothing of it in the table.
    pub(super) fn leave(&mut self, id: ClaimId) -> Option<Hold> {
        let entry = self.claims.get_mut(&id)?;
        entry.leaving = true;
        let waits = entry.phase == Phase::Waiting && entry.in_flight == 0 && !entry.doubtful;
        if waits {
            self.claims.remove(&id);
            return None;
        }
        self.hold(id)
    }

    /// A claim, as its statements name it.
    pub(super) fn hold(&self, id: ClaimId) -> Option<Hold> {
        let entry = self.claims.get(&id)?;
        Some(Hold { name: entry.name.clone(), by: entry.by.clone(), ttl: entry.ttl })
    }

    /// Whether a claim holds its lock.
    pub(super) fn holds(&self, id: ClaimId) -> bool {
        self.claims.get(&id).is_some_and(|entry| entry.phase == Phase::Held)
    }

    /// It is over, and the server knows; but for a copy of a request that may come late.
    pub(super) fn forget(&mut self, now: Ticks, id: ClaimId) -> Option<Orphan> {
        let entry = self.claims.remove(&id)?;
        let from = self.no_copy_after(entry.in_time_until);
        // Requests that are not answered yet are seen to when they are.
        (entry.doubtful && now < from).then(|| Orphan {
            name: entry.name,
            by: entry.by,
            from,
            until: from.plus(left(entry.ttl)),
        })
    }

    /// When no statement runs any more that was in time until then.
    fn no_copy_after(&self, in_time_until: Ticks) -> Ticks {
        in_time_until.plus(self.rules.request_timeout)
    }

    fn orphan(&self, request: &Request, from: Ticks) -> Orphan {
        let (name, by) = (request.name.clone(), request.by.clone());
        Orphan { name, by, from, until: from.plus(left(request.ttl)) }
    }
}
