//! How a contender's node is called: ours by the layout, everybody else's by what they are known to
//! write.
//!
//! All libraries that share a directory share its counter, so the number at the end of a name is
//! one order over all of them. It is a 32-bit number that wraps; names are never compared as texts.

use crate::words::id::ClaimId;

/// Whose node names and shapes we write.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Layout {
    /// Apache Curator's recipes; also what we use among ourselves.
    Curator,
    /// Python's kazoo.
    Kazoo,
    /// Bare sequential nodes behind a prefix of the user's choice, as simple ZkClient code writes
    /// them.
    ///
    /// That code compares whole names as texts. Text order is number order only among names of one
    /// prefix, so a contender of another prefix is never stood in line with.
    Plain {
        /// What stands before the number; empty unless configured.
        prefix: String,
    },
}

impl Layout {
    /// The word of the URL.
    pub(crate) fn as_str(&self) -> &'static str {
        match self {
            Self::Curator => "curator",
            Self::Kazoo => "kazoo",
            Self::Plain { .. } => "plain",
        }
    }

    /// Whether names carry an id by which a node is found again after a lost reply.
    pub(super) fn names_carry_ids(&self) -> bool {
        !matches!(self, Self::Plain { .. })
    }

    /// Reads the name of a child; what begins as ours do goes on with the number, sign and all.
    pub(super) fn child(&self, name: &str) -> Option<Child> {
        let Self::Plain { prefix } = self else { return Child::read(name) };
        if let Some(seq) = name.strip_prefix(prefix.as_str()).and_then(parse_seq) {
            return Some(Child { name: name.to_owned(), seq, tag: Tag::Lock });
        }
        match Child::read(name) {
            Some(permits) if matches!(permits.tag, Tag::Lease | Tag::Permits(_)) => Some(permits),
            Some(other) => Some(Child { tag: Tag::OtherPrefix, ..other }),
            None => None,
        }
    }

    /// What a node of ours is called that stands in no line: its last letter is none of a number's.
    pub(super) fn bare(&self, id: ClaimId) -> String {
        let mut hex = id.to_string();
        let last = hex.pop().and_then(|c| c.to_digit(16)).unwrap_or(0);
        hex.push(char::from_digit(10 + last % 6, 16).unwrap_or('a'));
        if *self == Self::Curator { with_dashes(&hex) } else { hex }
    }

    /// What a node of ours is called up to its number.
    pub(super) fn prefix(&self, tag: Tag, id: ClaimId) -> String {
        let mut hex = id.to_string();
        if tag == Tag::Upgradable {
            // Everybody writes ids in small letters.
            let first = hex.remove(0).to_digit(16).unwrap_or(0);
            hex.insert(0, char::from_digit(first | 0xa, 16).unwrap_or('a').to_ascii_uppercase());
        }
        if let Tag::Permits(count) = tag {
            return format!("{hex}-permits-{count}-");
        }
        if tag == Tag::Lease && *self == Self::Kazoo {
            return self.bare(id);
        }
        match self {
            Self::Curator => {
                let uuid = with_dashes(&hex);
                let word = match tag {
                    Tag::Lock => "lock-",
                    Tag::Write => "__WRIT__",
                    Tag::Read | Tag::Upgradable => "__READ__",
                    Tag::Latch => "latch-",
                    Tag::Lease => "lease-",
                    Tag::Permits(_) | Tag::OtherPrefix => "",
                };
                format!("_c_{uuid}-{word}")
            }
            Self::Kazoo => {
                let word = if tag.is_shared() { "__rlock__" } else { "__lock__" };
                format!("{hex}{word}")
            }
            Self::Plain { prefix } => prefix.clone(),
        }
    }
}

/// What a contender's name says about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Tag {
    /// A mutex: Curator's, kazoo's, ZooKeeper's own, or anything else that ends in a number.
    Lock,
    /// The writer of Curator's read-write lock.
    Write,
    /// A reader, Curator's or kazoo's.
    Read,
    /// A reader of ours that may become the writer: to others a reader, to us marked by a capital
    /// in its id.
    Upgradable,
    /// A candidate of Curator's LeaderLatch.
    Latch,
    /// A permit of Curator's SemaphoreV2.
    Lease,
    /// So many permits of a semaphore of ours.
    Permits(u16),
    /// In the layout plain: a contender whose name does not begin as ours do.
    OtherPrefix,
}

impl Tag {
    /// Whether it may hold beside readers.
    pub(super) fn is_shared(self) -> bool {
        matches!(self, Self::Read | Self::Upgradable)
    }

    /// How much of a semaphore it takes.
    pub(super) fn weight(self) -> u32 {
        if let Self::Permits(count) = self { u32::from(count) } else { 1 }
    }
}

/// A child that stands in the line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Child {
    pub(super) name: String,
    pub(super) seq: i32,
    pub(super) tag: Tag,
}

/// Words after which the rest of the name is the number, sign and all.
const WORDS: [(&str, Tag); 7] = [
    ("__lock__", Tag::Lock),
    ("__rlock__", Tag::Read),
    ("__WRIT__", Tag::Write),
    ("__READ__", Tag::Read),
    ("-latch-", Tag::Latch),
    ("-lease-", Tag::Lease),
    ("lock-", Tag::Lock),
];

impl Child {
    /// Reads a name; `None` for a child that ends in no sequence number and so stands in no line.
    pub(super) fn read(name: &str) -> Option<Self> {
        if let Some((_, rest)) = name.rsplit_once("-permits-") {
            let (count, seq) = rest.split_once('-')?;
            return Some(Self {
                name: name.to_owned(),
                seq: parse_seq(seq)?,
                tag: Tag::Permits(count.parse().ok()?),
            });
        }
        let known = WORDS.iter().find_map(|(word, tag)| {
            let (_, rest) = name.rsplit_once(word)?;
            parse_seq(rest).map(|seq| (seq, *tag))
        });
        let id = name.strip_prefix("_c_").unwrap_or(name);
        let marked = |tag: Tag| {
            if tag == Tag::Read && id.starts_with(|c: char| c.is_ascii_uppercase()) {
                Tag::Upgradable
            } else {
                tag
            }
        };
        let known = known.map(|(seq, tag)| (seq, marked(tag)));
        let (seq, tag) = known.or_else(|| trailing_seq(name).map(|seq| (seq, Tag::Lock)))?;
        Some(Self { name: name.to_owned(), seq, tag })
    }

    /// A reader as Curator writes them: those of Curator's own wait for the writers of its rw-lock,
    /// and for no mutex.
    pub(super) fn waits_for_writers_only(&self) -> bool {
        self.tag == Tag::Read && self.name.contains("__READ__")
    }

    /// What its name says before the number.
    pub(super) fn prefix(&self) -> &str {
        self.name.strip_suffix(&write_seq(self.seq)).unwrap_or(&self.name)
    }

    /// The layout whose library writes such names; `None` for code with names of its own.
    pub(super) fn library(&self) -> Option<&'static str> {
        let prefix = self.prefix();
        match prefix {
            _ if prefix.ends_with("__lock__") || prefix.ends_with("__rlock__") => Some("kazoo"),
            _ if prefix.starts_with("_c_")
                || prefix.ends_with("-latch-")
                || prefix.ends_with("-lease-") =>
            {
                Some("curator")
            }
            _ => None,
        }
    }

    /// Whether it stands before the other: the counter wraps, so the nearer way round decides.
    pub(super) fn is_before(&self, seq: i32) -> bool {
        seq.wrapping_sub(self.seq) > 0
    }
}

/// An id as Java writes it.
fn with_dashes(hex: &str) -> String {
    let part = |from: usize, to: usize| hex.get(from..to).unwrap_or_default();
    [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
}

/// A number as Java's `%010d` writes it.
pub(super) fn write_seq(seq: i32) -> String {
    format!("{seq:010}")
}

/// A whole text as Java's `%010d` writes a 32-bit number.
pub(super) fn parse_seq(text: &str) -> Option<i32> {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let padded = text.len() == 10 || (text.len() == 11 && text.starts_with('-'));
    if !padded || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    // `Lock--0000000007` is the seventh of the prefix `Lock-`, and no number of the prefix `Lock`.
    text.parse().ok().filter(|seq| write_seq(*seq) == text)
}

/// The number at the end of a name whose words are not known.
///
/// A single `-` before ten digits is taken for a separator (`x-<session>-0000000007`), unless no
/// 32-bit number looks like that without a sign; two of them are a separator and a sign.
fn trailing_seq(name: &str) -> Option<i32> {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    let head = name.get(..name.len() - digits)?;
    let tail = name.get(name.len() - digits.min(10)..)?;
    // `x--0000000002` is the second of the prefix `x--`: no number has that sign and ten digits.
    let negative = |tail: &str| parse_seq(&format!("-{tail}"));
    match digits {
        0..=8 => None,
        9 => head.ends_with('-').then(|| negative(tail)).flatten(),
        10 if head.ends_with("--") || head == "-" => negative(tail).or_else(|| tail.parse().ok()),
        10 => tail.parse().ok().or_else(|| if head.ends_with('-') { negative(tail) } else { None }),
        _ => tail.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str) -> Option<(i32, Tag)> {
        Child::read(name).map(|c| (c.seq, c.tag))
    }

    #[test]
    fn every_librarys_contenders_are_understood() {
        let uuid = "7b2d0f4e-1111-2222-3333-444455556666";
        for (name, what) in [
            (format!("_c_{uuid}-lock-0000000007"), (7, Tag::Lock)),
            (format!("_c_{uuid}-__READ__0000000008"), (8, Tag::Read)),
            (format!("_c_{uuid}-__WRIT__0000000009"), (9, Tag::Write)),
            (format!("_c_{uuid}-latch-0000000010"), (10, Tag::Latch)),
            (format!("_c_{uuid}-lease-0000000011"), (11, Tag::Lease)),
            ("a1b2c3-permits-3-0000000020".to_owned(), (20, Tag::Permits(3))),
            ("a1b2c3-permits-3--2147483648".to_owned(), (i32::MIN, Tag::Permits(3))),
            ("a1b2c3__lock__0000000012".to_owned(), (12, Tag::Lock)),
            ("a1b2c3__rlock__0000000013".to_owned(), (13, Tag::Read)),
            ("_c_a1b2c3-lock-0000000014".to_owned(), (14, Tag::Lock)),
            ("x-72057594037927936-0000000015".to_owned(), (15, Tag::Lock)),
            ("n_0000000016".to_owned(), (16, Tag::Lock)),
            ("Lock0000000017".to_owned(), (17, Tag::Lock)),
            ("0000000018".to_owned(), (18, Tag::Lock)),
            ("latch-member-1-0000000019".to_owned(), (19, Tag::Lock)),
        ] {
            assert_eq!(read(&name), Some(what), "{name}");
        }
    }

    #[test]
    fn z6_numbers_after_the_wrap_are_read_with_their_sign_and_before_it_without_the_separator() {
        for (name, seq) in [
            ("_c_x-lock-2147483647", i32::MAX),
            ("_c_x-lock--2147483648", i32::MIN),
            ("_c_x-lock--000000005", -5),
            ("a__lock__-2147483648", i32::MIN),
            ("a__lock__-000000005", -5),
            ("x-99-2147483647", i32::MAX),
            ("x-99--2147483648", i32::MIN),
            ("x-99--1147483648", -1_147_483_648),
            ("n_-2147483648", i32::MIN),
            ("-2147483648", i32::MIN),
            ("Lock-000000005", -5),
            ("-000000005", -5),
        ] {
            assert_eq!(read(name).map(|c| c.0), Some(seq), "{name}");
        }
    }

    #[test]
    fn foreign_children_stand_in_no_line() {
        for name in [
            "",
            "locks",
            "leases",
            "0",
            "lock-",
            "lock-1",
            "_c_x-lock-00000000071",
            "ready",
            "é",
            "lock-0000000a07",
            "123456789",
            "99999999999",
            "x-permits-0000000001",
            "x-permits-65536-0000000001",
        ] {
            let found = read(name);
            let ends_in_ten_digits =
                name.bytes().rev().take_while(u8::is_ascii_digit).count() >= 10;
            assert!(found.is_none() || ends_in_ten_digits, "{name}: {found:?}");
        }
    }

    #[test]
    fn z6_order_holds_over_the_wrap() {
        let at = |seq: i32| Child { name: String::new(), seq, tag: Tag::Lock };
        assert!(at(i32::MAX).is_before(i32::MIN));
        assert!(!at(i32::MIN).is_before(i32::MAX));
        assert!(at(-1).is_before(0));
        assert!(at(6).is_before(7));
        for seq in [0, 7, i32::MAX, i32::MIN, -5, -1_234_567_890] {
            assert_eq!(parse_seq(&write_seq(seq)), Some(seq));
        }
        assert_eq!(
            (write_seq(-5).as_str(), write_seq(i32::MIN).as_str()),
            ("-000000005", "-2147483648"),
            "as Java does"
        );
        assert!(!at(7).is_before(7));
    }

    #[test]
    fn z6_our_own_prefix_is_no_part_of_the_number() {
        for prefix in ["Lock", "Lock-", "", "n__rlock__"] {
            let layout = Layout::Plain { prefix: prefix.to_owned() };
            for seq in [
                0,
                7,
                i32::MAX,
                i32::MIN,
                i32::MIN + 1,
                -1_000_000_001,
                -1_000_000_000,
                -999_999_999,
                -5,
            ] {
                let read =
                    layout.child(&format!("{prefix}{}", write_seq(seq))).map(|c| (c.seq, c.tag));
                assert_eq!(read, Some((seq, Tag::Lock)), "{prefix}{}", write_seq(seq));
            }
        }
    }

    #[test]
    fn a_plain_contender_of_another_prefix_is_told_from_ours() {
        let plain = |prefix: &str| Layout::Plain { prefix: prefix.to_owned() };
        let uuid = "7b2d0f4e-1111-2222-3333-444455556666";
        for (ours, name, theirs) in [
            ("", "Lock0000000007", "Lock"),
            ("", "Lock-000000007", "Lock"),
            ("", "Lock-0000000007", "Lock-"),
            ("Lock", "0000000007", ""),
            ("Lock", "-000000007", ""),
            ("Lock", "-2147483648", ""),
            ("Lock", "lock0000000007", "lock"),
            ("Lock", "Lock-0000000007", "Lock-"),
            ("Lock", "Lock00000000007", "Lock0"),
            ("Lock-", "Lock0000000007", "Lock"),
            ("Lock0", "Lock0000000007", "Lock"),
            ("Lock", "n_0000000007", "n_"),
            ("", "x-72057594037927936-0000000007", "x-72057594037927936-"),
            ("", "00000000007", "0"),
            ("", "-0000000007", "-"),
            ("", "x--0000000002", "x--"),
            ("x-", "x--0000000002", "x--"),
        ] {
            let child = plain(ours).child(name).unwrap();
            assert_eq!(
                (child.tag, child.prefix(), child.library()),
                (Tag::OtherPrefix, theirs, None),
                "{name} beside {ours}"
            );
            let own = plain(theirs).child(name).unwrap();
            assert_eq!(
                (own.tag, own.seq),
                (Tag::Lock, child.seq),
                "{name} is one of the prefix that is named"
            );
        }
        for (name, library) in [
            (format!("_c_{uuid}-lock-0000000007"), "curator"),
            (format!("_c_{uuid}-__WRIT__0000000007"), "curator"),
            (format!("_c_{uuid}-latch-0000000007"), "curator"),
            ("a1__lock__0000000007".to_owned(), "kazoo"),
            ("a1__rlock__-2147483648".to_owned(), "kazoo"),
        ] {
            let child = plain("Lock").child(&name).unwrap();
            assert_eq!((child.tag, child.library()), (Tag::OtherPrefix, Some(library)), "{name}");
        }
        assert_eq!(
            plain("").child("a1-permits-3-0000000020").unwrap().tag,
            Tag::Permits(3),
            "its own semaphores are read"
        );
        assert_eq!(plain("").child("ready"), None);
    }

    #[test]
    fn our_names_are_those_of_the_layout_and_read_back() {
        let id = ClaimId(0x7b2d_0f4e_1111_2222_3333_4444_5555_6666);
        let curator = Layout::Curator.prefix(Tag::Lock, id);
        assert_eq!(curator, "_c_7b2d0f4e-1111-2222-3333-444455556666-lock-");
        assert_eq!(
            Layout::Kazoo.prefix(Tag::Read, id),
            "7b2d0f4e111122223333444455556666__rlock__"
        );
        for layout in [Layout::Curator, Layout::Kazoo] {
            for number in [0u128, 5, 0x9fff, u128::MAX] {
                let id = ClaimId(number << 112 | 77);
                assert_eq!(
                    read(&(layout.prefix(Tag::Upgradable, id) + "0000000042")),
                    Some((42, Tag::Upgradable))
                );
                assert_eq!(
                    read(&(layout.prefix(Tag::Read, id) + "0000000042")),
                    Some((42, Tag::Read))
                );
                assert_eq!(
                    layout.prefix(Tag::Upgradable, id).to_lowercase().len(),
                    layout.prefix(Tag::Read, id).len()
                );
            }
        }
        for layout in [
            Layout::Curator,
            Layout::Kazoo,
            Layout::Plain { prefix: "Lock".to_owned() },
            Layout::Plain { prefix: String::new() },
        ] {
            let name = layout.prefix(Tag::Lock, id) + "0000000042";
            assert_eq!(read(&name), Some((42, Tag::Lock)), "{name}");
        }
    }
}
