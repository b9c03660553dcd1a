//! A map by ids of our own, for machines: looked up by hash, and equal, hashed and shown in the
//! order of its keys.

use std::fmt;
use std::hash::{Hash, Hasher};

use crate::words::id::{ById, shrink};

/// See the module. Nothing may depend on the order in which it is iterated.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Table<K: Eq + Hash, T>(ById<K, T>);

impl<K: Eq + Hash, T> Default for Table<K, T> {
    fn default() -> Self {
        Self(ById::default())
    }
}

impl<K: Copy + Ord + Hash, T> Table<K, T> {
    pub(crate) fn insert(&mut self, key: K, value: T) -> Option<T> {
        self.0.insert(key, value)
    }

    pub(crate) fn get(&self, key: &K) -> Option<&T> {
        self.0.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut T> {
        self.0.get_mut(key)
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<T> {
        let removed = self.0.remove(key);
        shrink(&mut self.0);
        removed
    }

    /// The keys of what this picks, in no order.
    #[cfg(feature = "cluster")]
    pub(crate) fn picked(&self, which: impl Fn(&T) -> bool) -> Vec<K> {
        self.0.iter().filter(|(_, value)| which(value)).map(|(key, _)| *key).collect()
    }

    /// In no order.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (&K, &mut T)> {
        self.0.iter_mut()
    }

    #[cfg(any(test, feature = "test-util"))]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    fn sorted(&self) -> Vec<(&K, &T)> {
        let mut all: Vec<_> = self.0.iter().collect();
        all.sort_unstable_by_key(|(key, _)| **key);
        all
    }
}

impl<K: Copy + Ord + Hash, T: Hash> Hash for Table<K, T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.sorted().hash(state);
    }
}

impl<K: Copy + Ord + Hash + fmt::Debug, T: fmt::Debug> fmt::Debug for Table<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.sorted()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::hash::DefaultHasher;

    use super::*;

    fn hash(table: &Table<u64, u64>) -> u64 {
        let mut hasher = DefaultHasher::new();
        table.hash(&mut hasher);
        hasher.finish()
    }

    #[test]
    fn its_room_goes_with_what_was_in_it() {
        let mut table = Table::default();
        (0..100_000).for_each(|n| _ = table.insert(n, n));
        (5..100_000).for_each(|n| _ = table.remove(&n));
        assert!(table.0.capacity() < 2_048, "{}", table.0.capacity());
        assert_eq!((table.len(), table.get(&4)), (5, Some(&4)));
    }

    #[test]
    fn what_came_in_another_order_is_the_same() {
        let (mut one, mut two) = (Table::default(), Table::default());
        for n in 0..100 {
            one.insert(n, n * n);
            two.insert(99 - n, (99 - n) * (99 - n));
        }
        assert_eq!((hash(&one), format!("{one:?}")), (hash(&two), format!("{two:?}")));
        assert_eq!(one, two);
        two.remove(&7);
        assert_ne!(hash(&one), hash(&two));
        assert_eq!((two.len(), two.get(&7), two.get(&8)), (99, None, Some(&64)));
    }
}
