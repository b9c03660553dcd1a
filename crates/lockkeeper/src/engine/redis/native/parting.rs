//! Keeping a hold, giving it back, and leaving a line.

use std::sync::Arc;

use super::Native;
use crate::claim::Claim;
use crate::engine::redis::errors;
use crate::engine::redis::opened::{Asking, Opened, Parting, RENEWALS_PER_CALL};
use crate::engine::redis::recipe::Verdict;
use crate::engine::redis::reply::Reply;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::{Call, Which};
use crate::engine::redis::wire::Started;
use crate::engine::{Answer, End, Line, Released, Renewal};
use crate::error::{Error, ErrorKind};
use crate::id::{ClaimId, HoldId, LeaseId};
use crate::lost::Lost;

impl Parting for Native {
    fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let side = self.links.renewing();
        let mut batches = Vec::new();
        for batch in leases.chunks(self.links.names_at_once(RENEWALS_PER_CALL)) {
            let mut call = Call { script: Which::Renew, keys: Vec::new(), arguments: Vec::new() };
            let mut sent = Vec::with_capacity(batch.len());
            for lease in batch {
                let Some((keys, arguments)) = self.recipe().renewal(*lease) else { continue };
                call.keys.extend(keys);
                call.arguments.extend(arguments);
                sent.push(*lease);
            }
            let call = (!sent.is_empty()).then_some(call);
            let commands: Vec<_> = call.iter().map(Call::by_name).collect();
            batches.push(Renewing {
                leases: batch.to_vec(),
                sent,
                call,
                started: side.start(&commands),
            });
        }
        let native = self.clone();
        Answer::later(async move {
            let mut renewals = Vec::new();
            for batch in batches {
                renewals.extend(native.renewed(batch).await);
            }
            renewals
        })
    }

    fn leave(self: &Arc<Self>, id: ClaimId) -> Option<(Call, Started)> {
        let call = self.recipe().withdraw(id)?;
        let started = self.links.prompt().start(&[call.by_name()]);
        Some((call, started))
    }

    fn release(self: &Arc<Self>, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        if let Some(claim) = again.filter(|_| self.links.options.wait.is_some()) {
            // What may grant it waits for replicas, and the release does not.
            let (released, asked) = (self.release(holds, None), self.ask(claim, Line::Join, None));
            return Answer::later(async move {
                Released { again: Some(asked.get().await), ..released.get().await }
            });
        }
        let now = self.links.context.clock.now();
        let mut rest = again;
        let mut calls = Vec::with_capacity(holds.len());
        for hold in holds {
            let call = self.recipe().release(now, *hold, rest);
            if call.is_some() {
                rest = None;
            }
            calls.push(call.map(|call| (*hold, call)));
        }
        let commands: Vec<_> = calls.iter().flatten().map(|(_, call)| call.by_name()).collect();
        if commands.is_empty() {
            // They were over already, and nothing carries the next claim.
            let ends = holds.iter().map(|_| End::NotOurs).collect();
            let Some(claim) = again else { return Answer::Now(Released { ends, again: None }) };
            let asked = self.ask(claim, Line::Join, None);
            return Answer::later(async move { Released { ends, again: Some(asked.get().await) } });
        }
        let started = self.links.prompt().start(&commands);
        Answer::later(self.clone().released(calls, started, again.cloned()))
    }

    fn forget(self: &Arc<Self>, id: ClaimId) {
        self.recipe().forget(id);
    }
}

impl Native {
    async fn released(
        self: Arc<Self>,
        calls: Vec<Option<(HoldId, Call)>>,
        started: Started,
        again: Option<Claim>,
    ) -> Released {
        let mut ends = Vec::with_capacity(calls.len());
        let mut stands = None;
        let mut answers = started.each();
        for call in calls {
            let Some((id, call)) = call else {
                ends.push(End::NotOurs);
                continue;
            };
            let one = answers.next().unwrap_or_else(Started::nothing);
            let (end, answered) = self.ended(id, &call, one).await;
            ends.push(end);
            if let Some(answered) = answered
                && let Some(reply) = answered.value.items().get(2).filter(|v| !v.items().is_empty())
            {
                stands = Some((answered.before, answered.order, reply.clone()));
            }
        }
        let again = again.map(|claim| {
            let now = self.links.context.clock.now();
            let verdict = stands.and_then(|(before, order, reply)| {
                Reply::parse(&reply)
                    .map(|reply| self.recipe().answered(now, before, claim.id, order, reply))
            });
            match verdict {
                Some(Verdict::Tell(attempt)) => {
                    self.leave_if_refused(claim.id, &attempt);
                    attempt
                }
                _ => {
                    let error = Error::new(
                        ErrorKind::Unknown,
                        "it is not known whether the next claim stands in line",
                    )
                    .name(&claim.name);
                    self.recipe().unanswered(claim.id, false, error)
                }
            }
        });
        Released { ends, again }
    }

    /// Renews what one message can carry.
    async fn renewed(&self, batch: Renewing) -> Vec<Renewal> {
        let Renewing { leases, sent, call, started } = batch;
        let Some(call) = call else {
            return leases.iter().map(|_| Renewal::Gone(Lost::TakenAway)).collect();
        };
        let answered = match self.links.renewed(started, &call).await {
            Ok(answered) => answered,
            Err(error) => return leases.iter().map(|_| Renewal::Unknown(error.clone())).collect(),
        };
        let items = answered.value.items();
        if let Some(server_us) = items.first().and_then(Value::unsigned) {
            self.recipe().heard(server_us, answered.before);
        }
        let mut ends = items.get(1).map(Value::items).unwrap_or_default().iter();
        let mut sent = sent.into_iter().peekable();
        let renewal = |lease: LeaseId| {
            // An answer belongs to the lease that was sent, also when that was given back
            // meanwhile.
            let end = sent.next_if_eq(&lease).and_then(|_| ends.next());
            let mut recipe = self.recipe();
            let Some(ttl) = recipe.ttl(lease) else { return Renewal::Gone(Lost::TakenAway) };
            match end.and_then(Value::text) {
                Some(text) if text.starts_with('D') => match text[1..].parse() {
                    Ok(number) => {
                        recipe.renewed(lease, number);
                        Renewal::Extended { ttl, since: Some(answered.before) }
                    }
                    Err(_) => Renewal::Unknown(errors::garbage(&self.links.options)),
                },
                Some(text) if text == "X" || text.starts_with("WRONGTYPE") => {
                    recipe.forget(ClaimId(lease.0));
                    Renewal::Gone(Lost::TakenAway)
                }
                Some(text) => {
                    Renewal::Unknown(errors::server(&self.links.options, "EVALSHA", text))
                }
                None => Renewal::Unknown(errors::garbage(&self.links.options)),
            }
        };
        leases.into_iter().map(renewal).collect()
    }
}

/// Renewals on their way in one message.
struct Renewing {
    /// Whose renewal was asked for.
    leases: Vec<LeaseId>,
    /// Those of them that the message carries, in its order; the others were over before.
    sent: Vec<LeaseId>,
    call: Option<Call>,
    started: Started,
}
