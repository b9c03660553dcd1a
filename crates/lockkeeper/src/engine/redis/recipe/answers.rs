//! What answers and pushes mean.

use std::time::Duration;

use super::super::client::node::Node;
use super::super::reply::{Push, Reply};
use super::super::{errors, record};
use super::times::{ask_at, look_in};
use super::{Entry, Held, Phase, Recipe};
use crate::engine::anchor::Anchor;
use crate::engine::{Attempt, Event, Grant, Lease, Number, Place, Which as What};
use crate::protocol::lease::{Drift, deadline};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;
use crate::words::name::Kind;

/// When and where an answer was read.
#[derive(Clone, Copy, Debug)]
pub(in crate::engine::redis) struct Read {
    /// Our clock before its request left.
    pub(in crate::engine::redis) before: Ticks,
    /// Who answered.
    pub(in crate::engine::redis) node: Node,
    /// Its number among everything that was read of that node.
    pub(in crate::engine::redis) order: u64,
}

/// What an answer comes to.
#[derive(Debug)]
pub(in crate::engine::redis) enum Verdict {
    /// Tell the keeper.
    Tell(Attempt),
    /// It came too late by the server's clock, which we know better now, or something was in the
    /// way of the short one: send it again.
    Again,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pushed {
    node: Node,
    order: u64,
    grant_number: u64,
    ttl: Duration,
    /// The server's time of it.
    now_us: u64,
    receipt: Ticks,
}

impl Recipe {
    /// What the answer to a request means.
    pub(in crate::engine::redis) fn answered(
        &mut self,
        now: Ticks,
        read: Read,
        id: ClaimId,
        reply: Reply,
    ) -> Verdict {
        let free = matches!(reply, Reply::Taken { .. });
        let reply = self.spelled_out(id, reply);
        let Read { before, node, order } = read;
        self.heard(node, reply.now_us(), before);
        // Nodes count what they send each by itself.
        let since = |of: Node, at: u64| of != node || at > order;
        // What a push grants may have to wait for replicas, or tell a number that went back.
        let may_push = !self.rules.acknowledged && !self.rules.moves;
        let seen = match &reply {
            Reply::Granted { number, .. } => self.seen_before(node, id, *number),
            _ => None,
        };
        let asking = match self.claims.get_mut(&id) {
            Some(Entry::Asking(asking)) => asking,
            Some(Entry::Held(held)) => {
                if let Reply::Granted { number, .. } = reply {
                    held.number = held.number.max(number);
                }
                return Verdict::Tell(crossed(id, held.kind, held.number, before, &reply));
            }
            None => return Verdict::Tell(Attempt::Busy(None)),
        };
        asking.in_flight = asking.in_flight.saturating_sub(1);
        if let Some(busy) = reply.is_busy() {
            self.busy.note(&asking.record, busy);
        }
        let pushed = asking.pushed.take().filter(|p| since(p.node, p.order));
        // Dated by what is known now: before the answer it may have been the time of long ago.
        let anchor = pushed.as_ref().and_then(|p| self.anchors.of_since(p.node, self.stepped));
        // A request that the server answered before it put the question is no answer to it.
        let questioned = asking.questioned.take().is_some_and(|(of, at)| since(of, at));
        let (kind, limit, hold) = (asking.kind, asking.limit, asking.hold);
        let exclusive = asking.exclusive;
        let drift = Drift { per_mille: self.rules.drift_permille, ..Drift::default() };
        let shown = |holder: &str, rest: Duration| {
            record::holder(holder, kind, limit, Some(rest)).map(Box::new)
        };
        match reply {
            // Read so late that its lease is over: others may have had the lock since, and this
            // number is not to be believed any more. What a push says from here on is news.
            Reply::Granted { ttl, .. } if hold.is_none() && deadline(before, ttl, drift) <= now => {
                asking.doubtful = true;
                if let Some(pushed) = pushed.as_ref().filter(|_| may_push)
                    && let Some(grant) = grant_of(now, id, hold, kind, pushed, anchor, drift)
                {
                    self.hold(pushed.node, id, pushed.grant_number);
                    return Verdict::Tell(Attempt::Granted(grant));
                }
                Verdict::Tell(Attempt::Unknown(errors::read_late()))
            }
            // It stays known, so that it is given back.
            Reply::Granted { number, .. } if seen.is_some() => {
                Verdict::Tell(Attempt::Failed(went_back(number, seen.unwrap_or(number))))
            }
            Reply::Granted { number, ttl, .. } => {
                let lease =
                    Lease { id: lease_of(id, hold), ttl, since: Some(before), confirm: false };
                self.hold(node, id, number);
                if let Some(Entry::Held(held)) = self.claims.get_mut(&id) {
                    held.free = free && exclusive;
                }
                Verdict::Tell(Attempt::Granted(Grant {
                    number: number_of(kind, number),
                    lease: Some(lease),
                }))
            }
            Reply::InLine { ahead, rest, holder, turn, .. } => {
                if let Some(pushed) = pushed.as_ref().filter(|_| may_push)
                    && let Some(grant) = grant_of(now, id, hold, kind, pushed, anchor, drift)
                {
                    self.hold(pushed.node, id, pushed.grant_number);
                    return Verdict::Tell(Attempt::Granted(grant));
                }
                (asking.phase, asking.stood) = (Phase::InLine, true);
                let ask_at = if pushed.is_some() || questioned {
                    // As of a push that is read so late: a reason to ask, and at once, for it may
                    // be ours for a moment yet.
                    Some(now)
                } else {
                    ask_at(now, turn, rest, asking.place.ttl)
                };
                let place = Place { ahead: Some(ahead), holder: shown(&holder, rest), ask_at };
                Verdict::Tell(Attempt::InLine(place))
            }
            Reply::Busy { rest, holder, .. } => {
                let holder = shown(&holder, rest);
                self.refused(now, node, id);
                Verdict::Tell(Attempt::Busy(holder))
            }
            Reply::Late { .. } | Reply::InTheWay { .. }
                if asking.leaving || asking.give_up.is_some_and(|at| at <= now) =>
            {
                let (certain, leaving) = (!asking.doubtful && !asking.stood, asking.leaving);
                let error = Error::new(
                    ErrorKind::TimedOut,
                    match reply {
                        Reply::Late { .. } => "the request arrived after its time had passed",
                        _ => "it was in use, and the time to wait for it was over",
                    },
                );
                if !certain && !leaving {
                    // What an earlier request did is there: whoever asked has to leave.
                    return Verdict::Tell(Attempt::Unknown(error));
                }
                self.forget_unless_leaving(id);
                Verdict::Tell(Attempt::Failed(error))
            }
            Reply::Late { .. } | Reply::InTheWay { .. } => Verdict::Again,
            // It was spelled out.
            Reply::Taken { .. } => Verdict::Tell(Attempt::Unknown(errors::crossed())),
            Reply::OtherLimit { stored, .. } => {
                self.refused(now, node, id);
                let text = format!(
                    "its stored limit is {stored} and {limit} was requested: request {stored}, or \
                     resize it"
                );
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::LimitMismatch, text)))
            }
            Reply::Full { .. } => {
                self.refused(now, node, id);
                let text =
                    "16384 places stand in line for this name already: ask later, or with try_lock";
                Verdict::Tell(Attempt::Failed(Error::new(ErrorKind::Refused, text).temporary(true)))
            }
            Reply::Gone { .. } => {
                self.forget(id);
                Verdict::Tell(Attempt::Failed(Error::new(
                    ErrorKind::Lost,
                    "the hold is not ours any more",
                )))
            }
            Reply::NotUpgradable { .. } => {
                self.forget(id);
                Verdict::Tell(Attempt::Failed(Error::new(
                    ErrorKind::WouldDeadlock,
                    "only an upgradable hold upgrades",
                )))
            }
        }
    }

    /// A grant of the short way tells nothing that its claim knows.
    fn spelled_out(&self, id: ClaimId, reply: Reply) -> Reply {
        match (&reply, self.claims.get(&id)) {
            (Reply::Taken { number }, Some(entry)) => {
                let ttl = match entry {
                    Entry::Held(held) => held.ttl,
                    Entry::Asking(asking) => asking.place.ttl,
                };
                Reply::Granted { now_us: reply.now_us(), number: *number, ttl, beside: false }
            }
            _ => reply,
        }
    }

    /// A request whose answer did not come: `certain` when it was not sent, or was refused as a
    /// whole.
    pub(in crate::engine::redis) fn unanswered(
        &mut self,
        id: ClaimId,
        certain: bool,
        error: Error,
    ) -> Attempt {
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else {
            return Attempt::Failed(error);
        };
        asking.in_flight = asking.in_flight.saturating_sub(1);
        // The next connection counts what it reads from the beginning.
        (asking.pushed, asking.questioned) = (None, None);
        asking.doubtful |= !certain;
        // A place that was there before this request is still there.
        if asking.doubtful || asking.leaving || asking.stood {
            return Attempt::Unknown(error);
        }
        self.forget(id);
        Attempt::Failed(error)
    }

    /// What a push means to the keeper.
    pub(in crate::engine::redis) fn pushed(
        &mut self,
        now: Ticks,
        node: Node,
        order: u64,
        push: &Push,
    ) -> Option<Event> {
        match push {
            Push::Granted { claim, number, now_us, lease } => {
                let id = ClaimId(*claim);
                let anchor = self.anchors.of_since(node, self.stepped);
                let drift = Drift { per_mille: self.rules.drift_permille, ..Drift::default() };
                let backwards = self.seen_before(node, id, *number).is_some();
                let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
                if asking.leaving {
                    return None;
                }
                let pushed = Pushed {
                    node,
                    order,
                    grant_number: *number,
                    ttl: *lease,
                    now_us: *now_us,
                    receipt: now,
                };
                if asking.phase == Phase::Asked {
                    asking.pushed = Some(pushed);
                    return None;
                }
                let (hold, kind) = (asking.hold, asking.kind);
                // Asking again tells the same number, and gives it back; and whose it is, where
                // nodes hand on what others push.
                if backwards || self.rules.acknowledged || self.rules.scattered {
                    return Some(Event::Wake { claim: id });
                }
                let Some(grant) = grant_of(now, id, hold, kind, &pushed, anchor, drift) else {
                    // Read so late that it may have passed on: no grant, only a reason to ask (R1).
                    return Some(Event::Wake { claim: id });
                };
                self.hold(node, id, pushed.grant_number);
                Some(Event::Granted { claim: id, grant })
            }
            Push::First { claim, rest } => {
                let id = ClaimId(*claim);
                self.wants(id).then(|| Event::AskAt { claim: id, at: now.plus(look_in(*rest)) })
            }
            Push::Alive { claim } => {
                let id = ClaimId(*claim);
                let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
                if asking.phase == Phase::Asked {
                    asking.questioned = Some((node, order));
                    return None;
                }
                // Asking again is the sign of life.
                (!asking.leaving).then_some(Event::AskAt { claim: id, at: now })
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

    /// The number that an earlier server gave for the same name, if this one is not above it.
    fn seen_before(&self, node: Node, id: ClaimId, number: u64) -> Option<u64> {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else { return None };
        let counts = self.rules.moves && asking.kind != Kind::Semaphore;
        self.numbers.not_below(node, &asking.record, number, id).filter(|_| counts)
    }

    fn hold(&mut self, node: Node, id: ClaimId, number: u64) {
        let Some(Entry::Asking(asking)) = self.claims.get(&id) else { return };
        if asking.leaving {
            return;
        }
        if self.rules.moves && asking.kind != Kind::Semaphore {
            self.numbers.saw(node, &asking.record, number, id);
        }
        if let Some(hold) = asking.hold {
            // Its caller may have left meanwhile, and the hold is to be as it was: so it stays
            // known.
            let before = match self.claims.get_mut(&hold) {
                Some(Entry::Held(held)) => {
                    held.number = held.number.max(number);
                    held.free = false;
                    held.conversions.get_or_insert_default().granted.replace(id)
                }
                _ => None,
            };
            if let Some(before) = before.filter(|before| *before != id) {
                self.claims.remove(&before);
            }
        } else {
            let held = Held {
                record: asking.record.clone(),
                kind: asking.kind,
                limit: asking.limit,
                delayed: !asking.place.delay.is_zero(),
                free: false,
                ttl: asking.place.ttl,
                number,
                refuse_us: asking.refuse_us(),
                conversions: None,
            };
            self.claims.insert(id, Entry::Held(held));
        }
    }

    /// It has nothing, and its caller is told so. While a copy of its request may still be on its
    /// way it stays known, so that [`Recipe::withdraw`] leaves word of it.
    fn refused(&mut self, now: Ticks, node: Node, id: ClaimId) {
        let server_us = self.server_us(now, node);
        let copy = matches!(
            self.claims.get(&id),
            Some(Entry::Asking(asking)) if asking.refuse_us() > server_us
        );
        if !copy {
            self.forget(id);
        }
    }

    fn forget_unless_leaving(&mut self, id: ClaimId) {
        if self.wants(id) {
            self.forget(id);
        }
    }
}

fn went_back(number: u64, seen: u64) -> Error {
    let text = format!(
        "the server gave the number {number}, and gave {seen} before: it took the place of one \
         whose clock is ahead of its own, and a token must not go back; nothing is granted until \
         its clock has caught up"
    );
    Error::new(ErrorKind::Refused, text).temporary(true)
}

fn lease_of(id: ClaimId, hold: Option<HoldId>) -> LeaseId {
    hold.unwrap_or(id).into()
}

pub(super) fn number_of(kind: Kind, number: u64) -> Number {
    if kind == Kind::Semaphore { Number::None } else { Number::Ours(number) }
}

/// What an answer says that comes when its claim is held already, because a push or another answer
/// was faster; `held` is the number that it holds with. A lower number is that of a grant that was
/// over before, and says nothing about this one.
fn crossed(id: ClaimId, kind: Kind, held: u64, before: Ticks, reply: &Reply) -> Attempt {
    match *reply {
        Reply::Granted { number, ttl, .. } if number >= held => {
            let lease = Lease { id: id.into(), ttl, since: Some(before), confirm: false };
            Attempt::Granted(Grant { number: number_of(kind, number), lease: Some(lease) })
        }
        // It was in line when the server answered; the grant came behind.
        Reply::InLine { ahead, .. } => {
            Attempt::InLine(Place { ahead: Some(ahead), ..Place::default() })
        }
        // The hold's own lease decides.
        _ => Attempt::Unknown(errors::crossed()),
    }
}

/// The grant that a push means; `None` when its lease may be over already, as the keeper counts.
fn grant_of(
    now: Ticks,
    id: ClaimId,
    hold: Option<HoldId>,
    kind: Kind,
    pushed: &Pushed,
    anchor: Option<Anchor>,
    drift: Drift,
) -> Option<Grant> {
    let Pushed { ttl, now_us, receipt, .. } = *pushed;
    let since = anchor.map(|anchor| anchor.since(now_us, receipt, drift.per_mille));
    if since.is_some_and(|since| deadline(since, ttl, drift) <= now) {
        return None;
    }
    let lease = Lease { id: lease_of(id, hold), ttl, since, confirm: true };
    Some(Grant { number: number_of(kind, pushed.grant_number), lease: Some(lease) })
}
