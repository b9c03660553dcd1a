//! `SETNX name value`, and `DEL name`: a holder that dies keeps the lock for ever.

use std::io;

use super::super::super::fault::KILL;
use super::super::super::raw::{Ending, GiveUp, Grant, RawLock};
use super::{BASE, Base, Broken, EVERY, Strike, ending};

pub(super) const THIS: Broken = Broken {
    name: "setnx-forever",
    what: "it never expires: after its holder was killed nobody gets it any more",
    convicted_by: &["liveness"],
    trigger: &[Strike::one(KILL, (0, 100), 50)],
    round_ms: 400,
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.name = name.to_owned();
        give_up.poll(EVERY, || Ok(self.0.wire.ask(&["SETNX", name, &self.0.value])?.is_ok().then(Grant::default)))
    }

    fn release(&mut self) -> io::Result<Ending> {
        Ok(ending(&self.0.wire.ask(&["DEL", &self.0.name])?))
    }
}
