//! Conversions of holds.

use tokio::sync::oneshot;

use super::TurnEntry;
use crate::claim::Mode;
use crate::engine::zookeeper::layout::Tag;
use crate::engine::zookeeper::recipe::{Input, Turn};
use crate::engine::zookeeper::state::State;
use crate::engine::{Attempt, End};
use crate::error::{Error, ErrorKind};
use crate::id::ClaimId;

impl State {
    /// The conversion of this id, and its hold.
    pub(super) fn turn_called(&mut self, id: ClaimId) -> Option<(ClaimId, &mut TurnEntry)> {
        let hold = *self.turns.get(&id)?;
        self.claims.get_mut(&hold)?.turn.as_mut().map(|turn| (hold, turn))
    }

    /// Converts a hold, or answers again what a conversion came to.
    pub(in super::super) fn convert(&mut self, hold: ClaimId, id: ClaimId, to: Mode) -> oneshot::Receiver<Attempt> {
        let (sender, receiver) = oneshot::channel();
        let Some(entry) = self.claims.get_mut(&hold).filter(|e| e.machine.held().is_some()) else {
            let error = Error::new(ErrorKind::Lost, "the hold that would be converted is gone");
            self.outbox.attempts.push((sender, Attempt::Failed(error)));
            return receiver;
        };
        if let Some(turn) = entry.turn.as_mut().filter(|t| t.id == id) {
            match turn.number {
                Some(number) => {
                    let answer = self.grant(hold, number);
                    self.outbox.attempts.push((sender, answer));
                }
                None => turn.answers.push(sender),
            }
            return receiver;
        }
        let turn = match to {
            Mode::Exclusive => Turn::Up,
            Mode::Upgradable => Turn::Back,
            _ => Turn::Down,
        };
        let prefix = self.options.layout.prefix(Tag::Write, id);
        let before = entry.turn.replace(TurnEntry { id, number: None, prefix, answers: vec![sender], ends: Vec::new() });
        // Nobody asks for two at once; who waits for an older one is not left waiting.
        self.turns.insert(id, hold);
        if let Some(before) = before {
            self.turns.remove(&before.id);
            self.outbox.ends.extend(before.ends.into_iter().map(|sender| (sender, End::Freed)));
        }
        self.step(hold, Input::Turn(turn));
        receiver
    }
}
