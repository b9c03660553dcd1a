//! What is not a claim: looking at names, and being told when they change.
//!
//! Observers get one persistent watch below the directory. Nobody who stands in a line has it: with
//! it every waiter would hear of every other.

use super::proto::{Request, WatchEvent};
use super::state::{State, Ticket};
use crate::engine::{Event, WatchId};

impl State {
    pub(super) fn observe(&mut self, watch: WatchId, path: String) {
        let known = self.observers.values().any(|p| *p == path);
        if self.up && !known {
            self.send(&Request::WatchBelow { path: path.clone() }, Ticket::Nobody);
        }
        self.observers.insert(watch, path);
    }

    pub(super) fn unobserve(&mut self, watch: WatchId) {
        let Some(path) = self.observers.remove(&watch) else { return };
        if self.up && !self.observers.values().any(|p| *p == path) {
            self.send(&Request::UnwatchAll { path }, Ticket::Nobody);
        }
    }

    /// On a new connection: what happened while there was none is not known.
    pub(super) fn observe_again(&mut self) {
        let mut paths: Vec<String> = self.observers.values().cloned().collect();
        paths.sort_unstable();
        paths.dedup();
        for path in paths {
            self.send(&Request::WatchBelow { path }, Ticket::Nobody);
        }
        self.outbox
            .events
            .extend(self.observers.keys().map(|watch| Event::Changed { watch: *watch }));
    }

    pub(super) fn observed(&mut self, event: &WatchEvent) {
        let below = |path: &str| {
            event
                .path
                .strip_prefix(path.trim_end_matches('/'))
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let told = self.observers.iter().filter(|(_, path)| below(path));
        self.outbox.events.extend(told.map(|(watch, _)| Event::Changed { watch: *watch }));
    }
}
