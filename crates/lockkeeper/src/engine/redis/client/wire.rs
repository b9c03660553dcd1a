//! The connections to one server: made, remade with back-off, and used for script calls.

mod hello;

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::super::errors;
use super::super::facts::Facts;
use super::super::options::{Address, RedisOptions};
use super::gate::Gate;
use super::pipe::{Broken, OnPush, Outcome, Pipe};
use super::resp::{Command, Value};
use super::script::Call;
use super::stream::{self, Dialled};
use crate::clock::{Clock, Ticks};
use crate::engine::Inlet;
use crate::error::{Error, Result};
use crate::id::{ClaimId, fork_generation};

/// The first and the longest wait before a connection is tried again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// An answer, with the reading of our clock from before its request left.
pub(in crate::engine) struct Answered {
    pub(in crate::engine) before: Ticks,
    pub(in crate::engine) order: u64,
    pub(in crate::engine) value: Value,
    /// Its request was sent twice: what was sent right behind it may have come before it.
    pub(in crate::engine) resent: bool,
}

/// One connection that is remade whenever it breaks.
pub(in crate::engine) struct Link {
    options: Arc<RedisOptions>,
    clock: Clock,
    label: String,
    state: Mutex<State>,
    up: watch::Sender<bool>,
    wanted: watch::Sender<bool>,
    ended: Notify,
    on_push: OnPush,
    /// What is sent over it counts only once replicas have it.
    gate: Option<Gate>,
    born: u32,
}

struct State {
    pipe: Option<Pipe>,
    /// Where it was dialled last, if that had to be resolved.
    dialled: Option<Address>,
    channels: BTreeSet<String>,
    tracks: Option<Tracking>,
    /// Why it is down.
    why: Option<Error>,
    facts: Option<Facts>,
    closed: bool,
}

/// Of which keys the server tells when somebody else changes them.
#[derive(Clone, Debug)]
pub(in crate::engine) enum Tracking {
    /// Those that this connection has read since the last word about them.
    Read,
    /// Every key that starts with this text.
    Prefix(String),
}

/// Why nothing is sent any more once nobody keeps a link.
const GONE: &str = "the runtime that kept the connection has ended";

/// Whoever keeps a link has gone, perhaps with its runtime: nobody connects any more, and nobody is
/// to wait for that.
struct Down(Arc<Link>);

impl Drop for Down {
    fn drop(&mut self) {
        {
            let mut state = self.0.lock();
            state.pipe = None;
            state.why = Some(errors::unreachable(&self.0.options.address, GONE));
        }
        self.0.refuse_gathered(GONE);
        self.0.up.send_replace(false);
    }
}

impl Link {
    pub(in crate::engine) fn new(
        options: Arc<RedisOptions>,
        clock: Clock,
        label: String,
        on_push: OnPush,
    ) -> Arc<Self> {
        Self::build(options, clock, label, on_push, None)
    }

    /// One over which nothing counts before so many replicas have it.
    pub(in crate::engine) fn acknowledged(
        options: Arc<RedisOptions>,
        clock: Clock,
        label: String,
        on_push: OnPush,
    ) -> Arc<Self> {
        let gate = options.wait.map(Gate::new);
        Self::build(options, clock, label, on_push, gate)
    }

    fn build(
        options: Arc<RedisOptions>,
        clock: Clock,
        label: String,
        on_push: OnPush,
        gate: Option<Gate>,
    ) -> Arc<Self> {
        let state = State {
            pipe: None,
            dialled: None,
            channels: BTreeSet::new(),
            tracks: None,
            why: None,
            facts: None,
            closed: false,
        };
        let (up, wanted) = (watch::Sender::new(false), watch::Sender::new(false));
        Arc::new(Self {
            options,
            clock,
            label,
            state: Mutex::new(state),
            up,
            wanted,
            ended: Notify::new(),
            on_push,
            gate,
            born: fork_generation(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From the next connect on, hears when somebody else changes such keys.
    pub(in crate::engine) fn track(&self, what: Tracking) {
        self.lock().tracks = Some(what);
    }

    /// Whether the server is a node of a cluster, where the keys of one script are in one slot.
    pub(in crate::engine) fn in_cluster(&self) -> bool {
        self.lock().facts.as_ref().is_some_and(Facts::in_cluster)
    }

    /// What the server said about itself when it was last connected.
    pub(in crate::engine) fn facts(&self) -> Option<Facts> {
        self.lock().facts.clone()
    }

    /// Connects once, and says hello.
    ///
    /// # Errors
    /// What keeps the server from being used.
    pub(in crate::engine) async fn connect(
        self: &Arc<Self>,
    ) -> Result<impl Future<Output = String> + Send + 'static> {
        let within = self.options.connect_timeout;
        match timeout(within, self.connect_now()).await {
            Ok(done) => done,
            Err(_) => {
                let hint = if self.options.tls.is_some() {
                    "; if that port does not speak TLS, use redis://"
                } else {
                    ""
                };
                Err(errors::unreachable(
                    &self.options.address,
                    format_args!("no answer within {within:?}{hint}"),
                ))
            }
        }
    }

    async fn connect_now(
        self: &Arc<Self>,
    ) -> Result<impl Future<Output = String> + Send + 'static> {
        // Also where the dial fails: who waits for the next one waits for another place than this,
        // and not than the one before.
        self.lock().dialled = None;
        let dials = |at: &Address| self.lock().dialled = Some(at.clone());
        let Dialled { stream, at } = stream::open(&self.options, dials).await?;
        let (pipe, driver) = Pipe::new(stream, self.options.request_timeout, self.on_push.clone());
        let mut driver = Box::pin(self.clone().unless_moved(at, pipe.clone(), driver));
        let channels: Vec<String> = self.lock().channels.iter().cloned().collect();
        let hello = pin!(self.hello(&pipe, &channels));
        let facts =
            either(hello, &mut driver).await.unwrap_or_else(|why| Err(self.no_welcome(&why)))?;
        {
            let mut state = self.lock();
            if state.closed {
                // Closed while it connected: nobody would end it any more.
                return Err(errors::unreachable(&self.options.address, "the engine was closed"));
            }
            state.facts = Some(facts);
            state.pipe = Some(pipe.clone());
            state.why = None;
            // What was asked to be heard in the meantime.
            let missed: Vec<Command> = state
                .channels
                .iter()
                .filter(|c| !channels.contains(c))
                .map(|c| Command::new(["SUBSCRIBE", c]))
                .collect();
            drop(state);
            drop(pipe.send(&missed));
        }
        self.up.send_replace(true);
        Ok(driver)
    }

    /// Drives a connection until it ends; one to a server that moved ends at once.
    async fn unless_moved(
        self: Arc<Self>,
        at: Option<Address>,
        pipe: Pipe,
        driver: impl Future<Output = String>,
    ) -> String {
        let mut driver = pin!(self.drive_gated(&pipe, driver));
        let (Some(resolve), Some(at)) = (&self.options.resolve, &at) else { return driver.await };
        match either(driver.as_mut(), resolve.moved(at)).await {
            Ok(why) => why,
            Err(why) => {
                // What was asked there may have been done there: that is of no use any more, and
                // not known to whoever asked (R4).
                pipe.close(&why);
                driver.await
            }
        }
    }

    /// Drives a connection, and sends what gathers in front of it.
    async fn drive_gated(&self, pipe: &Pipe, driver: impl Future<Output = String>) -> String {
        let Some(gate) = &self.gate else { return driver.await };
        match either(driver, gate.serve(pipe)).await {
            Ok(why) => why,
            Err(never) => match never {},
        }
    }

    /// Ends once the server is known to be elsewhere than where it was dialled last.
    async fn moved(&self) {
        let at = self.lock().dialled.clone();
        match (&self.options.resolve, at) {
            (Some(resolve), Some(at)) => drop(resolve.moved(&at).await),
            _ => std::future::pending().await,
        }
    }

    /// A server that was resolved refuses writes: it is the one to write to no more. The next
    /// connection finds out who is.
    fn leave_replica(&self, value: &Value) -> Option<Broken> {
        let Value::Error(text) = value else { return None };
        if self.options.resolve.is_none() || !text.contains("READONLY ") {
            return None;
        }
        let why = "the server is a replica now".to_owned();
        let pipe = self.lock().pipe.take();
        if let Some(pipe) = pipe {
            self.up.send_replace(false);
            pipe.close(&why);
        }
        Some(Broken::NotSent(why))
    }

    /// Keeps the link up until it is closed. `driver` drives the first connection, if there is one;
    /// `tell` hears of ups and downs.
    pub(in crate::engine) fn keep<D: Future<Output = String> + Send + 'static>(
        self: Arc<Self>,
        driver: Option<D>,
        tell: impl Fn(bool) + Send + Sync,
    ) -> impl Future<Output = ()> + Send {
        // From here on, and not only from the first poll: a runtime may end before that.
        let down = Down(self);
        async move {
            down.0.keep_up(driver, tell).await;
        }
    }

    async fn keep_up<D: Future<Output = String> + Send + 'static>(
        self: &Arc<Self>,
        driver: Option<D>,
        tell: impl Fn(bool) + Send + Sync,
    ) {
        let mut wait = BACK_OFF.0;
        if let Some(driver) = driver {
            self.drive(driver, &tell).await;
        }
        while !self.lock().closed {
            match self.connect().await {
                Ok(driver) => {
                    tell(true);
                    let since = Instant::now();
                    self.drive(driver, &tell).await;
                    if since.elapsed() > BACK_OFF.1 {
                        wait = BACK_OFF.0;
                    }
                }
                Err(error) => self.lock().why = Some(error),
            }
            // A little chance, so that a fleet does not come back in step.
            let jitter = ClaimId::fresh().0 as u64 % 1000;
            let until = Instant::now() + wait.mul_f64(0.75 + jitter as f64 / 2000.0);
            let asleep = pin!(sleep_until(until));
            let ended = pin!(self.ended.notified());
            let moved = pin!(self.moved());
            wait = (wait * 2).min(BACK_OFF.1);
            if !self.lock().closed && either(either(asleep, ended), moved).await.is_err() {
                wait = BACK_OFF.0;
            }
        }
    }

    /// The same for a link that is not needed yet: nothing is connected before somebody wants it.
    pub(in crate::engine) async fn keep_once_wanted(self: Arc<Self>) {
        let mut wanted = self.wanted.subscribe();
        if wanted.wait_for(|wanted| *wanted).await.is_ok() {
            self.keep(None::<std::future::Pending<String>>, |_| {}).await;
        }
    }

    /// Says that the link is needed.
    pub(in crate::engine) fn want(&self) {
        self.wanted.send_if_modified(|wanted| !std::mem::replace(wanted, true));
    }

    async fn drive(&self, driver: impl Future<Output = String>, tell: &(impl Fn(bool) + Sync)) {
        let why = driver.await;
        {
            let mut state = self.lock();
            state.pipe = None;
            state.why = Some(errors::unreachable(&self.options.address, &why));
            drop(state);
            self.refuse_gathered(&why);
            if self.lock().closed {
                return;
            }
        }
        self.up.send_replace(false);
        tell(false);
    }

    /// Listens to a channel from now on, over every reconnect.
    pub(in crate::engine) fn subscribe(&self, channel: &str) -> Option<oneshot::Receiver<Outcome>> {
        // Sent with the state locked, so that what the server hears last is what stands there.
        let mut state = self.lock();
        if !state.channels.insert(channel.to_owned()) {
            return None;
        }
        state.pipe.as_ref()?.send(&[Command::new(["SUBSCRIBE", channel])]).pop()
    }

    /// Stops listening to a channel.
    pub(in crate::engine) fn unsubscribe(&self, channel: &str) {
        let mut state = self.lock();
        if state.channels.remove(channel)
            && let Some(pipe) = &state.pipe
        {
            drop(pipe.send(&[Command::new(["UNSUBSCRIBE", channel])]));
        }
    }

    /// Where answers come in, for callers that wait for one.
    pub(in crate::engine) fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        if self.born != fork_generation() {
            return None;
        }
        self.lock().pipe.as_ref()?.inlet()
    }

    /// Sends commands as one message, if there is a connection; the readings of the clock are from
    /// before.
    pub(in crate::engine) fn start(&self, commands: &[Command]) -> Started {
        let before = self.clock.now();
        if self.born != fork_generation() {
            // The socket belongs to the parent; one byte from us would spoil its stream (R15).
            return Started { before, answers: Vec::new(), forked: true };
        }
        let state = self.lock();
        let answers = match (&state.pipe, &self.gate) {
            // With the state locked: what gathers after the connection went is never refused.
            (Some(_), Some(gate)) => gate.take(commands),
            (Some(pipe), None) => {
                let pipe = pipe.clone();
                drop(state);
                pipe.send(commands)
            }
            (None, _) => Vec::new(),
        };
        Started { before, answers, forked: false }
    }

    fn refuse_gathered(&self, why: &str) {
        if let Some(gate) = &self.gate {
            gate.refuse(why);
        }
    }

    /// Waits until there is a connection; an error says why there is none.
    async fn wait_up(&self, until: Instant) -> std::result::Result<(), Broken> {
        let mut up = self.up.subscribe();
        let waiting = pin!(up.wait_for(|up| *up));
        let late = pin!(sleep_until(until));
        match either(waiting, late).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Broken::NotSent(
                self.lock()
                    .why
                    .as_ref()
                    .map_or_else(|| "not connected".to_owned(), |e| e.message().to_owned()),
            )),
        }
    }

    /// Whether there is a connection.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn is_up(&self) -> bool {
        *self.up.borrow()
    }

    /// Why it is down, where that is more than "unreachable".
    pub(in crate::engine) fn why(&self) -> Option<Error> {
        self.lock().why.clone()
    }

    /// Runs a command to its answer. What was not sent is sent again once there is a connection,
    /// for as long as `patience` lasts.
    pub(in crate::engine) async fn finish(
        &self,
        started: Started,
        command: impl Fn() -> Option<Command> + Send,
        patience: Duration,
    ) -> std::result::Result<Answered, Broken> {
        let until = Instant::now() + patience;
        let (mut started, mut resent) = (started, false);
        loop {
            if started.forked {
                return Err(Broken::NotSent(
                    "this process is a fork of the one that opened the connection: open its own"
                        .into(),
                ));
            }
            let before = started.before;
            let broken = match started.answers.pop() {
                Some(answer) => match answer.await {
                    Ok(Ok((order, value))) => match self.leave_replica(&value) {
                        Some(broken) => broken,
                        None => return Ok(Answered { before, order, value, resent }),
                    },
                    Ok(Err(broken)) => broken,
                    Err(_) => Broken::Unknown("the connection ended".into()),
                },
                None => Broken::NotSent("not connected".into()),
            };
            if !matches!(broken, Broken::NotSent(_)) || self.lock().closed {
                return Err(broken);
            }
            self.wait_up(until).await?;
            let Some(command) = command() else { return Err(broken) };
            (started, resent) = (self.start(&[command]), true);
        }
    }

    /// Runs a script to its answer; `wanted` is asked before its text is sent to a server that did
    /// not know it.
    pub(in crate::engine) async fn run(
        &self,
        started: Started,
        call: &Call,
        patience: Duration,
        wanted: impl Fn() -> bool + Send + Sync,
    ) -> std::result::Result<Answered, Broken> {
        let answered = self.finish(started, || wanted().then(|| call.by_name()), patience).await?;
        match &answered.value {
            // Nothing was run, so nothing is run twice.
            Value::Error(text) if text.starts_with("NOSCRIPT") && wanted() => {
                let started = self.start(&[call.in_full()]);
                let command = || wanted().then(|| call.in_full());
                let answered = self.finish(started, command, patience).await?;
                Ok(Answered { resent: true, ..answered })
            }
            _ => Ok(answered),
        }
    }

    /// Waits until nothing is parting any more, or until nothing can be sent, or for as long as an
    /// answer may take.
    pub(in crate::engine) async fn settled(&self, parting: &AtomicUsize, within: Duration) {
        let until = Instant::now() + within;
        // Futures that were handed over a moment ago count only once they are polled.
        tokio::task::yield_now().await;
        while parting.load(Ordering::Acquire) > 0 && *self.up.borrow() && Instant::now() < until {
            sleep_until(Instant::now() + Duration::from_millis(2)).await;
        }
    }

    /// Ends the link.
    pub(in crate::engine) fn close(&self) {
        let pipe = {
            let mut state = self.lock();
            state.closed = true;
            state.pipe.take()
        };
        if let Some(pipe) = pipe {
            pipe.close("closed");
        }
        self.up.send_replace(false);
        self.want();
        self.ended.notify_one();
    }
}

/// Counts one withdrawal or release for as long as it is not over.
pub(in crate::engine) struct Counted(Arc<AtomicUsize>);

impl Counted {
    pub(in crate::engine) fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::AcqRel);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Commands on their way.
pub(in crate::engine) struct Started {
    before: Ticks,
    answers: Vec<oneshot::Receiver<Outcome>>,
    forked: bool,
}

impl Started {
    /// Nothing was sent yet.
    pub(in crate::engine) fn nothing() -> Self {
        Self { before: Ticks::default(), answers: Vec::new(), forked: false }
    }

    /// One a command, in order; for the last of them, when nothing was sent, there are none.
    pub(in crate::engine) fn each(self) -> impl Iterator<Item = Self> + Send {
        let Self { before, answers, forked } = self;
        let sent = answers.into_iter().map(Some).chain(std::iter::repeat_with(|| None));
        sent.map(move |answer| Self { before, answers: answer.into_iter().collect(), forked })
    }
}

/// Whichever is ready first.
pub(in crate::engine) async fn either<A: Future, B: Future>(
    a: A,
    b: B,
) -> std::result::Result<A::Output, B::Output> {
    let (mut a, mut b) = (pin!(a), pin!(b));
    poll_fn(|cx| {
        if let Poll::Ready(done) = a.as_mut().poll(cx) {
            return Poll::Ready(Ok(done));
        }
        b.as_mut().poll(cx).map(Err)
    })
    .await
}
