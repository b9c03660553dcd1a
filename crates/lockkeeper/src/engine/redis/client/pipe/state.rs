//! What is to be written, and who waits for an answer.

use std::collections::VecDeque;
use std::task::Waker;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::resp::{Command, Value};
use super::super::script::Call;
use super::group::{Company, Group, Kind, Together};
use super::{Broken, CHUNK, CROWD, DIRECT_BELOW, Haste, Outcome};
use crate::engine::at_exit::AtRisk;
use crate::engine::lends;
use crate::engine::stream::Writer;

/// A connection, but for what is read of it.
pub(super) struct State {
    /// What callers may write to directly, until the connection has ended.
    pub(super) writer: Option<Writer>,
    /// Commands that are not written yet.
    pub(super) out: Vec<u8>,
    /// Behind them, those that may become one.
    pub(super) company: Company,
    /// Bytes ever handed in, and how many of them were written.
    queued: u64,
    pub(super) written: u64,
    /// The last release, while the end of the process could lose it.
    pub(super) at_risk: Option<Released>,
    pub(super) waiting: VecDeque<Waiting>,
    /// How many replies that is.
    outstanding: usize,
    pub(super) driver: Option<Waker>,
    /// The socket took less than it was given last; the driver writes the rest.
    pub(super) full: bool,
    /// The driver leaves what comes to callers.
    pub(super) left: bool,
    /// Callers have begun to watch the socket since the driver looked last.
    pub(super) lent: bool,
    /// How many replies make a crowd.
    pub(super) crowd: usize,
    /// How many replies were to come at most since the driver looked last.
    pub(super) peak: usize,
    /// A caller comes back to write what gathers.
    pub(super) promised: bool,
    /// The driver's timer is set for long, because nothing was sent for a while.
    pub(super) dozing: bool,
    pub(super) sent_since_tick: bool,
    /// When the last reply came.
    pub(super) answered: Instant,
    pub(super) ended: Option<String>,
}

/// Whose answer comes at a place.
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
    fn count(&self) -> usize {
        if let Self::All(group) = self { group.len() } else { 1 }
    }

    /// Tells it, with its place in the order of what was read.
    pub(super) fn tell(self, order: u64, value: Value) {
        match self {
            // Whoever asked may have left.
            Self::One(reply) => _ = reply.send(Ok((order, value))),
            Self::All(group) => group.tell(order, &value),
            Self::Nobody => {}
        }
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
            company: Company::new(),
            queued: 0,
            written: 0,
            at_risk: None,
            waiting: VecDeque::with_capacity(64),
            outstanding: 0,
            driver: None,
            full: false,
            left: false,
            lent: false,
            crowd: CROWD,
            peak: 0,
            promised: false,
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
        !self.out.is_empty() || self.company.len() > 0
    }

    /// How many replies are to come, also to what gathers.
    pub(super) fn to_come(&self) -> usize {
        self.outstanding + self.company.len()
    }

    /// Queues what this encodes; it says who gets the answer.
    fn push(&mut self, since: Instant, encode: impl FnOnce(&mut Vec<u8>) -> Reply) {
        let (starts_at, before) = (self.queued, self.out.len());
        let reply = encode(&mut self.out);
        self.queued += (self.out.len() - before) as u64;
        self.outstanding += reply.count();
        self.waiting.push_back(Waiting { starts_at, since, reply });
    }

    /// Queues commands behind everything else, and says where they begin. In a crowd a release that
    /// nobody waits for does not end what gathers: only what is about the same lock is to stay
    /// before it.
    pub(super) fn queue(
        &mut self,
        commands: &[Command],
        haste: Haste,
        mut reply: impl FnMut() -> Option<oneshot::Sender<Outcome>>,
    ) -> u64 {
        let passes = haste == Haste::Now && self.is_crowd();
        // The first key of a script is the record.
        let record = |command: &Command| {
            command.bodies().nth(3).is_some_and(|record| self.company.is_about(record))
        };
        if !passes || commands.iter().any(record) {
            self.close();
        }
        let (from, since) = (self.queued, Instant::now());
        for command in commands {
            self.push(since, |out| {
                command.encode(out);
                reply().map_or(Reply::Nobody, Reply::One)
            });
        }
        from
    }

    /// Queues a request that may leave in company, where others are before it.
    pub(super) fn queue_in_company(
        &mut self,
        kind: Kind,
        call: &Call,
        reply: oneshot::Sender<Outcome>,
    ) {
        if self.company.has_to_go_before(kind, call) {
            self.close();
        }
        let since = Instant::now();
        if !self.company.open(kind).travels() || self.is_idle() {
            self.close();
            self.push(since, |out| {
                call.encode(out);
                Reply::One(reply)
            });
            return;
        }
        if self.company.len() == 0 {
            self.company.since = since;
        }
        let group = &mut self.company.open(kind).group;
        group.push(call, reply);
        if group.is_full() {
            self.close();
        }
    }

    /// What gathered becomes commands, releases first. Nothing joins them any more.
    pub(super) fn close(&mut self) {
        let since = self.company.since;
        for kind in [Kind::Give, Kind::Take] {
            let open = self.company.open(kind);
            let fresh = Group::new(open.group.kind);
            let mut group = std::mem::replace(&mut open.group, fresh);
            // The server may have refused the one before, and then each goes by itself.
            if group.len() < 2 || !open.travels() {
                for _ in 0..group.len() {
                    self.push(since, |out| {
                        group.encode_first(out).map_or(Reply::Nobody, Reply::One)
                    });
                }
                continue;
            }
            let known = std::mem::replace(&mut open.together, Together::Known);
            self.push(since, |out| {
                group.encode(known == Together::Known, out);
                Reply::All(group)
            });
        }
    }

    /// The first that waits, now that its answer is there.
    pub(super) fn answered(&mut self, value: &Value) -> Option<Reply> {
        self.answered = Instant::now();
        self.peak = self.peak.max(self.to_come());
        let Waiting { reply, .. } = self.waiting.pop_front()?;
        self.outstanding -= reply.count();
        if let (Reply::All(group), Value::Error(text)) = (&reply, value) {
            self.company.open(group.kind).failed(text);
        }
        self.look_at_risk();
        Some(reply)
    }

    /// Writes what is to be written now; the driver is to be called for the rest.
    pub(super) fn write_some(&mut self, idle: bool, haste: Haste) -> Option<Waker> {
        // Where callers read, one of those that were answered together writes for all.
        let lends = lends();
        let few = !self.left && self.to_come() <= if lends { self.crowd } else { CROWD };
        if idle || haste == Haste::Shared && few && !self.full {
            self.close();
            self.write_directly();
        } else if haste == Haste::Now || self.out.len() >= CHUNK && !self.full {
            self.write_directly();
        }
        self.sent_since_tick = true;
        let dozing = std::mem::take(&mut self.dozing);
        // What callers gather they write; where one does not come back, the driver soon looks.
        let gathers = self.left && (haste == Haste::Now || lends);
        let stays = self.has_more() && !gathers;
        if dozing || self.full || stays { self.driver.take() } else { None }
    }

    /// Whether callers are many: those that wait, or that did a moment ago.
    pub(super) fn is_crowd(&self) -> bool {
        self.peak.max(self.to_come()) >= self.crowd
    }

    /// From now on only those count that wait; answers whether the driver left them to callers.
    pub(super) fn forget_crowd(&mut self) -> bool {
        self.peak = 0;
        std::mem::take(&mut self.left)
    }

    /// Something gathers that no caller has promised to write: the one that asks does now. It
    /// watches the socket, too.
    pub(super) fn promise(&mut self) -> bool {
        self.lent = true;
        !self.full && self.has_more() && !std::mem::replace(&mut self.promised, true)
    }

    /// Writes what gathers; the driver is to be called for what the socket does not take.
    pub(super) fn flush(&mut self) -> Option<Waker> {
        self.promised = false;
        if !self.full && self.has_more() {
            self.close();
            self.write_directly();
        }
        if self.full { self.driver.take() } else { None }
    }

    /// Writes what the socket takes at once; errors are left for the driver to find.
    fn write_directly(&mut self) {
        let Some(writer) = &self.writer else { return };
        let length = writer.try_write(&self.out).unwrap_or(0);
        self.full = length < self.out.len() || writer.keeps_back();
        self.out.drain(..length);
        self.written += length as u64;
        self.promised &= self.has_more();
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
        self.close();
        self.writer = None;
        self.out = Vec::new();
        self.at_risk = None;
        self.outstanding = 0;
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting.map(|one| (one.reply, one.starts_at < self.written)).collect()
    }
}
