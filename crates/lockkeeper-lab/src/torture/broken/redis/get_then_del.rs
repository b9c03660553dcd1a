//! `GET name`, compare, `DEL name`: what was true at the first need not be at the second.

use std::io;

use super::super::super::raw::{Ending, GiveUp, Grant, RawLock, Style};
use super::{BASE, Base, Broken, Strike, ending};

pub(super) const THIS: Broken = Broken {
    name: "get-then-del",
    what: "comparing and deleting are two commands: when the lease ends between them it frees the lock of the next",
    convicted_by: &["overlap", "hold-vanished"],
    trigger: &[Strike::one("hold-replies", (0, 50), 350)],
    round_ms: 500,
    style: Style { hold_ms: (1, 3), long_one_in: 3, long: super::super::super::raw::Long::Ms(60), rest_ms: (0, 3), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.set_if_free(name, give_up)
    }

    fn release(&mut self) -> io::Result<Ending> {
        if self.0.wire.ask(&["GET", &self.0.name])?.text() != Some(self.0.value.as_str()) {
            return Ok(Ending::NotOurs);
        }
        Ok(ending(&self.0.wire.ask(&["DEL", &self.0.name])?))
    }
}
