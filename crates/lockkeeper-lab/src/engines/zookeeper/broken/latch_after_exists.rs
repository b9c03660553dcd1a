//! Makes the latch that its watch counts down only after it has asked whether the node before its
//! own exists.

use std::io;
use std::time::Duration;

use super::{ARENA, BASE, Base, Broken, Kind};
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "zk-latch-after-exists",
    url: ARENA,
    what: "it makes its latch after `exists`: an event that comes between the two wakes no waiter, \
           and it waits for ever",
    convicted_by: &["liveness"],
    style: Style { hold_ms: (1, 10), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

struct Lock(Base);

impl Lock {
    fn wait(&mut self, give_up: &GiveUp) -> io::Result<bool> {
        loop {
            let Some(before) = self.0.before()? else { return Ok(true) };
            let session = self.0.session()?;
            if !session.exists(&before)? {
                continue;
            }
            // The thread that hears events finds no latch until this one has made it.
            session.hear_unlatched()?;
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
