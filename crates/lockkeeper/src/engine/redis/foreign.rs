//! An engine over a layout that belongs to other programs: asking, waiting for a wake-up, asking again.
//!
//! There is no line of ours on the server, so nobody is granted a lock unasked. A waiter is woken by the layout's channel or
//! by the invalidation of its key, and looks by itself when the holder's lease ends, not before 250 ms and not after 5 s.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::anchor::Anchor;
use super::dialect::{Dialect, Terms};
use super::errors;
use super::facts::Facts;
use super::options::RedisOptions;
use super::pipe::Broken;
use super::resp::Value;
use super::script::Call;
use super::wire::{Answered, Link, Parting, Started, either};
use crate::claim::{Claim, Holder, Mode};
use crate::clock::Ticks;
use crate::engine::{Answer, Attempt, Context, End, Engine, Event, Grant, Lease, Line, Place, Query, Released, Renewal, WatchId};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantee::{Class, Description};
use crate::id::{ClaimId, HoldId, LeaseId};
use crate::lost::Lost;

/// How soon and how late a waiter looks by itself (R10).
const LOOK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
const RENEWALS_PER_CALL: usize = 100;

/// The engine.
pub(super) struct Foreign {
    pub(super) options: Arc<RedisOptions>,
    dialect: Arc<dyn Dialect>,
    inner: OnceLock<Arc<Inner>>,
}

pub(super) struct Inner {
    pub(super) options: Arc<RedisOptions>,
    pub(super) dialect: Arc<dyn Dialect>,
    pub(super) context: Context,
    pub(super) main: Arc<Link>,
    side: Arc<Link>,
    state: Mutex<State>,
    looks_changed: Notify,
    pub(super) closed: AtomicBool,
    /// How many withdrawals and releases are not answered.
    parting: AtomicUsize,
    pub(super) watches: Mutex<BTreeMap<WatchId, Query>>,
    pub(super) watches_changed: Notify,
}

#[derive(Default)]
struct State {
    anchor: Option<Anchor>,
    claims: BTreeMap<ClaimId, Entry>,
    /// How many claims and watches listen to a channel.
    channels: BTreeMap<String, usize>,
}

struct Entry {
    terms: Arc<Terms>,
    mode: Mode,
    ttl: Duration,
    how: Line,
    give_up: Option<Ticks>,
    phase: Phase,
    /// A request went out whose outcome is not known.
    doubtful: bool,
    listening: bool,
    look_at: Option<Ticks>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Asked,
    Waiting,
    Held,
}

/// What an answer to a request comes to.
enum Said {
    Granted(Grant),
    Busy(Option<Duration>),
    Late,
    Refused(Error, bool),
}

impl Foreign {
    pub(super) fn new(options: RedisOptions, dialect: impl Dialect) -> Self {
        Self { options: Arc::new(options), dialect: Arc::new(dialect), inner: OnceLock::new() }
    }

    pub(super) fn inner(&self) -> Result<&Arc<Inner>> {
        self.inner.get().ok_or_else(|| Error::new(ErrorKind::Closed, "the engine is not open"))
    }
}

impl Inner {
    fn new(options: Arc<RedisOptions>, dialect: Arc<dyn Dialect>, context: Context) -> Arc<Self> {
        Arc::new_cyclic(|weak: &std::sync::Weak<Self>| {
            let label = super::native::client_name(&context.who.program, context.who.pid);
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

    fn state(&self) -> MutexGuard<'_, State> {
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

    async fn open(self: Arc<Self>) -> Result<()> {
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

    /// The request for a claim; `None` when it is not wanted any more.
    fn request(&self, id: ClaimId) -> Option<Call> {
        let now = self.context.clock.now();
        let until = now.plus(self.options.request_timeout);
        let mut state = self.state();
        let anchor = state.anchor;
        let entry = state.claims.get_mut(&id)?;
        let give_up = entry.give_up.map_or(until, |at| at.min(until));
        let not_after_us = anchor.map_or((1 << 53) - 1, |a| a.server_us_at(give_up));
        entry.phase = Phase::Asked;
        entry.look_at = None;
        Some(entry.terms.ask(not_after_us, if entry.how == Line::Try { "try" } else { "join" }))
    }

    /// Follows a request to its answer; one that has to listen first asks a second time.
    async fn asked(self: Arc<Self>, id: ClaimId, call: Call, started: Started, patience: Duration) -> Attempt {
        let (mut call, mut started) = (call, started);
        for _ in 0..4 {
            let wanted = || self.state().claims.contains_key(&id);
            let outcome = self.main.run(started, &call, patience, wanted).await;
            match self.said(id, outcome) {
                Said::Granted(grant) => {
                    self.hush(id);
                    return Attempt::Granted(grant);
                }
                Said::Busy(rest) => {
                    let (how, listens) = match self.state().claims.get(&id) {
                        Some(entry) => (entry.how, entry.listening || entry.terms.channel.is_none()),
                        None => return Attempt::Busy(None),
                    };
                    if how == Line::Try {
                        self.forget(id);
                        return Attempt::Busy(self.holder_of(id, rest));
                    }
                    if listens {
                        self.wait_for(id, rest);
                        return Attempt::InLine(Place { ahead: None, holder: self.holder_of(id, rest) });
                    }
                    // What is published before we listen is lost, so listening comes before the answer that counts.
                    if let Err(error) = self.listen(id).await {
                        self.forget(id);
                        return Attempt::Failed(error);
                    }
                }
                Said::Late => {
                    let now = self.context.clock.now();
                    if self.state().claims.get(&id).is_none_or(|e| e.give_up.is_some_and(|at| at <= now)) {
                        self.forget(id);
                        return Attempt::Failed(Error::new(ErrorKind::TimedOut, "the request arrived after its time was over"));
                    }
                }
                Said::Refused(error, certain) => {
                    let mut state = self.state();
                    let Some(entry) = state.claims.get_mut(&id) else { return Attempt::Failed(error) };
                    entry.doubtful |= !certain;
                    if entry.doubtful || entry.listening {
                        return Attempt::Unknown(error);
                    }
                    drop(state);
                    self.forget(id);
                    return Attempt::Failed(error);
                }
            }
            let Some(next) = self.request(id) else { return Attempt::Busy(None) };
            started = self.main.start(&[next.by_name()]);
            call = next;
        }
        Attempt::Unknown(Error::new(ErrorKind::Unknown, "the server's clock refuses the request as late, again and again"))
    }

    fn said(&self, id: ClaimId, outcome: std::result::Result<Answered, Broken>) -> Said {
        let answered = match outcome {
            Ok(answered) => answered,
            Err(broken) => return Said::Refused(self.broken(&self.main, &broken), matches!(broken, Broken::NotSent(_))),
        };
        if let Value::Error(text) = &answered.value {
            return Said::Refused(errors::server(&self.options, "EVALSHA", text), true);
        }
        let items = answered.value.items();
        let garbage = || Said::Refused(errors::garbage(&self.options), false);
        let (Some(word), Some(now_us)) = (items.first().and_then(Value::text), items.get(1).and_then(Value::unsigned)) else {
            return garbage();
        };
        let mut state = self.state();
        let anchor = Anchor::new(now_us, answered.before);
        state.anchor = Some(state.anchor.map_or(anchor, |old| old.newer(anchor)));
        match word {
            "G" => {
                let Some(entry) = state.claims.get_mut(&id) else { return Said::Busy(None) };
                entry.phase = Phase::Held;
                let number = entry.terms.number(items.get(2).and_then(Value::text));
                let lease = Lease { id: id.into(), ttl: entry.ttl, since: Some(answered.before), confirm: false };
                Said::Granted(Grant { number, lease: Some(lease) })
            }
            "B" => {
                // -1: no time to live, -2: gone just now.
                let rest = items.get(2).and_then(Value::integer);
                Said::Busy(rest.filter(|r| *r != -1).map(|r| Duration::from_millis(u64::try_from(r).unwrap_or(0))))
            }
            "T" => Said::Late,
            _ => garbage(),
        }
    }

    fn holder_of(&self, id: ClaimId, rest: Option<Duration>) -> Option<Box<Holder>> {
        let mode = self.state().claims.get(&id).map(|e| e.mode);
        let mode = mode.filter(|m| *m == Mode::Exclusive);
        Some(Box::new(Holder { mode, expires_in: rest, ..Holder::default() }))
    }

    fn wait_for(&self, id: ClaimId, rest: Option<Duration>) {
        let now = self.context.clock.now();
        if let Some(entry) = self.state().claims.get_mut(&id) {
            entry.phase = Phase::Waiting;
            let look = rest.map_or(LOOK.1, |r| (r + Duration::from_millis(1)).clamp(LOOK.0, LOOK.1));
            // Woken while the answer was on its way: look at once.
            entry.look_at = Some(entry.look_at.map_or(now.plus(look), |at| at.min(now.plus(look))));
        }
        self.looks_changed.notify_one();
    }

    async fn listen(&self, id: ClaimId) -> Result<()> {
        let subscribed = {
            let mut state = self.state();
            let Some(entry) = state.claims.get_mut(&id) else { return Ok(()) };
            entry.listening = true;
            let Some(channel) = entry.terms.channel.clone() else { return Ok(()) };
            *state.channels.entry(channel.clone()).or_default() += 1;
            drop(state);
            self.main.subscribe(&channel)
        };
        match subscribed {
            Some(answer) => match answer.await {
                Ok(Ok((_, Value::Error(text)))) => Err(errors::server(&self.options, "SUBSCRIBE", &text)),
                // A connection that broke subscribes again when it is back.
                _ => Ok(()),
            },
            None => Ok(()),
        }
    }

    /// Stops listening for a claim.
    fn hush(&self, id: ClaimId) {
        let channel = {
            let mut state = self.state();
            let Some(entry) = state.claims.get_mut(&id).filter(|e| e.listening) else { return };
            entry.listening = false;
            entry.terms.channel.clone()
        };
        if let Some(channel) = channel {
            self.hush_channel(&channel);
        }
    }

    pub(super) fn hush_channel(&self, channel: &str) {
        let mut state = self.state();
        let Some(count) = state.channels.get_mut(channel) else { return };
        *count -= 1;
        if *count == 0 {
            state.channels.remove(channel);
            drop(state);
            self.main.unsubscribe(channel);
        }
    }

    pub(super) fn hear_channel(&self, channel: &str) {
        *self.state().channels.entry(channel.to_owned()).or_default() += 1;
        drop(self.main.subscribe(channel));
    }

    fn forget(&self, id: ClaimId) {
        self.hush(id);
        self.state().claims.remove(&id);
    }

    fn broken(&self, link: &Link, broken: &Broken) -> Error {
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

    fn side(&self) -> &Arc<Link> {
        self.side.want();
        &self.side
    }

    async fn ended(&self, id: ClaimId, call: &Call, started: Started) -> End {
        let _parting = Parting::new(&self.parting);
        match self.run(&self.main, started, call, self.options.connect_timeout).await {
            Ok(value) => match value.items().first().and_then(Value::text) {
                Some(word) => {
                    self.forget(id);
                    if word == "D" { End::Freed } else { End::NotOurs }
                }
                None => End::Unknown(errors::garbage(&self.options)),
            },
            Err(error) => End::Unknown(error),
        }
    }

    /// Renews the holds of one call.
    async fn renewed(&self, leases: Vec<(LeaseId, Duration)>, call: Call, started: Started) -> Vec<Renewal> {
        let mut outcome = self.side.run(started, &call, self.options.request_timeout, || true).await;
        if matches!(outcome, Err(Broken::NotSent(_))) {
            outcome = self.main.run(self.main.start(&[call.by_name()]), &call, self.options.request_timeout, || true).await;
        }
        let (since, value) = match outcome {
            Ok(Answered { value: Value::Error(text), .. }) => {
                let error = errors::server(&self.options, "EVALSHA", &text);
                return leases.iter().map(|_| Renewal::Unknown(error.clone())).collect();
            }
            Ok(Answered { before, value, .. }) => (before, value),
            Err(broken) => {
                let error = self.broken(&self.side, &broken);
                return leases.iter().map(|_| Renewal::Unknown(error.clone())).collect();
            }
        };
        let mut words = value.items().iter().map(Value::text);
        let renewals = leases.iter().map(|(lease, ttl)| match words.next().flatten() {
            Some("D") => Renewal::Extended { ttl: *ttl, since: Some(since) },
            Some(_) => {
                self.forget(ClaimId(lease.0));
                Renewal::Gone(Lost::TakenAway)
            }
            None => Renewal::Unknown(errors::garbage(&self.options)),
        });
        renewals.collect()
    }

    fn ask(self: &Arc<Self>, claim: &Claim, how: Line) -> Answer<Attempt> {
        if !self.state().claims.contains_key(&claim.id) {
            let terms = match self.dialect.terms(claim) {
                Ok(terms) => Arc::new(terms),
                Err(error) => return Answer::Now(Attempt::Failed(error)),
            };
            let entry = Entry {
                terms,
                mode: claim.mode,
                ttl: claim.ttl,
                how,
                give_up: None,
                phase: Phase::Asked,
                doubtful: false,
                listening: false,
                look_at: None,
            };
            self.state().claims.insert(claim.id, entry);
        }
        if let Some(entry) = self.state().claims.get_mut(&claim.id) {
            entry.give_up = claim.give_up;
        }
        let Some(call) = self.request(claim.id) else { return Answer::Now(Attempt::Busy(None)) };
        let started = self.main.start(&[call.by_name()]);
        let now = self.context.clock.now();
        let patience = self.options.connect_timeout.min(claim.give_up.map_or(Duration::MAX, |at| at.since(now)));
        Answer::later(self.clone().asked(claim.id, call, started, patience))
    }

    /// The last message about a claim: what it was granted is given back, its place is left.
    fn leave(self: &Arc<Self>, id: ClaimId) -> Option<(Call, Started)> {
        let mut state = self.state();
        let entry = state.claims.get_mut(&id)?;
        let nothing_there = entry.phase == Phase::Waiting && !entry.doubtful && !entry.terms.has_line;
        let call = entry.terms.release.clone();
        entry.look_at = None;
        drop(state);
        if nothing_there {
            self.forget(id);
            return None;
        }
        let started = self.main.start(&[call.by_name()]);
        Some((call, started))
    }
}

impl Engine for Foreign {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let inner = Inner::new(self.options.clone(), self.dialect.clone(), context);
        if self.inner.set(inner.clone()).is_err() {
            return Answer::Now(Err(Error::new(ErrorKind::InvalidArgument, "the engine is open already")));
        }
        Answer::later(inner.open())
    }

    fn describe(&self) -> Description {
        let mut description = Description::new("redis", self.options.layout.as_str(), Class::Efficiency);
        description.hosts = true;
        description.leases = true;
        description.early = true;
        // A waiter looks when the lease ends, at the latest so much later.
        description.recovery = self.options.ttl + LOOK.0;
        description.recovery_stopped = Some(description.recovery);
        let facts = self.inner.get().and_then(|inner| inner.main.facts()).unwrap_or_default();
        facts.describe(&mut description, &self.options);
        self.dialect.describe(&mut description);
        if let Some((server_us, _)) = facts.time {
            Facts::clock_warning(&mut description, server_us, facts.read_at_us);
        }
        description
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        match self.inner() {
            Ok(inner) => inner.ask(claim, line),
            Err(error) => Answer::Now(Attempt::Failed(error)),
        }
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Attempt>> {
        let inner = match self.inner() {
            Ok(inner) => inner.clone(),
            Err(error) => return Answer::Now(claims.iter().map(|_| Attempt::Failed(error.clone())).collect()),
        };
        let calls: Vec<(ClaimId, Option<Call>)> = claims.iter().map(|id| (*id, inner.request(*id))).collect();
        let commands: Vec<_> = calls.iter().filter_map(|(_, call)| call.as_ref().map(Call::by_name)).collect();
        let mut answers = inner.main.start(&commands).each();
        Answer::later(async move {
            let mut attempts = Vec::with_capacity(calls.len());
            for (id, call) in calls {
                attempts.push(match call {
                    Some(call) => {
                        let one = answers.next().unwrap_or_else(Started::nothing);
                        inner.clone().asked(id, call, one, inner.options.request_timeout).await
                    }
                    None => Attempt::Unknown(Error::new(ErrorKind::Unknown, "this claim does not stand in line")),
                });
            }
            attempts
        })
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        let Ok(inner) = self.inner() else { return Answer::Now(End::NotOurs) };
        match inner.leave(claim) {
            None => Answer::Now(End::NotOurs),
            Some((call, started)) => {
                let inner = inner.clone();
                Answer::later(async move { inner.ended(claim, &call, started).await })
            }
        }
    }

    fn convert(&self, _hold: HoldId, _claim: &Claim) -> Answer<Attempt> {
        Answer::Now(Attempt::Failed(super::dialect::unsupported("this layout cannot convert a hold: use layout=native")))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let inner = match self.inner() {
            Ok(inner) => inner.clone(),
            Err(error) => return Answer::Now(leases.iter().map(|_| Renewal::Unknown(error.clone())).collect()),
        };
        let side = inner.side().clone();
        // Holds whose scripts are the same go together.
        let mut batches: Vec<(Vec<(LeaseId, Duration)>, Call)> = Vec::new();
        let mut order = Vec::with_capacity(leases.len());
        for lease in leases {
            let Some((terms, ttl)) = inner.state().claims.get(&ClaimId(lease.0)).map(|e| (e.terms.clone(), e.ttl)) else {
                order.push(None);
                continue;
            };
            let fits = |(some, call): &(Vec<_>, Call)| terms.batch && call.script == terms.renew.script && some.len() < RENEWALS_PER_CALL;
            let at = match batches.iter().position(fits) {
                Some(at) => at,
                None => {
                    batches.push((Vec::new(), Call { script: terms.renew.script, keys: Vec::new(), arguments: Vec::new() }));
                    batches.len() - 1
                }
            };
            if let Some((some, call)) = batches.get_mut(at) {
                order.push(Some((at, some.len())));
                some.push((*lease, ttl));
                call.keys.extend(terms.renew.keys.iter().cloned());
                call.arguments.extend(terms.renew.arguments.iter().cloned());
            }
        }
        let commands: Vec<_> = batches.iter().map(|(_, call)| call.by_name()).collect();
        let mut answers = side.start(&commands).each();
        Answer::later(async move {
            let mut renewals = Vec::with_capacity(batches.len());
            for (some, call) in batches {
                let one = answers.next().unwrap_or_else(Started::nothing);
                renewals.push(inner.renewed(some, call, one).await);
            }
            let pick = |at: Option<(usize, usize)>| at.and_then(|(batch, n)| renewals.get(batch)?.get(n).cloned());
            order.into_iter().map(|at| pick(at).unwrap_or(Renewal::Gone(Lost::TakenAway))).collect()
        })
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let Ok(inner) = self.inner() else {
            return Answer::Now(Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None });
        };
        let calls: Vec<(HoldId, Option<(Call, Started)>)> = holds.iter().map(|hold| (*hold, inner.leave(*hold))).collect();
        // Behind the release on the same connection, so after it on the server.
        let again = again.map(|claim| inner.ask(claim, Line::Join));
        let inner = inner.clone();
        Answer::later(async move {
            let mut ends = Vec::with_capacity(calls.len());
            for (hold, call) in calls {
                ends.push(match call {
                    Some((call, started)) => inner.ended(hold, &call, started).await,
                    None => End::NotOurs,
                });
            }
            let again = match again {
                Some(Answer::Later(answer)) => Some(answer.await),
                Some(Answer::Now(attempt)) => Some(attempt),
                None => None,
            };
            Released { ends, again }
        })
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<crate::claim::Entry>>> {
        match self.inner() {
            Ok(inner) => Answer::later(inner.clone().look(query.clone())),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn write(&self, change: &crate::engine::Change) -> Answer<Result<bool>> {
        match self.inner() {
            Ok(inner) => Answer::later(inner.clone().change(change.clone())),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        match self.inner() {
            Ok(inner) => Answer::later(inner.clone().watch(watch, query.clone())),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn unwatch(&self, watch: WatchId) {
        if let Ok(inner) = self.inner() {
            inner.unwatch(watch);
        }
    }

    fn close(&self) -> Answer<()> {
        let Ok(inner) = self.inner() else { return Answer::Now(()) };
        inner.closed.store(true, Ordering::Release);
        inner.looks_changed.notify_one();
        inner.watches_changed.notify_one();
        let inner = inner.clone();
        Answer::later(async move {
            // Places and holds that are being left: a server that does not know the script yet needs a second message.
            inner.main.settled(&inner.parting, inner.options.request_timeout).await;
            inner.main.close();
            inner.side.close();
        })
    }
}
