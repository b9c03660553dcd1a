//! The greatest number of each name that this process was given, for servers that are replaced.
//!
//! A server that takes another one's place may lack the last numbers, and its clock may be behind.
//! A number that was given out already, or one below it, would be a token that goes back (R7).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::id::ClaimId;

/// How many names are remembered, at least; older ones are forgotten together.
const NAMES_MIN: usize = 1 << 15;

/// A number, and whose it is.
type Given = (u64, ClaimId);

/// Numbers of before the last connection was made, and those since.
///
/// Answers and pushes of one connection are taken in another order than they were read, so only
/// those of earlier connections are compared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Numbers {
    before: BTreeMap<Arc<str>, Given>,
    older: BTreeMap<Arc<str>, Given>,
    since: BTreeMap<Arc<str>, Given>,
}

impl Numbers {
    /// A claim was given a number.
    pub(super) fn saw(&mut self, key: &Arc<str>, number: u64, claim: ClaimId) {
        if self.since.len() >= NAMES_MIN {
            self.connected();
        }
        let given = self.since.entry(key.clone()).or_insert((number, claim));
        if number >= given.0 {
            *given = (number, claim);
        }
    }

    /// Another connection was made, perhaps to another server.
    pub(super) fn connected(&mut self) {
        for (key, given) in std::mem::take(&mut self.since) {
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

    /// The greatest number of earlier connections, if this one of this claim is not above it. The
    /// same claim may be told its own number twice.
    pub(super) fn not_below(&self, key: &str, number: u64, claim: ClaimId) -> Option<u64> {
        let (seen, whose) = self.greatest(key)?;
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
        numbers.saw(&a, 7, one);
        assert_eq!(numbers.not_below("a", 5, two), None, "read on one connection, in any order");
        numbers.connected();
        let seen = |numbers: &Numbers, number, claim| numbers.not_below("a", number, claim);
        assert_eq!((seen(&numbers, 6, one), seen(&numbers, 7, two)), (Some(7), Some(7)));
        assert_eq!((seen(&numbers, 7, one), seen(&numbers, 8, two)), (None, None));
        assert_eq!(numbers.not_below("b", 1, two), None);
        numbers.saw(&a, 9, two);
        (0..3).for_each(|_| numbers.connected());
        assert_eq!(seen(&numbers, 8, one), Some(9), "it is remembered over many connections");
    }

    #[test]
    fn names_are_remembered_for_a_while_and_not_without_end() {
        let mut numbers = Numbers::default();
        let key = |n: usize| -> Arc<str> { format!("k{n}").into() };
        (0..4 * NAMES_MIN).for_each(|n| numbers.saw(&key(n), 5, ClaimId(1)));
        let known = |n: usize| numbers.not_below(&key(n), 1, ClaimId(2)).is_some();
        assert!(known(3 * NAMES_MIN - 1) && !known(0));
        let kept = numbers.before.len() + numbers.older.len() + numbers.since.len();
        assert!(kept <= 3 * NAMES_MIN, "{kept}");
    }
}
