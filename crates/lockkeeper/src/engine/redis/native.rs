//! The native layout as an engine: the recipe says what to send, the wire sends it, the keeper is told.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::sleep;

use super::errors;
use super::facts::Facts;
use super::held::still_there;
use super::keys::Keys;
use super::look::Watches;
use super::options::{Layout, RedisOptions};
use super::pipe::Broken;
use super::recipe::{Recipe, Rules, Verdict};
use super::reply::{Push, Reply};
use super::resp::Value;
use super::script::{Call, Which as Script};
use super::wire::{Answered, Link, Parting, Started, either};
use crate::claim::{Claim, Entry};
use crate::engine::{Answer, Attempt, Change, Context, End, Engine, Event, Line, Query, Released, Renewal, WatchId};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantee::{Class, Description};
use crate::id::{ClaimId, HoldId, LeaseId};
use crate::lost::Lost;
use crate::name::Kind;

/// How many leases one script call renews: a longer call would make the others wait.
const RENEWALS_PER_CALL: usize = 100;
/// How often a request is sent again because it came late by the server's clock.
const LATE_TRIES: usize = 3;
/// When a timer's question stays unanswered, it is asked again after this.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The engine.
pub(super) struct Native {
    options: Arc<RedisOptions>,
    inner: OnceLock<Arc<Inner>>,
}

/// What runs once it is open.
pub(super) struct Inner {
    pub(super) options: Arc<RedisOptions>,
    pub(super) context: Context,
    pub(super) keys: Keys,
    channel: String,
    /// Commands and pushes, in one order.
    pub(super) main: Arc<Link>,
    /// Renewals, which nothing may delay, and long readings.
    pub(super) side: Arc<Link>,
    recipe: Mutex<Recipe>,
    /// The earliest question of the timer may have changed.
    asks_changed: Notify,
    pub(super) watches: Watches,
    closed: AtomicBool,
    /// How many withdrawals and releases are not answered.
    parting: AtomicUsize,
}

impl Native {
    pub(super) fn new(options: RedisOptions) -> Self {
        Self { options: Arc::new(options), inner: OnceLock::new() }
    }

    fn inner(&self) -> Result<&Arc<Inner>> {
        self.inner.get().ok_or_else(|| Error::new(ErrorKind::Closed, "the engine is not open"))
    }
}

impl Inner {
    fn new(options: Arc<RedisOptions>, context: Context) -> Arc<Self> {
        Arc::new_cyclic(|weak: &std::sync::Weak<Self>| {
            let keys = Keys::new(&options.namespace, options.db);
            let channel = keys.channel(ClaimId::fresh().0);
            let rules = Rules {
                keys: keys.clone(),
                channel: channel.clone(),
                drift_permille: options.drift_permille,
                request_timeout: options.request_timeout,
            };
            let label = client_name(&context.who.program, context.who.pid);
            let weak = weak.clone();
            let hear = Arc::new(move |order, items: Vec<Value>| {
                if let Some(inner) = weak.upgrade() {
                    inner.hear(order, &items);
                }
            });
            let main = Link::new(options.clone(), context.clock.clone(), label.clone(), hear);
            _ = main.subscribe(&channel);
            let side = Link::new(options.clone(), context.clock.clone(), format!("{label}:renewals"), Arc::new(|_, _| {}));
            Self {
                options,
                context,
                keys,
                channel,
                main,
                side,
                recipe: Mutex::new(Recipe::new(rules)),
                asks_changed: Notify::new(),
                watches: Watches::default(),
                closed: AtomicBool::new(false),
                parting: AtomicUsize::new(0),
            }
        })
    }

    pub(super) fn recipe(&self) -> MutexGuard<'_, Recipe> {
        self.recipe.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// A push, in the order in which it was read.
    fn hear(self: &Arc<Self>, order: u64, items: &[Value]) {
        let [kind, channel, payload] = items else { return };
        if kind.text() != Some("message") {
            return;
        }
        let payload = payload.text().unwrap_or_default();
        if channel.text() != Some(&self.channel) {
            return self.changed(payload);
        }
        let now = self.context.clock.now();
        let push = Push::parse(payload);
        let event = push.as_ref().and_then(|push| self.recipe().pushed(now, order, push));
        if matches!(push, Some(Push::First { .. })) {
            self.asks_changed.notify_one();
        }
        if let Some(event) = event {
            self.context.events.send(event);
        }
    }

    /// The first connection, and the tasks that keep everything going.
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
        self.context.spawner.spawn(self.clone().ask_in_time());
        Ok(())
    }

    /// The server's clock, as the handshake told it.
    fn anchor(&self) {
        if let Some((server_us, before)) = self.main.facts().and_then(|f| f.time) {
            self.recipe().heard(server_us, before);
        }
    }

    /// Asks for whoever is first in line when the lease before it ends: the server does nothing by itself then (R10).
    async fn ask_in_time(self: Arc<Self>) {
        while !self.is_closed() {
            let now = self.context.clock.now();
            let (due, next) = {
                let mut recipe = self.recipe();
                (recipe.due(now), recipe.next_ask())
            };
            for id in due {
                let inner = self.clone();
                self.context.spawner.spawn(async move { inner.ask_for(id).await });
            }
            let changed = pin!(self.asks_changed.notified());
            match next {
                Some(at) => _ = either(pin!(sleep(at.since(self.context.clock.now()))), changed).await,
                None => changed.await,
            }
        }
    }

    async fn ask_for(self: Arc<Self>, id: ClaimId) {
        let now = self.context.clock.now();
        let Some(call) = self.recipe().again(now, id) else { return };
        let started = self.main.start(&[call.by_name()]);
        match self.clone().asked(id, call, started, self.options.request_timeout).await {
            Attempt::Granted(grant) => self.context.events.send(Event::Granted { claim: id, grant }),
            Attempt::InLine(_) => {}
            Attempt::Unknown(_) => {
                let now = self.context.clock.now();
                self.recipe().ask_later(now, id, ASK_AGAIN);
                self.asks_changed.notify_one();
            }
            Attempt::Failed(error) => self.context.events.send(Event::Failed { claim: id, error }),
            Attempt::Busy(_) => {}
        }
    }

    /// Follows a request for a claim to its answer.
    async fn asked(self: Arc<Self>, id: ClaimId, mut call: Call, mut started: Started, patience: Duration) -> Attempt {
        for _ in 0..LATE_TRIES {
            let outcome = self.main.run(started, &call, patience, || self.recipe().wants(id)).await;
            match self.understand(id, outcome) {
                Verdict::Tell(attempt) => return attempt,
                Verdict::Again => {
                    let now = self.context.clock.now();
                    let Some(next) = self.recipe().again(now, id) else { break };
                    started = self.main.start(&[next.by_name()]);
                    call = next;
                }
            }
        }
        let error = Error::new(ErrorKind::Unknown, "the server's clock refuses the request as late, again and again");
        self.recipe().unanswered(id, false, error)
    }

    /// What an outcome means for a claim.
    fn understand(&self, id: ClaimId, outcome: std::result::Result<Answered, Broken>) -> Verdict {
        let now = self.context.clock.now();
        let verdict = match outcome {
            Ok(answered) => self.understand_value(now, id, &answered, &answered.value),
            Err(broken) => {
                let error = self.broken(&self.main, &broken);
                Verdict::Tell(self.recipe().unanswered(id, matches!(broken, Broken::NotSent(_)), error))
            }
        };
        if matches!(verdict, Verdict::Tell(Attempt::InLine(_))) {
            self.asks_changed.notify_one();
        }
        verdict
    }

    fn understand_value(&self, now: crate::clock::Ticks, id: ClaimId, answered: &Answered, value: &Value) -> Verdict {
        if let Value::Error(text) = value {
            let error = errors::server(&self.options, "EVALSHA", text);
            return Verdict::Tell(self.recipe().unanswered(id, true, error));
        }
        match Reply::parse(value) {
            Some(reply) => self.recipe().answered(now, answered.before, id, answered.order, reply),
            None => Verdict::Tell(self.recipe().unanswered(id, false, errors::garbage(&self.options))),
        }
    }

    /// Why a link did not carry a request.
    pub(super) fn broken(&self, link: &Link, broken: &Broken) -> Error {
        match (broken, link.why()) {
            (Broken::NotSent(_), Some(why)) => why,
            _ => errors::broken(&self.options, broken),
        }
    }

    /// Runs a script and gives its answer, or the error that it came to.
    pub(super) async fn run(&self, link: &Link, started: Started, call: &Call, patience: Duration) -> Result<Answered> {
        match link.run(started, call, patience, || true).await {
            Ok(Answered { value: Value::Error(text), .. }) => Err(errors::server(&self.options, "EVALSHA", &text)),
            Ok(answered) => Ok(answered),
            Err(broken) => Err(self.broken(link, &broken)),
        }
    }

    /// The second connection, from the first time that it is needed.
    pub(super) fn side(&self) -> &Arc<Link> {
        self.side.want();
        &self.side
    }

    /// Follows a withdrawal or a release to its end.
    async fn ended(&self, id: ClaimId, started: Started, call: &Call) -> (End, Option<Answered>) {
        let _parting = Parting::new(&self.parting);
        match self.run(&self.main, started, call, self.options.connect_timeout).await {
            Ok(answered) => {
                let end = match answered.value.items().first().and_then(Value::text) {
                    Some("D") => End::Freed,
                    Some("X") => End::NotOurs,
                    _ => return (End::Unknown(errors::garbage(&self.options)), Some(answered)),
                };
                self.recipe().forget(id);
                (end, Some(answered))
            }
            Err(error) => (End::Unknown(error), None),
        }
    }

    async fn released(self: Arc<Self>, calls: Vec<Option<(HoldId, Call)>>, started: Started, again: Option<Claim>) -> Released {
        let mut ends = Vec::with_capacity(calls.len());
        let mut stands = None;
        let mut answers = started.each();
        for call in calls {
            let Some((id, call)) = call else {
                ends.push(End::NotOurs);
                continue;
            };
            let one = answers.next().unwrap_or_else(Started::nothing);
            let (end, answered) = self.ended(id, one, &call).await;
            ends.push(end);
            if let Some(answered) = answered
                && let Some(reply) = answered.value.items().get(2).filter(|v| !v.items().is_empty())
            {
                stands = Some((answered.before, answered.order, reply.clone()));
            }
        }
        let again = again.map(|claim| {
            let now = self.context.clock.now();
            let verdict = stands.and_then(|(before, order, reply)| {
                Reply::parse(&reply).map(|reply| self.recipe().answered(now, before, claim.id, order, reply))
            });
            match verdict {
                Some(Verdict::Tell(attempt)) => attempt,
                _ => {
                    let error = Error::new(ErrorKind::Unknown, "it is not known whether the next claim stands in line").name(&claim.name);
                    self.recipe().unanswered(claim.id, false, error)
                }
            }
        });
        self.asks_changed.notify_one();
        Released { ends, again }
    }

    /// Renews what one message can carry.
    async fn renewed(self: Arc<Self>, batch: Renewing) -> Vec<Renewal> {
        let Renewing { leases, sent, call, started } = batch;
        let Some(call) = call else { return leases.iter().map(|_| Renewal::Gone(Lost::TakenAway)).collect() };
        let mut outcome = self.run(&self.side, started, &call, self.options.request_timeout).await;
        if matches!(&outcome, Err(error) if error.kind() != ErrorKind::Unknown) {
            // No second connection to be had: the first one carries it.
            outcome = self.run(&self.main, self.main.start(&[call.by_name()]), &call, self.options.request_timeout).await;
        }
        let answered = match outcome {
            Ok(answered) => answered,
            Err(error) => return leases.iter().map(|_| Renewal::Unknown(error.clone())).collect(),
        };
        let items = answered.value.items();
        if let Some(server_us) = items.first().and_then(Value::unsigned) {
            self.recipe().heard(server_us, answered.before);
        }
        let mut ends = items.get(1).map(Value::items).unwrap_or_default().iter();
        let mut sent = sent.into_iter().peekable();
        let renewal = |lease: LeaseId| {
            // An answer belongs to the lease that was sent, also when that was given back meanwhile.
            let end = sent.next_if_eq(&lease).and_then(|_| ends.next());
            let mut recipe = self.recipe();
            let Some(ttl) = recipe.ttl(lease) else { return Renewal::Gone(Lost::TakenAway) };
            match end.and_then(Value::text) {
                Some("D") => Renewal::Extended { ttl, since: Some(answered.before) },
                Some(text) if text == "X" || text.starts_with("WRONGTYPE") => {
                    recipe.forget(ClaimId(lease.0));
                    Renewal::Gone(Lost::TakenAway)
                }
                Some(text) => Renewal::Unknown(errors::server(&self.options, "EVALSHA", text)),
                None => Renewal::Unknown(errors::garbage(&self.options)),
            }
        };
        leases.into_iter().map(renewal).collect()
    }
}

/// Renewals on their way in one message.
struct Renewing {
    /// Whose renewal was asked for.
    leases: Vec<LeaseId>,
    /// Those of them that the message carries, in its order; the others were over before.
    sent: Vec<LeaseId>,
    call: Option<Call>,
    started: Started,
}

/// CLIENT SETNAME takes no spaces.
pub(super) fn client_name(program: &str, pid: u32) -> String {
    let program = program.rsplit('/').next().unwrap_or(program);
    let program: String = program.chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect();
    format!("lockkeeper:{program}:{pid}")
}

impl Engine for Native {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        let inner = Inner::new(self.options.clone(), context);
        if self.inner.set(inner.clone()).is_err() {
            return Answer::Now(Err(Error::new(ErrorKind::InvalidArgument, "the engine is open already")));
        }
        Answer::later(inner.open())
    }

    fn describe(&self) -> Description {
        let mut description = Description::new("redis", Layout::Native.as_str(), Class::Efficiency);
        description.hosts = true;
        description.leases = true;
        description.early = true;
        description.recovery = self.options.ttl;
        description.recovery_stopped = Some(self.options.ttl);
        let facts = self.inner.get().and_then(|inner| inner.main.facts()).unwrap_or_default();
        facts.describe(&mut description, &self.options);
        description.breaks.push("tokens: data loss together with a server's clock that was set back".into());
        if let Some((server_us, _)) = facts.time {
            Facts::clock_warning(&mut description, server_us, facts.read_at_us);
        }
        description
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        self.ask(claim, line, None)
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Attempt>> {
        let inner = match self.inner() {
            Ok(inner) => inner.clone(),
            Err(error) => return Answer::Now(claims.iter().map(|_| Attempt::Failed(error.clone())).collect()),
        };
        let now = inner.context.clock.now();
        let calls: Vec<(ClaimId, Option<Call>)> = claims.iter().map(|id| (*id, inner.recipe().again(now, *id))).collect();
        let commands: Vec<_> = calls.iter().filter_map(|(_, call)| call.as_ref().map(Call::by_name)).collect();
        let started = inner.main.start(&commands);
        // A hold is asked about by renewing it.
        let held: Vec<LeaseId> = calls.iter().filter(|(_, call)| call.is_none()).map(|(id, _)| (*id).into()).collect();
        let renewals = if held.is_empty() { Answer::Now(Vec::new()) } else { self.renew(&held) };
        Answer::later(async move {
            let mut renewals = renewals.get().await.into_iter();
            let mut answers = started.each();
            let mut attempts = Vec::with_capacity(calls.len());
            for (id, call) in calls {
                attempts.push(match call {
                    Some(call) => {
                        let one = answers.next().unwrap_or_else(Started::nothing);
                        inner.clone().asked(id, call, one, inner.options.request_timeout).await
                    }
                    None => still_there(id, renewals.next()),
                });
            }
            attempts
        })
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        let Ok(inner) = self.inner() else { return Answer::Now(End::NotOurs) };
        let Some(call) = inner.recipe().withdraw(claim) else { return Answer::Now(End::NotOurs) };
        let started = inner.main.start(&[call.by_name()]);
        let inner = inner.clone();
        Answer::later(async move { inner.ended(claim, started, &call).await.0 })
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        self.ask(claim, Line::Join, Some(hold))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let inner = match self.inner() {
            Ok(inner) => inner.clone(),
            Err(error) => return Answer::Now(leases.iter().map(|_| Renewal::Unknown(error.clone())).collect()),
        };
        let side = inner.side().clone();
        let mut batches = Vec::new();
        for batch in leases.chunks(RENEWALS_PER_CALL) {
            let mut call = Call { script: Script::Renew, keys: Vec::new(), arguments: Vec::new() };
            let mut sent = Vec::with_capacity(batch.len());
            for lease in batch {
                let Some((keys, arguments)) = inner.recipe().renewal(*lease) else { continue };
                call.keys.extend(keys);
                call.arguments.extend(arguments);
                sent.push(*lease);
            }
            let call = (!sent.is_empty()).then_some(call);
            let commands: Vec<_> = call.iter().map(Call::by_name).collect();
            batches.push(Renewing { leases: batch.to_vec(), sent, call, started: side.start(&commands) });
        }
        Answer::later(async move {
            let mut renewals = Vec::new();
            for batch in batches {
                renewals.extend(inner.clone().renewed(batch).await);
            }
            renewals
        })
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        let Ok(inner) = self.inner() else {
            return Answer::Now(Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None });
        };
        let now = inner.context.clock.now();
        let mut rest = again;
        let mut calls = Vec::with_capacity(holds.len());
        for hold in holds {
            let call = inner.recipe().release(now, *hold, rest);
            if call.is_some() {
                rest = None;
            }
            calls.push(call.map(|call| (*hold, call)));
        }
        let commands: Vec<_> = calls.iter().flatten().map(|(_, call)| call.by_name()).collect();
        let started = inner.main.start(&commands);
        if commands.is_empty() && again.is_none() {
            return Answer::Now(Released { ends: holds.iter().map(|_| End::NotOurs).collect(), again: None });
        }
        Answer::later(inner.clone().released(calls, started, again.cloned()))
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        match self.inner() {
            Ok(inner) => Answer::later(inner.clone().look(query.clone())),
            Err(error) => Answer::Now(Err(error)),
        }
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
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

    fn attempt_all(&self, claims: &[Claim]) -> Option<Answer<Vec<Attempt>>> {
        let inner = self.inner().ok()?.clone();
        if claims.is_empty() {
            return Some(Answer::Now(Vec::new()));
        }
        let now = inner.context.clock.now();
        let mut call = Call { script: Script::Together, keys: Vec::new(), arguments: Vec::new() };
        for claim in claims {
            let one = inner.recipe().ask(now, claim, Line::Try, None);
            call.keys.extend(one.keys.into_iter().take(3));
            call.arguments.extend(one.arguments);
        }
        call.keys.push(inner.keys.watch());
        let started = inner.main.start(&[call.by_name()]);
        let claims = claims.to_vec();
        Some(Answer::later(inner.asked_all(claims, call, started)))
    }

    fn close(&self) -> Answer<()> {
        let Ok(inner) = self.inner() else { return Answer::Now(()) };
        inner.closed.store(true, Ordering::Release);
        inner.asks_changed.notify_one();
        inner.watches.close();
        let inner = inner.clone();
        Answer::later(async move {
            // Places and holds that are being left: a server that does not know the script yet needs a second message.
            inner.main.settled(&inner.parting, inner.options.request_timeout).await;
            inner.main.close();
            inner.side.close();
        })
    }
}

impl Native {
    fn ask(&self, claim: &Claim, line: Line, hold: Option<HoldId>) -> Answer<Attempt> {
        let inner = match self.inner() {
            Ok(inner) => inner,
            Err(error) => return Answer::Now(Attempt::Failed(error)),
        };
        if claim.kind == Kind::Latch {
            return Answer::Now(Attempt::Failed(Error::new(ErrorKind::Unsupported, "a latch is not held")));
        }
        let now = inner.context.clock.now();
        let call = inner.recipe().ask(now, claim, line, hold);
        let started = inner.main.start(&[call.by_name()]);
        let patience = self.options.connect_timeout.min(claim.give_up.map_or(Duration::MAX, |at| at.since(now)));
        Answer::later(inner.clone().asked(claim.id, call, started, patience))
    }
}

impl Inner {
    /// Follows a request for all of several locks to its answers: all granted or none.
    async fn asked_all(self: Arc<Self>, claims: Vec<Claim>, call: Call, started: Started) -> Vec<Attempt> {
        let outcome = self.run(&self.main, started, &call, self.options.connect_timeout).await;
        let now = self.context.clock.now();
        let mut recipe = self.recipe();
        let answered = match outcome {
            Ok(answered) => answered,
            Err(error) => {
                let certain = error.kind() != ErrorKind::Unknown;
                return claims.iter().map(|claim| recipe.unanswered(claim.id, certain, error.clone())).collect();
            }
        };
        let items = answered.value.items();
        let word = items.first().and_then(Value::text).unwrap_or_default();
        let server_us = items.get(1).and_then(Value::unsigned).unwrap_or_default();
        recipe.heard(server_us, answered.before);
        let each = items.get(2).map(Value::items).unwrap_or_default();
        let which = items.get(if word == "M" { 3 } else { 2 }).and_then(Value::unsigned).and_then(|n| usize::try_from(n).ok());
        let mut attempts = Vec::with_capacity(claims.len());
        for (at, claim) in claims.iter().enumerate() {
            let reply = match word {
                "G" => each.get(at).and_then(Reply::parse),
                "B" if which == Some(at + 1) => Some(Reply::Busy {
                    now_us: server_us,
                    rest: Duration::from_millis(items.get(3).and_then(Value::unsigned).unwrap_or(0)),
                    holder: items.get(4).and_then(Value::text).unwrap_or_default().to_owned(),
                }),
                "M" if which == Some(at + 1) => {
                    Some(Reply::OtherLimit { now_us: server_us, stored: items.get(2).and_then(Value::unsigned).unwrap_or(0) })
                }
                "B" | "M" => Some(Reply::Busy { now_us: server_us, rest: Duration::ZERO, holder: String::new() }),
                "T" => Some(Reply::Late { now_us: server_us }),
                _ => None,
            };
            attempts.push(match reply.map(|reply| recipe.answered(now, answered.before, claim.id, answered.order, reply)) {
                Some(Verdict::Tell(attempt)) => attempt,
                Some(Verdict::Again) => recipe.unanswered(
                    claim.id,
                    false,
                    Error::new(ErrorKind::Unknown, "the request arrived after its time by the server's clock"),
                ),
                None => recipe.unanswered(claim.id, false, errors::garbage(&self.options)),
            });
        }
        attempts
    }
}
