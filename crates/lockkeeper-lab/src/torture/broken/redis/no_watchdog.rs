//! A lease that nobody renews and nobody looks at, for work that sometimes takes longer.

use std::io;

use super::super::super::raw::{Ending, GiveUp, Grant, Long, RawLock, Style};
use super::{BASE, Base, Broken};

pub(super) const THIS: Broken = Broken {
    name: "no-watchdog",
    what: "nobody renews the lease, and work that takes longer goes on beside the next holder's",
    convicted_by: &["overlap"],
    style: Style { long_one_in: 8, long: Long::Ms(450), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        // It knows of no deadline.
        Ok(self.0.set_if_free(name, give_up)?.map(|_| Grant::default()))
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.compare_and_delete()
    }
}
