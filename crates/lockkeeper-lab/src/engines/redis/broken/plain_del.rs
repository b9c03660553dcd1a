//! `SET name value NX PX ttl`, and `DEL name`: it frees whoever's lock it is by then.

use super::{BASE, Base, Broken, OneKey, Strike};
use crate::torture::fault::STOP;

pub(super) const THIS: Broken = Broken {
    name: "plain-del",
    what: "it deletes by name alone: a holder whose lease has expired frees the lock of the next",
    convicted_by: &["foreign-release"],
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 800,
    make: |orders, task| OneKey::boxed(Base::of(orders, task)?, Base::set_if_free, Base::delete),
    ..BASE
};
