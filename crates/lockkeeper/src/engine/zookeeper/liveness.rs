//! What the server's answers prove about the session (R1): a pure machine.
//!
//! The session expires when its *leader* has heard nothing of it for the session timeout. A ping,
//! or a read, is answered by the server that we are connected to; that server tells the leader of
//! it only with the leader's next own ping, and one that is cut off from the leader goes on
//! answering for seconds. So an answer proves nothing by itself.
//!
//! An acknowledged write went to the leader behind everything that the server had to tell it, on
//! the same ordered channel. Hence: what the server heard of us long enough before we sent that
//! write for the leader's ping to come by, the leader had heard when the write was committed. The
//! leader pings twice a tick, and a session lasts two ticks at least, so that is a quarter of the
//! session timeout.
//!
//! So a proof is a quarter of the timeout old when it comes, and the next one has to be prepared
//! long before this one is too old for those who hold: [`Alive::plan`] says when to touch the
//! server, and when to write.

use std::collections::VecDeque;
use std::time::Duration;

use crate::protocol::margin;
use crate::words::clock::Ticks;

/// A server that nothing was sent to for this part of the timeout is touched. A hold that comes
/// with the greatest margin rests on the touches of before: they must not be further apart than a
/// period.
pub(super) const QUIET_PART: u32 = 8;
/// Touches are at least this part of the timeout apart.
const SPACES: u32 = 32;

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
    /// The session was taken up again by what may have been a deposed leader; the next acknowledged
    /// write proves it.
    resumed: Option<Ticks>,
}

/// When to send what, so that no proof grows older than those who hold can bear.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Plan {
    /// Something that the server answers, unless something was sent at that time or later.
    pub(super) touch: Ticks,
    /// A write.
    pub(super) write: Option<Ticks>,
}

impl Alive {
    /// A new session was made, which is a write of its own.
    pub(super) fn created(&mut self, sent: Ticks, timeout: Duration) {
        *self = Self { timeout, proven: sent, ..Self::default() };
    }

    /// A connection took the session up again: its leader was asked, and heard of us by that.
    pub(super) fn resumed(&mut self, sent: Ticks, timeout: Duration) {
        self.timeout = timeout;
        self.touches.clear();
        self.resumed = Some(sent);
    }

    /// Any request was answered; `write`: by the quorum. Answers whether more is proven now.
    /// `longest`: as in [`Self::plan`].
    pub(super) fn answered(
        &mut self,
        sent: Ticks,
        now: Ticks,
        write: bool,
        longest: Option<Duration>,
    ) -> bool {
        let before = self.proven;
        if write {
            self.proven = self.proven.max(self.resumed.take().unwrap_or_default());
            while let Some(touch) =
                self.touches.front().filter(|t| t.answered.plus(self.relay()) <= sent)
            {
                self.proven = self.proven.max(touch.sent);
                self.touches.pop_front();
            }
        }
        // Spaced, so that a busy session keeps few of them; but one that was planned is kept.
        let space = self.timeout / SPACES;
        let later = |last: &Touch| {
            sent > last.sent && (sent >= last.sent.plus(space) || self.is_planned(sent, longest))
        };
        if self.touches.back().is_none_or(later) {
            // A write that was sent a quarter ago proves the later one: the first is of use only to
            // one that is under way for longer.
            let long_ago = sent.minus(self.relay());
            while self
                .touches
                .get(1)
                .is_some_and(|next| next.answered.plus(self.relay()) <= long_ago)
            {
                self.touches.pop_front();
            }
            self.touches.push_back(Touch { sent, answered: now });
        }
        self.proven > before
    }

    /// When the session was certainly renewed, or later.
    pub(super) fn proven(&self) -> Ticks {
        self.proven
    }

    fn is_planned(&self, sent: Ticks, longest: Option<Duration>) -> bool {
        longest.is_some_and(|longest| sent >= self.plan(longest).touch)
    }

    /// How old a proof may grow, so that `floor` is left of the deadline that rests on it.
    pub(super) fn longest(&self, floor: Duration, drift_per_mille: u32) -> Duration {
        let usable = self.timeout * 1000u32.saturating_sub(drift_per_mille) / 1000;
        usable.saturating_sub(floor)
    }

    /// What to send so that no proof grows older than `longest`, with as few writes as that takes.
    ///
    /// Each write rests on one touch, which is answered a quarter of the timeout before the write
    /// is sent. The touch for the next one is due a period after it, where period + quarter +
    /// reserve = longest, and the reserve is what two answers and the timers may take. Where the
    /// period is shorter than the quarter, several touches are on their way to their writes at
    /// once. What others send counts, too: a touch that came by itself, a write that proved more.
    pub(super) fn plan(&self, longest: Duration) -> Plan {
        let reserve = self.reserve();
        let period = longest.saturating_sub(self.relay() + reserve).max(self.timeout / 16);
        let next = |aim: Ticks| self.touches.iter().find(|touch| touch.sent >= aim.plus(period));
        let ripe = |touch: &Touch| touch.answered.plus(self.relay());
        // By then the write has to be sent, on whichever touch it can rest.
        let last = self.proven.plus(longest.saturating_sub(reserve / 2));
        let (mut aim, mut write) = (self.proven, None);
        match next(aim) {
            Some(touch) if ripe(touch) <= last => (aim, write) = (touch.sent, Some(ripe(touch))),
            planned => {
                let mut newer = self.touches.iter().filter(|touch| touch.sent > self.proven);
                // Late: the first that can be proven at all, or better the latest that is ripe by
                // then.
                let first = newer.next();
                let chosen = newer.take_while(|touch| ripe(touch) <= last).last().or(first);
                if let Some(touch) = chosen {
                    write = Some(ripe(touch).max(last));
                    if planned.is_some() {
                        aim = touch.sent;
                    }
                }
            }
        }
        while let Some(touch) = next(aim) {
            aim = touch.sent;
        }
        Plan { touch: aim.plus(period), write }
    }

    /// What is left of `longest` for two answers and the timers.
    fn reserve(&self) -> Duration {
        margin::reserve(self.timeout)
    }

    /// How long the connected server may keep to itself what it heard of us.
    fn relay(&self) -> Duration {
        self.timeout / 4
    }

    /// How long the session certainly lasts from `now` if it is never renewed again; the drift
    /// allowance of the part that is over is taken off, the keeper takes off that of the rest. Zero
    /// when nothing is known.
    pub(super) fn left(&self, now: Ticks, drift_per_mille: u32) -> Duration {
        let age = now.since(self.proven);
        let whole = u128::from(1000u32.saturating_sub(drift_per_mille).max(1));
        let stretched = age.as_nanos() * 1000 / whole;
        self.timeout
            .saturating_sub(Duration::from_nanos(u64::try_from(stretched).unwrap_or(u64::MAX)))
    }
}

#[cfg(test)]
mod relayed;
#[cfg(test)]
mod searched;

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
            alive.answered(at(n * 1_000), at(n * 1_000 + 5), false, None);
        }
        assert_eq!(alive.left(at(9_000), 0), Duration::from_secs(8), "of the connect's sixteen");
        assert_eq!(alive.left(at(60_000), 0), Duration::ZERO);
    }

    #[test]
    fn z1_a_write_proves_what_was_answered_a_quarter_of_the_timeout_before_it_was_sent() {
        let mut alive = connected();
        alive.answered(at(5_000), at(5_100), false, None);
        alive.answered(at(9_200), at(9_250), true, None);
        assert_eq!(
            alive.left(at(9_250), 0),
            T - Duration::from_millis(4_250),
            "the ping of 5.0 s, answered 4.1 s before"
        );
        let mut alive = connected();
        alive.answered(at(5_000), at(5_300), false, None);
        alive.answered(at(9_200), at(9_250), true, None);
        assert_eq!(
            alive.left(at(9_250), 0),
            T - Duration::from_millis(8_250),
            "answered 3.9 s before: it may not have been passed on"
        );
        alive.answered(at(9_400), at(9_450), true, None);
        assert_eq!(
            alive.left(at(9_450), 0),
            T - Duration::from_millis(4_450),
            "the next write does prove it"
        );
    }

    #[test]
    fn a_write_does_not_prove_itself() {
        let mut alive = connected();
        alive.answered(at(10_000), at(10_001), true, None);
        assert_eq!(alive.left(at(11_000), 0), Duration::from_secs(6));
    }

    #[test]
    fn the_drift_of_what_is_over_is_taken_off() {
        let alive = connected();
        let left = alive.left(at(10_000), 100);
        assert_eq!(left, T - Duration::from_secs(10));
        assert_eq!(
            left.mul_f64(0.9) + Duration::from_secs(9),
            T.mul_f64(0.9),
            "deadline = proven + 0.9 T, as if counted from there"
        );
    }

    #[test]
    fn a_busy_session_remembers_few_answers_and_a_new_connection_none() {
        let mut alive = connected();
        for n in 0..100_000 {
            alive.answered(at(2_000 + n), at(2_001 + n), n % 7 == 0, None);
        }
        assert!(alive.touches.len() <= 20, "{}", alive.touches.len());
        assert!(alive.left(at(102_000), 0) >= T * 11 / 16);
        alive.resumed(at(103_000), T);
        assert!(alive.touches.is_empty());
    }

    #[test]
    fn an_idle_session_remembers_few_answers_however_long_it_writes_nothing() {
        let mut alive = connected();
        for n in 2..100_000 {
            alive.answered(at(n * 1_000), at(n * 1_000 + 5), false, None);
        }
        assert!(alive.touches.len() <= 20, "{}", alive.touches.len());
        alive.answered(at(100_000_100), at(100_000_105), true, None);
        assert_eq!(
            alive.left(at(100_000_105), 0),
            T - Duration::from_millis(4_105),
            "the latest that is a quarter of the timeout old"
        );
    }

    #[test]
    fn z5_a_session_taken_up_again_is_proven_by_the_next_write_only() {
        let mut alive = connected();
        alive.resumed(at(8_000), T);
        alive.answered(at(8_100), at(8_200), false, None);
        assert_eq!(
            alive.left(at(9_000), 0),
            Duration::from_secs(8),
            "the leader that was asked may be none any more"
        );
        alive.answered(at(8_900), at(9_000), true, None);
        assert_eq!(alive.left(at(9_000), 0), Duration::from_secs(15));
    }
}
