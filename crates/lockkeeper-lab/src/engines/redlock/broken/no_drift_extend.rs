//! The first lease is counted with care, and an extension is not: members whose clocks run a little
//! faster end it first.

use std::time::Duration;

use super::{BASE, Broken, Lock, Quorum, Strike};
use crate::history::Writer;
use crate::torture::fault::MEMBERS_FAST;
use crate::torture::raw::{Grant, Long, Style};

/// Long enough for what clocks gain in it to be seen.
const TTL: Duration = Duration::from_millis(600);

/// Extends the key that has our value.
const EXTEND: &str = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', \
                      KEYS[1], ARGV[2]) end return 0";

pub(super) const THIS: Broken = Broken {
    name: "redlock-no-drift-extend",
    what: "an extension takes nothing off for drift: members whose clocks gain 8 % give the lock \
           to the next before its holder has noticed",
    convicted_by: &["overlap"],
    trigger: &[Strike::one(MEMBERS_FAST, (0, 50), 2_500)],
    round_ms: 3_000,
    style: Style { long_one_in: 2, long: Long::ToDeadline, rest_ms: (20, 60), ..Style::PLAIN },
    make: |orders, task| Lock::boxed(Quorum::of(orders, task, TTL, Duration::from_secs(3)), take),
    ..BASE
};

fn take(quorum: &mut Quorum, name: &str) -> Option<Grant> {
    let deadline = quorum.set(name)? + quorum.lease().1;
    let (before, value) = (Writer::now(), quorum.value.clone());
    let ttl = TTL.as_millis().to_string();
    let extended = quorum.ask(&["EVAL", EXTEND, "1", name, &value, &ttl]);
    let extended = quorum.is_majority(extended).then(|| before + quorum.lease().0);
    Some(Grant { token: 0, deadline: extended.unwrap_or(deadline) })
}
