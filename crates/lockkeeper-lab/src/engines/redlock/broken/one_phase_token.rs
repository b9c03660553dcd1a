//! Every member counts, and the token is the greatest count of those that granted: another majority
//! has not heard of it.

use std::time::Duration;

use lockkeeper_testkit::redis::resp::Reply;

use super::{BASE, Broken, Lock, Quorum, Strike};
use crate::history::Writer;
use crate::torture::broken::TTL;
use crate::torture::raw::{Grant, Style};

pub(super) const THIS: Broken = Broken {
    name: "redlock-one-phase-token",
    what: "its token is the greatest count of the members that granted, and is not written back: \
           the next majority knows a smaller one",
    convicted_by: &["token-order", "token-repeated"],
    trigger: &[Strike::one("stop-member", (0, 20), 250)],
    round_ms: 300,
    style: Style { hold_ms: (1, 5), rest_ms: (0, 5), ..Style::PLAIN },
    make: |orders, task| {
        Lock::boxed(Quorum::of(orders, task, TTL, Duration::from_millis(30)), take)
    },
    ..BASE
};

/// Sets the key and counts, in one step.
const SET_AND_COUNT: &str = "if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then \
                             return 0 end return redis.call('INCR', KEYS[2])";

fn take(quorum: &mut Quorum, name: &str) -> Option<Grant> {
    name.clone_into(&mut quorum.name);
    let (before, ttl) = (Writer::now(), TTL.as_millis().to_string());
    let (value, count) = (quorum.value.clone(), format!("{name}:token"));
    let words = ["EVAL", SET_AND_COUNT, "2", name, &count, &value, &ttl];
    let mut counts = Vec::new();
    for member in &mut quorum.members {
        if let Ok(Reply::Number(count @ 1..)) = member.ask(&words) {
            counts.push(u64::try_from(count).unwrap_or(0));
        }
    }
    let deadline = before + quorum.lease().1;
    match counts.iter().max() {
        Some(token) if quorum.is_majority(counts.len()) && Writer::now() < deadline => {
            Some(Grant { token: *token, deadline })
        }
        _ => {
            quorum.free();
            None
        }
    }
}
