//! Several names in one transaction: all are granted, or none.

use std::sync::Arc;

use tokio::time::sleep;

use super::doing::{Opened, is_plain, jitter, late};
use super::errors::Broken;
use super::store::Written;
use super::wire::all;
use crate::engine::sql::ask::Reply;
use crate::engine::sql::claims::{Request, Verdict};
use crate::engine::sql::line::{Stop, Work};
use crate::engine::{Attempt, BoxFuture, Claim, Line};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::name::{Kind, Name};

/// How much of a line is read: whoever stands there goes first.
const WINDOW: i64 = 64;
/// How often names are read again because others wrote first.
const CONFLICTS_MAX: u32 = 64;

impl Opened {
    /// Asks for all of several claims, none of which stands in line.
    pub(super) async fn asked_all(self: Arc<Self>, claims: Vec<Claim>) -> Vec<Attempt> {
        let now = self.link.context.clock.now();
        let mut requests = Vec::with_capacity(claims.len());
        for claim in &claims {
            let mut known = self.claims();
            known.ask(now, claim, Line::Try, None);
            requests.extend(known.request(now, claim.id));
        }
        let outcome = if requests.len() == claims.len() {
            self.all_or_none(&requests).await
        } else {
            let text = "one of them is not wanted any more";
            Err(Broken::unsent(Error::new(ErrorKind::Closed, text)))
        };
        let now = self.link.context.clock.now();
        let mut attempts = Vec::with_capacity(claims.len());
        match outcome {
            Ok((before, replies)) => {
                for (claim, reply) in claims.iter().zip(replies) {
                    let mut known = self.claims();
                    attempts.push(match known.answered(now, before, claim.id, 0, reply) {
                        Verdict::Tell(attempt) => attempt,
                        Verdict::Again => known.doubted(claim.id, late()),
                    });
                }
            }
            Err(broken) => {
                for claim in &claims {
                    let error = broken.error.clone();
                    attempts.push(self.claims().unanswered(now, claim.id, broken.certain, error));
                }
            }
        }
        for (claim, attempt) in claims.iter().zip(&attempts) {
            self.leave_if_refused(claim.id, attempt);
        }
        attempts
    }

    async fn all_or_none(&self, requests: &[Request]) -> Result<(Ticks, Vec<Reply>), Broken> {
        let not_after = requests.iter().map(|request| request.not_after).min().unwrap_or(0);
        let none = |at: usize, reply: Reply| {
            let mut replies = vec![Reply::Busy { holder: None }; requests.len()];
            if let Some(one) = replies.get_mut(at) {
                *one = reply;
            }
            replies
        };
        let mut last: Option<Broken> = None;
        let began = self.link.context.clock.now();
        for round in 0..CONFLICTS_MAX {
            let patience = self.link.options.connect_timeout;
            let store = self.link.store(patience).await.map_err(Broken::unsent)?;
            let before = self.link.context.clock.now();
            let reads = requests.iter().map(|request| -> BoxFuture<_> {
                let (store, name) = (store.clone(), request.name.clone());
                let (kind, me) = (request.asked.kind, request.asked.place.claim);
                Box::pin(async move { store.read(kind, &name, Some(me), (WINDOW, false)).await })
            });
            let (mut plans, mut replies) = (Vec::new(), Vec::new());
            let mut missing: Vec<(Kind, Name)> = Vec::new();
            let mut moved = false;
            for (at, (seen, request)) in
                all(reads.collect()).await.into_iter().zip(requests).enumerate()
            {
                let seen = seen.map_err(|broken| Broken { certain: true, ..broken })?;
                self.claims().heard(seen.now, before);
                let (kind, name) = (request.asked.kind, &request.name);
                if seen.row.is_none() {
                    missing.push((kind, name.clone()));
                    continue;
                }
                let failed = |error: Error| Broken::unsent(error.name(name));
                let mut work = Work::on(&seen, Some(request.asked.place.claim)).map_err(failed)?;
                let reply = match work.stand(&request.asked) {
                    Ok(reply) => reply,
                    // So many stand there, and go first.
                    Err(Stop::More) => Reply::Busy { holder: None },
                    Err(Stop::Error(error)) => return Err(failed(error)),
                };
                if !matches!(reply, Reply::Granted { .. }) {
                    return Ok((before, none(at, reply)));
                }
                replies.push(reply);
                let lapsed = work.has_lapsed();
                if seen.now > not_after {
                    return too_late(last, before, requests);
                }
                if let Some(plan) = work.plan() {
                    let may_be = is_plain(kind) && plan.passes(&seen) && lapsed;
                    if (may_be || self.was_kept(kind, name))
                        && self.is_kept(&store, kind, name).await?
                    {
                        return Ok((before, none(at, Reply::Busy { holder: None })));
                    }
                    // A line that has to move first does so by itself.
                    moved |= !plan.is_row_alone();
                    plans.push((kind, name.clone(), plan));
                }
            }
            if !missing.is_empty() {
                store.rows(&missing).await?;
                continue;
            }
            if moved {
                for (kind, name, _) in &plans {
                    let settled = self.change(*kind, name, Work::settle).await;
                    settled.map_err(Broken::unsent)?;
                }
                continue;
            }
            match store.together(&plans, not_after).await {
                Ok(Written::Done | Written::First(_)) => return Ok((before, replies)),
                Ok(Written::Not(now)) if now > not_after => {
                    return too_late(last, before, requests);
                }
                Ok(Written::Not(_)) => {}
                Err(broken) if broken.repeat => {
                    for request in requests {
                        let (named, place) =
                            ((request.asked.kind, &request.name), &request.asked.place);
                        self.link.hindered(named, Some(place.claim), began, &broken);
                    }
                    for (kind, name, _) in plans.iter().filter(|_| broken.waited) {
                        self.is_kept(&store, *kind, name).await?;
                    }
                    last = Some(broken);
                }
                Err(broken) => return Err(broken),
            }
            if self.link.context.clock.now().since(began) > self.link.options.request_timeout {
                break;
            }
            sleep(jitter(round)).await;
        }
        Err(last.unwrap_or_else(|| {
            let text = "others write these names again and again: ask later";
            let error = Error::new(ErrorKind::Unreachable, text).temporary(true);
            Broken { repeat: true, ..Broken::unsent(error) }
        }))
    }
}

/// Somebody stood on a row until it was too late: that is the reason. Another conflict is none.
fn too_late(
    last: Option<Broken>,
    before: Ticks,
    requests: &[Request],
) -> Result<(Ticks, Vec<Reply>), Broken> {
    let late = || Ok((before, vec![Reply::Late; requests.len()]));
    last.filter(|broken| broken.waited).map_or_else(late, Err)
}
