//! What runs while a shared layout is open: the connections, the claims, and who listens to what.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::claim::Mode;
use crate::clock::Ticks;
use crate::engine::redis::anchor::Anchor;
use crate::engine::redis::dialect::{Dialect, Terms};
use crate::engine::redis::errors;
use crate::engine::redis::native::client_name;
use crate::engine::redis::options::RedisOptions;
use crate::engine::redis::pipe::Broken;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::Call;
use crate::engine::redis::wire::{Answered, Link, Started, either};
use crate::engine::{Context, Event, Line, Query, WatchId};
use crate::error::{Error, Result};
use crate::id::ClaimId;

pub(super) struct Inner {
    pub(super) options: Arc<RedisOptions>,
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) context: Context,
    pub(super) main: Arc<Link>,
    pub(super) side: Arc<Link>,
    pub(super) state: Mutex<State>,
    pub(super) looks_changed: Notify,
    pub(super) closed: AtomicBool,
    /// How many withdrawals and releases are not answered.
    pub(super) parting: AtomicUsize,
    pub(super) watches: Mutex<BTreeMap<WatchId, Query>>,
    pub(super) watches_changed: Notify,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) anchor: Option<Anchor>,
    pub(super) claims: BTreeMap<ClaimId, Entry>,
    /// How many claims and watches listen to a channel.
    pub(super) channels: BTreeMap<String, usize>,
}

pub(super) struct Entry {
    pub(super) terms: Arc<Terms>,
    pub(super) mode: Mode,
    pub(super) ttl: Duration,
    pub(super) how: Line,
    pub(super) give_up: Option<Ticks>,
    pub(super) phase: Phase,
    /// A request went out whose outcome is not known.
    pub(super) doubtful: bool,
    /// It is being given back: nothing of it is asked again, or it would arrive behind its own release.
    pub(super) leaving: bool,
    /// It has been told to wait before.
    pub(super) waited: bool,
    pub(super) listening: bool,
    pub(super) look_at: Option<Ticks>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Asked,
    Waiting,
    Held,
}

impl Inner {
    pub(super) fn new(options: Arc<RedisOptions>, dialect: Arc<dyn Dialect>, context: Context) -> Arc<Self> {
        Arc::new_cyclic(|weak: &std::sync::Weak<Self>| {
            let label = client_name(&context.who.program, context.who.pid);
            let weak = weak.clone();
            let hear = Arc::new(move |_, items: Vec<Value>| {
                if let Some(inner) = weak.upgrade() {
                    inner.hear(&items);
                }
            });
            let main = Link::new(options.clone(), context.clock.clone(), label.clone(), hear);
            main.track();
            let side = Link::new(options.clone(), context.clock.clone(), format!("{label}:renewals"), Arc::new(|_, _| {}));
            Self {
                options,
                dialect,
                context,
                main,
                side,
                state: Mutex::default(),
                looks_changed: Notify::new(),
                closed: AtomicBool::new(false),
                parting: AtomicUsize::new(0),
                watches: Mutex::default(),
                watches_changed: Notify::new(),
            }
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A push: somebody let go, or a key that we looked at changed.
    fn hear(self: &Arc<Self>, items: &[Value]) {
        let word = items.first().and_then(Value::text).unwrap_or_default();
        let woken: Vec<ClaimId> = match (word, items.get(1)) {
            ("message", Some(channel)) => {
                let channel = channel.text().unwrap_or_default();
                self.changed(|kind, name| self.dialect.channel(kind, name).as_deref() == Some(channel));
                self.waiting(|terms| terms.channel.as_deref() == Some(channel))
            }
            ("invalidate", Some(Value::Array(keys))) => {
                let hit = |key: &str| keys.iter().any(|k| k.text() == Some(key));
                self.changed(|kind, name| self.dialect.watched_key(kind, name).is_some_and(|key| hit(&key)));
                self.waiting(|terms| hit(&terms.key))
            }
            // Everything was flushed.
            ("invalidate", _) => self.waiting(|_| true),
            _ => return,
        };
        for claim in woken {
            self.context.events.send(Event::Wake { claim });
        }
    }

    fn waiting(&self, about: impl Fn(&Terms) -> bool) -> Vec<ClaimId> {
        let mut state = self.state();
        let mut woken = Vec::new();
        for (id, entry) in &mut state.claims {
            if entry.phase != Phase::Held && about(&entry.terms) {
                // One whose answer is on its way looks again right after it.
                entry.look_at = Some(Ticks::default());
                if entry.phase == Phase::Waiting {
                    entry.look_at = None;
                    woken.push(*id);
                }
            }
        }
        woken
    }

    pub(super) async fn open(self: Arc<Self>) -> Result<()> {
        let driver = self.main.connect().await?;
        self.anchor();
        let inner = self.clone();
        let tell = move |up| {
            if up {
                inner.anchor();
            }
            inner.context.events.send(Event::Link { up });
        };
        self.context.spawner.spawn(self.main.clone().keep(Some(driver), tell));
        self.context.spawner.spawn(self.side.clone().keep_once_wanted());
        self.context.spawner.spawn(self.clone().look_in_time());
        Ok(())
    }

    fn anchor(&self) {
        if let Some((server_us, before)) = self.main.facts().and_then(|f| f.time) {
            self.state().anchor = Some(Anchor::new(server_us, before));
        }
    }

    /// Wakes whoever waits for a lease that ends about now: a channel says nothing then.
    async fn look_in_time(self: Arc<Self>) {
        while !self.closed.load(Ordering::Acquire) {
            let now = self.context.clock.now();
            let mut due = Vec::new();
            let mut next: Option<Ticks> = None;
            for (id, entry) in &mut self.state().claims {
                match entry.look_at {
                    Some(at) if entry.phase == Phase::Waiting && at <= now => {
                        entry.look_at = None;
                        due.push(*id);
                    }
                    Some(at) if entry.phase == Phase::Waiting => next = Some(next.map_or(at, |n| n.min(at))),
                    _ => {}
                }
            }
            for claim in due {
                self.context.events.send(Event::Wake { claim });
            }
            let changed = pin!(self.looks_changed.notified());
            match next {
                Some(at) => _ = either(sleep(at.since(self.context.clock.now())), changed).await,
                None => changed.await,
            }
        }
    }

    pub(super) fn broken(&self, link: &Link, broken: &Broken) -> Error {
        match (broken, link.why()) {
            (Broken::NotSent(_), Some(why)) => why,
            _ => errors::broken(&self.options, broken),
        }
    }

    /// Runs a script and gives its answer, or the error that it came to.
    pub(super) async fn run(&self, link: &Link, started: Started, call: &Call, patience: Duration) -> Result<Value> {
        match link.run(started, call, patience, || true).await {
            Ok(Answered { value: Value::Error(text), .. }) => Err(errors::server(&self.options, "EVALSHA", &text)),
            Ok(answered) => Ok(answered.value),
            Err(broken) => Err(self.broken(link, &broken)),
        }
    }

    pub(super) fn side(&self) -> &Arc<Link> {
        self.side.want();
        &self.side
    }
}
