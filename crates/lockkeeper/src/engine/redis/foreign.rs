//! A layout that belongs to other programs, while it is open: asking, waiting for a wake-up, asking
//! again.
//!
//! There is no line of ours on the server, so nobody is granted a lock unasked. A waiter is woken
//! by the layout's channel or by the invalidation of its key, and asks again when the holder's
//! lease ends, not before 250 ms and not after 5 s.

mod acquire;
mod inspect;
mod pausing;
mod release;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::anchors::Anchors;
use super::client::node::Node;
use super::dialect::{Dialect, Terms};
use super::links::{Leaving, Links};
use super::numbers::Numbers;
use super::opened::{Heard, Opened};
use super::options::RedisOptions;
use super::resp::Value;
use super::script::Call;
use super::watches::Watches;
use super::wire::Tracking;
use crate::engine::{Context, Event, Line, Number};
use crate::words::claim::Mode;
use crate::words::clock::Ticks;
use crate::words::guarantee::Description;
use crate::words::id::ClaimId;

/// How soon and how late a waiter looks by itself (R10).
const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// What runs once it is open.
pub(super) struct Foreign {
    links: Links,
    dialect: Arc<dyn Dialect>,
    state: Mutex<State>,
    watches: Watches,
}

#[derive(Default)]
struct State {
    anchors: Anchors,
    /// Of layouts that count.
    numbers: Numbers,
    claims: BTreeMap<ClaimId, Entry>,
    /// How many claims and watches listen to a channel.
    channels: BTreeMap<String, usize>,
    /// Keys that nobody else asks for, as far as was seen, and until when that counts.
    alone: BTreeMap<String, Ticks>,
    /// What this process gave back last.
    left: VecDeque<pausing::Left>,
}

struct Entry {
    terms: Arc<Terms>,
    mode: Mode,
    ttl: Duration,
    /// What it was granted with, once it holds.
    number: Number,
    how: Line,
    give_up: Option<Ticks>,
    phase: Phase,
    /// A request went out whose outcome is not known.
    doubtful: bool,
    /// How many requests are not answered.
    in_flight: u32,
    /// Until when the server takes a request of its that is still on its way.
    in_time_until: Ticks,
    /// It is being given back: nothing of it is asked again, or it would arrive behind its own
    /// release.
    leaving: bool,
    /// It has been told to wait before.
    waited: bool,
    listening: bool,
    /// It was woken while an answer was on its way: it asks again right after it.
    woken: bool,
    /// Until when the process has the lock, hold upon hold, before it lets others pass.
    run_until: Option<Ticks>,
    /// It lets others pass.
    pause: Option<pausing::Pause>,
}

/// A request on its way. Its claim may be left and forgotten before it is answered, or even before
/// it is sent, so it carries along what gives back whatever it takes for nobody.
pub(super) struct Request {
    call: Call,
    terms: Arc<Terms>,
    ttl: Duration,
    /// Until when the server takes it.
    in_time_until: Ticks,
    /// Where replicas are waited for, what gives it back may be answered before it is sent: whoever
    /// closes waits for this one, too.
    _leaving: Option<Leaving>,
}

impl AsRef<Call> for Request {
    fn as_ref(&self) -> &Call {
        &self.call
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asked,
    Waiting,
    Held,
}

impl Foreign {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A push: somebody let go, or a key that we looked at changed.
    fn hear(self: &Arc<Self>, items: &[Value]) {
        let word = items.first().and_then(Value::text).unwrap_or_default();
        let woken: Vec<ClaimId> = match (word, items.get(1)) {
            ("message", Some(channel)) => {
                let channel = channel.text().unwrap_or_default();
                self.changed(|kind, name| {
                    self.dialect.channel(kind, name).as_deref() == Some(channel)
                });
                // Our own releases are published, too.
                self.waiting(false, |terms| terms.channel.as_deref() == Some(channel))
            }
            ("invalidate", Some(Value::Array(keys))) => {
                let hit = |key: &str| keys.iter().any(|k| k.text() == Some(key));
                self.changed(|kind, name| {
                    self.dialect.watched_key(kind, name).is_some_and(|key| hit(&key))
                });
                self.waiting(true, |terms| hit(&terms.key))
            }
            // Everything was flushed.
            ("invalidate", _) => self.waiting(true, |_| true),
            _ => return,
        };
        for claim in woken {
            self.links.context.events.send(Event::Wake { claim });
        }
    }

    /// Wakes a claim from inside the answer to a request. The keeper may be at its first look at
    /// that answer, with the name locked, and no event is sent then.
    fn wake(&self, claim: ClaimId) {
        let events = self.links.context.events.clone();
        self.links.context.spawner.spawn(async move { events.send(Event::Wake { claim }) });
    }

    /// Who is to ask again; one that stands back only where somebody `else_had` the lock.
    fn waiting(&self, else_had: bool, about: impl Fn(&Terms) -> bool) -> Vec<ClaimId> {
        let mut state = self.state();
        let mut woken = Vec::new();
        for (id, entry) in &mut state.claims {
            if entry.phase != Phase::Held
                && about(&entry.terms)
                && (else_had || entry.pause.is_none())
            {
                entry.pause = None;
                entry.woken = entry.phase == Phase::Asked;
                if !entry.woken {
                    woken.push(*id);
                }
            }
        }
        woken
    }
}

impl Opened for Foreign {
    type Setting = Arc<dyn Dialect>;

    fn new(options: Arc<RedisOptions>, dialect: &Arc<dyn Dialect>, context: Context) -> Arc<Self> {
        Arc::new_cyclic(|weak: &Weak<Self>| {
            let links = Links::new(options, context, Arc::new(Heard(weak.clone())));
            links.main.track(Tracking::Read);
            let (state, watches) = (Mutex::default(), Watches::default());
            Self { links, dialect: dialect.clone(), state, watches }
        })
    }

    fn links(&self) -> &Links {
        &self.links
    }

    fn pushed(self: &Arc<Self>, _: Node, _: u64, items: &[Value]) {
        self.hear(items);
    }

    #[cfg(feature = "cluster")]
    fn part(&self, claim: ClaimId) -> u32 {
        let terms = self.state().claims.get(&claim).map(|entry| entry.terms.clone());
        terms.map_or(0, |terms| self.links.main.home(&terms.key).0.into())
    }

    #[cfg(feature = "cluster")]
    fn moved(&self, keys: &dyn Fn(&str) -> bool) {
        let key =
            |(kind, name)| self.dialect.inspect(kind, &name).ok()?.keys.first().map(str::to_owned);
        if self.watches.names().into_iter().filter_map(key).any(|key| keys(&key)) {
            self.watches.missed();
        }
    }

    #[cfg(feature = "cluster")]
    fn claims_of(&self, keys: &dyn Fn(&str) -> bool) -> Vec<ClaimId> {
        let state = self.state();
        let claims = state.claims.iter().filter(|(_, entry)| keys(&entry.terms.key));
        claims.map(|(id, _)| *id).collect()
    }

    fn describe(dialect: &Arc<dyn Dialect>, description: &mut Description) {
        // A waiter looks when the lease ends, at the latest so much later.
        description.recovery += LOOK.0;
        description.recovery_stopped = Some(description.recovery);
        dialect.describe(description);
    }

    /// The server tells us of no change that is our own.
    fn overtaken(&self, hold: ClaimId) {
        let Some(terms) = self.state().claims.get(&hold).map(|entry| entry.terms.clone()) else {
            return;
        };
        for claim in self.waiting(false, |other| other.key == terms.key) {
            self.wake(claim);
        }
    }

    fn closing(&self) {
        self.watches.close();
    }
}
