//! What a guardian has to do, and when: a pure machine that is told the time.

use std::time::Duration;

use lockkeeper::margin::floor;
use nix::sys::signal::Signal;

use super::wire::Care;
use crate::args::run::OnLost;
use crate::start::Moment;
use crate::supervise::stopping::Stopping;
use crate::under::Why;

/// How long whoever hired us may be silent after the command ended, before the lock is given back
/// without a word.
const QUIET: Duration = Duration::from_secs(1);

/// How often it is looked whether whoever hired us and leaves a grant lying is stopped: that one
/// keeps nobody from it (R5).
const LOOK: Duration = Duration::from_secs(1);
/// How long one that is not stopped may leave it lying: it is slow, or frozen.
const OFFERED: Duration = Duration::from_secs(5);

/// How long an answer may take that the guardian asks for although TERM is due: one that was not
/// awake in time asks first.
const GRACE: Duration = Duration::from_millis(250);
/// The grace is at most this part of the time from TERM to KILL.
const GRACE_PART: u32 = 8;

/// A deadline that is later by less is the same one, read twice.
pub const NEWER: Duration = Duration::from_millis(5);

/// When a command has to be stopped so that it is gone before the lease can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub term: Moment,
    /// The deadline: KILL, and from then on the lock is lost.
    pub end: Moment,
}

impl Times {
    /// TERM when `kill_after` is left of the deadline. The drift allowance is off the deadline
    /// already (R1).
    pub fn of(deadline: Moment, kill_after: Duration) -> Self {
        Self { term: deadline.saturating_sub(kill_after), end: deadline }
    }
}

/// How much is left when a guardian acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Margins {
    /// From TERM to KILL.
    pub kill_after: Duration,
    /// A renewal is asked for so long before TERM is due.
    pub ask_before: Duration,
}

impl Margins {
    /// The margins on a lease or session of this whole length: a pushed grant comes with a
    /// shorter one, on which nothing is built.
    pub fn of(whole: Duration, kill_after: Duration, request_timeout: Duration) -> Self {
        Self {
            kill_after,
            ask_before: request_timeout
                .min(floor(whole, Some(kill_after)).saturating_sub(kill_after)),
        }
    }

    /// Whether so much of a lease is a whole one, as a healthy server leaves at any time.
    pub fn is_whole(whole: Duration, kill_after: Duration, left: Duration) -> bool {
        left >= floor(whole, Some(kill_after))
    }
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The command runs.
    Started,
    /// Whoever hired us is gone.
    Gone,
    /// The lock is lost.
    Lost(Why),
    /// Until when the lease lasts now.
    Until(Times),
    /// Nothing of the command runs any more.
    Empty,
    /// Time has passed.
    Time,
}

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell that the command is being stopped, and by when.
    TellStopping(Why, Moment),
    /// Tell that the lock is lost.
    TellLost(Why),
    /// Ask for a renewal: it is later than a healthy server lets it become.
    Ask,
    /// Send a signal to everything of the command.
    Send(Signal),
    /// Give the lock back and end.
    End,
    /// The same, unless whoever hired us has taken it, or may still come to it: is not stopped.
    TakeBack {
        /// Also if it is not stopped.
        in_any_case: bool,
    },
}

/// A renewal that was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    at: Moment,
    /// The deadline that was to be moved.
    end: Moment,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duty {
    care: Care,
    margins: Margins,
    granted: Moment,
    /// When it is looked next whether it still lies there, untaken.
    looks: Option<Moment>,
    times: Option<Times>,
    /// The renewal that was asked for since the deadline moved last.
    asked: Option<Asked>,
    stopping: Stopping,
    /// The command runs, or something of it.
    runs: bool,
    gone: bool,
    lost: bool,
    told: bool,
    empty_since: Option<Moment>,
}

impl Duty {
    /// The lock was granted.
    pub fn new(care: Care, margins: Margins, granted: Moment) -> Self {
        let (times, asked, stopping, empty_since) = (None, None, Stopping::default(), None);
        Self {
            care,
            margins,
            granted,
            looks: Some(granted + LOOK),
            times,
            asked,
            stopping,
            runs: false,
            gone: false,
            lost: false,
            told: false,
            empty_since,
        }
    }

    /// One step.
    pub fn step(&mut self, now: Moment, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Started => (self.runs, self.looks) = (true, None),
            Event::Until(times) => {
                // Two clock readings give the deadline, which differs a little each time.
                self.asked = self.asked.filter(|asked| times.end <= asked.end + NEWER);
                self.times = Some(times);
            }
            Event::Lost(why) => self.lose(now, why, out),
            Event::Gone => self.leave(now, out),
            Event::Empty => {
                self.runs = false;
                self.empty_since.get_or_insert(now);
                if self.gone {
                    out.push(Action::End);
                }
            }
            Event::Time => {}
        }
        self.mind_the_time(now, out);
    }

    /// When the next [`Event::Time`] is due.
    pub fn next(&self) -> Option<Moment> {
        let lease = self
            .times
            .filter(|_| self.minds_the_lease() && !self.stopping.was_killed())
            .map(|times| self.acts_at(times));
        let asks = self.times.filter(|_| self.asks()).map(|times| self.asks_at(times));
        let stopping = self.stopping.next().filter(|_| self.runs);
        [asks, lease, stopping, self.quiet_at(), self.looks_at()].into_iter().flatten().min()
    }

    /// Whether the end of the command is awaited soon.
    pub fn is_ending(&self) -> bool {
        self.gone || self.stopping.is_under_way()
    }

    /// A process that was being forked when the KILL came is killed too.
    pub fn was_killed(&self) -> bool {
        self.stopping.was_killed()
    }

    fn minds_the_lease(&self) -> bool {
        self.runs && !self.lost && (self.care.on_lost != OnLost::Warn || self.gone)
    }

    /// Whether a renewal is still to be asked for.
    fn asks(&self) -> bool {
        self.asked.is_none()
            && !self.lost
            && !self.stopping.is_under_way()
            && (self.runs || !self.care.command)
    }

    fn asks_at(&self, times: Times) -> Moment {
        times.term.saturating_sub(self.margins.ask_before)
    }

    /// When TERM is due, and once that was sent, KILL. A guardian that was not awake when it had to
    /// ask, asks first. One that asked in time has given the server its time before TERM is due.
    fn acts_at(&self, times: Times) -> Moment {
        if self.stopping.is_under_way() {
            return times.end;
        }
        let grace = GRACE.min(self.margins.kill_after / GRACE_PART).min(self.margins.ask_before);
        let answered = self.asked.map_or(times.term, |asked| asked.at + grace);
        times.term.max(answered).min(times.end)
    }

    /// When the lock is given back although nobody asked: the command is over, and whoever hired us
    /// is stopped.
    fn quiet_at(&self) -> Option<Moment> {
        let empty = self.empty_since.filter(|_| !self.gone)?;
        Some((empty + QUIET).max(self.granted + self.care.at_least))
    }

    /// When it is looked next whether it still lies there, untaken.
    fn looks_at(&self) -> Option<Moment> {
        self.looks.filter(|_| !self.gone)
    }

    fn lose(&mut self, now: Moment, why: Why, out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        let first = !std::mem::replace(&mut self.told, true);
        // Without whoever hired us nobody is warned: the command is being stopped.
        if !self.runs || self.care.on_lost == OnLost::Warn && !self.gone {
            out.extend(first.then_some(Action::TellLost(why)));
            return;
        }
        let signal = match self.care.on_lost {
            OnLost::Kill => self.stopping.kill(now),
            // Somebody else may have it from now on: one that slept through TERM has no time to
            // give.
            _ if self.times.is_some_and(|times| now >= times.end) => self.stopping.kill(now),
            _ => {
                let signal = self.stopping.term(now, self.margins.kill_after);
                // Nothing minds the lease from now on, and at its end somebody else may have it.
                _ = self.times.and_then(|times| self.stopping.by(times.end, false));
                signal
            }
        };
        // Told first: when the command has ended, whoever hired us knows why.
        out.extend(first.then_some(Action::TellStopping(why, self.stopping.next().unwrap_or(now))));
        out.extend(signal.map(Action::Send));
    }

    fn leave(&mut self, now: Moment, out: &mut Vec<Action>) {
        self.gone = true;
        if !self.runs || self.lost && self.care.on_lost == OnLost::Warn {
            out.push(Action::End);
            return;
        }
        let kill_after = if self.care.nested { Duration::ZERO } else { self.margins.kill_after };
        out.extend(self.stopping.term(now, kill_after).map(Action::Send));
    }

    fn mind_the_time(&mut self, now: Moment, out: &mut Vec<Action>) {
        if let Some(times) = self.times.filter(|times| self.asks() && now >= self.asks_at(*times)) {
            // A renewal that is under way is asked for as well: it is not sent twice. Its answer
            // moves the deadline, or its failure lets the keeper send the next one.
            self.asked = Some(Asked { at: now, end: times.end });
            // Nothing helps any more at the deadline.
            out.extend((now < times.end).then_some(Action::Ask));
        }
        if let Some(times) = self.times.filter(|_| self.minds_the_lease()) {
            if now >= self.acts_at(times) && !self.stopping.is_under_way() {
                // A loss that is to be a KILL at once is no reason for one before it is a loss.
                let signal = self.stopping.by(times.end, self.care.on_lost != OnLost::Kill);
                if !std::mem::replace(&mut self.told, true) {
                    out.push(Action::TellStopping(Why::RunningOut, times.end));
                }
                out.extend(signal.map(Action::Send));
            }
            if now >= times.end {
                out.extend(self.stopping.kill(now).map(Action::Send));
            }
        }
        if self.runs {
            out.extend(self.stopping.due(now).map(Action::Send));
        }
        if self.quiet_at().is_some_and(|at| now >= at) {
            out.push(Action::End);
        }
        if self.looks_at().is_some_and(|at| now >= at) {
            let in_any_case = now >= self.granted + OFFERED;
            self.looks = (!in_any_case).then_some(now + LOOK);
            out.push(Action::TakeBack { in_any_case });
        }
    }
}

#[cfg(test)]
mod tests;
