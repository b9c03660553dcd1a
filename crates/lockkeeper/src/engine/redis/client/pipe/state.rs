//! What is to be written, and who waits for an answer.

use std::collections::VecDeque;
use std::task::Waker;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::super::resp::Command;
use super::{CHUNK, CROWD, DIRECT_BELOW, Haste, Outcome};
use crate::engine::at_exit::AtRisk;
use crate::engine::stream::Writer;

/// A connection, but for what is read of it.
pub(super) struct State {
    /// What callers may write to directly, until the connection has ended.
    pub(super) writer: Option<Writer>,
    /// Commands that are not written yet.
    pub(super) out: Vec<u8>,
    /// Bytes ever handed in, and how many of them were written.
    queued: u64,
    pub(super) written: u64,
    /// The last release, while the end of the process could lose it.
    pub(super) at_risk: Option<Released>,
    pub(super) waiting: VecDeque<Waiting>,
    pub(super) driver: Option<Waker>,
    /// The socket took less than it was given last; the driver writes the rest.
    pub(super) full: bool,
    /// The driver leaves what comes to callers.
    pub(super) left: bool,
    /// How many replies were dealt out whose callers have not asked for anything again.
    pub(super) owed: usize,
    /// A caller comes back to write what gathers.
    promised: bool,
    /// The driver's timer is set for long, because nothing was sent for a while.
    pub(super) dozing: bool,
    pub(super) sent_since_tick: bool,
    /// When the last reply came.
    pub(super) answered: Instant,
    pub(super) ended: Option<String>,
}

/// Who waits for an answer, if anybody does.
pub(super) struct Waiting {
    pub(super) starts_at: u64,
    pub(super) since: Instant,
    pub(super) reply: Option<oneshot::Sender<Outcome>>,
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
            queued: 0,
            written: 0,
            at_risk: None,
            waiting: VecDeque::with_capacity(64),
            driver: None,
            full: false,
            left: false,
            owed: 0,
            promised: false,
            dozing: false,
            sent_since_tick: false,
            answered: Instant::now(),
            ended: None,
        }
    }

    /// A caller writes for itself, because little or nothing is before it.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.len() < DIRECT_BELOW && self.out.is_empty()
    }

    /// Queues commands behind everything else, and says where they begin.
    pub(super) fn queue(
        &mut self,
        commands: &[Command],
        mut reply: impl FnMut() -> Option<oneshot::Sender<Outcome>>,
    ) -> u64 {
        let (from, since) = (self.queued, Instant::now());
        for command in commands {
            let (starts_at, before) = (self.queued, self.out.len());
            command.encode(&mut self.out);
            self.queued += (self.out.len() - before) as u64;
            self.waiting.push_back(Waiting { starts_at, since, reply: reply() });
        }
        from
    }

    /// The first that waits, now that its answer is there.
    pub(super) fn answered(&mut self) -> Option<Waiting> {
        self.answered = Instant::now();
        let waiting = self.waiting.pop_front()?;
        self.owed += 1;
        self.look_at_risk();
        Some(waiting)
    }

    /// Writes what is to be written now; the driver is to be called for the rest.
    pub(super) fn write_some(&mut self, idle: bool, haste: Haste) -> Option<Waker> {
        self.owed = self.owed.saturating_sub(1);
        // Where callers read, the last of those that were answered together writes for all.
        let last = if self.left { self.owed == 0 } else { self.waiting.len() <= CROWD };
        let enough = last || self.out.len() >= CHUNK;
        if idle || haste == Haste::Now || enough && !self.full {
            self.write_directly();
        }
        self.sent_since_tick = true;
        let dozing = std::mem::take(&mut self.dozing);
        // What callers gather they write; where one does not come back, the driver soon looks.
        let stays = !self.out.is_empty() && !self.left;
        if dozing || self.full || stays { self.driver.take() } else { None }
    }

    /// Whether callers are many: those that wait, and those that were just answered.
    pub(super) fn is_crowd(&self) -> bool {
        self.waiting.len() + self.owed >= CROWD
    }

    /// Something gathers that no caller has promised to write: the one that asks does now.
    pub(super) fn promise(&mut self) -> bool {
        !self.full && !self.out.is_empty() && !std::mem::replace(&mut self.promised, true)
    }

    /// A caller came back: those that were answered with it have asked, or will not.
    pub(super) fn flush(&mut self) {
        (self.owed, self.promised) = (0, false);
        if !self.full && !self.out.is_empty() {
            self.write_directly();
        }
    }

    /// Writes what the socket takes at once; errors are left for the driver to find.
    fn write_directly(&mut self) {
        let Some(writer) = &self.writer else { return };
        let length = writer.try_write(&self.out).unwrap_or(0);
        self.full = length < self.out.len() || writer.keeps_back();
        self.out.drain(..length);
        self.written += length as u64;
        self.promised = false;
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
    pub(super) fn end(&mut self, why: &str) -> Vec<(oneshot::Sender<Outcome>, bool)> {
        self.ended.get_or_insert_with(|| why.to_owned());
        self.writer = None;
        self.out = Vec::new();
        self.at_risk = None;
        let waiting = std::mem::take(&mut self.waiting).into_iter();
        waiting.filter_map(|one| Some((one.reply?, one.starts_at < self.written))).collect()
    }
}
