//! How a question ends without the lock: who gives way to whom, and who asks once more.

use std::time::Duration;

use super::{Action, Other, Outcome, Phase, Rank, Recipe, Said, Silent, Verb};
use crate::engine::redlock::waiter::TOLD_BY_FEW;
use crate::words::clock::Ticks;

/// How often in a row a claim is asked for once more because members are late. With the shortest
/// patience, 50 ms, all three rounds take less time than a turn lasts; with that of a lease of 30 s
/// they take 900 ms, and others have their turns meanwhile.
const LATE_MOST: u8 = 2;

impl Recipe {
    /// The first of those that contend and live, and come before: a holder contends no more, and
    /// two that gave way to each other would do so again. Who tries gives way to anybody.
    pub(super) fn first_that_contends(&self) -> Option<Rank> {
        let lives = |o: &Other| !o.granted && o.age <= self.rules.living(*o);
        let first = self.others().filter(lives).map(|other| other.rank).min();
        first.filter(|first| self.tries || *first < self.rank())
    }

    /// After what time it asks once more, if it tries and comes before all others in its way, which
    /// live and contend: they give way, to whoever it is, and if each did so nobody would have what
    /// is free. That is as long as they waited for the slowest answer, as far as is known, but no
    /// longer than one is waited for: this process may have been stopped. It does so once, and only
    /// where the answers come while its caller waits.
    pub(super) fn asks_once_more_after(&self, now: Ticks, since: Ticks) -> Option<Duration> {
        let rank = self.rank();
        let comes_later = |o: Other| !o.granted && o.age <= self.rules.living(o) && o.rank > rank;
        let first = self.tries && self.rules.names_giver && self.others().all(comes_later);
        let after = TOLD_BY_FEW.max(now.since(since)).min(self.patience);
        let answered = now.plus(after).plus(self.patience);
        let in_time = self.until.is_none_or(|until| answered < until);
        (first && !self.met && in_time).then_some(after)
    }

    /// Refused by several that contend. What it got is for the first of those that live: others
    /// that heard of it would ask in vain, give back, and wake each other without end (R10).
    pub(super) fn ceded(&mut self, outcome: Outcome, to: Option<Rank>, out: &mut Vec<Action>) {
        (self.phase, self.late) = (Phase::Idle, 0);
        match (outcome, to) {
            (Outcome::Refused { keeps: true, .. }, _) => {
                for member in self.members() {
                    if matches!(self.said.get(member), Some(Some(Said::Yes { .. }))) {
                        self.kept.insert(member);
                    }
                }
            }
            _ if !self.rules.names_giver => self.give_back(Verb::Undo, out),
            (_, Some(to)) => self.give_back(Verb::Cede { to }, out),
            // Whoever lives has it, or hears of it from others.
            (_, None) => self.give_back(Verb::Undo, out),
        }
        self.said.fill(None);
        out.push(Action::Done(outcome));
    }

    /// Too few spoke in time. Of a bare majority one is late soon: whoever waits in line asks them
    /// once more, and again, before it gives back what it got, and its turn with that. Beside a
    /// hold it keeps nothing meanwhile but its place (H4). Those that have not answered for longer
    /// are not late, they hang. A try that others refused a moment ago is refused.
    pub(super) fn too_few(&mut self, spoke: usize, silent: Silent, out: &mut Vec<Action>) {
        let again = self.lines_up() && self.late < LATE_MOST;
        if !again || spoke + self.awaited(silent) < self.rules.majority() {
            let refused = Outcome::Refused { by: None, keeps: false, rest: None };
            self.refused(if self.met { refused } else { Outcome::TooFew }, out);
            return;
        }
        let late = self.late + 1;
        if self.others().any(|other| other.granted) {
            let by = self.first_of_others().map(|(claim, _)| claim);
            self.held_by_another(Outcome::Refused { by, keeps: false, rest: None }, out);
        } else {
            self.phase = Phase::Idle;
            self.said.fill(None);
            out.push(Action::Done(Outcome::Late));
        }
        self.late = late;
    }

    /// Too few answered, or too late.
    pub(super) fn refused(&mut self, outcome: Outcome, out: &mut Vec<Action>) {
        (self.phase, self.late) = (Phase::Idle, 0);
        // Too few members counted, or too late, and it may have been a majority to others. Where
        // there are queues of others it waits still: where it had the record it stands at the end
        // again.
        let waits = self.rules.stands && !self.rules.names_giver;
        self.give_back(if waits { Verb::Undo } else { Verb::Give }, out);
        self.said.fill(None);
        out.push(Action::Done(outcome));
    }

    /// Refused by the holder of a majority: the waiters are not told of what is given back. Whoever
    /// waits in line has nothing to give back where it is refused as well, as most often it is by
    /// those that have not answered yet.
    pub(super) fn held_by_another(&mut self, outcome: Outcome, out: &mut Vec<Action>) {
        (self.phase, self.late) = (Phase::Idle, 0);
        self.undoes = self.lines_up();
        self.give_back(Verb::Undo, out);
        self.said.fill(None);
        out.push(Action::Done(outcome));
    }
}
