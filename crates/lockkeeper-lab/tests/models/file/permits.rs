//! Permits: counted by one at a time, and taken on an open file description of their own.

use lockkeeper::test_util::machines::bytes::{Grip, Span};
use lockkeeper::test_util::machines::file::Event;

use super::kernel::ByteLocks;
use super::{At, Bytes, Flaw, Step, World};

/// How many permits there are.
pub const LIMIT: u8 = 2;
/// As many bytes are looked at; a right count takes none beyond the limit.
const LOOKED_AT: u8 = 2 * LIMIT;

/// The description that a process's permits are on.
pub fn pool(p: u8) -> u8 {
    100 + p
}

/// How far a process is with what the driver does for `Pick`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Picking {
    /// What it found free, and takes next.
    chosen: Option<Vec<u8>>,
    /// Somebody has been in the way of this try.
    pub hindered: bool,
}

fn permit(number: u8) -> Span {
    Span::permits(number.into(), 1)
}

/// Which permits others have.
fn taken(locks: &ByteLocks, p: u8) -> Vec<u8> {
    (0..LOOKED_AT).filter(|number| !locks.may_lock(pool(p), permit(*number), Grip::Write)).collect()
}

impl Bytes {
    fn fit(&self, world: &World, p: u8) -> bool {
        let locks = &world.files[usize::from(world.processes[usize::from(p)].file)].locks;
        taken(locks, p).len() + usize::from(self.plans[usize::from(p)].permits) <= LIMIT.into()
    }

    fn is_replaced(&self, world: &World, p: u8) -> bool {
        world.path != Some(world.processes[usize::from(p)].file)
    }

    pub(super) fn may_count(&self, world: &World, p: u8) -> bool {
        let file = &world.files[usize::from(world.processes[usize::from(p)].file)];
        self.is_nothing(Span::COUNT) || file.locks.may_lock(p, Span::COUNT, Grip::Write)
    }

    /// What is given back, and a new file, wake whoever sleeps. That a wake-up is lost, and the net
    /// under it, is not modelled.
    pub(super) fn may_wake(&self, world: &World, p: u8) -> bool {
        self.is_replaced(world, p) || self.fit(world, p)
    }

    /// What the driver does for `Pick`: it opens the file for its permits and looks what is out,
    /// then it takes some. That nobody else counts meanwhile is for the recipe to see to.
    pub(super) fn pick(&self, world: &mut World, p: u8) -> Option<Event> {
        let replaced = self.is_replaced(world, p);
        let process = &mut world.processes[usize::from(p)];
        let locks = &mut world.files[usize::from(process.file)].locks;
        let At::Acquires(run) = &mut process.at else { return None };
        let Some(chosen) = run.picking.chosen.take() else {
            if replaced {
                return Some(Event::Replaced);
            }
            let (out, wanted) = (taken(locks, p), usize::from(self.plans[usize::from(p)].permits));
            let fit = out.len() + wanted <= LIMIT.into() || self.flaw == Some(Flaw::TakesUncounted);
            let free = (0..LOOKED_AT).filter(|number| !out.contains(number));
            run.picking.chosen = Some(if fit { free.take(wanted).collect() } else { Vec::new() });
            return None;
        };
        // Somebody who does not keep to the count may have had one of them meanwhile.
        if chosen.is_empty()
            || !chosen.iter().all(|number| locks.try_lock(pool(p), permit(*number), Grip::Write))
        {
            locks.close(pool(p));
            return Some(Event::No);
        }
        Some(Event::Yes)
    }

    /// While all who hold permits keep them, whoever counts them comes to the end of that, and the
    /// next one may.
    pub(super) fn counting_ends(&self, world: &World) -> bool {
        let mut world = world.clone();
        let mut possible = Vec::new();
        for turn in 0..300 {
            possible.clear();
            self.possible(&world, &mut possible);
            possible.retain(|step| matches!(step, Step::Does(..)));
            if possible.is_empty() {
                return world
                    .files
                    .iter()
                    .all(|file| file.locks.may_lock(u8::MAX, Span::COUNT, Grip::Write));
            }
            let next = possible.swap_remove(turn % possible.len());
            self.take_step(&mut world, next);
        }
        false
    }

    /// Of each try for permits under way: whether too few were free, or others waited, at some
    /// time.
    pub(super) fn note_who_is_in_the_way(&self, world: &mut World) {
        for p in 0..world.processes.len() as u8 {
            let plan = self.plans[usize::from(p)];
            if plan.permits == 0
                || plan.join
                || !matches!(world.processes[usize::from(p)].at, At::Acquires(_))
            {
                continue;
            }
            let file = world.processes[usize::from(p)].file;
            let others_wait = (0..)
                .zip(&world.processes)
                .any(|(q, other)| q != p && other.in_line && other.file == file);
            let hindered = others_wait || !self.fit(world, p);
            if let At::Acquires(run) = &mut world.processes[usize::from(p)].at {
                run.picking.hindered |= hindered;
            }
        }
    }
}
