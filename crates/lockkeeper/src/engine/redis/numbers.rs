//! The greatest number of each name that this process was given, for servers that are replaced.
//!
//! A server that takes another one's place may lack the last numbers, and its clock may be behind.
//! A number that was given out already, or one below it, would be a token that goes back (R7).

use std::collections::BTreeMap;
use std::sync::Arc;

use super::client::node::Node;
use crate::words::id::ClaimId;

/// How many names are remembered, at least; older ones are forgotten together.
const NAMES_MIN: usize = 1 << 15;

/// A number, and whose it is.
type Given = (u64, ClaimId);

/// Numbers of before the last connection was made, and those since.
///
/// Answers and pushes of one connection are taken in another order than they were read, so only
/// those of earlier connections, and of other nodes, are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Numbers {
    before: BTreeMap<Arc<str>, Given>,
    older: BTreeMap<Arc<str>, Given>,
    since: BTreeMap<Arc<str>, (Given, Node)>,
}

impl Numbers {
    /// A claim was given a number by this node.
    pub(super) fn saw(&mut self, node: Node, key: &Arc<str>, number: u64, claim: ClaimId) {
        if self.since.len() >= NAMES_MIN {
            self.age(|_| true);
        }
        let given = self.since.entry(key.clone()).or_insert(((number, claim), node));
        if number >= given.0.0 {
            *given = ((number, claim), node);
        }
    }

    /// Another connection to a node was made, perhaps to another server.
    pub(super) fn connected(&mut self, node: Node) {
        self.age(|of| of == node);
    }

    /// What these nodes gave was given over an earlier connection.
    fn age(&mut self, which: impl Fn(Node) -> bool) {
        for (key, (given, node)) in std::mem::take(&mut self.since) {
            if !which(node) {
                self.since.insert(key, (given, node));
                continue;
            }
            let greatest = self.greatest(&key).filter(|seen| seen.0 > given.0).unwrap_or(given);
            self.before.insert(key, greatest);
        }
        if self.before.len() >= NAMES_MIN {
            self.older = std::mem::take(&mut self.before);
        }
    }

    fn greatest(&self, key: &str) -> Option<Given> {
        self.before.get(key).or_else(|| self.older.get(key)).copied()
    }

    /// The greatest number of earlier connections and other nodes, if this one, which `node` gave
    /// to this claim, is not above it. The same claim may be told its own number twice.
    pub(super) fn not_below(
        &self,
        node: Node,
        key: &str,
        number: u64,
        claim: ClaimId,
    ) -> Option<u64> {
        let elsewhere = self.since.get(key).filter(|(_, of)| *of != node).map(|(given, _)| *given);
        let (seen, whose) = elsewhere.into_iter().chain(self.greatest(key)).max()?;
        (number < seen || number == seen && claim != whose).then_some(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r7_a_number_that_is_not_above_those_of_earlier_connections_is_found() {
        let (mut numbers, a) = (Numbers::default(), "a".into());
        let (one, two) = (ClaimId(1), ClaimId(2));
        let node = Node::default();
        numbers.saw(node, &a, 7, one);
        let any_order = numbers.not_below(node, "a", 5, two);
        assert_eq!(any_order, None, "read on one connection, in any order");
        numbers.connected(Node(1));
        assert_eq!(numbers.not_below(node, "a", 5, two), None, "of this node");
        assert_eq!(numbers.not_below(Node(1), "a", 5, two), Some(7), "of another node");
        numbers.connected(node);
        let seen = |numbers: &Numbers, number, claim| numbers.not_below(node, "a", number, claim);
        assert_eq!((seen(&numbers, 6, one), seen(&numbers, 7, two)), (Some(7), Some(7)));
        assert_eq!((seen(&numbers, 7, one), seen(&numbers, 8, two)), (None, None));
        assert_eq!(numbers.not_below(node, "b", 1, two), None);
        numbers.saw(node, &a, 9, two);
        (0..3).for_each(|_| numbers.connected(node));
        assert_eq!(seen(&numbers, 8, one), Some(9), "it is remembered over many connections");
    }

    #[test]
    fn names_are_remembered_for_a_while_and_not_without_end() {
        let (mut numbers, node) = (Numbers::default(), Node::default());
        let key = |n: usize| -> Arc<str> { format!("k{n}").into() };
        (0..4 * NAMES_MIN).for_each(|n| numbers.saw(node, &key(n), 5, ClaimId(1)));
        let known = |n: usize| numbers.not_below(node, &key(n), 1, ClaimId(2)).is_some();
        assert!(known(3 * NAMES_MIN - 1) && !known(0));
        let kept = numbers.before.len() + numbers.older.len() + numbers.since.len();
        assert!(kept <= 3 * NAMES_MIN, "{kept}");
    }
}
