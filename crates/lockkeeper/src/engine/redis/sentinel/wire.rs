//! One Sentinel: the connection to it, and what it says about the service.

use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::errors;
use super::options::SentinelOptions;
use super::resolve::ASK_AGAIN;
use crate::engine::dial::connect;
use crate::engine::either::either;
use crate::engine::password::Login;
use crate::engine::redis::client::pipe::{Outcome, Pipe};
use crate::engine::redis::client::resp::{Command, Value};
use crate::engine::redis::client::stream::{before, noting_silence, says_nothing};
use crate::engine::redis::client::why::value;
use crate::engine::redis::client::wire::driven;
use crate::engine::redis::errors::is_about_password;
use crate::engine::redis::options::Address;
use crate::engine::redis::refusal::{Refusal, Stage};
use crate::engine::stream::Stream;
use crate::engine::tls::{or_refusal, shake_hands};
use crate::words::clock::Clock;
use crate::words::error::{Error, Result};

/// Where every Sentinel tells that a master moved.
const CHANNEL: &str = "+switch-master";

/// A Sentinel that said nothing unasked for so long is asked: its word may have been lost.
const ASK_EVERY: Duration = Duration::from_secs(10);

/// The first and the longest wait before a connection is tried again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// What a Sentinel says about the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Said {
    /// Where the master is.
    pub(super) at: Address,
    /// The epoch of the failover that made it the master: of two answers the greater one is newer.
    pub(super) epoch: u64,
    /// For how long it is silent before it counts as down.
    pub(super) down_after: Duration,
    /// How many replicas it knows.
    pub(super) replicas: u64,
    /// How many of them it takes to be there.
    pub(super) living: u64,
    /// How many Sentinels there are beside this one, as far as it knows.
    pub(super) others: u64,
}

/// One Sentinel.
pub(super) struct Node {
    pub(super) at: Address,
    state: watch::Sender<State>,
    /// It told that a master moved.
    told: Notify,
    said: Mutex<Option<Said>>,
    refusal: Refusal,
}

#[derive(Clone)]
enum State {
    Connecting,
    Up(Pipe),
    Down(Error),
}

impl Node {
    pub(super) fn new(at: Address) -> Arc<Self> {
        Arc::new(Self {
            at,
            state: watch::Sender::new(State::Connecting),
            told: Notify::new(),
            said: Mutex::default(),
            refusal: Refusal::default(),
        })
    }

    /// What it said last, while it can be reached.
    pub(super) fn said(&self) -> Option<Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn note(&self, said: Option<Said>) {
        *self.said.lock().unwrap_or_else(PoisonError::into_inner) = said;
    }

    /// Why it refuses us, if it does.
    pub(super) fn refuses(&self) -> Option<Error> {
        self.refusal.why()
    }

    fn failed(&self, stage: Stage, why: &Error, clock: &Clock) {
        if self.refusal.failed(stage, why, clock.now()) {
            let (sentinel, why) = (&self.at, why.message());
            tracing::warn!(engine = "sentinel", %sentinel, why, "a Sentinel does not count");
        }
    }

    /// It is asked as soon as it is connected, and not only when it tells something.
    pub(super) fn ask_soon(&self) {
        self.told.notify_one();
    }

    /// Why it cannot be reached.
    pub(super) fn why_down(&self) -> Option<Error> {
        match &*self.state.borrow() {
            State::Down(why) => Some(why.clone()),
            _ => None,
        }
    }

    /// Keeps the connection until `closed`. `heard` gets what it says when a master moved, and from
    /// time to time, and whether that is something new.
    pub(super) async fn keep(
        self: Arc<Self>,
        options: Arc<SentinelOptions>,
        (label, clock): (String, Clock),
        mut closed: watch::Receiver<bool>,
        heard: impl Fn(&Said, bool) + Send + Sync,
    ) {
        let keeping = pin!(self.keep_on(&options, &label, &clock, &heard));
        _ = either(keeping, pin!(closed.wait_for(|closed| *closed))).await;
        self.state.send_replace(State::Down(errors::away(&self.at, "the engine was closed")));
    }

    async fn keep_on(
        self: &Arc<Self>,
        options: &SentinelOptions,
        label: &str,
        clock: &Clock,
        heard: &(impl Fn(&Said, bool) + Send + Sync),
    ) {
        let (mut wait, mut first) = (BACK_OFF.0, true);
        loop {
            let within = options.master.connect_timeout;
            let until = Instant::now() + within;
            let silent = Mutex::new(None);
            let connecting = self.connect(options, label, until, &silent);
            let connected = timeout_at(until, connecting).await;
            let why = match connected {
                Ok(Ok((pipe, driver))) => {
                    self.refusal.did(Stage::Greeting);
                    self.state.send_replace(State::Up(pipe));
                    wait = BACK_OFF.0;
                    // The first to ask is whoever opens the engine.
                    let asking = pin!(self.listen(options, first, clock, heard));
                    first = false;
                    match either(driver, asking).await {
                        Ok(why) => errors::away(&self.at, why),
                        Err(()) => return,
                    }
                }
                Ok(Err(why)) => why,
                Err(_) => said_in(&silent).take().unwrap_or_else(|| {
                    errors::away(&self.at, format_args!("no answer within {within:?}"))
                }),
            };
            self.note(None);
            self.failed(Stage::Greeting, &why, clock);
            self.state.send_replace(State::Down(why));
            if let Some(password) = &options.password {
                wait = password.pause(&self.at.to_string(), wait, options.master.ttl);
            }
            sleep(wait).await;
            wait = (wait * 2).min(BACK_OFF.1);
        }
    }

    /// Asks whenever something was told, some times more for what comes of it, and from time to
    /// time.
    async fn listen(
        &self,
        options: &SentinelOptions,
        mut first: bool,
        clock: &Clock,
        heard: &(impl Fn(&Said, bool) + Send + Sync),
    ) {
        let mut pause = ASK_EVERY;
        loop {
            let before = self.said();
            if !std::mem::take(&mut first)
                && let Ok(Some(said)) = self.ask(options, clock).await
            {
                heard(&said, before.is_none_or(|before| before.at != said.at));
            }
            pause = match timeout(pause, self.told.notified()).await {
                Ok(()) => ASK_AGAIN,
                Err(_) => (pause * 2).min(ASK_EVERY),
            };
        }
    }

    async fn connect(
        self: &Arc<Self>,
        options: &SentinelOptions,
        label: &str,
        until: Instant,
        silent: &Mutex<Option<Error>>,
    ) -> Result<(Pipe, impl Future<Output = String> + Send + 'static + use<>)> {
        let login = match &options.password {
            Some(password) => Some(password.to_dial(&self.at.to_string(), until).await?),
            None => None,
        };
        let stream = self.dial(options, until, silent).await?;
        let node = Arc::downgrade(self);
        let prefix = format!("{} ", options.service);
        let hear = Arc::new(move |_, items: Vec<Value>| {
            let [word, _, text] = items.as_slice() else { return };
            let ours = text.text().is_some_and(|text| text.starts_with(&prefix));
            if word.text() == Some("message")
                && ours
                && let Some(node) = node.upgrade()
            {
                node.told.notify_one();
            }
        });
        let (pipe, driver) = Pipe::new(stream, options.master.request_timeout, hear);
        let mut driver = Box::pin(driver);
        let hello = self.hello(&pipe, options, login.as_ref(), label);
        let (said, over) = driven(hello, &mut driver).await;
        said?;
        match over {
            None => Ok((pipe, driver)),
            Some(why) => Err(errors::away(&self.at, why)),
        }
    }

    /// Silence in TLS is told to those who wait, and the handshake goes on.
    async fn dial(
        &self,
        options: &SentinelOptions,
        until: Instant,
        silent: &Mutex<Option<Error>>,
    ) -> Result<Stream> {
        let failed = |error: std::io::Error| errors::away(&self.at, error);
        let Address::Tcp(host, port) = &self.at else {
            return Err(errors::away(&self.at, "a Sentinel listens at a host and a port"));
        };
        let stream = connect(host, *port, until).await.map_err(failed)?;
        let Some(tls) = &options.master.tls else { return Ok(Stream::Tcp(stream)) };
        let (at, instead) = (self.at.to_string(), errors::TLS_PORT);
        let hint = format!("{instead}, or leave out tls=true");
        // Whoever asks where the master is waits for half of the time.
        let now = Instant::now();
        let soon = now + until.saturating_duration_since(now) / 2;
        let config = tls.read(before(soon)).await?;
        let shaking = shake_hands(tls, host, &at, &hint, stream, config);
        let note = || {
            let why = errors::away(&self.at, says_nothing(instead));
            *said_in(silent) = Some(why.clone());
            self.state.send_replace(State::Down(why));
        };
        let shaken = noting_silence(shaking, soon, note).await?;
        // It speaks TLS: what is late from here on is something else.
        *said_in(silent) = None;
        Ok(Stream::Tls(Box::new(shaken)))
    }

    /// Who we are, and what we listen to.
    async fn hello(
        &self,
        pipe: &Pipe,
        options: &SentinelOptions,
        login: Option<&Login>,
        label: &str,
    ) -> Result<()> {
        let mut hello = Command::new(["HELLO", "3"]);
        if let Some(Login { password, .. }) = login {
            hello = hello.arg("AUTH").arg("default").arg(password.reveal());
        }
        let hello = hello.arg("SETNAME").arg(label);
        let subscribe = Command::new(["SUBSCRIBE", CHANNEL]);
        // One by one: a Sentinel that is full gives one answer to both, and closes.
        for answer in pipe.send(&[hello, subscribe]) {
            let (password, at) = (options.password.as_ref().zip(login), self.at.to_string());
            let tls = options.master.tls.as_ref();
            let answer = self.answer(answer).await;
            let failed = |error| match tls {
                Some(_) => or_refusal(tls, &at, error),
                None => errors::no_welcome(error),
            };
            let answer = &answer.map_err(failed)?;
            if let Some(tls) = tls {
                tls.accepted(&at);
            }
            if let Value::Error(text) = answer {
                let why = errors::said(&self.at, login.is_some(), text);
                return Err(match password.filter(|_| is_about_password(text)) {
                    Some((password, login)) => password.refused(&at, login, why),
                    None => why,
                });
            }
            if let Some((password, login)) = password {
                password.accepted(&at, login);
            }
            let mode = answer.pairs().into_iter().find(|(key, _)| key.text() == Some("mode"));
            if let Some(mode) = mode.and_then(|(_, mode)| mode.text())
                && mode != "sentinel"
            {
                return Err(errors::no_sentinel(&self.at, mode));
            }
        }
        Ok(())
    }

    /// Sends commands as one message, and waits for their answers.
    async fn all(&self, pipe: &Pipe, commands: &[Command]) -> Result<Vec<Value>> {
        let mut values = Vec::with_capacity(commands.len());
        for answer in pipe.send(commands) {
            values.push(self.answer(answer).await?);
        }
        Ok(values)
    }

    async fn answer(&self, answer: oneshot::Receiver<Outcome>) -> Result<Value> {
        value(answer).await.map_err(|why| errors::away(&self.at, why))
    }

    /// The connection, once it is known whether there is one.
    async fn pipe(&self) -> Result<Pipe> {
        let mut state = self.state.subscribe();
        let known = state.wait_for(|state| !matches!(state, State::Connecting)).await;
        match known.as_deref() {
            Ok(State::Up(pipe)) => Ok(pipe.clone()),
            Ok(State::Down(why)) => Err(why.clone()),
            _ => Err(errors::away(&self.at, "the engine was closed")),
        }
    }

    /// What it says about the service; `None`: it does not know it.
    ///
    /// # Errors
    /// It cannot be reached, or refuses us.
    pub(super) async fn ask(
        &self,
        options: &SentinelOptions,
        clock: &Clock,
    ) -> Result<Option<Said>> {
        let pipe = self.pipe().await?;
        let asked = self.ask_over(&pipe, options).await;
        let said = asked.as_ref().ok().cloned().flatten();
        self.note(said);
        match &asked {
            Ok(_) => self.refusal.did(Stage::Asked),
            Err(why) => self.failed(Stage::Asked, why, clock),
        }
        asked
    }

    async fn ask_over(&self, pipe: &Pipe, options: &SentinelOptions) -> Result<Option<Said>> {
        let service = &*options.service;
        // While a failover is under way only the first of them names the new master already.
        let answers = self
            .all(
                pipe,
                &[
                    Command::new(["SENTINEL", "GET-MASTER-ADDR-BY-NAME", service]),
                    Command::new(["SENTINEL", "MASTER", service]),
                    Command::new(["SENTINEL", "REPLICAS", service]),
                ],
            )
            .await?;
        let [address, about, replicas] = answers.as_slice() else {
            return Err(errors::garbage(&self.at));
        };
        match (address, about) {
            (Value::Nil, _) => return Ok(None),
            (Value::Error(text), _) => {
                return Err(errors::said(&self.at, options.password.is_some(), text));
            }
            (_, Value::Error(text)) if text.contains("No such master") => return Ok(None),
            (_, Value::Error(text)) => {
                return Err(errors::said(&self.at, options.password.is_some(), text));
            }
            _ => {}
        }
        let said = read(address, about, replicas).ok_or_else(|| errors::garbage(&self.at))?;
        Ok(Some(said))
    }

    /// Where the replicas are, as far as they are not known to be away.
    pub(super) async fn replicas(&self, options: &SentinelOptions) -> Vec<Address> {
        let Ok(pipe) = self.pipe().await else { return Vec::new() };
        let ask = Command::new(["SENTINEL", "REPLICAS", &options.service]);
        let answers = self.all(&pipe, &[ask]).await.unwrap_or_default();
        let replicas = answers.first().map(Value::items).unwrap_or_default();
        replicas
            .iter()
            .filter(is_there)
            .filter_map(|about| {
                let port = field(about, "port")?.parse().ok()?;
                Some(Address::Tcp(field(about, "ip")?.to_owned(), port))
            })
            .collect()
    }

    /// The services that it knows.
    pub(super) async fn services(&self) -> Vec<String> {
        let Ok(pipe) = self.pipe().await else { return Vec::new() };
        let answers = self.all(&pipe, &[Command::new(["SENTINEL", "MASTERS"])]).await;
        let masters = answers.unwrap_or_default();
        let masters = masters.first().map(Value::items).unwrap_or_default();
        masters.iter().filter_map(|about| Some(field(about, "name")?.to_owned())).collect()
    }
}

fn field<'a>(about: &'a Value, name: &str) -> Option<&'a str> {
    about.pairs().into_iter().find(|(key, _)| key.text() == Some(name))?.1.text()
}

/// Whether a Sentinel takes a replica to be there.
fn is_there(replica: &&Value) -> bool {
    let away = |flags: &str| ["down", "disconnected"].iter().any(|flag| flags.contains(flag));
    field(replica, "flags").is_some_and(|flags| !away(flags))
}

/// From what GET-MASTER-ADDR-BY-NAME, MASTER and REPLICAS answered. A Sentinel that does not tell
/// of the replicas says how many it knows.
fn read(address: &Value, about: &Value, those: &Value) -> Option<Said> {
    let [host, port] = address.items() else { return None };
    let number = |name: &str| field(about, name)?.parse::<u64>().ok();
    let replicas = number("num-slaves").unwrap_or(0);
    let living = match those {
        Value::Error(_) => replicas,
        those => those.items().iter().filter(is_there).count() as u64,
    };
    Some(Said {
        at: Address::Tcp(host.text()?.to_owned(), port.text()?.parse().ok()?),
        epoch: number("config-epoch")?,
        down_after: Duration::from_millis(number("down-after-milliseconds").unwrap_or(30_000)),
        replicas,
        living,
        others: number("num-other-sentinels").unwrap_or(0),
    })
}

/// What is told of a Sentinel that says nothing in TLS, while it does not.
fn said_in(silent: &Mutex<Option<Error>>) -> MutexGuard<'_, Option<Error>> {
    silent.lock().unwrap_or_else(PoisonError::into_inner)
}
