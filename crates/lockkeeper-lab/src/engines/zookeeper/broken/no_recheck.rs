//! Enters as soon as the node before its own is gone, and does not look whether it is first now.

use std::io;
use std::time::{Duration, Instant};

use super::{ARENA, BASE, Base, Broken, Kind};
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "zk-no-recheck",
    url: ARENA,
    what: "it enters when the node before its own has disappeared, without listing again: a waiter \
           that gives up lets it in beside the holder",
    convicted_by: &["overlap"],
    clients: 4,
    style: Style { hold_ms: (60, 120), ..Style::PLAIN },
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

/// How long a caller waits: less than a turn takes, so that waiters give up behind a holder.
const WAITS: Duration = Duration::from_millis(80);

struct Lock(Base);

impl Lock {
    fn wait(&mut self, give_up: &GiveUp) -> io::Result<bool> {
        let until = Instant::now() + WAITS;
        let Some(before) = self.0.before()? else { return Ok(true) };
        let session = self.0.session()?;
        if session.exists(&before)? {
            while !session.wait_for(&before, Duration::from_millis(10))? {
                if give_up.is_now() || Instant::now() >= until {
                    self.0.leave()?;
                    return Ok(false);
                }
            }
        }
        // Whoever was there is gone; it need not have been the holder.
        Ok(true)
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
