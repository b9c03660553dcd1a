//! What one process tells another, and how it is written.

use super::record::Us;
use crate::words::id::ClaimId;

/// A word to the process that listens on a channel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(in crate::engine) enum Push {
    /// It stood in line and was granted, until its claim lease is over.
    Granted {
        claim: ClaimId,
        number: u64,
        /// The server's time of the grant.
        now: Us,
        lease: Us,
        /// The row's version from then on: it tells which of two answers is the later one.
        version: i64,
    },
    /// It is first in line now, and should look in so long.
    First { claim: ClaimId, rest: Us },
    /// It should give a sign of life.
    Alive { claim: ClaimId },
    /// Its hold was taken away.
    Taken { claim: ClaimId },
}

impl Push {
    /// As it is sent.
    pub(in crate::engine) fn text(&self) -> String {
        match self {
            Self::Granted { claim, number, now, lease, version } => {
                format!("granted {claim} {number} {now} {lease} {version}")
            }
            Self::First { claim, rest } => format!("first {claim} {rest}"),
            Self::Alive { claim } => format!("alive {claim}"),
            Self::Taken { claim } => format!("taken {claim}"),
        }
    }

    /// Reads it; `None` for anything else, such as a word of a later release.
    pub(in crate::engine) fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let (word, claim) = (words.first()?, ClaimId::parse(words.get(1)?)?);
        Some(match (*word, words.get(2..)?) {
            ("granted", [number, now, lease, version]) => Self::Granted {
                claim,
                number: number.parse().ok()?,
                now: now.parse().ok()?,
                lease: lease.parse().ok()?,
                version: version.parse().ok()?,
            },
            ("first", [rest]) => Self::First { claim, rest: rest.parse().ok()? },
            ("alive", []) => Self::Alive { claim },
            ("taken", []) => Self::Taken { claim },
            _ => return None,
        })
    }
}
