//! Locks as articles and libraries got them wrong, each with the fault that shows it and the violation that convicts it.
//!
//! They are the test of the whole laboratory: a torture that does not convict them proves nothing about others.

mod file;
mod redis;
mod zookeeper;

use std::time::Duration;

use super::orders::Orders;
use super::raw::{RawLock, Style};

/// How long leases are, where there are leases.
pub(super) const TTL: Duration = Duration::from_millis(300);

/// Makes one thread's lock; the number is the thread's.
pub(super) type Make = fn(&Orders, u32) -> Result<Box<dyn RawLock>, String>;

/// One of them.
pub(super) struct Broken {
    pub(super) name: &'static str,
    /// Against which arena it runs unless the user names one.
    pub(super) url: &'static str,
    /// What is wrong with it, in one sentence.
    pub(super) what: &'static str,
    /// What its own fault leads to: the report points at the first of these.
    pub(super) convicted_by: &'static [&'static str],
    /// What is done to it, again and again; each time to another client.
    pub(super) trigger: &'static [Strike],
    /// How long one round of that takes, in milliseconds.
    pub(super) round_ms: u64,
    pub(super) clients: u32,
    pub(super) tasks: u32,
    pub(super) names: u32,
    pub(super) style: Style,
    /// Makes one thread's lock.
    pub(super) make: Make,
}

/// A fault inside a round: somewhere in `at_ms`, for so long.
pub(super) struct Strike {
    pub(super) fault: &'static str,
    pub(super) at_ms: (u64, u64),
    pub(super) for_ms: u64,
    /// Whether it hits every client, and not only the one of this round.
    pub(super) all: bool,
}

impl Strike {
    /// One client is hit.
    const fn one(fault: &'static str, at_ms: (u64, u64), for_ms: u64) -> Self {
        Self { fault, at_ms, for_ms, all: false }
    }

    /// All are hit.
    const fn all(fault: &'static str, at_ms: (u64, u64), for_ms: u64) -> Self {
        Self { fault, at_ms, for_ms, all: true }
    }
}

/// What most of them have in common.
const BASE: Broken = Broken {
    name: "",
    url: "redis:auto?ttl=300ms",
    what: "",
    convicted_by: &[],
    trigger: &[],
    round_ms: 1_000,
    clients: 3,
    tasks: 1,
    names: 1,
    style: Style::PLAIN,
    make: |_, _| Err("not made".to_owned()),
};

/// All of them, in the order in which people meet them.
pub(super) fn all() -> impl Iterator<Item = &'static Broken> {
    redis::ALL.iter().chain(zookeeper::ALL).chain(file::ALL).copied()
}

/// The one of that name.
pub(super) fn find(name: &str) -> Option<&'static Broken> {
    all().find(|b| b.name == name)
}
