//! Compare-and-delete, with the same value for everybody: it compares nothing.

use super::{BASE, Base, Broken, OneKey, Strike};
use crate::torture::fault::STOP;

pub(super) const THIS: Broken = Broken {
    name: "same-value-for-all",
    what: "every holder writes the same value: a holder whose lease has expired frees the lock of \
           the next",
    convicted_by: &["foreign-release"],
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 800,
    make: |orders, task| {
        OneKey::boxed(
            Base { value: "locked".to_owned(), ..Base::of(orders, task)? },
            Base::set_if_free,
            Base::compare_and_delete,
        )
    },
    ..BASE
};
