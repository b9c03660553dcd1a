//! The protocol of the native layout as a pure machine: what to send, and what an answer or a push means.
//!
//! It knows every claim of this process that is on its way, in line or held. Push and commands share one connection, so
//! "in line" is read before "granted"; but the keeper takes the answer a moment after it was read, and so a push that
//! overtakes its answer on that way waits here for it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::anchor::Anchor;
use super::keys::{Keys, last, line};
use super::record::{self, Place, millis};
use super::reply::{Push, Reply};
use super::script::{Call, Which};
use crate::claim::Claim;
use crate::clock::Ticks;
use crate::engine::{Attempt, Event, Grant, Lease, Line, Number, Place as Standing, Which as What};
use crate::error::{Error, ErrorKind};
use crate::id::{ClaimId, HoldId, LeaseId};
use crate::lost::Lost;
use crate::name::Kind;
use crate::protocol::table::Table;

/// How long a granted place has to be confirmed, at most (R11).
const CLAIM_LEASE: Duration = Duration::from_secs(2);
/// How soon somebody in line asks again when nothing says when.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// What does not change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rules {
    pub(super) keys: Keys,
    pub(super) channel: String,
    pub(super) drift_permille: u32,
    /// A request is refused on arrival after this time (R3).
    pub(super) request_timeout: Duration,
}

/// The claims of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recipe {
    rules: Rules,
    anchor: Option<Anchor>,
    claims: Table<ClaimId, Entry>,
    /// When to ask again for a place, because a lease ends then and nobody else may notice (R10).
    asks: BTreeSet<(Ticks, ClaimId)>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Entry {
    /// Small: there may be 100 000.
    Held(Held),
    Asking(Box<Asking>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Held {
    record: Arc<str>,
    kind: Kind,
    ttl: Duration,
    /// A request for it may still be on its way over a connection that broke: until then its release leaves word.
    refuse_us: u64,
    /// When the last conversion was first asked for: each is younger than the one before it, whatever the clocks say, and the
    /// server refuses an older one that arrives late.
    converting_us: u64,
    /// The last conversion that was granted: until the next one it may still be taken back.
    converted: Option<ClaimId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asking {
    record: Arc<str>,
    kind: Kind,
    place: Place,
    limit: u16,
    how: &'static str,
    hold: Option<HoldId>,
    give_up: Option<Ticks>,
    phase: Phase,
    /// A send whose outcome is not known: nothing may be called certain from then on.
    doubtful: bool,
    /// It stood in line once: no request that failed makes it certain that it does not.
    stood: bool,
    /// How many requests are on their way.
    in_flight: u32,
    sent_before: bool,
    leaving: bool,
    not_after_us: u64,
    ask_at: Option<Ticks>,
    pushed: Option<Pushed>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// On its way, or its outcome is not known.
    Asked,
    /// The keeper knows that it stands in line.
    InLine,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Pushed {
    order: u64,
    grant_number: u64,
    lease: Lease2,
}

/// A pushed lease: how long, and since when at the earliest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Lease2 {
    ttl: Duration,
    since: Option<Ticks>,
}

/// What an answer comes to.
#[derive(Debug)]
pub(super) enum Verdict {
    /// Tell the keeper.
    Tell(Attempt),
    /// It came too late by the server's clock, which we know better now: send it again.
    Again,
}

impl Recipe {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, anchor: None, claims: Table::default(), asks: BTreeSet::new() }
    }

    /// Takes the server's time from any answer; `before` was read before its request was sent.
    pub(super) fn heard(&mut self, now_us: u64, before: Ticks) {
        let anchor = Anchor::new(now_us, before);
        self.anchor = Some(self.anchor.map_or(anchor, |old| old.newer(anchor)));
    }

    /// Asks for a lock, or for another mode of a hold. The second time with the same claim it is the same place.
    pub(super) fn ask(&mut self, now: Ticks, claim: &Claim, how: Line, hold: Option<HoldId>) -> Call {
        if !matches!(self.claims.get(&claim.id), Some(Entry::Asking(_))) {
            let known = matches!(self.claims.get(&claim.id), Some(Entry::Held(_)));
            let mut since_us = self.server_us(now);
            if let Some(Entry::Held(held)) = hold.and_then(|hold| self.claims.get_mut(&hold)) {
                since_us = since_us.max(held.converting_us + 1);
                held.converting_us = since_us;
            }
            let asking = Asking {
                record: self.rules.keys.record(claim.kind, &claim.name).into(),
                kind: claim.kind,
                place: Place::new(claim, hold, &self.rules.channel, since_us),
                limit: claim.mode.permits().map_or(0, |_| limit_of(claim)),
                how: if how == Line::Try { "try" } else { "join" },
                hold,
                give_up: claim.give_up,
                phase: Phase::Asked,
                doubtful: false,
                stood: false,
                in_flight: 0,
                sent_before: known,
                leaving: false,
                not_after_us: 0,
                ask_at: None,
                pushed: None,
            };
            self.claims.insert(claim.id, Entry::Asking(Box::new(asking)));
        }
        if let Some(Entry::Asking(asking)) = self.claims.get_mut(&claim.id) {
            asking.phase = Phase::Asked;
            asking.give_up = claim.give_up;
        }
        // It was just put there.
        self.again(now, claim.id).unwrap_or_else(|| Call { script: Which::Acquire, keys: Vec::new(), arguments: Vec::new() })
    }

    /// The request for a claim that was asked for before; `None` when it is not wanted any more.
    pub(super) fn again(&mut self, now: Ticks, id: ClaimId) -> Option<Call> {
        let until = now.plus(self.rules.request_timeout);
        let anchor = self.anchor;
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
        if asking.leaving {
            return None;
        }
        self.asks.remove(&(asking.ask_at.take().unwrap_or_default(), id));
        let give_up = asking.give_up.map_or(until, |at| at.min(until));
        // Without an anchor nothing is known about the server's clock; the handshake gives one.
        asking.not_after_us = anchor.map_or((1 << 53) - 1, |a| a.server_us_at(give_up));
        let mut arguments = asking.place.arguments();
        arguments.push(asking.not_after_us.to_string());
        arguments.push(asking.how.to_owned());
        arguments.push(if asking.sent_before { "0" } else { "1" }.to_owned());
        asking.sent_before = true;
        asking.in_flight += 1;
        let script = if asking.hold.is_some() { Which::Convert } else { Which::Acquire };
        Some(Call { script, keys: self.keys_of(id)?, arguments })
    }

    /// Whether a request may still be sent; a withdrawn claim's may not.
    pub(super) fn wants(&self, id: ClaimId) -> bool {
        matches!(self.claims.get(&id), Some(Entry::Asking(asking)) if !asking.leaving)
    }

    /// What the answer to a request means; it was number `order` of everything that was read.
    pub(super) fn answered(&mut self, now: Ticks, before: Ticks, id: ClaimId, order: u64, reply: Reply) -> Verdict {
        self.heard(reply.now_us(), before);
        let asking = match self.claims.get_mut(&id) {
            Some(Entry::Asking(asking)) => asking,
            Some(Entry::Held(held)) => return Verdict::Tell(crossed(id, held.kind, before, &reply)),
            None => return Verdict::Tell(Attempt::Busy(None)),
        };
        asking.in_flight = asking.in_flight.saturating_sub(1);
        let pushed = asking.pushed.take().filter(|p| p.order > order);
        let (kind, limit, hold) = (asking.kind, asking.limit, asking.hold);
        let shown = |holder: &str, rest: Duration| record::holder(holder, kind, limit, Some(rest)).map(Box::new);
        match reply {
            Reply::Granted { number, ttl, .. } => {
                let lease = Lease { id: lease_of(id, hold), ttl, since: Some(before), confirm: false };
                self.hold(id);
                Verdict::Tell(Attempt::Granted(Grant { number: number_of(kind, number), lease: Some(lease) }))
            }
            Reply::InLine { ahead, rest, holder, .. } => {
                if let Some(pushed) = pushed
                    && let Some(grant) = grant_of(now, id, hold, kind, &pushed)
                {
                    self.hold(id);
                    return Verdict::Tell(Attempt::Granted(grant));
                }
                (asking.phase, asking.stood) = (Phase::InLine, true);
                let holder = shown(&holder, rest);
                self.ask_when(now, id, ahead, rest);
                Verdict::Tell(Attempt::InLine(Standing { ahead: Some(ahead), holder }))
            }
            Reply::Busy { rest, holder, .. } => {
                let holder = shown(&holder, rest);
                self.refused(now, id);
                Verdict::Tell(Attempt::Busy(holder))
            }
            Reply::Late { .. } if asking.leaving || asking.give_up.is_some_and(|at| at <= now) => {
                let (certain, leaving) = (!asking.doubtful && !asking.stood, asking.leaving);
                let error = Error::new(ErrorKind::TimedOut, "the request arrived after its time was over");
                if !certain && !leaving {
                    // What an earlier request did is there: whoever asked has to leave.
                    return Verdict::Tell(Attempt::Unknown(error));
                }
                self.forget_unless_leaving(id);
                Verdict::Tell(Attempt::Failed(error))
            }
            Reply::Late { .. } => Verdict::Again,
            Reply::OtherLimit { stored, .. } => {
                self.refused(now, id);
                let text = format!(
                    "the semaphore has {stored} permits and it was asked for with {limit}: use {stored}, or change the limit with resize"
                );
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::LimitMismatch, text)))
            }
            Reply::Full { .. } => {
                self.refused(now, id);
                let text = "16384 places stand in line for this name already: ask later, or with try_lock";
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::Refused, text).temporary(true)))
            }
            Reply::Gone { .. } => {
                self.forget(id);
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::Lost, "the hold is not ours any more")))
            }
            Reply::NotUpgradable { .. } => {
                self.forget(id);
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::WouldDeadlock, "only an upgradable hold upgrades")))
            }
        }
    }

    /// A request whose answer did not come: `certain` when it was not sent, or was refused as a whole.
    pub(super) fn unanswered(&mut self, id: ClaimId, certain: bool, error: Error) -> Attempt {
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return Attempt::Failed(error) };
        asking.in_flight = asking.in_flight.saturating_sub(1);
        // The next connection counts what it reads from the beginning.
        asking.pushed = None;
        asking.doubtful |= !certain;
        // A place that was there before this request is still there.
        if asking.doubtful || asking.leaving || asking.stood {
            return Attempt::Unknown(error);
        }
        self.forget(id);
        Attempt::Failed(error)
    }

    /// What a push means to the keeper.
    pub(super) fn pushed(&mut self, now: Ticks, order: u64, push: &Push) -> Option<Event> {
        match push {
            Push::Granted { claim, number, now_us, lease } => {
                let id = ClaimId(*claim);
                let since = self.anchor.map(|a| a.since(*now_us, now, self.rules.drift_permille));
                let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
                if asking.leaving {
                    return None;
                }
                let pushed = Pushed { order, grant_number: *number, lease: Lease2 { ttl: *lease, since } };
                if asking.phase == Phase::Asked {
                    asking.pushed = Some(pushed);
                    return None;
                }
                let (hold, kind) = (asking.hold, asking.kind);
                let Some(grant) = grant_of(now, id, hold, kind, &pushed) else {
                    // Read so late that it may have passed on: no grant, only a reason to ask (R1).
                    return Some(Event::Wake { claim: id });
                };
                self.hold(id);
                Some(Event::Granted { claim: id, grant })
            }
            Push::First { claim, rest } => {
                self.ask_when(now, ClaimId(*claim), 0, *rest);
                None
            }
            Push::Taken { claim } => {
                let id = ClaimId(*claim);
                matches!(self.claims.get(&id), Some(Entry::Held(_))).then(|| {
                    self.forget(id);
                    Event::Ended { which: What::Hold(id), why: Lost::TakenAway }
                })
            }
        }
    }

    /// Leaves the line, or gives back. `None`: there is nothing of it.
    pub(super) fn withdraw(&mut self, id: ClaimId) -> Option<Call> {
        let keys = self.keys_of(id)?;
        match self.claims.get_mut(&id)? {
            Entry::Held(held) => {
                let arguments = vec![id.to_string(), held.refuse_us.to_string()];
                Some(Call { script: Which::Release, keys, arguments })
            }
            Entry::Asking(asking) => {
                asking.leaving = true;
                self.asks.remove(&(asking.ask_at.take().unwrap_or_default(), id));
                let mut arguments = asking.place.arguments();
                // A request that may still be on its way must find that its caller has left.
                arguments.push(asking.refuse_us().to_string());
                Some(Call { script: Which::Withdraw, keys, arguments })
            }
        }
    }

    /// The release of a hold; `again` stands in line in the same message. `None`: there is nothing of it.
    pub(super) fn release(&mut self, now: Ticks, id: HoldId, again: Option<&Claim>) -> Option<Call> {
        let server_us = self.server_us(now);
        if let Entry::Held(held) = self.claims.get_mut(&id)?
            && held.refuse_us <= server_us
        {
            held.refuse_us = 0;
        }
        let mut call = self.withdraw(id)?;
        if let Some(claim) = again
            && call.script == Which::Release
        {
            call.arguments.extend(self.ask(now, claim, Line::Join, None).arguments);
        }
        Some(call)
    }

    /// The keys and arguments that renew one lease; `None` when there is no such hold.
    pub(super) fn renewal(&self, lease: LeaseId) -> Option<([String; 2], [String; 2])> {
        let id = ClaimId(lease.0);
        match self.claims.get(&id)? {
            Entry::Held(held) => Some(([held.record.to_string(), last(&held.record)], [id.to_string(), millis(held.ttl).to_string()])),
            Entry::Asking(_) => None,
        }
    }

    /// How long a hold's lease is.
    pub(super) fn ttl(&self, lease: LeaseId) -> Option<Duration> {
        match self.claims.get(&ClaimId(lease.0))? {
            Entry::Held(held) => Some(held.ttl),
            Entry::Asking(_) => None,
        }
    }

    /// It is over, and the server knows.
    pub(super) fn forget(&mut self, id: ClaimId) {
        match self.claims.remove(&id) {
            Some(Entry::Asking(asking)) => _ = self.asks.remove(&(asking.ask_at.unwrap_or_default(), id)),
            Some(Entry::Held(Held { converted: Some(conversion), .. })) => self.forget(conversion),
            _ => {}
        }
    }

    /// The next instant at which somebody has to ask again.
    pub(super) fn next_ask(&self) -> Option<Ticks> {
        self.asks.first().map(|(at, _)| *at)
    }

    /// Who has to ask again now.
    pub(super) fn due(&mut self, now: Ticks) -> Vec<ClaimId> {
        let mut due = Vec::new();
        while let Some((at, id)) = self.asks.first().copied().filter(|(at, _)| *at <= now) {
            self.asks.remove(&(at, id));
            if let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) {
                asking.ask_at = None;
                due.push(id);
            }
        }
        due
    }

    /// Asks again later, whatever became of this time.
    pub(super) fn ask_later(&mut self, now: Ticks, id: ClaimId, wait: Duration) {
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return };
        if asking.leaving || asking.phase != Phase::InLine {
            return;
        }
        let at = now.plus(wait);
        self.asks.remove(&(asking.ask_at.unwrap_or_default(), id));
        asking.ask_at = Some(at);
        self.asks.insert((at, id));
    }

    /// The first in line asks when the lease before it ends, the second one claim lease later; the others have the net.
    fn ask_when(&mut self, now: Ticks, id: ClaimId, ahead: u32, rest: Duration) {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else { return };
        let lease = CLAIM_LEASE.min(asking.place.ttl / 3);
        let rest = if rest.is_zero() { ASK_AGAIN } else { rest + Duration::from_millis(1) };
        match ahead {
            0 => self.ask_later(now, id, rest),
            1 => self.ask_later(now, id, rest + lease),
            _ => {}
        }
    }

    fn hold(&mut self, id: ClaimId) {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else { return };
        if asking.leaving {
            return;
        }
        self.asks.remove(&(asking.ask_at.unwrap_or_default(), id));
        if let Some(hold) = asking.hold {
            // Its caller may have left meanwhile, and the hold is to be as it was: so it stays known.
            if let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) {
                asking.ask_at = None;
            }
            let before = match self.claims.get_mut(&hold) {
                Some(Entry::Held(held)) => held.converted.replace(id),
                _ => None,
            };
            if let Some(before) = before.filter(|before| *before != id) {
                self.claims.remove(&before);
            }
        } else {
            let held = Held {
                record: asking.record.clone(),
                kind: asking.kind,
                ttl: asking.place.ttl,
                refuse_us: asking.refuse_us(),
                converting_us: 0,
                converted: None,
            };
            self.claims.insert(id, Entry::Held(held));
        }
    }

    /// It has nothing, and its caller is told so. While a copy of its request may still be on its way it stays known, so that
    /// [`Recipe::withdraw`] leaves word of it.
    fn refused(&mut self, now: Ticks, id: ClaimId) {
        let server_us = self.server_us(now);
        let copy = matches!(self.claims.get(&id), Some(Entry::Asking(asking)) if asking.refuse_us() > server_us);
        if !copy {
            self.forget(id);
        }
    }

    fn forget_unless_leaving(&mut self, id: ClaimId) {
        if self.wants(id) {
            self.forget(id);
        }
    }

    fn keys_of(&self, id: ClaimId) -> Option<Vec<String>> {
        let record = match self.claims.get(&id)? {
            Entry::Held(held) => &held.record,
            Entry::Asking(asking) => &asking.record,
        };
        Some(self.keys(record))
    }

    /// The keys of a record, as every script takes them.
    pub(super) fn keys(&self, record: &str) -> Vec<String> {
        vec![record.to_owned(), line(record), last(record), self.rules.keys.watch()]
    }

    /// The server's time now, as far as we know it.
    pub(super) fn server_us(&self, now: Ticks) -> u64 {
        self.anchor.map_or(0, |a| a.server_us_at(now))
    }
}

impl Asking {
    /// Until when the server must refuse a request of this claim that is still on its way; 0 when none can be.
    fn refuse_us(&self) -> u64 {
        if self.doubtful || self.in_flight > 0 { self.not_after_us + 1 } else { 0 }
    }
}

fn limit_of(claim: &Claim) -> u16 {
    match claim.mode {
        crate::claim::Mode::Permits { limit, .. } => limit,
        _ => 0,
    }
}

fn lease_of(id: ClaimId, hold: Option<HoldId>) -> LeaseId {
    hold.unwrap_or(id).into()
}

fn number_of(kind: Kind, number: u64) -> Number {
    if kind == Kind::Semaphore { Number::None } else { Number::Ours(number) }
}

/// What an answer says that comes when its claim is held already, because a push or another answer was faster.
fn crossed(id: ClaimId, kind: Kind, before: Ticks, reply: &Reply) -> Attempt {
    match *reply {
        Reply::Granted { number, ttl, .. } => {
            let lease = Lease { id: id.into(), ttl, since: Some(before), confirm: false };
            Attempt::Granted(Grant { number: number_of(kind, number), lease: Some(lease) })
        }
        // It was in line when the server answered; the grant came behind.
        Reply::InLine { ahead, .. } => Attempt::InLine(Standing { ahead: Some(ahead), holder: None }),
        // The hold's own lease decides.
        _ => Attempt::Unknown(Error::new(ErrorKind::Unknown, "it was granted while it was asked about")),
    }
}

/// The grant that a push means; `None` when its lease may be over already.
fn grant_of(now: Ticks, id: ClaimId, hold: Option<HoldId>, kind: Kind, pushed: &Pushed) -> Option<Grant> {
    let Lease2 { ttl, since } = pushed.lease;
    if since.is_some_and(|since| since.plus(ttl) <= now) {
        return None;
    }
    let lease = Lease { id: lease_of(id, hold), ttl, since, confirm: true };
    Some(Grant { number: number_of(kind, pushed.grant_number), lease: Some(lease) })
}
