//! What a guard, its clones of `Held` and the keeper know together about one turn.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use super::entry::Entry;
use crate::protocol::line::Seq;
use crate::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use crate::words::claim::Mode;
use crate::words::clock::Ticks;
use crate::words::id::{HoldId, fork_generation};
use crate::words::lost::Lost;
use crate::words::token::Token;

/// A lease's deadline, shared by the holds it carries.
#[derive(Debug)]
pub(crate) struct LeaseCell {
    deadline: AtomicU64,
    ttl_ns: AtomicU64,
    answered: AtomicBool,
}

impl LeaseCell {
    pub(crate) fn new(deadline: Ticks, ttl: Duration) -> Self {
        let cell = Self {
            deadline: AtomicU64::new(0),
            ttl_ns: AtomicU64::new(0),
            answered: AtomicBool::new(true),
        };
        cell.extend(deadline, ttl);
        cell
    }

    pub(crate) fn extend(&self, deadline: Ticks, ttl: Duration) {
        self.ttl_ns.store(u64::try_from(ttl.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.answered.store(true, Ordering::Relaxed);
        self.deadline.store(deadline.0, Ordering::Release);
    }

    pub(crate) fn doubt(&self) {
        self.answered.store(false, Ordering::Relaxed);
    }

    pub(crate) fn deadline(&self) -> Ticks {
        Ticks(self.deadline.load(Ordering::Acquire))
    }

    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_nanos(self.ttl_ns.load(Ordering::Relaxed))
    }

    /// The last renewal was answered and more than half of the lease is left: the hold may pass on
    /// (R9).
    pub(crate) fn is_fresh(&self, now: Ticks) -> bool {
        self.answered.load(Ordering::Relaxed) && self.deadline().since(now) > self.ttl() / 2
    }
}

const NO_TOKEN: u64 = u64::MAX;

/// One turn.
pub(crate) struct TurnCell {
    pub(crate) entry: Arc<Entry>,
    pub(crate) seq: Seq,
    pub(crate) hold: HoldId,
    pub(crate) lease: Option<Arc<LeaseCell>>,
    pub(crate) granted: Ticks,
    pub(crate) span: tracing::Span,
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
            span,
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

    /// Why the turn is over, if it is. Reads the clocks first (R15): the deadline counts even when
    /// nobody announced it yet.
    pub(crate) fn lost(&self) -> Option<Lost> {
        if self.is_forked() {
            return Some(Lost::Forked);
        }
        if let Some(why) = self.lost.get() {
            return Some(*why);
        }
        let lease = self.lease.as_ref()?;
        if self.entry.keeper.clock.now() < lease.deadline() {
            return None;
        }
        self.lose(Lost::Expired);
        self.lost.get().copied()
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
