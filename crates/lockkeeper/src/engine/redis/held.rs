//! Whether a hold is still there: asked by renewing it.

use crate::engine::{Attempt, Grant, Lease, Number, Renewal};
use crate::error::{Error, ErrorKind};
use crate::id::ClaimId;

/// What the renewal of a hold says about it.
pub(super) fn still_there(id: ClaimId, renewal: Option<Renewal>) -> Attempt {
    match renewal {
        Some(Renewal::Extended { ttl, since }) => {
            let lease = Lease { id: id.into(), ttl, since, confirm: false };
            Attempt::Granted(Grant { number: Number::None, lease: Some(lease) })
        }
        Some(Renewal::Unknown(error)) => Attempt::Unknown(error),
        _ => Attempt::Failed(Error::new(ErrorKind::Lost, "the hold is not ours any more")),
    }
}
