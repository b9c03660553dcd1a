//! What a guard, its clones of `Held` and the keeper know together about one turn.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use super::entry::Entry;
use crate::protocol::line::Seq;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::words::claim::Mode;
use crate::words::clock::{Reading, Ticks};
use crate::words::duration::spoken;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::{HoldId, fork_generation};
use crate::words::lost::Lost;
use crate::words::token::Token;

/// A lease's deadline, shared by the holds it carries.
#[derive(Debug)]
pub(crate) struct LeaseCell {
    deadline: AtomicU64,
    ttl_ns: AtomicU64,
    answered: AtomicBool,
    /// How far the time of day had been set forward when the engine proved it last, and by how much
    /// more it may be, in nanoseconds: beyond that it is in doubt.
    stepped: AtomicU64,
    bears: AtomicU64,
}

impl LeaseCell {
    pub(crate) fn new(deadline: Ticks, ttl: Duration) -> Self {
        let cell = Self {
            deadline: AtomicU64::new(0),
            ttl_ns: AtomicU64::new(0),
            answered: AtomicBool::new(true),
            stepped: AtomicU64::new(0),
            bears: AtomicU64::new(0),
        };
        cell.extend(deadline, ttl);
        cell
    }

    pub(crate) fn extend(&self, deadline: Ticks, ttl: Duration) {
        self.ttl_ns.store(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.answered.store(true, Ordering::Relaxed);
        self.deadline.store(deadline.0, Ordering::Release);
    }

    /// The engine proved it when the time of day had been set forward so far. A deadline that rests
    /// on that proof is stored before.
    pub(crate) fn prove(&self, stepped: u64, bears: Duration) {
        self.bears.store(u64::try_from(bears.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.stepped.store(stepped, Ordering::Release);
    }

    /// How far the time of day was set forward since, if that puts it in doubt.
    pub(crate) fn doubt(&self, stepped: u64) -> Option<Duration> {
        let since = stepped.saturating_sub(self.stepped.load(Ordering::Acquire));
        (since > self.bears.load(Ordering::Relaxed)).then(|| Duration::from_nanos(since))
    }

    pub(crate) fn unanswered(&self) {
        self.answered.store(false, Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> Ticks {
        Ticks(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_ns.load(Ordering::Relaxed))
    }

    /// The last renewal was answered, it is not in doubt, and more than half of the lease is left:
    /// the hold may pass on (R9).
    pub(crate) fn is_fresh(&self, now: Ticks, stepped: u64) -> bool {
        self.answered.load(Ordering::Relaxed)
            && self.doubt(stepped).is_none()
            && self.deadline().since(now) > self.ttl() / 2
    }
}

/// How a turn stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Held,
    /// The time of day was set forward by so much since the engine proved it last.
    InDoubt(Duration),
    Lost(Lost),
}

const NO_TOKEN: u64 = u64::MAX;

/// One turn.
pub(crate) struct TurnCell {
    pub(crate) entry: Arc<Entry>,
    pub(crate) seq: Seq,
    pub(crate) hold: HoldId,
    pub(crate) lease: Option<Arc<LeaseCell>>,
    pub(crate) granted: Ticks,
    /// Where somebody follows spans.
    pub(crate) span: Option<Box<tracing::Span>>,
    token: AtomicU64,
    mode: AtomicU8,
    permits: Option<(u16, u16)>,
    lost: OnceLock<Lost>,
    ended: Notify,
    asked: AtomicBool,
    announced: AtomicBool,
    forks: u32,
}

/// What a turn begins with.
pub(crate) struct NewTurn {
    pub(crate) entry: Arc<Entry>,
    pub(crate) seq: Seq,
    pub(crate) hold: HoldId,
    pub(crate) lease: Option<Arc<LeaseCell>>,
    pub(crate) granted: Ticks,
    pub(crate) token: Option<Token>,
    pub(crate) mode: Mode,
    pub(crate) span: tracing::Span,
}

fn mode_number(mode: Mode) -> u8 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
        Mode::Upgradable => 2,
        Mode::Permits { .. } => 3,
    }
}

impl TurnCell {
    pub(crate) fn new(turn: NewTurn) -> Self {
        let NewTurn { entry, seq, hold, lease, granted, token, mode, span } = turn;
        Self {
            entry,
            seq,
            hold,
            lease,
            granted,
            span: (!span.is_none()).then(|| Box::new(span)),
            token: AtomicU64::new(token.map_or(NO_TOKEN, Token::get)),
            mode: AtomicU8::new(mode_number(mode)),
            permits: match mode {
                Mode::Permits { count, limit } => Some((count, limit)),
                _ => None,
            },
            lost: OnceLock::new(),
            ended: Notify::new(),
            asked: AtomicBool::new(false),
            announced: AtomicBool::new(false),
            forks: fork_generation(),
        }
    }

    pub(crate) fn token(&self) -> Option<Token> {
        Token::raw(self.token.load(Ordering::Acquire))
    }

    /// An upgrade or downgrade gave another mode and another token. Whoever sees the mode sees its
    /// token.
    pub(crate) fn convert(&self, mode: Mode, token: Option<Token>) {
        self.token.store(token.map_or(NO_TOKEN, Token::get), Ordering::Release);
        self.mode.store(mode_number(mode), Ordering::Release);
    }

    pub(crate) fn mode(&self) -> Mode {
        match (self.mode.load(Ordering::Acquire), self.permits) {
            (_, Some((count, limit))) => Mode::Permits { count, limit },
            (1, _) => Mode::Shared,
            (2, _) => Mode::Upgradable,
            _ => Mode::Exclusive,
        }
    }

    pub(crate) fn mode_is(&self, mode: Mode) -> bool {
        self.mode.load(Ordering::Acquire) == mode_number(mode)
    }

    /// Why the turn is over, if it is.
    pub(crate) fn lost(&self) -> Option<Lost> {
        self.lost_by(|| self.entry.keeper.clock.read())
    }

    /// The same by a reading that was just made.
    pub(crate) fn lost_by(&self, read: impl FnOnce() -> Reading) -> Option<Lost> {
        match self.condition_by(read) {
            Condition::Lost(why) => Some(why),
            Condition::Held | Condition::InDoubt(_) => None,
        }
    }

    /// How the turn stands. Reads the clocks first (R15): the deadline counts even when nobody
    /// announced it yet, and so does a step of the time of day.
    pub(crate) fn condition(&self) -> Condition {
        self.condition_by(|| self.entry.keeper.clock.read())
    }

    fn condition_by(&self, read: impl FnOnce() -> Reading) -> Condition {
        if self.is_forked() {
            return Condition::Lost(Lost::Forked);
        }
        if let Some(why) = self.lost.get() {
            return Condition::Lost(*why);
        }
        let Some(lease) = &self.lease else { return Condition::Held };
        let Reading { now, stepped } = read();
        let doubt = lease.doubt(stepped);
        if now < lease.deadline() {
            return doubt.map_or(Condition::Held, Condition::InDoubt);
        }
        self.lose(doubt.map_or(Lost::Expired, |_| Lost::ClockStepped));
        Condition::Lost(self.lost.get().copied().unwrap_or(Lost::Expired))
    }

    /// `Err` when the turn is over, or in doubt: then the keeper is told, which asks the engine
    /// unless it does so already.
    pub(crate) fn check(&self) -> Result<()> {
        match self.condition() {
            Condition::Held => Ok(()),
            Condition::InDoubt(by) => {
                self.entry.keeper.driver.kick();
                Err(self.doubt_error(by))
            }
            Condition::Lost(why) => Err(self.lost_error(why)),
        }
    }

    /// `Err` when the turn is over: for what does not rest on the clocks, so that a doubt is none.
    pub(crate) fn not_lost(&self) -> Result<()> {
        self.lost().map_or(Ok(()), |why| Err(self.lost_error(why)))
    }

    pub(crate) fn lost_error(&self, why: Lost) -> Error {
        self.entry.error(ErrorKind::Lost, format!("the lock is lost: {why}"))
    }

    pub(crate) fn doubt_error(&self, by: Duration) -> Error {
        let text = format!(
            "in doubt: the time of day stepped by {}, and the engine has not confirmed the lock \
             since; try again",
            spoken(by)
        );
        self.entry.error(ErrorKind::Unknown, text)
    }

    /// A guard that came over a fork is nobody's: its drop does nothing.
    pub(crate) fn is_forked(&self) -> bool {
        self.forks != fork_generation()
    }

    /// Ends the turn; only the first reason counts. Answers whether this was the first.
    pub(crate) fn lose(&self, why: Lost) -> bool {
        let first = self.lost.set(why).is_ok();
        if first {
            self.ended.notify_waiters();
        }
        first
    }

    /// True for the first who announces the loss.
    pub(crate) fn announce(&self) -> bool {
        !self.announced.swap(true, Ordering::AcqRel)
    }

    /// Somebody asks the holder politely to let go.
    pub(crate) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.ended.notify_waiters();
    }

    /// Completes when somebody asks for the lock, or the turn is over.
    pub(crate) async fn asked(&self) {
        loop {
            let mut notified = std::pin::pin!(self.ended.notified());
            notified.as_mut().enable();
            if self.asked.load(Ordering::Acquire) || self.lost().is_some() {
                return;
            }
            notified.await;
        }
    }

    /// Completes when the turn is over.
    pub(crate) async fn ended(&self) -> Lost {
        loop {
            let mut notified = std::pin::pin!(self.ended.notified());
            notified.as_mut().enable();
            if let Some(why) = self.lost() {
                return why;
            }
            notified.await;
        }
    }
}

impl fmt::Debug for TurnCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Turn");
        shown
            .field("name", &self.entry.name)
            .field("mode", &self.mode())
            .field("token", &self.token())
            .finish_non_exhaustive()
    }
}
