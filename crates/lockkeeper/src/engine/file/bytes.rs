//! The plan of a lock file: which byte ranges are locked for what, and what is stored where.
//!
//! Locked bytes and stored bytes have nothing to do with each other: a range lock covers offsets,
//! whether data is there or not. The locked ones start far behind the end of the file, so that no
//! tool that locks a file's contents meets them.
//!
//! | locked | meaning |
//! |---|---|
//! | upgrade | only one process may become exclusive later: exclusive and upgradable holders, and exclusive waiters, have it |
//! | main | the lock itself: write-locked by an exclusive holder, read-locked by shared and upgradable ones |
//! | gate | the turnstile: whoever comes next waits here, one after the other, and passes on once it is in |
//! | brief | held for the moment of a small write that main does not cover: a fresh file's contents, a limit, a latch |
//! | count | held while somebody counts the permits that are out, and takes some |
//! | waiter *i*, shown *i* | the record *i* of that table counts, because whoever wrote it lives. Whoever sweeps a dead waiter's flag away has its byte for that moment, with others |
//! | permit *i* | one permit of a semaphore is taken |

/// A range of lockable bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The first byte, as an offset in the file.
    pub start: u32,
    /// How many bytes.
    pub len: u32,
}

const BASE: u32 = 0x4000_0000;

impl Span {
    /// Upgrade, main and gate: what an exclusive holder has, in one piece so that one call takes
    /// it.
    pub const ALL: Self = Self { start: BASE, len: 3 };
    /// Whoever may become exclusive.
    pub const UPGRADE: Self = Self { start: BASE, len: 1 };
    /// The lock itself.
    pub const MAIN: Self = Self { start: BASE + 1, len: 1 };
    /// Main and gate: what a shared holder takes in one call.
    pub const MAIN_AND_GATE: Self = Self { start: BASE + 1, len: 2 };
    /// The turnstile.
    pub const GATE: Self = Self { start: BASE + 2, len: 1 };
    /// Something small is being written.
    pub const BRIEF: Self = Self { start: BASE + 3, len: 1 };
    /// Permits are being counted and taken.
    pub const COUNT: Self = Self { start: BASE + 4, len: 1 };
    /// All of these and more: whoever has it knows that nobody uses the file. It is nobody's for
    /// longer than a moment.
    pub const EVERYTHING: Self = Self { start: BASE, len: 0x20_0000 };
    /// Every waiter's byte, and the one that the waiters beyond the table share.
    pub const WAITERS: Self = Self { start: BASE + 0x100, len: WAITERS as u32 + 1 };
    /// The bytes of the waiters in the table, each of whom has one alone.
    pub const TABLE: Self = Self { start: BASE + 0x100, len: WAITERS as u32 };
    /// Every permit.
    pub const PERMITS: Self = Self { start: BASE + 0x10_0000, len: 65_535 };

    /// The first byte, and the one behind the last.
    pub(super) fn bounds(self) -> (u64, u64) {
        (u64::from(self.start), u64::from(self.start) + u64::from(self.len))
    }

    /// The byte of one waiter's record.
    pub fn waiter(index: u16) -> Self {
        Self { start: Self::WAITERS.start + u32::from(index), len: 1 }
    }

    /// The byte of one shown holder's record.
    pub fn shown(index: u16) -> Self {
        Self { start: BASE + 0x1000 + u32::from(index), len: 1 }
    }

    /// A run of permits.
    pub fn permits(first: u32, count: u32) -> Self {
        Self { start: Self::PERMITS.start + first, len: count }
    }
}

/// How a range is locked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Grip {
    /// With other readers.
    Read,
    /// Alone.
    Write,
}

/// The layout's number (R17), in every file's header.
pub(super) const LAYOUT: u16 = 1;

/// How many waiters have a record; more wait as well, and are not shown.
pub(super) const WAITERS: usize = 128;
/// How many shared holders, upgradable holders and permits have a record; more hold as well, and
/// are not shown.
pub(super) const SHOWN: usize = 256;

/// Length of one record.
pub(super) const RECORD: usize = 128;
/// Length of one waiter's record.
pub(super) const WAITER: usize = 64;

/// Where the header starts.
pub(super) const HEADER_AT: u64 = 0;
/// Length of the header: magic, layout, kind and the full name.
pub(super) const HEADER: usize = 1_088;
/// Where the two alternating records start, and behind them the waiters' flags: what every
/// acquisition reads.
pub(super) const HOT_AT: u64 = 2_048;
/// Length of that part.
pub(super) const HOT: usize = 2 * RECORD + WAITERS + 1;
/// Where a waiter's flag stands.
pub(super) const FLAGS_AT: u64 = HOT_AT + 2 * RECORD as u64;
/// A byte that is written to wake whoever watches the file; its value means nothing.
pub(super) const BELL_AT: u64 = 2_500;
/// Where an election's value or a latch's recent ids are.
pub(super) const VALUE_AT: u64 = 2_560;
/// Length of that part.
pub(super) const VALUE: usize = 1_536;
/// What is written when a file is made, and what is allocated for good: no later write in it needs
/// room on the disk.
pub(super) const PAGE: usize = 4_096;
/// Where the waiters' records start.
pub(super) const WAITERS_AT: u64 = PAGE as u64;
/// Where the shown holders' records start.
pub(super) const SHOWN_AT: u64 = WAITERS_AT + (WAITERS * WAITER) as u64;
/// The size of every lock file; what nobody wrote yet takes no room.
pub(super) const FILE: u64 = SHOWN_AT + (SHOWN * RECORD) as u64;

const _: () = assert!(HEADER <= HOT_AT as usize);
const _: () = assert!(HOT_AT + HOT as u64 <= BELL_AT);
const _: () = assert!(VALUE_AT + VALUE as u64 == PAGE as u64);
