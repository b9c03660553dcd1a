//! Permits: counted by one at a time, and taken on an open file description of their own.

use lockkeeper::test_util::machines::bytes::{Grip, Span};
use lockkeeper::test_util::machines::file::Event;

use super::kernel::ByteLocks;
use super::{At, Bytes, Flaw, World};

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
    done: u8,
    /// What it found free, and takes next.
    chosen: Vec<u8>,
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
        self.flaw == Some(Flaw::CountsTogether) || file.locks.may_lock(p, Span::COUNT, Grip::Write)
    }

    /// Who stands in line waits for whoever counts; a first try has the counting already.
    pub(super) fn may_pick(&self, world: &World, p: u8) -> bool {
        let At::Acquires(run) = &world.processes[usize::from(p)].at else { return false };
        run.picking.done > 0 || !run.stands || self.is_replaced(world, p) || self.may_count(world, p)
    }

    /// What is given back, and a new file, wake whoever sleeps. That a wake-up is lost, and the net under it, is not modelled.
    pub(super) fn may_wake(&self, world: &World, p: u8) -> bool {
        self.is_replaced(world, p) || self.fit(world, p)
    }

    /// What the driver does for `Pick`, one call at a time; at last what came of it.
    pub(super) fn pick(&self, world: &mut World, p: u8) -> Option<Event> {
        let replaced = self.is_replaced(world, p);
        let process = &mut world.processes[usize::from(p)];
        let locks = &mut world.files[usize::from(process.file)].locks;
        let At::Acquires(run) = &mut process.at else { return None };
        let waits = run.stands && self.flaw != Some(Flaw::CountsTogether);
        let picking = &mut run.picking;
        picking.done += 1;
        match picking.done {
            1 if replaced => {
                picking.done = 0;
                return Some(Event::Replaced);
            }
            1 => {
                if waits {
                    locks.try_lock(p, Span::COUNT, Grip::Write);
                }
                return None;
            }
            2 => {
                let (out, wanted) = (taken(locks, p), usize::from(self.plans[usize::from(p)].permits));
                let fit = out.len() + wanted <= LIMIT.into() || self.flaw == Some(Flaw::TakesUncounted);
                let free = (0..LOOKED_AT).filter(|number| !out.contains(number));
                picking.chosen = if fit { free.take(wanted).collect() } else { Vec::new() };
                return None;
            }
            3 => {
                // Somebody who does not keep to the count may have had one of them meanwhile.
                if !picking.chosen.iter().all(|number| locks.try_lock(pool(p), permit(*number), Grip::Write)) {
                    locks.close(pool(p));
                    picking.chosen.clear();
                }
                if waits {
                    return None;
                }
            }
            _ => locks.unlock(p, Span::COUNT),
        }
        picking.done = 0;
        let picked = !std::mem::take(&mut picking.chosen).is_empty();
        Some(if picked { Event::Yes } else { Event::No })
    }

    /// Of each try for permits under way: whether too few were free, or others waited, at some time.
    pub(super) fn note_who_is_in_the_way(&self, world: &mut World) {
        for p in 0..world.processes.len() as u8 {
            let plan = self.plans[usize::from(p)];
            if plan.permits == 0 || plan.join || !matches!(world.processes[usize::from(p)].at, At::Acquires(_)) {
                continue;
            }
            let file = world.processes[usize::from(p)].file;
            let others_wait = (0..).zip(&world.processes).any(|(q, other)| q != p && other.in_line && other.file == file);
            let hindered = others_wait || !self.fit(world, p);
            if let At::Acquires(run) = &mut world.processes[usize::from(p)].at {
                run.picking.hindered |= hindered;
            }
        }
    }
}
