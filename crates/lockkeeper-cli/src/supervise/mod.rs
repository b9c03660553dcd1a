//! Looking after a command: signals, terminal, time, and the loss of what it runs under.
//!
//! Nothing here knows what a lock is; [`Under`] is all that is asked of it.

pub mod group;
pub mod job;
pub mod signals;
pub mod stopping;
pub mod terminal;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;

use self::job::{Change, Job, Status};
use self::signals::{ENDING, Signals};
use self::stopping::Stopping;
use crate::args::run::OnLost;
use crate::start::{Moment, moment};
use crate::under::{Caution, Under, Why};

/// How long the members of a group have to end by themselves after the command ended, before they
/// are asked to.
const GRACE: Duration = Duration::from_millis(200);
/// The longest time between two looks at a group that is to become empty.
const LOOK: Duration = Duration::from_millis(50);

/// How long after a KILL a process that is still there is worth a word.
const STUCK: Duration = Duration::from_secs(2);

/// How to look after it.
#[derive(Clone, Copy, Debug)]
pub struct Orders {
    /// From TERM to KILL.
    pub kill_after: Duration,
    /// What a loss means.
    pub on_lost: OnLost,
    /// When the command's time is over.
    pub until: Option<Moment>,
    /// Whether processes that the command left behind are left alone.
    pub leave_children: bool,
}

/// What is told while the command is looked after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// What it runs under was lost.
    Lost(Why),
    /// Something about it that people should know.
    Warning(Caution),
    /// Its time is over.
    TimeOver,
    /// A process of its group outlives the KILL: it is another user's, or stuck in the kernel.
    CannotEnd,
}

/// Why the command was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// What it ran under was lost.
    Lost,
    /// Its time was over.
    TimeOver,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The command's end.
    pub status: Status,
    /// Whether we stopped it, and why.
    pub stopped: Option<Stopped>,
    /// Why what it ran under was lost, if it was.
    pub lost: Option<Why>,
    /// The keyboard's signal that ended it, and whether our own process group did not get it.
    pub keyboard: Option<(Signal, bool)>,
    /// Whether a signal came that asks us to end, and not only the command.
    pub told_to_end: bool,
}

/// The state of one watch.
struct Watch<'a> {
    job: &'a mut Job,
    signals: &'a Signals,
    under: &'a dyn Under,
    orders: Orders,
    stopping: Stopping,
    stopped: Option<Stopped>,
    lost: Option<Why>,
    /// When it was last looked whether it is lost.
    looked: Moment,
    /// Signals that somebody sent us and that we passed on.
    passed_on: Vec<Signal>,
    /// Signals that the keyboard sent to our own group.
    keyboard: Vec<Signal>,
}

/// Looks after a job until it is over. `tell` hears every piece of news once.
pub fn look_after(
    job: &mut Job,
    signals: &Signals,
    under: &dyn Under,
    orders: Orders,
    tell: &mut dyn FnMut(News),
) -> Ended {
    let (stopping, stopped, lost) = (Stopping::default(), None, None);
    let mut watch = Watch {
        job,
        signals,
        under,
        orders,
        stopping,
        stopped,
        lost,
        looked: moment(),
        passed_on: Vec::new(),
        keyboard: Vec::new(),
    };
    let status = watch.until_ended(tell);
    if !orders.leave_children {
        watch.until_empty(tell);
    }
    watch.job.take_terminal_back();
    let keyboard = match status {
        Status::Killed(number) => {
            Signal::try_from(number).ok().and_then(|signal| watch.keyboards(signal))
        }
        Status::Exited(_) | Status::Unknown => None,
    };
    let told_to_end = keyboard.is_some()
        || watch.passed_on.iter().chain(&watch.keyboard).any(|s| ENDING.contains(s));
    Ended { status, stopped: watch.stopped, lost: watch.lost, keyboard, told_to_end }
}

impl Watch<'_> {
    fn until_ended(&mut self, tell: &mut dyn FnMut(News)) -> Status {
        loop {
            while let Some(change) = self.job.change() {
                match change {
                    Change::Ended(status) => {
                        self.mind_who_stopped_it(tell);
                        return status;
                    }
                    Change::Stopped(by) => self.job.stopped(by),
                }
            }
            // Only now: a signal that comes when the command has ended is for us, and must not be
            // lost on a dead group.
            self.pass_on();
            self.mind_the_lock(tell);
            self.mind_the_time(tell);
            let next = [self.stopping.next(), self.orders.until.filter(|_| self.stopped.is_none())]
                .into_iter()
                .flatten()
                .min();
            self.pause(next, self.under.every().filter(|_| self.lost.is_none()));
        }
    }

    /// Members that stay are asked to end, and then ended; what runs here runs under the lock.
    fn until_empty(&mut self, tell: &mut dyn FnMut(News)) {
        let began = moment();
        let mut look = Duration::from_millis(1);
        let mut told = false;
        while self.job.group_is_alive() {
            let now = moment();
            if now >= began + GRACE.min(self.orders.kill_after) && !self.stopping.is_under_way() {
                let signal = self.stopping.term(now, self.orders.kill_after);
                self.send(signal);
            }
            // Nobody tells us when a grandchild ends.
            self.pause(self.stopping.next(), Some(look));
            look = LOOK.min(look * 2);
            self.pass_on();
            if self.notice_loss(tell) && self.orders.on_lost != OnLost::Warn {
                let signal = self.stopping.kill(moment());
                self.send(signal);
            }
            let due = self.stopping.due(moment());
            self.send(due);
            if self.stopping.was_killed() {
                // A process that was being forked when the KILL came is killed too.
                self.job.end(Signal::SIGKILL);
                if !told && moment() > began + self.orders.kill_after + STUCK {
                    told = true;
                    tell(News::CannotEnd);
                }
            }
        }
    }

    /// Waits for a signal, a loss, or the time.
    fn pause(&self, until: Option<Moment>, at_most: Option<Duration>) {
        let left = until.map(|at| at.saturating_sub(moment()));
        let look =
            self.under.next().filter(|_| self.lost.is_none()).map(|at| at.saturating_sub(moment()));
        let time = [left, at_most, look].into_iter().flatten().min();
        let mut fds = Vec::with_capacity(2);
        fds.push(PollFd::new(self.signals.as_fd(), PollFlags::POLLIN));
        fds.extend(
            self.under
                .alarm()
                .filter(|_| self.lost.is_none())
                .map(|alarm| PollFd::new(alarm, PollFlags::POLLIN)),
        );
        _ = poll(&mut fds, timeout(time));
    }

    fn pass_on(&mut self) {
        while let Some(came) = self.signals.next() {
            match came.signal {
                Signal::SIGCHLD => self.job.reap_orphans(),
                Signal::SIGCONT => self.job.resume(),
                signal => {
                    if came.keyboard { &mut self.keyboard } else { &mut self.passed_on }
                        .push(signal);
                    // Everybody in our group got it from the keyboard already, and the command too
                    // if it is there.
                    if self.job.has_own_group() || !came.keyboard {
                        self.job.signal(signal);
                    }
                }
            }
        }
    }

    /// Whether a loss was noticed now.
    fn notice_loss(&mut self, tell: &mut dyn FnMut(News)) -> bool {
        let now = moment();
        let is_time = self.under.every().is_none_or(|every| now >= self.looked + every)
            || self.under.alarm().is_some();
        if self.lost.is_none() && is_time {
            self.looked = now;
            self.lost = self.under.lost();
            while let Some(caution) = self.under.caution() {
                tell(News::Warning(caution));
            }
            self.lost.inspect(|why| tell(News::Lost(*why)));
            return self.lost.is_some();
        }
        false
    }

    fn mind_the_lock(&mut self, tell: &mut dyn FnMut(News)) {
        if !self.notice_loss(tell) {
            return;
        }
        let now = moment();
        let (by, asked) = self.under.end();
        let signal = match self.orders.on_lost {
            OnLost::Warn => return,
            OnLost::Term if asked => None,
            OnLost::Term => self.stopping.term(now, self.orders.kill_after),
            OnLost::Kill if asked => None,
            OnLost::Kill => self.stopping.kill(now),
        };
        self.stopped = Some(Stopped::Lost);
        self.send(signal);
        if let Some(by) = by {
            _ = self.stopping.by(by, false);
        }
    }

    /// Somebody else may have asked the command to end, because what it runs under is being lost.
    fn mind_who_stopped_it(&mut self, tell: &mut dyn FnMut(News)) {
        if self.under.alarm().is_some() && self.notice_loss(tell) && self.under.end().1 {
            self.stopped = Some(Stopped::Lost);
        }
    }

    fn mind_the_time(&mut self, tell: &mut dyn FnMut(News)) {
        let now = moment();
        if self.stopped.is_none() && self.orders.until.is_some_and(|until| now >= until) {
            self.stopped = Some(Stopped::TimeOver);
            tell(News::TimeOver);
            let signal = self.stopping.term(now, self.orders.kill_after);
            self.send(signal);
        }
        let due = self.stopping.due(now);
        self.send(due);
    }

    fn send(&self, signal: Option<Signal>) {
        if let Some(signal) = signal {
            self.job.end(signal);
        }
    }

    /// Whether the keyboard sent the signal that ended the command, and not somebody through us or
    /// we ourselves.
    fn keyboards(&self, signal: Signal) -> Option<(Signal, bool)> {
        let ends = matches!(signal, Signal::SIGINT | Signal::SIGQUIT) && self.stopped.is_none();
        let to_us = self.keyboard.contains(&signal);
        let to_it_alone = self.job.was_in_front() && !self.passed_on.contains(&signal);
        (ends && (to_us || to_it_alone)).then_some((signal, !to_us))
    }
}

/// A time as poll takes it: rounded up, so that it is over afterwards, and bounded, because poll's
/// clock stops in suspend.
pub fn timeout(time: Option<Duration>) -> PollTimeout {
    const BOUND_MS: u128 = 5_000;
    let ms = time.map_or(BOUND_MS, |t| t.as_nanos().div_ceil(1_000_000).min(BOUND_MS));
    PollTimeout::from(u16::try_from(ms).unwrap_or(5_000))
}

/// Whether a descriptor can be read from now.
pub fn is_readable(fd: BorrowedFd<'_>) -> bool {
    poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], 0u8).is_ok_and(|ready| ready > 0)
}
