//! The reading side of one file.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::{fmt, io};

use super::header::{BadHeader, HEADER_SIZE, Header, LAYOUT, State};
use super::record::{Decoded, RECORD_SIZE, Record};

/// How many records are read at a time.
const BLOCK: usize = 1024;

/// Why a history cannot be judged.
#[derive(Debug)]
pub enum ReadError {
    /// It cannot be opened or read.
    Io(PathBuf, io::Error),
    /// It is no history, or of a newer layout.
    Header(PathBuf, BadHeader),
    /// It is shorter than a header.
    TooShort(PathBuf, u64),
    /// It was marked whole, and some of its records are missing.
    CutShort {
        /// Which file.
        path: PathBuf,
        /// How many records it should have.
        whole: u64,
        /// How many are there.
        found: u64,
    },
    /// It is open, as a kill leaves it, and ends inside of a step that is full to there: records
    /// that came after are missing.
    CutOpen {
        /// Which file.
        path: PathBuf,
        /// How many records are there.
        found: u64,
    },
    /// Records in its middle cannot be read; without them the rest proves nothing.
    Damaged {
        /// Which file.
        path: PathBuf,
        /// The first such record.
        first: u64,
    },
    /// Its clock goes back.
    ClockBack {
        /// Which file.
        path: PathBuf,
        /// The record that is earlier than the one before it.
        index: u64,
        /// By how many nanoseconds.
        by_ns: u64,
    },
    /// Two names have one id.
    NameTaken(PathBuf, super::name::NameTaken),
}

impl ReadError {
    /// 64 when the file is no (whole) history or is not there, 69 when it could not be read.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Io(_, source)
                if !matches!(
                    source.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::IsADirectory
                ) =>
            {
                69
            }
            _ => 64,
        }
    }
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, source) if source.kind() == io::ErrorKind::NotFound => {
                write!(f, "{}: there is no such file", path.display())
            }
            Self::Io(path, source) => write!(f, "{}: cannot be read: {source}", path.display()),
            Self::Header(path, why) => write!(f, "{}: not a history: {why}", path.display()),
            Self::TooShort(path, 0) => write!(f, "{}: not a history: it is empty", path.display()),
            Self::TooShort(path, bytes) => write!(
                f,
                "{}: not a history: it has {bytes} bytes, fewer than a header",
                path.display()
            ),
            Self::CutShort { path, whole, found } => {
                write!(
                    f,
                    "{}: not a whole history: it was finished with {whole} records and {found} are \
                     here",
                    path.display()
                )
            }
            Self::CutOpen { path, found } => {
                write!(
                    f,
                    "{}: not a whole history: its process was killed or runs, and what came after \
                     record {found} is cut off",
                    path.display()
                )
            }
            Self::Damaged { path, first } => {
                write!(
                    f,
                    "{}: not a whole history: record {first} cannot be read and others follow it",
                    path.display()
                )
            }
            Self::ClockBack { path, index, by_ns } => write!(
                f,
                "{}: not a history that can be judged: its clock goes back by {} µs at record \
                 {index}",
                path.display(),
                by_ns.div_ceil(1000)
            ),
            Self::NameTaken(path, taken) => write!(f, "{}: {taken}", path.display()),
        }
    }
}

impl std::error::Error for ReadError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, source) => Some(source),
            _ => None,
        }
    }
}

/// Reads one history from its first record to its last, in blocks, without mapping it: a file that
/// shrinks meanwhile is an error and not a signal.
pub struct Reader {
    path: PathBuf,
    file: File,
    header: Header,
    block: Vec<u8>,
    /// Bytes of the block already handed out, and filled.
    taken: usize,
    filled: usize,
    at_end: bool,
    index: u64,
    last_at: u64,
    unreadable: Option<u64>,
    /// Whether the last place read was never written to.
    unwritten: bool,
    foreign: u64,
}

impl Reader {
    /// Opens a history.
    ///
    /// # Errors
    /// When it cannot be read or does not begin as a history does.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref().to_owned();
        let io = |e| ReadError::Io(path.clone(), e);
        let mut file = File::open(&path).map_err(io)?;
        let mut page = [0; HEADER_SIZE];
        let filled = fill(&mut file, &mut page).map_err(io)?;
        let header = match Header::decode(&page) {
            _ if filled == 0 => return Err(ReadError::TooShort(path, 0)),
            Err(BadHeader::Foreign) => return Err(ReadError::Header(path, BadHeader::Foreign)),
            _ if filled < HEADER_SIZE => return Err(ReadError::TooShort(path, filled as u64)),
            Err(bad) => return Err(ReadError::Header(path, bad)),
            Ok(header) => header,
        };
        let block = vec![0; BLOCK * RECORD_SIZE];
        let start = Self {
            path,
            file,
            header,
            block,
            taken: 0,
            filled: 0,
            at_end: false,
            index: 0,
            last_at: 0,
            unreadable: None,
            unwritten: false,
            foreign: 0,
        };
        Ok(start)
    }

    /// The first page.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where it was read from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many records of kinds unknown to layout version 1 were passed over.
    pub fn foreign(&self) -> u64 {
        self.foreign
    }

    /// Whether the last record was begun and not finished, as a kill leaves it; known at the end.
    pub fn torn(&self) -> bool {
        self.unreadable.is_some()
    }

    /// Whether it is open and its last place is written to, and nobody said how long it should be;
    /// known at the end.
    pub fn may_be_cut(&self) -> bool {
        self.header.state == State::Open
            && self.header.step == 0
            && !self.unwritten
            && self.index > 0
    }

    /// Whether an open file ends where no step ends, and is full to there. What was never written
    /// to has no record behind it.
    fn ends_in_a_step(&self) -> bool {
        let bytes = self.index * RECORD_SIZE as u64 + self.filled.saturating_sub(self.taken) as u64;
        self.header.step > 0 && !self.unwritten && !bytes.is_multiple_of(self.header.step)
    }

    /// The next record and its number, or `None` at the end.
    ///
    /// # Errors
    /// When the file is damaged, cut short, or its clock goes back.
    #[allow(clippy::should_implement_trait)] // it is fallible, and stays where it is at the end
    pub fn next(&mut self) -> Result<Option<(u64, Record)>, ReadError> {
        loop {
            let Some(decoded) = self.step()? else { return Ok(None) };
            let index = self.index;
            self.index += 1;
            self.unwritten = decoded == Decoded::Empty;
            let record = match decoded {
                Decoded::Whole(record) => record,
                Decoded::Foreign(_) => {
                    self.foreign += 1;
                    continue;
                }
                Decoded::Torn | Decoded::Empty => {
                    let first = *self.unreadable.get_or_insert(index);
                    if self.header.state != State::Open {
                        return Err(ReadError::Damaged { path: self.path.clone(), first });
                    }
                    continue;
                }
            };
            if let Some(first) = self.unreadable {
                return Err(ReadError::Damaged { path: self.path.clone(), first });
            }
            if record.at < self.last_at {
                return Err(ReadError::ClockBack {
                    path: self.path.clone(),
                    index,
                    by_ns: self.last_at - record.at,
                });
            }
            self.last_at = record.at;
            return Ok(Some((index, record)));
        }
    }

    /// The next 64 bytes, decoded; `None` at the end of what the file should hold.
    fn step(&mut self) -> Result<Option<Decoded>, ReadError> {
        if let State::Finished(whole) | State::Stopped(whole) = self.header.state
            && self.index >= whole
        {
            return Ok(None);
        }
        if self.taken + RECORD_SIZE > self.filled && !self.refill()? {
            return match self.header.state {
                State::Finished(whole) | State::Stopped(whole) => {
                    Err(ReadError::CutShort { path: self.path.clone(), whole, found: self.index })
                }
                State::Open if self.ends_in_a_step() => {
                    Err(ReadError::CutOpen { path: self.path.clone(), found: self.index })
                }
                State::Open => Ok(None),
            };
        }
        let mut bytes = [0; RECORD_SIZE];
        if let Some(from) = self.block.get(self.taken..self.taken + RECORD_SIZE) {
            bytes.copy_from_slice(from);
        }
        self.taken += RECORD_SIZE;
        Ok(Some(Record::decode(&bytes, self.header.file, self.index)))
    }

    /// Reads the next block; false at the end of the file. Less than a record at the end counts as
    /// nothing.
    fn refill(&mut self) -> Result<bool, ReadError> {
        if !self.at_end {
            self.filled = fill(&mut self.file, &mut self.block)
                .map_err(|e| ReadError::Io(self.path.clone(), e))?;
            self.at_end = self.filled < self.block.len();
            self.taken = 0;
            return Ok(self.filled >= RECORD_SIZE);
        }
        Ok(false)
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while let Some(rest) = buffer.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match file.read(rest) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(filled)
}

/// Kept here so that a change of the layout's version is a change of its reader.
const _: () = assert!(LAYOUT == 1);
