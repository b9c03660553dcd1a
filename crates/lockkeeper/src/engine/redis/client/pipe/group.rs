//! Requests that leave in one call: for free locks `native/many.lua`, and for releases that are
//! awaited `native/gives.lua`; to members of a quorum `takes.lua` and `gives.lua`. A group is a
//! list of requests until it is written; one alone goes by its own script.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tracing::debug;

use super::{Broken, Outcome};
use crate::engine::redis::client::texts::{Texts, push_number};
use crate::engine::redis::errors;
use crate::engine::redis::resp::Value;
use crate::engine::redis::script::{Call, Which, head};

/// In how many bytes names travel together at most, where they are long.
const BYTES_MAX: usize = 16 << 10;

/// Of what a group asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Kind {
    /// Free locks.
    Take,
    /// That holds are given back, on the short way.
    Give,
    /// Both at a member of a quorum.
    #[cfg(feature = "redlock")]
    QuorumTake,
    #[cfg(feature = "redlock")]
    QuorumGive,
}

/// What of a request goes along in company, by its places there. The rest is found out by its own
/// script.
struct Form {
    /// What many of them call.
    script: Which,
    /// How many names travel together: the server does nothing else meanwhile, for 0.3 ms at most.
    most: usize,
    /// Keys and arguments that are the same for all.
    same: (&'static [usize], &'static [usize]),
    /// Those of each, in their order there.
    own: (&'static [usize], &'static [usize]),
    /// The argument until when it may be carried out, and how far apart these may be. The earliest
    /// counts for all, so a request may be refused so much too early (R3): 10 ms.
    until: Option<(usize, u64)>,
}

impl Kind {
    /// All of them.
    pub(in crate::engine) const ALL: &[Self] = &[
        Self::Take,
        Self::Give,
        #[cfg(feature = "redlock")]
        Self::QuorumTake,
        #[cfg(feature = "redlock")]
        Self::QuorumGive,
    ];

    /// What many of them call.
    pub(in crate::engine) fn together(self) -> Which {
        self.form().script
    }

    /// Whether holds are given back: that never comes too late.
    pub(in crate::engine) fn gives(self) -> bool {
        self.form().until.is_none()
    }

    fn form(self) -> Form {
        match self {
            // Of place, ttl and not_after all; of record, last and line, too.
            Self::Take => Form {
                script: Which::Many,
                most: 32,
                same: (&[], &[1]),
                own: (&[1, 0, 2], &[0]),
                until: Some((2, 625)),
            },
            // Of record, line, last and watch; how the record begins, and what last says.
            Self::Give => Form {
                script: Which::Gives,
                most: 32,
                same: (&[], &[]),
                own: (&[2, 0], &[0, 1]),
                until: None,
            },
            // Of record, last, member, readers, line, signs and turn; of claim, round, ttl,
            // not_after, who, number, first, waits, run, max_ttl and channel.
            #[cfg(feature = "redlock")]
            Self::QuorumTake => Form {
                script: Which::QuorumTakes,
                most: 16,
                same: (&[2], &[2, 8, 9]),
                own: (&[0, 1, 3, 4, 6], &[0, 1, 4, 5, 6]),
                until: Some((3, 10_000)),
            },
            // Of record, line, signs and turn; of claim, round, first and channel.
            #[cfg(feature = "redlock")]
            Self::QuorumGive => Form {
                script: Which::QuorumGives,
                most: 16,
                same: (&[], &[]),
                own: (&[0, 1, 2, 3], &[0, 1, 3]),
                until: None,
            },
        }
    }

    /// What is of this kind, by what it calls.
    pub(in crate::engine) fn of(call: &Call) -> Option<Self> {
        let (keys, arguments) = (call.keys.len(), call.arguments.len());
        match (call.script, keys, arguments) {
            (Which::Take, 3, 3) => Some(Self::Take),
            // Its second is the number that its grant gave. Without one it does not go the short
            // way; and of permits, which others mostly have beside it, the limit stands there.
            (Which::Release, 4, 2) => {
                call.arguments.get(1)?.parse::<u64>().ok().map(|_| Self::Give)
            }
            #[cfg(feature = "redlock")]
            (Which::QuorumTake, 7, 11) => Some(Self::QuorumTake),
            // It waits for nothing then, and lets whoever is first have the lock.
            #[cfg(feature = "redlock")]
            (Which::QuorumGive, 4, 4) => {
                call.arguments.get(2).filter(|first| first.is_empty()).map(|_| Self::QuorumGive)
            }
            _ => None,
        }
    }
}

/// What one is told whose own script is to be asked: something is in its way, or the server refused
/// the whole call, and whose fault that was is not known. One that was granted all the same is told
/// so then (R3).
pub(in crate::engine) const ALONE: &str = "ALONE many names in one call were refused";

/// Whether a server refuses the writes of everybody: it is full, or a replica.
fn refuses_writes(text: &str) -> bool {
    errors::takes_no_writes(text) || text.contains("READONLY ")
}

/// One request of a group.
struct Asked {
    call: Call,
    reply: oneshot::Sender<Outcome>,
}

/// Requests that leave together.
pub(super) struct Group {
    pub(super) kind: Kind,
    asked: VecDeque<Asked>,
    /// How long their texts are.
    bytes: usize,
    /// The earliest time until which one of them may be carried out.
    until: u64,
    /// The latest of these.
    latest: u64,
}

impl Group {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, asked: VecDeque::new(), bytes: 0, until: u64::MAX, latest: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.asked.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.asked.len() >= self.kind.form().most || self.bytes >= BYTES_MAX
    }

    /// Whether one of them is about the lock of this record, as that is sent.
    pub(super) fn is_about(&self, record: &[u8]) -> bool {
        self.asked.iter().any(|asked| asked.call.keys.bodies().next() == Some(record))
    }

    /// Whether it may join.
    pub(super) fn takes(&self, call: &Call) -> bool {
        let Some(Asked { call: first, .. }) = self.asked.front() else { return true };
        let Form { same: (_, same), until, .. } = self.kind.form();
        let in_time = until.is_none_or(|(at, early)| {
            let until = self.until_of(call, at);
            self.latest.max(until).abs_diff(self.until.min(until)) <= early
        });
        in_time && same.iter().all(|at| first.arguments.get(*at) == call.arguments.get(*at))
    }

    /// Until when it may be carried out. What is no time has passed.
    fn until_of(&self, call: &Call, at: usize) -> u64 {
        call.arguments.get(at).and_then(|until| until.parse().ok()).unwrap_or(0)
    }

    pub(super) fn push(&mut self, call: &Call, reply: oneshot::Sender<Outcome>) {
        if let Some((at, _)) = self.kind.form().until {
            let until = self.until_of(call, at);
            self.until = self.until.min(until);
            self.latest = self.latest.max(until);
        }
        self.bytes += call.keys.body().len() + call.arguments.body().len();
        self.asked.push_back(Asked { call: call.clone(), reply });
    }

    /// Appends the call to what goes to the socket; with its text where the server lacks it.
    pub(super) fn encode(&self, known: bool, out: &mut Vec<u8>) {
        let Form { script, same, own, until, .. } = self.kind.form();
        let names = self.asked.len();
        let keys = same.0.len() + own.0.len() * names;
        let arguments = same.1.len() + usize::from(until.is_some()) + own.1.len() * names;
        head(script, known, (keys, arguments), out);
        let calls = || self.asked.iter().map(|asked| &asked.call);
        let first = || calls().take(1);
        let mut push = |texts: &Texts, at: &usize| {
            out.extend_from_slice(texts.bodies().nth(*at).unwrap_or_default());
        };
        same.0.iter().for_each(|at| first().for_each(|call| push(&call.keys, at)));
        own.0.iter().for_each(|at| calls().for_each(|call| push(&call.keys, at)));
        same.1.iter().for_each(|at| first().for_each(|call| push(&call.arguments, at)));
        if until.is_some() {
            push_number(out, self.until);
        }
        for call in calls() {
            for at in own.1 {
                out.extend_from_slice(call.arguments.bodies().nth(*at).unwrap_or_default());
            }
        }
    }

    /// Appends the first by its own script, and says whose answer comes then.
    pub(super) fn encode_first(&mut self, out: &mut Vec<u8>) -> Option<oneshot::Sender<Outcome>> {
        let Asked { call, reply } = self.asked.pop_front()?;
        call.encode(out);
        Some(reply)
    }

    /// Deals out an answer.
    pub(super) fn tell(self, order: u64, value: &Value) {
        let said = Said::of(self.kind, value, self.asked.len());
        let other = match value {
            Value::Error(text) if !refuses_writes(text) => {
                let (names, script) = (self.asked.len(), self.kind.together());
                debug!(error = text, names, ?script, "each of these names is asked about alone");
                Value::Error(ALONE.into())
            }
            // What it refuses to everybody, and what is no answer, is so for each of them.
            all => all.clone(),
        };
        for (at, asked) in self.asked.into_iter().enumerate() {
            let one = said.as_ref().map_or_else(|| other.clone(), |said| said.one(at, &asked.call));
            // Whoever asked may have left.
            _ = asked.reply.send(Ok((order, one)));
        }
    }

    /// There is no answer.
    pub(super) fn broken(self, why: &Broken) {
        for asked in self.asked {
            // Whoever asked may have left.
            _ = asked.reply.send(Err(why.clone()));
        }
    }
}

/// Whether such requests travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Together {
    Never,
    /// The first brings the script along.
    Anew,
    Known,
}

/// For how long each goes by itself after a server refused a call of many for what it is. One name
/// may have been the reason, and where all are, a refusal now and then costs little.
const ALONE_FOR: Duration = Duration::from_secs(10);

/// A group that others may join.
pub(super) struct Open {
    pub(super) together: Together,
    /// When such a call was refused last.
    refused: Option<Instant>,
    pub(super) group: Group,
}

impl Open {
    fn new(kind: Kind) -> Self {
        Self { together: Together::Never, refused: None, group: Group::new(kind) }
    }

    /// Whether they travel together now.
    pub(super) fn travels(&self) -> bool {
        let over = |refused: Instant| refused.elapsed() >= ALONE_FOR;
        self.together != Together::Never && self.refused.is_none_or(over)
    }

    /// A call of many was answered with this error.
    pub(super) fn failed(&mut self, text: &str) {
        if text.starts_with("NOSCRIPT") {
            self.together = Together::Anew;
        } else if is_about_many(text) {
            self.refused = Some(Instant::now());
        }
    }
}

/// Whether a call of many names was refused for what it is, and so would be the next: the server's
/// user may not, names are in different slots, or one name's key is in the way of all.
fn is_about_many(text: &str) -> bool {
    let words = ["NOPERM", "CROSSSLOT", "MOVED", "CLUSTERDOWN"];
    // Before version 7 a server that takes no writes for now says so inside of ERR.
    let is_error = text.starts_with("ERR") && !refuses_writes(text);
    is_error || words.iter().any(|word| text.starts_with(word))
}

/// What gathers.
pub(super) struct Company {
    gives: Open,
    takes: Open,
    /// Since when.
    pub(super) since: Instant,
}

impl Company {
    pub(super) fn new() -> Self {
        let (gives, takes) = (Open::new(Kind::Give), Open::new(Kind::Take));
        Self { gives, takes, since: Instant::now() }
    }

    pub(super) fn open(&mut self, kind: Kind) -> &mut Open {
        if kind.gives() { &mut self.gives } else { &mut self.takes }
    }

    /// From now on such requests leave together. Those of one connection are of one layout.
    pub(super) fn travel(&mut self, kind: Kind, together: Together) {
        let open = self.open(kind);
        (open.together, open.group) = (together, Group::new(kind));
    }

    pub(super) fn len(&self) -> usize {
        self.gives.group.len() + self.takes.group.len()
    }

    /// Whether one asks for, or gives back, the lock of this record.
    pub(super) fn is_about(&self, record: &[u8]) -> bool {
        self.gives.group.is_about(record) || self.takes.group.is_about(record)
    }

    /// Whether what stands there has to go before this request: a release and the next request for
    /// that lock never change places.
    pub(super) fn has_to_go_before(&self, kind: Kind, call: &Call) -> bool {
        match kind.gives() {
            // Releases are written first.
            false => !self.takes.group.takes(call),
            true => {
                call.keys.bodies().next().is_some_and(|record| self.takes.group.is_about(record))
            }
        }
    }
}

/// An answer to a group: a letter for each, and of requests what is the same for all.
struct Said<'a> {
    kind: Kind,
    letters: &'a [u8],
    /// The number that they get, or whether the member counts.
    all: &'a Value,
    time: &'a Value,
}

impl<'a> Said<'a> {
    /// `None`: it is no answer to so many.
    fn of(kind: Kind, value: &'a Value, count: usize) -> Option<Self> {
        let (all, letters, time) = match (kind.gives(), value.items()) {
            (false, [all, letters, time]) => (all, letters, time),
            (true, []) => (value, value, value),
            _ => return None,
        };
        let letters = letters.bytes().filter(|letters| letters.len() == count)?;
        Some(Self { kind, letters, all, time })
    }

    /// The same as the script of one name says it.
    fn one(&self, at: usize, call: &Call) -> Value {
        let text = |text: &str| Value::Text(text.into());
        let time = || self.time.clone();
        match (self.kind, self.letters.get(at).copied().unwrap_or_default()) {
            (Kind::Take, b'G') => self.all.clone(),
            // Late, or in the way; and what is neither is no answer to anybody.
            (Kind::Take, letter) => Value::Array(vec![Value::Text(vec![letter]), time()]),
            (Kind::Give, b'D') => Value::Integer(1),
            // At a member. It has the number that it proposed.
            (_, b'Y') => {
                let number = call.arguments.get(5).unwrap_or_default();
                Value::Array(vec![text("Y"), time(), text(number), self.all.clone()])
            }
            (_, b'T') => Value::Array(vec![text("T"), time()]),
            // Nobody waits for it.
            #[cfg(feature = "redlock")]
            (_, b'D') => Value::Array(vec![text("D"), text("0")]),
            _ => Value::Error(ALONE.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(until: u64) -> Call {
        let arguments = ["place ".to_owned(), "30000".to_owned(), until.to_string()];
        Call {
            script: Which::Take,
            keys: ["a", "a:last", "a:line"].into(),
            arguments: arguments.into(),
        }
    }

    #[test]
    fn r3_the_times_until_which_requests_of_one_call_may_come_are_ten_milliseconds_apart_at_most() {
        let mut group = Group::new(Kind::Take);
        for until in [10_000, 9_500] {
            assert!(group.takes(&take(until)));
            group.push(&take(until), oneshot::channel().0);
        }
        for (until, joins) in [(9_375, true), (9_374, false), (10_125, true), (10_126, false)] {
            assert_eq!(group.takes(&take(until)), joins, "{until}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_names_go_in_one_call_again_some_time_after_the_server_refused_that() {
        let mut open = Open { together: Together::Known, ..Open::new(Kind::Take) };
        open.failed("NOPERM no");
        tokio::time::advance(ALONE_FOR - Duration::from_millis(1)).await;
        assert!(!open.travels());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(open.travels());
        open.failed("ERR no");
        assert!(!open.travels(), "refused again");
    }

    #[test]
    fn a_release_that_does_not_go_the_short_way_travels_alone() {
        let give = |arguments: &[&str]| {
            let keys = ["a", "a:line", "a:last", "watch"].into();
            Kind::of(&Call {
                script: Which::Release,
                keys,
                arguments: arguments.iter().collect::<Vec<_>>().into(),
            })
        };
        assert_eq!(give(&["2 1 0 ", "17"]), Some(Kind::Give));
        for alone in [&["2 1 0 ", ""][..], &["2 1 0 ", "2:5:l"], &["2 1 0 ", "17", "9"]] {
            assert_eq!(give(alone), None, "{alone:?}");
        }
    }
}
