//! A map for what is mostly one: the single claim or turn of an uncontended name stands beside the
//! table.

use std::hash::Hash;

use crate::words::id::ById;

/// Values by number or id.
pub(in crate::keeper) struct Few<K, T> {
    one: Option<(K, T)>,
    /// Made by the second one: an empty map would be larger than what it is for.
    more: Option<Box<ById<K, T>>>,
}

impl<K, T> Default for Few<K, T> {
    fn default() -> Self {
        Self { one: None, more: None }
    }
}

impl<K: Copy + Eq + Hash, T> Few<K, T> {
    /// Puts a value under a number; answers the one that stood there.
    pub(in crate::keeper) fn insert(&mut self, number: K, value: T) -> Option<T> {
        match &mut self.one {
            Some((one, before)) if *one == number => Some(std::mem::replace(before, value)),
            None if !self.more.as_ref().is_some_and(|more| more.contains_key(&number)) => {
                self.one = Some((number, value));
                None
            }
            _ => self.more.get_or_insert_default().insert(number, value),
        }
    }

    pub(in crate::keeper) fn get(&self, number: K) -> Option<&T> {
        match &self.one {
            Some((one, value)) if *one == number => Some(value),
            _ => self.more.as_ref()?.get(&number),
        }
    }

    pub(in crate::keeper) fn get_mut(&mut self, number: K) -> Option<&mut T> {
        match &mut self.one {
            Some((one, value)) if *one == number => Some(value),
            _ => self.more.as_mut()?.get_mut(&number),
        }
    }

    pub(in crate::keeper) fn contains(&self, number: K) -> bool {
        self.get(number).is_some()
    }

    pub(in crate::keeper) fn remove(&mut self, number: K) -> Option<T> {
        match self.one.take_if(|(one, _)| *one == number) {
            Some((_, value)) => Some(value),
            None => self.more.as_mut()?.remove(&number),
        }
    }

    pub(in crate::keeper) fn is_empty(&self) -> bool {
        self.one.is_none() && self.more.as_ref().is_none_or(|more| more.is_empty())
    }

    pub(in crate::keeper) fn keys(&self) -> impl Iterator<Item = K> {
        self.one
            .iter()
            .map(|(key, _)| *key)
            .chain(self.more.iter().flat_map(|more| more.keys().copied()))
    }

    pub(in crate::keeper) fn values(&self) -> impl Iterator<Item = &T> {
        self.one
            .iter()
            .map(|(_, value)| value)
            .chain(self.more.iter().flat_map(|more| more.values()))
    }

    pub(in crate::keeper) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.one
            .iter_mut()
            .map(|(_, value)| value)
            .chain(self.more.iter_mut().flat_map(|more| more.values_mut()))
    }
}

/// Values by number of what is seldom there: until then it is a pointer.
pub(in crate::keeper) struct Seldom<K, T>(Option<Box<ById<K, T>>>);

impl<K, T> Default for Seldom<K, T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<K: Copy + Eq + Hash, T> Seldom<K, T> {
    pub(in crate::keeper) fn insert(&mut self, number: K, value: T) {
        self.0.get_or_insert_default().insert(number, value);
    }

    pub(in crate::keeper) fn get(&self, number: K) -> Option<&T> {
        self.0.as_ref()?.get(&number)
    }

    pub(in crate::keeper) fn get_mut(&mut self, number: K) -> Option<&mut T> {
        self.0.as_mut()?.get_mut(&number)
    }

    pub(in crate::keeper) fn remove(&mut self, number: K) -> Option<T> {
        let removed = self.0.as_mut()?.remove(&number);
        self.0.take_if(|all| all.is_empty());
        removed
    }

    pub(in crate::keeper) fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.0.iter().flat_map(|all| all.iter().map(|(number, value)| (*number, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map_whatever_stands_beside_the_table() {
        let mut few = Few::default();
        for number in 0..3 {
            assert_eq!(few.insert(number, number * 10), None);
        }
        assert_eq!(
            (few.insert(2, 2), few.insert(2, 20), few.keys().count()),
            (Some(20), Some(2), 3)
        );
        assert_eq!(few.remove(0), Some(0));
        assert_eq!((few.get(0), few.get(1), few.contains(2)), (None, Some(&10), true));
        assert_eq!((few.insert(2, 2), few.insert(2, 20)), (Some(20), Some(2)));
        assert_eq!(few.insert(3, 30), None);
        *few.get_mut(2).unwrap() += 1;
        few.values_mut().for_each(|value| *value += 1);
        let mut all: Vec<_> = few.values().copied().collect();
        all.sort_unstable();
        assert_eq!(all, [11, 22, 31]);
        assert_eq!(
            [1, 2, 3, 4].map(|number| few.remove(number)),
            [Some(11), Some(22), Some(31), None]
        );
    }
}
