//! The claims of this process that wait in memory, first come first served.

use std::collections::{BTreeSet, VecDeque};

use super::words::{Ask, Seq};
use crate::words::clock::Ticks;

/// A queue whose members can leave from the middle.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    /// In order of `seq`; `None` in place of one that has left. The first is never `None`.
    places: VecDeque<(Seq, Option<Ask>)>,
    waiting: usize,
    give_ups: BTreeSet<(Ticks, Seq)>,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.waiting
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Numbers only rise, so the queue stays sorted by them and a claim that leaves is found by
    /// binary search.
    pub(super) fn push(&mut self, ask: Ask) {
        if let Some(at) = ask.give_up {
            self.give_ups.insert((at, ask.seq));
        }
        self.places.push_back((ask.seq, Some(ask)));
        self.waiting += 1;
    }

    pub(super) fn front(&self) -> Option<&Ask> {
        self.places.front().and_then(|(_, ask)| ask.as_ref())
    }

    pub(super) fn back(&self) -> Option<&Ask> {
        self.places.iter().rev().find_map(|(_, ask)| ask.as_ref())
    }

    /// The tries: nobody tries behind a claim that waits, so they are the first.
    pub(super) fn tries(&self) -> impl Iterator<Item = &Ask> {
        self.places.iter().filter_map(|(_, ask)| ask.as_ref()).take_while(|ask| ask.try_only)
    }

    pub(super) fn pop(&mut self) -> Option<Ask> {
        let (_, ask) = self.places.pop_front()?;
        let ask = ask?;
        self.left(&ask);
        Some(ask)
    }

    pub(super) fn remove(&mut self, seq: Seq) -> Option<Ask> {
        let at = self.places.binary_search_by_key(&seq, |(s, _)| *s).ok()?;
        let ask = self.places.get_mut(at)?.1.take()?;
        self.left(&ask);
        if self.places.len() > 64 && self.waiting < self.places.len() / 2 {
            self.places.retain(|(_, ask)| ask.is_some());
        }
        Some(ask)
    }

    fn left(&mut self, ask: &Ask) {
        self.waiting -= 1;
        if let Some(at) = ask.give_up {
            self.give_ups.remove(&(at, ask.seq));
        }
        while self.places.front().is_some_and(|(_, ask)| ask.is_none()) {
            self.places.pop_front();
        }
    }

    /// When the first of them gives up.
    pub(super) fn first_give_up(&self) -> Option<Ticks> {
        self.give_ups.first().map(|(at, _)| *at)
    }

    /// Takes out one who gives up by now.
    pub(super) fn take_given_up(&mut self, now: Ticks) -> Option<Ask> {
        let &(at, seq) = self.give_ups.first()?;
        (at <= now).then(|| self.remove(seq)).flatten()
    }
}
