//! Asking for a lock, and for several together, and following a request to its answer.

use std::sync::Arc;
use std::time::Duration;

use super::Native;
use crate::engine::redis::client::node::Node;
use crate::engine::redis::errors;
use crate::engine::redis::opened::{Acquires, Opened as _, Releases as _};
use crate::engine::redis::pipe::Broken;
use crate::engine::redis::recipe::{Read, Verdict};
use crate::engine::redis::reply::Reply;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::{Call, Which};
use crate::engine::redis::wire::{Answered, Started};
use crate::engine::{Answer, Attempt, Line, Number};
use crate::words::claim::Claim;
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::{ClaimId, HoldId};
use crate::words::name::{Kind, Name};

/// How often a request is sent again because it came late by the server's clock.
const LATE_TRIES: usize = 3;

impl Acquires for Native {
    type Request = Call;

    fn fresh(&self, node: Node) {
        self.recipe().fresh(node);
    }

    fn heard(&self, node: Node, server_us: u64, before: Ticks) {
        self.recipe().heard(node, server_us, before);
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
        let node = self.home(claim.kind, &claim.name);
        let call = self.recipe().ask(now, node, claim, line, hold);
        self.sent(now, claim, call)
    }

    fn ask_all(self: &Arc<Self>, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        let now = self.links.context.clock.now();
        let mut call = Call::new(Which::Together);
        for claim in claims {
            let node = self.home(claim.kind, &claim.name);
            let one = self.recipe().ask_beside(now, node, claim, Line::Try);
            call.keys.append(&one.keys);
            call.arguments.append(&one.arguments);
        }
        let started = self.links.main.start(&[&call]);
        Answer::later(self.clone().asked_all(claims.to_vec(), call, started))
    }

    fn again(&self, id: ClaimId) -> Option<Call> {
        let node = self.home_of(id)?;
        self.recipe().again(self.links.context.clock.now(), node, id)
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
        // And once because something was in the way of the short one.
        for _ in 0..=LATE_TRIES {
            let outcome =
                self.links.main.run(started, &call, patience, || self.recipe().wants(id)).await;
            match self.understand(id, &call, outcome) {
                Verdict::Tell(attempt) => {
                    self.leave_if_refused(id, &attempt);
                    return attempt;
                }
                Verdict::Again => {
                    let Some(next) = self.again(id) else {
                        let error = Error::new(ErrorKind::Unknown, "whoever asked has left");
                        return self.recipe().unanswered(id, false, error);
                    };
                    started = self.links.main.start(&[&next]);
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

/// When and where an answer was read.
pub(super) fn read(answered: &Answered) -> Read {
    let Answered { before, node, order, .. } = *answered;
    Read { before, node, order }
}

impl Native {
    /// Stands in line again behind a release that another connection carries: there the short way
    /// leads nowhere.
    pub(super) fn stand_again(self: &Arc<Self>, claim: &Claim) -> Answer<Attempt> {
        let now = self.links.context.clock.now();
        let node = self.home(claim.kind, &claim.name);
        let call = self.recipe().ask_beside(now, node, claim, Line::Join);
        self.sent(now, claim, call)
    }

    /// Sends a request for a claim.
    fn sent(self: &Arc<Self>, now: Ticks, claim: &Claim, call: Call) -> Answer<Attempt> {
        let started = self.links.main.start(&[&call]);
        let rest = claim.give_up.map_or(Duration::MAX, |at| at.since(now));
        let patience = self.links.options.connect_timeout.min(rest);
        Answer::later(self.clone().asked(claim.id, call, started, patience))
    }

    /// The node that has a name.
    pub(super) fn home(&self, kind: Kind, name: &Name) -> Node {
        self.links.main.home(&self.keys.record(kind, name))
    }

    /// The node that has the name of a claim.
    pub(super) fn home_of(&self, id: ClaimId) -> Option<Node> {
        let record = self.recipe().record(id)?;
        Some(self.links.main.home(&record))
    }

    /// A claim that was refused, while a copy of its request may still be on its way: that one must
    /// find that its caller has left.
    pub(super) fn leave_if_refused(self: &Arc<Self>, id: ClaimId, attempt: &Attempt) {
        if !matches!(attempt, Attempt::Busy(_) | Attempt::Failed(_)) || !self.recipe().wants(id) {
            return;
        }
        if let Some(leave) = self.leave(id) {
            let native = self.clone();
            self.links.context.spawner.spawn(async move { _ = native.ended(id, leave).await });
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
            let short = matches!(call.script, Which::Take | Which::TakePermits);
            if short && errors::takes_no_writes(text) {
                self.recipe().short_refused(id);
                return Verdict::Again;
            }
            let error = errors::script(&self.links.of(answered.node), call, text);
            let certain = !errors::ran_half(text);
            return Verdict::Tell(self.recipe().unanswered(id, certain, error));
        }
        match Reply::parse(&answered.value) {
            Some(reply) => self.recipe().answered(now, read(answered), id, reply),
            None => Verdict::Tell(self.recipe().unanswered(
                id,
                false,
                errors::garbage(&self.links.of(answered.node)),
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
                Err((!errors::ran_half(&text), errors::script(&self.links.options, &call, &text)))
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
        recipe.heard(answered.node, server_us, answered.before);
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
                match reply.map(|reply| recipe.answered(now, read(&answered), claim.id, reply)) {
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
