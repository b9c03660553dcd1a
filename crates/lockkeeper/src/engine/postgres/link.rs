//! The connection of a process, which is made again when it breaks.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::conn::Ready;
use super::errors::{self, Broken};
use super::options::{Address, PostgresOptions};
use super::store::Store;
use super::wire::{dial, drive};
use crate::engine::either::either;
use crate::engine::{BoxFuture, Context, Event};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// How long is waited before the next dial: at first, and at last.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// What is done with a word that came on our channel.
pub(super) type Hear = Arc<dyn Fn(&str) + Send + Sync>;

/// See the module.
pub(super) struct Link<S: Ready = Store> {
    pub(super) options: Arc<PostgresOptions>,
    pub(super) context: Context,
    channel: String,
    label: String,
    hear: Hear,
    state: Mutex<State<S>>,
    /// Counts connections; each change wakes whoever waits for one.
    up: watch::Sender<u64>,
    closed: watch::Sender<bool>,
}

struct State<S: Ready> {
    store: Option<Arc<S>>,
    facts: Option<S::Facts>,
    why: Option<Error>,
}

impl<S: Ready> Link<S> {
    pub(super) fn new(
        options: Arc<PostgresOptions>,
        context: Context,
        channel: String,
        hear: Hear,
    ) -> Self {
        let program = context.who.program.rsplit('/').next().unwrap_or_default();
        let label = format!("lockkeeper:{program}:{}", context.who.pid);
        Self {
            options,
            context,
            channel,
            label,
            hear,
            state: Mutex::new(State { store: None, facts: None, why: None }),
            up: watch::Sender::new(0),
            closed: watch::Sender::new(false),
        }
    }

    fn state(&self) -> MutexGuard<'_, State<S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody's transaction stands on the row: whoever gives up on this claim, asked for at
    /// `since`, before that ends is told.
    pub(super) fn hindered(
        &self,
        (kind, name): (Kind, &Name),
        claim: Option<ClaimId>,
        since: Ticks,
        broken: &Broken,
    ) {
        if let Some(claim) = claim.filter(|_| broken.waited) {
            let (name, why) = (name.clone(), broken.error.clone());
            self.context.events.send(Event::Hindered { kind, name, claim, since, why });
        }
    }

    /// What the server said about itself when it was last connected.
    pub(super) fn facts(&self) -> Option<S::Facts> {
        self.state().facts.clone()
    }

    /// Connects once, to the first of the servers that can be used.
    ///
    /// # Errors
    /// What keeps the last of them from being used.
    pub(super) async fn connect(&self) -> Result<BoxFuture<String>> {
        let within = self.options.connect_timeout;
        let mut last = Error::new(ErrorKind::Unreachable, "there is no server");
        for address in &self.options.addresses {
            // Each has its own time, or one that is silent would hide all behind it.
            let until = Instant::now() + within;
            match timeout_at(until, self.connect_to(address, until)).await {
                Ok(Ok((store, driver))) => {
                    let mut state = self.state();
                    state.facts = Some(store.facts().clone());
                    state.why = None;
                    state.store = Some(Arc::new(store));
                    drop(state);
                    self.up.send_modify(|count| *count += 1);
                    return Ok(driver);
                }
                Ok(Err(error)) => last = errors::either(last, error),
                Err(_) => {
                    let why = format_args!("no answer within {within:?}");
                    last = errors::either(last, errors::unreachable(&address.to_string(), why));
                }
            }
        }
        self.state().why = Some(last.clone());
        Err(last)
    }

    async fn connect_to(
        &self,
        address: &Address,
        until: Instant,
    ) -> Result<(S, BoxFuture<String>)> {
        let (client, wire) = dial(&self.options, address, &self.label, until).await?;
        let end = watch::Sender::new(false);
        let (channel, hear) = (self.channel.clone(), self.hear.clone());
        let hears = move |on: &str, word: &str| {
            if on == channel {
                hear(word);
            }
        };
        let mut driver: BoxFuture<String> = Box::pin(drive(wire, end.subscribe(), hears));
        let ready = S::ready(client, self.options.clone(), &self.channel, &self.context.clock, end);
        match either(ready, driver.as_mut()).await {
            Ok(store) => Ok((store?, driver)),
            Err(why) => Err(errors::unreachable(&address.to_string(), why)),
        }
    }

    /// Keeps the connection up until the engine is closed.
    pub(super) async fn keep(self: Arc<Self>, driver: BoxFuture<String>) {
        let mut driver = driver;
        let mut closed = self.closed.subscribe();
        let mut closed = pin!(async move { _ = closed.wait_for(|closed| *closed).await });
        let mut pause = AGAIN.0;
        loop {
            let since = Instant::now();
            let Ok(why) = either(driver, closed.as_mut()).await else { break };
            {
                let mut state = self.state();
                state.store = None;
                state.why = Some(errors::unreachable(&self.options.at(), why));
            }
            self.context.events.send(Event::Link { up: false });
            // One that does not last is no better than none.
            if since.elapsed() >= AGAIN.1 {
                pause = AGAIN.0;
            } else if either(sleep(pause), closed.as_mut()).await.is_err() {
                return;
            } else {
                pause = (pause * 2).min(AGAIN.1);
            }
            driver = loop {
                match either(self.connect(), closed.as_mut()).await {
                    Ok(Ok(driver)) => break driver,
                    Ok(Err(_)) => {
                        if let Some(password) = &self.options.password {
                            for at in &self.options.addresses {
                                pause = password.pause(&at.to_string(), pause, self.options.ttl);
                            }
                        }
                        if either(sleep(pause), closed.as_mut()).await.is_err() {
                            return;
                        }
                        pause = (pause * 2).min(AGAIN.1);
                    }
                    Err(()) => return,
                }
            };
            self.context.events.send(Event::Link { up: true });
        }
        self.state().store = None;
    }

    /// The connection, as soon as there is one.
    ///
    /// # Errors
    /// Why there is none after so long.
    pub(super) async fn store(&self, patience: Duration) -> Result<Arc<S>> {
        let mut up = self.up.subscribe();
        loop {
            if let Some(store) = self.state().store.clone() {
                return Ok(store);
            }
            if !matches!(timeout(patience, up.changed()).await, Ok(Ok(()))) {
                let why = self.state().why.clone();
                return Err(why.unwrap_or_else(|| {
                    errors::unreachable(&self.options.at(), "there is no connection")
                }));
            }
        }
    }

    /// Ends the connection, and makes none again.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
        self.up.send_modify(|count| *count += 1);
    }
}
