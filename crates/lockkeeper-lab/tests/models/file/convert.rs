//! A hold that changes its mode.

use lockkeeper::Mode;
use lockkeeper::test_util::machines::bytes::{Grip, Span};
use lockkeeper::test_util::machines::file::{Goal, Recipe};

use super::{At, Bytes, Flaw, Then, World};

impl Bytes {
    pub(super) fn convert(&self, world: &mut World, p: u8) {
        let At::Holds { mode, number, .. } = world.processes[usize::from(p)].at else { return };
        let file = world.processes[usize::from(p)].file;
        world.processes[usize::from(p)].at = match self.plans[usize::from(p)].then {
            Some(Then::Upgrade) => {
                if self.flaw == Some(Flaw::UpgradeLetsGo) {
                    world.files[usize::from(file)].locks.unlock(p, Span::MAIN);
                    world.files[usize::from(file)].locks.unlock(p, Span::UPGRADE);
                }
                At::Upgrades(world.run(p, Recipe::new(Goal::Upgrade, true)))
            }
            Some(Then::Downgrade(to)) => {
                // An exclusive one leaves a number free behind it, for all who share; an upgradable
                // one has that already.
                let one_more = mode == Mode::Exclusive || self.flaw == Some(Flaw::OneMoreDownwards);
                let number =
                    (number + u64::from(one_more)).max(world.files[usize::from(file)].last + 1);
                At::Lowers { to, number, done: 0 }
            }
            None => At::Holds { mode, number, converted: true },
        };
    }

    /// The calls of `engine/file/convert.rs`, one at a time.
    pub(super) fn lower(&self, world: &mut World, p: u8) {
        let process = &mut world.processes[usize::from(p)];
        let At::Lowers { to, number, done } = process.at else { return };
        if process.marked {
            return world.unmark(p);
        }
        let locks = &mut world.files[usize::from(process.file)].locks;
        let over = match done {
            0 => {
                assert!(
                    locks.try_lock(p, Span::MAIN, Grip::Read),
                    "going down is refused by nobody"
                );
                false
            }
            1 => {
                locks.unlock(p, Span::GATE);
                to != Mode::Shared
            }
            _ => {
                locks.unlock(p, Span::UPGRADE);
                true
            }
        };
        if over {
            world.granted(p, to, number);
        } else {
            process.at = At::Lowers { to, number, done: done + 1 };
        }
    }
}
