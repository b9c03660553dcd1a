//! All of it right, and no token: a write that was checked, and then was late, lands after the next holder's.

use std::io;

use super::super::super::fault::STOP;
use super::super::super::raw::{Ending, GiveUp, Grant, RawLock, Style};
use super::{BASE, Base, Broken, Strike};

pub(super) const THIS: Broken = Broken {
    name: "no-fencing",
    what: "it has no token to write with: a holder that was stopped before its write writes over the next one's",
    convicted_by: &["lost-update", "late-effect"],
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 700,
    style: Style { hold_ms: (1, 3), write_ms: (10, 40), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.set_if_free(name, give_up)
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.compare_and_delete()
    }
}
