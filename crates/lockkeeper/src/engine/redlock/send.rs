//! What a member is asked about a claim, as the call of a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::Quorum;
use super::acquire::Entry;
use super::heard::Heard;
use super::plain::Request;
use super::recipe::Verb;
use crate::engine::at_exit::AtRisk;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::wire::Started;
use crate::engine::words::millis;
use crate::engine::{BoxFuture, Line};
use crate::words::claim::Mode;
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;
use crate::words::name::Name;

/// A request on its way to a member.
pub(super) type Flight = (Sent, BoxFuture<Heard>);

/// Which request it is.
#[derive(Clone, Copy)]
pub(super) struct Sent {
    pub(super) member: usize,
    pub(super) verb: Verb,
    pub(super) round: u64,
    /// Until when the member carries it out, on the steady clock.
    pub(super) in_time_until: Ticks,
}

/// Counts a request until it is answered, or until nobody waits for the answer any more: then it is
/// looked after what it may have left behind.
struct UnderWay {
    quorum: Arc<Quorum>,
    id: ClaimId,
    in_flight: Arc<AtomicUsize>,
    heard: bool,
}

impl UnderWay {
    fn new(quorum: &Arc<Quorum>, entry: &Entry) -> Self {
        let in_flight = entry.in_flight.clone();
        in_flight.fetch_add(1, Ordering::AcqRel);
        Self { quorum: quorum.clone(), id: entry.claim.id, in_flight, heard: false }
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::AcqRel);
        if !self.heard {
            self.quorum.tidy(self.id);
        }
    }
}

impl Quorum {
    /// Who waits for a name on a member, when each asked last, and whose turn it is.
    pub(super) fn line_of(&self, name: &Name) -> [String; 3] {
        [self.keys.line(name), self.keys.signs(name), self.keys.turn(name)]
    }

    pub(super) fn send(
        self: &Arc<Self>,
        entry: &mut Entry,
        at: usize,
        verb: Verb,
        (round, number): (u64, u64),
    ) -> Option<Flight> {
        let member = self.members.get(at)?;
        let (now, within) = (self.context.clock.now(), self.options.request_timeout);
        let within = entry.claim.give_up.map_or(within, |at| at.since(now).min(within));
        // What completes a hold is of no use to it if it comes late, and may come after what gives
        // it back, over the connection before.
        let within = match verb == Verb::Take && entry.machine.is_held() {
            true => within.min(self.patience(entry.claim.ttl)),
            false => within,
        };
        let in_time_until = self.steady.now().plus(within);
        // Whoever is a member already has one vote. What it has under either name is given back.
        if self.is_twin(at) && !verb.gives() {
            let nothing = std::future::ready(Heard::nothing());
            return Some((Sent { member: at, verb, round, in_time_until }, Box::pin(nothing)));
        }
        let (claim, ttl) = (entry.claim.id.to_string(), millis(entry.claim.ttl).to_string());
        let (number, keys) = (number.to_string(), entry.keys.to_vec());
        let shared = entry.claim.mode == Mode::Shared;
        let call = match (verb, &self.options.plain) {
            (_, Some(plain)) => {
                let told = verb == Verb::Give || plain.stands();
                let request = Request {
                    claim: entry.claim.id,
                    round,
                    ttl_ms: millis(entry.claim.ttl),
                    not_after_us: member.not_after_us(in_time_until),
                    run: member.run(),
                    channel: plain.channel(&entry.claim.name).filter(|_| told),
                    waits: entry.how != Line::Try,
                };
                plain.call(&entry.keys, verb, request)
            }
            (Verb::Take, None) => {
                let not_after = member.not_after_us(in_time_until).to_string();
                let who = entry.who.clone();
                let (round, wait) = (round.to_string(), millis(self.options.wait));
                let mut arguments = vec![claim, round, ttl, not_after, who, number];
                // What a hold asks for waits for nothing, and says that it is a hold's.
                let held = entry.machine.is_held();
                arguments.push(if held { 0 } else { entry.machine.first() }.to_string());
                let waits = entry.how != Line::Try && !held;
                arguments.push(u8::from(waits).to_string());
                let channel = entry.channel.clone();
                arguments.extend([member.run(), wait.to_string(), channel]);
                let script = if shared { Which::QuorumRead } else { Which::QuorumTake };
                let keys = [keys, self.line_of(&entry.claim.name).into()].concat();
                Call { script, keys: keys.into(), arguments: arguments.into() }
            }
            (Verb::Keep, None) => {
                let held = u8::from(entry.machine.is_held()).to_string();
                let arguments = vec![claim, ttl, number, held, member.run()];
                let script = if shared { Which::QuorumReadKeep } else { Which::QuorumKeep };
                Call { script, keys: keys.into(), arguments: arguments.into() }
            }
            (Verb::Give | Verb::Undo | Verb::Cede { .. }, None) => {
                let mut arguments = vec![claim, round.to_string()];
                let waits = verb != Verb::Give && entry.how != Line::Try;
                let first = Some(entry.machine.first().to_string()).filter(|_| waits);
                arguments.extend((!shared).then(|| first.unwrap_or_default()));
                arguments.extend((verb != Verb::Undo).then(|| entry.channel.clone()));
                if let Verb::Cede { to } = verb {
                    arguments.extend([to.claim.to_string(), to.first.to_string()]);
                }
                let [record, _, _, readers] = entry.keys.clone();
                let (script, mut keys) = match shared {
                    true => (Which::QuorumReadGive, vec![record, readers]),
                    false => (Which::QuorumGive, vec![record]),
                };
                keys.extend(self.line_of(&entry.claim.name));
                Call { script, keys: keys.into(), arguments: arguments.into() }
            }
        };
        let nth = entry.sent.get_mut(at)?;
        *nth = nth.wrapping_add(1);
        let (nth, gives) = (*nth, verb.gives());
        let is_first = verb == Verb::Take && nth == 1;
        // What has found somebody in the way, or may have, goes by itself: it would be asked for a
        // second time. So does what has to be with the kernel.
        let travels = !entry.waited && if gives { entry.awaited } else { is_first };
        let in_company = travels.then(|| member.link.start_in_company(&call)).flatten();
        let started = in_company.unwrap_or_else(|| match gives {
            true => member.link.start_releases(std::iter::once(&call), entry.awaited),
            false => member.link.start(&[call.by_name()]),
        });
        let (quorum, id) = (self.clone(), entry.claim.id);
        let parting = gives.then(|| self.parting.begin());
        // It may not be with the kernel yet.
        let at_risk = (gives && entry.awaited).then(AtRisk::begin);
        let under_way = UnderWay::new(self, entry);
        let flight = async move {
            let (_parting, _at_risk, mut under_way) = (parting, at_risk, under_way);
            // With the state locked, as in a step. A request for the lock only if this member was
            // sent nothing since: what gives it back would have come too early.
            let again = |send: &dyn Fn() -> Started| {
                let state = quorum.state();
                let is_last =
                    |entry: &Entry| verb != Verb::Take || entry.sent.get(at) == Some(&nth);
                let wanted = |entry: &Entry| !entry.leaving && is_last(entry);
                (gives || state.claims.get(&id).is_some_and(wanted)).then(send)
            };
            let Some(member) = quorum.members.get(at) else { return Heard::nothing() };
            let heard = member.follow(started, &call, quorum.options.wait, again).await;
            under_way.heard = true;
            heard
        };
        Some((Sent { member: at, verb, round, in_time_until }, Box::pin(flight)))
    }
}
