//! Everybody in line watches the whole directory, and lists it whenever anything changes: a herd.

use std::io;
use std::time::Duration;

use super::{ARENA, BASE, Base, Broken, Kind, Strike};
use crate::torture::fault::CROWD;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock};

pub(super) const THIS: Broken = Broken {
    name: "watch-all-herd",
    url: ARENA,
    what: "every change wakes every waiter, and each lists the line: the more waiters, the more a \
           hand-off costs",
    convicted_by: &["cost"],
    trigger: &[Strike::one(CROWD, (1_000, 1_000), 3_000)],
    round_ms: 4_500,
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl Lock {
    fn wait(&mut self, give_up: &GiveUp) -> io::Result<bool> {
        loop {
            let line = self.0.line(true)?;
            if line.first() == Some(&self.0.node) {
                return Ok(true);
            }
            let session = self.0.session()?;
            while !session.wait(Duration::from_millis(100))? {
                if give_up.is_now() {
                    self.0.leave()?;
                    return Ok(false);
                }
            }
        }
    }
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        let got = self.0.join(name, Kind::Persistent).and_then(|()| self.wait(give_up));
        Ok(self.0.or_lost(got)?.then(Grant::default))
    }

    fn tend(&mut self) -> bool {
        self.0.tend()
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.release()
    }
}
