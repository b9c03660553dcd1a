//! Keeping a hold, giving it back, and leaving a line.

use std::sync::Arc;
use std::time::Duration;

use super::RENEWALS_PER_CALL;
use super::inner::{Inner, Phase};
use crate::engine::redis::errors;
use crate::engine::redis::pipe::Broken;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::Call;
use crate::engine::redis::wire::{Answered, Parting, Started};
use crate::engine::{Answer, End, Renewal};
use crate::id::{ClaimId, LeaseId};
use crate::lost::Lost;

impl Inner {
    /// The last message about a claim: what it was granted is given back, its place is left.
    pub(super) fn leave(self: &Arc<Self>, id: ClaimId) -> Option<(Call, Started)> {
        let mut state = self.state();
        let entry = state.claims.get_mut(&id)?;
        let nothing_there = entry.phase == Phase::Waiting && !entry.doubtful && !entry.terms.has_line;
        let call = entry.terms.release.clone();
        entry.look_at = None;
        entry.leaving = true;
        drop(state);
        if nothing_there {
            self.forget(id);
            return None;
        }
        let started = self.main.start(&[call.by_name()]);
        Some((call, started))
    }

    pub(super) async fn ended(&self, id: ClaimId, call: &Call, started: Started) -> End {
        let _parting = Parting::new(&self.parting);
        match self.run(&self.main, started, call, self.options.connect_timeout).await {
            Ok(value) => match value.items().first().and_then(Value::text) {
                Some(word) => {
                    self.forget(id);
                    if word == "D" { End::Freed } else { End::NotOurs }
                }
                None => End::Unknown(errors::garbage(&self.options)),
            },
            Err(error) => End::Unknown(error),
        }
    }

    /// Renews the holds of one call.
    async fn renewed(&self, leases: Vec<(LeaseId, Duration)>, call: Call, started: Started) -> Vec<Renewal> {
        let mut outcome = self.side.run(started, &call, self.options.request_timeout, || true).await;
        if matches!(outcome, Err(Broken::NotSent(_))) {
            outcome = self.main.run(self.main.start(&[call.by_name()]), &call, self.options.request_timeout, || true).await;
        }
        let (since, value) = match outcome {
            Ok(Answered { value: Value::Error(text), .. }) => {
                let error = errors::server(&self.options, "EVALSHA", &text);
                return leases.iter().map(|_| Renewal::Unknown(error.clone())).collect();
            }
            Ok(Answered { before, value, .. }) => (before, value),
            Err(broken) => {
                let error = self.broken(&self.side, &broken);
                return leases.iter().map(|_| Renewal::Unknown(error.clone())).collect();
            }
        };
        let mut words = value.items().iter().map(Value::text);
        let renewals = leases.iter().map(|(lease, ttl)| match words.next().flatten() {
            Some("D") => Renewal::Extended { ttl: *ttl, since: Some(since) },
            Some(_) => {
                self.forget(ClaimId(lease.0));
                Renewal::Gone(Lost::TakenAway)
            }
            None => Renewal::Unknown(errors::garbage(&self.options)),
        });
        renewals.collect()
    }

    /// Renews leases: those whose scripts are the same go together.
    pub(super) fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let side = self.side().clone();
        let mut batches: Vec<(Vec<(LeaseId, Duration)>, Call)> = Vec::new();
        let mut order = Vec::with_capacity(leases.len());
        for lease in leases {
            let Some((terms, ttl)) = self.state().claims.get(&ClaimId(lease.0)).map(|e| (e.terms.clone(), e.ttl)) else {
                order.push(None);
                continue;
            };
            let fits = |(some, call): &(Vec<_>, Call)| terms.batch && call.script == terms.renew.script && some.len() < RENEWALS_PER_CALL;
            let at = match batches.iter().position(fits) {
                Some(at) => at,
                None => {
                    batches.push((Vec::new(), Call { script: terms.renew.script, keys: Vec::new(), arguments: Vec::new() }));
                    batches.len() - 1
                }
            };
            if let Some((some, call)) = batches.get_mut(at) {
                order.push(Some((at, some.len())));
                some.push((*lease, ttl));
                call.keys.extend(terms.renew.keys.iter().cloned());
                call.arguments.extend(terms.renew.arguments.iter().cloned());
            }
        }
        let commands: Vec<_> = batches.iter().map(|(_, call)| call.by_name()).collect();
        let mut answers = side.start(&commands).each();
        let inner = self.clone();
        Answer::later(async move {
            let mut renewals = Vec::with_capacity(batches.len());
            for (some, call) in batches {
                let one = answers.next().unwrap_or_else(Started::nothing);
                renewals.push(inner.renewed(some, call, one).await);
            }
            let pick = |at: Option<(usize, usize)>| at.and_then(|(batch, n)| renewals.get(batch)?.get(n).cloned());
            order.into_iter().map(|at| pick(at).unwrap_or(Renewal::Gone(Lost::TakenAway))).collect()
        })
    }
}
