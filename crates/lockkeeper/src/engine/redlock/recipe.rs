//! One claim on a quorum of members, as a pure machine: who was asked, who said what, and what
//! follows.
//!
//! The algorithm is the published one (redis.io, "Distributed Locks with Redis"). A round asks
//! every member at once. A majority that said yes in one round is a grant, if enough of the lease
//! is left, counted from before the first send (R1). Whatever did not certainly say no is then
//! asked to give back (R4).
//!
//! The number of a grant, which its token is made of, is one that a majority keeps for it. Each
//! member that grants keeps the proposed number if it is the greatest it ever had for that name,
//! else one more than that (R7). Usually a majority answers the same. Else a second round has a
//! majority keep the greatest of the answers, before the grant is told: any later majority knows
//! it. A number that only a minority keeps is nobody's token.
//!
//! Contenders that each have a minority order themselves by the members' clock when each was first
//! asked for, then by claim id: every refusal names who is in the way, the smallest that lives
//! keeps what it has, and the others give back. A claim keeps that time for life, and it does not
//! depend on the numbers that a process knows, so a claim that waits does not give way to those
//! that come later. One that tries gives way to whoever contends; but where all of these come later
//! they give way to it, so it asks once more. It has what they gave back if they try as well; if
//! one of them waits, that one stands in line there, and comes first.
//!
//! A reader's claim differs only in what members refuse: a member has one record of a claim alone,
//! or those of any number of readers. A majority with a reader's record has no majority for a
//! writer beside it. Readers are not in each other's way. For a writer, the first of them stands
//! for all that a member has. A reader's number is kept as every other, so that it is above those
//! of all writers before, and below those of all after.

mod hold;
mod refused;
#[cfg(test)]
mod search;
#[cfg(test)]
mod tests;
mod votes;
mod words;

pub(super) use words::{Action, Event, Members, Other, Outcome, Rank, Rules, Said, Silent, Verb};

use std::time::Duration;

use crate::words::clock::Ticks;
use crate::words::id::ClaimId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Phase {
    /// Not asked for, or refused.
    Idle,
    Asking {
        since: Ticks,
        silent: Silent,
    },
    /// A majority has our record, under different numbers; a majority is to keep this one.
    Numbering {
        since: Ticks,
        silent: Silent,
        number: u64,
    },
    /// Ours. Members that turn out to have lost it are asked to take it again, unless the last
    /// round failed.
    Held {
        number: u64,
        restores: bool,
    },
    Renewing {
        since: Ticks,
        number: u64,
        /// It was asked for, and not to be renewed.
        asked: bool,
    },
    Leaving {
        held: bool,
        told: bool,
    },
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Recipe {
    rules: Rules,
    /// For how long answers are waited for: as the rules say, or longer where links are slow.
    patience: Duration,
    /// Until when its caller waits, if not for ever.
    until: Option<Ticks>,
    id: ClaimId,
    /// The middle one of the members' clocks when it was first asked for, as a number.
    first: Option<u64>,
    /// It leaves nothing behind when it is refused.
    tries: bool,
    round: u64,
    phase: Phase,
    /// What each member said in this round.
    said: Vec<Option<Said>>,
    /// Where our record may be, or our place in a queue.
    ours: Members,
    /// The same before this round.
    ours_before: Members,
    /// Where somebody was in the way of a hold.
    lacks: Members,
    /// Which members said that they have the record of a hold, and which that it is one's.
    has: Members,
    marked: Members,
    /// Which members' next answer to `Keep` may say that they lost a hold's record, which they get
    /// again: those that are back, and those that a renewal of a majority still waits for.
    lost: Members,
    /// Which members were connected again since it was asked for, or since its renewal began.
    back: Members,
    /// What it keeps beside contenders that come after it.
    kept: Members,
    /// A holder refused it: what it gets of this round all the same it gives back.
    undoes: bool,
    /// In how many rounds in a row members were late, and it is asked once more.
    late: u8,
    /// It tries, met others that come later, and is asked once more, or was.
    met: bool,
}

impl Recipe {
    pub(super) fn new(id: ClaimId, rules: Rules, tries: bool) -> Self {
        Self {
            rules,
            patience: rules.patience,
            until: None,
            id,
            first: None,
            tries,
            round: 0,
            phase: Phase::Idle,
            said: vec![None; rules.members],
            ours: Members::default(),
            ours_before: Members::default(),
            lacks: Members::default(),
            has: Members::default(),
            marked: Members::default(),
            lost: Members::default(),
            back: Members::default(),
            kept: Members::default(),
            undoes: false,
            late: 0,
            met: false,
        }
    }

    /// For how long members' answers are waited for from now on, and until when its caller waits.
    pub(super) fn be_patient(&mut self, patience: Duration, until: Option<Ticks>) {
        (self.patience, self.until) = (patience, until);
    }

    /// Whether it holds, as far as is known.
    pub(super) fn is_held(&self) -> bool {
        self.number().is_some()
    }

    /// The middle one of the members' clocks when it was first asked for; 0 before that.
    pub(super) fn first(&self) -> u64 {
        self.first.unwrap_or(0)
    }

    fn rank(&self) -> Rank {
        Rank { first: self.first(), claim: self.id }
    }

    /// Whether that is the round whose answers are waited for.
    pub(super) fn is_asking_in(&self, round: u64) -> bool {
        self.round == round
    }

    /// The number that it holds under.
    fn number(&self) -> Option<u64> {
        match self.phase {
            Phase::Held { number, .. } | Phase::Renewing { number, .. } => Some(number),
            _ => None,
        }
    }

    /// Whether it waits for answers to a claim.
    pub(super) fn is_asking(&self) -> bool {
        matches!(self.phase, Phase::Asking { .. } | Phase::Numbering { .. })
    }

    /// The members whose record of it stays, though it was refused.
    pub(super) fn kept(&self) -> Members {
        self.kept
    }

    /// The members that may have its record.
    pub(super) fn ours(&self) -> Members {
        self.ours
    }

    /// Whether it has a place where it is refused, in lines that tell whose turn it is.
    pub(super) fn lines_up(&self) -> bool {
        self.rules.stands && self.rules.names_giver
    }

    /// The members that have not answered in this round.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = usize> + '_ {
        self.said.iter().enumerate().filter(|(_, said)| said.is_none()).map(|(member, _)| member)
    }

    /// Acts on an event.
    pub(super) fn step(&mut self, event: Event, out: &mut Vec<Action>) {
        match (event, self.number()) {
            (Event::Ask { now, .. }, Some(number)) => self.renew(now, number, true, out),
            (Event::Renew { now }, Some(number)) => self.renew(now, number, false, out),
            _ => self.step_free(event, out),
        }
    }

    /// Acts on an event that is no question about a hold.
    fn step_free(&mut self, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Ask { .. } | Event::Renew { .. } if self.is_leaving() => {
                out.push(Action::Done(Outcome::NotOurs));
            }
            Event::Ask { now, silent, number, clock } => {
                self.first.get_or_insert(clock);
                self.ask(now, silent, number, out);
            }
            Event::Renew { .. } => out.push(Action::Done(Outcome::Lost)),
            Event::Leave { now } => self.leave(now, out),
            Event::Said { now, member, verb, round, said } => {
                self.heard(now, member, verb, round, said, out);
            }
            Event::Due { now, round } if round == self.round => self.conclude(now, true, out),
            Event::Due { .. } => {}
            Event::Back { member } => self.is_back(member, out),
            Event::Complete => self.complete(out),
            Event::Suspect { member } => self.ours.insert(member),
        }
    }

    fn is_leaving(&self) -> bool {
        matches!(self.phase, Phase::Leaving { .. })
    }

    fn members(&self) -> std::ops::Range<usize> {
        0..self.rules.members
    }

    /// A new round: what was said before is not counted any more.
    fn begin(&mut self, verb: Verb, number: u64, at: Ticks, out: &mut Vec<Action>) {
        self.round += 1;
        self.said.fill(None);
        self.lost = Members::default();
        let round = self.round;
        out.extend(self.members().map(|member| Action::Send { member, verb, round, number }));
        out.push(Action::Due { at, round });
    }

    fn ask(&mut self, now: Ticks, silent: Silent, number: u64, out: &mut Vec<Action>) {
        self.phase = Phase::Asking { since: now, silent };
        (self.kept, self.back, self.undoes) = (Members::default(), Members::default(), false);
        self.ours_before = self.ours;
        for member in self.members() {
            self.ours.insert(member);
        }
        self.begin(Verb::Take, number, now.plus(self.patience), out);
    }

    /// Asks every member that may have it to give it back.
    fn give_back(&mut self, verb: Verb, out: &mut Vec<Action>) {
        let round = self.round;
        // Where it waits behind somebody there is nothing to undo, and perhaps nothing where it is
        // not known yet whether it does.
        let waits = |member| match self.said.get(member) {
            Some(Some(Said::Other(_))) => verb != Verb::Give,
            Some(None) => verb == Verb::Undo && self.undoes,
            _ => false,
        };
        let some = self.members().filter(|member| self.ours.has(*member) && !waits(*member));
        out.extend(some.map(|member| Action::Send { member, verb, round, number: 0 }));
    }

    fn heard(
        &mut self,
        now: Ticks,
        member: usize,
        verb: Verb,
        round: u64,
        said: Said,
        out: &mut Vec<Action>,
    ) {
        // What is said of an earlier round is no answer to this one. Its record is looked after by
        // this round's, which went to the same member behind it.
        if round != self.round || member >= self.rules.members {
            return;
        }
        match (verb, said) {
            // Its place in the queue may be there.
            (Verb::Take | Verb::Keep, Said::Other(_)) | (Verb::Keep, Said::Nothing)
                if self.rules.stands => {}
            (Verb::Undo | Verb::Cede { .. }, _) if self.rules.stands => {}
            (Verb::Take | Verb::Keep, Said::Other(_)) | (Verb::Keep, Said::Nothing) => {
                self.ours.remove(member);
            }
            (_, Said::Gave | Said::Nothing) if verb.gives() => self.ours.remove(member),
            (Verb::Take, Said::Not) if !self.ours_before.has(member) => self.ours.remove(member),
            _ => {}
        }
        let awaited = match self.phase {
            Phase::Asking { .. } => Verb::Take,
            Phase::Numbering { .. } => Verb::Keep,
            Phase::Renewing { .. } => {
                let there = self.ours.has(member);
                if there && verb == Verb::Keep && matches!(said, Said::Other(_)) {
                    self.leave_queue(member, out);
                }
                Verb::Keep
            }
            Phase::Leaving { .. } => Verb::Give,
            Phase::Held { number, restores } => {
                match (verb, said) {
                    (Verb::Take, Said::Other(_)) => self.lacks.insert(member),
                    // What completes a hold says that it is one.
                    (Verb::Take, Said::Yes { .. }) if self.lacks.has(member) => {
                        self.lacks.remove(member);
                        self.has.insert(member);
                        self.marked.insert(member);
                    }
                    (Verb::Take, Said::Yes { .. }) => self.has.insert(member),
                    (Verb::Keep, Said::Yes { .. }) => {
                        self.has.insert(member);
                        self.marked.insert(member);
                    }
                    _ => {}
                }
                // What was only to say that it is a hold's, and is gone, somebody may have taken
                // away: it is not restored.
                let lost = verb == Verb::Keep && self.lost.has(member);
                if lost {
                    self.lost.remove(member);
                }
                if lost && matches!(said, Said::Other(_)) {
                    // Somebody took what was free there: it is asked again, as others are.
                    self.has.remove(member);
                    self.marked.remove(member);
                    self.lacks.insert(member);
                }
                if restores && lost && said == Said::Nothing {
                    self.restore(member, number, out);
                } else if verb == Verb::Take && matches!(said, Said::Other(_)) {
                    self.leave_queue(member, out);
                }
                return;
            }
            Phase::Idle => {
                if self.undoes && matches!((verb, said), (Verb::Take, Said::Yes { .. })) {
                    let round = self.round;
                    out.push(Action::Send { member, verb: Verb::Undo, round, number: 0 });
                }
                return;
            }
        };
        let Some(place) = self.said.get_mut(member).filter(|said| said.is_none()) else { return };
        if verb == awaited {
            *place = Some(said);
            self.conclude(now, false, out);
        }
    }

    /// Sees whether what was said is an answer; `due`: nothing more is waited for.
    fn conclude(&mut self, now: Ticks, due: bool, out: &mut Vec<Action>) {
        let over = due || self.said.iter().all(Option::is_some);
        match self.phase {
            Phase::Asking { since, silent } => self.asked(now, since, silent, over, out),
            Phase::Numbering { since, silent, number } => {
                self.numbered(now, since, silent, number, over, out);
            }
            Phase::Renewing { since, number, asked } => {
                self.renewed(now, (since, number), asked, over, out);
            }
            Phase::Leaving { held, told: false } => self.left(held, over, out),
            Phase::Idle | Phase::Held { .. } | Phase::Leaving { .. } => {}
        }
    }

    fn asked(
        &mut self,
        now: Ticks,
        since: Ticks,
        silent: Silent,
        over: bool,
        out: &mut Vec<Action>,
    ) {
        let majority = self.rules.majority();
        if self.taken() >= majority {
            let kept = self.numbers().map(|number| (self.keep(number), number)).max();
            let (kept, number) = kept.unwrap_or_default();
            if kept >= majority {
                self.granted(now, since, number, out);
            } else if over || kept + self.awaited(silent) < majority {
                self.settle(now, since, silent, out);
            }
            return;
        }
        let first = self.first_of_others();
        if let Some((claim, _)) = first.filter(|(_, members)| *members >= majority) {
            let rest = self.until_below_majority(claim);
            // Waiters that hear of each other's refusals would wake each other without end (R10).
            self.held_by_another(Outcome::Refused { by: Some(claim), keeps: false, rest }, out);
            return;
        }
        let spoke =
            self.count(|said| matches!(said, Said::Yes { counts: true, .. } | Said::Other(_)));
        // Who hangs is asked, and not waited for.
        let enough = self.awaited(silent) == 0 && spoke >= majority;
        if !(over || enough) {
            return;
        }
        if spoke < majority {
            self.too_few(spoke, silent, out);
            return;
        }
        if let Some(after) = self.asks_once_more_after(now, since) {
            (self.phase, self.met) = (Phase::Idle, true);
            self.said.fill(None);
            out.push(Action::Done(Outcome::First { after }));
            return;
        }
        let rank = self.rank();
        // A hold may be one that cannot extend its records here, and loses another with whoever has
        // it: nobody keeps anything beside it (H4).
        let lives = |o: &Other| o.granted || o.age <= self.rules.living(*o);
        let keeps = !self.tries && self.others().all(|other| !lives(&other) || other.rank > rank);
        let to = self.first_that_contends();
        let by = first.map(|(claim, _)| claim);
        self.ceded(Outcome::Refused { by, keeps, rest: None }, to, out);
    }

    /// A majority has our record, and keeps its number.
    fn granted(&mut self, now: Ticks, since: Ticks, number: u64, out: &mut Vec<Action>) {
        if self.rules.is_in_time(since, now) {
            (self.phase, self.late) = (Phase::Held { number, restores: true }, 0);
            self.note_lacks();
            self.marked = Members::default();
            for member in self.members() {
                if self.lacks.has(member) {
                    self.leave_queue(member, out);
                }
            }
            self.said.fill(None);
            out.push(Action::Done(Outcome::Granted { since, number }));
            self.those_are_back(out);
        } else {
            self.refused(Outcome::TooSlow, out);
        }
    }

    /// A majority has our record, and no majority the same number: it is to keep the greatest.
    fn settle(&mut self, now: Ticks, since: Ticks, silent: Silent, out: &mut Vec<Action>) {
        if !self.rules.is_in_time(since, now) {
            self.refused(Outcome::TooSlow, out);
            return;
        }
        let number = self.numbers().max().unwrap_or_default();
        self.phase = Phase::Numbering { since, silent, number };
        self.begin(Verb::Keep, number, now.plus(self.patience), out);
    }

    fn numbered(
        &mut self,
        now: Ticks,
        since: Ticks,
        silent: Silent,
        number: u64,
        over: bool,
        out: &mut Vec<Action>,
    ) {
        let majority = self.rules.majority();
        let kept = self.keep(number);
        let lost = self.count(|said| matches!(said, Said::Nothing | Said::Other(_)));
        if kept >= majority {
            self.granted(now, since, number, out);
        } else if lost > self.rules.members - majority {
            // It was taken away meanwhile.
            let by = self.first_of_others().map(|(claim, _)| claim);
            let to = self.first_that_contends();
            self.ceded(Outcome::Refused { by, keeps: false, rest: None }, to, out);
        } else if over || kept + self.awaited(silent) < majority {
            if self.taken() >= majority {
                self.settle(now, since, silent, out);
            } else if over {
                self.too_few(self.taken(), silent, out);
            }
        }
    }
}
