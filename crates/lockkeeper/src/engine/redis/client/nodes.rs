//! The links to the nodes of a cluster: one each, made when it is needed first.
//!
//! A request goes to the node that has the slot of its keys. A node that has not carried it out
//! says where to go (MOVED, ASK) or that it is not the time (TRYAGAIN, CLUSTERDOWN): then nothing
//! was done, and it is sent again. A node that does not answer concerns nobody at the others.

mod follow;
mod redirect;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until};

use super::super::describe::Facts;
use super::super::options::RedisOptions;
use super::inlets::All;
use super::lane::{Ears, To};
use super::node::Node;
use super::pipe::{Broken, Outcome};
use super::resp::{Command, Value};
use super::script::{Call, Which};
use super::slots::{Slots, slot_of};
use super::why::Why;
use super::wire::{Answered, Link, Started, Tracking};
use crate::engine::either::either;
use crate::engine::{Context, Inlet};
use crate::words::id::fork_generation;
use redirect::Redirect;

/// How long a request waits before it is sent again to a cluster that is not ready, at first and at
/// most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// For how long a connection that was never there may be on its way before the map is doubted.
const NEW_WITHIN: Duration = Duration::from_millis(100);

/// How soon a request that cannot be sent doubts the map again.
const DOUBTED_AGAIN: Duration = Duration::from_secs(1);

/// How often a request follows at once to where it is sent; nodes that do not agree need time.
const FOLLOWED_AT_ONCE: u32 = 4;

/// How often it is looked whether what is parting is gone.
const SETTLING: Duration = Duration::from_millis(2);

/// One link a node.
pub(in crate::engine) struct Nodes {
    options: Arc<RedisOptions>,
    slots: Arc<Slots>,
    context: Context,
    label: String,
    ears: Arc<dyn Ears>,
    /// Connected to all that have slots, needed or not.
    everywhere: bool,
    state: Mutex<State>,
    ended: Notify,
    /// Where the answers of all nodes come in.
    inlet: Option<Arc<All>>,
    born: u32,
    weak: Weak<Self>,
}

#[derive(Default)]
struct State {
    links: BTreeMap<Node, Arc<Link>>,
    /// What is listened to at every node.
    common: BTreeSet<String>,
    /// What is listened to where a slot is.
    channels: BTreeMap<String, (u16, Option<Node>)>,
    tracks: Option<Tracking>,
    brought: &'static [Which],
    /// How much is being left or given back at each node.
    parting: BTreeMap<Node, usize>,
    closed: bool,
}

impl Nodes {
    /// Nothing is connected before something is sent, unless all nodes are to be heard.
    pub(in crate::engine) fn new(
        options: Arc<RedisOptions>,
        slots: Arc<Slots>,
        context: Context,
        label: String,
        ears: Arc<dyn Ears>,
        everywhere: bool,
    ) -> Arc<Self> {
        Arc::new_cyclic(|weak| Self {
            options,
            slots,
            context,
            label,
            ears,
            everywhere,
            state: Mutex::default(),
            ended: Notify::new(),
            inlet: All::new(),
            born: fork_generation(),
            weak: weak.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The link to a node, which connects from now on; `None` when all is closed.
    fn link(&self, node: Node) -> Option<Arc<Link>> {
        let link = self.known(node)?;
        link.want();
        Some(link)
    }

    /// The link to a node, connected or not.
    fn known(&self, node: Node) -> Option<Arc<Link>> {
        let mut state = self.lock();
        if let Some(link) = state.links.get(&node) {
            return Some(link.clone());
        }
        if state.closed {
            return None;
        }
        let address = self.slots.address(node)?;
        let options = Arc::new(RedisOptions { address, ..(*self.options).clone() });
        let ears = self.ears.clone();
        let hear = Arc::new(move |order, items: Vec<Value>| ears.push(node, order, items));
        let link = Link::new(options, self.context.clock.clone(), self.label.clone(), hear);
        if let Some(tracks) = &state.tracks {
            link.track(tracks.clone());
        }
        link.brings(state.brought);
        for channel in &state.common {
            _ = link.subscribe(channel);
        }
        let fresh = self.ears.clone();
        link.before_each(move || fresh.fresh(node));
        let (ears, slots) = (self.ears.clone(), self.slots.clone());
        let inlet = self.inlet.clone();
        let (weak, again) = (Arc::downgrade(&link), AtomicBool::new(false));
        let tell = move |up| match weak.upgrade() {
            Some(link) if up => {
                inlet.iter().for_each(|inlet| inlet.made());
                let again = again.swap(true, Ordering::Relaxed);
                ears.up(node, link.facts().and_then(|facts| facts.time), again);
            }
            _ => {
                slots.doubt();
                ears.down(node);
            }
        };
        self.context.spawner.spawn(link.clone().keep_once_wanted(tell));
        state.links.insert(node, link.clone());
        Some(link)
    }

    fn to(&self, to: &To) -> Option<Node> {
        match to {
            To::Key(key) => self.slots.home(slot_of(key)),
            To::At(node) => Some(*node),
        }
    }

    /// The node that has a key; the first one while nobody has it.
    pub(super) fn home(&self, key: &str) -> Node {
        self.slots.home(slot_of(key)).unwrap_or_default()
    }

    pub(super) fn all(&self) -> Vec<Node> {
        self.slots.homes().nodes().into_iter().collect()
    }

    pub(super) fn start_calls(&self, calls: &[&Call]) -> Started {
        let key = |call: &Call| call.keys.first().map_or(0, slot_of);
        if let [call] = calls {
            return self.send_one(self.slots.home(key(call)), &call.by_name_in_slot());
        }
        self.send(calls.iter().map(|call| (self.slots.home(key(call)), call.by_name_in_slot())))
    }

    pub(super) fn start<'a>(&self, commands: impl Iterator<Item = (&'a To, Command)>) -> Started {
        self.send(commands.map(|(to, command)| (self.to(to), command)))
    }

    /// Sends releases, as one message to each node.
    pub(super) fn start_releases(&self, calls: &[&Call], awaited: bool) -> Started {
        if self.born != fork_generation() {
            return Started::forked();
        }
        let mut messages: BTreeMap<Node, (Vec<usize>, Vec<&Call>)> = BTreeMap::new();
        for (at, call) in calls.iter().enumerate() {
            let Some(node) = self.slots.home(call.keys.first().map_or(0, slot_of)) else {
                continue;
            };
            let (places, calls) = messages.entry(node).or_default();
            places.push(at);
            calls.push(call);
        }
        let mut all = Started::none(self.context.clock.now(), calls.len());
        for (node, (places, calls)) in messages {
            if let Some(link) = self.link(node) {
                all.take_over(&places, link.start_releases(calls.into_iter(), awaited), node);
            }
        }
        all
    }

    fn send_one(&self, node: Option<Node>, command: &Command) -> Started {
        if self.born != fork_generation() {
            return Started::forked();
        }
        match node.and_then(|node| Some((node, self.link(node)?))) {
            Some((node, link)) => link.start(std::slice::from_ref(command)).last_of(1, node),
            None => Started::none(self.context.clock.now(), 1),
        }
    }

    /// One message a node.
    fn send(&self, commands: impl Iterator<Item = (Option<Node>, Command)>) -> Started {
        if self.born != fork_generation() {
            return Started::forked();
        }
        let mut messages: BTreeMap<Node, (Vec<usize>, Vec<Command>)> = BTreeMap::new();
        let mut commands_in_all = 0;
        for (at, (node, command)) in commands.enumerate() {
            commands_in_all += 1;
            let Some(node) = node else { continue };
            let (places, commands) = messages.entry(node).or_default();
            places.push(at);
            commands.push(command);
        }
        let mut all = Started::none(self.context.clock.now(), commands_in_all);
        for (node, (places, commands)) in messages {
            if let Some(link) = self.link(node) {
                all.take_over(&places, link.start(&commands), node);
            }
        }
        all
    }

    /// Runs a script to its answer.
    pub(super) async fn run(
        &self,
        started: Started,
        call: &Call,
        patience: Duration,
        wanted: impl Fn() -> bool + Send + Sync,
    ) -> Result<Answered, Broken> {
        let to = To::Key(call.keys.first().unwrap_or_default().to_owned());
        let command = || wanted().then(|| call.by_name_in_slot());
        let answered = self.finish(started, &to, command, patience).await?;
        match &answered.value {
            // Nothing was run, so nothing is run twice.
            Value::Error(text) if text.starts_with("NOSCRIPT") && wanted() => {
                if let Some(link) = self.known(answered.node) {
                    link.lacks(call.script);
                }
                let started = self.start([(&to, call.in_full_in_slot())].into_iter());
                let command = || wanted().then(|| call.in_full_in_slot());
                let answered = self.finish(started, &to, command, patience).await?;
                Ok(Answered { resent: true, ..answered })
            }
            _ => Ok(answered),
        }
    }

    /// Runs a command to its answer. What was not carried out is sent again, to whoever has its
    /// slot then, for as long as `patience` lasts.
    pub(super) async fn finish(
        &self,
        started: Started,
        to: &To,
        command: impl Fn() -> Option<Command> + Send,
        patience: Duration,
    ) -> Result<Answered, Broken> {
        let until = Instant::now() + patience;
        let (mut started, mut resent, mut followed) = (started, false, 0);
        let mut pause = PAUSE.0;
        loop {
            let (answer, node) = started.follow().await;
            let (broken, wait) = match answer {
                Ok(mut answered) => match Redirect::of(&answered.value, node, &self.slots) {
                    None => {
                        (answered.node, answered.resent) = (node.unwrap_or_default(), resent);
                        return Ok(answered);
                    }
                    Some(Redirect::Moved { slot, to }) => {
                        self.slots.moved(slot, &to);
                        let why = format!("the slot {slot} is at {to}");
                        (Broken::NotSent(why.into()), Wait::Follow)
                    }
                    Some(Redirect::Ask { to }) => {
                        let why = format!("its slot is being moved to {to}");
                        (Broken::NotSent(why.into()), Wait::Ask(self.slots.node(&to)))
                    }
                    Some(Redirect::Later(text)) => {
                        // A slot that is being moved is where the map says.
                        if !text.starts_with("TRYAGAIN") {
                            self.slots.doubt();
                        }
                        (Broken::NotSent(text.into()), Wait::Pause)
                    }
                },
                Err(broken @ Broken::NotSent(_)) => (broken, Wait::Up),
                Err(broken) => return Err(self.about(broken, node)),
            };
            let broken = self.about(broken, node);
            if started.is_forked() || self.is_closed() {
                return Err(broken);
            }
            let wait = match wait {
                Wait::Follow | Wait::Ask(_) if followed >= FOLLOWED_AT_ONCE => {
                    // They do not agree.
                    self.slots.doubt();
                    Wait::Pause
                }
                wait => wait,
            };
            followed += 1;
            match wait {
                Wait::Follow => {}
                Wait::Ask(node) => {
                    let Some(command) = command() else { return Err(broken) };
                    let Some(link) = self.link(node) else { return Err(broken) };
                    let both = link.start(&[Command::new(["ASKING"]), command]);
                    started = both.last_of(2, node);
                    resent = true;
                    if started.is_on_its_way() {
                        continue;
                    }
                    if let Err(broken) = link.wait_up(until).await {
                        return Err(why_down(&link, broken));
                    }
                }
                Wait::Pause => {
                    let at = Instant::now() + pause;
                    if at > until {
                        return Err(broken);
                    }
                    sleep_until(at).await;
                    pause = (pause * 2).min(PAUSE.1);
                    followed = 0;
                }
                Wait::Up => self.up_or_elsewhere(to, &broken, until).await?,
            }
            let Some(command) = command() else { return Err(broken) };
            (started, resent) = (self.start([(to, command)].into_iter()), true);
        }
    }

    /// An error names the node that it is about.
    fn about(&self, broken: Broken, node: Option<Node>) -> Broken {
        match node.and_then(|node| self.slots.address(node)) {
            Some(at) => broken.of(at),
            None => broken,
        }
    }

    /// Waits until there is a connection to whoever has it, or until another node may have it. All
    /// the time somebody is asked where that is: nobody tells when a replica is promoted.
    async fn up_or_elsewhere(
        &self,
        to: &To,
        broken: &Broken,
        until: Instant,
    ) -> Result<(), Broken> {
        let mut first = true;
        loop {
            if self.is_closed() {
                return Err(broken.clone());
            }
            // Before it is looked at: what changes from here on is not missed.
            let mut changes = self.slots.changes();
            let link = self.to(to).and_then(|node| self.link(node));
            let is_new = std::mem::take(&mut first)
                && link.as_ref().is_some_and(|link| link.why().is_none());
            if !is_new {
                self.slots.doubt();
            }
            // Others have what such a node had.
            if let To::At(node) = to
                && !self.slots.homes().nodes().contains(node)
            {
                return Err(broken.clone());
            }
            let at = until.min(Instant::now() + if is_new { NEW_WITHIN } else { DOUBTED_AGAIN });
            let change = pin!(changes.changed());
            let up = pin!(async {
                match &link {
                    Some(link) => link.wait_up(at).await.map_err(|e| why_down(link, e)),
                    None => {
                        sleep_until(at).await;
                        Err(broken.clone())
                    }
                }
            });
            match either(up, change).await {
                Ok(Err(why)) if at >= until => return Err(why),
                Ok(Err(_)) => {}
                Ok(Ok(())) | Err(_) => return Ok(()),
            }
        }
    }

    /// Listens to a channel where a key is, wherever that is from now on.
    pub(super) fn subscribe(&self, channel: &str, key: &str) -> Option<oneshot::Receiver<Outcome>> {
        let slot = slot_of(key);
        let home = self.slots.home(slot);
        let link = home.and_then(|node| self.link(node));
        self.lock().channels.insert(channel.to_owned(), (slot, home));
        link?.subscribe(channel)
    }

    pub(in crate::engine) fn subscribe_everywhere(&self, channel: &str) {
        let links = {
            let mut state = self.lock();
            state.common.insert(channel.to_owned());
            state.links.values().cloned().collect::<Vec<_>>()
        };
        for link in links {
            drop(link.subscribe(channel));
        }
    }

    pub(super) fn unsubscribe(&self, channel: &str) {
        let link = {
            let mut state = self.lock();
            let home = state.channels.remove(channel).and_then(|(_, home)| home);
            home.and_then(|node| state.links.get(&node).cloned())
        };
        if let Some(link) = link {
            link.unsubscribe(channel);
        }
    }

    pub(in crate::engine) fn track(&self, what: Tracking) {
        let mut state = self.lock();
        state.links.values().for_each(|link| link.track(what.clone()));
        state.tracks = Some(what);
    }

    pub(super) fn brings(&self, scripts: &'static [Which]) {
        self.lock().brought = scripts;
    }

    pub(super) fn facts(&self) -> Option<Facts> {
        let (_, mut facts) = self.slots.facts()?;
        // Who is asked about all nodes is not asked to tell of keys.
        let links: Vec<_> = self.lock().links.values().cloned().collect();
        facts.deaf |= links.iter().any(|link| link.facts().is_some_and(|facts| facts.deaf));
        Some(facts)
    }

    pub(super) fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        let of = |(node, link): (&Node, &Arc<Link>)| Some((*node, link.inlet()?));
        self.inlet.as_ref()?.of(|| self.lock().links.iter().filter_map(of).collect())
    }

    /// What is about this key is being left or given back, for as long as the answer is kept.
    pub(super) fn parting(&self, key: &str) -> PartingAt {
        let node = self.home(key);
        *self.lock().parting.entry(node).or_default() += 1;
        PartingAt { nodes: self.weak.clone(), node }
    }

    /// Waits until nothing is parting any more at nodes that are connected, or for as long as an
    /// answer may take. Nothing can be said to the others.
    pub(super) async fn settled(&self, within: Duration) {
        let until = Instant::now() + within;
        while self.is_parting() && Instant::now() < until {
            sleep_until(Instant::now() + SETTLING).await;
        }
    }

    fn is_parting(&self) -> bool {
        let state = self.lock();
        let is_up = |node| state.links.get(node).is_some_and(|link| link.is_up());
        state.parting.keys().any(is_up)
    }

    /// Whether the last that was heard of a node is that there is no connection to be had.
    pub(super) fn is_away(&self, node: Node) -> bool {
        let link = self.lock().links.get(&node).cloned();
        link.is_some_and(|link| !link.is_up() && link.why().is_some())
    }

    pub(super) fn close(&self) {
        let links = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.links)
        };
        links.values().for_each(|link| link.close());
        self.ended.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.lock().closed
    }
}

/// Something is being left or given back at a node.
pub(in crate::engine) struct PartingAt {
    nodes: Weak<Nodes>,
    node: Node,
}

impl Drop for PartingAt {
    fn drop(&mut self) {
        let Some(nodes) = self.nodes.upgrade() else { return };
        let mut state = nodes.lock();
        if let Some(count) = state.parting.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                state.parting.remove(&self.node);
            }
        }
    }
}

/// Why a request was not sent over a link: as the link says.
fn why_down(link: &Link, broken: Broken) -> Broken {
    link.why().map_or(broken, |error| Broken::NotSent(Why::message(&error)))
}

enum Wait {
    /// It is known where to go.
    Follow,
    /// This node takes it, if it is told that it was sent.
    Ask(Node),
    /// The cluster is not ready.
    Pause,
    /// Until there is a connection, or another node.
    Up,
}
