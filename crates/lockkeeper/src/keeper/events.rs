//! What engines tell unasked, and the net under a lost wake-up (R10).

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, PoisonError, Weak};
use std::time::Duration;

use super::Keeper;
use super::driver::Due;
use super::entry::Entry;
use super::outages::Outages;
use crate::engine::{Answer, Attempt, Event, Lease, Standing, Which};
use crate::observe::Seen;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::words::clock::Ticks;
use crate::words::guarantee::{Expiry, Warning};
use crate::words::id::{ById, ClaimId};

/// How often all places are re-checked in one message, at least.
const NET_EVERY: Duration = Duration::from_secs(5);

/// How often a place is re-checked that no grant is pushed to, at most.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Events for claims that nobody has registered yet, at most.
const EARLY_MAX: usize = 1024;
/// For how long such an event is kept. The answer that it was faster than is under way; a claim
/// that was left has none.
const EARLY_FOR: Duration = Duration::from_secs(1);

/// Which entry waits for events of which claim.
#[derive(Default)]
pub(super) struct Claims {
    maps: Mutex<Maps>,
    /// How many claims the maps know. Whoever put one there sees it counted, so zero means that
    /// ours is not there: a lock that is had at once never touches the maps.
    known: AtomicUsize,
    /// How many of them the engine is silent about.
    silent: AtomicUsize,
}

#[derive(Default)]
pub(super) struct Maps {
    /// With the interval in which each is to be re-checked.
    pub(super) waiting: ById<ClaimId, (Weak<Entry>, Duration)>,
    /// An engine's thread may be faster than the answer that says "in line".
    early: ById<ClaimId, Event>,
    /// The same in order of arrival: some belong to claims that are over and never ask, and give
    /// way to newer ones and to time.
    early_order: VecDeque<(ClaimId, Ticks)>,
    net_at: Option<Ticks>,
    pub(super) outages: Outages,
}

impl Maps {
    /// Answers whether it is the only one, and which had to make room.
    fn keep_early(&mut self, now: Ticks, claim: ClaimId, event: Event) -> (bool, Option<Event>) {
        let mut gone = None;
        if self.early_order.len() >= EARLY_MAX
            && let Some((oldest, _)) = self.early_order.pop_front()
        {
            gone = self.early.remove(&oldest);
        }
        let known = self.early.contains_key(&claim);
        // When to ask is no news beside a grant or its end.
        if !known || !matches!(event, Event::AskAt { .. }) {
            self.early.insert(claim, event);
        }
        if !known {
            self.early_order.push_back((claim, now));
        }
        (self.early.len() == 1, gone)
    }

    /// Forgets those that nobody asked for in time; answers them, and when the next will be
    /// forgotten.
    fn forget_early(&mut self, now: Ticks) -> (Vec<Event>, Option<Ticks>) {
        let mut gone = Vec::new();
        while let Some(&(claim, came)) = self.early_order.front() {
            let until = came.plus(EARLY_FOR);
            if until > now {
                return (gone, Some(until));
            }
            self.early_order.pop_front();
            gone.extend(self.early.remove(&claim));
        }
        (gone, None)
    }

    fn take_early(&mut self, claim: ClaimId) -> Option<Event> {
        let event = self.early.remove(&claim)?;
        self.early_order.retain(|(id, _)| *id != claim);
        Some(event)
    }
}

impl Claims {
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut Maps) -> T) -> T {
        let mut maps = self.maps.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = work(&mut maps);
        self.known
            .store(maps.waiting.len() + maps.early.len() + maps.outages.len(), Ordering::Release);
        self.silent.store(maps.outages.len(), Ordering::Release);
        answer
    }

    /// Whether the engine is silent about any of them.
    pub(super) fn any_silent(&self) -> bool {
        self.silent.load(Ordering::Acquire) > 0
    }

    /// How many claims are waited for, or have news that nobody fetched.
    #[cfg(feature = "test-util")]
    pub(super) fn len(&self) -> usize {
        self.with(|maps| {
            maps.waiting.values().filter(|(entry, _)| entry.strong_count() > 0).count()
                + maps.early.len()
        })
    }
}

impl Keeper {
    /// This entry waits for events of this claim. An event that was faster follows at once, from
    /// the keeper's thread.
    pub(super) fn await_event(self: &Arc<Self>, claim: ClaimId, entry: &Arc<Entry>, ttl: Duration) {
        let every = self.net_every(ttl);
        let at = self.clock.now().plus(every);
        let (early, arm) = self.claims.with(|maps| {
            maps.waiting.insert(claim, (Arc::downgrade(entry), every));
            let arm = maps.net_at.is_none_or(|armed| at < armed);
            if arm {
                maps.net_at = Some(at);
            }
            (maps.take_early(claim), arm)
        });
        if arm {
            self.driver.arm(self, at, Due::Net);
        }
        if let Some(event) = early {
            // The caller holds the entry's lock, so this cannot be handled here.
            let keeper = self.clone();
            self.run(async move { keeper.event(event) });
        }
    }

    /// Two claim leases, if that is shorter: for so long a grant whose push was lost may keep
    /// others out (R10). Where no grant is pushed, nobody is kept out, and a look that comes so
    /// often would only cost messages.
    fn net_every(&self, ttl: Duration) -> Duration {
        match self.facts.expiry {
            Expiry::PerHold { claim_lease: Some(lease) } => NET_EVERY.min(2 * lease.min(ttl / 3)),
            Expiry::PerHold { claim_lease: None } => (2 * ttl / 3).clamp(LOOK_EVERY, NET_EVERY),
            _ => NET_EVERY,
        }
    }

    pub(super) fn forget_claim(&self, claim: ClaimId) {
        if self.claims.known.load(Ordering::Acquire) == 0 {
            return;
        }
        self.claims.with(|maps| {
            maps.waiting.remove(&claim);
            maps.outages.forget(claim);
            maps.take_early(claim);
        });
    }

    /// Its place is being left: a silence about it goes on until the engine has answered that.
    pub(super) fn leave_claim(&self, claim: ClaimId) {
        if self.claims.known.load(Ordering::Acquire) == 0 {
            return;
        }
        self.claims.with(|maps| {
            maps.waiting.remove(&claim);
            maps.take_early(claim);
        });
    }

    /// The entry that waits for this claim; keeps the event for later when there is none.
    fn entry_of(self: &Arc<Self>, claim: ClaimId, event: &Event) -> Option<Arc<Entry>> {
        let now = self.clock.now();
        let (entry, first) = self.claims.with(|maps| match maps.waiting.get(&claim) {
            Some((entry, _)) => (entry.upgrade(), (false, None)),
            None => (None, maps.keep_early(now, claim, event.clone())),
        });
        let (first, gone) = first;
        if first {
            self.driver.arm(self, now.plus(EARLY_FOR), Due::Early);
        }
        self.give_back_early(gone);
        entry
    }

    /// Forgets events that came for claims which nobody registers any more.
    pub(super) fn forget_early(self: &Arc<Self>, now: Ticks) {
        let (gone, next) = self.claims.with(|maps| maps.forget_early(now));
        if let Some(next) = next {
            self.driver.arm(self, next, Due::Early);
        }
        self.give_back_early(gone);
    }

    /// A grant that nobody here asks for any more must not stay: its withdrawal may have come
    /// before it (R5).
    fn give_back_early(self: &Arc<Self>, gone: impl IntoIterator<Item = Event>) {
        for event in gone {
            let Event::Granted { claim, .. } = event else { continue };
            if self.all_entries().iter().any(|entry| entry.knows(claim)) {
                continue;
            }
            if let Answer::Later(answer) = self.engine.release(&[claim], None) {
                self.run(async move { drop(answer.await) });
            }
        }
    }

    fn note_woken(&self, entry: &Entry, by: &str) {
        tracing::debug!(engine = self.facts.engine, name = %entry.name, by, "woken");
    }

    /// Acts on one event, in the thread that brings it.
    pub(crate) fn event(self: &Arc<Self>, event: Event) {
        match &event {
            Event::Granted { claim, grant } => {
                let Some(entry) = self.entry_of(*claim, &event) else { return };
                self.note_woken(&entry, "a grant");
                match grant.lease {
                    // A push without a time is no grant before its renewal was answered (R1).
                    Some(lease) if lease.since.is_none() => {
                        self.confirm(entry, *claim, grant.clone(), lease)
                    }
                    // Read after a long pause: it may have passed on, so it is no grant (R1). Ask
                    // with the same claim.
                    Some(Lease { since: Some(since), .. })
                        if grant.lease.is_some_and(|l| self.is_over(*claim, &l, since))
                            && entry.is_in_line(*claim) =>
                    {
                        entry.wake(*claim)
                    }
                    _ => entry.answered(*claim, self.clock.now(), Attempt::Granted(grant.clone())),
                }
            }
            Event::Wake { claim } => {
                if let Some(entry) = self.entry_of(*claim, &event) {
                    self.note_woken(&entry, "a hint");
                    entry.wake(*claim);
                }
            }
            Event::AskAt { claim, at } => {
                if let Some(entry) = self.entry_of(*claim, &event) {
                    entry.ask_at(*claim, *at);
                }
            }
            Event::Failed { claim, error } => {
                if let Some(entry) = self.entry_of(*claim, &event) {
                    entry.answered(*claim, self.clock.now(), Attempt::Failed(error.clone()));
                }
            }
            Event::Ended { which, why } => match *which {
                Which::Hold(hold) => {
                    // Rare, so no map is kept for it on the way of every acquisition.
                    if let Some(entry) = self.all_entries().into_iter().find(|e| e.knows(hold)) {
                        entry.ended(hold, *why, false);
                    }
                }
                Which::Lease(lease) => self.lease_ended(lease, *why),
                Which::All => {
                    for entry in self.all_entries() {
                        for hold in entry.holds() {
                            entry.ended(hold, *why, false);
                        }
                    }
                }
            },
            Event::Link { up } => {
                tracing::info!(engine = self.facts.engine, up, "link");
                self.unregister_sockets();
                if !*up {
                    self.link_down();
                }
                if *up {
                    self.note_session();
                    self.renew_all();
                    self.recheck_all();
                }
            }
            Event::Trying { why } => self.observe_trying(why),
            Event::Hindered { kind, name, claim, since, why } => {
                if let Some(entry) = self.entry_if_known(*kind, name) {
                    entry.hindered(*claim, *since, why);
                }
            }
            Event::Doubtful { claims } => {
                tracing::debug!(engine = self.facts.engine, claims = claims.len(), "in doubt");
                self.renew_some(claims);
                let doubtful: HashSet<_> = claims.iter().copied().collect();
                self.recheck_places(|id| doubtful.contains(&id));
            }
            Event::Renewed { lease, ttl, since } => self.session_renewed(*lease, *ttl, *since),
            Event::Asked { hold } => {
                if let Some(entry) = self.all_entries().into_iter().find(|e| e.knows(*hold)) {
                    entry.asked(*hold);
                }
            }
            Event::Warned { kind, name, warning } => {
                let Warning { id, text } = warning;
                tracing::warn!(engine = self.facts.engine, %name, id, "{text}");
                self.observe_name(*kind, name, Seen::Warned { warning: warning.clone() });
            }
            Event::Changed { watch } => {
                let watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(notify) = watches.get(watch) {
                    notify.notify_one();
                }
            }
        }
    }

    /// One message for all places, every few seconds while there are any.
    pub(super) fn recheck_waiters(self: &Arc<Self>, now: Ticks) {
        let next = self.claims.with(|maps| {
            // A timer that another has overtaken must not make room for a third.
            if maps.net_at.is_none_or(|at| at > now) {
                return None;
            }
            maps.waiting.retain(|_, (entry, _)| entry.strong_count() > 0);
            maps.net_at = maps.waiting.values().map(|(_, every)| now.plus(*every)).min();
            maps.net_at
        });
        if let Some(next) = next {
            self.recheck_all();
            self.driver.arm(self, next, Due::Net);
        }
    }

    /// Asks about every place in one message.
    pub(super) fn recheck_all(self: &Arc<Self>) {
        self.recheck_places(|_| true);
    }

    /// Asks about the places that `which` picks, in one message for each part of the store.
    fn recheck_places(self: &Arc<Self>, which: impl Fn(ClaimId) -> bool) {
        let places: Vec<(ClaimId, Arc<Entry>)> = self.claims.with(|maps| {
            maps.waiting
                .iter()
                .filter(|(id, _)| which(**id))
                .filter_map(|(id, (entry, _))| Some((*id, entry.upgrade()?)))
                .collect()
        });
        let mut places: Vec<_> =
            places.into_iter().filter(|(id, entry)| entry.stands(*id)).collect();
        places.sort_unstable_by_key(|(id, _)| *id);
        places.sort_by_cached_key(|(id, _)| self.engine.part(*id));
        for part in places.chunk_by(|(a, _), (b, _)| self.engine.part(*a) == self.engine.part(*b)) {
            self.recheck_part(part.to_vec());
        }
    }

    fn recheck_part(self: &Arc<Self>, places: Vec<(ClaimId, Arc<Entry>)>) {
        let ids: Vec<ClaimId> = places.iter().map(|(id, _)| *id).collect();
        let sent = self.clock.now();
        let tell = move |answers: Vec<Standing>| {
            for ((id, entry), answer) in places.into_iter().zip(answers) {
                match answer {
                    // Unknown changes nothing for a place: the next net asks again.
                    Standing::Unknown(error) => entry.unanswered(id, sent, &error),
                    standing => entry.rechecked(id, sent, standing),
                }
            }
        };
        match self.engine.recheck(&ids) {
            Answer::Now(answers) => tell(answers),
            Answer::Later(answer) => self.run(async move { tell(answer.await) }),
        }
    }
}
