//! Asking for a lock, and for several together, and following a request to its answer.

use std::sync::Arc;
use std::time::Duration;

use super::Native;
use crate::claim::Claim;
use crate::clock::Ticks;
use crate::engine::redis::errors;
use crate::engine::redis::opened::{Asking, Opened as _, Parting as _};
use crate::engine::redis::pipe::Broken;
use crate::engine::redis::recipe::Verdict;
use crate::engine::redis::reply::Reply;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::{Call, Which};
use crate::engine::redis::wire::{Answered, Started};
use crate::engine::{Answer, Attempt, Line, Number};
use crate::error::{Error, ErrorKind};
use crate::id::{ClaimId, HoldId};
use crate::name::Kind;

/// How often a request is sent again because it came late by the server's clock.
const LATE_TRIES: usize = 3;

impl Asking for Native {
    type Request = Call;

    fn heard(&self, server_us: u64, before: Ticks) {
        self.recipe().connected(server_us, before);
        // It was out of reach until now, and told nobody of what changed.
        self.watches.missed();
    }

    fn ask(self: &Arc<Self>, claim: &Claim, line: Line, hold: Option<HoldId>) -> Answer<Attempt> {
        if claim.kind == Kind::Latch {
            return Answer::Now(Attempt::Failed(Error::new(
                ErrorKind::Unsupported,
                "a latch is not held",
            )));
        }
        let now = self.links.context.clock.now();
        let call = self.recipe().ask(now, claim, line, hold);
        let started = self.links.main.start(&[call.by_name()]);
        let patience = self
            .links
            .options
            .connect_timeout
            .min(claim.give_up.map_or(Duration::MAX, |at| at.since(now)));
        Answer::later(self.clone().asked(claim.id, call, started, patience))
    }

    fn ask_all(self: &Arc<Self>, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        let now = self.links.context.clock.now();
        let mut call = Call { script: Which::Together, keys: Vec::new(), arguments: Vec::new() };
        for claim in claims {
            let one = self.recipe().ask(now, claim, Line::Try, None);
            call.keys.extend(one.keys);
            call.arguments.extend(one.arguments);
        }
        let started = self.links.main.start(&[call.by_name()]);
        Answer::later(self.clone().asked_all(claims.to_vec(), call, started))
    }

    fn again(&self, id: ClaimId) -> Option<Call> {
        self.recipe().again(self.links.context.clock.now(), id)
    }

    fn number(&self, id: ClaimId) -> Option<Number> {
        self.recipe().number(id)
    }

    async fn asked(
        self: Arc<Self>,
        id: ClaimId,
        mut call: Call,
        mut started: Started,
        patience: Duration,
    ) -> Attempt {
        for _ in 0..LATE_TRIES {
            let outcome =
                self.links.main.run(started, &call, patience, || self.recipe().wants(id)).await;
            match self.understand(id, &call, outcome) {
                Verdict::Tell(attempt) => {
                    self.leave_if_refused(id, &attempt);
                    return attempt;
                }
                Verdict::Again => {
                    let now = self.links.context.clock.now();
                    let Some(next) = self.recipe().again(now, id) else { break };
                    started = self.links.main.start(&[next.by_name()]);
                    call = next;
                }
            }
        }
        let error = Error::new(
            ErrorKind::Unknown,
            "the server's clock refuses the request as late, again and again",
        );
        self.recipe().unanswered(id, false, error)
    }
}

impl Native {
    /// A claim that was refused, while a copy of its request may still be on its way: that one must
    /// find that its caller has left.
    pub(super) fn leave_if_refused(self: &Arc<Self>, id: ClaimId, attempt: &Attempt) {
        if !matches!(attempt, Attempt::Busy(_) | Attempt::Failed(_)) || !self.recipe().wants(id) {
            return;
        }
        if let Some((call, started)) = self.leave(id) {
            let native = self.clone();
            self.links
                .context
                .spawner
                .spawn(async move { _ = native.ended(id, &call, started).await });
        }
    }

    /// What an outcome means for a claim.
    fn understand(
        &self,
        id: ClaimId,
        call: &Call,
        outcome: std::result::Result<Answered, Broken>,
    ) -> Verdict {
        let now = self.links.context.clock.now();
        match outcome {
            Ok(answered) => self.understand_value(now, id, call, &answered),
            Err(broken) => {
                let error = self.links.broken(&self.links.main, &broken);
                Verdict::Tell(self.recipe().unanswered(
                    id,
                    matches!(broken, Broken::NotSent(_)),
                    error,
                ))
            }
        }
    }

    fn understand_value(
        &self,
        now: Ticks,
        id: ClaimId,
        call: &Call,
        answered: &Answered,
    ) -> Verdict {
        if let Value::Error(text) = &answered.value {
            let error = errors::script(&self.links.options, call, text);
            return Verdict::Tell(self.recipe().unanswered(id, true, error));
        }
        match Reply::parse(&answered.value) {
            Some(reply) => self.recipe().answered(now, answered.before, id, answered.order, reply),
            None => Verdict::Tell(self.recipe().unanswered(
                id,
                false,
                errors::garbage(&self.links.options),
            )),
        }
    }

    /// Follows a request for all of several locks to its answers: all granted or none.
    async fn asked_all(
        self: Arc<Self>,
        claims: Vec<Claim>,
        call: Call,
        started: Started,
    ) -> Vec<Attempt> {
        let now = self.links.context.clock.now();
        let rest = claims
            .iter()
            .filter_map(|claim| claim.give_up)
            .min()
            .map_or(Duration::MAX, |at| at.since(now));
        let patience = self.links.options.connect_timeout.min(rest);
        let outcome = self.links.main.run(started, &call, patience, || true).await;
        let now = self.links.context.clock.now();
        let mut recipe = self.recipe();
        let outcome = match outcome {
            Ok(Answered { value: Value::Error(text), .. }) => {
                Err((true, errors::script(&self.links.options, &call, &text)))
            }
            Ok(answered) => Ok(answered),
            Err(broken) => {
                let error = self.links.broken(&self.links.main, &broken);
                Err((matches!(broken, Broken::NotSent(_)), error))
            }
        };
        let answered = match outcome {
            Ok(answered) => answered,
            Err((certain, error)) => {
                return claims
                    .iter()
                    .map(|claim| recipe.unanswered(claim.id, certain, error.clone()))
                    .collect();
            }
        };
        let items = answered.value.items();
        let word = items.first().and_then(Value::text).unwrap_or_default();
        let server_us = items.get(1).and_then(Value::unsigned).unwrap_or_default();
        recipe.heard(server_us, answered.before);
        let each = items.get(2).map(Value::items).unwrap_or_default();
        let which = items
            .get(if word == "M" { 3 } else { 2 })
            .and_then(Value::unsigned)
            .and_then(|n| usize::try_from(n).ok());
        let mut attempts = Vec::with_capacity(claims.len());
        for (at, claim) in claims.iter().enumerate() {
            let reply = match word {
                "G" => each.get(at).and_then(Reply::parse),
                "B" if which == Some(at + 1) => Some(Reply::Busy {
                    now_us: server_us,
                    rest: Duration::from_millis(
                        items.get(3).and_then(Value::unsigned).unwrap_or(0),
                    ),
                    holder: items.get(4).and_then(Value::text).unwrap_or_default().to_owned(),
                }),
                "M" if which == Some(at + 1) => Some(Reply::OtherLimit {
                    now_us: server_us,
                    stored: items.get(2).and_then(Value::unsigned).unwrap_or(0),
                }),
                "B" | "M" => Some(Reply::Busy {
                    now_us: server_us,
                    rest: Duration::ZERO,
                    holder: String::new(),
                }),
                "T" => Some(Reply::Late { now_us: server_us }),
                _ => None,
            };
            attempts.push(
                match reply.map(|reply| {
                    recipe.answered(now, answered.before, claim.id, answered.order, reply)
                }) {
                    Some(Verdict::Tell(attempt)) => attempt,
                    Some(Verdict::Again) => recipe.unanswered(
                        claim.id,
                        false,
                        Error::new(
                            ErrorKind::Unknown,
                            "the request arrived after its time by the server's clock",
                        ),
                    ),
                    None => {
                        recipe.unanswered(claim.id, false, errors::garbage(&self.links.options))
                    }
                },
            );
        }
        drop(recipe);
        for (claim, attempt) in claims.iter().zip(&attempts) {
            self.leave_if_refused(claim.id, attempt);
        }
        attempts
    }
}
