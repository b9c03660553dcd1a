//! The recipe, by somebody who never asks whether the session still is: its node may be gone for
//! long.

use std::io;

use super::{ARENA, BASE, Base, Broken, Kind, Strike};
use crate::torture::fault::STOP;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "ignores-session-loss",
    url: ARENA,
    what: "it never checks whether its session still exists: after a pause it goes on beside the \
           next holder",
    convicted_by: &["overlap"],
    trigger: &[Strike::one(STOP, (0, 100), 1_500)],
    round_ms: 1_800,
    style: Style { hold_ms: (20, 60), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.acquire(name, Kind::Persistent, give_up)
    }

    fn tend(&mut self) -> bool {
        // Whatever came of it.
        self.0.tend();
        true
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.release()
    }
}
