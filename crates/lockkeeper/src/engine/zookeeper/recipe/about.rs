//! What a contender can tell about itself: its nodes, what it waits for, how far it is.

use super::super::layout::Child;
use super::{Contender, Phase};

impl Contender {
    /// The names of our nodes, as far as they are known; the one that stands for the claim comes
    /// first.
    pub(in super::super) fn nodes(&self) -> Vec<&str> {
        match &self.phase {
            Phase::Held(held) => held.nodes(),
            Phase::Deleting(deleting) => deleting.left.iter().map(String::as_str).collect(),
            phase => phase.node().map(|node| node.name.as_str()).into_iter().collect(),
        }
    }

    /// The nodes without which it is no hold.
    pub(in super::super) fn rests_on(&self) -> Vec<&str> {
        if let Phase::Held(held) = &self.phase { held.rests_on() } else { Vec::new() }
    }

    /// The hold's number, once it is held.
    pub(in super::super) fn held(&self) -> Option<i64> {
        match &self.phase {
            Phase::Held(held) => Some(held.number),
            _ => None,
        }
    }

    /// Whether it is its turn, and only the proof of the session is missing.
    pub(in super::super) fn wants_proof(&self) -> bool {
        matches!(self.phase, Phase::Proving(..))
    }

    /// How it stands in line: the node before ours, and whether that is the last one.
    pub(in super::super) fn waits_for(&self) -> Option<(&str, bool)> {
        match &self.phase {
            Phase::Waiting(w) => Some((&w.before.name, w.last)),
            Phase::Queueing(q) => q.waits_for(),
            Phase::Full(first) => Some((first, false)),
            _ => None,
        }
    }

    /// Whether anything of ours may be there.
    pub(in super::super) fn left_nothing(&self) -> bool {
        match self.phase {
            Phase::Idle | Phase::Looking | Phase::Full(_) | Phase::Peeking | Phase::Building => {
                !self.doubt
            }
            Phase::Over => true,
            _ => false,
        }
    }

    /// Whether its delete may have been done already: it was sent on a connection that broke.
    pub(in super::super) fn deletes_again(&self) -> bool {
        matches!(&self.phase, Phase::Deleting(deleting) if deleting.again)
    }

    /// Whether the list that decides is under way, after a create whose answer said all about our
    /// node.
    pub(in super::super) fn is_listing(&self) -> bool {
        matches!(&self.phase, Phase::Listing(node) if node.czxid.is_some())
    }

    /// Whether [`Self::nodes`] are all that may be there: no create of ours is open.
    pub(in super::super) fn knows_its_nodes(&self) -> bool {
        match &self.phase {
            Phase::Creating | Phase::Finding => false,
            Phase::Held(held) => held.knows_its_nodes(),
            _ => !self.doubt,
        }
    }

    /// Whether it would begin, or look what a create came to, and nothing is under way.
    pub(in super::super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// Whether it is over and can be forgotten.
    pub(in super::super) fn is_over(&self) -> bool {
        self.phase == Phase::Over
    }

    /// Whether it is on its way out.
    pub(in super::super) fn is_leaving(&self) -> bool {
        self.leaving || matches!(self.phase, Phase::Deleting(_) | Phase::Over)
    }

    /// How many stand before our node, while we stand in line with it.
    pub(in super::super) fn ahead(&self, all: &[Child]) -> Option<usize> {
        self.phase.node().map(|node| all.iter().filter(|child| child.is_before(node.seq)).count())
    }

    /// The watches it has on other nodes.
    pub(in super::super) fn watched(&self) -> Vec<&str> {
        match &self.phase {
            Phase::Waiting(w) => {
                [Some(w.before.name.as_str()), w.next.as_deref()].into_iter().flatten().collect()
            }
            Phase::Queueing(queueing) => queueing.watched(),
            Phase::Held(held) => held.watched().into_iter().collect(),
            _ => Vec::new(),
        }
    }
}
