//! What members tell unasked, and who hears it: waiters that a lock was given back, watches that
//! something may have changed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::recipe::Members;
use super::{Quorum, first};
use crate::engine::either::either;
use crate::engine::redis::client::resp::Value;
use crate::engine::{BoxFuture, Event, WatchId};
use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

/// Members publish what is given back, and nothing else: whoever watches looks again after this.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// A release is told by one member after the other; with fewer than a majority it may be a
/// contender that gave back.
pub(super) const TOLD_BY_FEW: Duration = Duration::from_millis(25);

/// Who watches.
#[derive(Default)]
pub(super) struct Watches {
    state: Mutex<(BTreeSet<WatchId>, bool)>,
    sooner: Notify,
}

/// Who gave the lock back lately, and which members told so. They tell of one release one after the
/// other, and the first of them may tell of the next before the last does of this one.
#[derive(Default)]
pub(super) struct Told(Vec<(Option<ClaimId>, Members)>);

impl Told {
    /// Of how many releases it is remembered.
    const LATELY: usize = 4;

    /// How many members told that this claim gave back; `None` where words name nobody.
    pub(super) fn by(&self, who: Option<ClaimId>) -> usize {
        self.0.iter().find(|(giver, _)| *giver == who).map_or(0, |(_, members)| members.len())
    }

    /// Changes who told so; how many they are then.
    fn change(&mut self, who: Option<ClaimId>, change: impl FnOnce(&mut Members)) -> usize {
        let at = self.0.iter().position(|(giver, _)| *giver == who);
        let (_, mut members) = at.map_or((who, Members::default()), |at| self.0.remove(at));
        change(&mut members);
        if self.0.len() == Self::LATELY {
            self.0.remove(0);
        }
        self.0.push((who, members));
        members.len()
    }

    /// One more member told so.
    fn hear(&mut self, who: Option<ClaimId>, member: usize) -> usize {
        self.change(who, |members| {
            // A member tells twice of one that gave back twice.
            if members.has(member) {
                *members = Members::default();
            }
            members.insert(member);
        })
    }

    /// What so many told is known, and the others say the same a moment later; what fewer told
    /// begins anew.
    pub(super) fn forget_below(&mut self, many: usize) {
        self.0.retain(|(_, members)| members.len() >= many);
    }
}

impl Watches {
    fn lock(&self) -> MutexGuard<'_, (BTreeSet<WatchId>, bool)> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn remove(&self, watch: WatchId) {
        let mut state = self.lock();
        state.0.remove(&watch);
        if state.0.is_empty() {
            self.sooner.notify_one();
        }
    }

    pub(super) fn close(&self) {
        self.lock().0.clear();
        self.sooner.notify_one();
    }
}

impl Quorum {
    /// A member tells that somebody gave a lock back.
    pub(super) fn hear(&self, member: usize, items: &[Value]) {
        if let [word, keys] = items
            && word.text() == Some("invalidate")
        {
            self.hear_keys(member, keys);
            return;
        }
        let [word, channel, who] = items else { return };
        let (Some("message"), Some(channel), Some(who)) = (word.text(), channel.text(), who.text())
        else {
            return;
        };
        // Who gave it back, and for whom alone, if it is not for all.
        let (who, only) = who.split_once(' ').map_or((who, None), |(who, only)| (who, Some(only)));
        // What a contender gives up is for one claim, and what a hold gives back for whose turn it
        // is.
        let ceded = who == "-";
        let (who, only) = (ClaimId::parse(who), only.and_then(ClaimId::parse));
        let (now, majority) = (self.context.clock.now(), self.options.majority());
        let mut woken = Vec::new();
        for (id, entry) in &mut self.state().claims {
            if !entry.listening || entry.leaving || entry.channel != channel {
                continue;
            }
            // What it gave back itself is no news, nor what it lets others have.
            if who == Some(*id) || who.is_some() && who == entry.behind {
                continue;
            }
            // Others' words do not say whose they are. The first are of what it gave back itself.
            if who.is_none() && entry.behind.is_some() && entry.told_at.0 == Ticks::default() {
                continue;
            }
            let at_once = match only {
                // It is the first of those that contend: these give way to it.
                Some(only) if only == *id => {
                    entry.given.insert(member);
                    entry.not_before = None;
                    entry.has_room(majority)
                }
                Some(_) if ceded => continue,
                Some(_) if entry.lines_up() => {
                    let again = entry.passed.by(who) > 0;
                    entry.passed.hear(who, member);
                    if again || !entry.waiting {
                        continue;
                    }
                    entry.ahead = entry.ahead.map(|ahead| ahead.saturating_sub(1));
                    let at = now.plus(entry.after_others());
                    entry.not_before = Some(at);
                    woken.push(Event::AskAt { claim: *id, at });
                    continue;
                }
                _ => {
                    let before = entry.told.by(who);
                    let told = entry.told.hear(who, member);
                    // It asks, or has asked, since a majority told: those that it got keep it in
                    // the way.
                    let keeps = entry.keeps && who.is_none();
                    if before >= majority && told > before && !keeps {
                        continue;
                    }
                    keeps || told >= majority
                }
            };
            if !entry.waiting {
                entry.woken = true;
            } else if at_once {
                entry.waiting = false;
                woken.push(Event::Wake { claim: *id });
            } else {
                woken.push(Event::AskAt { claim: *id, at: now.plus(TOLD_BY_FEW) });
            }
        }
        for event in woken {
            self.context.events.send(event);
        }
        self.changed();
    }

    /// A member of the layout `plain` tells that keys changed that were read there. Most often that
    /// is a waiter's attempt: only a majority tells of a release, or of a renewal.
    fn hear_keys(&self, member: usize, keys: &Value) {
        let flushed = keys.items().is_empty();
        let hit = |key: &str| flushed || keys.items().iter().any(|k| k.text() == Some(key));
        let majority = self.options.majority();
        let mut woken = Vec::new();
        for (id, entry) in &mut self.state().claims {
            let [key, ..] = &entry.keys;
            if entry.leaving || !hit(key) {
                continue;
            }
            let told = entry.told.change(None, |members| members.insert(member));
            if !entry.waiting {
                entry.woken |= told >= majority;
            } else if entry.keeps || told >= majority {
                entry.waiting = false;
                woken.push(Event::Wake { claim: *id });
            }
        }
        for event in woken {
            self.context.events.send(event);
        }
        self.changed();
    }

    /// Listens on every member; a member that is away is listened to when it is back.
    pub(super) async fn listen(self: &Arc<Self>, id: ClaimId) {
        let mut subscribed = Vec::new();
        {
            let mut state = self.state();
            let Some(entry) = state.claims.get_mut(&id).filter(|entry| !entry.listening) else {
                return;
            };
            entry.listening = true;
            let channel = entry.channel.clone();
            *state.channels.entry(channel.clone()).or_default() += 1;
            // The count and what the members are told change together.
            for (at, member) in self.members.iter().enumerate() {
                if let Some(answer) = member.link.subscribe(&channel) {
                    let answer: BoxFuture<bool> =
                        Box::pin(async move { matches!(answer.await, Ok(Ok(_))) });
                    subscribed.push((at, answer));
                }
            }
        }
        let until = Instant::now() + self.patience(self.options.ttl);
        let silent = self.state().silent;
        subscribed.retain(|(at, _)| silent.0 & (1 << at) == 0);
        while !subscribed.is_empty() && first(&mut subscribed, until).await.is_some() {}
    }

    /// Stops listening for a claim.
    pub(super) fn hush(&self, id: ClaimId) {
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id).filter(|entry| entry.listening) else { return };
        entry.listening = false;
        let channel = entry.channel.clone();
        let Some(count) = state.channels.get_mut(&channel) else { return };
        *count -= 1;
        if *count == 0 {
            state.channels.remove(&channel);
            for member in &self.members {
                member.link.unsubscribe(&channel);
            }
        }
    }

    pub(super) fn watch(self: &Arc<Self>, watch: WatchId) {
        let begins = {
            let mut state = self.watches.lock();
            state.0.insert(watch);
            !std::mem::replace(&mut state.1, true)
        };
        if begins {
            self.context.spawner.spawn(self.clone().keep_watching());
        }
    }

    async fn keep_watching(self: Arc<Self>) {
        loop {
            let round = std::pin::pin!(sleep(WATCH_EVERY));
            _ = either(round, std::pin::pin!(self.watches.sooner.notified())).await;
            {
                let mut state = self.watches.lock();
                state.1 = !state.0.is_empty();
                if !state.1 {
                    return;
                }
            }
            self.changed();
        }
    }

    /// Tells every watch to look again.
    pub(super) fn changed(&self) {
        let watches: Vec<WatchId> = self.watches.lock().0.iter().copied().collect();
        for watch in watches {
            self.context.events.send(Event::Changed { watch });
        }
    }
}
