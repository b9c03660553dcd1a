//! The protocol of the native layout as a pure machine: what to send, and what an answer or a push
//! means.
//!
//! It knows every claim of this process that is on its way, in line or held. Push and commands
//! share one connection, so "in line" is read before "granted"; but the keeper takes the answer a
//! moment after it was read, and so a push that overtakes its answer on that way waits here for it.

mod answers;
mod busy;
mod release;
mod times;

use std::sync::Arc;
use std::time::Duration;

use answers::Pushed;
pub(super) use answers::{Read, Verdict};
use busy::Busy;
pub(super) use times::CLAIM_LEASE;

use super::anchors::Anchors;
use super::client::node::Node;
use super::client::texts::Texts;
use super::name::{Keys, LAST, LINE};
use super::numbers::Numbers;
use super::record::{self, Place};
use super::reply::number_until;
use super::script::{Call, Which};
use crate::engine::words::millis;
use crate::engine::{Line, Number};
use crate::protocol::table::Table;
use crate::words::claim::{Claim, Mode};
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId};
use crate::words::name::Kind;

/// What does not change.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Rules {
    pub(super) keys: Keys,
    pub(super) channel: String,
    pub(super) drift_permille: u32,
    /// A request is refused on arrival after this time (R3).
    pub(super) request_timeout: Duration,
    /// Replicas have to have a grant, so a pushed one is a reason to ask and no grant.
    pub(super) acknowledged: bool,
    /// Another server may take this one's place.
    pub(super) moves: bool,
    /// Names are at several nodes, and any of them may hand on what another one pushes: a push does
    /// not say by whose clock, nor whose number it is, so it is a reason to ask and no grant.
    pub(super) scattered: bool,
}

/// The claims of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recipe {
    rules: Rules,
    anchors: Anchors,
    /// No older anchor dates a push: our clock may have stood still.
    stepped: Ticks,
    claims: Table<ClaimId, Entry>,
    numbers: Numbers,
    busy: Busy,
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
    /// Of a semaphore.
    limit: u16,
    /// A delay follows its lease.
    delayed: bool,
    /// One holder alone, granted while nobody was in the way.
    free: bool,
    ttl: Duration,
    /// What it was granted with, or converted.
    number: u64,
    /// A request for it may still be on its way over a connection that broke: until then its
    /// release leaves word.
    refuse_us: u64,
    /// Of those that were ever converted.
    conversions: Option<Box<Conversions>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Conversions {
    /// When the last one was first asked for: each is younger than the one before it, whatever the
    /// clocks say, and the server refuses an older one that arrives late.
    asked_us: u64,
    /// The last one that was granted: until the next one it may still be taken back.
    granted: Option<ClaimId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Asking {
    record: Arc<str>,
    kind: Kind,
    place: Place,
    limit: u16,
    /// There is one holder alone.
    exclusive: bool,
    how: Line,
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
    /// The latest time at which one of its requests is in time.
    not_after_us: u64,
    pushed: Option<Pushed>,
    /// The last question for a sign of life that came while its answer was on its way: its place
    /// among what was read.
    questioned: Option<(Node, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// On its way, or its outcome is not known.
    Asked,
    /// The keeper knows that it stands in line.
    InLine,
}

impl Recipe {
    pub(super) fn new(rules: Rules) -> Self {
        Self {
            rules,
            anchors: Anchors::default(),
            stepped: Ticks(0),
            claims: Table::default(),
            numbers: Numbers::default(),
            busy: Busy::default(),
        }
    }

    /// The time of day was set forward at this reading.
    pub(super) fn stepped(&mut self, at: Ticks) {
        self.stepped = at;
    }

    /// Takes a server's time from any answer; `before` was read before its request was sent.
    pub(super) fn heard(&mut self, node: Node, now_us: u64, before: Ticks) {
        self.anchors.heard(node, now_us, before);
    }

    /// Another connection is being made, perhaps to another server: numbers of before are compared
    /// with those that it gives (R7).
    pub(super) fn fresh(&mut self, node: Node) {
        self.numbers.connected(node);
    }

    /// Asks for a lock, or for another mode of a hold. The second time with the same claim it is
    /// the same place. `node` is where its name is.
    pub(super) fn ask(
        &mut self,
        now: Ticks,
        node: Node,
        claim: &Claim,
        how: Line,
        hold: Option<HoldId>,
    ) -> Call {
        self.note(now, node, claim, how, hold);
        self.request(now, node, claim.id, true).unwrap_or_else(nothing)
    }

    /// The same where the short way leads nowhere: in the midst of something else, or behind a
    /// release on another connection.
    pub(super) fn ask_beside(&mut self, now: Ticks, node: Node, claim: &Claim, how: Line) -> Call {
        self.note(now, node, claim, how, None);
        self.request(now, node, claim.id, false).unwrap_or_else(nothing)
    }

    fn note(&mut self, now: Ticks, node: Node, claim: &Claim, how: Line, hold: Option<HoldId>) {
        if !matches!(self.claims.get(&claim.id), Some(Entry::Asking(_))) {
            let known = matches!(self.claims.get(&claim.id), Some(Entry::Held(_)));
            let mut since_us = self.server_us(now, node);
            if let Some(Entry::Held(held)) = hold.and_then(|hold| self.claims.get_mut(&hold)) {
                let conversions = held.conversions.get_or_insert_default();
                since_us = since_us.max(conversions.asked_us + 1);
                conversions.asked_us = since_us;
            }
            let asking = Asking {
                record: self.rules.keys.record(claim.kind, &claim.name).into(),
                kind: claim.kind,
                place: Place::new(claim, hold, &self.rules.channel, since_us),
                limit: claim.mode.permits().map_or(0, |_| limit_of(claim)),
                exclusive: claim.mode == Mode::Exclusive,
                how,
                hold,
                give_up: claim.give_up,
                phase: Phase::Asked,
                doubtful: false,
                stood: false,
                in_flight: 0,
                sent_before: known,
                leaving: false,
                not_after_us: 0,
                pushed: None,
                questioned: None,
            };
            self.claims.insert(claim.id, Entry::Asking(Box::new(asking)));
        }
        if let Some(Entry::Asking(asking)) = self.claims.get_mut(&claim.id) {
            asking.phase = Phase::Asked;
            asking.give_up = claim.give_up;
        }
    }

    /// The request for a claim that was asked for before; `None` when it is not wanted any more.
    pub(super) fn again(&mut self, now: Ticks, node: Node, id: ClaimId) -> Option<Call> {
        self.request(now, node, id, false)
    }

    /// The request for a claim, on the short way if it may be.
    fn request(&mut self, now: Ticks, node: Node, id: ClaimId, short: bool) -> Option<Call> {
        let until = now.plus(self.rules.request_timeout);
        let anchor = self.anchors.of(node);
        let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) else { return None };
        if asking.leaving {
            return None;
        }
        let give_up = asking.give_up.map_or(until, |at| at.min(until));
        // Without an anchor nothing is known about the server's clock; the handshake gives one.
        let not_after_us = anchor.map_or((1 << 53) - 1, |a| a.server_us_at(give_up));
        // An earlier copy may be in time for longer: the place was lent by somebody with more
        // patience.
        asking.not_after_us = asking.not_after_us.max(not_after_us);
        // Neither a delay nor what an earlier copy did is looked at on the short way.
        let short = short
            && !asking.sent_before
            && asking.hold.is_none()
            && asking.place.delay.is_zero()
            && !self.busy.is(&asking.record);
        asking.sent_before = true;
        asking.in_flight += 1;
        if short {
            return Some(asking.short_way(not_after_us));
        }
        let how = if asking.how == Line::Try { "try" } else { "join" };
        let mut arguments = Texts::from([asking.place.text()]);
        arguments.push_number(not_after_us);
        arguments.push(how);
        let script = if asking.hold.is_some() { Which::Convert } else { Which::Acquire };
        Some(Call { script, keys: self.keys_of(id)?, arguments })
    }

    /// The short way was refused as a whole by a server that takes no writes now. The long one has
    /// nothing to write where somebody holds the lock.
    pub(super) fn short_refused(&mut self, id: ClaimId) {
        if let Some(Entry::Asking(asking)) = self.claims.get_mut(&id) {
            asking.in_flight = asking.in_flight.saturating_sub(1);
        }
    }

    /// The number with which a claim holds; `None` when it does not.
    pub(super) fn number(&self, id: ClaimId) -> Option<Number> {
        match self.claims.get(&id)? {
            Entry::Held(held) => Some(answers::number_of(held.kind, held.number)),
            Entry::Asking(_) => None,
        }
    }

    /// The record that a claim is about.
    pub(super) fn record(&self, id: ClaimId) -> Option<Arc<str>> {
        match self.claims.get(&id)? {
            Entry::Held(held) => Some(held.record.clone()),
            Entry::Asking(asking) => Some(asking.record.clone()),
        }
    }

    /// The claims whose record this picks.
    #[cfg(feature = "cluster")]
    pub(super) fn claims_of(&self, records: &dyn Fn(&str) -> bool) -> Vec<ClaimId> {
        let record = |entry: &Entry| match entry {
            Entry::Held(held) => records(&held.record),
            Entry::Asking(asking) => records(&asking.record),
        };
        let mut claims = self.claims.picked(record);
        claims.sort_unstable();
        claims
    }

    /// Whether a request may still be sent; a withdrawn claim's may not.
    pub(super) fn wants(&self, id: ClaimId) -> bool {
        matches!(self.claims.get(&id), Some(Entry::Asking(asking)) if !asking.leaving)
    }

    fn keys_of(&self, id: ClaimId) -> Option<Texts> {
        Some(self.keys(&self.record(id)?))
    }

    /// The keys of a record, as every script takes them.
    pub(super) fn keys(&self, record: &str) -> Texts {
        let mut keys = Texts::from([record]);
        keys.push_joined(&[record, LINE]);
        keys.push_joined(&[record, LAST]);
        keys.push(self.rules.keys.watch(record));
        keys
    }

    /// A server's time now, as far as we know it.
    pub(super) fn server_us(&self, now: Ticks, node: Node) -> u64 {
        self.anchors.of(node).map_or(0, |a| a.server_us_at(now))
    }
}

impl Asking {
    /// The request on the short way.
    fn short_way(&self, not_after_us: u64) -> Call {
        let mut keys = Texts::from([&*self.record]);
        keys.push_joined(&[&self.record, LAST]);
        keys.push_joined(&[&self.record, LINE]);
        let mut arguments = Texts::default();
        arguments.push_joined(&[self.place.text(), " "]);
        arguments.push_number(millis(self.place.ttl));
        if self.kind == Kind::Semaphore {
            arguments.push_number(not_after_us);
            arguments.push(record::bare_limit(self.limit));
            return Call { script: Which::TakePermits, keys, arguments };
        }
        arguments.push_number(number_until(not_after_us));
        Call { script: Which::Take, keys, arguments }
    }
}

/// For a claim that is not known, which nobody asks for.
fn nothing() -> Call {
    Call::new(Which::Acquire)
}

fn limit_of(claim: &Claim) -> u16 {
    match claim.mode {
        Mode::Permits { limit, .. } => limit,
        _ => 0,
    }
}
