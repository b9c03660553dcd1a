//! `SET name value NX PX ttl`, and `DEL name`: it frees whoever's lock it is by then.

use std::io;

use super::super::super::fault::STOP;
use super::super::super::raw::{Ending, GiveUp, Grant, RawLock};
use super::{BASE, Base, Broken, Strike, ending};

pub(super) const THIS: Broken = Broken {
    name: "plain-del",
    what: "it deletes by name alone: a holder whose lease was over frees the lock of the next",
    convicted_by: &["foreign-release"],
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 800,
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.set_if_free(name, give_up)
    }

    fn release(&mut self) -> io::Result<Ending> {
        Ok(ending(&self.0.wire.ask(&["DEL", &self.0.name])?))
    }
}
