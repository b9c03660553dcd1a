//! The lease is counted from when the answer was read: the server began earlier.

use std::io;

use super::{BASE, Base, Broken, OneKey, Strike, whole_lease};
use crate::history::Writer;
use crate::torture::raw::{GiveUp, Grant, Long, Style};

pub(super) const THIS: Broken = Broken {
    name: "deadline-from-reply",
    what: "its deadline counts from the reply, which came late: it holds while the server has \
           given the lock to the next",
    convicted_by: &["overlap"],
    trigger: &[Strike::one("slow-link", (0, 100), 900)],
    round_ms: 1_000,
    style: Style { long_one_in: 2, long: Long::ToDeadline, rest_ms: (20, 60), ..Style::PLAIN },
    make: |orders, task| {
        OneKey::boxed(Base::of(orders, task)?, set_and_count_late, Base::compare_and_delete)
    },
    ..BASE
};

fn set_and_count_late(base: &mut Base, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
    let got = base.set_if_free(name, give_up)?;
    Ok(got.map(|_| Grant { token: 0, deadline: Writer::now() + whole_lease() }))
}
