//! Conversions of holds.

use tokio::sync::oneshot;

use super::{ConversionEntry, Entry};
use crate::engine::zookeeper::layout::Tag;
use crate::engine::zookeeper::recipe::{Conversion, Input};
use crate::engine::zookeeper::state::State;
use crate::engine::{Attempt, End};
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;

impl State {
    /// Converts a hold, or answers again what a conversion came to.
    pub(in super::super) fn convert(
        &mut self,
        hold: ClaimId,
        id: ClaimId,
        to: Mode,
    ) -> oneshot::Receiver<Attempt> {
        let (sender, receiver) = oneshot::channel();
        let Some(entry) = self.claims.get_mut(&hold).filter(|e| e.machine.held().is_some()) else {
            let error = Error::new(ErrorKind::Lost, "the hold to be converted no longer exists");
            self.outbox.attempts.push((sender, Attempt::Failed(error)));
            return receiver;
        };
        if let Some(turn) = entry.turn.iter_mut().chain(&mut entry.later).find(|t| t.id == id) {
            match turn.number {
                Some(number) => {
                    let answer = self.grant(hold, number);
                    self.outbox.attempts.push((sender, answer));
                }
                None => turn.answers.push(sender),
            }
            return receiver;
        }
        let way = match to {
            Mode::Exclusive => Conversion::Upgrade,
            Mode::Upgradable => Conversion::Revert,
            _ => Conversion::Downgrade,
        };
        let prefix = self.options.layout.prefix(Tag::Write, id);
        entry.later.push_back(ConversionEntry {
            id,
            way,
            running: true,
            number: None,
            prefix,
            answers: vec![sender],
            ends: Vec::new(),
        });
        self.turns.insert(id, hold);
        if entry.turn.as_ref().is_none_or(|turn| !turn.running) {
            self.next_turn(hold);
        }
        receiver
    }

    /// The conversion under way has come to something: the next one begins.
    pub(super) fn next_turn(&mut self, hold: ClaimId) {
        let Some(entry) = self.claims.get_mut(&hold) else { return };
        if let Some(turn) = &mut entry.turn {
            turn.running = false;
        }
        let Some(next) = entry.later.pop_front() else { return };
        let way = next.way;
        if let Some(before) = entry.turn.replace(next) {
            self.conversion_ended(before, &Attempt::Busy(None), &End::Freed);
        }
        self.step(hold, Input::Conversion(way));
    }

    /// Whom a claim or a conversion waits for, and whose claim that is.
    pub(in super::super) fn waits(&self, id: ClaimId) -> Option<(ClaimId, &Entry, &str)> {
        let id = self.waits_at(id);
        if let Some(entry) = self.claims.get(&id) {
            return Some((id, entry, entry.machine.waits_for()?.0));
        }
        let hold = *self.turns.get(&id)?;
        let entry = self.claims.get(&hold)?;
        Some((hold, entry, entry.machine.watched().first().copied()?))
    }

    /// What a conversion came to, so far; `None` when there is none.
    pub(super) fn turn_stands(&self, id: ClaimId) -> Option<Option<i64>> {
        let entry = self.claims.get(self.turns.get(&id)?)?;
        entry.turn.iter().chain(&entry.later).find(|turn| turn.id == id).map(|turn| turn.number)
    }

    /// Takes a conversion back, or out of the line of those that are still to come.
    pub(super) fn take_back(&mut self, hold: ClaimId, id: ClaimId, sender: oneshot::Sender<End>) {
        let Some(entry) = self.claims.get_mut(&hold) else { return };
        if let Some(turn) = entry.turn.as_mut().filter(|turn| turn.id == id) {
            turn.running = true;
            turn.ends.push(sender);
            return self.step(hold, Input::TakeBack);
        }
        let Some(at) = entry.later.iter().position(|turn| turn.id == id) else { return };
        if let Some(mut turn) = entry.later.remove(at) {
            turn.ends.push(sender);
            self.conversion_ended(turn, &Attempt::Busy(None), &End::Freed);
        }
    }

    /// Nobody will hear of a conversion any more: whoever still waits for it is told this.
    pub(super) fn conversion_ended(&mut self, turn: ConversionEntry, answer: &Attempt, end: &End) {
        self.turns.remove(&turn.id);
        self.outbox
            .attempts
            .extend(turn.answers.into_iter().map(|sender| (sender, answer.clone())));
        self.outbox.ends.extend(turn.ends.into_iter().map(|sender| (sender, end.clone())));
    }
}
