//! Why a hold ended without being released.

use std::fmt;

/// Why a hold ended without being released by its holder. Final: a lost hold never comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lost {
    /// Its local deadline passed before a renewal was answered.
    Expired,
    /// The time of day was set forward, and the engine did not say in time that it lasts.
    ClockStepped,
    /// Its record is gone or belongs to somebody else: a forced release, an operator's delete, a
    /// takeover.
    TakenAway,
    /// The lock file was replaced or deleted while it was held.
    Replaced,
    /// The session that carried it ended, or another one took its place.
    SessionEnded,
    /// It was held longer than its `hold_at_most`.
    HeldTooLong,
    /// Its `Locks` was closed.
    Closed,
    /// It was released; a clone of its `Held` still asks.
    Released,
    /// This process is a fork of the one that holds it.
    Forked,
}

impl Lost {
    /// Every reason of this release. A later release may have more.
    pub const ALL: &'static [Self] = &[
        Self::Expired,
        Self::ClockStepped,
        Self::TakenAway,
        Self::Replaced,
        Self::SessionEnded,
        Self::HeldTooLong,
        Self::Closed,
        Self::Released,
        Self::Forked,
    ];

    /// A stable word for JSON and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::ClockStepped => "clock-stepped",
            Self::TakenAway => "taken-away",
            Self::Replaced => "replaced",
            Self::SessionEnded => "session-ended",
            Self::HeldTooLong => "held-too-long",
            Self::Closed => "closed",
            Self::Released => "released",
            Self::Forked => "forked",
        }
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out before a renewal was answered",
            Self::ClockStepped => {
                "the time of day was set forward, and no renewal was answered since"
            }
            Self::TakenAway => "it was taken away: by release --force, or its record was deleted",
            Self::Replaced => "its lock file was replaced or deleted",
            Self::SessionEnded => "the session that carried it ended",
            Self::HeldTooLong => "it was held longer than hold_at_most allows",
            Self::Closed => "its Locks was closed",
            Self::Released => "it was released",
            Self::Forked => "this process is a fork of the holder",
        })
    }
}
