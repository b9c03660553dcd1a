//! What is to be written, and who waits for an answer.

use std::collections::VecDeque;
use std::task::Waker;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::resp::{Command, Value};
use super::super::script::Call;
use super::group::Group;
use super::{Broken, CHUNK, CROWD, DIRECT_BELOW, Haste, Outcome};
use crate::engine::at_exit::AtRisk;
use crate::engine::stream::Writer;

/// A connection, but for what is read of it.
pub(super) struct State {
    /// What callers may write to directly, until the connection has ended.
    pub(super) writer: Option<Writer>,
    /// Commands that are not written yet.
    pub(super) out: Vec<u8>,
    /// Behind them, those that may become one, and since when they gather.
    open: Group,
    since: Instant,
    pub(super) together: Together,
    /// Bytes ever handed in, and how many of them were written.
    queued: u64,
    pub(super) written: u64,
    /// The last release, while the end of the process could lose it.
    pub(super) at_risk: Option<Released>,
    pub(super) waiting: VecDeque<Waiting>,
    /// How many replies that is.
    pub(super) outstanding: usize,
    pub(super) driver: Option<Waker>,
    /// The socket took less than it was given last; the driver writes the rest.
    pub(super) full: bool,
    /// The driver leaves what comes to callers.
    pub(super) left: bool,
    /// The driver's timer is set for long, because nothing was sent for a while.
    pub(super) dozing: bool,
    pub(super) sent_since_tick: bool,
    /// When the last reply came.
    pub(super) answered: Instant,
    pub(super) ended: Option<String>,
}

/// Whether names travel together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Together {
    Never,
    /// The first brings the script along.
    Anew,
    Known,
}

pub(super) struct Waiting {
    pub(super) starts_at: u64,
    pub(super) since: Instant,
    pub(super) reply: Reply,
}

/// Who gets a reply.
pub(super) enum Reply {
    Nobody,
    One(oneshot::Sender<Outcome>),
    All(Group),
}

impl Reply {
    pub(super) fn count(&self) -> usize {
        if let Self::All(group) = self { group.len() } else { 1 }
    }

    /// There is no answer.
    pub(super) fn broken(self, why: Broken) {
        match self {
            // Whoever asked may have left.
            Self::One(reply) => _ = reply.send(Err(why)),
            Self::All(group) => group.broken(&why),
            Self::Nobody => {}
        }
    }
}

/// The last releases, and where they begin.
pub(super) struct Released {
    from: u64,
    counted: AtRisk,
}

impl State {
    pub(super) fn new(writer: Writer) -> Self {
        Self {
            writer: Some(writer),
            out: Vec::with_capacity(4096),
            open: Group::default(),
            since: Instant::now(),
            together: Together::Never,
            queued: 0,
            written: 0,
            at_risk: None,
            waiting: VecDeque::with_capacity(64),
            outstanding: 0,
            driver: None,
            full: false,
            left: false,
            dozing: false,
            sent_since_tick: false,
            answered: Instant::now(),
            ended: None,
        }
    }

    /// A caller writes for itself, because little or nothing is before it.
    pub(super) fn is_idle(&self) -> bool {
        self.outstanding < DIRECT_BELOW && !self.has_more()
    }

    /// There is something to write.
    pub(super) fn has_more(&self) -> bool {
        !self.out.is_empty() || !self.open.is_empty()
    }

    fn push(&mut self, since: Instant, reply: Reply, encode: impl FnOnce(&mut Vec<u8>)) {
        let (starts_at, before) = (self.queued, self.out.len());
        encode(&mut self.out);
        self.wait(starts_at, before, since, reply);
    }

    /// Somebody waits for the answer to what was put behind `before` bytes.
    fn wait(&mut self, starts_at: u64, before: usize, since: Instant, reply: Reply) {
        self.queued += (self.out.len() - before) as u64;
        self.outstanding += reply.count();
        self.waiting.push_back(Waiting { starts_at, since, reply });
    }

    /// Queues commands behind everything else, and says where they begin. In a crowd a release does
    /// not end what gathers: only what asks for the same lock is to stay before it.
    pub(super) fn queue(
        &mut self,
        commands: &[Command],
        haste: Haste,
        mut reply: impl FnMut() -> Option<oneshot::Sender<Outcome>>,
    ) -> u64 {
        let passes = haste == Haste::Now && self.outstanding >= CROWD;
        if !passes || commands.iter().any(|command| self.asks_for_the_same(command)) {
            self.close();
        }
        let (from, since) = (self.queued, Instant::now());
        for command in commands {
            let reply = reply().map_or(Reply::Nobody, Reply::One);
            self.push(since, reply, |out| command.encode(out));
        }
        from
    }

    /// Whether a request for the lock that a script is about gathers.
    fn asks_for_the_same(&self, command: &Command) -> bool {
        // Its first key is the record.
        command.texts().nth(3).is_some_and(|record| self.open.asks_for(record))
    }

    /// Queues a request for a free lock, in company where others are before it.
    pub(super) fn queue_take(&mut self, call: &Call, reply: oneshot::Sender<Outcome>) {
        let since = Instant::now();
        if self.together == Together::Never || self.is_idle() {
            self.close();
            self.push(since, Reply::One(reply), |out| call.encode(out));
            return;
        }
        if self.open.is_empty() {
            self.since = since;
        }
        self.open.push(call, reply);
        if self.open.is_full() {
            self.close();
        }
    }

    /// What gathered becomes one command. Nothing joins it any more.
    pub(super) fn close(&mut self) {
        let mut group = std::mem::take(&mut self.open);
        // The server may have refused the one before, and then each goes by itself.
        if group.len() < 2 || self.together == Together::Never {
            for at in 0..group.len() {
                let (starts_at, before) = (self.queued, self.out.len());
                if let Some(reply) = group.encode_one(at, &mut self.out) {
                    self.wait(starts_at, before, self.since, Reply::One(reply));
                }
            }
            return;
        }
        let (starts_at, before) = (self.queued, self.out.len());
        group.encode(self.together == Together::Known, &mut self.out);
        self.together = Together::Known;
        self.wait(starts_at, before, self.since, Reply::All(group));
    }

    /// The first that waits, now that its answer is there.
    pub(super) fn answered(&mut self, value: &Value) -> Option<Reply> {
        self.answered = Instant::now();
        let Waiting { reply, .. } = self.waiting.pop_front()?;
        self.outstanding -= reply.count();
        if let (Reply::All(_), Value::Error(text)) = (&reply, value) {
            self.learn(text);
        }
        self.look_at_risk();
        Some(reply)
    }

    /// What a refusal of a group says of the next.
    fn learn(&mut self, refusal: &str) {
        if refusal.starts_with("NOSCRIPT") {
            self.together = Together::Anew;
        } else if refusal.starts_with("NOPERM") || refusal.starts_with("ERR") {
            // The server's user may not, or one name's key is in the way of all.
            self.together = Together::Never;
        }
    }

    /// Writes what is to be written now; the driver is to be called for the rest.
    pub(super) fn write_some(&mut self, idle: bool, haste: Haste) -> Option<Waker> {
        // A group that may grow is left to the driver, which was called by its first.
        if idle || haste == Haste::Now || self.out.len() >= CHUNK && !self.full {
            self.write_directly();
        }
        self.sent_since_tick = true;
        let dozing = std::mem::take(&mut self.dozing);
        if dozing || self.full || self.has_more() { self.driver.take() } else { None }
    }

    /// Writes what the socket takes at once; errors are left for the driver to find.
    fn write_directly(&mut self) {
        let Some(writer) = &self.writer else { return };
        let length = writer.try_write(&self.out).unwrap_or(0);
        self.full = length < self.out.len() || writer.keeps_back();
        self.out.drain(..length);
        self.written += length as u64;
    }

    /// What was queued from there on gives something back.
    pub(super) fn released(&mut self, from: u64) {
        if self.ended.is_some() {
            return;
        }
        let counted = self.at_risk.take().map(|earlier| earlier.counted);
        if self.is_at_risk(from) {
            let counted = counted.unwrap_or_else(AtRisk::begin);
            self.at_risk = Some(Released { from, counted });
        }
    }

    /// Whether the end of the process could lose what was queued from there on: not all is with the
    /// kernel, or the server has something before it to answer.
    fn is_at_risk(&self, from: u64) -> bool {
        self.full || self.waiting.front().is_some_and(|oldest| oldest.starts_at < from)
    }

    /// Something was written, or answered.
    pub(super) fn look_at_risk(&mut self) {
        if self.at_risk.as_ref().is_some_and(|last| !self.is_at_risk(last.from)) {
            self.at_risk = None;
        }
    }

    /// All that was written is with the kernel.
    pub(super) fn is_flushed(&mut self) {
        self.full = !self.out.is_empty();
        self.look_at_risk();
    }

    /// Takes everybody who waits, each with whether it was sent.
    pub(super) fn end(&mut self, why: &str) -> Vec<(Reply, bool)> {
        self.ended.get_or_insert_with(|| why.to_owned());
        self.writer = None;
        self.out = Vec::new();
        self.at_risk = None;
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        let mut all: Vec<_> =
            waiting.map(|waiting| (waiting.reply, waiting.starts_at < self.written)).collect();
        all.push((Reply::All(std::mem::take(&mut self.open)), false));
        self.outstanding = 0;
        all
    }
}
