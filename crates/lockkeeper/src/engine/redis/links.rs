//! The two connections of an open engine, and the requests that every layout makes over them.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::client::lane::{Ears, Lane, To};
use super::client::node::Node;
#[cfg(feature = "cluster")]
use super::client::nodes::{Nodes, PartingAt};
use super::errors;
use super::options::RedisOptions;
use super::pipe::Broken;
use super::resp::{Command, Value};
use super::script::Call;
use super::together::all_that_come;
use super::wire::{Answered, Link, Started, Tracking};
use crate::engine::at_exit::AtRisk;
use crate::engine::parting::{Parting, Partings};
use crate::engine::{Context, End, Event, WatchId};
use crate::words::error::{Error, Result};

/// For how long a renewal waits for the second connection to come up before the first one carries
/// it: short beside any lease.
const SIDE_PATIENCE: Duration = Duration::from_millis(200);

/// For how long a node that is known to be away keeps back what the others tell.
const AWAY_PATIENCE: Duration = Duration::from_millis(500);

/// What an open engine talks over.
pub(super) struct Links {
    pub(super) options: Arc<RedisOptions>,
    pub(super) context: Context,
    /// Commands and pushes, in one order.
    pub(super) main: Lane,
    /// Renewals, which nothing may delay, and long readings.
    side: Lane,
    ears: Arc<dyn Ears>,
    label: String,
    closed: AtomicBool,
    parting: Partings,
}

impl Links {
    /// Nothing is sent before [`Links::open`].
    pub(super) fn new(options: Arc<RedisOptions>, context: Context, ears: Arc<dyn Ears>) -> Self {
        let label = client_name(&context.who.program, context.who.pid);
        let renewals = format!("{label}:renewals");
        #[cfg(feature = "cluster")]
        if let Some(slots) = options.slots.clone() {
            let nodes = |label: &str, ears: &Arc<dyn Ears>| {
                let (options, slots) = (options.clone(), slots.clone());
                let (label, ears) = (label.to_owned(), ears.clone());
                Lane::Many(Nodes::new(options, slots, context.clone(), label, ears, false))
            };
            let deaf: Arc<dyn Ears> = Arc::new(Deaf);
            let (main, side) = (nodes(&label, &ears), nodes(&renewals, &deaf));
            return Self::over(main, side, options, context, ears, label);
        }
        let (clock, hears) = (context.clock.clone(), ears.clone());
        let hear = Arc::new(move |order, items: Vec<Value>| {
            hears.push(Node::default(), order, items);
        });
        let main = Link::acknowledged(options.clone(), clock.clone(), label.clone(), hear);
        let side = Link::new(options.clone(), clock, renewals, Arc::new(|_, _| {}));
        Self::over(Lane::One(main), Lane::One(side), options, context, ears, label)
    }

    fn over(
        main: Lane,
        side: Lane,
        options: Arc<RedisOptions>,
        context: Context,
        ears: Arc<dyn Ears>,
        label: String,
    ) -> Self {
        main.brings(options.brought());
        if options.wait.is_some() {
            side.brings(options.brought());
        }
        Self {
            options,
            context,
            main,
            side,
            ears,
            label,
            closed: AtomicBool::new(false),
            parting: Partings::default(),
        }
    }

    /// The first connection, and the tasks that keep both going.
    ///
    /// # Errors
    /// What keeps the server from being used.
    pub(super) async fn open(&self) -> Result<()> {
        let spawner = &self.context.spawner;
        let (main, side) = match (&self.main, &self.side) {
            (Lane::One(main), Lane::One(side)) => (main, side),
            #[cfg(feature = "cluster")]
            (main, side) => {
                if let Some((node, facts)) = self.options.slots.as_ref().and_then(|s| s.facts()) {
                    self.ears.up(node, facts.time, false);
                }
                for lane in [main, side] {
                    if let Lane::Many(nodes) = lane {
                        nodes.reach();
                        spawner.spawn(nodes.clone().follow());
                    }
                }
                return Ok(());
            }
        };
        let ears = self.ears.clone();
        main.before_each(move || ears.fresh(Node::default()));
        let driver = main.connect().await?;
        let (link, ears) = (main.clone(), self.ears.clone());
        let anchor = move |again| {
            let time = link.facts().and_then(|facts| facts.time);
            ears.up(Node::default(), time, again);
        };
        anchor(false);
        let events = self.context.events.clone();
        let tell = move |up| {
            if up {
                anchor(true);
            }
            events.send(Event::Link { up });
        };
        spawner.spawn(main.clone().keep(Some(driver), tell));
        spawner.spawn(side.clone().keep_once_wanted(|_| {}));
        if self.options.wait.is_some() {
            side.want();
        }
        Ok(())
    }

    /// How many names one message may be about that is about several, and that would best be about
    /// so many: one on a node of a cluster, where names are in different slots.
    pub(super) fn names_at_once(&self, most: usize) -> usize {
        if self.main.in_slots() { 1 } else { most }
    }

    /// Runs a command that may be sent twice to its answer.
    ///
    /// # Errors
    /// Those of the server as well.
    pub(super) async fn command(
        &self,
        lane: &Lane,
        to: To,
        name: &str,
        command: Command,
    ) -> Result<Value> {
        let within = self.options.connect_timeout;
        self.answer_to(lane, Started::nothing(), &to, name, command, within).await
    }

    /// The same to one of many nodes: one that is known to be away is not waited for.
    ///
    /// # Errors
    /// Those of the node as well.
    pub(super) async fn command_at(
        &self,
        lane: &Lane,
        node: Node,
        name: &str,
        command: Command,
    ) -> Result<Value> {
        let (to, within) = (To::At(node), self.patience(lane, node));
        self.answer_to(lane, Started::nothing(), &to, name, command, within).await
    }

    /// For how long a request that tells of many names is sent again to a node.
    pub(super) fn patience(&self, lane: &Lane, node: Node) -> Duration {
        let within = self.options.connect_timeout;
        if lane.is_away(node) { AWAY_PATIENCE.min(within) } else { within }
    }

    /// The same for commands that leave in one message. Some may be given up when the others were
    /// answered: whoever sends them does so again.
    pub(super) async fn commands(
        &self,
        lane: &Lane,
        name: &str,
        commands: Vec<(To, Command)>,
    ) -> Result<()> {
        let mut answers = lane.start_commands(&commands).each();
        let answered = commands.into_iter().map(|(to, command)| {
            let started = answers.next().unwrap_or_else(Started::nothing);
            let within = self.options.connect_timeout;
            async move { self.answer_to(lane, started, &to, name, command, within).await }
        });
        // One that is not answered keeps none of the others from being sent again.
        for answer in all_that_come(answered.collect()).await.into_iter().flatten() {
            answer?;
        }
        Ok(())
    }

    async fn answer_to(
        &self,
        lane: &Lane,
        started: Started,
        to: &To,
        name: &str,
        command: Command,
        within: Duration,
    ) -> Result<Value> {
        match lane.finish(started, to, || Some(command.clone()), within).await {
            Ok(answered) => match answered.value {
                Value::Error(text) => Err(errors::server(&self.of(answered.node), name, &text)),
                value => Ok(value),
            },
            Err(broken) => Err(self.broken(lane, &broken)),
        }
    }

    /// One more connection to the server, or to each node, for whoever closes it. It hears of the
    /// keys that start with this text and are changed by others, and listens to this channel.
    pub(super) fn tracking(&self, prefix: String, channel: &str, ears: Arc<dyn Ears>) -> Lane {
        let label = format!("{}:watch", self.label);
        let (options, context) = (self.options.clone(), self.context.clone());
        let spawner = self.context.spawner.clone();
        #[cfg(feature = "cluster")]
        if let Some(slots) = options.slots.clone() {
            let nodes = Nodes::new(options, slots, context, label, ears, true);
            nodes.track(Tracking::Prefix(prefix));
            nodes.subscribe_everywhere(channel);
            spawner.spawn(nodes.clone().follow());
            return Lane::Many(nodes);
        }
        let hears = ears.clone();
        let hear = Arc::new(move |order, items: Vec<Value>| {
            hears.push(Node::default(), order, items);
        });
        let link = Link::new(options, context.clock, label, hear);
        link.track(Tracking::Prefix(prefix));
        _ = link.subscribe(channel);
        let again = AtomicBool::new(false);
        let tell = move |up| {
            if up {
                ears.up(Node::default(), None, again.swap(true, Ordering::Relaxed));
            }
        };
        spawner.spawn(link.clone().keep(None::<std::future::Pending<String>>, tell));
        Lane::One(link)
    }

    /// The second connection, from the first time that it is needed.
    pub(super) fn side(&self) -> &Lane {
        self.side.want();
        &self.side
    }

    /// What carries renewals: nothing may delay them. Where replicas have to have them, they share
    /// the WAIT of the grants.
    pub(super) fn renewing(&self) -> &Lane {
        if self.options.wait.is_some() { &self.main } else { self.side() }
    }

    /// What carries releases and looks: the connection that never waits for replicas.
    pub(super) fn prompt(&self) -> &Lane {
        if self.options.wait.is_some() { self.side() } else { &self.main }
    }

    /// The options of the server that answered: errors name it.
    pub(super) fn of(&self, node: Node) -> Cow<'_, RedisOptions> {
        #[cfg(feature = "cluster")]
        if let Some(address) = self.options.slots.as_ref().and_then(|slots| slots.address(node)) {
            return Cow::Owned(RedisOptions { address, ..(*self.options).clone() });
        }
        #[cfg(not(feature = "cluster"))]
        let _ = node;
        Cow::Borrowed(&self.options)
    }

    /// Why a link did not carry a request.
    pub(super) fn broken(&self, link: &Lane, broken: &Broken) -> Error {
        match (broken, link.why()) {
            (Broken::NotSent(_), Some(why)) => why,
            _ => errors::broken(&self.options, broken),
        }
    }

    /// Follows a script to its answer, or to the error that it came to.
    pub(super) async fn run(
        &self,
        link: &Lane,
        started: Started,
        call: &Call,
        patience: Duration,
    ) -> Result<Answered> {
        match link.run(started, call, patience, || true).await {
            Ok(Answered { value: Value::Error(text), node, .. }) => {
                Err(errors::script(&self.of(node), call, &text))
            }
            Ok(answered) => Ok(answered),
            Err(broken) => Err(self.broken(link, &broken)),
        }
    }

    /// Runs a script and gives what it answers.
    pub(super) async fn call(&self, call: Call) -> Result<Value> {
        let link = self.prompt();
        let started = link.start(&[&call]);
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
            Ok(Answered { value: Value::Error(text), node, .. }) => {
                Err(errors::script(&self.of(node), call, &text))
            }
            Ok(answered) => Ok(answered),
            Err(Broken::NotSent(_)) => {
                self.run(&self.main, self.main.start(&[call]), call, within).await
            }
            Err(broken) => Err(self.broken(&self.side, &broken)),
        }
    }

    /// What is not over when the connections are to end is waited for; it is about this key.
    pub(super) fn parting(&self, key: &str) -> Leaving {
        #[cfg(not(feature = "cluster"))]
        let _ = key;
        Leaving {
            _count: self.parting.begin(),
            #[cfg(feature = "cluster")]
            _at: self.prompt().parting(key),
        }
    }

    /// Sends releases or withdrawals: what the socket takes is with the kernel when this returns,
    /// but where the caller waits for the answer. Says over which of the two they went.
    pub(super) fn start_releases(&self, calls: &[&Call], awaited: bool) -> (&Lane, Started) {
        let prompt = self.prompt();
        let started = prompt.start_releases(calls, awaited);
        if self.options.wait.is_some() && !started.is_on_its_way() {
            // The second connection is not there yet. On the first one they are behind a WAIT, and
            // need none of their own.
            return (&self.main, self.main.start_releases(calls, awaited));
        }
        (prompt, started)
    }

    /// Sends a release that is awaited, perhaps in company, where others give back, too.
    pub(super) fn start_in_company(&self, call: &Call) -> Option<(&Lane, Started)> {
        let prompt = self.prompt();
        prompt.start_in_company(call).map(|started| (prompt, started))
    }

    /// Sends a withdrawal or a release.
    pub(super) fn part(&self, call: Call, awaited: bool) -> Leave {
        let in_company = if awaited { self.start_in_company(&call) } else { None };
        let (lane, started) = in_company.unwrap_or_else(|| self.start_releases(&[&call], awaited));
        self.leave(call, lane, started, awaited)
    }

    /// A withdrawal or a release that was sent just now, by [`Links::start_releases`].
    pub(super) fn leave(&self, call: Call, lane: &Lane, started: Started, awaited: bool) -> Leave {
        let leaving = self.parting(call.keys.first().unwrap_or_default());
        // It may not be with the kernel yet.
        let at_risk = awaited.then(AtRisk::begin);
        Leave { call, lane: lane.clone(), started, leaving, at_risk }
    }

    /// Follows a withdrawal or a release to its end.
    pub(super) async fn ended(&self, leave: Leave) -> (End, Option<Answered>) {
        let Leave { call, lane, started, leaving: _leaving, at_risk: _at_risk } = leave;
        match self.run(&lane, started, &call, self.options.connect_timeout).await {
            Ok(answered) => {
                let word = answered.value.items().first().and_then(Value::text);
                let end = match (word, answered.value.integer()) {
                    // The short way says no more.
                    (Some("D"), _) | (None, Some(1)) => End::Freed,
                    (Some("X"), _) => End::NotOurs,
                    _ => End::Unknown(errors::garbage(&self.of(answered.node))),
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

/// A withdrawal or a release on its way; it counts as one from the moment it was sent.
pub(super) struct Leave {
    call: Call,
    /// Over which of the two it went: there its answer comes, and there it is sent once more.
    lane: Lane,
    started: Started,
    leaving: Leaving,
    /// The end of the process waits for it.
    at_risk: Option<AtRisk>,
}

/// Something is being left or given back.
pub(super) struct Leaving {
    _count: Parting,
    #[cfg(feature = "cluster")]
    _at: Option<PartingAt>,
}

/// The second connections are asked, and hear nothing.
#[cfg(feature = "cluster")]
struct Deaf;

#[cfg(feature = "cluster")]
impl Ears for Deaf {
    fn push(&self, _: Node, _: u64, _: Vec<Value>) {}

    fn fresh(&self, _: Node) {}

    fn up(&self, _: Node, _: Option<(u64, crate::words::clock::Ticks)>, _: bool) {}

    fn down(&self, _: Node) {}

    fn moved(&self, _: &dyn Fn(&str) -> bool) {}
}

/// CLIENT SETNAME takes no spaces.
fn client_name(program: &str, pid: u32) -> String {
    let program = program.rsplit('/').next().unwrap_or(program);
    let program: String =
        program.chars().map(|c| if c.is_ascii_graphic() { c } else { '-' }).collect();
    format!("lockkeeper:{program}:{pid}")
}
