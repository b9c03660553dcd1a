//! What carries an engine's requests: the link to its server, or one to each node of a cluster.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::super::describe::Facts;
use super::node::Node;
#[cfg(feature = "cluster")]
use super::nodes::{Nodes, PartingAt};
use super::pipe::{Broken, Outcome};
use super::resp::{Command, Value};
use super::script::{Call, Which};
use super::wire::{Answered, Link, Started, Tracking};
use crate::engine::Inlet;
use crate::engine::parting::Partings;
use crate::words::clock::Ticks;
use crate::words::error::Error;

/// What the owner of the links hears.
pub(in crate::engine) trait Ears: Send + Sync {
    /// A push of a node, and its number among everything that was read of that node.
    fn push(&self, node: Node, order: u64, items: Vec<Value>);

    /// A node is about to be connected, perhaps another server than before: what it says from here
    /// on comes after all that was read of it.
    fn fresh(&self, node: Node);

    /// A node is connected: its time, with our reading from before it was asked; and whether it was
    /// connected before.
    fn up(&self, node: Node, time: Option<(u64, Ticks)>, again: bool);

    /// A node is not connected any more.
    #[cfg(feature = "cluster")]
    fn down(&self, node: Node);

    /// The keys that this picks have another home.
    #[cfg(feature = "cluster")]
    fn moved(&self, keys: &dyn Fn(&str) -> bool);
}

/// Requests go this way, to whichever node has their keys.
#[derive(Clone)]
pub(in crate::engine) enum Lane {
    /// There is one server.
    One(Arc<Link>),
    /// There are several.
    #[cfg(feature = "cluster")]
    Many(Arc<Nodes>),
}

/// Which node a command is for.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "there is one server"))]
pub(in crate::engine) enum To {
    /// The one that has this key.
    Key(String),
    /// This one.
    At(Node),
}

impl Lane {
    /// Sends scripts, as one message to each node; the readings of the clock are from before.
    pub(in crate::engine) fn start(&self, calls: &[&Call]) -> Started {
        match self {
            Self::One(link) => {
                if let [call] = calls
                    && call.script == Which::Take
                    && let Some(started) = link.start_in_company(call)
                {
                    return started;
                }
                link.start(&calls.iter().map(|call| call.by_name()).collect::<Vec<_>>())
            }
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.start_calls(calls),
        }
    }

    /// The same for releases: what sockets take is with the kernel when this returns, but where the
    /// caller waits for the answer.
    pub(in crate::engine) fn start_releases(&self, calls: &[&Call], awaited: bool) -> Started {
        match self {
            Self::One(link) => link.start_releases(calls.iter().copied(), awaited),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.start_releases(calls, awaited),
        }
    }

    /// Sends a release that is awaited, perhaps in company. `None`: it goes by itself.
    pub(in crate::engine) fn start_in_company(&self, call: &Call) -> Option<Started> {
        match self {
            Self::One(link) => link.start_in_company(call),
            #[cfg(feature = "cluster")]
            Self::Many(_) => None,
        }
    }

    /// Runs a script to its answer; `wanted` is asked before it is sent once more.
    pub(in crate::engine) async fn run(
        &self,
        started: Started,
        call: &Call,
        patience: Duration,
        wanted: impl Fn() -> bool + Send + Sync,
    ) -> Result<Answered, Broken> {
        match self {
            Self::One(link) => link.run(started, call, patience, wanted).await,
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.run(started, call, patience, wanted).await,
        }
    }

    /// Sends commands, as one message to each node.
    pub(in crate::engine) fn start_commands(&self, commands: &[(To, Command)]) -> Started {
        match self {
            Self::One(link) => {
                link.start(&commands.iter().map(|(_, command)| command.clone()).collect::<Vec<_>>())
            }
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.start(commands.iter().map(|(to, c)| (to, c.clone()))),
        }
    }

    /// Runs a command to its answer, as [`Link::finish`] does.
    pub(in crate::engine) async fn finish(
        &self,
        started: Started,
        to: &To,
        command: impl Fn() -> Option<Command> + Send,
        patience: Duration,
    ) -> Result<Answered, Broken> {
        #[cfg(not(feature = "cluster"))]
        let _ = to;
        match self {
            Self::One(link) => link.finish(started, command, patience).await,
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.finish(started, to, command, patience).await,
        }
    }

    /// The node that has a key, as far as is known.
    pub(in crate::engine) fn home(&self, key: &str) -> Node {
        #[cfg(not(feature = "cluster"))]
        let _ = key;
        match self {
            Self::One(_) => Node::default(),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.home(key),
        }
    }

    /// What the server said about itself when it was last connected; of several, the one that was
    /// asked about all last.
    pub(in crate::engine) fn facts(&self) -> Option<Facts> {
        match self {
            Self::One(link) => link.facts(),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.facts(),
        }
    }

    /// Every node that has keys.
    pub(in crate::engine) fn nodes(&self) -> Vec<Node> {
        match self {
            Self::One(_) => vec![Node::default()],
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.all(),
        }
    }

    /// Whether the last that was heard of a node is that there is no connection to be had, so that
    /// nothing else is to wait long for it. Where there is one server, that one is waited for.
    pub(in crate::engine) fn is_away(&self, node: Node) -> bool {
        #[cfg(not(feature = "cluster"))]
        let _ = node;
        match self {
            Self::One(_) => false,
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.is_away(node),
        }
    }

    /// Whether the keys of one script have to be in one slot.
    pub(in crate::engine) fn in_slots(&self) -> bool {
        match self {
            Self::One(link) => link.in_cluster(),
            #[cfg(feature = "cluster")]
            Self::Many(_) => true,
        }
    }

    /// Listens to a channel from now on, over every reconnect, where the key is that it is about.
    pub(in crate::engine) fn subscribe(
        &self,
        channel: &str,
        key: &str,
    ) -> Option<oneshot::Receiver<Outcome>> {
        #[cfg(not(feature = "cluster"))]
        let _ = key;
        match self {
            Self::One(link) => link.subscribe(channel),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.subscribe(channel, key),
        }
    }

    /// Listens to a channel at every node.
    pub(in crate::engine) fn subscribe_everywhere(&self, channel: &str) {
        match self {
            Self::One(link) => drop(link.subscribe(channel)),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.subscribe_everywhere(channel),
        }
    }

    /// Stops listening to a channel that is about a key.
    pub(in crate::engine) fn unsubscribe(&self, channel: &str) {
        match self {
            Self::One(link) => link.unsubscribe(channel),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.unsubscribe(channel),
        }
    }

    /// From the next connect on, hears when somebody else changes such keys.
    pub(in crate::engine) fn track(&self, what: Tracking) {
        match self {
            Self::One(link) => link.track(what),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.track(what),
        }
    }

    /// From the next connect on, requests bring these scripts along where the server lacks them.
    pub(in crate::engine) fn brings(&self, scripts: &'static [Which]) {
        match self {
            Self::One(link) => link.brings(scripts),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.brings(scripts),
        }
    }

    /// Says that it is needed.
    pub(in crate::engine) fn want(&self) {
        match self {
            Self::One(link) => link.want(),
            // Each node's is made when it is needed.
            #[cfg(feature = "cluster")]
            Self::Many(_) => {}
        }
    }

    /// Why it is down, where that is more than "unreachable".
    pub(in crate::engine) fn why(&self) -> Option<Error> {
        match self {
            Self::One(link) => link.why(),
            // A request that was not sent says why.
            #[cfg(feature = "cluster")]
            Self::Many(_) => None,
        }
    }

    /// Where answers come in, for callers that wait for one.
    pub(in crate::engine) fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        match self {
            Self::One(link) => link.inlet(),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.inlet(),
        }
    }

    /// What is about this key is being left or given back, for as long as the answer is kept.
    #[cfg(feature = "cluster")]
    pub(in crate::engine) fn parting(&self, key: &str) -> Option<PartingAt> {
        match self {
            Self::One(_) => None,
            Self::Many(nodes) => Some(nodes.parting(key)),
        }
    }

    /// Waits until nothing is parting any more, as [`Link::settled`] does.
    pub(in crate::engine) async fn settled(&self, parting: &Partings, within: Duration) {
        match self {
            Self::One(link) => link.settled(parting, within).await,
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.settled(within).await,
        }
    }

    /// Ends it.
    pub(in crate::engine) fn close(&self) {
        match self {
            Self::One(link) => link.close(),
            #[cfg(feature = "cluster")]
            Self::Many(nodes) => nodes.close(),
        }
    }
}
