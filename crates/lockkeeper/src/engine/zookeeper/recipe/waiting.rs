//! Waiting in line behind others: whom for, and what happens to them.

use std::collections::BTreeSet;

use super::words::{Action, Node, Say, Seen};
use super::{Contender, Phase, Then, Want};
use crate::engine::zookeeper::layout::{Child, Tag};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Waiting {
    pub(super) node: Node,
    /// The nearest node before us.
    pub(super) before: Child,
    /// Those of the watched nodes that are known to be watched: what happens to them cannot be
    /// missed.
    pub(super) armed: BTreeSet<String>,
    /// It is the only one before us: its deletion is the grant.
    pub(super) last: bool,
    /// The one before that, watched so that the list is taken before it matters.
    pub(super) next: Option<String>,
}

/// How many of those before us, the nearest first, only wait: the first holds, and with a reader
/// those that read right behind it.
fn places(before: &[Child]) -> u32 {
    let reads = |child: &&Child| child.tag.is_shared();
    let hold = match before.last() {
        Some(first) if first.tag.is_shared() => before.iter().rev().take_while(reads).count(),
        Some(_) => 1,
        None => 0,
    };
    u32::try_from(before.len() - hold).unwrap_or(u32::MAX)
}

impl Contender {
    /// The list that was taken after our create: is it our turn, and whom do we wait for?
    pub(super) fn decide(&mut self, node: Node, children: Vec<Child>, out: &mut Vec<Action>) {
        if !children.iter().any(|c| c.name == node.name) {
            // Somebody deleted it: stand again, at the end.
            return self.create(out);
        }
        if let Some(name) = self.stranger_among(&children) {
            return self.suspect(node, name, out);
        }
        let mut before: Vec<Child> = children
            .into_iter()
            .filter(|c| c.is_before(node.seq) && !self.ignored.contains(&c.name))
            .collect();
        before.sort_unstable_by_key(|c| (node.seq.wrapping_sub(c.seq), c.tag));
        let ahead = places(&before);
        before.retain(|c| self.want.excludes(c.tag));
        let is_last = before.len() == 1;
        let first = before.last().map(|c| c.name.clone());
        let mut before = before.into_iter();
        let Some(nearest) = before.next() else { return self.our_turn(node, out) };
        if self.only_try {
            return self.delete(node, Then::Busy, out);
        }
        // After a writer of Curator's rw-lock a list is taken anyway.
        let next = before.next().map(|c| c.name).filter(|_| nearest.tag != Tag::Write);
        let already: Vec<String> = self.watched().into_iter().map(str::to_owned).collect();
        for name in [Some(&nearest.name), next.as_ref()].into_iter().flatten() {
            if !already.contains(name) {
                out.push(Action::Watch(name.clone()));
            }
        }
        if !self.told {
            self.told = true;
            let first = first.unwrap_or_else(|| nearest.name.clone());
            if first != nearest.name {
                out.push(Action::Peek(first.clone()));
            }
            out.push(Action::Say(Say::InLine { ahead, first }));
        }
        let mut armed = match std::mem::replace(&mut self.phase, Phase::Idle) {
            Phase::Waiting(before) => before.armed,
            _ => BTreeSet::new(),
        };
        armed.retain(|name| *name == nearest.name || Some(name) == next.as_ref());
        self.phase = Phase::Waiting(Waiting { node, before: nearest, armed, last: is_last, next });
    }

    pub(super) fn happened(&mut self, name: &str, deleted: bool, out: &mut Vec<Action>) {
        if let Some(node) = self.phase.node_mut().filter(|node| node.name == name) {
            if deleted {
                self.create(out);
            } else {
                // Until it is watched again it could go without our seeing that.
                node.armed = false;
                out.push(Action::WatchOwn(name.to_owned()));
            }
            return;
        }
        if let Phase::Queueing(_) = self.phase {
            return self.ahead_happened(name, deleted, out);
        }
        if matches!(self.phase, Phase::Full(_)) && self.lists == 0 {
            return self.list(out);
        }
        let Phase::Waiting(waiting) = &mut self.phase else { return };
        if !deleted {
            if waiting.before.name == name || waiting.next.as_deref() == Some(name) {
                // Its number may have moved on; how far does not matter, ours will be later.
                self.moved = i64::MAX;
                waiting.armed.remove(name);
                out.push(Action::Watch(name.to_owned()));
            }
        } else if waiting.before.name == name {
            // Gone before it was watched: then its number may have moved on without our seeing it.
            let seen_all = waiting.node.armed && waiting.armed.contains(name);
            // A hold that is converted leaves a node of its number behind, which the one that went
            // says before it goes; and one that could be shared with may have become a writer.
            let none_stayed = waiting.node.czxid.is_some_and(|czxid| self.moved <= czxid)
                && waiting.before.tag != Tag::Write;
            // A contender of another prefix may have come since.
            let certain = waiting.last
                && seen_all
                && none_stayed
                && self.want != Want::Shared
                && !self.one_prefix;
            if certain && self.lists == 0 {
                let node = waiting.node.clone();
                self.our_turn(node, out);
            } else if self.lists == 0 {
                self.list(out);
            }
        } else if waiting.next.as_deref() == Some(name) {
            waiting.next = None;
            if self.lists == 0 {
                self.list(out);
            }
        }
    }

    pub(super) fn watched_seen(&mut self, name: &str, seen: Seen, out: &mut Vec<Action>) {
        match seen {
            Seen::Here(_) if matches!(self.phase, Phase::Queueing(_)) => {}
            Seen::Here(mzxid) => {
                if let Phase::Waiting(waiting) = &mut self.phase
                    && (waiting.before.name == name || waiting.next.as_deref() == Some(name))
                {
                    waiting.armed.insert(name.to_owned());
                    self.moved = self.moved.max(mzxid);
                }
            }
            Seen::Gone => {
                // Whatever it did before it went was not told.
                if let Phase::Waiting(waiting) = &mut self.phase {
                    waiting.armed.remove(name);
                }
                self.happened(name, true, out);
            }
            Seen::NoContender => self.ignore(name, out),
        }
    }
}
