//! Where the clocks of several nodes stand on ours.

use std::collections::BTreeMap;

use super::client::node::Node;
use crate::engine::anchor::Anchor;
use crate::words::clock::Ticks;

/// One anchor a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Anchors(BTreeMap<Node, Anchor>);

impl Anchors {
    /// Takes a node's time from any answer.
    pub(super) fn heard(&mut self, node: Node, server_us: u64, before: Ticks) {
        let new = Anchor::new(server_us, before);
        self.0.entry(node).and_modify(|old| *old = old.newer(new)).or_insert(new);
    }

    /// Takes a node's time from a new connection, whatever was heard before.
    pub(super) fn reset(&mut self, node: Node, server_us: u64, before: Ticks) {
        self.0.insert(node, Anchor::new(server_us, before));
    }

    /// The same, unless it is of before this instant.
    pub(super) fn of_since(&self, node: Node, at: Ticks) -> Option<Anchor> {
        self.of(node).filter(|anchor| !anchor.is_before(at))
    }

    /// That of a node. One that was not heard of yet is taken to have the time of the others: it
    /// refuses what comes late by its own, and says it.
    pub(super) fn of(&self, node: Node) -> Option<Anchor> {
        let latest = || self.0.values().copied().reduce(Anchor::newer);
        self.0.get(&node).copied().or_else(latest)
    }
}
