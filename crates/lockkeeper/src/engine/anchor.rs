//! Where the server's clock stands on ours (R1).
//!
//! Every answer carries the server's time S₀; it is kept with the reading t₀ that was taken before
//! the request left. So whatever happens on the server at S did not happen before t₀ + (S − S₀),
//! less what the clocks may drift apart.
//!
//! If our clock may have stood still meanwhile, as a step of the time of day may mean, then what
//! was heard before that dates nothing that the server tells after it: N2.

use std::time::Duration;

use crate::words::clock::Ticks;

/// One pair of readings, S₀ and t₀.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) struct Anchor {
    server_us: u64,
    before: Ticks,
}

impl Anchor {
    /// From an answer: the server's time in it, and our reading before the request was sent.
    pub(in crate::engine) fn new(server_us: u64, before: Ticks) -> Self {
        Self { server_us, before }
    }

    /// The latest instant before which something that happened at `pushed_us` on the server cannot
    /// have happened, for a push that was read at `receipt`: min(receipt, t₀ + (S − S₀)(1 −
    /// drift)).
    pub(in crate::engine) fn since(
        self,
        pushed_us: u64,
        receipt: Ticks,
        drift_permille: u32,
    ) -> Ticks {
        let instant = match pushed_us.checked_sub(self.server_us) {
            Some(later) => {
                let nanos = u128::from(later) * u128::from(1000 - drift_permille.min(1000));
                self.before.plus(Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
            }
            // Older than the anchor, or the server's clock was set back: the further back, the
            // safer.
            None => self.before.minus(Duration::from_micros(self.server_us - pushed_us)),
        };
        instant.min(receipt)
    }

    /// The server's time at one of our instants; never too early, late by a round trip at most
    /// (drift apart).
    pub(in crate::engine) fn server_us_at(self, at: Ticks) -> u64 {
        let later = at.since(self.before);
        let earlier = self.before.since(at);
        let us = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        self.server_us.saturating_add(us(later)).saturating_sub(us(earlier))
    }

    /// The server's time at one of our instants, were its clock a thousandth slower than ours; with
    /// a reading from after the answer it is a time that the clock has reached.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn server_us_slowly(self, at: Ticks) -> u64 {
        let later = at.since(self.before).as_micros() * 999 / 1000;
        self.server_us.saturating_add(u64::try_from(later).unwrap_or(u64::MAX))
    }

    /// The server's time at one of our instants, were its clock a thousandth faster than ours: of a
    /// clock that may be slow, and of an anchor that may be old, never too early.
    #[cfg(feature = "redlock")]
    pub(in crate::engine) fn server_us_quickly(self, at: Ticks) -> u64 {
        let ahead = at.since(self.before).as_micros() / 1000;
        self.server_us_at(at).saturating_add(u64::try_from(ahead).unwrap_or(u64::MAX))
    }

    /// Whether it is of before this instant.
    pub(in crate::engine) fn is_before(self, at: Ticks) -> bool {
        self.before < at
    }

    /// The better of two: the later one, because drift grows with age.
    pub(in crate::engine) fn newer(self, other: Self) -> Self {
        if other.before >= self.before { other } else { self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;
    fn at(ms: u64) -> Ticks {
        Ticks(ms * 1_000_000)
    }

    #[test]
    fn r1_a_push_counts_from_the_anchor_and_not_from_when_it_was_read() {
        let anchor = Anchor::new(1_000 * SECOND, at(10_000));
        // Granted one second after the anchor, read at once: a tenth is taken off for drift.
        assert_eq!(anchor.since(1_001 * SECOND, at(11_001), 100), at(10_900));
        // Read after a pause of a minute: still counted from the anchor, so that it is over.
        assert_eq!(anchor.since(1_001 * SECOND, at(71_000), 100), at(10_900));
        // A server whose clock ran ahead cannot move the instant past the receipt.
        assert_eq!(anchor.since(5_000 * SECOND, at(11_000), 100), at(11_000));
        // A server whose clock was set back only shortens.
        assert_eq!(anchor.since(999 * SECOND, at(11_000), 100), at(9_000));
    }

    #[test]
    fn r3_the_servers_time_of_an_instant_is_never_too_early() {
        let anchor = Anchor::new(1_000 * SECOND, at(10_000));
        assert_eq!(anchor.server_us_at(at(12_500)), 1_002 * SECOND + SECOND / 2);
        assert_eq!(anchor.server_us_at(at(9_000)), 999 * SECOND);
        assert_eq!(anchor.newer(Anchor::new(1, at(10_001))), Anchor::new(1, at(10_001)));
    }
}
