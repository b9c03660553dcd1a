//! A lease that nobody renews and nobody looks at, for work that sometimes takes longer.

use std::io;

use super::{BASE, Base, Broken, OneKey};
use crate::torture::raw::{GiveUp, Grant, Long, Style};

pub(super) const THIS: Broken = Broken {
    name: "no-watchdog",
    what: "it never renews the lease, and work that takes longer goes on beside the next holder's",
    convicted_by: &["overlap"],
    style: Style { long_one_in: 8, long: Long::Ms(450), ..Style::PLAIN },
    make: |orders, task| {
        OneKey::boxed(Base::of(orders, task)?, set_and_forget, Base::compare_and_delete)
    },
    ..BASE
};

/// It knows of no deadline.
fn set_and_forget(base: &mut Base, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
    Ok(base.set_if_free(name, give_up)?.map(|_| Grant::default()))
}
