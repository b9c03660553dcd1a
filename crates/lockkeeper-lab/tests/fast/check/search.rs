//! An exhaustive search for a legal order, after Wing and Gong: the slow truth that the sweep is
//! compared with.

use std::collections::HashSet;

use lockkeeper_lab::history::HoldMode;

/// What an operation does.
#[derive(Clone, Copy, Debug)]
pub enum Does {
    /// Begins a hold.
    Acquire(usize),
    /// Ends it.
    Release(usize),
    /// Is refused, because it would not have been legal.
    Refused(usize),
}

/// One operation with the window in which it takes effect; an optional one may never do so.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub does: Does,
    pub called: u64,
    pub answered: u64,
    pub optional: bool,
}

/// What a hold or a try asks for.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub mode: HoldMode,
    pub owner: u64,
    pub weight: u64,
    pub token: u64,
}

/// One lock and the operations on it.
pub struct Search<'a> {
    pub shapes: &'a [Shape],
    pub ops: &'a [Op],
    pub limit: u64,
}

type State = (u32, u32, u64); // operations done, shapes held, greatest token

impl Search<'_> {
    /// Whether some order within the windows is legal.
    pub fn is_legal(&self) -> bool {
        let mut seen = HashSet::new();
        let mut stack: Vec<State> = vec![(0, 0, 0)];
        while let Some(state) = stack.pop() {
            if !seen.insert(state) {
                continue;
            }
            let left = || self.ops.iter().enumerate().filter(|(i, _)| state.0 & 1 << i == 0);
            let Some(horizon) =
                left().filter(|(_, op)| !op.optional).map(|(_, op)| op.answered).min()
            else {
                return true;
            };
            for (index, op) in left().filter(|(_, op)| op.called <= horizon) {
                if let Some((held, token)) = self.step(state, op.does) {
                    stack.push((state.0 | 1 << index, held, token));
                }
            }
        }
        false
    }

    fn step(&self, (_, held, token): State, does: Does) -> Option<(u32, u64)> {
        match does {
            Does::Acquire(i) => {
                let mine = self.shapes[i].token;
                let fits = self.fits(held, i) && (mine == 0 || mine > token);
                fits.then_some((held | 1 << i, token.max(mine)))
            }
            Does::Release(i) => (held & 1 << i != 0).then_some((held & !(1 << i), token)),
            Does::Refused(i) => (!self.fits(held, i)).then_some((held, token)),
        }
    }

    fn fits(&self, held: u32, new: usize) -> bool {
        let new = self.shapes[new];
        let others = || {
            self.shapes
                .iter()
                .enumerate()
                .filter(|(i, _)| held & 1 << i != 0)
                .map(|(_, shape)| shape)
        };
        if new.mode == HoldMode::Permits {
            return others().map(|shape| shape.weight).sum::<u64>() + new.weight <= self.limit;
        }
        others().all(|old| {
            let share = |a, b| {
                a == HoldMode::Shared && matches!(b, HoldMode::Shared | HoldMode::Upgradable)
                    || a == HoldMode::Upgradable && b == HoldMode::Shared
            };
            new.owner != 0 && new.owner == old.owner || share(new.mode, old.mode)
        })
    }
}
