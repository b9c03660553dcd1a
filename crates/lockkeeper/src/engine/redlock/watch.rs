//! What members tell unasked, and who hears it: waiters that a lock was given back, watches that
//! something may have changed.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::acquire::Entry;
use super::waiter::{Ask, Word};
use super::{Quorum, State, first};
use crate::engine::either::either;
use crate::engine::redis::client::resp::Value;
use crate::engine::{BoxFuture, Event, WatchId};
use crate::words::id::ClaimId;

/// Members publish what is given back, and nothing else: whoever watches looks again after this.
const WATCH_EVERY: Duration = Duration::from_secs(2);
/// Who watches.
#[derive(Default)]
pub(super) struct Watches {
    state: Mutex<(BTreeSet<WatchId>, bool)>,
    sooner: Notify,
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
        let word = Word {
            member,
            giver: ClaimId::parse(who),
            ceded: who == "-",
            only: only.and_then(ClaimId::parse),
        };
        let now = self.context.clock.now();
        self.wake(|entry| {
            let hears = entry.listening && !entry.leaving && entry.channel == channel;
            hears.then(|| entry.waiter.hears(now, word)).flatten()
        });
    }

    /// Tells who is to ask.
    fn wake(&self, hears: impl Fn(&mut Entry) -> Option<Ask>) {
        let mut woken = Vec::new();
        for (claim, entry) in &mut self.state().claims {
            let claim = *claim;
            woken.extend(hears(entry).map(|ask| match ask {
                Ask::AtOnce => Event::Wake { claim },
                Ask::At(at) => Event::AskAt { claim, at },
            }));
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
        self.wake(|entry| {
            let [key, ..] = &entry.keys;
            if entry.leaving || !hit(key) {
                return None;
            }
            entry.waiter.hears_of_keys(member)
        });
    }

    /// Listens on every member; a member that is away is listened to when it is back.
    pub(super) async fn listen(&self, id: ClaimId) {
        let mut subscribed = self.begin_to_listen(id);
        let until = Instant::now() + self.least_patience(self.options.ttl);
        let silent = self.state().silent.clone();
        subscribed.retain(|(at, _)| !silent.contains_key(at));
        let mut over = self.timer.until(until);
        while !subscribed.is_empty() && first(&mut subscribed, &mut over).await.is_some() {}
    }

    /// The same without waiting for the answers: those of whatever is asked next come behind them.
    pub(super) fn begin_to_listen(&self, id: ClaimId) -> Vec<(usize, BoxFuture<bool>)> {
        let mut subscribed = Vec::new();
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id).filter(|entry| !entry.listening) else {
            return subscribed;
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
        subscribed
    }

    /// Stops listening for a claim.
    pub(super) fn hush(&self, id: ClaimId) {
        let mut state = self.state();
        let Some(entry) = state.claims.get_mut(&id).filter(|entry| entry.listening) else { return };
        entry.listening = false;
        let channel = entry.channel.clone();
        self.unlisten(&mut state, &channel);
    }

    /// One less listens to a channel.
    pub(super) fn unlisten(&self, state: &mut State, channel: &str) {
        let Some(count) = state.channels.get_mut(channel) else { return };
        *count -= 1;
        if *count == 0 {
            state.channels.remove(channel);
            for member in &self.members {
                member.link.unsubscribe(channel);
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
