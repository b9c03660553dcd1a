//! Several histories as one, in the order of time.

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, VecDeque};
use std::path::Path;

use super::header::{Header, Role};
use super::name::{Label, LockId, NameTable, NameTaken};
use super::reader::{ReadError, Reader};
use super::record::{Record, What};

/// One of the merged files.
#[derive(Clone, Debug)]
pub struct Source {
    /// Whose it is.
    pub header: Header,
    /// What was added to its times so that they compare with the first file's: zero on one boot of
    /// one machine.
    pub shift_ns: i64,
}

/// What a merge yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// An event of a source, with its number in that file.
    Event(u32, u64, Record),
    /// That source wrote nothing after this time; what still comes of it are answers that skew
    /// delays.
    Last(u32, u64),
    /// That source holds nothing more; its last event was at this time.
    End(u32, u64),
}

/// Merges histories by time; names are taken out and kept in [`Merge::names`].
///
/// At equal times what ends a hold comes before what begins one, so that a hand-over within one
/// tick of the clock is none too early. `skew_ns` says how far the clock of any machine may be from
/// the true time: every answer is taken twice as much later, which makes each call's window wider
/// and each hold's certain part smaller, never the other way; and what a resource did four times as
/// much, so that all that was before it is known by then.
pub struct Merge {
    streams: Vec<Stream>,
    heads: BinaryHeap<Reverse<(u64, u8, u32)>>,
    names: NameTable,
    delay_ns: u64,
}

struct Stream {
    reader: Reader,
    source: Source,
    /// Answers that skew delays, and the call that was read past them.
    delayed: VecDeque<(u64, Record)>,
    ahead: Option<(u64, Record)>,
    head: Option<(u64, Record)>,
    last_at: u64,
    /// When its last record was written, and whether that was told.
    wrote_at: u64,
    ended: bool,
}

impl Merge {
    /// Merges the histories.
    ///
    /// # Errors
    /// When one of them is no history.
    pub fn open<P: AsRef<Path>>(paths: &[P], skew_ns: u64) -> Result<Self, ReadError> {
        let readers = paths.iter().map(Reader::open).collect::<Result<Vec<_>, _>>()?;
        Self::new(readers, skew_ns)
    }

    /// Merges what the readers read.
    ///
    /// # Errors
    /// When the first records of one of them cannot be read.
    pub fn new(readers: Vec<Reader>, skew_ns: u64) -> Result<Self, ReadError> {
        let first = readers.first().map(|r| r.header().clone());
        let streams = readers.into_iter().map(|reader| {
            let header = reader.header().clone();
            let shift_ns = match &first {
                Some(first) if first.boot != header.boot => {
                    header.to_unix_ns().saturating_sub(first.to_unix_ns())
                }
                _ => 0,
            };
            let (delayed, source) = (VecDeque::new(), Source { header, shift_ns });
            Stream {
                reader,
                source,
                delayed,
                ahead: None,
                head: None,
                last_at: 0,
                wrote_at: 0,
                ended: false,
            }
        });
        let delay_ns = skew_ns.saturating_mul(2);
        let mut merge = Self {
            streams: streams.collect(),
            heads: BinaryHeap::new(),
            names: NameTable::default(),
            delay_ns,
        };
        for (stream, number) in merge.streams.iter_mut().zip(0..) {
            merge.heads.push(Reverse(stream.advance(number, delay_ns, &mut merge.names)?));
        }
        Ok(merge)
    }

    /// The files, by number.
    pub fn sources(&self) -> impl Iterator<Item = &Source> {
        self.streams.iter().map(|s| &s.source)
    }

    /// Whether the files come from more than one boot of one machine, so that only a given skew
    /// makes them comparable.
    pub fn several_machines(&self) -> bool {
        self.streams.iter().any(|s| {
            self.streams
                .first()
                .is_some_and(|first| first.source.header.boot != s.source.header.boot)
        })
    }

    /// The names seen so far.
    pub fn names(&self) -> &NameTable {
        &self.names
    }

    /// The names that were completed since this was last asked; each comes before the first event
    /// that needs it.
    pub fn new_names(&mut self) -> Vec<(LockId, Label)> {
        self.names.take_fresh()
    }

    /// How many files end with a record that a kill cut off, and how many records of unknown kinds
    /// were passed over; so far.
    pub fn damage(&self) -> (u64, u64) {
        let torn = self.streams.iter().filter(|s| s.reader.torn()).count();
        (torn as u64, self.streams.iter().map(|s| s.reader.foreign()).sum())
    }

    /// How many open files of releases that did not say how long they are may have been cut short;
    /// so far.
    pub fn may_be_cut(&self) -> u64 {
        self.streams.iter().filter(|s| s.reader.may_be_cut()).count() as u64
    }

    /// The next event of all files.
    ///
    /// # Errors
    /// When a file is damaged, cut short, or its clock goes back.
    #[allow(clippy::should_implement_trait)] // it is fallible, and stays where it is at the end
    pub fn next(&mut self) -> Result<Option<Item>, ReadError> {
        let Some(mut top) = self.heads.peek_mut() else { return Ok(None) };
        let Reverse((_, _, number)) = *top;
        let Some(stream) = self.streams.get_mut(number as usize) else { return Ok(None) };
        let Some((index, record)) = stream.head.take() else {
            PeekMut::pop(top);
            return Ok(Some(Item::End(number, stream.last_at)));
        };
        let last = (record.what == What::Name).then_some(record.at);
        stream.last_at = record.at;
        // The stream's next event takes the place of this one, which is cheaper than taking out and
        // putting in.
        *top = Reverse(stream.advance(number, self.delay_ns, &mut self.names)?);
        Ok(Some(last.map_or(Item::Event(number, index, record), |at| Item::Last(number, at))))
    }
}

impl Stream {
    /// Reads up to the next event; answers when it is this stream's turn. Its end is a turn too.
    fn advance(
        &mut self,
        number: u32,
        delay_ns: u64,
        names: &mut NameTable,
    ) -> Result<(u64, u8, u32), ReadError> {
        self.head = self.next(delay_ns, |record| names.take(number, record))?;
        Ok(match self.head {
            Some((_, record)) => (record.at, rank(record.what), number),
            None => (self.last_at, u8::MAX, number),
        })
    }

    /// The next event, in the order that skew allows.
    fn next(
        &mut self,
        delay_ns: u64,
        mut name: impl FnMut(&Record) -> Result<(), NameTaken>,
    ) -> Result<Option<(u64, Record)>, ReadError> {
        loop {
            if self.ahead.is_none() {
                self.ahead = self.read(&mut name)?;
            }
            // Names are not yielded; this one says that nothing was written after it.
            if self.ahead.is_none()
                && !self.delayed.is_empty()
                && !std::mem::replace(&mut self.ended, true)
            {
                self.ahead =
                    Some((u64::MAX, Record { at: self.wrote_at, ..Record::new(What::Name) }));
            }
            let due = match (self.delayed.front(), &self.ahead) {
                (Some((_, answer)), Some((_, ahead))) => answer.at < ahead.at,
                (Some(_), None) => true,
                (None, _) => false,
            };
            if due {
                return Ok(self.delayed.pop_front());
            }
            match self.ahead.take() {
                Some((index, mut record)) if delay_ns > 0 && self.comes_later(record.what) => {
                    let resource = self.source.header.role == Role::Resource;
                    record.at = record.at.saturating_add(if resource {
                        delay_ns.saturating_mul(2)
                    } else {
                        delay_ns
                    });
                    self.delayed.push_back((index, record));
                }
                next => return Ok(next),
            }
        }
    }

    /// Whether skew delays this: an answer, unless it says that a hold is over, which is certain
    /// from then on.
    fn comes_later(&self, what: What) -> bool {
        self.source.header.role == Role::Resource && what != What::Name
            || what.is_answer() && what != What::RenewLost
    }

    /// The next record that is no name, on the first file's clock.
    fn read(
        &mut self,
        name: &mut impl FnMut(&Record) -> Result<(), NameTaken>,
    ) -> Result<Option<(u64, Record)>, ReadError> {
        while let Some((index, mut record)) = self.reader.next()? {
            if record.what == What::Name {
                name(&record)
                    .map_err(|e| ReadError::NameTaken(self.reader.path().to_owned(), e))?;
                continue;
            }
            let shift = self.source.shift_ns;
            record.at = record.at.saturating_add_signed(shift);
            self.wrote_at = record.at;
            if record.deadline != 0 && record.what != What::ResourceWrite {
                record.deadline = record.deadline.saturating_add_signed(shift);
            }
            return Ok(Some((index, record)));
        }
        Ok(None)
    }
}

/// At equal times: ends, then what neither ends nor begins, then beginnings.
fn rank(what: What) -> u8 {
    match what {
        What::ReleaseCalled | What::Lost | What::RenewLost | What::Kill | What::Name => 0,
        What::Acquired | What::Converted => 2,
        _ => 1,
    }
}
