//! Acquisition: the builder that every primitive gives, and the future behind it.

use std::future::{Future, IntoFuture};
use std::marker::PhantomData;
use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tracing::field::Empty;

use crate::engine::{Engine, Flush};
use crate::keeper::Keeper;
use crate::keeper::entry::request::{Request, invalid};
use crate::keeper::entry::{Begun, Entry};
use crate::primitives::guard::{Guard, GuardKind};
use crate::primitives::owner::Owner;
use crate::protocol::margin;
use crate::words::claim::{Mode, Through};
use crate::words::clock::Ticks;
use crate::words::error::{ErrorKind, Result};
use crate::words::guarantee::Ability;
use crate::words::name::Kind;
use crate::words::token::Token;

/// An acquisition that waits; `.await` it, or change it first.
///
/// # Errors
/// `TimedOut` (names the holder, or for how long the engine has not answered), `WouldDeadlock`,
/// `InvalidArgument`, `LimitMismatch`, `Unsupported`, `Unreachable`, `Refused`, `Corrupt`,
/// `NewerLayout`, `Closed`, `Unknown`.
///
/// # Cancel safety
/// Dropping it at any await leaves nothing behind as soon as the engine can be reached, and at the
/// lease's end when it cannot. A grant that it does not take within 1 s goes to the next, and
/// the acquisition starts anew when it is polled.
#[must_use = "an acquisition does nothing unless awaited"]
#[derive(Debug)]
pub struct Acquire<G = Guard> {
    pub(crate) plan: Plan,
    made: PhantomData<fn() -> G>,
}

/// An acquisition that does not wait: `None` when somebody holds the lock or waits for it.
///
/// # Errors
/// As [`Acquire`], without `TimedOut`.
///
/// # Cancel safety
/// As [`Acquire`].
#[must_use = "an acquisition does nothing unless awaited"]
#[derive(Debug)]
pub struct TryAcquire<G = Guard> {
    plan: Plan,
    made: PhantomData<fn() -> G>,
}

/// What is asked, of whom.
#[derive(Clone)]
pub(crate) struct Plan {
    /// What cannot be asked for is told when it is awaited, so that building a lock needs no `?`.
    pub(crate) entry: Result<Arc<Entry>>,
    pub(crate) request: Request,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = self.entry.as_ref().map(|entry| (entry.kind, &entry.name));
        f.debug_struct("Plan")
            .field("of", &of)
            .field("mode", &self.request.mode)
            .finish_non_exhaustive()
    }
}

impl Plan {
    /// The name's entry.
    pub(crate) fn entry(&self) -> Result<&Arc<Entry>> {
        self.entry.as_ref().map_err(Clone::clone)
    }

    /// Checks what can be checked without asking the engine.
    pub(crate) fn check(&self) -> Result<()> {
        let entry = self.entry()?;
        let facts = &entry.keeper.facts;
        let can = &facts.can;
        let needed = match self.request.mode {
            Mode::Exclusive => (entry.kind == Kind::Election).then_some(Ability::Election),
            Mode::Shared => Some(Ability::Shared),
            Mode::Upgradable => Some(Ability::Upgrade),
            Mode::Permits { .. } => Some(Ability::Permits),
        };
        let delay = (!self.request.lock_delay.is_zero()).then_some(Ability::Delay);
        if let Some(lacking) = needed.into_iter().chain(delay).find(|needed| !can.has(*needed)) {
            return Err(facts.lacks(lacking));
        }
        let session = entry.keeper.session();
        if let Some(margin) = self.request.margin {
            match session {
                Some(session) => check_margin(margin, "session", session)?,
                None if facts.expiry.is_per_hold() => {
                    check_margin(margin, "ttl", self.request.ttl)?
                }
                None => {}
            }
        }
        if let Some(session) = session.filter(|_| self.request.renew) {
            check_drift(self.request.margin, session, entry.keeper.settings.drift.per_mille)?;
        }
        self.request.check()
    }
}

/// A margin that a lease of this length can give.
fn check_margin(margin: Duration, what: &str, whole: Duration) -> Result<()> {
    if margin > margin::most(whole) {
        let text = format!(
            "a margin of {margin:?} is more than a third of the {what}, which is {whole:?}"
        );
        return Err(invalid(text));
    }
    Ok(())
}

/// A margin that proofs of a session can give beside this drift allowance.
fn check_drift(margin: Option<Duration>, session: Duration, per_mille: u32) -> Result<()> {
    if margin::session_gives(session, margin, per_mille) {
        return Ok(());
    }
    let (percent, margin) = (per_mille / 10, margin.unwrap_or(margin::default_of(session)));
    Err(invalid(format!(
        "drift={percent}% leaves a session of {session:?} no margin of {margin:?}: lower drift or \
         the margin"
    )))
}

macro_rules! options {
    ($type:ident) => {
        impl<G: GuardKind> $type<G> {
            pub(crate) fn new(plan: Plan) -> Self {
                Self { plan, made: PhantomData }
            }

            /// How long the lease lasts, 200 ms to 24 h, where a hold has a lease of its own;
            /// elsewhere it changes nothing.
            pub fn ttl(mut self, ttl: Duration) -> Self {
                self.plan.request.ttl = ttl;
                self
            }

            /// A fixed lease: it is not renewed and ends `ttl` after the grant.
            pub fn no_renew(mut self) -> Self {
                self.plan.request.renew = false;
                self
            }

            /// How much of the lease the caller relies on at any time, as one that needs this long
            /// to stop its work; a fifth unless it is said, and at most a third, of the ttl or,
            /// where holds rest on a session, of the session.
            ///
            /// While the server is healthy the lease is renewed so early that more than this is
            /// always left ([`Held::remaining`](crate::Held::remaining)). A greater margin costs
            /// more renewals. Without renewals ([`Self::no_renew`]), and where a hold has no lease,
            /// it changes nothing.
            pub fn margin(mut self, margin: Duration) -> Self {
                self.plan.request.margin = Some(margin);
                self
            }

            /// Acquires as this owner, who may enter again what it holds.
            pub fn owner(mut self, owner: &Owner) -> Self {
                self.plan.request.owner = Some(owner.clone());
                self
            }

            /// Ends the hold after this time if the guard is still there: for workers that get
            /// stuck.
            pub fn hold_at_most(mut self, time: Duration) -> Self {
                self.plan.request.hold_at_most = Some(time);
                self
            }

            /// After a lease that ran out, nobody gets the lock for this time: for resources that
            /// cannot check a token.
            pub fn lock_delay(mut self, time: Duration) -> Self {
                self.plan.request.lock_delay = time;
                self
            }

            /// A text that is shown to others about this hold.
            pub fn label(mut self, label: impl Into<String>) -> Self {
                if let Ok(entry) = &self.plan.entry {
                    let mut who = (*entry.keeper.who).clone();
                    who.label = Some(bounded(label.into()));
                    self.plan.request.who = Some(Arc::new(who));
                }
                self
            }

            /// The thread is known and may not wait for itself.
            pub(crate) fn this_thread(mut self) -> Self {
                self.plan.request.thread = Some(std::thread::current().id());
                self
            }
        }
    };
}

options!(Acquire);
options!(TryAcquire);

/// Labels are shown to others: at most 1 KiB, cut at a character.
fn bounded(mut label: String) -> String {
    if label.len() > crate::words::name::NAME_MAX {
        let end = (0..=crate::words::name::NAME_MAX)
            .rev()
            .find(|at| label.is_char_boundary(*at))
            .unwrap_or(0);
        label.truncate(end);
    }
    label
}

impl<G> Acquire<G> {
    /// A value that is stored with the hold.
    pub(crate) fn value(mut self, value: Arc<str>) -> Self {
        self.plan.request.value = Some(value);
        self
    }

    /// This thread waits for it alone, and unless it is to give up, as long as it takes.
    pub(crate) fn here(mut self) -> Self {
        self.plan.request.here = !self.plan.request.is_patient();
        self
    }

    /// Gives up after this time, which begins with the first poll; the error then names the holder,
    /// if the engine has said by then who that is. Zero asks once. A server that cannot be reached
    /// is tried again until the time is over.
    pub fn timeout(mut self, time: Duration) -> Self {
        self.plan.request.timeout = Some(time);
        self
    }

    /// Gives up once the engine has not answered for this time; without it a place in line is kept
    /// through any outage. Engines that keep their locks on this machine are never unreachable.
    ///
    /// The error is `Unreachable`, or what the server refuses the connection with. The time counts
    /// from the first question that was not answered, or from the first poll if that is later. An
    /// acquisition with this option or a timeout also waits for a server that is away at its start.
    pub fn unreachable_after(mut self, time: Duration) -> Self {
        self.plan.request.unreachable_after = Some(time);
        self
    }
}

impl<G> TryAcquire<G> {
    pub(crate) fn into_acquiring(mut self) -> Acquiring {
        self.plan.request.try_only = true;
        Acquiring::new(self.plan)
    }
}

impl<G: GuardKind> IntoFuture for Acquire<G> {
    type Output = Result<G>;
    type IntoFuture = Acquired<G>;

    #[track_caller]
    fn into_future(self) -> Acquired<G> {
        Acquired { acquiring: Acquiring::new(self.plan), made: PhantomData }
    }
}

impl<G: GuardKind> IntoFuture for TryAcquire<G> {
    type Output = Result<Option<G>>;
    type IntoFuture = TryAcquired<G>;

    fn into_future(self) -> TryAcquired<G> {
        TryAcquired { acquiring: self.into_acquiring(), made: PhantomData }
    }
}

/// The future of [`Acquire`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct Acquired<G> {
    acquiring: Acquiring,
    made: PhantomData<fn() -> G>,
}

impl<G: GuardKind> Future for Acquired<G> {
    type Output = Result<G>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<G>> {
        Pin::new(&mut self.acquiring).poll(context).map(|got| match got? {
            Some(guard) => Ok(G::make(guard)),
            None => Err(crate::Error::new(ErrorKind::TimedOut, "not obtained")),
        })
    }
}

/// The future of [`TryAcquire`].
#[must_use = "futures do nothing unless awaited"]
#[derive(Debug)]
pub struct TryAcquired<G> {
    acquiring: Acquiring,
    made: PhantomData<fn() -> G>,
}

impl<G: GuardKind> Future for TryAcquired<G> {
    type Output = Result<Option<G>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.acquiring).poll(context).map_ok(|got| got.map(G::make))
    }
}

/// An acquisition on its way.
#[derive(Debug)]
pub(crate) struct Acquiring {
    plan: Plan,
    state: State,
    give_up: Option<Ticks>,
    /// With a timeout of zero.
    asks_once: bool,
    span: tracing::Span,
    began: Option<Ticks>,
    /// What gathers is written when it is polled again, or dropped.
    flush: Option<Flush>,
}

#[derive(Debug)]
enum State {
    New,
    Waiting(u64),
    Done,
}

impl Acquiring {
    pub(crate) fn new(plan: Plan) -> Self {
        Self {
            plan,
            state: State::New,
            give_up: None,
            asks_once: false,
            span: tracing::Span::none(),
            began: None,
            flush: None,
        }
    }

    fn start(&mut self) -> Result<()> {
        self.plan.check()?;
        if self.plan.request.owner.is_none() {
            self.plan.request.owner = Owner::current();
        }
        if self.plan.request.timeout == Some(Duration::ZERO) {
            // Asks once, as a try does: the answer needs longer than no time at all.
            self.plan.request.timeout = None;
            self.plan.request.try_only = true;
            self.asks_once = true;
        }
        let entry = self.plan.entry()?;
        let (engine, name) = (entry.keeper.facts.engine, entry.name.as_str());
        self.span = tracing::debug_span!("acquire", engine, name, token = Empty, waited_ms = Empty);
        // A try waits for one answer, and for no second one where the first does not come.
        let answers_within =
            entry.keeper.facts.request_timeout.filter(|_| self.plan.request.try_only);
        let timeout = self.plan.request.timeout.or(answers_within);
        if timeout.is_some() || cfg!(feature = "metrics") || !self.span.is_none() {
            let now = entry.keeper.now();
            self.began = Some(now);
            self.give_up = timeout.map(|time| now.plus(time));
        }
        Ok(())
    }

    fn step(&mut self, context: &mut Context<'_>) -> Poll<Result<Option<Guard>>> {
        if self.began.is_none() && matches!(self.state, State::New) {
            self.start()?;
        }
        self.flush = None;
        let entry = self.plan.entry()?;
        let inlet = |engine: &dyn Engine| engine.inlet();
        loop {
            let begun = match self.state {
                State::New => entry
                    .keeper
                    .asking(|| entry.begin(&self.plan.request, self.give_up, context.waker())),
                State::Waiting(seq) => entry.poll_turn(seq, &self.plan.request, context.waker()),
                State::Done => return Poll::Pending,
            };
            self.state = State::Done;
            match begun? {
                Begun::Got(cell) => {
                    if let Some(began) = self.began {
                        self.note_wait(cell.granted.since(began), cell.token());
                    }
                    return Poll::Ready(Ok(Some(Guard::new(cell, self.plan.request.mode))));
                }
                Begun::Busy(holder) if self.plan.request.try_only && !self.asks_once => {
                    drop(holder);
                    return Poll::Ready(Ok(None));
                }
                Begun::Busy(holder) => {
                    if self.asks_once {
                        return Poll::Ready(Err(entry.timed_out(holder)));
                    }
                    let error = entry.error(
                        ErrorKind::TimedOut,
                        "another caller holds it, and this engine keeps no line",
                    );
                    return Poll::Ready(Err(error.held_by(holder.map(|h| *h))));
                }
                Begun::Waiting { seq, own_wait, outstanding } => {
                    self.state = State::Waiting(seq);
                    if let Some(wait) = own_wait {
                        wait();
                    } else if !outstanding || !entry.keeper.lend(inlet, context, &mut self.flush) {
                        return Poll::Pending;
                    }
                    // Something was read in this thread: perhaps the answer.
                }
                Begun::AskAnew => self.state = State::New,
            }
        }
    }

    fn note_wait(&self, waited: Duration, token: Option<Token>) {
        if let Some(token) = token {
            self.span.record("token", token.get());
        }
        self.span.record("waited_ms", u64::try_from(waited.as_millis()).unwrap_or(u64::MAX));
        #[cfg(feature = "metrics")]
        if let Ok(entry) = &self.plan.entry {
            crate::observe::metrics::waited(entry.keeper.facts.engine, waited);
        }
    }
}

impl Future for Acquiring {
    type Output = Result<Option<Guard>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.span.is_none() {
            return self.step(context);
        }
        let span = self.span.clone();
        let _entered = span.enter();
        self.step(context)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        if let (State::Waiting(seq), Ok(entry)) = (&self.state, &self.plan.entry)
            && !entry.keeper.is_forked()
        {
            entry.abandon(*seq);
        }
    }
}

impl Request {
    /// What a lock asks for unless it is told otherwise.
    #[track_caller]
    pub(crate) fn of(keeper: &Keeper, mode: Mode) -> Self {
        Self {
            mode,
            ttl: keeper.settings.ttl,
            renew: true,
            margin: None,
            lock_delay: Duration::ZERO,
            timeout: None,
            unreachable_after: None,
            try_only: false,
            hold_at_most: None,
            owner: None,
            thread: None,
            here: false,
            who: None,
            value: None,
            through: Through::Mutex,
            taken_at: Location::caller(),
        }
    }
}
