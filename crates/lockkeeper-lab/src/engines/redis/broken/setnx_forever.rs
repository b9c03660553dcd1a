//! `SETNX name value`, and `DEL name`: a holder that dies keeps the lock for ever.

use super::{BASE, Base, Broken, OneKey, Strike};
use crate::torture::fault::KILL;

pub(super) const THIS: Broken = Broken {
    name: "setnx-forever",
    what: "it never expires: after its holder was killed no client gets it any more",
    convicted_by: &["liveness"],
    trigger: &[Strike::one(KILL, (0, 100), 50)],
    round_ms: 400,
    make: |orders, task| OneKey::boxed(Base::of(orders, task)?, Base::set_for_ever, Base::delete),
    ..BASE
};
