//! A member that came back without its data votes again, for somebody else.

use std::time::Duration;

use super::{BASE, Broken, Lock, Quorum, Strike};
use crate::torture::raw::{Grant, Long, Style};

/// Longer than two members take to come back.
const TTL: Duration = Duration::from_secs(2);

pub(super) const THIS: Broken = Broken {
    name: "redlock-counts-restarted",
    what: "it counts members that have just started: two of three that came back without their \
           data give the lock to the next while its lease lasts",
    convicted_by: &["overlap"],
    trigger: &[
        Strike::one("forget-member", (0, 50), 50),
        Strike::one("forget-member", (500, 550), 50),
    ],
    round_ms: 2_000,
    style: Style { long_one_in: 1, long: Long::ToDeadline, ..Style::PLAIN },
    make: |orders, task| {
        Lock::boxed(Quorum::of(orders, task, TTL, Duration::from_millis(200)), take)
    },
    ..BASE
};

fn take(quorum: &mut Quorum, name: &str) -> Option<Grant> {
    let before = quorum.set(name)?;
    Some(Grant { token: 0, deadline: before + quorum.lease().1 })
}
