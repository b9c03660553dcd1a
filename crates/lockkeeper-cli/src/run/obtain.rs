//! Getting the lock: connect, ask, wait; until it is there, the time is over, or a signal comes.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::time::Duration;

use lockkeeper::engine::Line;
use lockkeeper::{Claim, Error, ErrorKind, Holder, Require};
use nix::poll::{PollFd, PollFlags, poll};

use super::words::Words;
use crate::engine::{Begun, Holding, Taker, Waiting};
use crate::start::{Moment, moment};
use crate::supervise::signals::{Came, Signals};
use crate::supervise::timeout;

/// How long `run` tries again to reach an engine when no `-w` says it.
pub const REACH: Duration = Duration::from_secs(10);
/// The pause between two tries, growing to this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How asking went.
pub enum Obtained {
    /// We have it.
    Held(Box<dyn Holding>),
    /// We do not, and who does.
    Busy(Option<Box<Holder>>),
    /// A signal ended the wait.
    Interrupted(Came),
    /// The engine failed, or never came.
    Failed(Error),
}

/// What asking needs.
pub struct Ask<'a> {
    /// Connects.
    pub open: &'a dyn Fn() -> Result<Box<dyn Taker>, Error>,
    /// What the engine must promise.
    pub require: &'a [Require],
    /// What is asked for.
    pub claim: &'a Claim,
    /// How long to wait.
    pub patience: Option<Duration>,
    /// From when on the wait counts.
    pub since: Moment,
    /// How long an engine that cannot be reached is tried again when `patience` does not say it; `None` for ever.
    pub reach: Option<Duration>,
    /// Whether an ancestor has a share: then a share of ours may pass those who wait.
    pub beside: bool,
}

impl Ask<'_> {
    /// Asks. Connecting counts as waiting.
    pub fn obtain(&self, signals: &Signals, words: &mut Words) -> Obtained {
        let until = self.patience.map(|p| self.since + p);
        let mut pause = Duration::from_millis(50);
        loop {
            let error = match self.once(until, signals, words) {
                Ok(obtained) => return obtained,
                Err(error) => error,
            };
            // Only what may come by itself is waited for; with -n it is tried once.
            let give_up = until.or(self.reach.map(|reach| self.since + reach));
            let too_late = give_up.is_some_and(|give_up| moment() + pause >= give_up);
            if error.kind() != ErrorKind::Unreachable || !error.is_temporary() || too_late {
                return Obtained::Failed(error);
            }
            words.detail(|| format!("{error}; trying again"));
            if let Some(came) = interruption(signals, None, Some(moment() + pause), words, None) {
                return Obtained::Interrupted(came);
            }
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    fn once(&self, until: Option<Moment>, signals: &Signals, words: &mut Words) -> Result<Obtained, Error> {
        let taker = (self.open)()?;
        if !self.require.is_empty() {
            let described = taker.describe();
            if let Some(missing) = self.require.iter().find(|r| !described.meets(**r)) {
                let why = why_not(*missing, described.engine);
                let message = format!("{} was required, and {why}: choose another engine, or require less", missing.as_str());
                return Ok(Obtained::Failed(Error::new(ErrorKind::NotMet, message).engine(described.engine)));
            }
        }
        if self.beside
            && let Some(holding) = taker.begin_beside(self.claim)?
        {
            return Ok(Obtained::Held(holding));
        }
        let line = if self.patience.is_some_and(|p| p.is_zero()) { Line::Try } else { Line::Join };
        match taker.begin(self.claim, line)? {
            Begun::Held(holding) => Ok(Obtained::Held(holding)),
            Begun::Busy(holder) => Ok(Obtained::Busy(holder)),
            Begun::Waiting(waiting) => wait(waiting, until, signals, words),
        }
    }
}

fn wait(waiting: Box<dyn Waiting>, until: Option<Moment>, signals: &Signals, words: &mut Words) -> Result<Obtained, Error> {
    words.wait_begins(|| waiting.place());
    loop {
        if let Some(came) = interruption(signals, Some(waiting.over()), until, words, Some(&*waiting)) {
            words.wait_ends();
            return Ok(Obtained::Interrupted(came));
        }
        if is_readable(waiting.over()) {
            return waiting.finish().map(Obtained::Held);
        }
        if until.is_some_and(|until| moment() >= until) {
            let holder = waiting.place().holder;
            words.wait_ends();
            return Ok(Obtained::Busy(holder));
        }
    }
}

/// Sleeps until a signal ends the wait, the descriptor is readable, or the time is over. Says meanwhile that we wait.
fn interruption(
    signals: &Signals,
    over: Option<BorrowedFd<'_>>,
    until: Option<Moment>,
    words: &mut Words,
    waiting: Option<&dyn Waiting>,
) -> Option<Came> {
    loop {
        if let Some(came) = signals.ending() {
            return Some(came);
        }
        if let Some(waiting) = waiting {
            words.still_waiting(|| waiting.place());
        }
        let now = moment();
        if over.is_some_and(is_readable) || until.is_some_and(|until| now >= until) {
            return None;
        }
        let next = [until, words.next()].into_iter().flatten().min().map(|at| at.saturating_sub(now));
        let mut fds = vec![PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        fds.extend(over.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        _ = poll(&mut fds, timeout(next));
    }
}

fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], 0u8).is_ok_and(|ready| ready > 0)
}

fn why_not(require: Require, engine: &str) -> String {
    match require {
        Require::Hosts => format!("{engine} is seen by this machine only"),
        Require::Timed => format!("one ordinary fault can give {engine} two holders"),
        _ => format!("{engine} cannot promise tokens that only ever grow"),
    }
}
