//! One member: its connection, its clock, whether it counts, and what it says to a request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

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
    anchor: Mutex<Option<Anchor>>,
    /// Under another address it is a member already.
    twin: AtomicBool,
}

/// What a member said to a request about a claim.
pub(super) struct Heard {
    pub(super) said: Said,
    /// Who is in the way.
    pub(super) holder: Option<Record>,
    /// Why it said nothing that counts.
    pub(super) error: Option<Error>,
    /// How many heard that it gave the lock back.
    pub(super) heard_by: u64,
}

impl Heard {
    /// Nothing was sent.
    pub(super) fn nothing() -> Self {
        Self { said: Said::Not, holder: None, error: None, heard_by: 0 }
    }
}

impl Member {
    pub(super) fn new(
        options: Arc<RedisOptions>,
        clock: Clock,
        label: String,
        on_push: OnPush,
    ) -> Self {
        let link = Link::new(options.clone(), clock, label, on_push);
        Self { options, link, anchor: Mutex::default(), twin: AtomicBool::new(false) }
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

    /// Whether its yes counts.
    fn counts(&self, now: Ticks, max_ttl: Duration) -> bool {
        !self.is_twin() && self.counts_at(max_ttl).is_some_and(|at| at <= now)
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
        let heard = |said, error| Heard { said, holder: None, error, heard_by: 0 };
        let answered = match outcome {
            Ok(answered) => answered,
            Err(broken) => {
                let said = match broken {
                    Broken::NotSent(_) => Said::Not,
                    Broken::Unknown(_) => Said::Unclear,
                };
                return heard(said, Some(self.broken(&broken)));
            }
        };
        if let Value::Error(text) = &answered.value {
            return heard(Said::Not, Some(errors::script(&self.options, call, text)));
        }
        let items = answered.value.items();
        let number = |at: usize| items.get(at).and_then(Value::unsigned);
        if call.script != Which::QuorumGive
            && let Some(now_us) = number(1)
        {
            self.heard(now_us, answered.before, false);
        }
        match items.first().and_then(Value::text) {
            Some("Y") => heard(Said::Yes { counts: self.counts(answered.before, max_ttl) }, None),
            Some("N") => heard(Said::Nothing, None),
            Some("D") => Heard { heard_by: number(1).unwrap_or(0), ..heard(Said::Gave, None) },
            Some("T") => {
                let text = "the request arrived after its time had passed";
                let text = format!("Redis at {}: {text}", self.options.address);
                heard(Said::Not, Some(Error::new(ErrorKind::TimedOut, text)))
            }
            Some("B") => self.other(call, items),
            _ => heard(Said::Unclear, Some(errors::garbage(&self.options))),
        }
    }

    /// Somebody else is in the way.
    fn other(&self, call: &Call, items: &[Value]) -> Heard {
        let key = call.keys.first().map_or("", String::as_str);
        let read = items.get(2).and_then(Value::integer).zip(items.get(3).and_then(Value::text));
        let error = match read.map(|(rest, text)| Record::read(text, rest, key)) {
            Some(Ok(record)) => {
                let (claim, age, rest) = (record.claim, record.age(), record.rest);
                return Heard {
                    said: Said::Other(Other { claim, age, rest }),
                    holder: Some(record),
                    error: None,
                    heard_by: 0,
                };
            }
            Some(Err(text)) => errors::of_our_script(&text),
            None => errors::garbage(&self.options),
        };
        Heard { said: Said::Not, holder: None, error: Some(error), heard_by: 0 }
    }
}

/// From when on a server with these facts has been up for `max_ttl`, at the latest.
fn counts_at(facts: &Facts, max_ttl: Duration) -> Option<Ticks> {
    let up = facts.uptime?.saturating_sub(UPTIME_STEP);
    Some(facts.heard.plus(max_ttl).minus(up.min(max_ttl)))
}
