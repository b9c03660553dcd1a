//! The two connections of an open engine, and the requests that every layout makes over them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::errors;
use super::options::RedisOptions;
use super::pipe::{Broken, OnPush};
use super::resp::{Command, Value};
use super::script::Call;
use super::wire::{Answered, Counted, Link, Started};
use crate::clock::Ticks;
use crate::engine::{Context, End, Event, WatchId};
use crate::error::{Error, Result};

/// For how long a renewal waits for the second connection to come up before the first one carries
/// it: short beside any lease.
const SIDE_PATIENCE: Duration = Duration::from_millis(200);

/// What an open engine talks over.
pub(super) struct Links {
    pub(super) options: Arc<RedisOptions>,
    pub(super) context: Context,
    /// Commands and pushes, in one order.
    pub(super) main: Arc<Link>,
    /// Renewals, which nothing may delay, and long readings.
    side: Arc<Link>,
    label: String,
    closed: AtomicBool,
    /// How many withdrawals and releases are not answered.
    parting: Arc<AtomicUsize>,
}

impl Links {
    /// Nothing is sent before [`Links::open`].
    pub(super) fn new(options: Arc<RedisOptions>, context: Context, on_push: OnPush) -> Self {
        let label = client_name(&context.who.program, context.who.pid);
        let clock = context.clock.clone();
        let main = Link::acknowledged(options.clone(), clock, label.clone(), on_push);
        let side = Link::new(
            options.clone(),
            context.clock.clone(),
            format!("{label}:renewals"),
            Arc::new(|_, _| {}),
        );
        Self {
            options,
            context,
            main,
            side,
            label,
            closed: AtomicBool::new(false),
            parting: Arc::default(),
        }
    }

    /// The first connection, and the tasks that keep both going. `heard` is told the server's
    /// clock, with our reading from before it was asked, at every connect.
    ///
    /// # Errors
    /// What keeps the server from being used.
    pub(super) async fn open(
        &self,
        heard: impl Fn(u64, Ticks) + Send + Sync + 'static,
    ) -> Result<()> {
        let driver = self.main.connect().await?;
        let main = self.main.clone();
        let anchor = move || {
            if let Some((server_us, before)) = main.facts().and_then(|f| f.time) {
                heard(server_us, before);
            }
        };
        anchor();
        let events = self.context.events.clone();
        let tell = move |up| {
            if up {
                anchor();
            }
            events.send(Event::Link { up });
        };
        self.context.spawner.spawn(self.main.clone().keep(Some(driver), tell));
        self.context.spawner.spawn(self.side.clone().keep_once_wanted());
        if self.options.wait.is_some() {
            self.side.want();
        }
        Ok(())
    }

    /// How many names one message may be about that is about several, and that would best be about
    /// so many: one on a node of a cluster, where names are in different slots.
    pub(super) fn names_at_once(&self, most: usize) -> usize {
        if self.main.in_cluster() { 1 } else { most }
    }

    /// Runs a command that may be sent twice to its answer.
    ///
    /// # Errors
    /// Those of the server as well.
    pub(super) async fn command(&self, link: &Link, name: &str, command: Command) -> Result<Value> {
        self.answer_to(link, Started::nothing(), name, command).await
    }

    /// The same for commands that leave in one message.
    pub(super) async fn commands(
        &self,
        link: &Link,
        name: &str,
        commands: Vec<Command>,
    ) -> Result<()> {
        let mut answers = link.start(&commands).each();
        for command in commands {
            let started = answers.next().unwrap_or_else(Started::nothing);
            self.answer_to(link, started, name, command).await?;
        }
        Ok(())
    }

    async fn answer_to(
        &self,
        link: &Link,
        started: Started,
        name: &str,
        command: Command,
    ) -> Result<Value> {
        match link.finish(started, || Some(command.clone()), self.options.connect_timeout).await {
            Ok(answered) => match answered.value {
                Value::Error(text) => Err(errors::server(&self.options, name, &text)),
                value => Ok(value),
            },
            Err(broken) => Err(self.broken(link, &broken)),
        }
    }

    /// One more connection to the server, for whoever keeps it up and closes it.
    pub(super) fn another(&self, label: &str, on_push: OnPush) -> Arc<Link> {
        let label = format!("{}:{label}", self.label);
        Link::new(self.options.clone(), self.context.clock.clone(), label, on_push)
    }

    /// The second connection, from the first time that it is needed.
    pub(super) fn side(&self) -> &Arc<Link> {
        self.side.want();
        &self.side
    }

    /// What carries renewals: nothing may delay them. Where replicas have to have them, they share
    /// the WAIT of the grants.
    pub(super) fn renewing(&self) -> &Arc<Link> {
        if self.options.wait.is_some() { &self.main } else { self.side() }
    }

    /// What carries releases and looks: the connection that never waits for replicas.
    pub(super) fn prompt(&self) -> &Arc<Link> {
        if self.options.wait.is_some() { self.side() } else { &self.main }
    }

    /// Why a link did not carry a request.
    pub(super) fn broken(&self, link: &Link, broken: &Broken) -> Error {
        match (broken, link.why()) {
            (Broken::NotSent(_), Some(why)) => why,
            _ => errors::broken(&self.options, broken),
        }
    }

    /// Follows a script to its answer, or to the error that it came to.
    pub(super) async fn run(
        &self,
        link: &Link,
        started: Started,
        call: &Call,
        patience: Duration,
    ) -> Result<Answered> {
        match link.run(started, call, patience, || true).await {
            Ok(Answered { value: Value::Error(text), .. }) => {
                Err(errors::script(&self.options, call, &text))
            }
            Ok(answered) => Ok(answered),
            Err(broken) => Err(self.broken(link, &broken)),
        }
    }

    /// Runs a script and gives what it answers.
    pub(super) async fn call(&self, call: Call) -> Result<Value> {
        let link = self.prompt();
        let started = link.start(&[call.by_name()]);
        Ok(self.run(link, started, &call, self.options.connect_timeout).await?.value)
    }

    /// Follows renewals that were started on the second connection; where there is none to be had,
    /// the first one carries them.
    pub(super) async fn renewed(&self, started: Started, call: &Call) -> Result<Answered> {
        let within = self.options.request_timeout;
        if self.options.wait.is_some() {
            return self.run(&self.main, started, call, within).await;
        }
        match self.side.run(started, call, SIDE_PATIENCE.min(within), || true).await {
            Ok(Answered { value: Value::Error(text), .. }) => {
                Err(errors::script(&self.options, call, &text))
            }
            Ok(answered) => Ok(answered),
            Err(Broken::NotSent(_)) => {
                self.run(&self.main, self.main.start(&[call.by_name()]), call, within).await
            }
            Err(broken) => Err(self.broken(&self.side, &broken)),
        }
    }

    /// What is not over when the connections are to end is waited for.
    pub(super) fn parting(&self) -> Counted {
        Counted::new(&self.parting)
    }

    /// Follows a withdrawal or a release to its end.
    pub(super) async fn ended(&self, started: Started, call: &Call) -> (End, Option<Answered>) {
        let _parting = self.parting();
        match self.run(self.prompt(), started, call, self.options.connect_timeout).await {
            Ok(answered) => {
                let end = match answered.value.items().first().and_then(Value::text) {
                    Some("D") => End::Freed,
                    Some("X") => End::NotOurs,
                    _ => End::Unknown(errors::garbage(&self.options)),
                };
                (end, Some(answered))
            }
            Err(error) => (End::Unknown(error), None),
        }
    }

    /// Tells watches that what they look at changed.
    pub(super) fn changed(&self, watches: Vec<WatchId>) {
        for watch in watches {
            self.context.events.send(Event::Changed { watch });
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// From now on the engine's tasks end.
    pub(super) fn closing(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Ends both connections, once places and holds that are being left are gone: a server that
    /// does not know the script yet needs a second message.
    pub(super) async fn close(&self) {
        self.prompt().settled(&self.parting, self.options.request_timeout * 5 / 4).await;
        self.main.close();
        self.side.close();
    }
}

/// CLIENT SETNAME takes no spaces.
fn client_name(program: &str, pid: u32) -> String {
    let program = program.rsplit('/').next().unwrap_or(program);
    let program: String =
        program.chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect();
    format!("lockkeeper:{program}:{pid}")
}
