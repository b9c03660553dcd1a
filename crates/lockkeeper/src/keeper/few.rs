//! A map for what is mostly one: the single claim or turn of an uncontended name stands beside the table.

use crate::id::ById;

/// Values by number.
pub(super) struct Few<T> {
    one: Option<(u64, T)>,
    more: ById<u64, T>,
}

impl<T> Default for Few<T> {
    fn default() -> Self {
        Self { one: None, more: ById::default() }
    }
}

impl<T> Few<T> {
    /// Puts a value under a number that is not in use.
    pub(super) fn insert(&mut self, number: u64, value: T) {
        if self.one.is_none() {
            self.one = Some((number, value));
        } else {
            self.more.insert(number, value);
        }
    }

    pub(super) fn get(&self, number: u64) -> Option<&T> {
        match &self.one {
            Some((one, value)) if *one == number => Some(value),
            _ => self.more.get(&number),
        }
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut T> {
        match &mut self.one {
            Some((one, value)) if *one == number => Some(value),
            _ => self.more.get_mut(&number),
        }
    }

    pub(super) fn contains(&self, number: u64) -> bool {
        self.get(number).is_some()
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        match self.one.take_if(|(one, _)| *one == number) {
            Some((_, value)) => Some(value),
            None => self.more.remove(&number),
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &T> {
        self.one.iter().map(|(_, value)| value).chain(self.more.values())
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.one.iter_mut().map(|(_, value)| value).chain(self.more.values_mut())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_map_whatever_stands_beside_the_table() {
        let mut few = Few::default();
        for number in 0..3 {
            few.insert(number, number * 10);
        }
        assert_eq!(few.remove(0), Some(0));
        assert_eq!((few.get(0), few.get(1), few.contains(2)), (None, Some(&10), true));
        few.insert(3, 30);
        *few.get_mut(2).unwrap() += 1;
        few.values_mut().for_each(|value| *value += 1);
        let mut all: Vec<_> = few.values().copied().collect();
        all.sort_unstable();
        assert_eq!(all, [11, 22, 31]);
        assert_eq!([1, 2, 3, 4].map(|number| few.remove(number)), [Some(11), Some(22), Some(31), None]);
    }
}
