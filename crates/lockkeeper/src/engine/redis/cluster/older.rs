//! Maps that are older than the one that is known.
//!
//! A node that slept, or came back with what it knew before, tells such a map for a moment: it is
//! not believed. Where all were restored from a backup they tell nothing else any more.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::engine::redis::options::Address;

/// Who tells an older map, and nobody the one that is known: since when, and when last.
#[derive(Debug, Default)]
pub(super) struct Older(BTreeMap<String, (Instant, Instant)>);

impl Older {
    /// This node told an older map. Answers whether a majority of the masters that are known has
    /// told one for so long.
    pub(super) fn told(
        &mut self,
        now: Instant,
        by: &Address,
        masters: &[&Address],
        long: Duration,
    ) -> bool {
        self.0.entry(by.to_string()).or_insert((now, now)).1 = now;
        let has_told = |at: &&&Address| {
            let times = self.0.get(&at.to_string());
            times.is_some_and(|(first, last)| last.duration_since(*first) >= long)
        };
        masters.iter().filter(has_told).count() > masters.len() / 2
    }

    /// Whether anybody told one since the one that is known was told.
    pub(super) fn is_told(&self) -> bool {
        !self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_map_is_believed_once_a_majority_of_the_masters_has_told_it_for_a_lease() {
        let at = |port| Address::Tcp("h".into(), port);
        let [a, b, c, replica] = [1, 2, 3, 4].map(at);
        let masters = [&a, &b, &c];
        let (mut older, began) = (Older::default(), Instant::now());
        let long = Duration::from_secs(30);
        let mut told =
            |by, after| older.told(began + Duration::from_secs(after), by, &masters, long);
        assert!(!told(&a, 0) && !told(&b, 1), "for a moment");
        assert!(!told(&a, 30), "one of three");
        assert!(!told(&b, 30), "for less than a lease");
        assert!(!told(&replica, 0) && !told(&replica, 40), "a replica is no majority");
        assert!(told(&b, 31));
        assert!(older.is_told() && !Older::default().is_told());
    }
}
