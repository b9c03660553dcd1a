//! Admitting a member that has started, or lost its data: it counts once it was given a floor for
//! its numbers.
//!
//! Such a member is known by its marker, the run that it was admitted in. One that started is
//! admitted after `max_ttl` of uptime. One that lost its data while it ran (FLUSHALL, a replica in
//! its place) is up for long, so `max_ttl` goes by since a client first met it without its marker.
//! Where all members answer, and none is admitted, the quorum is new: nobody can hold anything, and
//! the first ones wait for nothing. One that does not answer may be admitted, and somebody's hold
//! may be there and on one of these.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::floor::{Told, floor};
use super::wire::Member;
use super::{Quorum, all, errors};
use crate::engine::BoxFuture;
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::texts::Texts;
use crate::engine::redis::client::wire::either;
use crate::engine::words::millis;
use crate::words::clock::Ticks;
use crate::words::error::{Error, Result};
use crate::words::token::next_number;

/// How soon one that could not be admitted is tried again.
pub(super) const AGAIN: Duration = Duration::from_secs(1);

/// What a member told of itself, and which run of it.
struct Answer {
    told: Told,
    run: String,
    /// It does not say which `max_ttl` it goes by.
    open: bool,
    /// When it was noticed that it is not admitted, by its clock, and how long ago that is.
    met: Option<(u64, Duration)>,
}

impl Quorum {
    /// Admits every member that can be. Whoever connects first after a member's start does that; a
    /// member that is admitted twice begins above the greater floor. While a member has another
    /// `max_ttl`, none is: it would be taken over by those.
    pub(super) async fn admit(self: &Arc<Self>) {
        // Before anybody is asked: what they tell is to be of after that (see `floor`).
        let now = self.context.clock.now();
        let grown: Vec<Option<String>> =
            self.members.iter().map(|m| m.grown(now, self.options.max_ttl)).collect();
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
        let none = !told.iter().any(|told| told.admitted);
        let first = none && told.len() == self.members.len();
        let strangers = answers.into_iter().filter(|(at, answer)| {
            let has_waited = answer.met.is_none_or(|(_, ago)| ago >= self.options.max_ttl);
            (!answer.told.admitted || answer.open)
                && grown.get(*at).and_then(Option::as_ref) == Some(&answer.run)
                && (first || has_waited)
        });
        let strangers: Vec<(usize, Answer)> = strangers.collect();
        // Fewer could grant nothing, and would keep the others waiting: the quorum would be new no
        // more. Whoever reaches one that is admitted counts these beside it.
        if none && strangers.len() < self.options.majority() {
            return;
        }
        let admitted = strangers.into_iter().map(|(at, answer)| -> BoxFuture<bool> {
            let quorum = self.clone();
            let met = answer.met.map(|(since, _)| since.to_string()).unwrap_or_default();
            let (floor, first) = (floor.to_string(), u8::from(first).to_string());
            let clock_skew = millis(self.options.clock_skew).to_string();
            let words = [answer.run, floor, max_ttl.clone(), met, first, clock_skew];
            Box::pin(async move {
                let Some(member) = quorum.members.get(at) else { return false };
                member.admit(quorum.keys.member(), words.into()).await
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

    /// Whether all members said, and say still, that they are not admitted.
    pub(super) fn is_new(&self) -> bool {
        self.members.iter().all(|member| member.link.is_up() && member.is_stranger())
    }

    /// Whether nobody who can be reached is admitted: then fewer than a majority never are.
    fn none_is_admitted(&self) -> bool {
        !self.members.iter().any(|member| member.link.is_up() && !member.is_stranger())
    }

    /// Whether a member waits for nothing but being admitted.
    pub(super) fn can_admit(&self, member: &Member, now: Ticks) -> bool {
        let new = self.is_new();
        let can = |member: &Member| {
            member.is_stranger()
                && member.grown(now, self.options.max_ttl).is_some()
                && (new || member.clean_at().is_none_or(|at| at <= now))
        };
        let enough = || self.members.iter().filter(|m| can(m)).count() >= self.options.majority();
        can(member) && (!self.none_is_admitted() || enough())
    }

    /// Admits who can be, without waiting for it, once at a time, and once a second: a member that
    /// refuses to be, for it is full or a replica, is not asked with each claim.
    pub(super) fn admit_soon(&self) {
        let now = self.context.clock.now();
        let lately = self.looked.load(Ordering::Relaxed);
        let is_due = lately == 0 || now.since(Ticks(lately)) >= AGAIN;
        if is_due && self.members.iter().any(|member| self.can_admit(member, now)) {
            self.look_over();
        }
    }

    /// Asks all members about themselves, and admits who can be, as [`Self::admit_soon`]. What is
    /// wished for while that goes on is done after it.
    pub(super) fn look_over(&self) {
        self.sooner.notify_one();
    }

    /// Admits members for as long as the engine is open: when somebody wishes it, and when one that
    /// is not admitted can be. Nobody need ask for a lock meanwhile.
    pub(super) async fn keep_admitting(self: Arc<Self>) {
        let mut looked = None;
        loop {
            let now = self.context.clock.now();
            let due = self.next_admission();
            // One that could not be, because too few others answer, is not asked in vain at once.
            let again: Option<Ticks> = looked.map(|at: Ticks| at.plus(AGAIN));
            let due = due.map(|due| again.map_or(due, |again| again.max(due)));
            let wish = std::pin::pin!(self.sooner.notified());
            match due {
                // Not all processes in the same moment.
                Some(due) => {
                    let pause = due.since(now) + AGAIN.mul_f64(super::acquire::jitter() / 4.0);
                    _ = either(wish, std::pin::pin!(sleep(pause))).await;
                }
                None => wish.await,
            }
            if self.is_closed() {
                return;
            }
            let now = self.context.clock.now();
            looked = Some(now);
            self.looked.store(now.0, Ordering::Relaxed);
            self.admit().await;
        }
    }

    /// From when on a member may be admitted, or a majority where it must be that many.
    fn next_admission(&self) -> Option<Ticks> {
        let each = (0..self.members.len()).filter_map(|at| self.can_be_admitted_at(at));
        let mut each: Vec<Ticks> = each.collect();
        each.sort_unstable();
        let others = if self.none_is_admitted() { self.options.majority() - 1 } else { 0 };
        each.get(others).copied()
    }

    /// From when on a member that can be reached and is not admitted may be.
    fn can_be_admitted_at(&self, at: usize) -> Option<Ticks> {
        let member = self.members.get(at).filter(|m| m.link.is_up() && m.is_stranger())?;
        let grown = member.counts_at(self.options.max_ttl)?;
        let clean = member.clean_at().filter(|_| !self.is_new());
        (!member.is_twin() && member.other_max_ttl().is_none())
            .then(|| clean.map_or(grown, |clean| clean.max(grown)))
    }

    fn tell(self: Arc<Self>, at: usize) -> BoxFuture<Result<Answer>> {
        Box::pin(async move {
            let Some(member) = self.members.get(at) else { return Err(self.garbage(at)) };
            let (keys, arguments) = ([self.keys.member()].into(), Texts::default());
            let call = Call { script: Which::QuorumTell, keys, arguments };
            let value = member.call(call).await?;
            let [time, run, admitted, top, max_ttl, met] = value.items() else {
                return Err(self.garbage(at));
            };
            let (Some(us), Some(run), Some(top)) = (time.unsigned(), run.text(), top.unsigned())
            else {
                return Err(self.garbage(at));
            };
            let admitted = admitted.text() == Some("1");
            member.set_stranger(!admitted);
            let ago = |since: u64| Duration::from_micros(us.saturating_sub(since));
            let met = met.unsigned().map(|since| (since, ago(since)));
            let left = met.map(|(_, ago)| self.options.max_ttl.saturating_sub(ago));
            member.set_clean_at(left.map(|left| self.context.clock.now().plus(left)));
            let theirs = max_ttl.unsigned().map(Duration::from_millis);
            member.goes_by(theirs, self.options.max_ttl);
            let tick = next_number(0, us).unwrap_or(0);
            Ok(Answer {
                told: Told { tick, top, admitted },
                run: run.to_owned(),
                open: theirs.is_none(),
                met,
            })
        })
    }
}

impl Member {
    async fn admit(&self, key: String, arguments: Vec<String>) -> bool {
        let call =
            Call { script: Which::QuorumAdmit, keys: [key].into(), arguments: arguments.into() };
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
