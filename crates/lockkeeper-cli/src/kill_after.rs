//! From TERM to KILL: how much of its lease a command needs to end.

use std::time::Duration;

use lockkeeper::margin;
use serde::{Deserialize, Serialize};

use crate::text::spoken;

const DEFAULT: Duration = Duration::from_secs(5);
/// The default is at most this part of the lease.
const DEFAULT_PART: u32 = 5;

/// What `--kill-after` says, if it says anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KillAfter(pub Option<Duration>);

/// How long what carries a hold lasts without renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// A lease of its own: `--ttl`, or the URL's.
    Lease(Duration),
    /// A session, as the URL asks for it, and the URL's drift allowance in thousandths.
    Session(Duration, u32),
    /// A session that the server gave, and how long it was asked to last.
    Negotiated(Duration, Duration),
}

impl Lasts {
    /// How long that is.
    pub fn time(self) -> Duration {
        match self {
            Self::Lease(time) | Self::Session(time, _) | Self::Negotiated(time, _) => time,
        }
    }
}

impl KillAfter {
    /// The time that it stands for: 5 s unless it is given, or a fifth of the lease or session if
    /// that is shorter.
    ///
    /// # Errors
    /// A text that says which options do not agree: it is more than a third, or more than the drift
    /// allowance leaves of a session.
    pub fn of(self, lasts: Lasts) -> Result<Duration, String> {
        let time = self.third(lasts)?;
        match lasts {
            Lasts::Session(session, per_mille)
                if !margin::session_gives(session, Some(time), per_mille) =>
            {
                Err(format!(
                    "drift={}% leaves a session of {} no margin of {}: lower drift or --kill-after",
                    per_mille / 10,
                    spoken(session),
                    spoken(time)
                ))
            }
            _ => Ok(time),
        }
    }

    fn third(self, lasts: Lasts) -> Result<Duration, String> {
        let Some(given) = self.0 else { return Ok(DEFAULT.min(lasts.time() / DEFAULT_PART)) };
        if given <= margin::most(lasts.time()) {
            return Ok(given);
        }
        let whole = given.saturating_mul(3);
        let (given, time) = (spoken(given), spoken(lasts.time()));
        let least =
            spoken(Duration::from_secs(whole.as_secs() + u64::from(whole.subsec_nanos() != 0)));
        Err(match lasts {
            Lasts::Lease(_) => {
                format!(
                    "--kill-after {given} is more than a third of the ttl, {time}: give --ttl \
                     {least} or more, or a shorter --kill-after"
                )
            }
            Lasts::Session(..) => format!(
                "--kill-after {given} is more than a third of the session, {time}: give \
                 session_timeout={least} or more in the URL, or a shorter --kill-after"
            ),
            Lasts::Negotiated(_, asked) => format!(
                "--kill-after {given} is more than a third of the session that the server gave, \
                 {time}, where session_timeout={} was requested: give a shorter --kill-after, or a \
                 session_timeout of {least} or more that the server allows (maxSessionTimeout)",
                spoken(asked)
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn the_default_is_five_seconds_or_a_fifth_of_what_is_shorter() {
        for (lasts, time) in [(30, 5_000), (25, 5_000), (15, 3_000), (4, 800), (86_400, 5_000)] {
            assert_eq!(
                KillAfter(None).of(Lasts::Lease(lasts * S)),
                Ok(Duration::from_millis(time))
            );
            assert_eq!(
                KillAfter(None).of(Lasts::Negotiated(lasts * S, S)),
                Ok(Duration::from_millis(time))
            );
        }
    }

    #[test]
    fn more_than_a_third_is_refused_and_names_the_two_options() {
        assert_eq!(KillAfter(Some(10 * S)).of(Lasts::Lease(30 * S)), Ok(10 * S));
        assert_eq!(KillAfter(Some(Duration::ZERO)).of(Lasts::Session(S, 100)), Ok(Duration::ZERO));
        let cases = [
            (Lasts::Lease(30 * S), "--ttl 33s"),
            (Lasts::Session(15 * S, 100), "session_timeout=33s"),
            (Lasts::Negotiated(10 * S, 60 * S), "maxSessionTimeout"),
        ];
        for (lasts, option) in cases {
            let why = KillAfter(Some(11 * S)).of(lasts).unwrap_err();
            assert!(why.contains("--kill-after 11s") && why.contains(option), "{why}");
        }
    }
    #[test]
    fn what_the_drift_allowance_does_not_leave_is_refused_also_the_default() {
        let third = KillAfter(Some(5 * S));
        for (kill_after, most) in
            [(KillAfter(None), 330), (third, 240), (KillAfter(Some(Duration::ZERO)), 500)]
        {
            assert!(kill_after.of(Lasts::Session(15 * S, most)).is_ok(), "{kill_after:?}, {most}");
        }
        let why = KillAfter(None).of(Lasts::Session(15 * S, 500)).unwrap_err();
        assert_eq!(
            why,
            "drift=50% leaves a session of 15s no margin of 3s: lower drift or --kill-after"
        );
        assert!(KillAfter(None).of(Lasts::Session(15 * S, 340)).is_err());
        assert!(third.of(Lasts::Session(15 * S, 250)).unwrap_err().contains("no margin of 5s"));
    }
}
