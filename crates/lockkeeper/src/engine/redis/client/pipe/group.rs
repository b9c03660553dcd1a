//! Requests for free locks that leave in one call, `native/many.lua`. A group is a list of requests
//! until it is written; whoever is alone in it goes by its own script.

use tokio::sync::oneshot;

use super::{Broken, Outcome};
use crate::engine::redis::client::texts::length_of_first;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::{Call, Which, head};

/// How many names travel together: the server does nothing else meanwhile.
const NAMES_MAX: usize = 32;
/// And in how many bytes, where names are long.
const BYTES_MAX: usize = 16 << 10;
/// The keys of a request: record, last and line.
const KEYS: usize = 3;
/// Behind them: place, time to live, and until when.
const ARGUMENTS: usize = 3;

/// The letter of `native/many.lua` that means something here; the others mean the same as in an
/// answer of `native/take.lua`.
const GRANTED: u8 = b'G';

/// What each is told where the server refused the call: nothing was done for most of them, and
/// whose fault it was is not known. As if it lacked the script, so each asks by its own, which is
/// brought along; one that was granted all the same is told so then (R3).
const REFUSED: &str = "NOSCRIPT many names in one call were refused";

/// One request of a group.
struct Asked {
    /// Where its texts begin; where each of its keys ends, and its arguments.
    begins: usize,
    ends: [usize; KEYS + 1],
    reply: Option<oneshot::Sender<Outcome>>,
}

impl Asked {
    /// One of its keys, or its arguments, in the bytes of its group.
    fn part<'a>(&self, bytes: &'a [u8], at: usize) -> &'a [u8] {
        let end = |at: usize| self.ends.get(at).copied().unwrap_or(self.begins);
        let begins = at.checked_sub(1).map_or(self.begins, end);
        bytes.get(begins..end(at)).unwrap_or_default()
    }
}

/// Requests that leave together.
#[derive(Default)]
pub(super) struct Group {
    /// The texts of all of them, as they are sent.
    bytes: Vec<u8>,
    asked: Vec<Asked>,
}

impl Group {
    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.asked.is_empty()
    }

    pub(super) fn is_full(&self) -> bool {
        self.asked.len() >= NAMES_MAX || self.bytes.len() >= BYTES_MAX
    }

    /// Whether one of them asks for the lock of this record, as that is sent.
    pub(super) fn asks_for(&self, record: &[u8]) -> bool {
        self.asked.iter().any(|asked| asked.part(&self.bytes, 0) == record)
    }

    pub(super) fn push(&mut self, call: &Call, reply: oneshot::Sender<Outcome>) {
        let begins = self.bytes.len();
        self.bytes.extend_from_slice(call.keys.body());
        let (mut at, mut ends) = (begins, [begins; KEYS + 1]);
        for end in &mut ends[..KEYS] {
            at += self.bytes.get(at..).map_or(0, length_of_first);
            *end = at;
        }
        self.bytes.extend_from_slice(call.arguments.body());
        ends[KEYS] = self.bytes.len();
        self.asked.push(Asked { begins, ends, reply: Some(reply) });
    }

    /// Appends the call to what goes to the socket; with its text where the server lacks it.
    pub(super) fn encode(&self, known: bool, out: &mut Vec<u8>) {
        let names = self.asked.len();
        head(Which::Many, known, (KEYS * names, ARGUMENTS * names), out);
        // The last numbers, the records, the lines, and the arguments.
        for part in [1, 0, 2, KEYS] {
            for asked in &self.asked {
                out.extend_from_slice(asked.part(&self.bytes, part));
            }
        }
    }

    /// Appends one of them by its own script, and says whose answer comes then.
    pub(super) fn encode_one(
        &mut self,
        at: usize,
        out: &mut Vec<u8>,
    ) -> Option<oneshot::Sender<Outcome>> {
        let asked = self.asked.get_mut(at)?;
        let reply = asked.reply.take()?;
        head(Which::Take, true, (KEYS, ARGUMENTS), out);
        for part in 0..=KEYS {
            out.extend_from_slice(asked.part(&self.bytes, part));
        }
        Some(reply)
    }

    /// Deals out an answer.
    pub(super) fn tell(self, order: u64, value: &Value) {
        let said = Said::of(value, self.asked.len());
        let other = match value {
            Value::Error(_) => Value::Error(REFUSED.into()),
            // What is no answer is so for each of them.
            garbage => garbage.clone(),
        };
        for (at, asked) in self.asked.into_iter().enumerate() {
            if let Some(reply) = asked.reply {
                let one = said.as_ref().map_or_else(|| other.clone(), |said| said.one(at));
                // Whoever asked may have left.
                _ = reply.send(Ok((order, one)));
            }
        }
    }

    /// There is no answer.
    pub(super) fn broken(self, why: &Broken) {
        for reply in self.asked.into_iter().filter_map(|asked| asked.reply) {
            // Whoever asked may have left.
            _ = reply.send(Err(why.clone()));
        }
    }
}

/// An answer to a group.
struct Said<'a> {
    number: &'a Value,
    letters: &'a [u8],
    time: &'a Value,
}

impl<'a> Said<'a> {
    /// `None`: it is no answer to so many.
    fn of(value: &'a Value, count: usize) -> Option<Self> {
        let [number, letters, time] = value.items() else { return None };
        let letters = letters.bytes().filter(|letters| letters.len() == count)?;
        Some(Self { number, letters, time })
    }

    /// The same as the script of one name says it.
    fn one(&self, at: usize) -> Value {
        match self.letters.get(at).copied().unwrap_or_default() {
            GRANTED => self.number.clone(),
            // Late, or in the way; and what is neither is no answer to anybody.
            letter => Value::Array(vec![Value::Text(vec![letter]), self.time.clone()]),
        }
    }
}
