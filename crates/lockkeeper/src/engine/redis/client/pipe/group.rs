//! What may leave in one call, `native/many.lua`: requests for free locks, and releases, of
//! different names. A group is a list of requests until it is written; whoever is alone in it goes
//! by its own script.

use std::hash::{DefaultHasher, Hasher as _};

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::{Broken, Outcome};
use crate::engine::redis::client::texts::{length_of_first, push_number};
use crate::engine::redis::resp::{Command, Value};
use crate::engine::redis::script::{Call, Which, head};

/// How many names travel together: the server does nothing else meanwhile.
const NAMES_MAX: usize = 32;
/// And in how many bytes, where names are long.
const BYTES_MAX: usize = 16 << 10;
/// Each request on a short way has so many texts: the keys, and behind them the arguments.
const TEXTS: usize = 6;

/// A request on its short way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Short {
    /// For a free lock: record, last and line; place, time to live, and until when.
    Take,
    /// A release: record, line, last and watch; how its record begins, and what `last` says.
    Give,
}

impl Short {
    /// Which of them a call is, if it is one.
    pub(in crate::engine) fn of(call: &Call) -> Option<Self> {
        match call.script {
            Which::Take => Some(Self::Take),
            // With nothing else to do, and where nothing is known to be in the way.
            Which::Release if call.arguments.len() == 2 => {
                call.arguments.get(1).is_some_and(|bare| !bare.is_empty()).then_some(Self::Give)
            }
            _ => None,
        }
    }

    fn script(self) -> Which {
        match self {
            Self::Take => Which::Take,
            Self::Give => Which::Release,
        }
    }

    fn keys(self) -> usize {
        match self {
            Self::Take => 3,
            Self::Give => 4,
        }
    }
}

/// The letters of `native/many.lua` that mean something here; the others mean the same as in an
/// answer of `native/take.lua`.
const GRANTED: u8 = b'G';
const GIVEN_BACK: u8 = b'D';
const ALONE: u8 = b'W';

/// One request of a group.
struct Asked {
    short: Short,
    /// Equal for the same name.
    mark: u64,
    /// Where its texts begin, and where each of them ends.
    begins: usize,
    ends: [usize; TEXTS],
    reply: Option<oneshot::Sender<Outcome>>,
    /// The same release once more, which was sent behind the group.
    copy: Option<u64>,
}

impl Asked {
    /// Some of its texts, in the bytes of its group.
    fn texts<'a>(&self, bytes: &'a [u8], from: usize, to: usize) -> &'a [u8] {
        let end = |at: usize| self.ends.get(at).copied().unwrap_or(self.begins);
        let begins = from.checked_sub(1).map_or(self.begins, end);
        bytes.get(begins..end(to.saturating_sub(1))).unwrap_or_default()
    }

    /// Appends the request by its own script.
    fn encode(&self, bytes: &[u8], out: &mut Vec<u8>) {
        let keys = self.short.keys();
        head(self.short.script(), true, (keys, TEXTS - keys), out);
        out.extend_from_slice(self.texts(bytes, 0, TEXTS));
    }
}

/// Requests that leave together.
#[derive(Default)]
pub(super) struct Group {
    /// The texts of all of them, as they are sent.
    bytes: Vec<u8>,
    asked: Vec<Asked>,
    takes: usize,
    /// When the first of them came.
    since: Option<Instant>,
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

    pub(super) fn gives(&self) -> usize {
        self.asked.len() - self.takes
    }

    pub(super) fn since(&self) -> Option<Instant> {
        self.since
    }

    /// Whether a request may join. A name is there once; a request may stand behind the release of
    /// its name, because the server gives back first.
    pub(super) fn admits(&self, short: Short, call: &Call) -> bool {
        let mark = mark(call.keys.body());
        let before = self.asked.iter().filter(|asked| asked.mark == mark);
        before.map(|asked| asked.short).all(|before| (before, short) == (Short::Give, Short::Take))
    }

    pub(super) fn push(
        &mut self,
        short: Short,
        call: &Call,
        now: Instant,
        reply: oneshot::Sender<Outcome>,
    ) {
        let begins = self.bytes.len();
        self.bytes.extend_from_slice(call.keys.body());
        self.bytes.extend_from_slice(call.arguments.body());
        let (mut at, mut ends) = (begins, [begins; TEXTS]);
        for end in &mut ends {
            at += self.bytes.get(at..).map_or(0, length_of_first);
            *end = at;
        }
        self.takes += usize::from(short == Short::Take);
        self.since.get_or_insert(now);
        let mark = mark(call.keys.body());
        self.asked.push(Asked { short, mark, begins, ends, reply: Some(reply), copy: None });
    }

    /// Appends the call to what goes to the socket; with its text where the server lacks it.
    pub(super) fn encode(&mut self, known: bool, out: &mut Vec<u8>) {
        // As the server answers.
        self.asked.sort_by_key(|asked| asked.short == Short::Give);
        let (takes, gives) = self.asked.split_at(self.takes);
        let counts = (3 * takes.len() + 2 * gives.len(), 1 + 3 * takes.len() + 2 * gives.len());
        head(Which::Many, known, counts, out);
        let texts = |of: &[Asked], from: usize, to: usize, out: &mut Vec<u8>| {
            for asked in of {
                out.extend_from_slice(asked.texts(&self.bytes, from, to));
            }
        };
        // Both lasts, both records, the lines.
        texts(takes, 1, 2, out);
        texts(gives, 2, 3, out);
        texts(gives, 0, 1, out);
        texts(takes, 0, 1, out);
        texts(takes, 2, 3, out);
        push_number(out, takes.len() as u64);
        texts(takes, Short::Take.keys(), TEXTS, out);
        texts(gives, Short::Give.keys(), TEXTS, out);
    }

    /// Appends what is alone in it by its own script, and says whose answer comes then.
    pub(super) fn encode_alone(&mut self, out: &mut Vec<u8>) -> Option<oneshot::Sender<Outcome>> {
        let [alone] = self.asked.as_mut_slice() else { return None };
        alone.encode(&self.bytes, out);
        alone.reply.take()
    }

    /// The releases that are about a name of a command, and were not sent once more yet. Each gets
    /// a number.
    pub(super) fn copies(
        &mut self,
        command: &Command,
        mut number: impl FnMut() -> u64,
    ) -> Vec<(u64, Vec<u8>)> {
        let named = |asked: &Asked| command.texts().any(|text| mark(text) == asked.mark);
        let mut copies = Vec::new();
        for asked in self.asked.iter_mut().skip(self.takes) {
            if asked.copy.is_none() && named(asked) {
                let (copy, mut message) = (number(), Vec::new());
                asked.encode(&self.bytes, &mut message);
                asked.copy = Some(copy);
                copies.push((copy, message));
            }
        }
        copies
    }

    /// What has to be asked by its own script now: releases that something is in the way of, and
    /// all of a call that the server refused as a whole.
    pub(super) fn again(&mut self, value: &Value) -> Vec<Again> {
        let said = Said::of(value, self.asked.len());
        let refused = matches!(value, Value::Error(_));
        let mut again = Vec::new();
        for (at, asked) in self.asked.iter_mut().enumerate() {
            let alone = asked.short == Short::Give
                && said.as_ref().is_some_and(|said| said.letter(at) == ALONE);
            if (refused || alone)
                && let Some(reply) = asked.reply.take()
            {
                let mut message = Vec::new();
                asked.encode(&self.bytes, &mut message);
                again.push(Again { short: asked.short, copy: asked.copy, message, reply });
            }
        }
        again
    }

    /// Deals out an answer.
    pub(super) fn tell(self, order: u64, value: &Value) {
        let said = Said::of(value, self.asked.len());
        for (at, asked) in self.asked.into_iter().enumerate() {
            if let Some(reply) = asked.reply {
                // What is no answer is so for each of them.
                let one = said.as_ref().map_or_else(|| value.clone(), |said| said.one(at));
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

/// A request that goes by its own script now.
pub(super) struct Again {
    pub(super) short: Short,
    /// It was sent once more already.
    pub(super) copy: Option<u64>,
    pub(super) message: Vec<u8>,
    pub(super) reply: oneshot::Sender<Outcome>,
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

    fn letter(&self, at: usize) -> u8 {
        self.letters.get(at).copied().unwrap_or_default()
    }

    /// The same as the script of one name says it.
    fn one(&self, at: usize) -> Value {
        match self.letter(at) {
            GRANTED => self.number.clone(),
            GIVEN_BACK => Value::Integer(1),
            // Late, or in the way; and what is none of these is no answer to anybody.
            letter => Value::Array(vec![Value::Text(vec![letter]), self.time.clone()]),
        }
    }
}

/// Equal for the same name; for two different ones it may be, and then they travel apart.
fn mark(texts: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(texts.get(..length_of_first(texts)).unwrap_or_default());
    hasher.finish()
}
