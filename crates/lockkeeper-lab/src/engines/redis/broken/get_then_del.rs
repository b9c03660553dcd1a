//! `GET name`, compare, `DEL name`: what was true at the first need not be at the second.

use std::io;

use super::{BASE, Base, Broken, OneKey, Strike};
use crate::torture::raw::{Ending, Style};

pub(super) const THIS: Broken = Broken {
    name: "get-then-del",
    what: "comparing and deleting are two commands: when the lease ends between them it frees the \
           lock of the next",
    convicted_by: &["overlap", "hold-vanished"],
    trigger: &[Strike::one("hold-replies", (0, 50), 350)],
    round_ms: 500,
    style: Style {
        hold_ms: (1, 3),
        long_one_in: 3,
        long: crate::torture::raw::Long::Ms(60),
        rest_ms: (0, 3),
        ..Style::PLAIN
    },
    make: |orders, task| OneKey::boxed(Base::of(orders, task)?, Base::set_if_free, get_then_del),
    ..BASE
};

fn get_then_del(base: &mut Base) -> io::Result<Ending> {
    if base.wire.ask(&["GET", &base.name])?.text() != Some(base.value.as_str()) {
        return Ok(Ending::NotOurs);
    }
    base.delete()
}
