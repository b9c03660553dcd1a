//! Names that were in use when they were last asked for: whoever asks again takes the long way at
//! once, which is one message instead of two. A guess: wrong, it costs a longer script.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// How many names are remembered at most; two of one slot forget each other.
const SLOTS: usize = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Busy {
    /// Empty until a name was in use.
    slots: Vec<u64>,
}

impl Busy {
    pub(super) fn is(&self, record: &str) -> bool {
        if self.slots.is_empty() {
            return false;
        }
        let (slot, mark) = place_of(record);
        self.slots.get(slot) == Some(&mark)
    }

    pub(super) fn note(&mut self, record: &str, busy: bool) {
        if self.slots.is_empty() {
            if !busy {
                return;
            }
            self.slots = vec![0; SLOTS];
        }
        let (slot, mark) = place_of(record);
        if let Some(kept) = self.slots.get_mut(slot) {
            if busy {
                *kept = mark;
            } else if *kept == mark {
                *kept = 0;
            }
        }
    }
}

fn place_of(record: &str) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    record.hash(&mut hasher);
    let mark = hasher.finish() | 1;
    (usize::try_from(mark >> 32).unwrap_or_default() % SLOTS, mark)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_use_is_remembered_until_it_is_free_and_their_number_is_bounded() {
        let mut busy = Busy::default();
        busy.note("a", false);
        assert!(!busy.is("a") && busy.slots.is_empty());
        busy.note("a", true);
        assert!(busy.is("a") && !busy.is("b"));
        busy.note("b", false);
        assert!(busy.is("a"), "another one is free");
        busy.note("a", false);
        assert!(!busy.is("a"));
        let names: Vec<String> = (0..10 * SLOTS).map(|n| format!("name {n}")).collect();
        names.iter().for_each(|name| busy.note(name, true));
        let known = names.iter().filter(|name| busy.is(name)).count();
        assert!(busy.slots.len() == SLOTS && (SLOTS / 2..=SLOTS).contains(&known), "{known}");
        assert!(busy.is(&names[names.len() - 1]), "the last one is");
    }
}
