//! One member: its connection, its clock, whether it counts, and what it says to a request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::errors::other_max_ttl;
use super::recipe::{Other, Said};
use super::record::Record;
use crate::clock::{Clock, Ticks};
use crate::engine::redis::anchor::Anchor;
use crate::engine::redis::client::pipe::{Broken, OnPush};
use crate::engine::redis::client::resp::{Command, Value};
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::wire::{Answered, Link, Started};
use crate::engine::redis::errors;
use crate::engine::redis::facts::Facts;
use crate::engine::redis::options::RedisOptions;
use crate::error::{Error, ErrorKind, Result};

/// INFO counts in whole seconds.
const UPTIME_STEP: Duration = Duration::from_secs(1);

/// One of the servers.
pub(super) struct Member {
    pub(super) options: Arc<RedisOptions>,
    pub(super) link: Arc<Link>,
    clock: Clock,
    anchor: Mutex<Option<Anchor>>,
    /// Its time with our reading from after it told it, where `anchor` has one from before it was
    /// asked: its clock is not behind that.
    reached: Mutex<Option<Anchor>>,
    /// Under another address it is a member already.
    twin: AtomicBool,
    /// It said that it was not admitted since it started.
    stranger: AtomicBool,
    /// The `max_ttl` that it goes by, if that is not ours.
    other_max_ttl: Mutex<Option<Duration>>,
}

/// What a member said to a request about a claim.
pub(super) struct Heard {
    pub(super) said: Said,
    /// Who is in the way.
    pub(super) holder: Option<Record>,
    /// The greatest number of the name that it told, if it told one.
    pub(super) number: u64,
    /// Why it said nothing that counts.
    pub(super) error: Option<Error>,
    /// How many heard that it gave the lock back.
    pub(super) heard_by: u64,
}

impl Heard {
    /// Nothing was sent.
    pub(super) fn nothing() -> Self {
        Self { said: Said::Not, holder: None, number: 0, error: None, heard_by: 0 }
    }
}

impl Member {
    pub(super) fn new(
        options: Arc<RedisOptions>,
        clock: Clock,
        label: String,
        on_push: OnPush,
    ) -> Self {
        let link = Link::new(options.clone(), clock.clone(), label, on_push);
        Self {
            options,
            link,
            clock,
            anchor: Mutex::default(),
            reached: Mutex::default(),
            twin: AtomicBool::new(false),
            stranger: AtomicBool::new(false),
            other_max_ttl: Mutex::default(),
        }
    }

    /// It was connected: the server's clock is known again.
    pub(super) fn came_up(&self) {
        if let Some((server_us, before)) = self.link.facts().and_then(|facts| facts.time) {
            self.heard(server_us, before, true);
        }
    }

    fn heard(&self, server_us: u64, before: Ticks, afresh: bool) {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Anchor::new(server_us, before);
        *anchor = Some(anchor.filter(|_| !afresh).map_or(new, |old| old.newer(new)));
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Anchor::new(server_us, self.clock.now());
        *reached = Some(reached.filter(|_| !afresh).map_or(new, |old| old.newer(new)));
    }

    /// A time that the member's clock has reached at one of our instants, were it a thousandth
    /// slower than ours (R7).
    pub(super) fn reached_us(&self, at: Ticks) -> Option<u64> {
        let reached = *self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.map(|reached| reached.server_us_slowly(at))
    }

    /// Which run of the server a request of now reaches.
    pub(super) fn run(&self) -> String {
        self.link.facts().and_then(|facts| facts.run_id).unwrap_or_default()
    }

    /// Whether it said last that it was not admitted since it started.
    pub(super) fn is_stranger(&self) -> bool {
        self.stranger.load(Ordering::Acquire)
    }

    /// The `max_ttl` that it goes by, if that is not ours.
    pub(super) fn other_max_ttl(&self) -> Option<Duration> {
        *self.other_max_ttl.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// It told by which `max_ttl` it goes, or that it does not know yet.
    pub(super) fn goes_by(&self, theirs: Option<Duration>, ours: Duration) {
        let other = theirs.filter(|theirs| *theirs != ours);
        *self.other_max_ttl.lock().unwrap_or_else(PoisonError::into_inner) = other;
    }

    pub(super) fn set_stranger(&self, stranger: bool) {
        self.stranger.store(stranger, Ordering::Release);
    }

    /// The member's time at one of our instants, for requests that are late after it.
    pub(super) fn not_after_us(&self, at: Ticks) -> u64 {
        let anchor = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing is sent before the first connection.
        anchor.map_or(0, |anchor| anchor.server_us_at(at))
    }

    /// Says whether it is another member under another address.
    pub(super) fn is_twin(&self) -> bool {
        self.twin.load(Ordering::Acquire)
    }

    pub(super) fn set_twin(&self, twin: bool) {
        self.twin.store(twin, Ordering::Release);
    }

    /// From when on its yes counts: once every lease has ended that it may have forgotten when it
    /// started. `None`: it did not say for how long it has been up.
    pub(super) fn counts_at(&self, max_ttl: Duration) -> Option<Ticks> {
        counts_at(&self.link.facts()?, max_ttl)
    }

    /// Whether its yes counts, once it was admitted.
    pub(super) fn counts(&self, now: Ticks, max_ttl: Duration) -> bool {
        !self.is_twin()
            && self.other_max_ttl().is_none()
            && self.counts_at(max_ttl).is_some_and(|at| at <= now)
    }

    /// Runs a command that may be sent twice to its answer.
    ///
    /// # Errors
    /// Those of the server as well.
    pub(super) async fn command(&self, name: &str, command: Command) -> Result<Value> {
        let started = self.link.start(std::slice::from_ref(&command));
        match self.link.finish(started, || Some(command.clone()), Duration::ZERO).await {
            Ok(Answered { value: Value::Error(text), .. }) => {
                Err(errors::server(&self.options, name, &text))
            }
            Ok(answered) => Ok(answered.value),
            Err(broken) => Err(self.broken(&broken)),
        }
    }

    /// Runs a script that changes nothing, or may be sent twice.
    pub(super) async fn call(&self, call: Call) -> Result<Value> {
        let started = self.link.start(&[call.by_name()]);
        match self.link.run(started, &call, Duration::ZERO, || true).await {
            Ok(Answered { value: Value::Error(text), .. }) => {
                Err(errors::script(&self.options, &call, &text))
            }
            Ok(answered) => Ok(answered.value),
            Err(broken) => Err(self.broken(&broken)),
        }
    }

    /// Why nothing came back.
    pub(super) fn broken(&self, broken: &Broken) -> Error {
        match (broken, self.link.why()) {
            (Broken::NotSent(_), Some(why)) => why,
            _ => errors::broken(&self.options, broken),
        }
    }

    /// Follows a request about a claim to its answer. What cannot be sent now is not sent later.
    pub(super) async fn follow(
        &self,
        started: Started,
        call: &Call,
        max_ttl: Duration,
        wanted: impl Fn() -> bool + Send + Sync,
    ) -> Heard {
        let outcome = self.link.run(started, call, Duration::ZERO, wanted).await;
        let heard = |said, error| Heard { said, error, ..Heard::nothing() };
        let answered = match outcome {
            Ok(answered) => answered,
            Err(broken) => {
                let said = match broken {
                    Broken::NotSent(_) => Said::Not,
                    Broken::Unknown(_) | Broken::Unacknowledged(_) => Said::Unclear,
                };
                return heard(said, Some(self.broken(&broken)));
            }
        };
        if let Value::Error(text) = &answered.value {
            let theirs = text.split_once("LOCKKEEPER MAXTTL ").and_then(|(_, rest)| {
                rest.split(' ').next()?.parse().ok().map(Duration::from_millis)
            });
            if let Some(theirs) = theirs {
                let key = call.keys.last().map_or("", String::as_str);
                let error = other_max_ttl(self, theirs, max_ttl, key);
                self.goes_by(Some(theirs), max_ttl);
                return heard(Said::Not, Some(error));
            }
            return heard(Said::Not, Some(errors::script(&self.options, call, text)));
        }
        let items = answered.value.items();
        let number = |at: usize| items.get(at).and_then(Value::unsigned);
        if call.script != Which::QuorumGive
            && let Some(now_us) = number(1)
        {
            self.heard(now_us, answered.before, false);
        }
        match (items.first().and_then(Value::text), number(2)) {
            (Some("Y"), Some(number)) => {
                let admitted = items.get(3).and_then(Value::text) == Some("1");
                self.set_stranger(!admitted);
                if call.script == Which::QuorumTake {
                    self.goes_by(None, max_ttl);
                }
                let counts = admitted && self.counts(answered.before, max_ttl);
                Heard { number, ..heard(Said::Yes { counts, number }, None) }
            }
            (Some("N"), number) => {
                Heard { number: number.unwrap_or(0), ..heard(Said::Nothing, None) }
            }
            (Some("D"), _) => Heard { heard_by: number(1).unwrap_or(0), ..heard(Said::Gave, None) },
            (Some("T"), _) => {
                let text = "the request arrived after its time had passed";
                let text = format!("Redis at {}: {text}", self.options.address);
                heard(Said::Not, Some(Error::new(ErrorKind::TimedOut, text)))
            }
            (Some("B"), Some(number)) => Heard { number, ..self.other(call, items) },
            _ => heard(Said::Unclear, Some(errors::garbage(&self.options))),
        }
    }

    /// Somebody else is in the way.
    fn other(&self, call: &Call, items: &[Value]) -> Heard {
        let key = call.keys.first().map_or("", String::as_str);
        let read = items.get(3).and_then(Value::integer).zip(items.get(4).and_then(Value::text));
        let error = match read.map(|(rest, text)| Record::read(text, rest, key)) {
            Some(Ok(record)) => {
                let (claim, age, rest) = (record.claim, record.age(), record.rest);
                return Heard {
                    said: Said::Other(Other { claim, age, rest }),
                    holder: Some(record),
                    ..Heard::nothing()
                };
            }
            Some(Err(text)) => errors::of_our_script(&text),
            None => errors::garbage(&self.options),
        };
        Heard { error: Some(error), ..Heard::nothing() }
    }
}

/// From when on a server with these facts has been up for `max_ttl`, at the latest.
fn counts_at(facts: &Facts, max_ttl: Duration) -> Option<Ticks> {
    let up = facts.uptime?.saturating_sub(UPTIME_STEP);
    Some(facts.heard.plus(max_ttl).minus(up.min(max_ttl)))
}
