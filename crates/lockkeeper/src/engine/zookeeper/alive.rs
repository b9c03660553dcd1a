//! What the server's answers prove about the session (R1): a pure machine.
//!
//! The session expires when its *leader* has heard nothing of it for the session timeout. A ping, or a read, is answered
//! by the server that we are connected to; that server tells the leader of it only with the leader's next own ping, and
//! one that is cut off from the leader goes on answering for seconds. So an answer proves nothing by itself.
//!
//! An acknowledged write went to the leader behind everything that the server had to tell it, on the same ordered
//! channel. Hence: what the server heard of us long enough before we sent that write for the leader's ping to come by,
//! the leader had heard when the write was committed. The leader pings twice a tick, and a session lasts two ticks at
//! least, so that is a quarter of the session timeout.

use std::collections::VecDeque;
use std::time::Duration;

use crate::clock::Ticks;

/// Something that the server heard of us at some time in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Touch {
    sent: Ticks,
    answered: Ticks,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Alive {
    timeout: Duration,
    /// Answered requests that no write has proven yet, oldest first and spaced.
    touches: VecDeque<Touch>,
    /// The session was certainly renewed at this time or later.
    proven: Ticks,
    /// The session was taken up again by what may have been a deposed leader; the next acknowledged write proves it.
    resumed: Option<Ticks>,
    /// When the last acknowledged write was sent.
    written: Ticks,
}

impl Alive {
    /// A new session was made, which is a write of its own.
    pub(super) fn created(&mut self, sent: Ticks, timeout: Duration) {
        *self = Self { timeout, proven: sent, written: sent, ..Self::default() };
    }

    /// A connection took the session up again: its leader was asked, and heard of us by that.
    pub(super) fn resumed(&mut self, sent: Ticks, timeout: Duration) {
        self.timeout = timeout;
        self.touches.clear();
        self.resumed = Some(sent);
    }

    /// Any request was answered; `write`: by the quorum.
    pub(super) fn answered(&mut self, sent: Ticks, now: Ticks, write: bool) {
        if write {
            self.written = self.written.max(sent);
            self.proven = self.proven.max(self.resumed.take().unwrap_or_default());
            while let Some(touch) = self.touches.front().filter(|t| t.answered.plus(self.relay()) <= sent) {
                self.proven = self.proven.max(touch.sent);
                self.touches.pop_front();
            }
        }
        // Spaced, so that a busy session keeps few of them.
        let space = self.timeout / 16;
        if self.touches.back().is_none_or(|last| sent >= last.sent.plus(space)) {
            // A write that is sent from now on proves the later one, and so the first is of no use any more.
            while self.touches.get(1).is_some_and(|next| next.answered.plus(self.relay()) <= sent) {
                self.touches.pop_front();
            }
            self.touches.push_back(Touch { sent, answered: now });
        }
    }

    /// How long the connected server may keep to itself what it heard of us.
    fn relay(&self) -> Duration {
        self.timeout / 4
    }

    /// When the last acknowledged write was sent.
    pub(super) fn last_write(&self) -> Ticks {
        self.written
    }

    /// How long the session certainly lasts from `now` if it is never renewed again; the drift allowance of the part that
    /// is over is taken off, the keeper takes off that of the rest. Zero when nothing is known.
    pub(super) fn left(&self, now: Ticks, drift_per_mille: u32) -> Duration {
        let age = now.since(self.proven);
        let whole = u128::from(1000u32.saturating_sub(drift_per_mille).max(1));
        let stretched = age.as_nanos() * 1000 / whole;
        self.timeout.saturating_sub(Duration::from_nanos(u64::try_from(stretched).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(16);

    fn at(ms: u64) -> Ticks {
        Ticks(ms * 1_000_000)
    }

    fn connected() -> Alive {
        let mut alive = Alive::default();
        alive.created(at(1_000), T);
        alive
    }

    #[test]
    fn r1_pings_and_reads_prove_nothing_however_many_are_answered() {
        let mut alive = connected();
        for n in 2..60 {
            alive.answered(at(n * 1_000), at(n * 1_000 + 5), false);
        }
        assert_eq!(alive.left(at(9_000), 0), Duration::from_secs(8), "of the connect's sixteen");
        assert_eq!(alive.left(at(60_000), 0), Duration::ZERO);
    }

    #[test]
    fn z1_a_write_proves_what_was_answered_a_quarter_of_the_timeout_before_it_was_sent() {
        let mut alive = connected();
        alive.answered(at(5_000), at(5_100), false);
        alive.answered(at(9_200), at(9_250), true);
        assert_eq!(alive.left(at(9_250), 0), T - Duration::from_millis(4_250), "the ping of 5.0 s, answered 4.1 s before");
        let mut alive = connected();
        alive.answered(at(5_000), at(5_300), false);
        alive.answered(at(9_200), at(9_250), true);
        assert_eq!(alive.left(at(9_250), 0), T - Duration::from_millis(8_250), "answered 3.9 s before: it may not have been passed on");
        alive.answered(at(9_400), at(9_450), true);
        assert_eq!(alive.left(at(9_450), 0), T - Duration::from_millis(4_450), "the next write does prove it");
    }

    #[test]
    fn a_write_does_not_prove_itself() {
        let mut alive = connected();
        alive.answered(at(10_000), at(10_001), true);
        assert_eq!(alive.left(at(11_000), 0), Duration::from_secs(6));
        assert_eq!(alive.last_write(), at(10_000));
    }

    #[test]
    fn the_drift_of_what_is_over_is_taken_off() {
        let alive = connected();
        let left = alive.left(at(10_000), 100);
        assert_eq!(left, T - Duration::from_secs(10));
        assert_eq!(left.mul_f64(0.9) + Duration::from_secs(9), T.mul_f64(0.9), "deadline = proven + 0.9 T, as if counted from there");
    }

    #[test]
    fn a_busy_session_remembers_few_answers_and_a_new_connection_none() {
        let mut alive = connected();
        for n in 0..100_000 {
            alive.answered(at(2_000 + n), at(2_001 + n), n % 7 == 0);
        }
        assert!(alive.touches.len() <= 5, "{}", alive.touches.len());
        assert!(alive.left(at(102_000), 0) >= T * 11 / 16);
        alive.resumed(at(103_000), T);
        assert!(alive.touches.is_empty());
    }

    #[test]
    fn an_idle_session_remembers_few_answers_however_long_it_writes_nothing() {
        let mut alive = connected();
        for n in 2..100_000 {
            alive.answered(at(n * 1_000), at(n * 1_000 + 5), false);
        }
        assert!(alive.touches.len() <= 8, "{}", alive.touches.len());
        alive.answered(at(100_000_100), at(100_000_105), true);
        assert_eq!(alive.left(at(100_000_105), 0), T - Duration::from_millis(4_105), "the latest that is a quarter of the timeout old");
    }

    #[test]
    fn z5_a_session_taken_up_again_is_proven_by_the_next_write_only() {
        let mut alive = connected();
        alive.resumed(at(8_000), T);
        alive.answered(at(8_100), at(8_200), false);
        assert_eq!(alive.left(at(9_000), 0), Duration::from_secs(8), "the leader that was asked may be none any more");
        alive.answered(at(8_900), at(9_000), true);
        assert_eq!(alive.left(at(9_000), 0), Duration::from_secs(15));
    }
}
