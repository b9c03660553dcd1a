//! Keeping a hold, giving it back, and leaving a line.

use std::sync::Arc;

use super::Native;
use super::acquire::read;
use crate::engine::redis::errors;
use crate::engine::redis::links::Leave;
use crate::engine::redis::opened::{Acquires, Opened, RENEWALS_PER_CALL, Releases};
use crate::engine::redis::recipe::Verdict;
use crate::engine::redis::reply::Reply;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::{Call, Which};
use crate::engine::redis::together::{all_that_come, not_renewed_yet};
use crate::engine::redis::wire::Started;
use crate::engine::{Answer, End, Line, Released, Renewal};
use crate::words::claim::Claim;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;

impl Releases for Native {
    fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let side = self.links.renewing();
        let mut batches = Vec::new();
        for batch in leases.chunks(self.links.names_at_once(RENEWALS_PER_CALL)) {
            let mut call = Call::new(Which::Renew);
            let mut sent = Vec::with_capacity(batch.len());
            {
                let recipe = self.recipe();
                sent.extend(batch.iter().filter(|lease| recipe.renewal(**lease, &mut call)));
            }
            let call = (!sent.is_empty()).then_some(call);
            let calls: Vec<&Call> = call.iter().collect();
            let started = side.start(&calls);
            batches.push(Renewing { leases: batch.to_vec(), sent, call, started });
        }
        let native = self.clone();
        Answer::later(async move {
            if batches.len() == 1
                && let Some(batch) = batches.pop()
            {
                return native.renewed(batch).await;
            }
            let each: Vec<usize> = batches.iter().map(|batch| batch.leases.len()).collect();
            let renewed = batches.into_iter().map(|batch| native.renewed(batch)).collect();
            let renewed = all_that_come(renewed).await;
            let told = renewed.into_iter().zip(each);
            told.flat_map(|(came, leases)| came.unwrap_or_else(|| not_renewed_yet(leases)))
                .collect()
        })
    }

    fn leave(self: &Arc<Self>, id: ClaimId) -> Option<Leave> {
        let call = self.recipe().withdraw(id)?;
        Some(self.links.part(call, false))
    }

    fn release(
        self: &Arc<Self>,
        holds: &[HoldId],
        again: Option<&Claim>,
        awaited: bool,
    ) -> Answer<Released> {
        if let Some(claim) = again.filter(|_| self.links.options.wait.is_some()) {
            // What may grant it waits for replicas, and the release does not.
            let (released, asked) = (self.release(holds, None, awaited), self.stand_again(claim));
            return Answer::later(async move {
                Released { again: Some(asked.get().await), ..released.get().await }
            });
        }
        let now = self.links.context.clock.now();
        let mut rest = again;
        let mut calls = Vec::with_capacity(holds.len());
        for hold in holds {
            let node = self.home_of(*hold).unwrap_or_default();
            let call = self.recipe().release(now, node, *hold, rest);
            if call.is_some() {
                rest = None;
            }
            calls.push(call.map(|call| (*hold, call)));
        }
        let to_send: Vec<&Call> = calls.iter().flatten().map(|(_, call)| call).collect();
        if to_send.is_empty() {
            // They were over already, and nothing carries the next claim.
            let ends = holds.iter().map(|_| End::NotOurs).collect();
            let Some(claim) = again else { return Answer::Now(Released { ends, again: None }) };
            let asked = self.ask(claim, Line::Join, None);
            return Answer::later(async move { Released { ends, again: Some(asked.get().await) } });
        }
        let in_company = match (to_send.as_slice(), holds) {
            ([call], [hold]) if awaited && self.recipe().goes_short(*hold) => {
                self.links.start_in_company(call)
            }
            _ => None,
        };
        let (lane, sent) =
            in_company.unwrap_or_else(|| self.links.start_releases(&to_send, awaited));
        let mut sent = sent.each();
        let leaves = calls.into_iter().map(|call| {
            let (id, call) = call?;
            let started = sent.next().unwrap_or_else(Started::nothing);
            Some((id, self.links.leave(call, lane, started, awaited)))
        });
        let leaves = leaves.collect();
        Answer::later(self.clone().released(leaves, again.cloned()))
    }

    fn forget(self: &Arc<Self>, id: ClaimId) {
        self.recipe().forget(id);
    }
}

impl Native {
    async fn released(
        self: Arc<Self>,
        leaves: Vec<Option<(HoldId, Leave)>>,
        again: Option<Claim>,
    ) -> Released {
        let mut ends = Vec::with_capacity(leaves.len());
        let mut stands = None;
        for leave in leaves {
            let Some((id, leave)) = leave else {
                ends.push(End::NotOurs);
                continue;
            };
            let (end, answered) = self.ended(id, leave).await;
            ends.push(end);
            if let Some(answered) = answered
                && let Some(reply) = answered.value.items().get(2).and_then(Reply::parse)
            {
                stands = Some((read(&answered), reply));
            }
        }
        let again = again.map(|claim| {
            let now = self.links.context.clock.now();
            let verdict =
                stands.map(|(read, reply)| self.recipe().answered(now, read, claim.id, reply));
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
            self.recipe().heard(answered.node, server_us, answered.before);
        }
        let mut ends = items.get(1).map(Value::items).unwrap_or_default().iter();
        let mut sent = sent.into_iter().peekable();
        let mut recipe = self.recipe();
        let renewal = |lease: LeaseId| {
            // An answer belongs to the lease that was sent, also when that was given back
            // meanwhile.
            let end = sent.next_if_eq(&lease).and_then(|_| ends.next());
            let Some(ttl) = recipe.ttl(lease) else { return Renewal::Gone(Lost::TakenAway) };
            match end.and_then(Value::text) {
                Some(text) if text.starts_with('D') => match text[1..].parse() {
                    Ok(number) => {
                        recipe.renewed(lease, number);
                        Renewal::Extended { ttl, since: Some(answered.before) }
                    }
                    Err(_) => Renewal::Unknown(errors::garbage(&self.links.of(answered.node))),
                },
                Some(text) if text == "X" || text.starts_with("WRONGTYPE") => {
                    recipe.forget(ClaimId(lease.0));
                    Renewal::Gone(Lost::TakenAway)
                }
                Some(text) => {
                    let options = self.links.of(answered.node);
                    Renewal::Unknown(errors::server(&options, "EVALSHA", text))
                }
                None => Renewal::Unknown(errors::garbage(&self.links.of(answered.node))),
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
