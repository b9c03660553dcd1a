//! The first page of a history file: whose it is, and how to read its clock.

use std::fmt;

/// The size of the header; records start here.
pub const HEADER_SIZE: usize = 4096;

/// The layout's version.
pub const LAYOUT: u16 = 1;

const MAGIC: [u8; 8] = *b"LKHIST\x1a\n";
const TEXT: usize = 64;

/// What kind of process wrote a history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Role {
    /// One that takes locks.
    #[default]
    Client = 0,
    /// The one that causes faults; it records the death of every client.
    Nemesis = 1,
    /// The resource that the locks guard.
    Resource = 2,
}

/// Whether a history is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Its writer runs still, or was killed.
    Open,
    /// Its writer ended the recording; so many records are there.
    Finished(u64),
    /// The recording ended early, after so many records: disk full, or a limit.
    Stopped(u64),
}

/// The first page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    /// Random; binds the records to this file.
    pub file: u64,
    /// Process id of the writer.
    pub pid: u32,
    /// What kind of process it is.
    pub role: Role,
    /// `CLOCK_BOOTTIME`, `CLOCK_MONOTONIC` and `CLOCK_REALTIME` at one moment, in nanoseconds.
    pub clocks: [u64; 3],
    /// Which boot of which machine: times of different ones cannot be compared directly.
    pub boot: u128,
    /// By how many bytes the file grows at a time, so that one that is open ends after whole steps;
    /// 0 when nobody said.
    pub step: u64,
    /// Host name.
    pub host: String,
    /// The program's name, without arguments.
    pub program: String,
    /// A text of the user's choice, such as "client 3".
    pub label: String,
    /// Whether it is whole.
    pub state: State,
}

/// Why a page is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHeader {
    /// The first bytes are not ours.
    Foreign,
    /// Written by a newer layout.
    Newer(u16),
    /// Ours, and damaged.
    Damaged,
}

impl fmt::Display for BadHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => write!(f, "its first bytes are not those of a lockkeeper history"),
            Self::Newer(version) => {
                write!(
                    f,
                    "it has layout {version} and this release reads layout {LAYOUT}: check it with \
                     the release that wrote it"
                )
            }
            Self::Damaged => write!(f, "its header is damaged"),
        }
    }
}

const STATE_AT: u64 = 320;

impl Header {
    /// The page.
    pub fn encode(&self) -> [u8; HEADER_SIZE] {
        let mut page = Page { bytes: [0; HEADER_SIZE], at: 0 };
        page.put(&MAGIC);
        page.put(&LAYOUT.to_le_bytes());
        page.put(&64u16.to_le_bytes());
        page.put(&4096u32.to_le_bytes());
        page.put(&self.file.to_le_bytes());
        page.put(&self.pid.to_le_bytes());
        page.put(&(self.role as u32).to_le_bytes());
        for clock in self.clocks {
            page.put(&clock.to_le_bytes());
        }
        page.put(&self.boot.to_le_bytes());
        page.put(&self.step.to_le_bytes());
        page.at = 128;
        for text in [&self.host, &self.program, &self.label] {
            page.put_text(text);
        }
        page.put(&Self::encode_state(self.state).1);
        let sum = sum(page.bytes.get(..STATE_AT as usize).unwrap_or_default());
        page.at = HEADER_SIZE - 8;
        page.put(&sum.to_le_bytes());
        page.bytes
    }

    /// Where in the file the state stands, and its bytes; the only part that changes, and outside
    /// the check.
    pub fn encode_state(state: State) -> (u64, [u8; 16]) {
        let (word, count) = match state {
            State::Open => (0u64, 0),
            State::Finished(count) => (1, count),
            State::Stopped(count) => (2, count),
        };
        let mut bytes = [0; 16];
        for (to, from) in
            bytes.iter_mut().zip(word.to_le_bytes().into_iter().chain(count.to_le_bytes()))
        {
            *to = from;
        }
        (STATE_AT, bytes)
    }

    /// Reads a page.
    ///
    /// # Errors
    /// When it is not ours, newer, or damaged.
    pub fn decode(bytes: &[u8; HEADER_SIZE]) -> Result<Self, BadHeader> {
        let mut page = Page { bytes: *bytes, at: 0 };
        if page.take::<8>() != MAGIC {
            return Err(BadHeader::Foreign);
        }
        let version = u16::from_le_bytes(page.take());
        if version > LAYOUT {
            return Err(BadHeader::Newer(version));
        }
        let sizes = (u16::from_le_bytes(page.take()), u32::from_le_bytes(page.take()));
        let written = u64::from_le_bytes(Page { bytes: *bytes, at: HEADER_SIZE - 8 }.take());
        if version == 0
            || sizes != (64, 4096)
            || written != sum(bytes.get(..STATE_AT as usize).unwrap_or_default())
        {
            return Err(BadHeader::Damaged);
        }
        let file = u64::from_le_bytes(page.take());
        let pid = u32::from_le_bytes(page.take());
        let role = match u32::from_le_bytes(page.take()) {
            0 => Role::Client,
            1 => Role::Nemesis,
            2 => Role::Resource,
            _ => return Err(BadHeader::Damaged),
        };
        let clocks = [(); 3].map(|()| u64::from_le_bytes(page.take()));
        let boot = u128::from_le_bytes(page.take());
        let step = u64::from_le_bytes(page.take());
        page.at = 128;
        let [host, program, label] = [(); 3].map(|()| page.take_text());
        let count = Page { bytes: *bytes, at: STATE_AT as usize + 8 }.take();
        let state = match u64::from_le_bytes(page.take()) {
            0 => State::Open,
            1 => State::Finished(u64::from_le_bytes(count)),
            2 => State::Stopped(u64::from_le_bytes(count)),
            _ => return Err(BadHeader::Damaged),
        };
        Ok(Self { file, pid, role, clocks, boot, step, host, program, label, state })
    }

    /// What to add to this file's times to get Unix time.
    pub fn to_unix_ns(&self) -> i64 {
        self.clocks[2].wrapping_sub(self.clocks[0]) as i64
    }
}

/// A cursor over the page; reading past its end gives zeros.
struct Page {
    bytes: [u8; HEADER_SIZE],
    at: usize,
}

impl Page {
    fn put(&mut self, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(self.at).zip(bytes) {
            *to = *from;
        }
        self.at += bytes.len();
    }

    /// A text of at most 64 bytes, cut at a character's boundary.
    fn put_text(&mut self, text: &str) {
        let mut end = text.len().min(TEXT);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let start = self.at;
        self.put(text.get(..end).unwrap_or_default().as_bytes());
        self.at = start + TEXT;
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        for (to, from) in out.iter_mut().zip(self.bytes.iter().skip(self.at)) {
            *to = *from;
        }
        self.at += N;
        out
    }

    fn take_text(&mut self) -> String {
        let bytes = self.take::<TEXT>();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(TEXT);
        String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
    }
}

/// FNV-1a.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| {
        (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            file: 11,
            pid: 22,
            role: Role::Resource,
            clocks: [100, 90, 1_000],
            boot: 7 << 100,
            step: 1 << 20,
            host: "h".repeat(64),
            program: "worker".into(),
            label: "client 3".into(),
            state: State::Finished(5),
        }
    }

    #[test]
    fn a_header_reads_back() {
        for role in [Role::Client, Role::Nemesis, Role::Resource] {
            for state in [State::Open, State::Finished(9), State::Stopped(1 << 40)] {
                let header = Header { role, state, ..header() };
                assert_eq!(Header::decode(&header.encode()), Ok(header));
            }
        }
    }

    #[test]
    fn the_state_can_be_written_alone() {
        let mut page = header().encode();
        let (at, bytes) = Header::encode_state(State::Stopped(77));
        page[at as usize..][..16].copy_from_slice(&bytes);
        assert_eq!(Header::decode(&page).map(|h| h.state), Ok(State::Stopped(77)));
    }

    #[test]
    fn texts_are_cut_at_a_character() {
        let long = Header { label: format!("{}é", "x".repeat(63)), ..header() };
        assert_eq!(Header::decode(&long.encode()).unwrap().label, "x".repeat(63));
    }

    #[test]
    fn what_is_not_ours_is_told_apart() {
        let good = header().encode();
        let with = |at: usize, byte: u8| {
            let mut page = good;
            page[at] = byte;
            Header::decode(&page)
        };
        assert_eq!(with(0, b'X'), Err(BadHeader::Foreign));
        assert_eq!(with(8, 2), Err(BadHeader::Newer(2)));
        assert_eq!(with(8, 0), Err(BadHeader::Damaged));
        assert_eq!(with(10, 32), Err(BadHeader::Damaged));
        assert_eq!(with(200, 1), Err(BadHeader::Damaged));
        assert_eq!(with(320, 3), Err(BadHeader::Damaged));
        assert_eq!(with(HEADER_SIZE - 1, 1), Err(BadHeader::Damaged));
        assert!(with(4000, 1).is_ok(), "the rest of the page is for later layouts");
    }

    #[test]
    fn wall_time_is_the_distance_of_two_clocks() {
        assert_eq!(header().to_unix_ns(), 900);
        assert_eq!(Header { clocks: [10, 0, 3], ..header() }.to_unix_ns(), -7);
    }
}
