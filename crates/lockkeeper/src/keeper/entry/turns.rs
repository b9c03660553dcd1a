//! The turns of a name, the guards of each, and who enters again (R8).

use std::sync::Arc;
use std::thread::ThreadId;

use super::request::Request;
use super::{Entry, State};
use crate::keeper::cell::{Condition, TurnCell};
use crate::keeper::driver::TimerId;
use crate::primitives::owner::Owner;
use crate::words::claim::Mode;
use crate::words::error::{ErrorKind, Result};

pub(in crate::keeper) struct TurnRecord {
    pub(in crate::keeper) cell: Arc<TurnCell>,
    pub(in crate::keeper) owner: Option<Owner>,
    pub(in crate::keeper) thread: Option<ThreadId>,
    pub(in crate::keeper) guards: Guards,
    /// A writing is over, and the hold goes back to upgradable as soon as no guard needs more.
    pub(in crate::keeper) owes_back: bool,
    /// Ends it when it is held too long (R16).
    pub(in crate::keeper) too_long: Option<TimerId>,
    pub(in crate::keeper) taken_at: &'static std::panic::Location<'static>,
}

/// How many guards one turn has, by what they were given: no conversion may take that from another
/// guard of the turn.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::keeper) struct Guards {
    exclusive: u32,
    upgradable: u32,
    /// Readers, and permits, which nobody enters twice.
    others: u32,
}

impl Guards {
    pub(in crate::keeper) fn one(mode: Mode) -> Self {
        let mut guards = Self::default();
        guards.add(mode);
        guards
    }

    fn of(&mut self, mode: Mode) -> &mut u32 {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Upgradable => &mut self.upgradable,
            Mode::Shared | Mode::Permits { .. } => &mut self.others,
        }
    }

    pub(in crate::keeper) fn add(&mut self, mode: Mode) {
        *self.of(mode) += 1;
    }

    pub(in crate::keeper) fn remove(&mut self, mode: Mode) {
        let count = self.of(mode);
        *count = count.saturating_sub(1);
    }

    pub(in crate::keeper) fn without(mut self, mode: Mode) -> Self {
        self.remove(mode);
        self
    }

    pub(in crate::keeper) fn is_empty(self) -> bool {
        self.exclusive == 0 && self.upgradable == 0 && self.others == 0
    }

    /// Whether each of them still has what it was given when the hold is in this mode.
    pub(in crate::keeper) fn live_with(self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => true,
            Mode::Upgradable => self.exclusive == 0,
            Mode::Shared | Mode::Permits { .. } => self.exclusive == 0 && self.upgradable == 0,
        }
    }

    /// Whether one of them waits for its way back from writing, and none writes.
    pub(in crate::keeper) fn goes_back(self) -> bool {
        self.exclusive == 0 && self.upgradable > 0
    }

    pub(in crate::keeper) fn has_upgradable(self) -> bool {
        self.upgradable > 0
    }
}

impl Entry {
    /// The same owner, or the same thread, asks again for what it holds (R8).
    pub(in crate::keeper) fn again(
        self: &Arc<Self>,
        state: &mut State,
        request: &Request,
    ) -> Result<Option<Arc<TurnCell>>> {
        if request.mode.permits().is_some() || (request.owner.is_none() && request.thread.is_none())
        {
            return Ok(None);
        }
        let same = |t: &&mut TurnRecord| match (&request.owner, &t.owner) {
            (Some(asks), Some(has)) => asks == has,
            (None, None) => {
                request.thread.is_some() && request.thread == t.thread && t.cell.lost().is_none()
            }
            _ => false,
        };
        let Some(record) = state.turns.values_mut().find(same) else { return Ok(None) };
        match record.cell.condition() {
            Condition::Lost(why) => {
                let text = format!(
                    "the hold that would be entered again is lost: {why}; release it and acquire \
                     anew"
                );
                return Err(self.error(ErrorKind::Lost, text));
            }
            Condition::InDoubt(by) => {
                self.keeper.driver.kick();
                return Err(record.cell.doubt_error(by));
            }
            Condition::Held => {}
        }
        let deadlock = |why: &str| {
            self.error(
                ErrorKind::WouldDeadlock,
                format!("{why}; the first was taken at {}", record.taken_at),
            )
        };
        let Some(owner) = &request.owner else {
            let shares = request.mode == Mode::Shared && record.cell.mode_is(Mode::Shared);
            return if shares {
                Ok(None)
            } else {
                Err(deadlock(
                    "this thread holds it already; give both acquisitions one Owner to enter again",
                ))
            };
        };
        if owner.is_strict() {
            return Err(deadlock("this strict owner holds it already"));
        }
        if request.mode != Mode::Shared {
            // What is on its way down is not exclusive any more, whatever the engine has said so
            // far.
            let goes_down =
                state.converting.get(record.cell.seq).is_some_and(|c| c.to != Mode::Exclusive);
            if !record.cell.mode_is(Mode::Exclusive) || goes_down {
                return Err(deadlock(
                    "this owner holds it shared and would wait for itself; \
                     only an upgradable guard upgrades",
                ));
            }
            if request.mode == Mode::Upgradable && record.guards.has_upgradable() {
                return Err(deadlock(
                    "this owner has an upgradable guard already; there is one at a time",
                ));
            }
        }
        record.guards.add(request.mode);
        // An upgradable guard lets readers in: as soon as the writer above it is gone.
        record.owes_back |= request.mode == Mode::Upgradable;
        Ok(Some(record.cell.clone()))
    }
}
