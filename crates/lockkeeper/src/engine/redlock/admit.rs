//! Admitting a member that has started, or lost its data: it counts once it was given a floor for
//! its numbers.
//!
//! Such a member is known by its marker, the run that it was admitted in. It may have forgotten a
//! lease that somebody still counts with, so it waits for the longest of anybody's, from when a
//! client first met it without its marker: for how long it has been up says nothing of FLUSHALL, or
//! of a replica in its place. The member judges that, by its own clock and by what it knows of
//! others; whoever asks for a lock counts who was admitted in this run, and looks at no clock.
//! Nobody waits for less because of what others say, or do not say, and members of a new quorum
//! wait as well: none of them can tell that it is new.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::floor::{Told, floor};
use super::wire::{Clean, Member};
use super::{Quorum, all};
use crate::engine::BoxFuture;
use crate::engine::either::either;
use crate::engine::redis::client::resp::Value;
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::texts::Texts;
use crate::engine::words::millis;
use crate::words::clock::Ticks;
use crate::words::error::Result;

/// How soon one that could not be admitted is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// What a member told of itself, and which run of it.
struct Answer {
    told: Told,
    run: String,
    /// When it was noticed that it is not admitted, by its clock.
    met_us: Option<u64>,
}

impl Quorum {
    /// Admits every member that can be. Whoever finds one does that; a member that is admitted
    /// twice begins above the greater floor.
    pub(super) async fn admit(self: &Arc<Self>) {
        // Who told only now for how long it waits is asked once more where that is over.
        if self.admit_who_has_waited().await {
            self.admit_who_has_waited().await;
        }
    }

    /// Answers whether one can be now of which that was not known before it was asked.
    async fn admit_who_has_waited(self: &Arc<Self>) -> bool {
        // Before anybody is asked: what they tell is to be of after that (see `floor`).
        let now = self.steady.now();
        let clean: Vec<Option<Clean>> =
            self.members.iter().map(|m| m.clean().filter(|clean| clean.at <= now)).collect();
        let asked = self.of_all(|quorum, at| quorum.tell(at)).await;
        // Without a majority nobody can hold anything anyhow.
        let Ok(mut answers) = asked else { return false };
        // One server has one voice, under how many addresses it may have been asked.
        answers.sort_unstable_by(|(_, one), (_, other)| one.run.cmp(&other.run));
        answers.dedup_by(|(_, one), (_, other)| one.run == other.run);
        if answers.len() < self.options.majority() {
            return false;
        }
        let told: Vec<Told> = answers.iter().map(|(_, answer)| answer.told).collect();
        let skew = number_of(self.options.clock_skew.as_micros());
        let floor = floor(&told, self.options.majority(), skew);
        let (mut news, now) = (false, self.steady.now());
        let strangers = answers.into_iter().filter_map(|(at, answer)| {
            let met_us = answer.met_us.filter(|_| !answer.told.admitted)?;
            // Of this time, and of no other since which it was admitted and flushed.
            let Some(known) = clean.get(at)?.filter(|clean| clean.met_us == met_us) else {
                news |= self.can_admit(at, now);
                return None;
            };
            Some((at, answer.run, met_us, known.wait))
        });
        let admitted: Vec<BoxFuture<bool>> = strangers
            .map(|(at, run, met_us, waited)| -> BoxFuture<bool> {
                let quorum = self.clone();
                let waited = millis(waited).to_string();
                let clock_skew = millis(self.options.clock_skew).to_string();
                let words = [run, floor.to_string(), waited, met_us.to_string(), clock_skew];
                Box::pin(async move {
                    let Some(member) = quorum.members.get(at) else { return false };
                    member.admit(quorum.keys.member(), words.into()).await
                })
            })
            .collect();
        if all(admitted).await.contains(&true) {
            self.knows(floor);
        }
        news
    }

    /// Whether a member waits for nothing but being admitted, as far as is known.
    pub(super) fn can_admit(&self, at: usize, now: Ticks) -> bool {
        self.can_be_admitted_at(at).is_some_and(|due| due <= now)
    }

    /// Admits who can be, without waiting for it, once at a time, and once a second: a member that
    /// refuses to be, for it is full or a replica, is not asked with each claim.
    pub(super) fn admit_soon(&self) {
        let now = self.steady.now();
        let lately = self.looked.load(Ordering::Relaxed);
        let is_due = lately == 0 || now.since(Ticks(lately)) >= AGAIN;
        let can = |at| self.can_admit(at, now);
        // Of those who find that before anybody is asked, the first alone wishes it.
        let is_first =
            || self.looked.compare_exchange(lately, now.0, Ordering::Relaxed, Ordering::Relaxed);
        if is_due && (0..self.members.len()).any(can) && is_first().is_ok() {
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
            let now = self.steady.now();
            let due = (0..self.members.len()).filter_map(|at| self.can_be_admitted_at(at)).min();
            // One that could not be, because too few others answer, is not asked in vain at once.
            let again: Option<Ticks> = looked.map(|at: Ticks| at.plus(AGAIN));
            let due = due.map(|due| again.map_or(due, |again| again.max(due)));
            let wish = std::pin::pin!(self.sooner.notified());
            match due {
                // Not all processes in the same moment.
                Some(due) => {
                    let pause = due.since(now) + AGAIN.mul_f64(super::waiting::jitter() / 4.0);
                    _ = either(wish, std::pin::pin!(sleep(pause))).await;
                }
                None => wish.await,
            }
            if self.is_closed() {
                return;
            }
            let now = self.steady.now();
            looked = Some(now);
            self.looked.store(now.0, Ordering::Relaxed);
            self.admit().await;
        }
    }

    /// From when on a member that can be reached and is not admitted may be; one that did not tell
    /// is asked now.
    fn can_be_admitted_at(&self, at: usize) -> Option<Ticks> {
        let member = self.members.get(at).filter(|m| m.link.is_up() && m.is_stranger())?;
        (!self.is_twin(at)).then(|| member.clean().map_or(Ticks(0), |clean| clean.at))
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
            let top = member.believed(top, &self.keys.member())?;
            let tick = member.tick_of(us)?;
            let admitted = admitted.text() == Some("1");
            member.set_stranger(!admitted);
            let theirs = Duration::from_millis(max_ttl.unsigned().unwrap_or(0));
            let met_us = met.unsigned();
            member.set_clean(met_us.map(|met_us| {
                let ago = Duration::from_micros(us.saturating_sub(met_us));
                let wait = self.options.wait.max(theirs);
                let at = self.steady.now().plus(wait.saturating_sub(ago));
                Clean { met_us, wait, at }
            }));
            Ok(Answer { told: Told { tick, top, admitted }, run: run.to_owned(), met_us })
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
            self.wrote();
        }
        done
    }
}

/// So many microseconds as a difference of numbers.
fn number_of(us: u128) -> u64 {
    u64::try_from(us / 16).unwrap_or(u64::MAX)
}
