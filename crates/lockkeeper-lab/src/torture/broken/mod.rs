//! Locks as articles and libraries got them wrong, each with the fault that shows it and the
//! violation that convicts it.
//!
//! They are the test of the whole laboratory: a torture that does not convict them proves nothing
//! about others.

use std::time::Duration;

use super::orders::Orders;
use super::raw::{RawLock, Style};
use crate::engines;

/// How long leases are, where there are leases.
pub(crate) const TTL: Duration = Duration::from_millis(300);

/// Makes one thread's lock; the number is the thread's.
pub(crate) type Make = fn(&Orders, u32) -> Result<Box<dyn RawLock>, String>;

/// One of them.
pub(crate) struct Broken {
    pub(crate) name: &'static str,
    /// Against which arena it runs unless the user names one.
    pub(crate) url: &'static str,
    /// What is wrong with it, in one sentence.
    pub(crate) what: &'static str,
    /// What its own fault leads to: the report points at the first of these.
    pub(crate) convicted_by: &'static [&'static str],
    /// What is done to it, again and again; each time to another client.
    pub(crate) trigger: &'static [Strike],
    /// How long one round of that takes, in milliseconds.
    pub(crate) round_ms: u64,
    pub(crate) clients: u32,
    pub(crate) tasks: u32,
    pub(crate) names: u32,
    pub(crate) style: Style,
    /// Makes one thread's lock.
    pub(crate) make: Make,
    /// Looks whether a server that the user named does what the flaw needs to be seen; if not, why.
    pub(crate) shows: fn(&str) -> Result<(), String>,
}

impl Broken {
    /// Refuses what it is not made for: there it would be tortured for nothing. The URL may hold a
    /// secret, and is not repeated.
    pub(crate) fn fits(&self, url: &str) -> Result<(), String> {
        let start = |url: &'static str| url.split('?').next().unwrap_or(url);
        let auto = start(self.url);
        let (fits, else_at) = engines::of(self.url).broken_reach(url);
        if fits || url.split('?').next() == Some(auto) {
            return Ok(());
        }
        Err(format!("broken:{} cannot be tortured there: it needs {auto}, or {else_at}", self.name))
    }

    /// Refuses a server on which it would look like a lock that is right. `url` is how a client
    /// reaches what `named` means.
    pub(crate) fn can_show(&self, named: &str, url: &str) -> Result<(), String> {
        if named == self.url {
            return Ok(());
        }
        (self.shows)(url).map_err(|why| {
            format!("broken:{} cannot show there what is wrong with it: {why}", self.name)
        })
    }
}

/// A fault inside a round: somewhere in `at_ms`, for so long.
pub(crate) struct Strike {
    pub(crate) fault: &'static str,
    pub(crate) at_ms: (u64, u64),
    pub(crate) for_ms: u64,
    /// Whether it hits every client, and not only the one of this round.
    pub(crate) all: bool,
}

impl Strike {
    /// One client is hit.
    pub(crate) const fn one(fault: &'static str, at_ms: (u64, u64), for_ms: u64) -> Self {
        Self { fault, at_ms, for_ms, all: false }
    }

    /// All are hit.
    pub(crate) const fn all(fault: &'static str, at_ms: (u64, u64), for_ms: u64) -> Self {
        Self { fault, at_ms, for_ms, all: true }
    }
}

/// What most of them have in common; each says its `url`.
pub(crate) const BASE: Broken = Broken {
    name: "",
    url: "",
    what: "",
    convicted_by: &[],
    trigger: &[],
    round_ms: 1_000,
    clients: 3,
    tasks: 1,
    names: 1,
    style: Style::PLAIN,
    make: |_, _| Err("not made".to_owned()),
    shows: |_| Ok(()),
};

/// All of them, in the order in which people meet them.
pub(crate) fn all() -> impl Iterator<Item = &'static Broken> {
    engines::all().flat_map(|engine| engine.broken().iter().copied())
}

/// The one of that name.
pub(crate) fn find(name: &str) -> Option<&'static Broken> {
    all().find(|b| b.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_client_is_refused_where_it_cannot_work() {
        let fits = |name: &str, url: &str| find(name).unwrap().fits(url);
        for (name, there, not_there) in [
            (
                "plain-del",
                ["redis:auto", "redis:auto?ttl=1s", "redis://127.0.0.1:6379"],
                ["file:auto", "zk://127.0.0.1:2181", "redis:"],
            ),
            (
                "plain-del",
                ["redis://localhost:1/", "redis://127.0.0.1:1/0", "redis://127.0.0.1:1?db=0"],
                ["redis://127.0.0.1:1/5"; 3],
            ),
            (
                "watch-all-herd",
                ["zk:auto", "zk:auto?nodes=3", "zk://localhost:2181"],
                ["redis:auto", "file:auto", "zk://far:2181"],
            ),
            (
                "redlock-one-phase-token",
                ["redlock:auto", "redlock:auto?members=3", "redlock:auto?members=5"],
                ["redis:auto", "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", "redlock:"],
            ),
            (
                "sentinel-trusts-old-master",
                ["redis+sentinel:auto", "redis+sentinel:auto?ttl=1s", "redis+sentinel:auto?a=b"],
                ["redis:auto", "redis+sentinel://127.0.0.1:1/mymaster", "sentinel:auto"],
            ),
            (
                "update-without-version",
                ["postgres:auto", "postgres:auto?ttl=300ms", "postgres:auto?ttl=1s"],
                ["redis:auto", "postgres://127.0.0.1/x", "file:auto"],
            ),
            (
                "flock-upgrade",
                ["file:auto", "file:///tmp", "file:///tmp?x=y"],
                ["redis:auto", "zk:auto", "redis://127.0.0.1:1"],
            ),
        ] {
            for url in there {
                assert_eq!(fits(name, url), Ok(()), "{name} {url}");
            }
            for url in not_there {
                assert!(
                    fits(name, url)
                        .unwrap_err()
                        .contains(find(name).unwrap().url.split('?').next().unwrap()),
                    "{name} {url}"
                );
            }
        }
        assert!(all().all(|client| client.fits(client.url).is_ok()));
        let refused = fits("plain-del", "redis://:secret@127.0.0.1:1?db=3").unwrap_err();
        assert!(
            fits("plain-del", "redis://127.0.0.1:1?db=3").is_err() && !refused.contains("secret"),
            "{refused}"
        );
    }
}
