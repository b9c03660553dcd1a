//! The connections to one server: made, remade with back-off, and used for script calls.

mod hello;
mod keep;
mod sent;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::super::describe::Facts;
use super::super::errors;
use super::super::options::{Address, RedisOptions};
use super::gate::Gate;
use super::pipe::{Broken, Kind, OnPush, Outcome, Pipe, Together};
use super::resp::{Command, Value};
use super::script::Which;
use super::stream::{self, Dialled};
use crate::engine::Inlet;
use crate::engine::either::either;
use crate::words::clock::{Clock, Ticks};
use crate::words::error::{Error, Result};
use crate::words::id::fork_generation;
pub(in crate::engine) use sent::{Answered, Started};

/// Hears why a connection could not be made.
type OnFailure = Box<dyn Fn(&Error) + Send + Sync>;

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
    /// Called before anything is read from a new connection.
    fresh: OnceLock<Box<dyn Fn() + Send + Sync>>,
    /// Called with why a connection could not be made.
    failed: OnceLock<OnFailure>,
    /// What is sent over it counts only once replicas have it.
    gate: Option<Gate>,
    born: u32,
}

struct State {
    pipe: Option<Pipe>,
    /// Since when there is that one.
    since: Ticks,
    /// Where it was dialled last, if that had to be resolved.
    dialled: Option<Address>,
    channels: BTreeSet<String>,
    tracks: Option<Tracking>,
    /// Scripts that a request brings along where the server lacks them, which the greeting asks:
    /// those of releases, and of many names in one call.
    brought: &'static [Which],
    /// Over how many connections what is asked goes.
    connections: usize,
    /// Those of them that the server has, or is sent on the present connection.
    known: BTreeSet<Which>,
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
            since: Ticks::default(),
            dialled: None,
            channels: BTreeSet::new(),
            tracks: None,
            brought: &[],
            connections: 1,
            known: BTreeSet::new(),
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
            fresh: OnceLock::new(),
            failed: OnceLock::new(),
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

    /// From the next connect on, what is asked goes over so many connections, this one among them.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn is_one_of(&self, connections: usize) {
        self.lock().connections = connections;
    }

    /// From the next connect on, requests bring these scripts along where the server lacks them.
    pub(in crate::engine) fn brings(&self, scripts: &'static [Which]) {
        self.lock().brought = scripts;
    }

    /// Calls this before anything is read from a new connection: another server may answer over it,
    /// and that is to be known first.
    pub(in crate::engine) fn before_each(&self, call: impl Fn() + Send + Sync + 'static) {
        _ = self.fresh.set(Box::new(call));
    }

    /// Calls this whenever a connection could not be made.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn on_failure(&self, call: impl Fn(&Error) + Send + Sync + 'static) {
        _ = self.failed.set(Box::new(call));
    }

    /// Whether the server is a node of a cluster, where the keys of one script are in one slot.
    pub(in crate::engine) fn in_cluster(&self) -> bool {
        self.lock().facts.as_ref().is_some_and(Facts::in_cluster)
    }

    /// What the server said about itself when it was last connected.
    pub(in crate::engine) fn facts(&self) -> Option<Facts> {
        self.lock().facts.clone()
    }

    /// Looks at the same without a copy of it.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn by_facts<T>(&self, look: impl FnOnce(&Facts) -> T) -> Option<T> {
        self.lock().facts.as_ref().map(look)
    }

    /// Since when the present connection is there, if one is.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn up_since(&self) -> Option<Ticks> {
        let state = self.lock();
        state.pipe.as_ref().map(|_| state.since)
    }

    /// Connects once, and says hello.
    ///
    /// # Errors
    /// What keeps the server from being used.
    pub(in crate::engine) async fn connect(
        self: &Arc<Self>,
    ) -> Result<impl Future<Output = String> + Send + 'static> {
        let within = self.options.connect_timeout;
        let until = Instant::now() + within;
        let connected = match timeout_at(until, self.connect_now(until)).await {
            Ok(done) => done,
            Err(_) => {
                let late = format_args!("no answer within {within:?}");
                Err(errors::unreachable(&self.options.address, late))
            }
        };
        if let Err(error) = &connected {
            self.lock().why = Some(error.clone());
            if let Some(failed) = self.failed.get() {
                failed(error);
            }
        }
        connected
    }

    async fn connect_now(
        self: &Arc<Self>,
        until: Instant,
    ) -> Result<impl Future<Output = String> + Send + 'static> {
        // Also where the dial fails: who waits for the next one waits for another place than this,
        // and not than the one before.
        self.lock().dialled = None;
        let dials = |at: &Address| self.lock().dialled = Some(at.clone());
        let Dialled { stream, at, login } = stream::open(&self.options, until, dials).await?;
        if let Some(fresh) = self.fresh.get() {
            fresh();
        }
        let (pipe, driver) = Pipe::new(stream, self.options.request_timeout, self.on_push.clone());
        let server = self.server();
        let mut driver = Box::pin(self.clone().unless_moved(at, pipe.clone(), driver));
        let channels: Vec<String> = self.lock().channels.iter().cloned().collect();
        let hello = self.hello(&pipe, &channels, &server, login.as_ref());
        let (said, over) = driven(hello, &mut driver).await;
        let (facts, known) = said?;
        if let Some(why) = over {
            return Err(errors::unreachable(&self.options.address, why));
        }
        {
            let mut state = self.lock();
            if state.closed {
                // Closed while it connected: nobody would end it any more.
                return Err(errors::unreachable(&self.options.address, "the engine was closed"));
            }
            pipe.is_one_of(state.connections);
            // On a node of a cluster names are in different slots.
            for kind in Kind::ALL.iter().copied().filter(|_| !facts.in_cluster()) {
                match kind.together() {
                    script if known.contains(&script) => pipe.travel(kind, Together::Known),
                    script if state.brought.contains(&script) => pipe.travel(kind, Together::Anew),
                    _ => {}
                }
            }
            state.facts = Some(facts);
            state.known = known;
            state.pipe = Some(pipe.clone());
            state.since = self.clock.now();
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
        match &self.gate {
            Some(gate) => gate.serve(pipe, driver).await,
            None => driver.await,
        }
    }

    /// The server that was dialled last.
    fn server(&self) -> String {
        self.lock().dialled.as_ref().unwrap_or(&self.options.address).to_string()
    }

    /// Ends once the server is known to be elsewhere than where it was dialled last.
    async fn moved(&self) {
        let at = self.lock().dialled.clone();
        match (&self.options.resolve, at) {
            (Some(resolve), Some(at)) => drop(resolve.moved(&at).await),
            _ => std::future::pending().await,
        }
    }

    /// A server refuses writes: it is the one to write to no more. The next connection finds out
    /// who is, at the address of the URL too: another server may be there by now, and this one
    /// stays up. What was asked before that one is there says nothing about it.
    fn leave_replica(&self, value: &Value, asked: Ticks) -> Option<Broken> {
        let Value::Error(text) = value else { return None };
        // A node of a cluster says where else a slot is.
        if self.options.scattered() || !is_replica(text) {
            return None;
        }
        let why = "the server is a replica now";
        self.leave(asked, why);
        Some(Broken::NotSent(why.into()))
    }

    /// Ends the connection that was there at that time: the next one finds out who is.
    pub(in crate::engine) fn leave(&self, at: Ticks, why: &str) {
        let pipe = {
            let mut state = self.lock();
            if at < state.since { None } else { state.pipe.take() }
        };
        if let Some(pipe) = pipe {
            self.up.send_replace(false);
            pipe.close(why);
        }
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

    fn refuse_gathered(&self, why: &str) {
        if let Some(gate) = &self.gate {
            gate.refuse(why);
        }
    }

    /// Waits until there is a connection; an error says why there is none.
    pub(in crate::engine::redis::client) async fn wait_up(
        &self,
        until: Instant,
    ) -> std::result::Result<(), Broken> {
        let mut up = self.up.subscribe();
        let waiting = pin!(up.wait_for(|up| *up));
        let late = pin!(sleep_until(until));
        match either(waiting, late).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Broken::NotSent(
                self.lock().why.as_ref().map_or("not connected", |e| e.message()).into(),
            )),
        }
    }

    /// Whether there is a connection.
    #[cfg(any(feature = "redlock", feature = "cluster"))]
    pub(in crate::engine) fn is_up(&self) -> bool {
        *self.up.borrow()
    }

    /// Why it is down, where that is more than "unreachable".
    pub(in crate::engine) fn why(&self) -> Option<Error> {
        self.lock().why.clone()
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

/// Whether a replica refused a write, in Redis' own words: a name in an error may have any.
fn is_replica(text: &str) -> bool {
    const REFUSED: &str = "READONLY You can't write against a read only";
    // Before version 7 a script's error is told inside another one.
    let in_script = || text.starts_with("ERR Error running script") && text.contains(REFUSED);
    // One without its primary refuses reads, too, where replica-serve-stale-data is off.
    text.starts_with(REFUSED) || text.starts_with("MASTERDOWN ") || in_script()
}

/// What is asked over a connection, which is driven meanwhile, and why the connection is over if it
/// is: then its driver must not be polled again. What the server said before it ended counts;
/// whoever waits for more is told by the driver why it ended.
pub(in crate::engine) async fn driven<T>(
    asked: impl Future<Output = T>,
    driver: impl Future<Output = String>,
) -> (T, Option<String>) {
    let mut asked = pin!(asked);
    match either(asked.as_mut(), driver).await {
        Ok(done) => (done, None),
        Err(why) => (asked.await, Some(why)),
    }
}

#[cfg(test)]
mod tests {
    use super::{driven, is_replica};

    #[tokio::test]
    async fn a_connection_that_ends_right_behind_its_greeting_is_told_to_be_over() {
        let (greet, greeted) = tokio::sync::oneshot::channel();
        let driver = async move {
            greet.send("welcome").unwrap();
            "the server closed the connection".to_owned()
        };
        let (said, over) = driven(async { greeted.await.unwrap() }, driver).await;
        assert_eq!(said, "welcome");
        assert!(over.is_some(), "nobody drives it once more");
        let (_, over) = driven(async {}, std::future::pending()).await;
        assert_eq!(over, None);
    }

    #[test]
    fn a_replica_is_told_by_the_words_of_redis_and_not_by_those_of_a_name() {
        for said in [
            "READONLY You can't write against a read only replica.",
            "READONLY You can't write against a read only slave.",
            "READONLY You can't write against a read only replica. script: 5e2, on @user_script:1.",
            "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
            "ERR Error running script (call to f_5e2): @user_script:1: @user_script: 1: -READONLY \
             You can't write against a read only replica. ",
        ] {
            assert!(is_replica(said), "{said}");
        }
        for said in [
            "LOCKKEEPER CORRUPT READONLY is the name",
            "LOCKKEEPER CORRUPT READONLY You can't write against a read only replica.",
            "MISCONF Redis is configured to save",
        ] {
            assert!(!is_replica(said), "{said}");
        }
    }
}
