//! Following the slots: links to whoever has some, and channels where their slot is.

use std::sync::Arc;

use tokio::time::{Instant, sleep_until};

use super::super::node::Node;
use super::super::slots::{Homes, slot_of};
use super::Nodes;
use crate::engine::either::either;

impl Nodes {
    /// Knows every node that has slots, so that nothing is left to be made for the one that is
    /// needed but its connection.
    pub(in crate::engine) fn reach(&self) {
        for node in self.slots.homes().nodes() {
            let link = self.known(node);
            if let Some(link) = link.filter(|_| self.everywhere) {
                link.want();
            }
        }
    }

    /// Follows the slots until all is closed: listens where they are, and leaves nodes that have
    /// none.
    pub(in crate::engine) async fn follow(self: Arc<Self>) {
        let mut changes = self.slots.changes();
        let mut homes = self.slots.homes();
        self.reach();
        while let Ok(Ok(())) = either(changes.changed(), self.ended.notified()).await {
            let nodes = &self;
            let now = nodes.slots.homes();
            nodes.reach();
            nodes.listen_there(&now);
            let moved = |key: &str| {
                let slot = slot_of(key);
                homes.of(slot) != now.of(slot)
            };
            nodes.ears.moved(&moved);
            nodes.leave_others(&now);
            homes = now;
        }
    }

    /// Listens to every channel where its slot is now.
    fn listen_there(&self, homes: &Homes) {
        let elsewhere: Vec<(String, Option<Node>, Node)> = {
            let mut state = self.lock();
            let moved = state.channels.iter_mut().filter_map(|(channel, (slot, node))| {
                let to = homes.of(*slot)?;
                let from = node.replace(to);
                (from != Some(to)).then(|| (channel.clone(), from, to))
            });
            moved.collect()
        };
        for (channel, from, to) in elsewhere {
            let Some(new) = self.link(to) else { continue };
            let subscribed = new.subscribe(&channel);
            let Some(old) = from.and_then(|node| self.lock().links.get(&node).cloned()) else {
                continue;
            };
            // Until it is heard where it is now, the old node hands on what is told there.
            let (weak, within) = (self.weak.clone(), self.options.connect_timeout);
            self.context.spawner.spawn(async move {
                if let Some(answer) = subscribed {
                    drop(answer.await);
                }
                // It is among the first that a new connection says; a node may refuse us for long.
                while new.wait_up(Instant::now() + within).await.is_err() {
                    let Some(nodes) = weak.upgrade() else { return };
                    let home = nodes.lock().channels.get(&channel).map(|(_, at)| *at);
                    if nodes.is_closed() || home != Some(Some(to)) {
                        break;
                    }
                }
                let Some(nodes) = weak.upgrade() else { return };
                let is_back =
                    nodes.lock().channels.get(&channel).is_some_and(|(_, at)| *at == from);
                if !is_back {
                    old.unsubscribe(&channel);
                }
            });
        }
    }

    /// A node without slots is left, once what was asked of it must be answered.
    fn leave_others(&self, homes: &Homes) {
        let with_slots = homes.nodes();
        let left: Vec<Node> =
            self.lock().links.keys().filter(|node| !with_slots.contains(node)).copied().collect();
        for node in left {
            let (weak, within) = (self.weak.clone(), self.options.request_timeout);
            self.context.spawner.spawn(async move {
                sleep_until(Instant::now() + within).await;
                let Some(nodes) = weak.upgrade() else { return };
                if nodes.slots.homes().nodes().contains(&node) {
                    return;
                }
                let link = nodes.lock().links.remove(&node);
                if let Some(link) = link {
                    link.close();
                }
            });
        }
    }
}
