//! What a claim says, told: as the answer to whoever waits for one, else as an event.

use crate::engine::zookeeper::errors;
use crate::engine::zookeeper::recipe::{Input, Say};
use crate::engine::zookeeper::state::State;
use crate::engine::{Attempt, End, Event, Grant, Place, Which};
use crate::words::error::{Error, ErrorKind};
use crate::words::id::ClaimId;
use crate::words::lost::Lost;
use crate::words::name::Kind;

impl State {
    pub(super) fn say(&mut self, id: ClaimId, say: Say) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        if let Some(of) = entry.gate_of {
            return self.gate_says(id, of, say);
        }
        match say {
            Say::Granted { number } => {
                let answer = self.grant(id, number);
                match answer {
                    Attempt::Granted(grant) => {
                        self.granted(id, grant);
                        self.leave_gate(id);
                    }
                    refused => {
                        self.tell(id, refused);
                        self.step(id, Input::Leave);
                    }
                }
            }
            Say::InLine { ahead, first } => entry.place = Some((first, ahead)),
            Say::Busy => {
                let holder = entry.holder.take();
                self.finish(id, Attempt::Busy(holder));
            }
            Say::OtherLimit(stored) => {
                let error = errors::other_limit(stored, entry.claim.mode);
                self.finish(id, Attempt::Failed(error));
            }
            Say::Refused(code) => {
                let error = errors::refused(code, &entry.dir);
                self.finish(id, Attempt::Failed(error));
            }
            Say::OtherPrefix(name) => {
                let error = errors::other_prefix(&self.options.layout, &entry.dir, &name);
                self.finish(id, Attempt::Failed(error));
            }
            Say::Lost => {
                self.outbox
                    .events
                    .push(Event::Ended { which: Which::Hold(id), why: Lost::TakenAway });
                let error = Error::new(ErrorKind::Lost, "its node was deleted");
                self.turned(id, &Attempt::Failed(error));
            }
            Say::Converted { number } => {
                if let Some(turn) = &mut entry.turn {
                    turn.number = Some(number);
                }
                let answer = self.grant(id, number);
                self.turned(id, &answer);
                self.next_turn(id);
            }
            Say::ConversionWaits => self.turned(id, &Attempt::InLine(Place::default())),
            Say::ConversionRefused(code) => {
                let error = errors::refused(code, &entry.dir);
                self.turned(id, &Attempt::Failed(error));
                self.next_turn(id);
            }
            Say::TakenBack => {
                if let Some(turn) = entry.turn.take() {
                    self.conversion_ended(turn, &Attempt::Busy(None), &End::Freed);
                }
                self.next_turn(id);
            }
            Say::Asked => self.outbox.events.push(Event::Asked { hold: id }),
            Say::Left { ours } => {
                let end = || if ours { End::Freed } else { End::NotOurs };
                for sender in std::mem::take(&mut entry.ends) {
                    self.outbox.ends.push((sender, end()));
                }
                self.finish(id, Attempt::Busy(None));
            }
            Say::Stuck(code) => {
                let error = errors::refused(code, &entry.dir);
                for sender in std::mem::take(&mut entry.ends) {
                    self.outbox.ends.push((sender, End::Unknown(error.clone())));
                }
                self.stuck.insert(id);
            }
        }
    }

    /// Tells what a conversion came to: as the answer, or as an event to whom it was told that it
    /// has to wait.
    pub(super) fn turned(&mut self, hold: ClaimId, answer: &Attempt) {
        let Some(turn) = self.claims.get_mut(&hold).and_then(|e| e.turn.as_mut()) else { return };
        turn.answers.retain(|sender| !sender.is_closed());
        if turn.answers.is_empty() && turn.ends.is_empty() {
            match answer {
                Attempt::Granted(grant) => {
                    self.outbox.events.push(Event::Granted { claim: turn.id, grant: grant.clone() })
                }
                Attempt::Failed(error) => {
                    self.outbox.events.push(Event::Failed { claim: turn.id, error: error.clone() })
                }
                _ => {}
            }
        }
        for sender in turn.answers.drain(..) {
            self.outbox.attempts.push((sender, answer.clone()));
        }
    }

    pub(super) fn granted(&mut self, id: ClaimId, grant: Grant) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        entry.place = None;
        let mut answers = std::mem::take(&mut entry.answers);
        // Whoever has given up waiting for the answer hears of it by an event.
        answers.retain(|sender| !sender.is_closed());
        if answers.is_empty() {
            self.outbox.events.push(Event::Granted { claim: id, grant });
            return;
        }
        for sender in answers.drain(..) {
            self.outbox.attempts.push((sender, Attempt::Granted(grant.clone())));
        }
    }

    /// Tells an answer to everybody who waits for one, and to the keeper when nobody does.
    pub(super) fn tell(&mut self, id: ClaimId, answer: Attempt) {
        let Some(entry) = self.claims.get_mut(&id) else { return };
        let answers = std::mem::take(&mut entry.answers);
        if answers.is_empty()
            && !entry.machine.is_leaving()
            && let Attempt::Failed(error) = &answer
        {
            self.outbox.events.push(Event::Failed { claim: id, error: error.clone() });
        }
        for sender in answers {
            self.outbox.attempts.push((sender, answer.clone()));
        }
    }

    /// The claim is over: nothing of it is left.
    pub(super) fn finish(&mut self, id: ClaimId, answer: Attempt) {
        if let Some(of) = self.claims.get(&id).and_then(|e| e.gate_of) {
            return self.gate_over(id, of);
        }
        self.leave_gate(id);
        let Some(mut entry) = self.drop_entry(id) else { return };
        if entry.claim.kind == Kind::Semaphore {
            self.drop_target(&entry.dir, id);
        }
        self.next_in_line.remove(&id);
        self.stuck.remove(&id);
        if entry.answers.is_empty()
            && let Attempt::Failed(error) = &answer
            && error.kind() != ErrorKind::Lost
        {
            self.outbox.events.push(Event::Failed { claim: id, error: error.clone() });
        }
        for sender in entry.answers.drain(..) {
            self.outbox.attempts.push((sender, answer.clone()));
        }
        for sender in entry.ends.drain(..) {
            self.outbox.ends.push((sender, End::NotOurs));
        }
        let lost = Attempt::Failed(Error::new(
            ErrorKind::Lost,
            "the hold to be converted no longer exists",
        ));
        for turn in entry.turn.take().into_iter().chain(entry.later.drain(..)) {
            self.conversion_ended(turn, &lost, &End::NotOurs);
        }
    }
}
