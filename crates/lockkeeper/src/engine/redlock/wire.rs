//! One member: its connection, its clock, whether it counts, and what it says to a request.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::engine::anchor::Anchor;
use crate::engine::redis::client::pipe::{Broken, OnPush};
use crate::engine::redis::client::resp::{Command, Value};
use crate::engine::redis::client::script::{Call, Which};
use crate::engine::redis::client::wire::{Answered, Link, Tracking};
use crate::engine::redis::describe::Facts;
use crate::engine::redis::errors;
use crate::engine::redis::options::{Address, Layout, RedisOptions};
use crate::engine::redis::refusal::{Refusal, Stage};
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::token::next_number;

/// The layout of what members keep about themselves; the scripts write it.
const LAYOUT: &str = "2";

/// An answer that took longer than four that went before, or than the second of these, was late for
/// another reason; nothing below the first is looked into.
const STALL: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));

/// INFO counts in whole seconds.
const UPTIME_STEP: Duration = Duration::from_secs(1);

/// One of the servers.
pub(super) struct Member {
    pub(super) options: Arc<RedisOptions>,
    pub(super) link: Arc<Link>,
    /// The steady one, as the link's.
    clock: Clock,
    anchor: Mutex<Option<Anchor>>,
    /// Its time with our reading from after it told it, where `anchor` has one from before it was
    /// asked: its clock is not behind that.
    reached: Mutex<Option<Anchor>>,
    /// How long it takes to answer, in nanoseconds, smoothed; 0 before the first answer.
    trip: AtomicU64,
    /// Which run of it was connected last, and whether it was that one before as well.
    last_run: Mutex<(Option<String>, bool)>,
    /// It said that it was not admitted since it started.
    stranger: AtomicBool,
    /// What it told of that.
    clean: Mutex<Option<Clean>>,
    /// Why it does not count, where somebody has to mend that.
    refusal: Arc<Refusal>,
}

/// From when on no lease lasts that a member may have lost with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Clean {
    /// When a client first met it so, by its clock: what tells this time from every other.
    pub(super) met_us: u64,
    /// How long it waits from then on.
    pub(super) wait: Duration,
    pub(super) at: Ticks,
}

impl Member {
    pub(super) fn new(
        options: Arc<RedisOptions>,
        clock: Clock,
        label: String,
        on_push: OnPush,
        tracks: bool,
    ) -> Self {
        let link = Link::new(options.clone(), clock.clone(), label, on_push);
        link.brings(match options.layout {
            Layout::Native => {
                &[Which::QuorumGive, Which::QuorumReadGive, Which::QuorumTakes, Which::QuorumGives]
            }
            Layout::Plain => &[Which::QuorumPlainGive],
            Layout::Redisson => &[Which::QuorumHashGive, Which::QuorumFairGive],
        });
        if tracks {
            // Keys without a channel: the server tells when they change.
            link.track(Tracking::Read);
        }
        let refusal = Arc::new(Refusal::default());
        {
            let (refusal, clock, at) = (refusal.clone(), clock.clone(), options.address.clone());
            link.on_failure(move |error| {
                if refusal.failed(Stage::Greeting, error, clock.now()) {
                    warn(&at, error);
                }
            });
        }
        Self {
            options,
            link,
            clock,
            anchor: Mutex::default(),
            reached: Mutex::default(),
            trip: AtomicU64::new(0),
            last_run: Mutex::default(),
            stranger: AtomicBool::new(false),
            clean: Mutex::default(),
            refusal,
        }
    }

    /// Why it does not count, where that is more than that it is away or young.
    pub(super) fn refuses(&self) -> Option<Error> {
        self.refusal.why()
    }

    /// The same, where nothing can be asked of it.
    pub(super) fn refuses_at_once(&self) -> Option<Error> {
        self.refusal.at_greeting()
    }

    /// Its rules are not known here, so nobody may go on without it.
    pub(super) fn is_newer(&self) -> Option<Error> {
        self.refuses().filter(|error| error.kind() == ErrorKind::NewerLayout)
    }

    /// It ran a script that writes.
    pub(super) fn wrote(&self) {
        self.refusal.did(Stage::Asked);
    }

    /// It was connected, and can be of use.
    pub(super) fn is_of_use(&self) {
        self.refusal.did(Stage::Greeting);
    }

    /// It was connected, and cannot be used. It is dialled anew until it can.
    pub(super) fn is_of_no_use(&self, error: &Error) {
        if self.refusal.failed(Stage::Greeting, error, self.clock.now()) {
            warn(&self.options.address, error);
        }
        self.link.leave(self.clock.now(), error.message());
    }

    /// What it said in place of an answer to a script.
    pub(super) fn failed(&self, call: &Call, text: &str) -> Error {
        if let Some(layout) = newer_layout(text) {
            let error = self.newer(layout);
            self.is_of_no_use(&error);
            return error;
        }
        let error = errors::script(&self.options, call, text);
        if is_about_numbers(call, text) {
            let text = format!("Redis at {}: {}", self.options.address, error.message());
            return self.counts_wrong(Error::new(error.kind(), text));
        }
        // What our scripts say is about a name, and one that is not known is sent if it is wanted.
        if !text.contains("LOCKKEEPER ")
            && !text.starts_with("NOSCRIPT")
            && error.kind() != ErrorKind::Corrupt
            && self.refusal.failed(Stage::Asked, &error, self.clock.now())
        {
            warn(&self.options.address, &error);
        }
        error
    }

    /// It keeps a number that can be none. It refuses until it does what it is asked for, and that
    /// is told once, whatever number it is and of whichever name.
    fn counts_wrong(&self, error: Error) -> Error {
        let reason = "numbers that can be none of ours";
        if self.refusal.failed_for(Stage::Asked, &error, reason, self.clock.now()) {
            warn(&self.options.address, &error);
        }
        error
    }

    /// A number that it told.
    ///
    /// # Errors
    /// It can be none, so nothing that the member says counts: one that was believed would be
    /// everybody's from then on (R7).
    pub(super) fn believed(&self, number: u64, key: &str) -> Result<u64> {
        if can_be_ours(number, unix_us()) {
            return Ok(number);
        }
        let text = format!(
            "Redis at {} keeps the number {number} for {key}, which can be none of ours: look at \
             it, then delete it to repair the lock",
            self.options.address
        );
        Err(self.counts_wrong(Error::new(ErrorKind::Corrupt, text)))
    }

    /// A time that it told, as a number.
    ///
    /// # Errors
    /// As [`Self::believed`]: a member that begins above it would be as far ahead.
    pub(super) fn tick_of(&self, server_us: u64) -> Result<u64> {
        let tick = next_number(0, server_us).filter(|tick| can_be_ours(*tick, unix_us()));
        tick.ok_or_else(|| {
            let text = format!(
                "the clock of Redis at {} is more than a thousand years ahead: set it right",
                self.options.address
            );
            self.counts_wrong(Error::new(ErrorKind::Refused, text))
        })
    }

    fn newer(&self, layout: &str) -> Error {
        let text = format!(
            "Redis at {} was admitted with layout {layout} and this release knows {LAYOUT}: use a \
             newer lockkeeper",
            self.options.address
        );
        Error::new(ErrorKind::NewerLayout, text)
    }

    /// A newer layout, if it said one when it was connected.
    pub(super) fn newer_at_greeting(&self) -> Option<Error> {
        let layout = |facts: &Facts| {
            let [_, layout, _] = &facts.marker;
            layout.clone()
        };
        let layout = self.link.by_facts(layout).flatten()?;
        let known: u64 = LAYOUT.parse().unwrap_or(u64::MAX);
        // What is no number is of a release that is not known, as the scripts have it.
        layout.parse().map_or(true, |layout: u64| layout > known).then(|| self.newer(&layout))
    }

    /// It was connected: its clock is known again, and whether it is admitted.
    pub(super) fn came_up(&self) {
        let Some(facts) = self.link.facts() else { return };
        if let Some((server_us, before)) = facts.time {
            self.heard(server_us, before, true);
            self.trip.store(nanos(facts.heard.since(before)), Ordering::Relaxed);
        }
        {
            let mut last = self.last_run.lock().unwrap_or_else(PoisonError::into_inner);
            let same = facts.run_id.is_some() && last.0 == facts.run_id;
            *last = (facts.run_id.clone(), same);
        }
        self.set_stranger(!self.is_settled());
    }

    /// Whether it may have forgotten holds since it was connected before.
    pub(super) fn may_have_forgotten(&self) -> bool {
        let same = self.last_run.lock().unwrap_or_else(PoisonError::into_inner).1;
        !(same && self.is_settled())
    }

    /// Whether it said when it was connected that it is admitted. Where members keep nothing about
    /// themselves there is nobody to be admitted by.
    pub(super) fn is_settled(&self) -> bool {
        let settled = |facts: &Facts| {
            let [run, layout, _] = &facts.marker;
            run.is_some() && *run == facts.run_id && layout.as_deref() == Some(LAYOUT)
        };
        self.options.marker.is_none() || self.link.by_facts(settled).unwrap_or_default()
    }

    pub(super) fn heard(&self, server_us: u64, before: Ticks, afresh: bool) {
        let mut anchor = self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Anchor::new(server_us, before);
        *anchor = Some(anchor.filter(|_| !afresh).map_or(new, |old| old.newer(new)));
        let mut reached = self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        let new = Anchor::new(server_us, self.clock.now());
        *reached = Some(reached.filter(|_| !afresh).map_or(new, |old| old.newer(new)));
    }

    /// How long it takes to answer, if it ever did.
    pub(super) fn trip(&self) -> Option<Duration> {
        let trip = self.trip.load(Ordering::Relaxed);
        (trip > 0).then(|| Duration::from_nanos(trip))
    }

    /// It answered what was asked at this time. That it is slow is soon known, and that it was once
    /// is soon forgotten.
    pub(super) fn took(&self, before: Ticks) {
        let old = self.trip.load(Ordering::Relaxed);
        // Whoever stalls itself learns nothing of a link by that.
        let most = old.saturating_mul(4).clamp(nanos(STALL.0), nanos(STALL.1));
        let trip = nanos(self.clock.now().since(before)).min(most);
        let new = if trip > old { old + (trip - old) / 2 } else { old - (old - trip) / 8 };
        self.trip.store(new, Ordering::Relaxed);
    }

    /// A time that the member's clock has reached at one of our instants, were it a thousandth
    /// slower than ours (R7).
    pub(super) fn reached_us(&self, at: Ticks) -> Option<u64> {
        let reached = *self.reached.lock().unwrap_or_else(PoisonError::into_inner);
        reached.map(|reached| reached.server_us_slowly(at))
    }

    /// Which run of the server a request of now reaches; empty where it does not say.
    pub(super) fn run(&self) -> String {
        self.link.by_facts(|facts| facts.run_id.clone()).flatten().unwrap_or_default()
    }

    /// Whether that is this one.
    pub(super) fn is_run(&self, run: &str) -> bool {
        self.link.by_facts(|facts| facts.run_id.as_deref() == Some(run)).unwrap_or_default()
    }

    /// Whether it said last that it was not admitted since it started.
    pub(super) fn is_stranger(&self) -> bool {
        self.stranger.load(Ordering::Acquire)
    }

    /// From when on it can be admitted, if it told that.
    pub(super) fn clean(&self) -> Option<Clean> {
        *self.clean.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn set_clean(&self, clean: Option<Clean>) {
        *self.clean.lock().unwrap_or_else(PoisonError::into_inner) = clean;
    }

    pub(super) fn set_stranger(&self, stranger: bool) {
        if !stranger {
            // Should it be met once more, that is another time.
            self.set_clean(None);
        }
        self.stranger.store(stranger, Ordering::Release);
    }

    /// The member's time at one of our instants, for requests that are late after it.
    pub(super) fn not_after_us(&self, at: Ticks) -> u64 {
        let anchor = *self.anchor.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing is sent before the first connection.
        anchor.map_or(0, |anchor| anchor.server_us_quickly(at))
    }

    /// From when on its yes counts where members are not admitted: once every lease has ended that
    /// it may have forgotten when it started. `None`: it did not say for how long it has been up.
    pub(super) fn counts_at(&self, wait: Duration) -> Option<Ticks> {
        let (up, heard) = self.link.by_facts(|facts| (facts.uptime, facts.heard))?;
        let up = up?.saturating_sub(UPTIME_STEP);
        Some(heard.plus(wait).minus(up.min(wait)))
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
            Ok(Answered { value: Value::Error(text), .. }) => Err(self.failed(&call, &text)),
            Ok(answered) => Ok(answered.value),
            Err(broken) => Err(self.broken(&broken)),
        }
    }

    /// Why nothing came back.
    pub(super) fn broken(&self, broken: &Broken) -> Error {
        let why = || self.refuses_at_once().or_else(|| self.link.why());
        match broken {
            Broken::NotSent(_) => why().unwrap_or_else(|| errors::broken(&self.options, broken)),
            _ => errors::broken(&self.options, broken),
        }
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn warn(at: &Address, why: &Error) {
    let why = why.message();
    tracing::warn!(engine = "redlock", member = %at, why, "a member does not count");
}

/// Whether a number can be one of ours: it is at most a thousand years above the clock. What is
/// believed is spread, and a member that is told a greater one by then must still count; the
/// clock goes on faster than turns do, so it always does.
fn can_be_ours(number: u64, clock_unix_us: u64) -> bool {
    const AHEAD: u64 = 1 << 51;
    next_number(0, clock_unix_us).is_some_and(|tick| number < tick.saturating_add(AHEAD))
}

fn unix_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// The layout of a member that our scripts stopped at, if it is that: a record of a name has none
/// behind it that is known.
fn newer_layout(text: &str) -> Option<&str> {
    let mut words = text.split_once("LOCKKEEPER NEWER ")?.1.split(' ');
    let layout = words.next()?;
    (words.next() == Some(LAYOUT)).then_some(layout)
}

/// Whether our scripts stopped at a number that a member keeps for a name, or for all of them.
fn is_about_numbers(call: &Call, text: &str) -> bool {
    let Some((_, key)) = text.split_once("LOCKKEEPER CORRUPT ") else { return false };
    if matches!(call.script, Which::QuorumTell | Which::QuorumAdmit) {
        return true;
    }
    let mut keys = call.keys.iter();
    let (_, numbers) = (keys.next(), [keys.next(), keys.next()]);
    keys.next().is_some() && numbers.contains(&key.split(' ').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_what_is_believed_ends_a_thousand_years_above_the_clock_and_goes_on_with_it() {
        let at = |years: u64| (1_767_225_600 + years * 31_557_600) * 1_000_000;
        let number = |years| next_number(0, at(years)).expect("it is one");
        assert!(can_be_ours(number(1001), at(1)) && !can_be_ours(number(1200), at(1)));
        assert!(!can_be_ours((1 << 53) - 2, at(1)) && !can_be_ours(u64::MAX, at(1)));
        // The greatest of now, and the next one: a turn takes longer than a tick of the clock.
        let most = (number(1) + (1 << 51)) - 1;
        assert!(can_be_ours(most, at(1)) && !can_be_ours(most + 1, at(1)));
        assert!(can_be_ours(most + 1, at(1) + 16));
    }
}
