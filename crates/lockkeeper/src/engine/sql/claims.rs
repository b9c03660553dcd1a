//! The claims of one process as a pure machine: what to ask, and what an answer or a push means.
//!
//! It knows every claim that is on its way, in line or held. A push may overtake the answer that
//! says "in line" on the way to the keeper, and waits here for it; the row's version tells which of
//! the two is the later one.

mod answers;
mod holds;

use std::time::Duration;

use self::answers::{
    ask_at, crossed, grant_crossed, lease_of, look_in, look_without_words, number_of,
};
use super::ask::{Asked, Reply};
use super::line::DEAF;
use super::push::Push;
use super::record::{Place as Written, Us, left, micros};
use crate::engine::anchor::Anchor;
use crate::engine::{Attempt, Event, Grant, Lease, Line, Place, Which};
use crate::protocol::lease::{Drift, deadline};
use crate::protocol::table::Table;
use crate::words::claim::{Claim, Mode};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::{ClaimId, HoldId};
use crate::words::lost::Lost;
use crate::words::name::{Kind, Name};

/// What does not change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Rules {
    /// Where this process hears.
    pub(in crate::engine) channel: String,
    pub(in crate::engine) drift_permille: u32,
    /// A request is refused on arrival after this time (R3).
    pub(in crate::engine) request_timeout: Duration,
}

/// The claims of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Claims {
    rules: Rules,
    /// Nothing that others tell comes here.
    deaf: bool,
    anchor: Option<Anchor>,
    /// No older anchor dates a push: our clock may have stood still.
    stepped: Ticks,
    claims: Table<ClaimId, Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Entry {
    Held(Held),
    Asking(Box<Asking>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    kind: Kind,
    name: Name,
    ttl: Us,
    delay: Us,
    number: u64,
    /// Until when its release leaves word, because a request may still be on its way.
    refuse: Us,
    /// When the last conversion was first asked for; each is younger than the one before it.
    converting: Us,
    /// The last conversion that was granted: until the next one it may still be taken back.
    converted: Option<ClaimId>,
    /// A statement for a transaction was given out for it.
    stated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asking {
    name: Name,
    asked: Asked,
    give_up: Option<Ticks>,
    /// The keeper knows that it stands in line.
    in_line: bool,
    /// Requests that were not answered yet.
    in_flight: u32,
    /// A request whose outcome is not known: nothing may be called certain from then on.
    doubtful: bool,
    /// It stood in line once: no request that failed makes it certain that it does not.
    stood: bool,
    sent_before: bool,
    leaving: bool,
    /// The latest time at which one of its requests is in time, and how long its statement may then
    /// wait for somebody's row.
    not_after: Us,
    waits: Us,
    pushed: Option<Pushed>,
    /// A question for a sign of life came while its answer was on its way.
    questioned: bool,
    /// What it held when it was asked again how it stands: renewed for as long as nothing else is
    /// known.
    was: Option<Held>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pushed {
    version: i64,
    number: u64,
    ttl: Duration,
    /// The server's time of it.
    at: u64,
    receipt: Ticks,
}

/// What to send for a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Request {
    pub(in crate::engine) name: Name,
    pub(in crate::engine) asked: Asked,
    pub(in crate::engine) not_after: Us,
    /// Nothing of it can be there yet.
    pub(in crate::engine) fresh: bool,
    /// It stood in line once.
    pub(in crate::engine) stood: bool,
}

/// What to send to end a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) enum Leaving {
    /// It holds.
    Held { kind: Kind, name: Name, delay: Us, refuse: Us, stated: bool },
    /// It asks or stands in line.
    Asking { kind: Kind, name: Name, place: Written, refuse: Us },
}

/// What renews a lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Renewing {
    pub(in crate::engine) kind: Kind,
    pub(in crate::engine) name: Name,
    pub(in crate::engine) ttl: Us,
    pub(in crate::engine) delay: Us,
    pub(in crate::engine) number: u64,
}

/// What an answer comes to.
#[derive(Debug)]
pub(in crate::engine) enum Verdict {
    /// Tell the keeper.
    Tell(Attempt),
    /// It came too late by the server's clock, which we know better now: send it again.
    Again,
}

impl Claims {
    pub(in crate::engine) fn new(rules: Rules) -> Self {
        Self { rules, deaf: false, anchor: None, stepped: Ticks(0), claims: Table::default() }
    }

    /// Whether what others tell comes here.
    pub(in crate::engine) fn hears(&mut self, hears: bool) {
        self.deaf = !hears;
    }

    /// The time of day was set forward at this reading.
    pub(in crate::engine) fn stepped(&mut self, at: Ticks) {
        self.stepped = at;
    }

    /// Takes the server's time from any answer; `before` was read before its request was sent.
    pub(in crate::engine) fn heard(&mut self, now: Us, before: Ticks) {
        let anchor = Anchor::new(u64::try_from(now).unwrap_or(0), before);
        self.anchor = Some(self.anchor.map_or(anchor, |old| old.newer(anchor)));
    }

    /// The server's time at one of our instants, as far as we know it.
    fn server(&self, at: Ticks) -> Option<Us> {
        let at = self.anchor?.server_us_at(at);
        Some(Us::try_from(at).unwrap_or(Us::MAX))
    }

    /// Asks for a lock, or for another mode of a hold. The second time with the same claim it is
    /// the same place.
    pub(in crate::engine) fn ask(
        &mut self,
        now: Ticks,
        claim: &Claim,
        line: Line,
        hold: Option<HoldId>,
    ) {
        if !matches!(self.claims.get(&claim.id), Some(Entry::Asking(_))) {
            let was = match self.claims.get(&claim.id) {
                Some(Entry::Held(held)) => Some(held.clone()),
                _ => None,
            };
            let mut since = self.server(now).unwrap_or(0);
            if let Some(Entry::Held(held)) = hold.and_then(|hold| self.claims.get_mut(&hold)) {
                since = since.max(held.converting + 1);
                held.converting = since;
            }
            let limit = match claim.mode {
                Mode::Permits { limit, .. } => limit,
                _ => 0,
            };
            let channel = if self.deaf { DEAF } else { &self.rules.channel };
            let place = Written::of(claim, hold, channel, since);
            let asking = Asking {
                name: claim.name.clone(),
                asked: Asked { kind: claim.kind, place, limit, line },
                give_up: claim.give_up,
                in_line: false,
                in_flight: 0,
                doubtful: false,
                stood: false,
                sent_before: was.is_some(),
                leaving: false,
                not_after: 0,
                waits: micros(self.rules.request_timeout),
                pushed: None,
                questioned: false,
                was,
            };
            self.claims.insert(claim.id, Entry::Asking(Box::new(asking)));
        }
        if let Some(Entry::Asking(asking)) = self.claims.get_mut(&claim.id) {
            asking.give_up = claim.give_up;
        }
    }

    /// The request for a claim that was asked for before; `None` when it is not wanted any more.
    pub(in crate::engine) fn request(&mut self, now: Ticks, id: ClaimId) -> Option<Request> {
        let until = now.plus(self.rules.request_timeout);
        let anchor = self.anchor;
        // A transaction may wait as long for its end as its statement for a row.
        let waits = micros(self.rules.request_timeout) * if self.deaf { 2 } else { 1 };
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
        if asking.leaving {
            return None;
        }
        asking.waits = asking.waits.max(waits);
        let give_up = asking.give_up.map_or(until, |at| at.min(until));
        // Without an anchor nothing is known about the server's clock.
        let not_after =
            anchor.map_or(Us::MAX, |a| Us::try_from(a.server_us_at(give_up)).unwrap_or(Us::MAX));
        asking.in_line = false;
        asking.in_flight += 1;
        // An earlier copy may be in time for longer.
        asking.not_after = asking.not_after.max(not_after);
        let fresh = !std::mem::replace(&mut asking.sent_before, true);
        Some(Request {
            name: asking.name.clone(),
            asked: asking.asked.clone(),
            not_after,
            fresh: fresh && asking.asked.place.hold.is_none(),
            stood: asking.stood,
        })
    }

    /// Whether a request may still be sent; a withdrawn claim's may not.
    pub(in crate::engine) fn wants(&self, id: ClaimId) -> bool {
        matches!(self.claims.get(&id), Some(Entry::Asking(asking)) if !asking.leaving)
    }

    /// It stands in line, whatever comes of what is asked next.
    pub(in crate::engine) fn stands(&mut self, id: ClaimId) {
        if let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) {
            (asking.stood, asking.was) = (true, None);
        }
    }

    /// What the answer to a request means; the row had this version when it was given.
    pub(in crate::engine) fn answered(
        &mut self,
        now: Ticks,
        before: Ticks,
        id: ClaimId,
        version: i64,
        reply: Reply,
    ) -> Verdict {
        let asking = match self.claims.get_mut(&id) {
            Some(Entry::Asking(asking)) => asking,
            Some(Entry::Held(held)) => return Verdict::Tell(crossed(id, held, before, &reply)),
            None => return Verdict::Tell(Attempt::Busy(None)),
        };
        asking.in_flight = asking.in_flight.saturating_sub(1);
        let pushed = asking.pushed.take().filter(|pushed| pushed.version > version);
        let questioned = std::mem::take(&mut asking.questioned);
        let (kind, limit, hold) = (asking.asked.kind, asking.asked.limit, asking.asked.place.hold);
        let drift = Drift { per_mille: self.rules.drift_permille, ..Drift::default() };
        match reply {
            // Read so late that its lease is over: others may have had the lock since.
            Reply::Granted { lease, .. }
                if hold.is_none() && deadline(before, left(lease), drift) <= now =>
            {
                asking.doubtful = true;
                if let Some(grant) = pushed.and_then(|pushed| self.take_push(now, id, &pushed)) {
                    return Verdict::Tell(Attempt::Granted(grant));
                }
                let text = "the answer was read after its lease was over";
                Verdict::Tell(Attempt::Unknown(Error::new(ErrorKind::Unknown, text)))
            }
            Reply::Granted { number, lease } => {
                self.hold(id, number);
                let lease = Lease {
                    id: lease_of(id, hold),
                    ttl: left(lease),
                    since: Some(before),
                    confirm: false,
                };
                let number = number_of(kind, number);
                Verdict::Tell(Attempt::Granted(Grant { number, lease: Some(lease) }))
            }
            Reply::InLine { ahead, rest, holder, turn } => {
                let was_pushed = pushed.is_some();
                if let Some(grant) = pushed.and_then(|pushed| self.take_push(now, id, &pushed)) {
                    return Verdict::Tell(Attempt::Granted(grant));
                }
                let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else {
                    return Verdict::Tell(Attempt::Busy(None));
                };
                (asking.in_line, asking.stood, asking.was) = (true, true, None);
                let told = ask_at(now, turn, rest, asking.asked.place.ttl);
                let ask_at = if was_pushed || questioned {
                    // As of a push that is read so late: a reason to ask, and at once.
                    Some(now)
                } else if self.deaf || asking.asked.place.channel == DEAF {
                    let ttl = asking.asked.place.ttl;
                    let look = now.plus(look_without_words(ahead, ttl));
                    Some(told.map_or(look, |told| told.min(look)))
                } else {
                    told
                };
                let ahead = u32::try_from(ahead).ok();
                Verdict::Tell(Attempt::InLine(Place { ahead, holder, ask_at }))
            }
            Reply::Busy { holder } => {
                self.refused(now, id);
                Verdict::Tell(Attempt::Busy(holder))
            }
            Reply::Late => self.late(now, id),
            Reply::OtherLimit { stored } => {
                self.refused(now, id);
                let text = format!(
                    "its stored limit is {stored} and {limit} was requested: request {stored}, or \
                     resize it"
                );
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::LimitMismatch, text)))
            }
            Reply::Full => {
                self.refused(now, id);
                let text = "16384 places stand in line for this name already: ask later, or with \
                            try_lock";
                let error = Error::new(ErrorKind::Refused, text).temporary(true);
                Verdict::Tell(Attempt::Failed(error))
            }
            Reply::Gone => {
                self.forget(id);
                let error = Error::new(ErrorKind::Lost, "the hold is not ours any more");
                Verdict::Tell(Attempt::Failed(error))
            }
            Reply::NotUpgradable => {
                self.forget(id);
                let text = "only an upgradable hold upgrades";
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::WouldDeadlock, text)))
            }
        }
    }

    fn late(&mut self, now: Ticks, id: ClaimId) -> Verdict {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else {
            return Verdict::Tell(Attempt::Busy(None));
        };
        if !asking.leaving && asking.give_up.is_none_or(|at| at > now) {
            return Verdict::Again;
        }
        let (certain, leaving) = (!asking.doubtful && !asking.stood, asking.leaving);
        let error = Error::new(ErrorKind::TimedOut, "the request arrived after its time");
        if self.holds_as_before(id) || !certain && !leaving {
            // What an earlier request did is there: whoever asked has to leave.
            return Verdict::Tell(Attempt::Unknown(error));
        }
        if !leaving {
            self.forget(id);
        }
        Verdict::Tell(Attempt::Failed(error))
    }

    /// A request that was not sent, because its claim is not wanted any more.
    pub(in crate::engine) fn unsent(&self, id: ClaimId, error: Error) -> Attempt {
        match self.claims.get(&id) {
            Some(Entry::Asking(_)) => Attempt::Unknown(error),
            Some(Entry::Held(_)) => Attempt::Unknown(grant_crossed()),
            None => Attempt::Failed(error),
        }
    }

    /// Its requests were answered, and none of the answers can be believed.
    pub(in crate::engine) fn doubted(&mut self, id: ClaimId, error: Error) -> Attempt {
        match self.claims.get_mut(&id) {
            Some(Entry::Asking(asking)) => asking.doubtful = true,
            Some(Entry::Held(_)) => return Attempt::Unknown(grant_crossed()),
            None => return Attempt::Failed(error),
        }
        self.holds_as_before(id);
        Attempt::Unknown(error)
    }

    /// A request whose answer did not come: `certain` when it did nothing.
    pub(in crate::engine) fn unanswered(
        &mut self,
        now: Ticks,
        id: ClaimId,
        certain: bool,
        error: Error,
    ) -> Attempt {
        let asking = match self.claims.get_mut(&id) {
            Some(Entry::Asking(asking)) => asking,
            Some(Entry::Held(_)) => return Attempt::Unknown(grant_crossed()),
            None => return Attempt::Failed(error),
        };
        asking.in_flight = asking.in_flight.saturating_sub(1);
        asking.doubtful |= !certain;
        let pushed = asking.pushed.take();
        if asking.stood && !asking.leaving {
            // Whatever became of the request, what a push said meanwhile holds.
            asking.in_line = true;
            if let Some(grant) = pushed.and_then(|pushed| self.take_push(now, id, &pushed)) {
                return Attempt::Granted(grant);
            }
            return Attempt::Unknown(error);
        }
        let in_doubt = asking.doubtful || asking.leaving;
        if self.holds_as_before(id) || in_doubt {
            return Attempt::Unknown(error);
        }
        self.forget(id);
        Attempt::Failed(error)
    }

    /// Where a question about a hold came to nothing it holds as before; a copy of the question may
    /// still be on its way.
    fn holds_as_before(&mut self, id: ClaimId) -> bool {
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return false };
        if asking.leaving {
            return false;
        }
        let refuse = asking.refuse();
        let Some(mut held) = asking.was.take() else { return false };
        held.refuse = held.refuse.max(refuse);
        self.claims.insert(id, Entry::Held(held));
        true
    }

    /// What a push means to the keeper.
    pub(in crate::engine) fn pushed(&mut self, now: Ticks, push: &Push) -> Option<Event> {
        match *push {
            Push::Granted { claim: id, number, now: at, lease, version } => {
                let at = u64::try_from(at).unwrap_or(0);
                let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
                if asking.leaving {
                    return None;
                }
                let pushed = Pushed { version, number, ttl: left(lease), at, receipt: now };
                if !asking.in_line {
                    asking.pushed = Some(pushed);
                    return None;
                }
                Some(match self.take_push(now, id, &pushed) {
                    Some(grant) => Event::Granted { claim: id, grant },
                    // Read so late that it may have passed on: only a reason to ask (R1).
                    None => Event::Wake { claim: id },
                })
            }
            Push::First { claim: id, rest } => {
                self.wants(id).then(|| Event::AskAt { claim: id, at: now.plus(look_in(rest)) })
            }
            Push::Alive { claim: id } => {
                let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
                if !asking.in_line {
                    asking.questioned = true;
                    return None;
                }
                // Asking again is the sign of life.
                (!asking.leaving).then_some(Event::AskAt { claim: id, at: now })
            }
            Push::Taken { claim: id } => {
                let ended = match self.claims.get_mut(&id)? {
                    Entry::Held(_) => {
                        self.forget(id);
                        true
                    }
                    // What granted it is of before.
                    Entry::Asking(asking) => {
                        asking.pushed = None;
                        asking.was.take().is_some()
                    }
                };
                ended.then_some(Event::Ended { which: Which::Hold(id), why: Lost::TakenAway })
            }
        }
    }

    /// The grant that a push means, dated by what is known of the server's clock now; `None` when
    /// its lease may be over already, as the keeper counts.
    fn take_push(&mut self, now: Ticks, id: ClaimId, pushed: &Pushed) -> Option<Grant> {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else { return None };
        let Pushed { number, ttl, at, receipt, .. } = *pushed;
        let drift = Drift { per_mille: self.rules.drift_permille, ..Drift::default() };
        let anchor = self.anchor.filter(|anchor| !anchor.is_before(self.stepped));
        let since = anchor.map(|anchor| anchor.since(at, receipt, drift.per_mille));
        if since.is_some_and(|since| deadline(since, ttl, drift) <= now) {
            return None;
        }
        let (kind, hold) = (asking.asked.kind, asking.asked.place.hold);
        self.hold(id, number);
        let lease = Lease { id: lease_of(id, hold), ttl, since, confirm: true };
        Some(Grant { number: number_of(kind, number), lease: Some(lease) })
    }

    fn hold(&mut self, id: ClaimId, number: u64) {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else { return };
        if asking.leaving {
            return;
        }
        let place = &asking.asked.place;
        if let Some(hold) = place.hold {
            // Its caller may have left meanwhile, and the hold is to be as it was: so it stays
            // known.
            let before = match self.claims.get_mut(&hold) {
                Some(Entry::Held(held)) => {
                    held.number = held.number.max(number);
                    held.converted.replace(id)
                }
                _ => None,
            };
            if let Some(before) = before.filter(|before| *before != id) {
                self.claims.remove(&before);
            }
            return;
        }
        let was = asking.was.as_ref();
        let held = Held {
            kind: asking.asked.kind,
            name: asking.name.clone(),
            ttl: place.ttl,
            delay: place.delay,
            number,
            refuse: asking.refuse().max(was.map_or(0, |was| was.refuse)),
            converting: was.map_or(0, |was| was.converting),
            converted: was.and_then(|was| was.converted),
            stated: was.is_some_and(|was| was.stated),
        };
        self.claims.insert(id, Entry::Held(held));
    }

    /// It has nothing, and its caller is told so. While a copy of its request may still be on its
    /// way it stays known, so that its withdrawal leaves word.
    fn refused(&mut self, now: Ticks, id: ClaimId) {
        let server = self.server(now).unwrap_or(0);
        let copy = matches!(
            self.claims.get(&id),
            Some(Entry::Asking(asking)) if asking.refuse() > server
        );
        if !copy {
            self.forget(id);
        } else if let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) {
            asking.was = None;
        }
    }
}

impl Asking {
    /// Until when a request of this claim that is still on its way must be refused; 0 when none
    /// can be. It may have been in time, and wait for the row: its statement ends after `waits`.
    fn refuse(&self) -> Us {
        let on_its_way = self.doubtful || self.in_flight > 0;
        if on_its_way { self.not_after.saturating_add(self.waits).saturating_add(1) } else { 0 }
    }
}
