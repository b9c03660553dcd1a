//! Leases, what is asked about them, and the end of an engine.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::doing::Opened;
use super::wire::{all, lock_timeout};
use crate::engine::sql::claims::Renewing;
use crate::engine::sql::record::left;
use crate::engine::{BoxFuture, Claim, Grant, Lease, Released, Renewal, Standing};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::lost::Lost;
use crate::words::name::Name;

/// How many leases one statement renews.
const RENEWED_AT_ONCE: usize = 500;
/// How many names are asked about at once.
const ASKED_AT_ONCE: usize = 64;

impl Opened {
    /// Renews leases: those who hold alone in one statement, the others name by name.
    pub(super) async fn renew(self: &Arc<Self>, leases: &[LeaseId]) -> Vec<Renewal> {
        let mut renewals = Vec::with_capacity(leases.len());
        for some in leases.chunks(RENEWED_AT_ONCE) {
            renewals.extend(self.renew_some(some).await);
        }
        renewals
    }

    async fn renew_some(self: &Arc<Self>, leases: &[LeaseId]) -> Vec<Renewal> {
        let known = leases.iter().filter_map(|lease| {
            let known = self.claims().renewal(*lease)?;
            Some((ClaimId(lease.0), known))
        });
        let known: BTreeMap<ClaimId, Renewing> = known.collect();
        let mut outcomes = BTreeMap::new();
        if !known.is_empty()
            && let Err(error) = self.renew_known(&known, &mut outcomes).await
        {
            return vec![Renewal::Unknown(error); leases.len()];
        }
        let outcome = |lease: &LeaseId| match outcomes.get(&ClaimId(lease.0)) {
            Some(outcome) => outcome.clone(),
            None => Renewal::Gone(Lost::TakenAway),
        };
        leases.iter().map(outcome).collect()
    }

    async fn renew_known(
        self: &Arc<Self>,
        known: &BTreeMap<ClaimId, Renewing>,
        outcomes: &mut BTreeMap<ClaimId, Renewal>,
    ) -> Result<()> {
        let options = &self.link.options;
        let store = self.link.store(options.request_timeout).await?;
        let before = self.link.context.clock.now();
        let renewed = store.renew(known).await.map_err(|broken| broken.error)?;
        // What one holder more than this has is read and written, each name once.
        let mut free: Vec<(&Renewing, Vec<ClaimId>)> = Vec::new();
        let mut blocked: Vec<(&Renewing, Vec<ClaimId>)> = Vec::new();
        for one in renewed {
            self.claims().heard(one.now, before);
            let Some(known) = known.get(&one.claim) else { continue };
            if let Some(number) = one.number {
                self.claims().renewed(one.claim, number);
                let ttl = left(known.ttl);
                outcomes.insert(one.claim, Renewal::Extended { ttl, since: Some(before) });
                continue;
            }
            let names = if one.blocked { &mut blocked } else { &mut free };
            let same = |(other, _): &&mut (&Renewing, _)| {
                other.kind == known.kind && other.name == known.name
            };
            match names.iter_mut().find(same) {
                Some((_, ids)) => ids.push(one.claim),
                None => names.push((known, vec![one.claim])),
            }
        }
        let each = free.iter().map(|(one, ids)| -> BoxFuture<_> {
            let (opened, ids) = (self.clone(), ids.clone());
            let (kind, name) = (one.kind, one.name.clone());
            Box::pin(async move { opened.renew_name(&ids, kind, &name).await })
        });
        for ((_, ids), done) in free.iter().zip(all(each.collect()).await) {
            self.told(known, ids, done, outcomes);
        }
        // One after the other, and all of them together for no longer than one row is waited for:
        // what stands behind on the connection is not held up, and the others are told in time.
        let until = Instant::now() + lock_timeout(options.request_timeout);
        for (one, ids) in &blocked {
            let renewing = self.renew_name(ids, one.kind, &one.name);
            let done = timeout_at(until, renewing).await.unwrap_or_else(|_| Err(stands(&one.name)));
            self.told(known, ids, done, outcomes);
        }
        Ok(())
    }

    /// Writes down what came of the holds of one name.
    fn told(
        &self,
        known: &BTreeMap<ClaimId, Renewing>,
        ids: &[ClaimId],
        done: Result<(Vec<Option<u64>>, Ticks)>,
        outcomes: &mut BTreeMap<ClaimId, Renewal>,
    ) {
        let (numbers, since) = match done {
            Ok((numbers, since)) => (numbers, since),
            Err(error) => {
                outcomes.extend(ids.iter().map(|id| (*id, Renewal::Unknown(error.clone()))));
                return;
            }
        };
        for (id, number) in ids.iter().zip(numbers) {
            let Some(known) = known.get(id) else { continue };
            let outcome = match number {
                Some(number) => {
                    self.claims().renewed(*id, number);
                    Renewal::Extended { ttl: left(known.ttl), since: Some(since) }
                }
                None => {
                    self.claims().lost(*id);
                    Renewal::Gone(Lost::TakenAway)
                }
            };
            outcomes.insert(*id, outcome);
        }
    }

    /// Asks about claims that stand in line, and about holds by renewing them.
    pub(super) async fn recheck(self: &Arc<Self>, claims: &[ClaimId]) -> Vec<Standing> {
        let (asking, mut holds): (Vec<ClaimId>, Vec<ClaimId>) =
            claims.iter().partition(|id| self.claims().wants(**id));
        let mut standings = BTreeMap::new();
        for some in asking.chunks(ASKED_AT_ONCE) {
            // What cannot be sent now is not waited for: the next link asks again, and so does the
            // net.
            let one = |id: &ClaimId| -> BoxFuture<Standing> {
                let (id, opened) = (*id, self.clone());
                Box::pin(async move { opened.asked(id, Duration::ZERO).await.into() })
            };
            let stand = all(some.iter().map(one).collect()).await;
            for (id, standing) in some.iter().zip(stand) {
                // A push made it a hold before its question was sent.
                let held = matches!(standing, Standing::Gone(_)) && self.holds(*id);
                if held {
                    holds.push(*id);
                } else {
                    standings.insert(*id, standing);
                }
            }
        }
        let leases: Vec<LeaseId> = holds.iter().map(|id| (*id).into()).collect();
        for (id, renewal) in holds.iter().zip(self.renew(&leases).await) {
            standings.insert(*id, self.standing(*id, renewal));
        }
        let gone = || Standing::Gone(Error::new(ErrorKind::Lost, "the hold is not ours any more"));
        claims.iter().map(|id| standings.remove(id).unwrap_or_else(gone)).collect()
    }

    fn holds(&self, id: ClaimId) -> bool {
        self.claims().number(id).is_some()
    }

    fn standing(&self, id: ClaimId, renewal: Renewal) -> Standing {
        match (renewal, self.claims().number(id)) {
            (Renewal::Extended { ttl, since }, Some(number)) => {
                let lease = Lease { id: id.into(), ttl, since, confirm: false };
                Standing::Held(Grant { number, lease: Some(lease) })
            }
            (Renewal::Unknown(error), _) => Standing::Unknown(error),
            _ => Standing::Gone(Error::new(ErrorKind::Lost, "the hold is not ours any more")),
        }
    }

    /// Gives holds back; `again` stands in line in the message of the last one.
    pub(super) async fn release_all(
        self: &Arc<Self>,
        holds: &[HoldId],
        again: Option<&Claim>,
    ) -> Released {
        let (mut ends, mut stood) = (Vec::with_capacity(holds.len()), None);
        for (at, hold) in holds.iter().enumerate() {
            let last = again.filter(|_| at + 1 == holds.len());
            let (end, attempt) = self.leave(*hold, last).await;
            ends.push(end);
            stood = attempt.or(stood);
        }
        if stood.is_none()
            && let Some(claim) = again
        {
            stood = self.attempt_again(Some(claim)).await;
        }
        Released { ends, again: stood }
    }

    /// Waits for what is being given back or left, and ends the connection.
    pub(super) async fn close(&self) {
        let within = self.link.options.request_timeout * 5 / 4;
        self.parting.settled(within, || true).await;
        self.link.close();
    }
}

fn stands(name: &Name) -> Error {
    let text = "somebody's transaction stands on the lock's row";
    Error::new(ErrorKind::Unreachable, text).temporary(true).name(name)
}
