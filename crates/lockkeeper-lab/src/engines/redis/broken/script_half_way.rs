//! One script that takes the lock, counts a token, and sets the expiry: Redis does not undo what a
//! failing script has done.

use std::io;

use lockkeeper_testkit::redis::resp::Reply;

use super::{BASE, Base, Broken, EVERY, Strike, TTL};
use crate::torture::fault::SPOIL_COUNTER;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock};

pub(super) const THIS: Broken = Broken {
    name: "script-fails-half-way",
    what: "its script fails after it took the lock and before it set an expiry, and Redis undoes \
           nothing: no client gets it any more",
    convicted_by: &["liveness"],
    trigger: &[Strike::one(SPOIL_COUNTER, (0, 100), 200)],
    round_ms: 2_500,
    make: |orders, task| Ok(Box::new(Lock(Base::of(orders, task)?))),
    ..BASE
};

const SCRIPT: &str = "if redis.call('SETNX', KEYS[1], ARGV[1]) == 0 then return 0 end
local token = redis.call('INCR', KEYS[2])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return token";

struct Lock(Base);

impl RawLock for Lock {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.0.name = name.to_owned();
        let (counter, ttl) = (format!("{name}:token"), TTL.as_millis().to_string());
        give_up.poll(EVERY, || {
            // An error is taken for "not now, try again".
            let reply =
                self.0.wire.ask(&["EVAL", SCRIPT, "2", name, &counter, &self.0.value, &ttl])?;
            let token = if let Reply::Number(token) = reply {
                u64::try_from(token).unwrap_or(0)
            } else {
                0
            };
            Ok((token > 0).then_some(Grant { token, deadline: 0 }))
        })
    }

    fn release(&mut self) -> io::Result<Ending> {
        self.0.compare_and_delete()
    }
}
