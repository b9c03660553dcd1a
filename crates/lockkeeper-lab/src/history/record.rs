//! One event in 64 bytes.

use super::name::LockId;

/// The size of every record.
pub const RECORD_SIZE: usize = 64;

/// Declares the kinds once: number, name in print, and what the record says.
macro_rules! kinds {
    ($($number:literal $variant:ident $word:literal $doc:literal;)*) => {
        /// What a record says. The numbers are the layout's and never change their meaning.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum What {
            $(#[doc = $doc] $variant = $number,)*
        }

        impl What {
            /// Every kind, by number.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// The kind with this number.
            pub fn from_number(number: u8) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// The word that pictures and JSON use.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

kinds! {
    1 Name "name" "A part of a lock's name, or of a text; written before the first record that \
                   needs it.";
    2 AcquireCalled "acq_inv" "An acquire is about to be called. `mode`, `weight`, `owner`; \
                               `number` is a semaphore's limit; `TRY`.";
    3 Acquired "acq_ok" "An acquire returned a guard. `token`, `deadline`; \
                         `HANDED` when the turn was passed on locally.";
    4 Busy "acq_busy" "A try was refused: another claim holds the lock or stands in line.";
    5 TimedOut "acq_timeout" "An acquire gave up at its time limit.";
    6 AcquireUnknown "acq_unknown" "An acquire ended, and whether it took effect is unknown.";
    7 AcquireFailed "acq_failed" "An acquire certainly did not happen.";
    8 Cancelled "acq_cancelled" "The caller dropped its acquire.";
    9 InLine "enq_ok" "The engine confirmed a place in its line. `number` is how many stand ahead.";
    10 ReleaseCalled "rel_inv" "A release is about to be called, or a guard is being dropped.";
    11 Released "rel_ok" "The release was answered: the claim held until now.";
    12 ReleasedNotOwner "rel_not_owner" "The release was answered: the claim did not hold, nothing \
                                         was touched.";
    13 ReleaseUnknown "rel_unknown" "The outcome of the release is unknown.";
    14 ReleasedLost "rel_lost" "The guard had been lost before it was released.";
    15 RenewCalled "renew_inv" "A renewal is about to be sent.";
    16 Renewed "renew_ok" "A renewal was acknowledged. `deadline` is the new one.";
    17 RenewLost "renew_lost" "A renewal was answered: the hold no longer exists.";
    18 RenewUnknown "renew_unknown" "A renewal was not answered.";
    19 Lost "lost_event" "The guard was notified that its hold is lost. `number` is the reason.";
    20 CheckCalled "check_inv" "A guard is about to be asked whether it still holds. `number` \
                                pairs it with its answer.";
    21 Checked "check_ret" "The guard answered; `YES` when it said that it holds.";
    22 ConvertCalled "convert_inv" "A hold is about to change to `mode`.";
    23 Converted "convert_ok" "The hold has `mode` now, with a new `token` and `deadline`.";
    24 ConvertFailed "convert_no" "The hold kept its mode.";
    25 EffectCalled "eff_inv" "The holder is about to touch the resource. `number` pairs it with \
                               its answer.";
    26 EffectDone "eff_ret" "The resource answered; `YES` when it accepted.";
    27 ResizeCalled "resize_inv" "A semaphore's limit is about to change to `number`.";
    28 Resized "resize_ok" "The limit is `number` now.";
    29 FaultBegin "fault_begin" "A fault begins. `lock` names it, `number` is the process it hits, \
                                 0 for none.";
    30 FaultEnd "fault_end" "That fault has ended.";
    31 Kill "kill" "Process `number` is about to be killed.";
    32 Exit "exit" "Process `number` was seen to have ended.";
    33 ResourceRead "res_read" "The resource answered a read. `token`; `YES` accepted; \
                                `FENCED` when it checks tokens.";
    34 ResourceWrite "res_write" "The same for a write. `number` is the version before it, \
                                  `deadline` the version its writer had read.";
}

impl What {
    /// Whether the record was written after a call returned; only these are moved by clock skew
    /// between machines.
    pub fn is_answer(self) -> bool {
        matches!(
            self,
            Self::Acquired
                | Self::Busy
                | Self::TimedOut
                | Self::AcquireUnknown
                | Self::AcquireFailed
                | Self::InLine
                | Self::Released
                | Self::ReleasedNotOwner
                | Self::ReleaseUnknown
                | Self::ReleasedLost
                | Self::Renewed
                | Self::RenewLost
                | Self::RenewUnknown
                | Self::Checked
                | Self::Converted
                | Self::ConvertFailed
                | Self::EffectDone
                | Self::Resized
        )
    }
}

/// In which way a hold holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum HoldMode {
    /// Not said.
    #[default]
    None = 0,
    /// Alone.
    Exclusive = 1,
    /// With other readers.
    Shared = 2,
    /// With other readers, as the only one that may become exclusive.
    Upgradable = 3,
    /// `weight` permits of a semaphore.
    Permits = 4,
}

impl HoldMode {
    fn from_bits(bits: u8) -> Self {
        match bits & 0x0f {
            1 => Self::Exclusive,
            2 => Self::Shared,
            3 => Self::Upgradable,
            4 => Self::Permits,
            _ => Self::None,
        }
    }

    /// The word that sentences use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "unknown",
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Upgradable => "upgradable",
            Self::Permits => "permits",
        }
    }
}

/// Yes or no of a record; the low four bits of the byte are the mode's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Flags(pub u8);

impl Flags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// On `res_*`: this register checks tokens.
    pub const FENCED: Self = Self(0x10);
    /// On `check_ret`, `eff_ret`, `res_*`: valid, accepted.
    pub const YES: Self = Self(0x20);
    /// On `acq_ok`: the turn, or the place for it, came from another task of the same process, past
    /// the engine's line.
    pub const HANDED: Self = Self(0x40);
    /// On `acq_inv`: leave at once when it is taken.
    pub const TRY: Self = Self(0x80);

    /// Whether all of `other` is set.
    pub fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    pub fn and(self, other: Self) -> Self {
        Self((self.0 | other.0) & 0xf0)
    }
}

/// One event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, in nanoseconds of `CLOCK_BOOTTIME`; the writer fills it in.
    pub at: u64,
    /// Which lock; zero for none.
    pub lock: LockId,
    /// Which claim, [folded](fold) to 64 bits; zero for none.
    pub claim: u64,
    /// The explicit owner; zero when each claim stands for itself.
    pub owner: u64,
    /// The fencing token; zero for none.
    pub token: u64,
    /// The local deadline on the clock of `at`; zero for none.
    pub deadline: u64,
    /// What the kind says.
    pub number: u64,
    /// What happened.
    pub what: What,
    /// In which way.
    pub mode: HoldMode,
    /// Yes or no.
    pub flags: Flags,
    /// How many permits.
    pub weight: u16,
}

impl Record {
    /// A record of this kind about nothing yet.
    pub fn new(what: What) -> Self {
        Self {
            at: 0,
            lock: LockId::NONE,
            claim: 0,
            owner: 0,
            token: 0,
            deadline: 0,
            number: 0,
            what,
            mode: HoldMode::None,
            flags: Flags::NONE,
            weight: 0,
        }
    }

    /// A record about a claim on a lock.
    pub fn about(what: What, lock: LockId, claim: u64) -> Self {
        Self { lock, claim, ..Self::new(what) }
    }

    /// With a mode; permits carry their count and, on `acq_inv`, the limit.
    #[must_use]
    pub fn mode(mut self, mode: lockkeeper::Mode) -> Self {
        use lockkeeper::Mode;
        (self.mode, self.weight) = match mode {
            Mode::Exclusive => (HoldMode::Exclusive, 0),
            Mode::Shared => (HoldMode::Shared, 0),
            Mode::Upgradable => (HoldMode::Upgradable, 0),
            Mode::Permits { count, limit } => {
                if self.what == What::AcquireCalled {
                    self.number = u64::from(limit);
                }
                (HoldMode::Permits, count)
            }
        };
        self
    }

    /// With an explicit owner.
    #[must_use]
    pub fn owner(mut self, owner: u64) -> Self {
        self.owner = owner;
        self
    }

    /// With a fencing token.
    #[must_use]
    pub fn token(mut self, token: u64) -> Self {
        self.token = token;
        self
    }

    /// With a local deadline, in nanoseconds of `CLOCK_BOOTTIME`.
    #[must_use]
    pub fn deadline(mut self, at: u64) -> Self {
        self.deadline = at;
        self
    }

    /// With a number.
    #[must_use]
    pub fn number(mut self, number: u64) -> Self {
        self.number = number;
        self
    }

    /// With a flag more.
    #[must_use]
    pub fn flag(mut self, flag: Flags) -> Self {
        self.flags = self.flags.and(flag);
        self
    }

    /// The 64 bytes, sealed for this place in this file.
    pub fn encode(&self, file: u64, index: u64) -> [u8; RECORD_SIZE] {
        let tail = u32::from(self.what as u8)
            | u32::from(self.mode as u8 | self.flags.0 & 0xf0) << 8
            | u32::from(self.weight) << 16;
        let words =
            [self.at, self.lock.0, self.claim, self.owner, self.token, self.deadline, self.number];
        let sum = seal(file, index, words, tail);
        let mut bytes = [0; RECORD_SIZE];
        let last = u64::from(tail) | u64::from(sum) << 32;
        for (slot, word) in bytes.chunks_exact_mut(8).zip(words.into_iter().chain([last])) {
            slot.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the 64 bytes at this place of this file.
    pub fn decode(bytes: &[u8; RECORD_SIZE], file: u64, index: u64) -> Decoded {
        let mut words = [0u64; 8];
        for (word, slot) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            let mut eight = [0; 8];
            eight.copy_from_slice(slot);
            *word = u64::from_le_bytes(eight);
        }
        let [at, lock, claim, owner, token, deadline, number, last] = words;
        if words.iter().all(|w| *w == 0) {
            return Decoded::Empty;
        }
        let tail = last as u32;
        if seal(file, index, [at, lock, claim, owner, token, deadline, number], tail)
            != (last >> 32) as u32
        {
            return Decoded::Torn;
        }
        let Some(what) = What::from_number(tail as u8) else { return Decoded::Foreign(tail as u8) };
        let bits = (tail >> 8) as u8;
        Decoded::Whole(Self {
            at,
            lock: LockId(lock),
            claim,
            owner,
            token,
            deadline,
            number,
            what,
            mode: HoldMode::from_bits(bits),
            flags: Flags(bits & 0xf0),
            weight: (tail >> 16) as u16,
        })
    }
}

/// What 64 bytes of a file turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// A record.
    Whole(Record),
    /// Zeros: never written.
    Empty,
    /// Begun and not finished, or damaged, or of another place or file.
    Torn,
    /// Whole, and of a kind this release does not know.
    Foreign(u8),
}

/// The check over a record's other 60 bytes, bound to its place and its file. Each step is a
/// bijection of the state, so no single changed word can cancel out.
fn seal(file: u64, index: u64, words: [u64; 7], tail: u32) -> u32 {
    const K: u64 = 0x9e37_79b9_7f4a_7c15;
    let mut h = (file ^ index.wrapping_mul(K)).wrapping_mul(K);
    for word in words.into_iter().chain([u64::from(tail)]) {
        h = (h.rotate_left(29) ^ word).wrapping_mul(K);
    }
    (h >> 32) as u32
}

/// A 128-bit id in 64 bits; claims are random, so that equal folds of different claims do not
/// happen.
pub fn fold(id: u128) -> u64 {
    ((id >> 64) as u64) ^ (id as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn full() -> Record {
        Record {
            at: 1,
            lock: LockId(2),
            claim: 3,
            owner: 4,
            token: 5,
            deadline: 6,
            number: 7,
            what: What::Acquired,
            mode: HoldMode::Permits,
            flags: Flags::YES.and(Flags::TRY),
            weight: 0xabcd,
        }
    }

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        for what in What::ALL {
            for mode in [
                HoldMode::None,
                HoldMode::Exclusive,
                HoldMode::Shared,
                HoldMode::Upgradable,
                HoldMode::Permits,
            ] {
                let record = Record { what: *what, mode, ..full() };
                assert_eq!(Record::decode(&record.encode(9, 8), 9, 8), Decoded::Whole(record));
            }
        }
    }

    #[test]
    fn the_bytes_are_the_layout_of_the_documentation() {
        let bytes = full().encode(0, 0);
        for (word, at) in bytes.chunks_exact(8).take(7).zip(1u8..) {
            assert_eq!(word, [at, 0, 0, 0, 0, 0, 0, 0]);
        }
        assert_eq!(bytes[56..60], [3, 0xa4, 0xcd, 0xab]);
        assert_eq!(bytes[60..], [205, 89, 164, 79], "the seal must never change within a layout");
    }

    #[test]
    fn every_changed_bit_is_seen_and_so_is_another_place_or_file() {
        let bytes = full().encode(9, 8);
        for bit in 0..RECORD_SIZE * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Record::decode(&changed, 9, 8), Decoded::Torn, "bit {bit}");
        }
        assert_eq!(Record::decode(&bytes, 9, 7), Decoded::Torn);
        assert_eq!(Record::decode(&bytes, 8, 8), Decoded::Torn);
        assert_eq!(Record::decode(&[0; RECORD_SIZE], 9, 8), Decoded::Empty);
    }

    #[test]
    fn kinds_have_distinct_numbers_and_words_and_zero_is_none() {
        for what in What::ALL {
            assert_eq!(What::from_number(*what as u8), Some(*what));
            assert_eq!(What::ALL.iter().filter(|w| w.as_str() == what.as_str()).count(), 1);
        }
        assert_eq!(What::from_number(0), None);
        assert_eq!(What::from_number(255), None);
    }

    #[test]
    fn answers_are_the_kinds_that_end_a_call() {
        let answers: Vec<_> =
            What::ALL.iter().filter(|w| w.is_answer()).map(|w| w.as_str()).collect();
        assert_eq!(
            answers,
            [
                "acq_ok",
                "acq_busy",
                "acq_timeout",
                "acq_unknown",
                "acq_failed",
                "enq_ok",
                "rel_ok",
                "rel_not_owner",
                "rel_unknown",
                "rel_lost",
                "renew_ok",
                "renew_lost",
                "renew_unknown",
                "check_ret",
                "convert_ok",
                "convert_no",
                "eff_ret",
                "resize_ok"
            ]
        );
    }

    #[test]
    fn permits_carry_their_limit_on_the_call_only() {
        let mode = lockkeeper::Mode::Permits { count: 3, limit: 8 };
        let called = Record::new(What::AcquireCalled).mode(mode);
        assert_eq!((called.mode, called.weight, called.number), (HoldMode::Permits, 3, 8));
        assert_eq!(Record::new(What::Acquired).number(5).mode(mode).number, 5);
    }

    #[test]
    fn folding_keeps_both_halves() {
        assert_eq!(fold(1), 1);
        assert_eq!(fold(1 << 64), 1);
        assert_eq!(fold((6 << 64) | 5), 3);
    }
}
