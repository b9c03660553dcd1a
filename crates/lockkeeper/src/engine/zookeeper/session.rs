//! The session's driver: it connects, hands over what comes in, sends what goes out, and connects
//! again.

mod serve;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, timeout_at};

use self::serve::Serve;
use super::connection::Connection;
use super::options::Options;
use super::proto::SessionKey;
use super::state::State;
use super::timeouts::Patience;
use super::wire::{Dialled, NotTaken, dial};
use crate::engine::password::{AGAIN, EARLY, Login};
use crate::engine::{Event, EventSink, Inlet};
use crate::words::clock::Clock;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;

/// Shared by the engine's callers and the driver.
pub(super) struct Shared {
    pub(super) options: Arc<Options>,
    pub(super) clock: Clock,
    events: EventSink,
    state: Mutex<State>,
    /// The driver, while it serves a connection.
    driver: Mutex<Option<Waker>>,
    /// What it serves, if callers can read it.
    connection: Mutex<Option<Arc<Connection>>>,
    pub(super) patience: Patience,
    /// The engine is being closed.
    closing: Notify,
}

/// With fewer requests unanswered, those of a caller are written by itself; above, they gather and
/// leave together. A release is always written by itself, with all that gathered before it: the
/// process may end before the driver runs.
const DIRECT_BELOW: usize = 4;

/// Who locks the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Somebody who calls the engine, and must not be sent an event from inside of that.
    Caller,
    /// A caller that reads what came, and holds no lock of its own.
    Lent,
    Driver,
}

/// The state's lock; what is to be told is told after it was given back.
pub(super) struct Locked<'a> {
    shared: &'a Shared,
    state: Option<MutexGuard<'a, State>>,
    role: Role,
    /// How many requests were unanswered before.
    outstanding: usize,
}

impl std::ops::Deref for Locked<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        match &self.state {
            Some(state) => state,
            None => unreachable!("only the drop takes the guard"),
        }
    }
}

impl std::ops::DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut State {
        match &mut self.state {
            Some(state) => state,
            None => unreachable!("only the drop takes the guard"),
        }
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut state) = self.state.take() else { return };
        let caller = self.role == Role::Caller;
        let (attempts, ends) =
            (std::mem::take(&mut state.outbox.attempts), std::mem::take(&mut state.outbox.ends));
        let calls = std::mem::take(&mut state.outbox.calls);
        let told = if caller { None } else { state.begin_to_tell() };
        let wake = self.role != Role::Driver && {
            let releases = std::mem::take(&mut state.releasing);
            if !caller || releases || self.outstanding < DIRECT_BELOW {
                state.write_directly();
            }
            if releases {
                state.released(self.outstanding);
            }
            state.needs_driver() || (caller && !state.outbox.events.is_empty())
        };
        drop(state);
        for (sender, answer) in attempts {
            _ = sender.send(answer);
        }
        for (sender, end) in ends {
            _ = sender.send(end);
        }
        for (sender, reply) in calls {
            _ = sender.send(reply);
        }
        if let Some(events) = told {
            self.shared.tell(events);
        }
        if wake {
            self.shared.wake();
        }
    }
}

impl Shared {
    pub(super) fn new(options: Arc<Options>, clock: Clock, events: EventSink) -> Self {
        let state = Mutex::new(State::new(options.clone(), clock.clone()));
        let patience = Patience::new(options.request_timeout);
        let (driver, connection) = (Mutex::default(), Mutex::default());
        Self { options, clock, events, state, driver, connection, patience, closing: Notify::new() }
    }

    pub(super) fn lock(&self) -> Locked<'_> {
        self.lock_as(Role::Caller)
    }

    pub(super) fn lock_as(&self, role: Role) -> Locked<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        Locked { shared: self, outstanding: state.outstanding(), state: Some(state), role }
    }

    /// Tells events, and those that come meanwhile: in the order in which they happened, whoever
    /// read of them.
    fn tell(&self, mut events: Vec<Event>) {
        struct Telling<'a>(&'a Shared);
        impl Drop for Telling<'_> {
            fn drop(&mut self) {
                // Only after a panic; the driver tells the rest.
                self.0.state.lock().unwrap_or_else(PoisonError::into_inner).telling = false;
                self.0.wake();
            }
        }
        let telling = Telling(self);
        loop {
            for event in events {
                self.events.send(event);
            }
            match self.state.lock().unwrap_or_else(PoisonError::into_inner).go_on_telling() {
                Some(more) => events = more,
                None => break,
            }
        }
        std::mem::forget(telling);
    }

    pub(super) fn wake(&self) {
        let waker = self.driver.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Where answers come in, if callers can read them.
    pub(super) fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        let connection = self.connection.lock().unwrap_or_else(PoisonError::into_inner);
        Some(connection.as_ref().filter(|connection| connection.is_shared())?.clone())
    }

    /// Ends the driver.
    pub(super) fn close(&self) {
        self.lock().closing = true;
        self.closing.notify_one();
        self.wake();
    }
}

/// Runs until the engine is closed, or the ensemble refuses us for good; before the first
/// connection, until nobody listens anywhere. `ready` hears how the first connection went.
pub(super) async fn drive(
    shared: Arc<Shared>,
    ready: oneshot::Sender<Result<()>>,
    done: oneshot::Sender<()>,
) {
    let mut ready = Some(ready);
    let mut round = Round::new(&shared.options);
    loop {
        let dialled = {
            let mut connecting = std::pin::pin!(connect(&shared, &mut round, ready.is_some()));
            let mut closing = std::pin::pin!(shared.closing.notified());
            std::future::poll_fn(|cx| {
                if closing.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(None);
                }
                connecting.as_mut().poll(cx)
            })
            .await
        };
        let Some((at, login, dialled)) = dialled else { break };
        let Dialled { mut link, answer, sent } = dialled;
        if answer.key.id == 0 || answer.timeout_ms <= 0 {
            tracing::info!("the ZooKeeper session is over");
            shared.lock_as(Role::Driver).session_over();
            round.failures = 0;
            continue;
        }
        let timeout = Duration::from_millis(u64::from(answer.timeout_ms.unsigned_abs()));
        let direct = link.direct.take();
        shared.lock_as(Role::Driver).connected(answer.key, timeout, sent, direct, (at, login));
        let serve = Serve::new(shared.clone(), link, timeout, ready.take());
        let connection = serve.connection.clone();
        *shared.connection.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(connection.clone());
        let (why, opening) = serve.await;
        *shared.connection.lock().unwrap_or_else(PoisonError::into_inner) = None;
        // Whoever still reads it is waited for.
        connection.close();
        ready = opening;
        tracing::info!(%why, "the connection to ZooKeeper is gone");
        let mut state = shared.lock_as(Role::Driver);
        state.disconnected();
        if let Some(refused) = state.not_here.take() {
            // It is the word of one server, and another may take the identity. One that is being
            // changed is as an ensemble that is away.
            state.failed(at, refused);
            state.refused = state.refused_by_all();
            round.owed = round.pause();
            round.refused(at, Instant::now());
        } else {
            round.failures = 0;
            round.refusals.remove(&at);
            state.last_failure = why;
        }
        if let Some(error) = state.refused.clone() {
            // The session runs out by itself, and with it what is held; whoever waits is told now.
            state.refuse_waiting(&error);
            break;
        }
        if state.closing {
            break;
        }
    }
    let mut state = shared.lock_as(Role::Driver);
    state.disconnected();
    state.give_up_calls();
    if let (Some(ready), Some(error)) = (ready, state.refused.clone()) {
        _ = ready.send(Err(error));
    }
    drop(state);
    shared.patience.close();
    _ = done.send(());
}

/// In which order servers are tried, and how long to wait in between.
struct Round {
    order: Vec<usize>,
    next: usize,
    /// How many servers in turn did not take us.
    failures: u32,
    /// How long to wait before the next try.
    owed: Duration,
    /// Who refused our identity when it was tried last, when, and how often in turn.
    refusals: BTreeMap<usize, (Instant, u32)>,
}

impl Round {
    fn new(options: &Options) -> Self {
        // Each process begins elsewhere, so that they spread over the ensemble.
        let start =
            usize::try_from(ClaimId::fresh().0 % options.hosts.len().max(1) as u128).unwrap_or(0);
        let count = options.hosts.len();
        Self {
            order: (0..count).map(|n| (start + n) % count.max(1)).collect(),
            next: 0,
            failures: 0,
            owed: Duration::ZERO,
            refusals: BTreeMap::new(),
        }
    }

    /// This server refused our identity.
    fn refused(&mut self, at: usize, now: Instant) {
        let (since, times) = self.refusals.entry(at).or_insert((now, 0));
        (*since, *times) = (now, *times + 1);
    }

    /// Whether it is not dialled yet: whoever offers a wrong one again and again locks an account.
    /// It may just have started again without its users, so the first time is shorter.
    fn leaves_alone(&self, at: usize, now: Instant) -> bool {
        let pause = |times| if times == 1 { EARLY } else { AGAIN };
        let refused = self.refusals.get(&at);
        refused.is_some_and(|(since, times)| now.duration_since(*since) < pause(*times))
    }

    fn pick(&mut self) -> Option<usize> {
        let at = self.order.get(self.next % self.order.len().max(1)).copied();
        self.next += 1;
        at
    }

    /// How long to wait before the next try: not within a round, then longer and longer up to a
    /// second, and never in step with other processes.
    fn pause(&mut self) -> Duration {
        self.failures += 1;
        let rounds = self.failures / u32::try_from(self.order.len().max(1)).unwrap_or(1);
        if rounds == 0 || !self.next.is_multiple_of(self.order.len().max(1)) {
            return Duration::ZERO;
        }
        let longest = 100u64 << rounds.min(4).saturating_sub(1);
        let jitter = u64::try_from(ClaimId::fresh().0 % 100).unwrap_or(0);
        Duration::from_millis(longest.min(1_000) * (50 + jitter / 2) / 100)
    }
}

/// Tries one server after the other until one takes us; `None` when all have said why none ever
/// will.
async fn connect(
    shared: &Shared,
    round: &mut Round,
    first: bool,
) -> Option<(usize, Option<Login>, Dialled)> {
    loop {
        let owed = std::mem::take(&mut round.owed);
        if !owed.is_zero() {
            tokio::time::sleep(owed).await;
        }
        let (key, last_zxid, timeout, down_since) = {
            let state = shared.lock_as(Role::Driver);
            let (key, timeout) = match &state.session {
                Some(session) => (session.key.clone(), session.timeout),
                None => (SessionKey::fresh(), shared.options.session_timeout),
            };
            (key, state.last_zxid, timeout, state.down_since)
        };
        let picked = round.pick().and_then(|at| Some((at, shared.options.hosts.get(at)?)));
        let Some((at, server)) = picked else {
            std::future::pending::<()>().await;
            continue;
        };
        // Where a file gives the identity, the password knows when it is offered again.
        if shared.options.more_auth.is_none() && round.leaves_alone(at, Instant::now()) {
            round.owed = round.pause();
            continue;
        }
        // While a session runs, a server that hangs must leave time for the others.
        let hosts = u32::try_from(shared.options.hosts.len().max(1)).unwrap_or(1);
        let whole = shared.options.connect_timeout;
        let patience = if first { whole / hosts.min(4) } else { whole.min(timeout / 5) }
            .max(Duration::from_millis(100));
        let (tls, clock, until) =
            (shared.options.tls.as_ref(), &shared.clock, Instant::now() + patience);
        let more_auth = shared.options.more_auth.as_ref();
        let name = shared.options.server(at);
        let mut login = None;
        let dialling = async {
            if let Some(more) = more_auth {
                login = Some(more.to_dial(&name, until).await?);
            }
            dial(server, tls, &key, last_zxid, timeout, until, clock).await
        };
        let failed: NotTaken = match timeout_at(until, dialling).await {
            Ok(Ok(dialled)) => return Some((at, login, dialled)),
            Ok(Err(not)) => not,
            Err(_) => {
                let text = format!("no answer within {patience:?}");
                Error::new(ErrorKind::Unreachable, text).into()
            }
        };
        let is_over = down_since.is_some_and(|at| shared.clock.now().since(at) > timeout * 2);
        // What was not dialled for what it said is not dialled for this, either.
        if is_over && (login.is_some() || more_auth.is_none()) {
            // The session is over by any clock. A server whose data was restored knows less than we
            // have seen, and refuses us for that.
            let fresh = SessionKey::fresh();
            let until = Instant::now() + patience;
            let anew = dial(server, tls, &fresh, 0, timeout, until, clock);
            if let Ok(Ok(dialled)) = timeout_at(until, anew).await {
                tracing::warn!(
                    host = %server.0,
                    port = server.1,
                    "ZooKeeper knows less than it did: was it restored? A new session is begun"
                );
                let mut state = shared.lock_as(Role::Driver);
                state.session_over();
                state.last_zxid = 0;
                return Some((at, login, dialled));
            }
        }
        tracing::debug!(
            host = %server.0,
            port = server.1,
            why = %failed.why,
            "cannot connect to ZooKeeper"
        );
        {
            let mut state = shared.lock_as(Role::Driver);
            state.failed(at, failed);
            // While it runs, the others may come to know better.
            if first && let Some(error) = state.refused_by_all() {
                state.refused = Some(error);
                return None;
            }
            // Nobody listens anywhere: whoever opens the engine knows how long to try again.
            if first && state.all_are_away() {
                state.refused = Some(state.unanswered());
                return None;
            }
            if first {
                let why = state.unanswered();
                state.outbox.events.push(Event::Trying { why });
            }
        }
        round.owed = round.pause();
        if let Some(more) = more_auth {
            round.owed = more.pause(&name, round.owed, timeout);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::open::url::EngineUrl;

    #[test]
    fn b2_a_server_that_refused_an_identity_is_offered_it_again_after_a_pause() {
        let mut url = EngineUrl::parse("zk://a,b,c?auth=digest:me:it").unwrap();
        let mut round = Round::new(&Options::from_url(&mut url, 100).unwrap());
        let (mut now, moment) = (Instant::now(), Duration::from_millis(1));
        assert!(!round.leaves_alone(1, now));
        // Once soon, for it may have been given its users since.
        for pause in [EARLY, AGAIN, AGAIN] {
            round.refused(1, now);
            let late = now + pause - moment;
            assert!(round.leaves_alone(1, late) && !round.leaves_alone(0, late), "{pause:?}");
            now += pause;
            assert!(!round.leaves_alone(1, now), "{pause:?}");
        }
    }
}
