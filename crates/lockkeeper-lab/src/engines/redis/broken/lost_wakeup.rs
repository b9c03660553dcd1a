//! Waits for the message of the release, and for nothing else: a message that came while nobody
//! listened wakes nobody.

use std::io;
use std::time::Duration;

use lockkeeper_testkit::redis::resp::Resp;

use super::{BASE, Base, Broken, Strike, wire};
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "lost-wakeup",
    what: "it waits for the release's message and never looks: a message that was published while \
           its link was down never wakes it",
    convicted_by: &["liveness"],
    trigger: &[
        Strike::all("reset", (0, 30), 30),
        Strike::all("reset", (180, 210), 30),
        Strike::all("reset", (360, 390), 30),
        Strike::all("reset", (540, 570), 30),
        Strike::all("reset", (720, 750), 30),
    ],
    round_ms: 2_100,
    clients: 2,
    style: Style { hold_ms: (800, 1_400), rest_ms: (1_100, 1_300), ..Style::PLAIN },
    make: |orders, task| {
        Ok(Box::new(Lock {
            base: Base::of(orders, task)?,
            ear: wire(&orders.url)?,
            listens: false,
        }))
    },
    ..BASE
};

/// Longer than any turn.
const LEASE_MS: &str = "10000";
/// How long it rests before it connects again.
const BACKOFF: Duration = Duration::from_millis(150);
const RELEASE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
redis.call('PUBLISH', KEYS[1], 'free')
return 1";

struct Lock {
    base: Base,
    ear: Resp,
    listens: bool,
}

impl Lock {
    /// Listens until the message comes; over lost connections as well, without looking at the lock.
    fn hear(&mut self, name: &str, give_up: &GiveUp) {
        while !give_up.is_now() {
            if !self.listens {
                self.listens = self.ear.ask(&["SUBSCRIBE", name]).is_ok();
            }
            match self.ear.hear(Duration::from_millis(100)) {
                Ok(Some(_)) => return,
                Ok(None) => {}
                Err(_) => {
                    self.listens = false;
                    std::thread::sleep(BACKOFF);
                }
            }
        }
    }
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.base.name = name.to_owned();
        while !give_up.is_now() {
            if self.base.wire.ask(&["SET", name, &self.base.value, "NX", "PX", LEASE_MS])?.is_ok() {
                return Ok(Some(Grant::default()));
            }
            self.hear(name, give_up);
        }
        Ok(None)
    }

    fn release(&mut self) -> io::Result<Ending> {
        Ok(super::ending(&self.base.wire.ask(&[
            "EVAL",
            RELEASE,
            "1",
            &self.base.name,
            &self.base.value,
        ])?))
    }
}
