//! What a guardian has to do, and when: a pure machine that is told the time.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::wire::Care;
use crate::args::run::OnLost;
use crate::start::Moment;
use crate::supervise::Why;
use crate::supervise::stopping::Stopping;

/// How long whoever hired us may be silent after the command ended, before the lock is given back without a word.
const QUIET: Duration = Duration::from_secs(1);

/// When a command has to be stopped so that it is gone before the lease can pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    pub term: Moment,
    pub kill: Moment,
    /// The deadline: from then on it is lost.
    pub end: Moment,
}

impl Times {
    /// KILL at the deadline less the drift allowance, TERM at the deadline less `kill_after`; where that leaves the command no
    /// time between the two, TERM comes `kill_after` before the KILL.
    pub fn of(deadline: Moment, kill_after: Duration, drift: Duration) -> Self {
        let kill = deadline.saturating_sub(drift);
        let term = if kill_after > drift { deadline.saturating_sub(kill_after) } else { kill.saturating_sub(kill_after) };
        Self { term, kill, end: deadline }
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
    /// Send a signal to everything of the command.
    Send(Signal),
    /// Give the lock back and end.
    End,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Duty {
    care: Care,
    granted: Moment,
    times: Option<Times>,
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
    pub fn new(care: Care, granted: Moment) -> Self {
        let (times, stopping, empty_since) = (None, Stopping::default(), None);
        Self { care, granted, times, stopping, runs: false, gone: false, lost: false, told: false, empty_since }
    }

    /// One step.
    pub fn step(&mut self, now: Moment, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Started => self.runs = true,
            Event::Until(times) => self.times = Some(times),
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
        let lease = self.times.filter(|_| self.minds_the_lease()).map(|t| if self.stopping.is_under_way() { t.kill } else { t.term });
        let lease = lease.filter(|_| !self.stopping.was_killed());
        [lease, self.stopping.next().filter(|_| self.runs), self.quiet_at()].into_iter().flatten().min()
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

    /// When the lock is given back although nobody asked: the command is over, and whoever hired us is stopped.
    fn quiet_at(&self) -> Option<Moment> {
        let empty = self.empty_since.filter(|_| !self.gone)?;
        Some((empty + QUIET).max(self.granted + self.care.at_least))
    }

    fn lose(&mut self, now: Moment, why: Why, out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.lost, true) {
            return;
        }
        let first = !std::mem::replace(&mut self.told, true);
        if !self.runs || self.care.on_lost == OnLost::Warn {
            out.extend(first.then_some(Action::TellLost(why)));
            return;
        }
        let signal = match self.care.on_lost {
            OnLost::Kill => self.stopping.kill(now),
            _ => self.stopping.term(now, self.care.kill_after),
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
        let kill_after = if self.care.nested { Duration::ZERO } else { self.care.kill_after };
        out.extend(self.stopping.term(now, kill_after).map(Action::Send));
    }

    fn mind_the_time(&mut self, now: Moment, out: &mut Vec<Action>) {
        if let Some(times) = self.times.filter(|_| self.minds_the_lease()) {
            if now >= times.term && !self.stopping.is_under_way() {
                // A loss that is to be a KILL at once is no reason for one before it is a loss.
                let signal = self.stopping.by(times.kill, self.care.on_lost != OnLost::Kill);
                if !std::mem::replace(&mut self.told, true) {
                    out.push(Action::TellStopping(Why::RunningOut, times.kill));
                }
                out.extend(signal.map(Action::Send));
            }
            if now >= times.kill {
                out.extend(self.stopping.kill(now).map(Action::Send));
            }
        }
        if self.runs {
            out.extend(self.stopping.due(now).map(Action::Send));
        }
        if self.quiet_at().is_some_and(|at| now >= at) {
            out.push(Action::End);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockkeeper::Lost;

    const S: Duration = Duration::from_secs(1);

    fn care(on_lost: OnLost) -> Care {
        Care { command: true, kill_after: 5 * S, on_lost, nested: false, leave_children: false, at_least: Duration::ZERO }
    }

    fn duty(on_lost: OnLost) -> Duty {
        let mut duty = Duty::new(care(on_lost), 100 * S);
        duty.step(100 * S, Event::Until(Times::of(127 * S, 5 * S, 3 * S)), &mut Vec::new());
        duty.step(100 * S, Event::Started, &mut Vec::new());
        duty
    }

    fn step(duty: &mut Duty, at: u32, event: Event) -> Vec<Action> {
        let mut out = Vec::new();
        duty.step(at * S, event, &mut out);
        out
    }

    #[test]
    fn a_command_is_asked_to_end_and_then_ended_before_the_lease_can_pass() {
        let mut duty = duty(OnLost::Term);
        assert_eq!(duty.next(), Some(122 * S));
        assert_eq!(step(&mut duty, 121, Event::Time), []);
        let stopping = Action::TellStopping(Why::RunningOut, 124 * S);
        assert_eq!(step(&mut duty, 122, Event::Time), [stopping, Action::Send(Signal::SIGTERM)]);
        assert_eq!((duty.next(), step(&mut duty, 123, Event::Time)), (Some(124 * S), vec![]));
        assert_eq!(step(&mut duty, 124, Event::Time), [Action::Send(Signal::SIGKILL)]);
        assert_eq!(step(&mut duty, 127, Event::Lost(Why::Lost(Lost::Expired))), [], "that was told");
    }

    #[test]
    fn a_renewal_moves_the_end_and_one_that_comes_after_the_term_does_not_call_it_off() {
        let mut duty = duty(OnLost::Term);
        step(&mut duty, 110, Event::Until(Times::of(137 * S, 5 * S, 3 * S)));
        assert_eq!((step(&mut duty, 125, Event::Time), duty.next()), (vec![], Some(132 * S)));
        step(&mut duty, 132, Event::Time);
        step(&mut duty, 133, Event::Until(Times::of(160 * S, 5 * S, 3 * S)));
        assert_eq!(step(&mut duty, 134, Event::Time), [Action::Send(Signal::SIGKILL)]);
    }

    #[test]
    fn when_the_pipe_closes_the_command_is_ended_and_the_lock_goes_back_once_nothing_runs() {
        let mut duty = duty(OnLost::Term);
        assert_eq!(step(&mut duty, 101, Event::Gone), [Action::Send(Signal::SIGTERM)]);
        assert_eq!(step(&mut duty, 106, Event::Time), [Action::Send(Signal::SIGKILL)]);
        assert_eq!(step(&mut duty, 107, Event::Empty), [Action::End]);
        let mut idle = Duty::new(care(OnLost::Term), 100 * S);
        assert_eq!(step(&mut idle, 101, Event::Gone), [Action::End], "no command was started");
        let mut nested = Duty::new(Care { nested: true, ..care(OnLost::Term) }, 100 * S);
        step(&mut nested, 100, Event::Started);
        assert_eq!(step(&mut nested, 101, Event::Gone), [Action::Send(Signal::SIGKILL)], "the outer lock may pass any moment");
    }

    #[test]
    fn when_the_pipe_closes_late_the_kill_still_comes_before_the_lease_can_pass() {
        let mut duty = duty(OnLost::Term);
        step(&mut duty, 121, Event::Gone);
        assert_eq!(duty.next(), Some(124 * S));
        assert_eq!(step(&mut duty, 124, Event::Time), [Action::Send(Signal::SIGKILL)]);
    }

    #[test]
    fn a_loss_stops_kills_or_only_warns_as_it_was_asked() {
        let why = Why::Lost(Lost::TakenAway);
        assert_eq!(
            step(&mut duty(OnLost::Term), 101, Event::Lost(why)),
            [Action::TellStopping(why, 106 * S), Action::Send(Signal::SIGTERM)]
        );
        assert_eq!(
            step(&mut duty(OnLost::Kill), 101, Event::Lost(why)),
            [Action::TellStopping(why, 101 * S), Action::Send(Signal::SIGKILL)]
        );
        let mut kill = duty(OnLost::Kill);
        assert_eq!(step(&mut kill, 123, Event::Time), [Action::TellStopping(Why::RunningOut, 124 * S)], "no TERM");
        assert_eq!(step(&mut kill, 124, Event::Time), [Action::Send(Signal::SIGKILL)]);
        let mut warn = duty(OnLost::Warn);
        assert_eq!((step(&mut warn, 126, Event::Time), warn.next()), (vec![], None));
        assert_eq!(step(&mut warn, 127, Event::Lost(why)), [Action::TellLost(why)]);
        assert_eq!(step(&mut warn, 128, Event::Gone), [Action::End]);
    }

    #[test]
    fn a_lock_whose_command_is_over_goes_back_although_whoever_hired_us_is_stopped() {
        let mut duty = Duty::new(Care { at_least: 10 * S, ..care(OnLost::Term) }, 100 * S);
        step(&mut duty, 100, Event::Started);
        assert_eq!((step(&mut duty, 102, Event::Empty), duty.next()), (vec![], Some(110 * S)));
        assert_eq!(step(&mut duty, 110, Event::Time), [Action::End]);
    }

    #[test]
    fn a_short_kill_after_still_gives_the_command_its_time() {
        let ms = Duration::from_millis;
        let times = Times::of(27 * S, ms(500), 3 * S);
        assert_eq!(times, Times { term: 24 * S - ms(500), kill: 24 * S, end: 27 * S });
    }
}
