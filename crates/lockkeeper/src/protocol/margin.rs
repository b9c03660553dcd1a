//! How much of a lease is left at any time while its server is healthy.
//!
//! A holder relies on a margin m: it begins to stop its work when m is left of the deadline.
//! Renewals and proofs come so early that a healthy server never lets the rest of the lease fall to
//! the floor below, which lies above m.

use std::time::Duration;

/// The part of a lease that a holder relies on unless it says otherwise.
const DEFAULT_PART: u32 = 5;
/// A lease cannot give a greater margin than this part of it.
const MOST_PART: u32 = 3;

/// The greatest margin that a lease of this length can give.
pub fn most(ttl: Duration) -> Duration {
    ttl / MOST_PART
}

/// What is left of a lease at least, while its server is healthy: never below the margin, and far
/// enough above it for an answer that is late.
///
/// max(1.5 m, m + T/12) for m up to T/5, and m + T/20 above, which grows with m throughout.
pub fn floor(ttl: Duration, margin: Option<Duration>) -> Duration {
    let fifth = ttl / DEFAULT_PART;
    let margin = margin.unwrap_or(fifth).min(most(ttl));
    if margin <= fifth {
        return (margin * 3 / 2).max(margin + ttl / 12);
    }
    (margin + ttl / 20).max(fifth * 3 / 2)
}

/// What is kept of a session's proof for two answers and the timers.
pub(crate) fn reserve(session: Duration) -> Duration {
    session / 20 + Duration::from_millis(100).min(session / 20)
}

/// Whether a session of this length can give the margin, beside so much drift.
///
/// A proof is a quarter of the session old when it comes, and the next one comes a sixteenth and
/// the reserve later at best. What the drift allowance and the floor leave has to hold that.
#[must_use]
pub fn session_gives(session: Duration, margin: Option<Duration>, drift_per_mille: u32) -> bool {
    let usable = session * 1000u32.saturating_sub(drift_per_mille) / 1000;
    usable >= floor(session, margin) + session / 4 + session / 16 + reserve(session)
}

/// The margin that a holder of this session relies on unless it says otherwise.
pub(crate) fn default_of(session: Duration) -> Duration {
    session / DEFAULT_PART
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(60);

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_floor_lies_above_the_margin_and_grows_with_it() {
        assert_eq!(floor(T, Some(s(0))), s(5), "T/12");
        assert_eq!(floor(T, Some(s(5))), s(10), "m + T/12");
        assert_eq!(floor(T, Some(s(12))), s(18), "1.5 m");
        assert_eq!(floor(T, None), s(18), "a fifth by default");
        assert_eq!(floor(T, Some(s(20))), s(23), "m + T/20");
        assert_eq!(floor(T, Some(T)), s(23), "a third at most");
        let all: Vec<Duration> =
            (0..=20_000).map(|ms| floor(T, Some(Duration::from_millis(ms)))).collect();
        assert!(all.windows(2).all(|two| two[0] <= two[1]));
    }

    #[test]
    fn a_session_gives_a_margin_as_long_as_the_oldest_proof_fits_beside_the_drift() {
        // A minute: 18.75 s and the reserve of 3.1 s are the proof's; the rest is floor and drift.
        for (margin, most_percent) in
            [(Some(s(0)), 55), (None, 33), (Some(s(15)), 33), (Some(s(20)), 25)]
        {
            assert!(session_gives(T, margin, most_percent * 10), "{margin:?}, {most_percent} %");
            assert!(
                !session_gives(T, margin, (most_percent + 1) * 10),
                "{margin:?}, above {most_percent} %"
            );
        }
        for session in [1, 4, 15, 60].map(s) {
            assert!(
                session_gives(session, Some(most(session)), 100),
                "{session:?}: every margin beside the default drift"
            );
            assert!(!session_gives(session, None, 500), "{session:?}");
        }
    }
}
