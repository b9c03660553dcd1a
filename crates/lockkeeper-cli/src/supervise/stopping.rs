//! How a command is stopped: asked first, then not asked.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::start::Moment;

/// The stopping of one command; a pure machine that is told the time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stopping {
    kill_at: Option<Moment>,
    killed: bool,
}

impl Stopping {
    /// Asks for the end: TERM now, KILL after `kill_after`. A second demand can only bring the KILL
    /// forward.
    pub fn term(&mut self, now: Moment, kill_after: Duration) -> Option<Signal> {
        if kill_after.is_zero() {
            return self.kill(now);
        }
        let at = now.saturating_add(kill_after);
        let first = self.kill_at.is_none();
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
        first.then_some(Signal::SIGTERM)
    }

    /// It is to be gone by then. `ask`: TERM now, unless it was asked before; else somebody else
    /// asks.
    pub fn by(&mut self, at: Moment, ask: bool) -> Option<Signal> {
        let first = self.kill_at.is_none();
        self.kill_at = Some(self.kill_at.map_or(at, |earlier| earlier.min(at)));
        (first && ask).then_some(Signal::SIGTERM)
    }

    /// Ends it now.
    pub fn kill(&mut self, now: Moment) -> Option<Signal> {
        self.kill_at = Some(now);
        self.due(now)
    }

    /// What the time asks for.
    pub fn due(&mut self, now: Moment) -> Option<Signal> {
        if self.killed || self.kill_at.is_none_or(|at| now < at) {
            return None;
        }
        self.killed = true;
        Some(Signal::SIGKILL)
    }

    /// When [`Stopping::due`] is to be asked next.
    pub fn next(&self) -> Option<Moment> {
        if self.killed { None } else { self.kill_at }
    }

    /// Whether the end was asked for.
    pub fn is_under_way(&self) -> bool {
        self.kill_at.is_some()
    }

    /// Whether KILL was sent.
    pub fn was_killed(&self) -> bool {
        self.killed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn term_comes_once_and_kill_once_when_its_time_has_come() {
        let mut stopping = Stopping::default();
        assert_eq!(stopping.due(100 * S), None);
        assert_eq!(stopping.term(100 * S, 5 * S), Some(Signal::SIGTERM));
        assert_eq!(stopping.term(101 * S, 5 * S), None);
        assert_eq!((stopping.due(104 * S), stopping.next()), (None, Some(105 * S)));
        assert_eq!(stopping.due(105 * S), Some(Signal::SIGKILL));
        assert_eq!((stopping.due(106 * S), stopping.next()), (None, None));
    }

    #[test]
    fn a_later_demand_brings_the_kill_forward_and_never_back() {
        let mut stopping = Stopping::default();
        stopping.term(100 * S, 60 * S);
        stopping.term(101 * S, 5 * S);
        assert_eq!(stopping.next(), Some(106 * S));
        assert_eq!(stopping.kill(102 * S), Some(Signal::SIGKILL));
        assert_eq!(stopping.kill(103 * S), None);
    }

    #[test]
    fn no_time_to_end_is_a_kill_at_once() {
        assert_eq!(Stopping::default().term(S, Duration::ZERO), Some(Signal::SIGKILL));
    }
}
