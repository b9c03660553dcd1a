//! All of it right, and no token: a write that was checked, and then was late, lands after the next
//! holder's.

use super::{BASE, Base, Broken, OneKey, Strike};
use crate::torture::fault::STOP;
use crate::torture::raw::Style;

pub(super) const THIS: Broken = Broken {
    name: "no-fencing",
    what: "it has no token to write with: a holder that was stopped before its write writes over \
           the next one's",
    convicted_by: &["lost-update", "late-effect"],
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 700,
    style: Style { hold_ms: (1, 3), write_ms: (10, 40), ..Style::PLAIN },
    make: |orders, task| {
        OneKey::boxed(Base::of(orders, task)?, Base::set_if_free, Base::compare_and_delete)
    },
    ..BASE
};
