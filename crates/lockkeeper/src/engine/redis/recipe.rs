//! The protocol of the native layout as a pure machine: what to send, and what an answer or a push
//! means.
//!
//! It knows every claim of this process that is on its way, in line or held. Push and commands
//! share one connection, so "in line" is read before "granted"; but the keeper takes the answer a
//! moment after it was read, and so a push that overtakes its answer on that way waits here for it.

mod answers;
mod parting;
mod times;

use std::sync::Arc;
use std::time::Duration;

use answers::Pushed;
pub(super) use answers::Verdict;
pub(super) use times::CLAIM_LEASE;

use super::anchor::Anchor;
use super::keys::{Keys, last, line};
use super::numbers::Numbers;
use super::record::Place;
use super::script::{Call, Which};
use crate::claim::Claim;
use crate::clock::Ticks;
use crate::engine::{Line, Number};
use crate::id::{ClaimId, HoldId};
use crate::name::Kind;
use crate::protocol::table::Table;

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
}

/// The claims of one process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recipe {
    rules: Rules,
    anchor: Option<Anchor>,
    claims: Table<ClaimId, Entry>,
    numbers: Numbers,
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
    /// What it was granted with, or converted.
    number: u64,
    /// A request for it may still be on its way over a connection that broke: until then its
    /// release leaves word.
    refuse_us: u64,
    /// When the last conversion was first asked for: each is younger than the one before it,
    /// whatever the clocks say, and the server refuses an older one that arrives late.
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
    /// The latest time at which one of its requests is in time.
    not_after_us: u64,
    pushed: Option<Pushed>,
    /// The last question for a sign of life that came while its answer was on its way: its place
    /// among what was read.
    questioned: Option<u64>,
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
        Self { rules, anchor: None, claims: Table::default(), numbers: Numbers::default() }
    }

    /// Takes the server's time from any answer; `before` was read before its request was sent.
    pub(super) fn heard(&mut self, now_us: u64, before: Ticks) {
        let anchor = Anchor::new(now_us, before);
        self.anchor = Some(self.anchor.map_or(anchor, |old| old.newer(anchor)));
    }

    /// Another connection was made; the server's time is of then.
    pub(super) fn connected(&mut self, now_us: u64, before: Ticks) {
        self.numbers.connected();
        self.heard(now_us, before);
    }

    /// Asks for a lock, or for another mode of a hold. The second time with the same claim it is
    /// the same place.
    pub(super) fn ask(
        &mut self,
        now: Ticks,
        claim: &Claim,
        how: Line,
        hold: Option<HoldId>,
    ) -> Call {
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
                pushed: None,
                questioned: None,
            };
            self.claims.insert(claim.id, Entry::Asking(Box::new(asking)));
        }
        if let Some(Entry::Asking(asking)) = self.claims.get_mut(&claim.id) {
            asking.phase = Phase::Asked;
            asking.give_up = claim.give_up;
        }
        // It was just put there.
        self.again(now, claim.id).unwrap_or_else(|| Call {
            script: Which::Acquire,
            keys: Vec::new(),
            arguments: Vec::new(),
        })
    }

    /// The request for a claim that was asked for before; `None` when it is not wanted any more.
    pub(super) fn again(&mut self, now: Ticks, id: ClaimId) -> Option<Call> {
        let until = now.plus(self.rules.request_timeout);
        let anchor = self.anchor;
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
        let mut arguments = asking.place.arguments();
        arguments.push(not_after_us.to_string());
        arguments.push(asking.how.to_owned());
        arguments.push(if asking.sent_before { "0" } else { "1" }.to_owned());
        asking.sent_before = true;
        asking.in_flight += 1;
        let script = if asking.hold.is_some() { Which::Convert } else { Which::Acquire };
        Some(Call { script, keys: self.keys_of(id)?, arguments })
    }

    /// The number with which a claim holds; `None` when it does not.
    pub(super) fn number(&self, id: ClaimId) -> Option<Number> {
        match self.claims.get(&id)? {
            Entry::Held(held) => Some(answers::number_of(held.kind, held.number)),
            Entry::Asking(_) => None,
        }
    }

    /// Whether a request may still be sent; a withdrawn claim's may not.
    pub(super) fn wants(&self, id: ClaimId) -> bool {
        matches!(self.claims.get(&id), Some(Entry::Asking(asking)) if !asking.leaving)
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
        vec![record.to_owned(), line(record), last(record), self.rules.keys.watch(record)]
    }

    /// The server's time now, as far as we know it.
    pub(super) fn server_us(&self, now: Ticks) -> u64 {
        self.anchor.map_or(0, |a| a.server_us_at(now))
    }
}

fn limit_of(claim: &Claim) -> u16 {
    match claim.mode {
        crate::claim::Mode::Permits { limit, .. } => limit,
        _ => 0,
    }
}
