//! What an entry knows, and the lock around it.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use super::Entry;
use super::convert::Converting;
use super::few::{Few, Seldom};
use super::release::{Ends, ReleaseStep};
use super::request::Request;
use super::turns::TurnRecord;
use crate::engine::OwnWait;
use crate::keeper::cell::LeaseCell;
use crate::keeper::driver::{Driver, Due, TimerId};
use crate::protocol::line::{Line, Seq};
use crate::sync::MutexGuard;
use crate::words::claim::{Holder, Identity};
use crate::words::clock::Ticks;
use crate::words::error::Error;
use crate::words::id::HoldId;
use crate::words::token::Token;

pub(in crate::keeper) struct State {
    pub(in crate::keeper) line: Line,
    pub(in crate::keeper) waiting: Few<Seq, Box<Waiting>>,
    pub(in crate::keeper) turns: Few<Seq, TurnRecord>,
    pub(in crate::keeper) converting: Seldom<Seq, Converting>,
    /// Leases of the holds that have one.
    pub(in crate::keeper) leases: Few<HoldId, Arc<LeaseCell>>,
    pub(in crate::keeper) ends: Option<Box<Ends>>,
    /// What the engine said last about who holds it.
    pub(in crate::keeper) last_holder: Option<Box<Holder>>,
    pub(in crate::keeper) last_ahead: Option<u32>,
    /// Why the last attempt got nothing.
    pub(in crate::keeper) last_error: Option<Error>,
    /// When the engine said something last about a claim of this name.
    pub(in crate::keeper) answered: Ticks,
    /// When the engine was asked something last for those who wait: a claim, a conversion, or that
    /// it lets one go before them.
    pub(in crate::keeper) asked: Ticks,
    armed: Option<Alarm>,
}

/// The one timer of an entry.
#[derive(Clone, Copy)]
struct Alarm {
    timer: TimerId,
    /// It keeps the entry alive.
    keeps: bool,
}

impl State {
    pub(super) fn of(line: Line) -> Self {
        Self {
            line,
            waiting: Few::default(),
            turns: Few::default(),
            converting: Seldom::default(),
            leases: Few::default(),
            ends: None,
            last_holder: None,
            last_ahead: None,
            last_error: None,
            answered: Ticks(0),
            asked: Ticks(0),
            armed: None,
        }
    }

    /// The entry's timer has come. One that another has overtaken must not make room for a third.
    pub(super) fn timer_came(&mut self, now: Ticks) {
        if self.armed.is_some_and(|armed| armed.timer.at <= now) {
            self.armed = None;
        }
    }

    /// The timer that is armed, if one is.
    pub(super) fn timer(&self) -> Option<TimerId> {
        self.armed.map(|armed| armed.timer)
    }

    /// Whether the last renewal of a hold was answered, nothing puts it in doubt, and more than
    /// half of its lease is left (R9).
    pub(in crate::keeper) fn is_fresh(&self, hold: HoldId, now: Ticks, stepped: u64) -> bool {
        self.leases.get(hold).is_none_or(|lease| lease.is_fresh(now, stepped))
    }
}

/// A claim whose future waits, or has something to fetch.
pub(in crate::keeper) struct Waiting {
    pub(in crate::keeper) who: Option<Arc<Identity>>,
    pub(in crate::keeper) value: Option<Arc<str>>,
    pub(in crate::keeper) waker: Option<Waker>,
    pub(in crate::keeper) outcome: Option<Outcome>,
    /// The observer was told that it waits.
    pub(super) told: bool,
    /// Since when it waits.
    pub(in crate::keeper) since: Ticks,
    /// For how long the engine may be silent.
    pub(in crate::keeper) patience: Option<Duration>,
    /// The thread that asks waits for this alone, and may do what the engine leaves to it.
    pub(super) here: bool,
    pub(super) own_wait: Option<OwnWait>,
    /// It waits for a guard of this process, and watches the socket once the engine is asked for
    /// it.
    pub(super) lends: bool,
}

impl Waiting {
    pub(super) fn of(request: &Request, now: Ticks) -> Self {
        let patience = request.unreachable_after;
        let (who, value) = (request.who.clone(), request.value.clone());
        Self {
            who,
            value,
            waker: None,
            outcome: None,
            told: false,
            since: now,
            patience,
            here: request.here,
            own_wait: None,
            lends: false,
        }
    }
}

pub(in crate::keeper) enum Outcome {
    Offered {
        hold: HoldId,
        token: Option<Token>,
    },
    Busy(Option<Box<Holder>>),
    Refused(Error),
    /// The offer lapsed or was lost before anybody took it.
    AskAnew,
}

/// The lock of an entry; on its way out it arms the timer and wakes the wakers.
pub(in crate::keeper) struct Locked<'a> {
    entry: &'a Arc<Entry>,
    // They go in this order: whoever waits for the lock goes before a thread that only looks at its
    // timers.
    pub(in crate::keeper) state: MutexGuard<'a, State>,
    wakers: Wakers,
    kick: Option<Kick<'a>>,
    /// The hold whose release somebody waits for, if a step makes it.
    pub(super) awaited: Option<HoldId>,
    /// What became of the release that a step made.
    pub(super) released: Option<ReleaseStep>,
}

/// Woken when it goes.
#[derive(Default)]
struct Wakers {
    /// Mostly one: then a turn needs no memory for it.
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Drop for Wakers {
    fn drop(&mut self) {
        for waker in self.first.take().into_iter().chain(self.more.drain(..)) {
            waker.wake();
        }
    }
}

/// Kicks the driver when it goes, also where a waker panics.
struct Kick<'a>(&'a Driver);

impl Drop for Kick<'_> {
    fn drop(&mut self) {
        self.0.kick();
    }
}

impl<'a> Locked<'a> {
    pub(super) fn of(entry: &'a Arc<Entry>, state: MutexGuard<'a, State>) -> Self {
        let wakers = Wakers::default();
        Self { entry, state, wakers, kick: None, awaited: None, released: None }
    }

    pub(in crate::keeper) fn wake(&mut self, waker: Option<Waker>) {
        if self.wakers.first.is_none() {
            self.wakers.first = waker;
        } else {
            self.wakers.more.extend(waker);
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let driver = &self.entry.keeper.driver;
        let state = &mut *self.state;
        // A place that must still be left keeps its entry alive; everything else has a future or a
        // guard that does.
        let keeps = state.line.is_leaving();
        let wrong = |armed: Option<Alarm>, at: Ticks| {
            armed.is_none_or(|armed| at < armed.timer.at || keeps != armed.keeps)
        };
        if let Some(at) = state.line.next_timer().filter(|at| wrong(state.armed, *at)) {
            let due = if keeps {
                Due::Leaving(self.entry.clone())
            } else {
                Due::Entry(Arc::downgrade(self.entry))
            };
            let (timer, first) = driver.note(&self.entry.keeper, at, due);
            self.kick = first.then(|| Kick(driver));
            if let Some(old) = state.armed.replace(Alarm { timer, keeps }) {
                driver.disarm(old.timer);
            }
        }
    }
}
