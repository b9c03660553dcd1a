//! What answers mean: the grants in them, and when to ask again.

use std::time::Duration;

use super::Held;
use crate::engine::sql::ask::Reply;
use crate::engine::sql::line::{CLAIM_LEASE, claim_lease};
use crate::engine::sql::record::{Us, left};
use crate::engine::{Attempt, Grant, Lease, Number, Place};
use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind};
use crate::words::id::{ClaimId, HoldId, LeaseId};
use crate::words::name::Kind;

/// How soon somebody in line asks again when nothing says when.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// How soon the first in line looks to whom nobody tells anything, and whoever is behind it: each
/// has to give a sign of life within half a second of being asked for one, and finds the question
/// when it looks.
const LOOKS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(250));

/// In what time a place is to look that hears nothing: before a grant of a claim lease is over.
pub(super) fn look_without_words(ahead: usize, ttl: Us) -> Duration {
    let look = if ahead == 0 { LOOKS.0 } else { LOOKS.1 };
    look.min(left(claim_lease(ttl)) / 2)
}

pub(super) fn lease_of(id: ClaimId, hold: Option<HoldId>) -> LeaseId {
    hold.unwrap_or(id).into()
}

pub(super) fn number_of(kind: Kind, number: u64) -> Number {
    if kind == Kind::Semaphore { Number::None } else { Number::Ours(number) }
}

/// What an answer says that comes when its claim is held already, because a push or another answer
/// was faster. A lower number is that of a grant that was over before.
pub(super) fn crossed(id: ClaimId, held: &Held, before: Ticks, reply: &Reply) -> Attempt {
    match *reply {
        Reply::Granted { number, lease } if number >= held.number => {
            let lease =
                Lease { id: id.into(), ttl: left(lease), since: Some(before), confirm: false };
            Attempt::Granted(Grant { number: number_of(held.kind, number), lease: Some(lease) })
        }
        // It was in line when the server answered; the grant came behind.
        Reply::InLine { ahead, .. } => {
            Attempt::InLine(Place { ahead: u32::try_from(ahead).ok(), ..Place::default() })
        }
        // The hold's own lease decides.
        _ => Attempt::Unknown(grant_crossed()),
    }
}

/// A word that grants it came while it was asked about: the hold's own lease decides.
pub(super) fn grant_crossed() -> Error {
    Error::new(ErrorKind::Unknown, "the answer crossed a grant")
}

/// In what time to look at a lease of which so much is left.
pub(super) fn look_in(rest: Us) -> Duration {
    if rest <= 0 { ASK_AGAIN } else { left(rest) + Duration::from_millis(1) }
}

/// The first in line asks when the lease before it ends, whoever is behind it one claim lease
/// later: those before it may be dead. `turn` is 0 for the first, and `None` for a place that
/// others look after.
pub(super) fn ask_at(now: Ticks, turn: Option<u32>, rest: Us, ttl: Us) -> Option<Ticks> {
    let lease = left(claim_lease(ttl).min(CLAIM_LEASE));
    turn.map(|turn| now.plus(look_in(rest) + lease * turn.min(1)))
}
