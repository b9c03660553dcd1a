//! Permits: whoever stands in a semaphore's line holds as soon as those before it and itself fit
//! into the limit.
//!
//! That counts everybody who came before, whether it holds or waits: so nobody is overtaken, and a
//! great claim is not starved by small ones. Nodes only ever leave from before us, so what we know
//! of them is never less than what is there.
//!
//! A waiter watches its nearest predecessors, as many as could not all stay while it is let in:
//! without one of those leaving, its turn cannot come. Those at the back watch others who wait, so
//! a permit that comes back wakes few.

use std::collections::BTreeSet;

use super::words::{Action, Listing, Node, Say};
use super::{Contender, Phase, Then, Want};
use crate::engine::zookeeper::layout::Child;
use crate::engine::zookeeper::proto::Code;

/// Standing in a semaphore's line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Queueing {
    pub(super) node: Node,
    /// Those before us that may still be there, the nearest first.
    before: Vec<Child>,
    /// Those of them whose end will be told.
    watched: BTreeSet<String>,
    limit: u32,
    count: u32,
}

impl Queueing {
    fn fits(&self) -> bool {
        weight(&self.before) + self.count <= self.limit
    }

    /// How many of those before us only wait: from the first one on they hold as long as there are
    /// permits.
    fn places(&self) -> u32 {
        let mut taken = 0;
        let holds = |child: &&Child| {
            taken += child.tag.weight();
            taken <= self.limit
        };
        let hold = self.before.iter().rev().take_while(holds).count();
        u32::try_from(self.before.len() - hold).unwrap_or(u32::MAX)
    }

    /// The nearest one before us, and whether one end can be enough.
    pub(super) fn waits_for(&self) -> Option<(&str, bool)> {
        let greatest = self.before.iter().map(|c| c.tag.weight()).max().unwrap_or(0);
        let last = weight(&self.before) + self.count <= self.limit + greatest;
        self.before.first().map(|c| (c.name.as_str(), last))
    }

    pub(super) fn watched(&self) -> Vec<&str> {
        self.watched.iter().map(String::as_str).collect()
    }

    /// Watches as many of the nearest as cannot all stay while we are let in.
    fn watch(&mut self, out: &mut Vec<Action>) {
        let mut before = self.watched.clone();
        self.watched.clear();
        let mut watched = 0;
        for child in &self.before {
            if watched + self.count > self.limit {
                break;
            }
            watched += child.tag.weight();
            if !before.remove(&child.name) {
                out.push(Action::Watch(child.name.clone()));
            }
            self.watched.insert(child.name.clone());
        }
    }
}

fn weight(children: &[Child]) -> u32 {
    children.iter().map(|c| c.tag.weight()).sum()
}

impl Contender {
    /// A try has looked.
    pub(super) fn looked_for_permits(
        &mut self,
        listing: &Listing,
        count: u16,
        limit: u16,
        out: &mut Vec<Action>,
    ) {
        if let Some(stored) = listing.limit.filter(|stored| *stored != limit) {
            return self.over(Say::OtherLimit(stored), out);
        }
        let taken: Vec<Child> =
            listing.children.iter().filter(|c| !self.ignored.contains(&c.name)).cloned().collect();
        let first = taken.iter().reduce(|first, c| if c.is_before(first.seq) { c } else { first });
        match first {
            Some(first) if weight(&taken) + u32::from(count) > u32::from(limit) => {
                out.push(Action::Peek(first.name.clone()));
                self.phase = Phase::Peeking;
            }
            _ => self.create(out),
        }
    }

    /// The list that was taken after our create: are there enough for us, and whom do we wait for?
    pub(super) fn decide_permits(&mut self, node: Node, listing: Listing, out: &mut Vec<Action>) {
        let Want::Permits { count, limit } = self.want else { return };
        if !listing.children.iter().any(|c| c.name == node.name) {
            return self.create(out);
        }
        let Some(stored) = listing.limit else {
            self.phase = Phase::Listing(node);
            return out.push(Action::StoreLimit);
        };
        // Once it was agreed on, another limit is a resize; then only what can never be granted is
        // refused.
        if (!self.agreed && stored != limit) || count > stored {
            return self.delete(node, Then::OtherLimit(stored), out);
        }
        self.agreed = true;
        let mut before = listing.children;
        before.retain(|c| c.is_before(node.seq) && !self.ignored.contains(&c.name));
        before.sort_unstable_by_key(|c| node.seq.wrapping_sub(c.seq));
        let watched = self
            .watched()
            .into_iter()
            .map(str::to_owned)
            .filter(|name| before.iter().any(|c| c.name == *name))
            .collect();
        self.go_on(
            Queueing { node, before, watched, limit: u32::from(stored), count: u32::from(count) },
            out,
        );
    }

    /// Holds if it fits, else waits.
    fn go_on(&mut self, mut queueing: Queueing, out: &mut Vec<Action>) {
        if queueing.fits() {
            return match queueing.node.czxid {
                Some(czxid) => self.grant(queueing.node, czxid, out),
                None => self.delete(queueing.node, Then::Refused(Code::RUNTIME_INCONSISTENCY), out),
            };
        }
        if self.only_try {
            return self.delete(queueing.node, Then::Busy, out);
        }
        queueing.watch(out);
        if !self.told
            && let Some(first) = queueing.before.last()
        {
            self.told = true;
            if !queueing.watched.contains(&first.name) {
                out.push(Action::Peek(first.name.clone()));
            }
            let ahead = queueing.places();
            out.push(Action::Say(Say::InLine { ahead, first: first.name.clone() }));
        }
        self.phase = Phase::Queueing(queueing);
    }

    /// Something happened to one that stands before us.
    pub(super) fn ahead_happened(&mut self, name: &str, deleted: bool, out: &mut Vec<Action>) {
        let Phase::Queueing(queueing) = &mut self.phase else { return };
        if !queueing.watched.contains(name) {
            return;
        }
        if !deleted {
            return out.push(Action::Watch(name.to_owned()));
        }
        if !queueing.node.armed {
            // Our own node could have gone before it, without our seeing that.
            if self.lists == 0 {
                self.list(out);
            }
            return;
        }
        queueing.watched.remove(name);
        queueing.before.retain(|c| c.name != name);
        if self.lists == 0 {
            let queueing = queueing.clone();
            self.go_on(queueing, out);
        }
    }

    pub(super) fn limit_stored(&mut self, result: Result<(), Code>, out: &mut Vec<Action>) {
        let Phase::Listing(node) = &self.phase else { return };
        match result {
            // Stored, or somebody was faster; the list says which limit it is.
            Ok(()) | Err(Code::BAD_VERSION | Code::NO_NODE) => self.list(out),
            Err(code) => {
                let node = node.clone();
                self.delete(node, Then::Refused(code), out);
            }
        }
    }

    pub(super) fn limit_changed(&mut self, out: &mut Vec<Action>) {
        // Who looks among counted permits may have read one half before the change: its event does
        // not come twice.
        let looks = self.phase == Phase::Looking && self.counts().is_some();
        if looks || matches!(self.phase, Phase::Full(_) | Phase::Queueing(_) | Phase::Listing(_)) {
            self.list(out);
        }
    }
}
