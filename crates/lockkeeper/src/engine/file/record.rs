//! What is stored in a lock file, byte by byte. Everything carries a checksum: a neighbour in a
//! shared directory may have written anything.
//!
//! The number of the last exclusive turn stands in two records that are written in turn, so that a
//! torn write leaves the other one (F5). The same form, in a table of its own, tells about shared
//! holders.

use std::borrow::Cow;
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::errno::Errno;

use super::bytes::{FILE, FLAGS_AT, HEADER, HEADER_AT, HOT, HOT_AT, LAYOUT, RECORD, WAITER};
use super::wire;
use crate::words::claim::{Holder, Identity, Mode, Waiter};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, NAME_MAX, Name};
use crate::words::token::Token;

const MAGIC: &[u8; 16] = b"lockkeeper file\n";
const TEXT_AT: usize = 56;
const HOST_MAX: usize = 32;
const PROGRAM_MAX: usize = 20;

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum About {
    /// Nobody: it only keeps the number.
    Number,
    /// An exclusive holder, who keeps the place `extra` − 1 of the line unless `extra` is 0.
    Exclusive,
    /// A shared holder.
    Shared,
    /// An upgradable holder.
    Upgradable,
    /// A holder of `extra` permits.
    Permits,
    /// A semaphore whose limit is `extra`.
    Limit,
    /// The same, set by a resize: kept when idle files are removed.
    ChosenLimit,
    /// A latch whose count is `extra`.
    Latch,
}

impl About {
    const ALL: [Self; 8] = [
        Self::Number,
        Self::Exclusive,
        Self::Shared,
        Self::Upgradable,
        Self::Permits,
        Self::Limit,
        Self::ChosenLimit,
        Self::Latch,
    ];

    fn code(self) -> u8 {
        Self::ALL.iter().position(|about| *about == self).map_or(0, |at| at as u8 + 1)
    }

    fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code).checked_sub(1)?).copied()
    }

    /// What a hold in this mode is recorded as.
    pub(super) fn of_mode(mode: Mode) -> Self {
        match mode {
            Mode::Exclusive => Self::Exclusive,
            Mode::Shared => Self::Shared,
            Mode::Upgradable => Self::Upgradable,
            Mode::Permits { .. } => Self::Permits,
        }
    }
}

/// A record being written; host, program and label are laid down once and stamped for every grant.
#[derive(Clone)]
pub(super) struct Stamp([u8; RECORD]);

impl Stamp {
    /// The part that stays: who writes.
    pub(super) fn of(who: &Identity) -> Self {
        let mut bytes = [0; RECORD];
        let mut at = TEXT_AT;
        for (index, text, max) in [
            (5, who.host.as_str(), HOST_MAX),
            (6, base_name(&who.program), PROGRAM_MAX),
            (7, who.label.as_deref().unwrap_or_default(), RECORD),
        ] {
            let text = cut(text, max.min(RECORD - at));
            bytes[at..at + text.len()].copy_from_slice(text.as_bytes());
            bytes[index] = text.len() as u8;
            at += text.len();
        }
        bytes[40..44].copy_from_slice(&who.pid.to_le_bytes());
        Self(bytes)
    }

    /// The part that nobody in particular writes.
    pub(super) fn nobody() -> Self {
        Self([0; RECORD])
    }

    /// The record as it is written.
    pub(super) fn stamped(
        &mut self,
        about: About,
        number: u64,
        claim: ClaimId,
        since_us: u64,
        boot: u32,
        extra: u64,
    ) -> &[u8; RECORD] {
        let bytes = &mut self.0;
        bytes[4] = about.code();
        bytes[8..16].copy_from_slice(&number.to_le_bytes());
        bytes[16..32].copy_from_slice(&claim.0.to_le_bytes());
        bytes[32..40].copy_from_slice(&since_us.to_le_bytes());
        bytes[44..48].copy_from_slice(&boot.to_le_bytes());
        bytes[48..56].copy_from_slice(&extra.to_le_bytes());
        seal(bytes);
        bytes
    }
}

/// What stands at the end of a text that did not fit.
const MORE: &str = "…";

/// A text that fits; of a longer one its start, up to a whole character, with a mark at its end.
fn cut(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return text.into();
    }
    let Some(mut end) = max.checked_sub(MORE.len()) else { return "".into() };
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    (text.get(..end).unwrap_or_default().to_owned() + MORE).into()
}

/// A program without its directories: they would take all the room.
fn base_name(program: &str) -> &str {
    program.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or(program)
}

/// Writes the checksum of everything after it into the first four bytes.
pub(super) fn seal(bytes: &mut [u8]) {
    if let Some((sum, rest)) = bytes.split_first_chunk_mut::<4>() {
        *sum = crc32fast::hash(rest).to_le_bytes();
    }
}

/// Whether the checksum is right; four zeroes and nothing else is a place that nobody wrote yet.
pub(super) fn is_sealed(bytes: &[u8]) -> bool {
    bytes
        .split_first_chunk::<4>()
        .is_some_and(|(sum, rest)| u32::from_le_bytes(*sum) == crc32fast::hash(rest))
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn time(us: u64) -> Option<SystemTime> {
    if us == 0 { None } else { UNIX_EPOCH.checked_add(Duration::from_micros(us)) }
}

/// A record that was read and whose checksum is right.
#[derive(Clone, Copy)]
pub(super) struct Record<'a>(&'a [u8]);

impl<'a> Record<'a> {
    /// Reads one; `None` when nobody wrote it, or not we, or not completely.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD)?;
        let record = Self(bytes);
        (is_sealed(bytes) && About::of_code(bytes[4]).is_some()).then_some(record)
    }

    pub(super) fn about(self) -> About {
        About::of_code(self.0[4]).unwrap_or(About::Number)
    }

    pub(super) fn number(self) -> u64 {
        u64_at(self.0, 8)
    }

    pub(super) fn claim(self) -> ClaimId {
        ClaimId(u128::from_le_bytes(array(self.0, 16)))
    }

    pub(super) fn since_us(self) -> u64 {
        u64_at(self.0, 32)
    }

    pub(super) fn boot(self) -> u32 {
        u32_at(self.0, 44)
    }

    pub(super) fn extra(self) -> u64 {
        u64_at(self.0, 48)
    }

    /// The place in the line that an exclusive holder has kept from its wait.
    pub(super) fn kept_place(self) -> Option<u16> {
        let kept = self.extra().checked_sub(1).filter(|_| self.about() == About::Exclusive);
        kept.and_then(|place| u16::try_from(place).ok())
    }

    /// Who it tells about; `limit` is the semaphore's.
    pub(super) fn holder(self, limit: u16) -> Holder {
        let mut at = TEXT_AT;
        let mut text = |index: usize| {
            let end = (at + usize::from(self.0[index])).min(RECORD);
            let text = self
                .0
                .get(at..end)
                .and_then(|bytes| std::str::from_utf8(bytes).ok())
                .filter(|text| !text.is_empty());
            at = end;
            text.map(str::to_owned)
        };
        let (host, program, label) = (text(5), text(6), text(7));
        let mode = match self.about() {
            About::Exclusive => Some(Mode::Exclusive),
            About::Shared => Some(Mode::Shared),
            About::Upgradable => Some(Mode::Upgradable),
            About::Permits => Some(Mode::Permits {
                count: u16::try_from(self.extra()).unwrap_or(u16::MAX),
                limit,
            }),
            About::Number | About::Limit | About::ChosenLimit | About::Latch => None,
        };
        let fenced = matches!(self.about(), About::Exclusive | About::Shared | About::Upgradable);
        Holder {
            claim: Some(self.claim()),
            host,
            pid: Some(u32_at(self.0, 40)).filter(|pid| *pid != 0),
            since: time(self.since_us()),
            program,
            label,
            mode,
            token: if fenced { Token::of(self.number(), 0) } else { None },
            ..Holder::default()
        }
    }
}

/// The part of a file that every acquisition reads: both records, and the waiters' flags.
pub(super) struct Hot(pub(super) [u8; HOT]);

impl Hot {
    pub(super) const EMPTY: Self = Self([0; HOT]);

    /// The valid record with the greater number, and in which place the next one goes; `None` when
    /// neither can be read.
    pub(super) fn latest(&self) -> Option<(Record<'_>, u64)> {
        let places = [0, 1].map(|place| self.0.get(place * RECORD..).unwrap_or_default());
        // The newer one is nearly always valid, and then the older need not be looked at.
        let newer = usize::from(u64_at(places[1], 8) > u64_at(places[0], 8));
        [newer, 1 - newer].into_iter().find_map(|place| {
            let next = HOT_AT + ((1 - place) * RECORD) as u64;
            Record::read(places[place]).map(|record| (record, next))
        })
    }

    /// Both records, as far as they can be read.
    pub(super) fn records(&self) -> impl Iterator<Item = Record<'_>> {
        [0, 1].into_iter().filter_map(|place| Record::read(self.0.get(place * RECORD..)?))
    }

    /// The flags: a byte that is not zero says that somebody waits there, if the byte's lock
    /// agrees.
    pub(super) fn flags(&self) -> &[u8] {
        self.0.get((FLAGS_AT - HOT_AT) as usize..).unwrap_or_default()
    }

    /// Whether any flag is set.
    pub(super) fn has_line(&self) -> bool {
        self.flags().iter().any(|flag| *flag != 0)
    }
}

/// The header of a file: written once, when it is made.
pub(super) fn header(kind: Kind, name: &Name) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..16].copy_from_slice(MAGIC);
    bytes[20..22].copy_from_slice(&LAYOUT.to_le_bytes());
    bytes[22] = kind_code(kind);
    let name = name.as_str().as_bytes();
    bytes[24..26].copy_from_slice(&(name.len() as u16).to_le_bytes());
    if let Some(place) = bytes.get_mut(32..32 + name.len()) {
        place.copy_from_slice(name);
    }
    if let Some(sealed) = bytes.get_mut(16..) {
        seal(sealed);
    }
    bytes
}

fn kind_code(kind: Kind) -> u8 {
    Kind::ALL.iter().position(|other| *other == kind).map_or(0, |at| at as u8 + 1)
}

/// What a header says.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// Nothing yet: the file is fresh.
    Fresh,
    /// The lock that the file belongs to.
    Of(Kind, Name),
    /// A newer layout, with its number.
    Newer(u16),
    /// Nothing that we can read.
    Unreadable,
}

impl Header {
    /// Reads the header of an open file.
    pub(super) fn of(file: impl AsFd) -> Result<Self, Errno> {
        let mut bytes = [0; HEADER];
        let read = wire::read_at(file, &mut bytes, HEADER_AT)?;
        Ok(Self::read(bytes.get(..read).unwrap_or_default()))
    }

    /// Whether a file whose header cannot be read was a lock file before: only then may it be
    /// removed. Others end their files' names in `.lock` too.
    pub(super) fn was_ours(file: impl AsFd, size: i64) -> Result<bool, Errno> {
        let mut magic = [0; MAGIC.len()];
        let read = wire::read_at(file, &mut magic, HEADER_AT)?;
        Ok(size == 0 || size == FILE as i64 || (read == MAGIC.len() && magic == *MAGIC))
    }

    pub(super) fn read(bytes: &[u8]) -> Self {
        if bytes.iter().all(|byte| *byte == 0) {
            return Self::Fresh;
        }
        if bytes.get(..16) != Some(MAGIC.as_slice()) {
            return Self::Unreadable;
        }
        let layout = u16::from_le_bytes(array(bytes, 20));
        if layout > LAYOUT {
            return Self::Newer(layout);
        }
        let kind = Kind::ALL.into_iter().find(|kind| bytes.get(22) == Some(&kind_code(*kind)));
        let length = usize::from(u16::from_le_bytes(array(bytes, 24))).min(NAME_MAX);
        let name = bytes
            .get(32..32 + length)
            .and_then(|name| std::str::from_utf8(name).ok())
            .and_then(|name| Name::new(name).ok());
        match (bytes.get(16..HEADER).is_some_and(is_sealed), kind, name) {
            (true, Some(kind), Some(name)) => Self::Of(kind, name),
            _ => Self::Unreadable,
        }
    }
}

/// What a waiter tells about itself.
pub(super) fn waiter(who: &Identity, mode: Mode, since_us: u64) -> [u8; WAITER] {
    let mut bytes = [0; WAITER];
    // As in a holder's record: a waiter is known again when it holds.
    let host = cut(&who.host, HOST_MAX);
    bytes[4] = About::of_mode(mode).code();
    bytes[5] = host.len() as u8;
    bytes[6..8].copy_from_slice(&mode.permits().unwrap_or(0).to_le_bytes());
    bytes[8..12].copy_from_slice(&who.pid.to_le_bytes());
    bytes[16..24].copy_from_slice(&since_us.to_le_bytes());
    bytes[24..24 + host.len()].copy_from_slice(host.as_bytes());
    seal(&mut bytes);
    bytes
}

/// Reads a waiter's record; also answers since when, for the order.
pub(super) fn read_waiter(bytes: &[u8], limit: u16) -> Option<(u64, Waiter)> {
    let bytes = bytes.get(..WAITER).filter(|bytes| is_sealed(bytes))?;
    let mode = match About::of_code(bytes[4])? {
        About::Exclusive => Mode::Exclusive,
        About::Shared => Mode::Shared,
        About::Upgradable => Mode::Upgradable,
        About::Permits => Mode::Permits { count: u16::from_le_bytes(array(bytes, 6)), limit },
        _ => return None,
    };
    let host = bytes
        .get(24..24 + usize::from(bytes[5]))
        .and_then(|host| std::str::from_utf8(host).ok())
        .filter(|host| !host.is_empty());
    let since_us = u64_at(bytes, 16);
    let waiter = Waiter {
        host: host.map(str::to_owned),
        pid: Some(u32_at(bytes, 8)).filter(|pid| *pid != 0),
        since: time(since_us),
        mode: Some(mode),
        ..Waiter::default()
    };
    Some((since_us, waiter))
}

#[cfg(test)]
mod tests;
