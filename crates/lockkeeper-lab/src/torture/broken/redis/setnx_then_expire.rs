//! `SETNX name value`, then `PEXPIRE name ttl`: a holder that dies between the two keeps the lock for ever.

use std::io;

use super::super::super::fault::KILL;
use super::super::super::raw::{Ending, GiveUp, Grant, RawLock, Style};
use super::{BASE, Base, Broken, EVERY, Strike, TTL};

pub(super) const THIS: Broken = Broken {
    name: "setnx-then-expire",
    what: "taking and expiring are two commands: a holder that was killed between them keeps it for ever",
    convicted_by: &["liveness"],
    trigger: &[Strike::one("hold-replies", (0, 100), 300), Strike::one(KILL, (200, 300), 50)],
    round_ms: 1_700,
    clients: 2,
    style: Style { hold_ms: (1, 5), rest_ms: (10, 30), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.name = name.to_owned();
        let got = give_up.poll(EVERY, || Ok(self.0.wire.ask(&["SETNX", name, &self.0.value])?.is_ok().then(Grant::default)))?;
        if got.is_some() {
            self.0.wire.ask(&["PEXPIRE", name, &TTL.as_millis().to_string()])?;
        }
        Ok(got)
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.compare_and_delete()
    }
}
