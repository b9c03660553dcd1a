//! The protocol of one acquisition, as a pure machine: which ranges to lock in which order, when to
//! look whether the file is still the one, and what to undo. It does nothing itself;
//! [`Recipe::step`] says what to do next, and is told what came of it. The same machine runs in the
//! caller, in the waiting thread, and in a model checker.
//!
//! - *Exclusive*: one try on upgrade, main and gate together; else wait for upgrade, then gate,
//!   then main. Whoever waits for main has the gate, so readers that come later wait behind it and
//!   writers are not starved.
//! - *Shared*: one try on main and gate (read); else wait for the gate *alone* (so the line keeps
//!   its order), then main (read). The gate is given back at once.
//! - *Beside* a shared hold whose holder waits for us: one try on main (read) and no gate, past
//!   everybody in line. They wait for that hold, so none of them can be before us; in line behind
//!   them we would wait for ourselves.
//! - *Upgradable*: upgrade, then as shared.
//! - *Upgrade* of an upgradable hold: gate, then main from read to write, which the kernel does in
//!   one step (F2). Nobody else can be on that way, because upgrade is taken.
//! - *Permits*: nobody else may count meanwhile, which takes a moment; then as many free permits as
//!   asked for. Else the gate: whoever has it waits for them. A try that meets another one counts
//!   after it, and is not refused for its sake.
//!
//! Who is not in line gives way to who is: an acquisition that got its ranges at the first try and
//! then reads that somebody waits gives them back and stands in line itself (R11).

use super::bytes::{Grip, Span};

/// What is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Goal {
    /// Alone.
    Exclusive,
    /// With other readers.
    Shared,
    /// With other readers, one of whom ends only after us.
    Beside,
    /// With other readers, and as the only one that may upgrade.
    Upgradable,
    /// From upgradable to exclusive.
    Upgrade,
    /// Permits of a semaphore.
    Permits,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Lock without waiting: answers `Yes` or `No`. For one that does not join the line, `No` means
    /// that somebody has it who may keep it, and not only for the moment in which a file that
    /// nobody uses is removed.
    Try(Span, Grip),
    /// Be the only one who counts permits: `Yes`, or `Stopped` when another one does not come to an
    /// end.
    Count,
    /// Lock, however long it takes: `Yes`, `Stopped`, or `Replaced`.
    Wait(Span, Grip),
    /// Unlock: `Yes`.
    Free(Span),
    /// See whether the path still leads to the locked file: `Yes` or `Replaced`.
    Check,
    /// Read the last number and the waiters' flags: `Yes`, or `No` when somebody lives who waits in
    /// line.
    Look,
    /// Take as many free permits as asked for: `Yes` or `No`.
    Pick,
    /// Wait until a permit may have become free: `Yes`, `Stopped`, or `Replaced`.
    Sleep,
    /// Write the next number and the holder: `Yes`.
    Write,
    /// Show this shared holder to others: `Yes`.
    Show,
    /// Show this waiter to others, and to those who must give way: `Yes`.
    Announce,
    /// No longer show it: `Yes`.
    Retract,
    /// Give back every range that this recipe took, shown or not: `Yes`.
    Undo,
    /// Open the path again: `Yes`.
    Reopen,
    /// It is not free: go on where waiting is allowed, then `Yes`.
    Stand,
    /// The end.
    Done(End),
}

/// What came of an action. Every action can also come to `Failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It is done.
    Yes,
    /// It cannot be done now.
    No,
    /// The path leads to another file, or to none.
    Replaced,
    /// The waiting was called off.
    Stopped,
    /// The system refused.
    Failed,
}

/// How an acquisition ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// It has what it wanted.
    Granted,
    /// It is not free, or others are in line, and nothing of ours is left.
    Busy,
    /// Called off; nothing of ours is left.
    Stopped,
    /// The system refused, or the hold to be upgraded is void; nothing of ours is left.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Start,
    /// A first try for permits, past the gate.
    Counting,
    Locking(u8),
    /// In line with `upgrade` in hand: perhaps main and gate are both free.
    Shortcut,
    /// It is taken: in the file that the path leads to?
    Doubting,
    Checking,
    Looking,
    Picking,
    Sleeping,
    Writing,
    Showing,
    Retracting,
    /// Others may count.
    Uncounting {
        granted: bool,
    },
    Freeing,
    Undoing(Next),
    Reopening,
    Standing,
    Announcing,
    Over(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Next {
    End(End),
    Reopen,
    Stand,
}

/// How often a file may be replaced under one acquisition before it gives up.
const REPLACED_MAX: u8 = 100;

/// One acquisition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Recipe {
    goal: Goal,
    /// Stand in line, or come back with `Busy`.
    join: bool,
    /// Standing in line.
    waits: bool,
    replaced: u8,
    at: At,
}

type Steps = &'static [(Span, Grip)];

impl Recipe {
    /// A new acquisition; `join` says whether it may stand in line.
    pub fn new(goal: Goal, join: bool) -> Self {
        Self { goal, join, waits: false, replaced: 0, at: At::Start }
    }

    /// What is wanted.
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// Whether it stands in line for what it cannot have at once.
    pub fn joins(&self) -> bool {
        self.join
    }

    fn steps(&self) -> Steps {
        const W: Grip = Grip::Write;
        const R: Grip = Grip::Read;
        match (self.goal, self.waits) {
            (Goal::Exclusive, false) => &[(Span::ALL, W)],
            (Goal::Exclusive, true) => &[(Span::UPGRADE, W), (Span::GATE, W), (Span::MAIN, W)],
            (Goal::Shared, false) => &[(Span::MAIN_AND_GATE, R)],
            (Goal::Beside, _) => &[(Span::MAIN, R)],
            (Goal::Shared, true) => &[(Span::GATE, W), (Span::MAIN, R)],
            (Goal::Upgradable, false) => &[(Span::UPGRADE, W), (Span::MAIN_AND_GATE, R)],
            (Goal::Upgradable, true) => &[(Span::UPGRADE, W), (Span::GATE, W), (Span::MAIN, R)],
            (Goal::Upgrade, _) => &[(Span::GATE, W), (Span::MAIN, W)],
            (Goal::Permits, _) => &[(Span::GATE, W), (Span::COUNT, W)],
        }
    }

    /// Takes what came of the last action (`Yes` at the start), and says what to do next.
    pub fn step(&mut self, event: Event) -> Action {
        self.at = self.next(event);
        match self.at {
            At::Locking(step) => match self.steps().get(usize::from(step)) {
                Some(&(span, grip)) if self.waits => Action::Wait(span, grip),
                Some(&(span, grip)) => Action::Try(span, grip),
                None => {
                    self.at = At::Checking;
                    Action::Check
                }
            },
            At::Counting => Action::Count,
            At::Shortcut => Action::Try(Span::MAIN_AND_GATE, Grip::Write),
            At::Start | At::Doubting | At::Checking => Action::Check,
            At::Looking => Action::Look,
            At::Picking => Action::Pick,
            At::Sleeping => Action::Sleep,
            At::Writing => Action::Write,
            At::Showing => Action::Show,
            At::Retracting => Action::Retract,
            At::Uncounting { .. } => Action::Free(Span::COUNT),
            At::Freeing => Action::Free(Span::GATE),
            At::Undoing(_) => Action::Undo,
            At::Reopening => Action::Reopen,
            At::Standing => Action::Stand,
            At::Announcing => Action::Announce,
            At::Over(end) => Action::Done(end),
        }
    }

    fn next(&mut self, event: Event) -> At {
        match (self.at, event) {
            (At::Over(end), _) => At::Over(end),
            // Undoing has no way back: what could not be given back goes with the descriptor.
            (At::Undoing(Next::End(end)), _) => At::Over(end),
            (At::Undoing(_), Event::Failed | Event::Stopped) => At::Over(End::Failed),
            (At::Undoing(Next::Reopen), _) => At::Reopening,
            (At::Undoing(Next::Stand), _) => At::Standing,
            (_, Event::Failed) => At::Undoing(Next::End(End::Failed)),
            (At::Counting, Event::Stopped) if self.join => At::Undoing(Next::Stand),
            (_, Event::Stopped) => At::Undoing(Next::End(End::Stopped)),
            (_, Event::Replaced) => self.replaced(),
            (At::Start, _) => self.first(),
            (At::Counting, _) => At::Checking,
            (At::Locking(0), Event::Yes) if self.waits && self.goal == Goal::Exclusive => {
                At::Shortcut
            }
            (At::Locking(step), Event::Yes) => At::Locking(step + 1),
            (At::Shortcut, Event::Yes) => At::Checking,
            (At::Shortcut, Event::No) => At::Locking(1),
            // Whoever has a file that is not there any more is in nobody's way.
            (At::Locking(_), Event::No) => At::Doubting,
            (At::Doubting, _) => self.missed(),
            (At::Checking, _) => At::Looking,
            (At::Looking, Event::No) if !self.waits && self.goal != Goal::Upgrade => self.missed(),
            (At::Looking, _) => match self.goal {
                Goal::Exclusive | Goal::Upgrade => At::Writing,
                Goal::Shared | Goal::Beside | Goal::Upgradable => At::Showing,
                Goal::Permits => At::Picking,
            },
            (At::Picking, Event::Yes) => At::Showing,
            (At::Picking, _) if self.waits => At::Uncounting { granted: false },
            (At::Picking, _) => self.missed(),
            (At::Uncounting { granted: false }, _) => At::Sleeping,
            (At::Uncounting { granted: true }, _) if self.waits => At::Freeing,
            (At::Uncounting { granted: true }, _) => At::Over(End::Granted),
            // The file and the limit may have been changed while it slept, or while somebody else
            // counted: look again.
            (At::Sleeping, _) => At::Locking(1),
            // Its mark in the line stays with the hold, so that the grant need not wait for that:
            // nobody looks at it before the hold is given back or lets others in.
            (At::Writing, _) if self.goal == Goal::Exclusive => At::Over(End::Granted),
            (At::Writing | At::Showing, _) if self.waits => At::Retracting,
            (At::Writing | At::Showing | At::Retracting, _) => match self.goal {
                Goal::Exclusive | Goal::Upgrade | Goal::Beside => At::Over(End::Granted),
                Goal::Permits => At::Uncounting { granted: true },
                Goal::Shared | Goal::Upgradable => At::Freeing,
            },
            (At::Freeing, _) => At::Over(End::Granted),
            (At::Reopening, _) if self.waits => At::Announcing,
            (At::Reopening | At::Announcing, _) => self.first(),
            (At::Standing, _) => {
                self.waits = true;
                At::Announcing
            }
        }
    }

    fn first(&self) -> At {
        if self.goal == Goal::Permits && !self.waits { At::Counting } else { At::Locking(0) }
    }

    fn missed(&self) -> At {
        At::Undoing(if self.join { Next::Stand } else { Next::End(End::Busy) })
    }

    fn replaced(&mut self) -> At {
        self.replaced += 1;
        // A hold in a file that is not there any more is void, and there is nothing to upgrade.
        let hopeless = self.goal == Goal::Upgrade || self.replaced >= REPLACED_MAX;
        At::Undoing(if hopeless { Next::End(End::Failed) } else { Next::Reopen })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a recipe against answers, and lists what it did.
    fn run(mut recipe: Recipe, mut answer: impl FnMut(Action) -> Event) -> (Vec<Action>, End) {
        let mut done = Vec::new();
        let mut event = Event::Yes;
        loop {
            let action = recipe.step(event);
            if let Action::Done(end) = action {
                return (done, end);
            }
            done.push(action);
            assert!(done.len() < 2_000, "{done:?}");
            event = answer(action);
        }
    }

    #[test]
    fn an_uncontended_exclusive_acquisition_is_four_calls() {
        let (did, end) = run(Recipe::new(Goal::Exclusive, true), |_| Event::Yes);
        assert_eq!(end, End::Granted);
        assert_eq!(
            did,
            [Action::Try(Span::ALL, Grip::Write), Action::Check, Action::Look, Action::Write]
        );
    }

    #[test]
    fn r11_a_try_gives_way_to_who_waits_and_a_claim_stands_in_line() {
        let someone_waits = |action| if action == Action::Look { Event::No } else { Event::Yes };
        let (did, end) = run(Recipe::new(Goal::Exclusive, false), someone_waits);
        assert_eq!((did.last(), end), (Some(&Action::Undo), End::Busy));
        for goal in [Goal::Exclusive, Goal::Shared, Goal::Upgradable, Goal::Permits] {
            let (did, end) = run(Recipe::new(goal, true), someone_waits);
            assert_eq!(end, End::Granted);
            assert!(
                did.contains(&Action::Stand) && did.contains(&Action::Announce),
                "{goal:?} {did:?}"
            );
        }
    }

    #[test]
    fn a_try_for_permits_does_not_touch_the_gate_and_nobody_counts_beside_it() {
        let (did, end) = run(Recipe::new(Goal::Permits, false), |_| Event::Yes);
        assert_eq!(
            did,
            [
                Action::Count,
                Action::Check,
                Action::Look,
                Action::Pick,
                Action::Show,
                Action::Free(Span::COUNT)
            ]
        );
        assert_eq!(end, End::Granted);
        let stopped = |action| if action == Action::Count { Event::Stopped } else { Event::Yes };
        assert_eq!(
            run(Recipe::new(Goal::Permits, false), stopped),
            (vec![Action::Count, Action::Undo], End::Stopped),
            "it is not known"
        );
        let (did, end) = run(Recipe::new(Goal::Permits, true), stopped);
        assert!(
            did.contains(&Action::Stand) && did.last() == Some(&Action::Free(Span::GATE)),
            "{did:?}"
        );
        assert_eq!(end, End::Granted);
    }

    #[test]
    fn who_waits_for_permits_looks_again_after_every_wait_for_its_turn_to_count() {
        let mut picks = 0;
        let (did, end) = run(Recipe::new(Goal::Permits, true), |action| {
            picks += i32::from(action == Action::Pick);
            if action == Action::Pick && picks < 3 { Event::No } else { Event::Yes }
        });
        let turn =
            [Action::Wait(Span::COUNT, Grip::Write), Action::Check, Action::Look, Action::Pick];
        let missed = [&turn[..], &[Action::Free(Span::COUNT), Action::Sleep]].concat();
        let granted = [
            &turn[..],
            &[Action::Show, Action::Retract, Action::Free(Span::COUNT), Action::Free(Span::GATE)],
        ]
        .concat();
        let waits = did
            .iter()
            .position(|action| *action == Action::Wait(Span::GATE, Grip::Write))
            .expect("it stands in line");
        assert_eq!((&did[waits + 1..], end), (&[missed, granted].concat()[..], End::Granted));
    }

    #[test]
    fn r8_a_share_beside_an_ancestors_touches_neither_gate_nor_line() {
        let (did, end) = run(Recipe::new(Goal::Beside, false), |_| Event::Yes);
        assert_eq!(
            did,
            [Action::Try(Span::MAIN, Grip::Read), Action::Check, Action::Look, Action::Show]
        );
        assert_eq!(end, End::Granted);
        let taken = |action| if matches!(action, Action::Try(..)) { Event::No } else { Event::Yes };
        assert_eq!(run(Recipe::new(Goal::Beside, false), taken).1, End::Busy);
    }

    #[test]
    fn a_waiting_writer_takes_upgrade_gate_main_in_that_order() {
        let (did, _) = run(Recipe::new(Goal::Exclusive, true), |action| {
            if matches!(action, Action::Try(..)) { Event::No } else { Event::Yes }
        });
        let waits: Vec<_> =
            did.into_iter().filter(|action| matches!(action, Action::Wait(..))).collect();
        assert_eq!(
            waits,
            [Span::UPGRADE, Span::GATE, Span::MAIN].map(|span| Action::Wait(span, Grip::Write))
        );
    }

    #[test]
    fn between_the_wake_up_of_a_writer_and_its_grant_are_four_steps() {
        let (did, end) = run(Recipe::new(Goal::Exclusive, true), |action| {
            if action == Action::Try(Span::ALL, Grip::Write) { Event::No } else { Event::Yes }
        });
        let waits = did.iter().position(|action| matches!(action, Action::Wait(..)));
        let after = &did[waits.expect("it stands in line") + 1..];
        let main_and_gate = Action::Try(Span::MAIN_AND_GATE, Grip::Write);
        assert_eq!(after, [main_and_gate, Action::Check, Action::Look, Action::Write]);
        assert_eq!(end, End::Granted);
    }

    #[test]
    fn f1_a_replaced_file_is_opened_again_and_an_upgrade_in_it_fails() {
        for goal in [Goal::Exclusive, Goal::Shared, Goal::Upgradable, Goal::Permits] {
            let mut checks = 0;
            let (did, end) = run(Recipe::new(goal, false), |action| {
                checks += i32::from(action == Action::Check);
                if action == Action::Check && checks < 3 { Event::Replaced } else { Event::Yes }
            });
            assert_eq!(
                (end, did.iter().filter(|action| **action == Action::Reopen).count()),
                (End::Granted, 2),
                "{goal:?}"
            );
        }
        let always = |action| if action == Action::Check { Event::Replaced } else { Event::Yes };
        assert_eq!(run(Recipe::new(Goal::Upgrade, true), always).1, End::Failed);
        assert_eq!(run(Recipe::new(Goal::Exclusive, true), always).1, End::Failed, "not for ever");
    }

    #[test]
    fn whatever_fails_or_is_called_off_is_undone() {
        for goal in [
            Goal::Exclusive,
            Goal::Shared,
            Goal::Beside,
            Goal::Upgradable,
            Goal::Upgrade,
            Goal::Permits,
        ] {
            for bad in [Event::Failed, Event::Stopped] {
                for at in 0..12 {
                    if (goal, bad, at) == (Goal::Permits, Event::Stopped, 0) {
                        // Another one counts and does not come to an end: it stands in line.
                        continue;
                    }
                    let mut count = 0;
                    let contended = |action: Action| {
                        if matches!(action, Action::Try(..)) { Event::No } else { Event::Yes }
                    };
                    let (did, end) = run(Recipe::new(goal, true), |action| {
                        count += 1;
                        if count == at + 1 { bad } else { contended(action) }
                    });
                    if end != End::Granted {
                        assert!(did.contains(&Action::Undo), "{goal:?} {bad:?} at {at}: {did:?}");
                    } else {
                        assert!(did.len() <= at, "{goal:?} {bad:?} at {at}: {did:?}");
                    }
                }
            }
        }
    }
}
