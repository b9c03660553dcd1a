//! The time that the asking took is no part of the lease: the first member began to count long
//! before the last one answered.

use std::time::Duration;

use super::{BASE, Broken, Lock, Quorum, Strike};
use crate::history::Writer;
use crate::torture::broken::TTL;
use crate::torture::raw::{Grant, Long, Style};

pub(super) const THIS: Broken = Broken {
    name: "redlock-ignores-validity",
    what: "it takes nothing off the lease for the time that the members took to answer: slow \
           answers, and they have given the lock to the next while it holds",
    convicted_by: &["overlap"],
    trigger: &[Strike::one("slow-link", (0, 100), 900)],
    round_ms: 1_000,
    // One that is slow gets a majority only where the other rests.
    clients: 2,
    style: Style { long_one_in: 2, long: Long::ToDeadline, rest_ms: (100, 300), ..Style::PLAIN },
    make: |orders, task| Lock::boxed(Quorum::of(orders, task, TTL, Duration::from_secs(3)), take),
    ..BASE
};

fn take(quorum: &mut Quorum, name: &str) -> Option<Grant> {
    quorum.set(name)?;
    Some(Grant { token: 0, deadline: Writer::now() + quorum.lease().1 })
}
