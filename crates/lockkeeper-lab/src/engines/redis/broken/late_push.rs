//! A line of waiters, and a message that says "it is yours": read long after it was sent, it is
//! yours no more.

use std::io;
use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::resp::{Reply, Resp};

use super::{BASE, Base, Broken, Strike, TTL, lease, wire};
use crate::history::Writer;
use crate::torture::fault::STOP;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock, Style};

pub(super) const THIS: Broken = Broken {
    name: "late-push-is-a-grant",
    what: "it takes the message of a grant for the grant, and counts from its reading: after a \
           pause another client has the lock already",
    convicted_by: &["overlap"],
    trigger: &[Strike::one(STOP, (0, 100), 500)],
    round_ms: 800,
    style: Style { hold_ms: (40, 80), ..Style::PLAIN },
    make: |orders, task| {
        Ok(Box::new(Lock {
            base: Base::of(orders, task)?,
            ear: wire(&orders.url)?,
            listens: false,
        }))
    },
    ..BASE
};

/// Takes the lock if it is free, else a place in line.
const ACQUIRE: &str =
    "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then redis.call('LREM', KEYS[2], \
     0, ARGV[1]) return 1 end
if not redis.call('LPOS', KEYS[2], ARGV[1]) then redis.call('RPUSH', KEYS[2], ARGV[1]) end
return 0";
/// Hands it to the first in line, and tells it.
const RELEASE: &str = "if redis.call('GET', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[1])
local next = redis.call('LPOP', KEYS[2])
if next then
  redis.call('SET', KEYS[1], next, 'PX', ARGV[2])
  redis.call('PUBLISH', next, 'yours')
end
return 1";

struct Lock {
    base: Base,
    ear: Resp,
    listens: bool,
}

impl Lock {
    fn script(&mut self, script: &str, name: &str) -> io::Result<Reply> {
        let (line, ttl) = (format!("{name}:line"), TTL.as_millis().to_string());
        self.base.wire.ask(&["EVAL", script, "2", name, &line, &self.base.value, &ttl])
    }
}

impl Lock {
    fn hear(&mut self) -> io::Result<bool> {
        let heard = self.ear.hear(Duration::from_millis(20));
        self.listens = heard.is_ok();
        Ok(heard?.is_some())
    }
}

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.base.name = name.to_owned();
        while !give_up.is_now() {
            if !self.listens {
                self.ear.ask(&["SUBSCRIBE", &self.base.value])?;
                self.listens = true;
            }
            let before = Writer::now();
            if self.script(ACQUIRE, name)?.is_ok() {
                return Ok(Some(Grant { token: 0, deadline: before + lease() }));
            }
            // Looks by itself as well, for those in line before it may be dead.
            let until = Instant::now() + TTL / 3;
            while Instant::now() < until && !give_up.is_now() {
                if self.hear()? {
                    return Ok(Some(Grant { token: 0, deadline: Writer::now() + lease() }));
                }
            }
        }
        Ok(None)
    }

    fn release(&mut self) -> io::Result<Ending> {
        Ok(super::ending(&self.script(RELEASE, &self.base.name.clone())?))
    }
}
