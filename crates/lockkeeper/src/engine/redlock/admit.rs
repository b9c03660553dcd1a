//! Admitting a member that has started: it counts once it was given a floor for its numbers.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::floor::{Told, floor};
use super::wire::Member;
use super::{Quorum, all, errors};
use crate::clock::Ticks;
use crate::engine::BoxFuture;
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::record::millis;
use crate::error::{Error, Result};
use crate::token::next_number;

/// What a member told of itself, and which run of it.
struct Answer {
    told: Told,
    run: String,
    /// It does not say which `max_ttl` it goes by.
    open: bool,
}

impl Quorum {
    /// Admits every member that can be. Whoever connects first after a member's start does that; a
    /// member that is admitted twice begins above the greater floor. While a member has another
    /// `max_ttl`, none is: it would be taken over by those.
    pub(super) async fn admit(self: &Arc<Self>) {
        // Before anybody is asked: what they tell is to be of after that (see `floor`).
        let now = self.context.clock.now();
        let grown: Vec<Option<String>> =
            self.members.iter().map(|member| self.can(member, now).then(|| member.run())).collect();
        let asked = self.of_all(|quorum, at| quorum.tell(at)).await;
        // Without a majority nobody can hold anything anyhow.
        let Ok(answers) = asked else { return };
        if self.misfit().is_some() {
            return;
        }
        let told: Vec<Told> = answers.iter().map(|(_, answer)| answer.told).collect();
        let max_ttl = millis(self.options.max_ttl).to_string();
        let skew = number_of(self.options.clock_skew.as_micros());
        let floor = floor(&told, self.options.majority(), skew);
        let strangers = answers.into_iter().filter(|(at, answer)| {
            (!answer.told.admitted || answer.open)
                && grown.get(*at).and_then(Option::as_ref) == Some(&answer.run)
        });
        let admitted = strangers.map(|(at, answer)| -> BoxFuture<bool> {
            let quorum = self.clone();
            let words = vec![answer.run, floor.to_string(), max_ttl.clone()];
            Box::pin(async move {
                let Some(member) = quorum.members.get(at) else { return false };
                member.admit(quorum.keys.member(), words).await
            })
        });
        if all(admitted.collect()).await.contains(&true) {
            self.knows(floor);
        }
    }

    /// Why this client can be no member's, if one goes by another `max_ttl`.
    pub(super) fn misfit(&self) -> Option<Error> {
        self.members.iter().find_map(|member| {
            let theirs = member.other_max_ttl()?;
            Some(errors::other_max_ttl(member, theirs, self.options.max_ttl, &self.keys.member()))
        })
    }

    /// Whether a member has been up for `max_ttl`.
    fn can(&self, member: &Member, now: Ticks) -> bool {
        member.counts(now, self.options.max_ttl)
    }

    /// Whether a member waits for nothing but being admitted.
    fn can_admit(&self) -> bool {
        let now = self.context.clock.now();
        self.members.iter().any(|member| member.is_stranger() && self.can(member, now))
    }

    /// Admits who can be, without waiting for it, and once at a time.
    pub(super) fn admit_soon(self: &Arc<Self>) {
        if self.can_admit() {
            self.look_over();
        }
    }

    /// Asks all members about themselves, and admits who can be, as [`Self::admit_soon`].
    pub(super) fn look_over(self: &Arc<Self>) {
        if self.is_closed() || self.admitting.swap(true, Ordering::AcqRel) {
            return;
        }
        let quorum = self.clone();
        self.context.spawner.spawn(async move {
            quorum.admit().await;
            quorum.admitting.store(false, Ordering::Release);
        });
    }

    fn tell(self: Arc<Self>, at: usize) -> BoxFuture<Result<Answer>> {
        Box::pin(async move {
            let Some(member) = self.members.get(at) else { return Err(self.garbage(at)) };
            let keys = vec![self.keys.member()];
            let call = Call { script: Which::QuorumTell, keys, arguments: Vec::new() };
            let value = member.call(call).await?;
            let [time, run, admitted, top, max_ttl] = value.items() else {
                return Err(self.garbage(at));
            };
            let (Some(us), Some(run), Some(top)) = (time.unsigned(), run.text(), top.unsigned())
            else {
                return Err(self.garbage(at));
            };
            let admitted = admitted.text() == Some("1");
            member.set_stranger(!admitted);
            let theirs = max_ttl.unsigned().map(Duration::from_millis);
            member.goes_by(theirs, self.options.max_ttl);
            let tick = next_number(0, us).unwrap_or(0);
            Ok(Answer {
                told: Told { tick, top, admitted },
                run: run.to_owned(),
                open: theirs.is_none(),
            })
        })
    }
}

impl Member {
    async fn admit(&self, key: String, arguments: Vec<String>) -> bool {
        let call = Call { script: Which::QuorumAdmit, keys: vec![key], arguments };
        let done = self
            .call(call)
            .await
            .is_ok_and(|value| value.items().first().and_then(Value::text) == Some("Y"));
        if done {
            self.set_stranger(false);
        }
        done
    }
}

/// So many microseconds as a difference of numbers.
fn number_of(us: u128) -> u64 {
    u64::try_from(us / 16).unwrap_or(u64::MAX)
}
