//! The lease is counted from when the answer was read: the server began earlier.

use std::io;

use super::super::super::raw::{Ending, GiveUp, Grant, Long, RawLock, Style};
use super::{BASE, Base, Broken, Strike, whole_lease};
use crate::history::Writer;

pub(super) const THIS: Broken = Broken {
    name: "deadline-from-reply",
    what: "its deadline counts from the reply, which came late: it holds while the server has given the lock to the next",
    convicted_by: &["overlap"],
    trigger: &[Strike::one("slow-link", (0, 100), 900)],
    round_ms: 1_000,
    style: Style { long_one_in: 2, long: Long::ToDeadline, rest_ms: (20, 60), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let got = self.0.set_if_free(name, give_up)?;
        Ok(got.map(|_| Grant { token: 0, deadline: Writer::now() + whole_lease() }))
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.compare_and_delete()
    }
}
