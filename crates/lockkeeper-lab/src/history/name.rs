//! How names are written down: a record has room for 64 bits, and the name itself stands once in
//! the file, before.

use std::collections::HashMap;
use std::fmt;

use lockkeeper::Kind;

use super::record::{Record, What};

/// A lock's name in 64 bits: a hash of its kind and its name, the same in every process and
/// release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockId(pub u64);

/// What an id stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// The name space; `None` for a text that is no lock, such as a fault's.
    pub kind: Option<Kind>,
    /// The name.
    pub name: String,
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            None | Some(Kind::Lock) => write!(f, "{}", self.name),
            Some(kind) => write!(f, "{kind} {}", self.name),
        }
    }
}

/// The number of a name space in the file; 255 is a text.
fn kind_number(kind: Option<Kind>) -> u8 {
    match kind {
        Some(Kind::Lock) => 1,
        Some(Kind::Semaphore) => 2,
        Some(Kind::Election) => 3,
        Some(Kind::Latch) => 4,
        None => 255,
    }
}

fn kind_of_number(number: u8) -> Option<Kind> {
    match number {
        1 => Some(Kind::Lock),
        2 => Some(Kind::Semaphore),
        3 => Some(Kind::Election),
        4 => Some(Kind::Latch),
        _ => None,
    }
}

impl LockId {
    /// No lock.
    pub const NONE: Self = Self(0);

    /// The id of a lock.
    pub fn of(kind: Kind, name: &str) -> Self {
        Self::hash(kind_number(Some(kind)), name)
    }

    /// The id of a text that is no lock.
    pub fn text(text: &str) -> Self {
        Self::hash(kind_number(None), text)
    }

    /// The kind's number and the length, then the name in words of eight bytes, little-endian and
    /// padded with zeros: turn left by 29, xor, multiply; finished as MurmurHash3 does. Never zero.
    fn hash(kind: u8, name: &str) -> Self {
        const K: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut h = (u64::from(kind) << 32 ^ name.len() as u64).wrapping_mul(K);
        let (words, rest) = name.as_bytes().as_chunks::<8>();
        let mut last = [0; 8];
        for (to, from) in last.iter_mut().zip(rest) {
            *to = *from;
        }
        for word in words.iter().chain([&last]) {
            h = (h.rotate_left(29) ^ u64::from_le_bytes(*word)).wrapping_mul(K);
        }
        h = (h ^ (h >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        h = (h ^ (h >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        Self((h ^ (h >> 33)).max(1))
    }
}

/// How many bytes of a name one record carries: claim, owner, token and deadline.
const PART: usize = 32;

/// The records that introduce a name, to be written one after the other.
pub(super) fn introduce(kind: Option<Kind>, name: &str) -> impl Iterator<Item = Record> {
    let lock = LockId::hash(kind_number(kind), name);
    let length = u16::try_from(name.len()).unwrap_or(u16::MAX);
    let bytes = name.as_bytes();
    bytes.chunks(PART).zip(0u64..).map(move |(part, number)| {
        let mut words = [0u64; 4];
        for (word, eight) in words.iter_mut().zip(part.chunks(8)) {
            let mut padded = [0; 8];
            for (to, from) in padded.iter_mut().zip(eight) {
                *to = *from;
            }
            *word = u64::from_le_bytes(padded);
        }
        let [claim, owner, token, deadline] = words;
        let number = number | u64::from(kind_number(kind)) << 56;
        Record {
            claim,
            owner,
            token,
            deadline,
            number,
            weight: length,
            ..Record::about(What::Name, lock, 0)
        }
    })
}

/// The names of a history, put together again.
#[derive(Clone, Debug, Default)]
pub struct NameTable {
    known: HashMap<LockId, Label>,
    parts: HashMap<(u32, LockId), Vec<u8>>,
    fresh: Vec<LockId>,
}

/// Two names with the same 64 bits, or a name record that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NameTaken {
    /// The id.
    pub lock: LockId,
    /// The name that has it already.
    pub first: Label,
    /// The name that claims it too.
    pub second: String,
}

impl fmt::Display for NameTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the names {:?} and {:?} have the same id {:016x}: their events cannot be told apart",
            self.first.name, self.second, self.lock.0
        )
    }
}

impl NameTable {
    /// What an id stands for.
    pub fn get(&self, lock: LockId) -> Option<&Label> {
        self.known.get(&lock)
    }

    /// The names that were completed since this was last asked.
    pub fn take_fresh(&mut self) -> Vec<(LockId, Label)> {
        std::mem::take(&mut self.fresh)
            .into_iter()
            .filter_map(|lock| Some((lock, self.known.get(&lock)?.clone())))
            .collect()
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.known.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    /// Takes one `name` record of a source; the parts of one name come in order, other records may
    /// stand between.
    ///
    /// # Errors
    /// When another name has the same id.
    pub fn take(&mut self, source: u32, record: &Record) -> Result<(), NameTaken> {
        let (kind, number) = ((record.number >> 56) as u8, record.number & !(0xff << 56));
        let parts = self.parts.entry((source, record.lock)).or_default();
        if number == 0 {
            parts.clear();
        }
        for word in [record.claim, record.owner, record.token, record.deadline] {
            parts.extend(word.to_le_bytes());
        }
        let length = usize::from(record.weight);
        if parts.len() < length {
            return Ok(());
        }
        let mut bytes = self.parts.remove(&(source, record.lock)).unwrap_or_default();
        bytes.truncate(length);
        let label = Label {
            kind: kind_of_number(kind),
            name: String::from_utf8_lossy(&bytes).into_owned(),
        };
        match self.known.get(&record.lock) {
            Some(first) if *first != label => {
                Err(NameTaken { lock: record.lock, first: first.clone(), second: label.name })
            }
            Some(_) => Ok(()),
            None => {
                self.known.insert(record.lock, label);
                self.fresh.push(record.lock);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_every_length_come_back() {
        for length in [1usize, 8, 31, 32, 33, 64, 1000, 1024] {
            for kind in [
                Some(Kind::Lock),
                Some(Kind::Semaphore),
                Some(Kind::Election),
                Some(Kind::Latch),
                None,
            ] {
                let name: String = (0..length).map(|i| char::from(b'a' + (i % 26) as u8)).collect();
                let mut table = NameTable::default();
                let records: Vec<_> = introduce(kind, &name).collect();
                assert_eq!(records.len(), length.div_ceil(32));
                for record in &records {
                    table.take(0, record).unwrap();
                }
                assert_eq!(table.get(records[0].lock), Some(&Label { kind, name }));
                assert_eq!((table.len(), table.is_empty()), (1, false));
            }
        }
        assert!(NameTable::default().is_empty());
    }

    #[test]
    fn parts_of_two_names_may_alternate_and_a_name_may_come_twice() {
        let (a, b) = ("a".repeat(50), "b".repeat(40));
        let mut table = NameTable::default();
        for (x, y) in introduce(Some(Kind::Lock), &a).zip(introduce(Some(Kind::Lock), &b)) {
            for source in [0, 1] {
                table.take(source, &x).unwrap();
                table.take(source, &y).unwrap();
            }
        }
        for record in introduce(Some(Kind::Lock), &a) {
            table.take(0, &record).unwrap();
        }
        assert_eq!(
            table.get(LockId::of(Kind::Lock, &a)).map(|l| l.name.as_str()),
            Some(a.as_str())
        );
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn a_name_cut_off_by_a_kill_starts_again() {
        let name = "n".repeat(70);
        let records: Vec<_> = introduce(Some(Kind::Lock), &name).collect();
        let mut table = NameTable::default();
        table.take(0, &records[0]).unwrap();
        assert!(table.is_empty());
        for record in &records {
            table.take(0, record).unwrap();
        }
        assert_eq!(table.get(records[0].lock).map(|l| l.name.len()), Some(70));
    }

    #[test]
    fn two_names_with_one_id_are_refused() {
        let mut table = NameTable::default();
        let mut record = introduce(Some(Kind::Lock), "one").next().unwrap();
        table.take(0, &record).unwrap();
        record.claim ^= 1;
        let taken = table.take(0, &record).unwrap_err();
        assert!(taken.to_string().contains("\"one\""), "{taken}");
    }

    #[test]
    fn ids_are_stable_and_tell_kinds_apart() {
        assert_eq!(LockId::of(Kind::Lock, "stock/1"), LockId(14_041_359_431_304_302_758));
        let ids = [
            LockId::of(Kind::Lock, "a"),
            LockId::of(Kind::Semaphore, "a"),
            LockId::text("a"),
            LockId::of(Kind::Lock, "b"),
        ];
        for (i, id) in ids.iter().enumerate() {
            assert!(ids.iter().skip(i + 1).all(|other| other != id) && id.0 != 0);
        }
    }
    #[test]
    fn labels_name_the_kind_unless_it_is_a_lock() {
        let label = |kind| Label { kind, name: "n".into() }.to_string();
        assert_eq!(
            [label(None), label(Some(Kind::Lock)), label(Some(Kind::Semaphore))],
            ["n", "n", "semaphore n"]
        );
    }
}
