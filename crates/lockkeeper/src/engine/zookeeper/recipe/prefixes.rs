//! A directory of the layout plain belongs to one prefix.
//!
//! The code that we share it with compares whole names as texts. Among names of one prefix that is
//! the order of their numbers; with another prefix beside them it is not. If theirs comes first as
//! a text, it enters beside our holder. If it comes first as a number only, each of the two waits
//! for the other. So a claim looks before it makes its node, and takes its node back when a list
//! shows a contender of another prefix. Of two newcomers with two prefixes, the later one's list
//! shows the earlier one's node, because it was made before; at most one of them stays.
//!
//! A holder keeps what it has when a stranger comes later: losing the hold would not keep the
//! stranger out.

use super::release::Then;
use super::words::{Action, Node, Seen};
use super::{Contender, Phase};
use crate::engine::zookeeper::layout::{Child, Tag};

/// Our node stands, and beside it a child that may be a contender of another prefix.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Suspecting {
    pub(super) node: Node,
}

impl Contender {
    /// The same for a directory that belongs to one prefix, if it is `one`.
    pub(in super::super) fn of_one_prefix(self, one: bool) -> Self {
        Self { one_prefix: one, ..self }
    }

    /// A child that may be a contender of another prefix.
    pub(super) fn stranger_among(&self, children: &[Child]) -> Option<String> {
        let mut strangers = children.iter().filter(|child| self.is_stranger(child));
        strangers.next().map(|child| child.name.clone())
    }

    /// Whether a child has another prefix than ours and is not known to be a directory.
    pub(in super::super) fn is_stranger(&self, child: &Child) -> bool {
        self.one_prefix && child.tag == Tag::OtherPrefix && !self.ignored.contains(&child.name)
    }

    /// A list has shown a stranger beside our node.
    pub(super) fn suspect(&mut self, node: Node, name: String, out: &mut Vec<Action>) {
        self.phase = Phase::Suspecting(Suspecting { node });
        self.stranger = Some(name.clone());
        out.push(Action::Peek(name));
    }

    /// The net has seen a stranger: what a list says of it now decides.
    pub(super) fn strangers_seen(&mut self, out: &mut Vec<Action>) {
        if matches!(self.phase, Phase::Waiting(_)) && self.lists == 0 {
            self.list(out);
        }
    }

    /// The stranger was read, and is no directory.
    pub(super) fn stranger_seen(&mut self, seen: Seen, out: &mut Vec<Action>) {
        match (&self.phase, seen) {
            (Phase::Peeking | Phase::Suspecting(_), Seen::Gone) => self.look_anew(out),
            (Phase::Peeking, _) => {
                self.phase = Phase::Over;
                let name = self.stranger.take().unwrap_or_default();
                out.push(Action::Say(super::Say::OtherPrefix(name)));
            }
            (Phase::Suspecting(Suspecting { node }), _) => {
                let node = node.clone();
                self.delete(node, Then::OtherPrefix, out);
            }
            _ => {}
        }
    }

    /// The stranger was none, or went: look again.
    pub(super) fn look_anew(&mut self, out: &mut Vec<Action>) {
        self.stranger = None;
        self.phase = match std::mem::replace(&mut self.phase, Phase::Over) {
            Phase::Peeking => Phase::Looking,
            Phase::Suspecting(Suspecting { node }) => Phase::Listing(node),
            other => other,
        };
        self.list(out);
    }
}
