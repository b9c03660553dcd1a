//! Who waits and who holds, as far as it was told; in the order in which it happened, and not in
//! that in which it was heard.

use std::collections::VecDeque;

use lockkeeper::Token;

use super::worker::Said;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub(super) contender: u32,
    pub(super) what: What,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// It has the lock; `woken_by` is whose release made way for it.
    Holds { token: Option<Token>, woken_by: Option<u32>, at_once: u32 },
    /// It gives the lock back.
    Releases,
    /// The lock was taken from it.
    Lost(String),
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Line {
    asked: Vec<u32>,
    /// The order in which they held.
    held: Vec<u32>,
    /// Who stood right behind whom when it came.
    behind: Vec<(u32, Option<u32>)>,
    holders: Vec<u32>,
    tokens: Vec<Option<Token>>,
    /// What was heard before something that came first.
    early: VecDeque<Said>,
    at_once: u32,
    ended: u32,
    lost: u32,
}

impl Line {
    pub(super) fn has_asked(&self, contender: u32) -> bool {
        self.asked.contains(&contender)
    }

    pub(super) fn holds(&self, contender: u32) -> bool {
        self.holders.contains(&contender)
    }

    /// How many have had their turn.
    pub(super) fn ended(&self) -> u32 {
        self.ended
    }

    /// How many held at once at most, by the files that they made.
    pub(super) fn at_once(&self) -> u32 {
        self.at_once
    }

    pub(super) fn turns(&self) -> usize {
        self.held.len()
    }

    pub(super) fn waits_behind(&mut self, contender: u32, behind: Option<u32>) {
        self.behind.push((contender, behind));
    }

    /// Whether they held in the order in which they stood; `None` where no order was seen.
    pub(super) fn in_order(&self) -> Option<bool> {
        if self.behind.iter().any(|(_, behind)| behind.is_none()) {
            return None;
        }
        let follows = |(contender, behind): &(u32, Option<u32>)| {
            self.held.windows(2).any(|pair| {
                matches!(
                    pair,
                    [before, after] if Some(*before) == *behind && after == contender
                )
            })
        };
        Some(self.behind.iter().all(follows))
    }

    /// One at a time, everybody, and no token that went back.
    pub(super) fn is_as_promised(&self, count: u32) -> bool {
        let rise = |pair: &[Option<Token>]| {
            matches!(
                pair,
                [before, after] if before < after || (before.is_none() && after.is_none())
            )
        };
        let each_once =
            (0..count).all(|n| self.held.iter().filter(|held| **held == n).count() == 1);
        self.at_once == 1 && self.lost == 0 && each_once && self.tokens.windows(2).all(rise)
    }

    /// Takes in what a contender said; answers what happened, in its order.
    pub(super) fn hear(&mut self, said: Said) -> Vec<Step> {
        self.early.push_back(said);
        let mut steps = Vec::new();
        while let Some(due) = self.early.iter().position(|said| self.is_due(said)) {
            let said = self.early.remove(due);
            steps.extend(said.and_then(|said| self.take(said)));
        }
        steps
    }

    /// Whether all that came before it has been heard.
    fn is_due(&self, said: &Said) -> bool {
        match said {
            // It is the only one with a file, so the holder before has said that it lets go.
            Said::Holds { slot: 1, turn, .. } => {
                self.holders.is_empty() && *turn <= self.held.len() as u64 + 1
            }
            Said::Releases { contender } | Said::Lost { contender, .. } => self.holds(*contender),
            Said::Holds { .. } | Said::Asks { .. } | Said::Ended { .. } => true,
        }
    }

    fn take(&mut self, said: Said) -> Option<Step> {
        match said {
            Said::Asks { contender } => {
                self.asked.push(contender);
                None
            }
            Said::Holds { contender, token, slot, .. } => {
                let woken_by = self.held.last().copied();
                self.held.push(contender);
                self.holders.push(contender);
                self.tokens.push(token);
                self.at_once = self.at_once.max(slot);
                Some(Step { contender, what: What::Holds { token, woken_by, at_once: slot } })
            }
            Said::Lost { contender, why } => {
                self.lost += 1;
                Some(Step { contender, what: What::Lost(why) })
            }
            Said::Releases { contender } => {
                self.holders.retain(|holder| *holder != contender);
                Some(Step { contender, what: What::Releases })
            }
            Said::Ended { .. } => {
                self.ended += 1;
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The token is the turn, too.
    fn holds(contender: u32, turn: u64, slot: u32) -> Said {
        Said::Holds { contender, token: Token::raw(turn), slot, turn }
    }

    fn holds_with(contender: u32, token: Option<Token>, turn: u64) -> Said {
        Said::Holds { contender, token, slot: 1, turn }
    }

    fn heard(said: impl IntoIterator<Item = Said>) -> (Line, Vec<Step>) {
        let mut line = Line::default();
        let steps = said.into_iter().flat_map(|said| line.hear(said)).collect();
        (line, steps)
    }

    #[test]
    fn a_turn_that_is_heard_before_the_release_it_follows_is_told_after_it() {
        let [first, second] = [0, 1].map(|contender| Said::Releases { contender });
        let (mut line, steps) = heard([holds(0, 1, 1), holds(1, 2, 1), first, second]);
        let order: Vec<_> =
            steps.iter().map(|step| (step.contender, step.what == What::Releases)).collect();
        assert_eq!(order, [(0, false), (0, true), (1, false), (1, true)]);
        assert!(matches!(steps[2].what, What::Holds { woken_by: Some(0), .. }), "{steps:?}");
        assert!(line.is_as_promised(2) && !line.is_as_promised(3), "the third one had no turn");
        line.waits_behind(1, Some(0));
        assert_eq!(line.in_order(), Some(true));
        line.waits_behind(2, None);
        assert_eq!(line.in_order(), None);
    }

    #[test]
    fn whole_turns_that_are_heard_before_others_are_told_in_the_order_of_the_turns() {
        let turn = |n: u32| [holds(n, u64::from(n) + 1, 1), Said::Releases { contender: n }];
        let [first, release] = turn(0);
        let others = [2, 1, 3].into_iter().flat_map(turn);
        let (mut line, steps) = heard(std::iter::once(first).chain(others).chain([release]));
        let told: Vec<u32> = steps.iter().map(|step| step.contender).collect();
        assert_eq!(told, [0, 0, 1, 1, 2, 2, 3, 3], "{steps:?}");
        (1..4).for_each(|n| line.waits_behind(n, Some(n - 1)));
        assert!(line.is_as_promised(4) && line.in_order() == Some(true), "{line:?}");
    }

    #[test]
    fn two_at_once_are_told_at_once_and_break_the_promise() {
        let (line, steps) = heard([holds(0, 1, 1), holds(1, 2, 2)]);
        assert_eq!((line.at_once(), steps.len()), (2, 2));
        assert!(!line.is_as_promised(2));
    }

    #[test]
    fn a_token_that_goes_back_and_a_lost_lock_break_the_promise() {
        let turns = |second| {
            [
                holds_with(0, Token::raw(5), 1),
                Said::Releases { contender: 0 },
                holds_with(1, second, 2),
                Said::Releases { contender: 1 },
            ]
        };
        assert!(heard(turns(Token::raw(6))).0.is_as_promised(2));
        assert!(!heard(turns(Token::raw(5))).0.is_as_promised(2));
        assert!(!heard(turns(None)).0.is_as_promised(2));
        let mut said = turns(Token::raw(6)).to_vec();
        said.insert(1, Said::Lost { contender: 0, why: String::new() });
        assert!(!heard(said).0.is_as_promised(2));
    }

    #[test]
    fn overtaking_is_told() {
        let turn = |(n, turn)| [holds(n, turn, 1), Said::Releases { contender: n }];
        let (mut line, _) = heard([(0, 1), (2, 2), (1, 3)].into_iter().flat_map(turn));
        line.waits_behind(1, Some(0));
        line.waits_behind(2, Some(1));
        assert_eq!(line.in_order(), Some(false));
    }
}
