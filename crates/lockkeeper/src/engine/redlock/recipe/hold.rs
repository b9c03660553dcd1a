//! A claim that holds: it is renewed, completed where others were in the way, and given back.

use super::{Action, Members, Outcome, Phase, Recipe, Said, Verb};
use crate::words::clock::Ticks;

impl Recipe {
    /// Whether it holds, and somebody was in the way on some member.
    pub(in crate::engine::redlock) fn is_incomplete(&self) -> bool {
        self.is_held() && self.lacks.len() > 0
    }

    /// Whether it holds, not all have it, and some do not say that it is a hold's.
    pub(in crate::engine::redlock) fn is_unmarked(&self) -> bool {
        self.is_held() && self.has.len() < self.rules.members && self.has != self.marked
    }

    /// Whether a member that is connected again may lack it, as far as its last round says.
    pub(in crate::engine::redlock) fn may_lack(&self, member: usize) -> bool {
        self.is_asking() || self.is_held() && !self.has.has(member)
    }

    /// A member is connected again: it says whether it has the record of a hold. Whether this is
    /// one may not be known yet, and what was asked of that member before it went is not answered.
    pub(super) fn is_back(&mut self, member: usize, out: &mut Vec<Action>) {
        self.back.insert(member);
        self.those_are_back(out);
    }

    /// Asks those of them that did not say so since.
    pub(super) fn those_are_back(&mut self, out: &mut Vec<Action>) {
        let Phase::Held { number, restores: true } = self.phase else { return };
        let round = self.round;
        for member in self.members().filter(|member| self.back.has(*member)) {
            self.lost.insert(member);
            out.push(Action::Send { member, verb: Verb::Keep, round, number });
        }
        self.back = Members::default();
    }

    pub(super) fn renew(&mut self, now: Ticks, number: u64, asked: bool, out: &mut Vec<Action>) {
        self.back = Members::default();
        self.phase = Phase::Renewing { since: now, number, asked };
        self.begin(Verb::Keep, number, now.plus(self.rules.long_patience), out);
    }

    /// A hold waits nowhere: others would wait behind it where it has no record. Lines that tell
    /// whose turn it is are left with what completes the hold.
    pub(super) fn leave_queue(&self, member: usize, out: &mut Vec<Action>) {
        if self.rules.stands && !self.rules.names_giver {
            let round = self.round;
            out.push(Action::Send { member, verb: Verb::Give, round, number: 0 });
        }
    }

    /// A minority that lost the record of a hold gets it again.
    pub(super) fn restore(&mut self, member: usize, number: u64, out: &mut Vec<Action>) {
        self.ours_before.remove(member);
        self.ours.insert(member);
        out.push(Action::Send { member, verb: Verb::Take, round: self.round, number });
    }

    /// Whoever was in the way of a hold may have given back: what is free there is taken, and
    /// nothing else. Its lease does not begin anew by that. What it has says from then on that it
    /// is a hold's.
    pub(super) fn complete(&mut self, out: &mut Vec<Action>) {
        let Phase::Held { number, restores: true } = self.phase else { return };
        let round = self.round;
        for member in self.members() {
            if self.lacks.has(member) {
                self.restore(member, number, out);
            } else if self.has.has(member) && !self.marked.has(member) {
                out.push(Action::Send { member, verb: Verb::Keep, round, number });
            }
        }
    }

    /// Who has a hold's record, and where somebody is in its way, as far as this round says.
    pub(super) fn note_lacks(&mut self) {
        (self.lacks, self.has) = <(Members, Members)>::default();
        for member in self.members() {
            match self.said.get(member) {
                Some(Some(Said::Other(_))) => self.lacks.insert(member),
                Some(Some(Said::Yes { .. })) => self.has.insert(member),
                _ => {}
            }
        }
    }

    pub(super) fn renewed(
        &mut self,
        now: Ticks,
        (since, number): (Ticks, u64),
        asked: bool,
        over: bool,
        out: &mut Vec<Action>,
    ) {
        let majority = self.rules.majority();
        if self.taken() >= majority {
            let in_time = self.rules.is_in_time(since, now);
            self.phase = Phase::Held { number, restores: in_time };
            self.note_lacks();
            self.marked = self.has;
            for member in self.members() {
                if self.said.get(member) == Some(&None) {
                    self.lost.insert(member);
                }
            }
            if !in_time {
                out.push(Action::Done(Outcome::TooSlow));
                return;
            }
            let lost: Vec<usize> = self
                .members()
                .filter(|m| self.said.get(*m) == Some(&Some(Said::Nothing)))
                .collect();
            for member in lost {
                self.restore(member, number, out);
            }
            out.push(Action::Done(match asked {
                true => Outcome::Granted { since, number },
                false => Outcome::Renewed { since },
            }));
            self.those_are_back(out);
        } else if self.count(|said| matches!(said, Said::Nothing | Said::Other(_)))
            > self.rules.members - majority
        {
            // No majority can have had it all the time: somebody else may have been the holder.
            self.phase = Phase::Idle;
            self.give_back(Verb::Give, out);
            out.push(Action::Done(Outcome::Lost));
        } else if over {
            self.phase = Phase::Held { number, restores: false };
            out.push(Action::Done(Outcome::TooFew));
        }
    }

    pub(super) fn leave(&mut self, now: Ticks, out: &mut Vec<Action>) {
        let held = match self.phase {
            Phase::Leaving { held, .. } => held,
            _ => self.is_held(),
        };
        self.phase = Phase::Leaving { held, told: false };
        // The time of the question before is not the time for this one.
        self.round += 1;
        let ours = self.ours;
        for (member, said) in self.said.iter_mut().enumerate() {
            *said = (!ours.has(member)).then_some(Said::Nothing);
        }
        self.give_back(Verb::Give, out);
        out.push(Action::Due { at: now.plus(self.rules.long_patience), round: self.round });
        self.conclude(now, false, out);
    }

    pub(super) fn left(&mut self, held: bool, over: bool, out: &mut Vec<Action>) {
        let majority = self.rules.majority();
        let gave = self.count(|said| *said == Said::Gave);
        let none = self.count(|said| matches!(said, Said::Nothing | Said::Other(_)));
        let outcome = if held && gave >= majority {
            Outcome::Freed
        } else if none > self.rules.members - majority {
            // Who gave a part of it back had it: what the others have lost is no illegal release.
            match (held, gave) {
                (true, 0) if !over => return,
                (false, _) | (true, 0) => Outcome::NotOurs,
                (true, _) => Outcome::Gone,
            }
        } else if !held && gave + none >= majority {
            // What may be left elsewhere keeps nobody out.
            Outcome::Freed
        } else if over {
            Outcome::TooFew
        } else {
            return;
        };
        self.phase = Phase::Leaving { held, told: true };
        out.push(Action::Done(outcome));
    }
}
