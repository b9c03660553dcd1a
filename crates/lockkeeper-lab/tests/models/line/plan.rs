//! What the tasks of the models do.

use lockkeeper::Mode;

use super::register;

/// What one task does.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    pub mode: Mode,
    pub trying: bool,
    pub patience: Option<u64>,
    /// Its future may be dropped at any instant.
    pub fickle: bool,
    /// Its future is never polled again once it waits.
    pub sleeps: bool,
    /// What it makes of its turn, one after the other, before it gives it back.
    pub turns: &'static [Mode],
    /// The future of a conversion may be dropped at any instant.
    pub wavers: bool,
}

pub const LOCK: Plan = Plan {
    mode: Mode::Exclusive,
    trying: false,
    patience: None,
    fickle: false,
    sleeps: false,
    turns: &[],
    wavers: false,
};
pub const READ: Plan = Plan { mode: Mode::Shared, ..LOCK };
pub const ONE: Plan = Plan { mode: Mode::Permits { count: 1, limit: register::LIMIT }, ..LOCK };
pub const BOTH: Plan = Plan { mode: Mode::Permits { count: 2, limit: register::LIMIT }, ..LOCK };
pub const TRY: Plan = Plan { trying: true, ..LOCK };
pub const TRY_READ: Plan = Plan { mode: Mode::Shared, ..TRY };
pub const TRY_ONE: Plan = Plan { trying: true, ..ONE };
pub const TRY_BOTH: Plan = Plan { trying: true, ..BOTH };
pub const FICKLE: Plan = Plan { fickle: true, ..LOCK };
pub const SLEEPER: Plan = Plan { sleeps: true, ..LOCK };
pub const HURRIED: Plan = Plan { patience: Some(1), ..LOCK };
/// Reads, and may become the writer.
const UPGRADABLE: Plan = Plan { mode: Mode::Upgradable, ..LOCK };
pub const UP: Plan = Plan { turns: &[Mode::Exclusive], ..UPGRADABLE };
pub const UP_AND_BACK: Plan = Plan { turns: &[Mode::Exclusive, Mode::Upgradable], ..UPGRADABLE };
/// Wants to write, and may think better of it.
pub const FICKLE_UP: Plan = Plan { wavers: true, ..UP };
/// Writes twice, or begins to.
pub const WAVERS: Plan = Plan {
    turns: &[Mode::Exclusive, Mode::Upgradable, Mode::Exclusive],
    wavers: true,
    ..UPGRADABLE
};
pub const DOWN: Plan = Plan { turns: &[Mode::Shared], wavers: true, ..LOCK };
