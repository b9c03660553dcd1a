//! Keeping a hold, giving it back, and leaving a line.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::pausing::Leaves;
use super::{Foreign, Phase, Request};
use crate::engine::redis::dialect::Terms;
use crate::engine::redis::errors;
use crate::engine::redis::links::{Leave, Leaving};
use crate::engine::redis::opened::{Opened, RENEWALS_PER_CALL, Releases};
use crate::engine::redis::pipe::Broken;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::Call;
use crate::engine::redis::together::{all_that_come, not_renewed_yet};
use crate::engine::redis::wire::{Answered, Started};
use crate::engine::{Answer, End, Released, Renewal};
use crate::words::claim::Claim;
use crate::words::clock::Ticks;
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;

/// The part of a request's time by which our clock and the server's may differ over it.
const LATER: u32 = 8;

impl Releases for Foreign {
    /// Renews leases: those whose scripts are the same go together.
    fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let side = self.links.renewing();
        let mut batches: Vec<(Vec<(LeaseId, Duration)>, Call)> = Vec::new();
        let mut order = Vec::with_capacity(leases.len());
        let at_once = self.links.names_at_once(RENEWALS_PER_CALL);
        for lease in leases {
            let Some((terms, ttl)) =
                self.state().claims.get(&ClaimId(lease.0)).map(|e| (e.terms.clone(), e.ttl))
            else {
                order.push(None);
                continue;
            };
            let fits = |(some, call): &(Vec<_>, Call)| {
                terms.batch && call.script == terms.renew.script && some.len() < at_once
            };
            let at = match batches.iter().position(fits) {
                Some(at) => at,
                None => {
                    batches.push((Vec::new(), Call::new(terms.renew.script)));
                    batches.len() - 1
                }
            };
            if let Some((some, call)) = batches.get_mut(at) {
                order.push(Some((at, some.len())));
                some.push((*lease, ttl));
                call.keys.append(&terms.renew.keys);
                call.arguments.append(&terms.renew.arguments);
            }
        }
        let calls: Vec<&Call> = batches.iter().map(|(_, call)| call).collect();
        let mut answers = side.start(&calls).each();
        let foreign = self.clone();
        Answer::later(async move {
            let each: Vec<usize> = batches.iter().map(|(some, _)| some.len()).collect();
            let renewed = batches.into_iter().map(|(some, call)| {
                foreign.renewed(some, call, answers.next().unwrap_or_else(Started::nothing))
            });
            let renewed = all_that_come(renewed.collect()).await.into_iter().zip(each);
            let renewals: Vec<Vec<Renewal>> = renewed
                .map(|(came, leases)| came.unwrap_or_else(|| not_renewed_yet(leases)))
                .collect();
            let pick = |at: Option<(usize, usize)>| {
                at.and_then(|(batch, n)| renewals.get(batch)?.get(n).cloned())
            };
            order.into_iter().map(|at| pick(at).unwrap_or(Renewal::Gone(Lost::TakenAway))).collect()
        })
    }

    fn leave(self: &Arc<Self>, id: ClaimId) -> Option<Leave> {
        self.give(id, false)
    }

    fn release(
        self: &Arc<Self>,
        holds: &[HoldId],
        again: Option<&Claim>,
        awaited: bool,
    ) -> Answer<Released> {
        let left: Vec<Leaves> = holds.iter().map(|hold| self.leaves(*hold)).collect();
        let leaves: Vec<(HoldId, Option<Leave>)> =
            holds.iter().map(|hold| (*hold, self.give(*hold, awaited))).collect();
        // Behind the release on the same connection, so after it on the server; where replicas are
        // waited for it may come before, and is woken by the release.
        let again = again.map(|claim| self.ask_again(claim, left.first()));
        let foreign = self.clone();
        Answer::later(async move {
            let mut ends = Vec::with_capacity(leaves.len());
            for ((hold, leave), left) in leaves.into_iter().zip(left) {
                ends.push(match leave {
                    Some(leave) => {
                        let (end, answered) = foreign.ended(hold, leave).await;
                        let heard = answered.and_then(|a| a.value.items().get(1)?.integer());
                        if let Some(terms) = left.terms {
                            foreign.has_left(&terms, &end, heard);
                        }
                        end
                    }
                    None => End::NotOurs,
                });
            }
            let again = match again {
                Some(answer) => Some(answer.get().await),
                None => None,
            };
            Released { ends, again }
        })
    }

    fn forget(self: &Arc<Self>, id: ClaimId) {
        self.hush(id);
        let Some(entry) = self.state().claims.remove(&id) else { return };
        let over = self.no_copy_after(entry.in_time_until);
        // Requests that are not answered yet see to themselves when they are.
        if entry.doubtful && self.links.context.clock.now() < over {
            self.give_back(&entry.terms, entry.ttl, over);
        }
    }
}

impl Foreign {
    /// Leaves the line, or gives back.
    fn give(self: &Arc<Self>, id: ClaimId, awaited: bool) -> Option<Leave> {
        let mut state = self.state();
        let entry = state.claims.get_mut(&id)?;
        // What it was told last is that it has to wait; a request that is not answered may take the
        // lock all the same.
        let told_all = entry.phase == Phase::Waiting && entry.in_flight == 0 && !entry.doubtful;
        let nothing_there = told_all && !entry.terms.has_line;
        let call = entry.terms.release.clone();
        entry.leaving = true;
        drop(state);
        if nothing_there {
            self.forget(id);
            return None;
        }
        Some(self.links.part(call, awaited))
    }

    /// A request is answered, or never will be. What it took for nobody is given back: a caller may
    /// leave at the very moment at which it is sent, and the server hears of that before it hears
    /// of the request.
    pub(super) fn is_answered(
        self: &Arc<Self>,
        id: ClaimId,
        request: &Request,
        outcome: &Result<Answered, Broken>,
    ) {
        let in_doubt = matches!(outcome, Err(Broken::Unknown(_) | Broken::Unacknowledged(_)));
        let (wanted, known) = match self.state().claims.get_mut(&id) {
            Some(entry) => {
                entry.in_flight = entry.in_flight.saturating_sub(1);
                entry.doubtful |= in_doubt;
                (!entry.leaving, true)
            }
            None => (false, false),
        };
        let came = matches!(outcome, Ok(answered) if !matches!(answered.value, Value::Error(_)));
        if came && !wanted {
            self.give_back(&request.terms, request.ttl, self.links.context.clock.now());
        } else if in_doubt && !known {
            self.give_back(&request.terms, request.ttl, self.no_copy_after(request.in_time_until));
        }
    }

    /// When the server certainly takes no copy any more of a request that was in time until then.
    fn no_copy_after(&self, in_time_until: Ticks) -> Ticks {
        in_time_until.plus(self.links.options.request_timeout / LATER)
    }

    pub(super) fn give_back(self: &Arc<Self>, terms: &Arc<Terms>, ttl: Duration, from: Ticks) {
        let parting = self.links.parting(&terms.key);
        self.links.context.spawner.spawn(self.clone().free_what_came_late(
            parting,
            terms.clone(),
            ttl,
            from,
        ));
    }

    /// A copy of a request of somebody who left may arrive over a connection that broke, and these
    /// layouts have no place for a word that would stop it: what it took is given back once no copy
    /// is in time any more (G6), and again until that is known (R4).
    async fn free_what_came_late(
        self: Arc<Self>,
        _parting: Leaving,
        terms: Arc<Terms>,
        ttl: Duration,
        from: Ticks,
    ) {
        let clock = &self.links.context.clock;
        let until = from.plus(ttl);
        let mut next = from;
        while clock.now() < until {
            sleep(next.since(clock.now())).await;
            let leave = self.links.part(terms.release.clone(), false);
            if !matches!(self.links.ended(leave).await.0, End::Unknown(_)) {
                return;
            }
            next = clock.now().plus(self.links.options.request_timeout / LATER);
        }
    }

    /// Renews the holds of one call.
    async fn renewed(
        self: &Arc<Self>,
        leases: Vec<(LeaseId, Duration)>,
        call: Call,
        started: Started,
    ) -> Vec<Renewal> {
        let (since, value) = match self.links.renewed(started, &call).await {
            Ok(Answered { before, value, .. }) => (before, value),
            Err(error) => return leases.iter().map(|_| Renewal::Unknown(error.clone())).collect(),
        };
        let mut words = value.items().iter().map(Value::text);
        let renewals = leases.iter().map(|(lease, ttl)| match words.next().flatten() {
            Some("D") => Renewal::Extended { ttl: *ttl, since: Some(since) },
            Some(_) => {
                self.forget(ClaimId(lease.0));
                Renewal::Gone(Lost::TakenAway)
            }
            None => Renewal::Unknown(errors::garbage(&self.links.options)),
        });
        renewals.collect()
    }
}
