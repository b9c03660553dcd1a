//! What a caller keeps during its turn.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::oneshot::Receiver;

use crate::engine::{End, Engine, Standing};
use crate::keeper::Keeper;
use crate::keeper::cell::TurnCell;
use crate::keeper::entry::Over;
use crate::keeper::entry::release::Told;
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::lost::Lost;
use crate::words::name::Name;
use crate::words::token::Token;

/// A turn on a lock: the lock is yours until this is released or dropped, or until it is lost.
///
/// Dropping it releases without waiting for the answer; it never blocks, panics or spawns.
///
/// When the drop returns, the release is with the kernel, where the socket has room (over TLS,
/// unless the driver uses the connection at that moment). The keeper's thread writes what the
/// socket did not take, and on PostgreSQL every release. The end of the process, by `exit` or by a
/// return from `main`, waits for that, and for answers to what was sent before, up to 100 ms.
/// Nothing waits at `_exit`, abort, a signal or exec, and in a forked child the drop does nothing.
/// None of this says that the release has arrived: only [`release`](Guard::release)`().await`
/// knows. One that got lost leaves the lock to its lease.
#[must_use = "the lock is given back as soon as its guard is dropped"]
pub struct Guard {
    held: Held,
    /// What it was given: other guards of its owner must not take it away.
    mode: Mode,
    given_back: bool,
}

/// What a turn can be handed out as; this crate's own types only.
#[doc(hidden)]
pub trait GuardKind: sealed::Sealed {
    /// Makes it from a turn that was just taken.
    fn make(guard: Guard) -> Self;
}

pub(crate) mod sealed {
    pub trait Sealed {}
}

impl sealed::Sealed for Guard {}

impl GuardKind for Guard {
    fn make(guard: Guard) -> Self {
        guard
    }
}

/// A view of a turn that can be handed to everything that works under it: tasks, threads,
/// libraries.
///
/// It does not keep the lock; it tells whether the lock is still there.
#[derive(Clone)]
pub struct Held(Arc<TurnCell>);

/// How a release ended.
#[must_use = "a release that was lost or unknown is worth knowing"]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Released {
    /// Given back, and it was ours until now.
    Clean,
    /// It was lost before; nothing was touched.
    AlreadyLost(Lost),
    /// It was not ours any more although nobody had told us; logged as an illegal release, nothing
    /// was touched.
    NotOurs,
    /// The engine did not answer; the keeper repeats the release until the lease would be over.
    Unknown(Error),
}

impl Released {
    /// Whether the lock was ours until it was given back.
    pub fn is_clean(&self) -> bool {
        matches!(self, Self::Clean)
    }
}

impl Guard {
    pub(crate) fn new(cell: Arc<TurnCell>, mode: Mode) -> Self {
        Self { held: Held(cell), mode, given_back: false }
    }

    pub(crate) fn cell(&self) -> &Arc<TurnCell> {
        &self.held.0
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    /// It is a reader's from now on.
    pub(crate) fn downgraded(mut self) -> Self {
        self.cell().entry.was_downgraded(self.cell(), self.mode);
        self.mode = Mode::Shared;
        self
    }

    /// A view to hand around: token, loss, remaining time.
    pub fn held(&self) -> Held {
        self.held.clone()
    }

    /// The fencing token of this turn.
    ///
    /// # Errors
    /// `NoToken` for permits and for layouts without a counter; `Lost` and the temporary `Unknown`
    /// as [`Held::check`].
    pub fn token(&self) -> Result<Token> {
        self.held.token()
    }

    /// Whether the lock is gone. Reads the clocks; no I/O.
    pub fn is_lost(&self) -> bool {
        self.held.is_lost()
    }

    /// `Err` when the lock is gone, or in doubt. Reads the clocks; no I/O.
    ///
    /// # Errors
    /// `Lost` and the temporary `Unknown` as [`Held::check`].
    pub fn check(&self) -> Result<()> {
        self.held.check()
    }

    /// Completes when the lock is gone: at the latest at the local deadline, also while every
    /// network call hangs.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> Lost {
        self.held.lost().await
    }

    /// Asks the engine now, for use before an irreversible act. Its answer counts also where
    /// [`Held::check`] says that the lock is in doubt.
    ///
    /// # Errors
    /// `Lost` when the lock is gone; `Unreachable` or `Unknown` when the engine did not answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn verify(&self) -> Result<()> {
        self.held.verify().await
    }

    /// How long the lease certainly lasts; `None` where a hold has no lease.
    pub fn remaining(&self) -> Option<Duration> {
        self.held.remaining()
    }

    /// Until when the lease is ours, if nothing renews it; `None` where a hold has no lease.
    pub fn deadline(&self) -> Option<Instant> {
        self.held.deadline()
    }

    /// Runs work that cannot fail, and drops it when the lock is lost.
    ///
    /// # Errors
    /// `Lost`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        self.held.run(work).await
    }

    /// Runs work, and drops it when the lock is lost.
    ///
    /// # Errors
    /// The work's own, or `Lost`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    pub async fn try_run<T, E: From<Error>>(
        &self,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        self.held.run(work).await.map_err(E::from)?
    }

    /// Gives the lock back and says how that went.
    ///
    /// On Redis and on a quorum the end of the process, by `exit` or by a return from `main`, waits
    /// for the answers of all servers up to 100 ms, also where this future was dropped; always so
    /// long where one does not answer. Of many callers one writes what all of them ask: where
    /// another task is about to, a release whose future is dropped is with the kernel about 2 ms
    /// later. `_exit`, abort, a signal or exec before that lose it, and the lock is left to its
    /// lease. A guard that is dropped has no such gap.
    ///
    /// # Cancel safety
    /// The release happens also when this future is dropped; only its outcome is not heard then.
    pub async fn release(mut self) -> Released {
        let over = self.cell().entry.keeper.asking(|| self.give_back(true));
        self.given_back = true;
        match over {
            Over::Lost(why) => Released::AlreadyLost(why),
            Over::Passed => Released::Clean,
            Over::Ended(told) => released(told),
            Over::Soon(answer) => match answered(self.cell().entry.keeper.clone(), answer).await {
                Some(told) => released(told),
                None => Released::Unknown(self.cell().entry.closed()),
            },
        }
    }

    fn give_back(&self, tell: bool) -> Over {
        let cell = self.cell();
        if cell.is_forked() {
            return Over::Lost(Lost::Forked);
        }
        let (engine, token) = (cell.entry.keeper.facts.engine, cell.token().map(Token::get));
        let span = tracing::debug_span!("release", engine, name = %cell.entry.name, token);
        let _entered = span.enter();
        cell.entry.turn_over(cell, self.mode, tell)
    }
}

/// Waits for the answer to a release, and reads it in this thread where it comes there first.
async fn answered(keeper: Arc<Keeper>, mut answer: Receiver<Told>) -> Option<Told> {
    let inlet = |engine: &dyn Engine| engine.inlet_of_releases();
    let mut flush = None;
    poll_fn(|context| {
        flush = None;
        loop {
            let polled = Pin::new(&mut answer).poll(context);
            if polled.is_ready() || !keeper.lend(inlet, context, &mut flush) {
                return polled;
            }
        }
    })
    .await
    .ok()
}

/// What an engine's answer means.
fn released(told: Told) -> Released {
    match told.end {
        End::Freed => Released::Clean,
        End::NotOurs | End::Gone(_) if told.over => Released::AlreadyLost(Lost::Expired),
        End::NotOurs => Released::NotOurs,
        End::Gone(why) => Released::AlreadyLost(why),
        End::Unknown(error) => Released::Unknown(error),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.given_back {
            self.give_back(false);
        }
    }
}

impl Held {
    pub(crate) fn cell(&self) -> &TurnCell {
        &self.0
    }

    /// The lock's name.
    pub fn name(&self) -> &Name {
        &self.0.entry.name
    }

    /// The fencing token of this turn.
    ///
    /// # Errors
    /// `NoToken` for permits and for layouts without a counter; `Lost` and the temporary `Unknown`
    /// as [`Held::check`].
    pub fn token(&self) -> Result<Token> {
        self.check()?;
        let none = || self.0.entry.error(ErrorKind::NoToken, "this hold carries no fencing token");
        self.0.token().ok_or_else(none)
    }

    /// Whether the lock is gone. Reads the clocks; no I/O.
    pub fn is_lost(&self) -> bool {
        self.0.lost().is_some()
    }

    /// `Err` when the lock is gone, or in doubt. Reads the clocks; no I/O.
    ///
    /// # Errors
    /// - `Lost`, with the reason.
    /// - `Unknown`, which is temporary, while the lock is in doubt: the time of day of this machine
    ///   was set forward, by more than half of the drift allowance, and the engine has not answered
    ///   since. Mostly that is a correction, and the next renewal, which is sent at once, ends the
    ///   doubt. A machine that was restored from a checkpoint learns in no other way that it stood
    ///   still. Without an answer within `request_timeout` (twice that where a question is under
    ///   way, and where a session carries the lock a quarter of it more) the lock is lost, with the
    ///   reason [`Lost::ClockStepped`]; until then nothing else says that it is:
    ///   [`Held::is_lost`], [`Held::lost`] and [`Held::run`] go on.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Why the lock is gone, if it is.
    pub fn why_lost(&self) -> Option<Lost> {
        self.0.lost()
    }

    /// Completes when the lock is gone: at the latest at the local deadline, also while every
    /// network call hangs.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn lost(&self) -> Lost {
        self.0.ended().await
    }

    /// Completes when somebody asks politely for the lock (cooperative revocation), or when it is
    /// gone.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn asked(&self) {
        self.0.asked().await;
    }

    /// Asks the engine now, for use before an irreversible act. Its answer counts also where
    /// [`Held::check`] says that the lock is in doubt.
    ///
    /// # Errors
    /// `Lost` when the lock is gone; `Unreachable` or `Unknown` when the engine did not answer.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn verify(&self) -> Result<()> {
        self.0.not_lost()?;
        let entry = &self.0.entry;
        let sent = entry.keeper.clock.now();
        let answers = entry.keeper.answer(entry.keeper.engine.recheck(&[self.0.hold])).await?;
        let why = match answers.into_iter().next() {
            // The clocks are read first: a step that nobody has noticed yet may lie between the
            // question and its answer. What was asked after the last one is in no doubt by it.
            Some(Standing::Held(_)) => {
                let checked = self.check();
                if checked.is_err() && entry.keeper.clock.last_step() <= sent {
                    return self.0.not_lost();
                }
                return checked;
            }
            Some(Standing::Unknown(error)) => {
                return Err(error.name(&entry.name).engine(entry.keeper.facts.engine));
            }
            Some(Standing::Gone(error)) if error.is_temporary() => {
                return Err(error.name(&entry.name).engine(entry.keeper.facts.engine));
            }
            _ => self.0.lost().unwrap_or(Lost::TakenAway),
        };
        // What the engine says is final, also for the guard (R2).
        entry.ended(self.0.hold, why, false);
        Err(self.0.lost_error(self.0.lost().unwrap_or(why)))
    }

    /// How long the lease certainly lasts, unless it is in doubt ([`Held::check`]); `None` where a
    /// hold has no lease.
    pub fn remaining(&self) -> Option<Duration> {
        let lease = self.0.lease.as_ref()?;
        Some(if self.is_lost() {
            Duration::ZERO
        } else {
            lease.deadline().since(self.0.entry.keeper.clock.now())
        })
    }

    /// How long the lease lasts from one renewal to its end, as the engine granted it; `None` where
    /// a hold has no lease.
    pub fn lease_ttl(&self) -> Option<Duration> {
        let lease = self.0.lease.as_ref()?;
        Some(self.0.entry.keeper.session().unwrap_or_else(|| lease.ttl()))
    }

    /// Renews the lease now, unless that is under way or it is a fixed one; does not wait for the
    /// answer.
    #[doc(hidden)]
    pub fn renew_now(&self) {
        if !self.is_lost() {
            self.0.entry.keeper.renew_now(self.0.hold);
        }
    }

    /// How much of the lease is left unused at its end, because clocks run at different rates;
    /// `None` where a hold has no lease.
    pub fn drift(&self) -> Option<Duration> {
        Some(self.0.entry.keeper.settings.drift.of(self.lease_ttl()?))
    }

    /// Until when the lease is ours if nothing renews it; `None` where a hold has no lease.
    ///
    /// An `Instant` stands still in suspend and the lease does not: [`Held::is_lost`] is what
    /// decides.
    pub fn deadline(&self) -> Option<Instant> {
        // Read first: a pause in between must not make the deadline later than it is.
        let now = Instant::now();
        self.remaining().and_then(|left| now.checked_add(left))
    }

    /// Runs work, and drops it when the lock is lost.
    ///
    /// # Errors
    /// `Lost`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T> {
        let mut work = std::pin::pin!(work);
        let mut lost = std::pin::pin!(self.lost());
        std::future::poll_fn(|context| {
            // The loss first: work that is ready and late must not pass for work that was done in
            // time.
            if let std::task::Poll::Ready(why) = lost.as_mut().poll(context) {
                return std::task::Poll::Ready(Err(self.0.lost_error(why)));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.held, f)
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}
