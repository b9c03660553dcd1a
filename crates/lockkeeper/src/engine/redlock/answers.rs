//! What members answer to a claim, and following a question until it has its outcome.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::acquire::Stepped;
use super::heard::Heard;
use super::plain::Seen;
use super::recipe::{Event as Step, Outcome, Said, Verb};
use super::send::{Flight, Sent};
use super::wire::Member;
use super::{Quorum, first};
use crate::words::id::ClaimId;

impl Quorum {
    /// A member answered.
    fn arrived(self: &Arc<Self>, id: ClaimId, sent: Sent, mut heard: Heard) -> Stepped {
        let Sent { member, verb, round, in_time_until } = sent;
        // It may have become one since it was asked.
        if self.is_twin(member) && !verb.gives() {
            heard = Heard { error: heard.error, ..Heard::nothing() };
            let why = self.silence(member, self.steady.now(), Duration::ZERO);
            heard.error = heard.error.or(why);
        }
        self.knows(heard.number);
        if self.members.get(member).is_some_and(Member::is_stranger) {
            self.admit_soon();
        }
        {
            let mut state = self.state();
            if !matches!(heard.said, Said::Not | Said::Unclear) {
                state.silent.remove(&member);
            }
            if let Some(entry) = state.claims.get_mut(&id) {
                let lacks =
                    verb != Verb::Take && matches!(heard.said, Said::Nothing | Said::Other(_));
                let why = heard.error.or_else(|| self.has_none(member).filter(|_| lacks));
                // Of an earlier round, it says nothing about this one.
                let why = why.filter(|_| entry.machine.is_asking_in(round));
                entry.errors.extend(why.map(|error| (member, error)));
                if let Said::Yes { counts: false, .. } = heard.said {
                    let now = self.steady.now();
                    entry.stranger |= self.can_admit(member, now);
                    let why = self.not_yet(member, now).or_else(|| self.did_not_count(member));
                    entry.errors.extend(why.map(|error| (member, error)));
                }
                if self.options.plain.is_some()
                    && let Said::Other(other) = &mut heard.said
                {
                    let now = self.steady.now();
                    let seen = Seen::new(other.rank.claim, now, other.rest);
                    let age = entry.seen.get(&member).and_then(|first| first.age(&seen));
                    other.age = age.unwrap_or_default();
                    if age.is_none() {
                        entry.seen.insert(member, seen);
                    }
                }
                entry.others.extend(heard.holder.map(|record| (record.claim, record)));
                entry.waited_for |= heard.waited_for;
                entry.waiter.is_behind(heard.ahead, heard.turn);
                if verb == Verb::Take && heard.said == Said::Unclear {
                    entry
                        .doubts
                        .insert(member, in_time_until.plus(self.options.request_timeout / 8));
                }
            }
        }
        let now = self.context.clock.now();
        let stepped = self.step(id, Step::Said { now, member, verb, round, said: heard.said });
        if stepped.is_incomplete {
            self.complete_soon(id);
        }
        self.tidy(id);
        stepped
    }

    /// The time for the answers of a round is over.
    fn due(self: &Arc<Self>, id: ClaimId, round: u64, waited: Duration) -> Stepped {
        let now = self.context.clock.now();
        {
            let mut state = self.state();
            let missing: Vec<usize> = match state.claims.get(&id) {
                Some(entry) if entry.machine.is_asking_in(round) => {
                    entry.machine.unanswered().collect()
                }
                _ => Vec::new(),
            };
            for member in missing {
                let now = self.steady.now();
                state.silent.entry(member).or_insert(now);
                let error = self.late(member, now, waited);
                if let Some(entry) = state.claims.get_mut(&id) {
                    entry.errors.extend(error.map(|error| (member, error)));
                }
            }
        }
        self.step(id, Step::Due { now, round })
    }

    /// Follows a question to its answer. What is answered after that is followed all the same.
    pub(super) async fn follow(self: &Arc<Self>, id: ClaimId, mut stepped: Stepped) -> Outcome {
        let begun = Instant::now();
        let (mut over, mut round) = (self.timer.until(begun), 0);
        loop {
            if let Some(outcome) = stepped.outcome {
                self.follow_rest(id, stepped.flights);
                return outcome;
            }
            // Another question about this claim came after it: all that was on its way has been
            // answered, and none of it was an answer to this one any more.
            if stepped.flights.is_empty() {
                return Outcome::TooFew;
            }
            if let Some((at, of)) = stepped.due.take() {
                let until = Instant::now() + at.since(self.context.clock.now());
                (over, round) = (self.timer.until(until), of);
            }
            // A caller that is late itself hears all that came meanwhile before its time is over.
            let (more, is_over) = match first(&mut stepped.flights, &mut over).await {
                Some((sent, heard)) => (self.arrived(id, sent, heard), false),
                None => (self.due(id, round, begun.elapsed()), true),
            };
            let superseded = is_over && more.outcome.is_none() && more.due.is_none();
            stepped.outcome = more.outcome.or(superseded.then_some(Outcome::TooFew));
            stepped.due = more.due;
            stepped.flights.extend(more.flights);
        }
    }

    /// Follows what is on its way to its answers, whatever they are.
    pub(super) fn follow_rest(self: &Arc<Self>, id: ClaimId, mut flights: Vec<Flight>) {
        if flights.is_empty() {
            return;
        }
        let quorum = self.clone();
        self.context.spawner.begin(async move {
            while !flights.is_empty()
                && let Some((sent, heard)) = first(&mut flights, std::future::pending()).await
            {
                flights.extend(quorum.arrived(id, sent, heard).flights);
            }
        });
    }
}
