//! The scheme and options of quorum URLs, as the reference lists them; `options` reads them.

use std::time::Duration;

use super::Redlock;
use super::options::RedlockOptions;
use crate::engine::redis::url::PORT;
use crate::engine::tls::Tls;
use crate::engine::{Common, Engine, Keep, Open, Registration, UrlOption, Value};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

const OPTIONS: [UrlOption; 13] = [
    UrlOption::new(
        "layout",
        Value::OneOf(&["native", "plain", "redisson"]),
        "native",
        "how locks are written down: lockkeeper's way, as redsync does, or as RedissonRedLock does",
    )
    .identity(),
    UrlOption::new("key", Value::Text("KEY"), "{name}", "the key of a lock; has {name} once")
        .identity()
        .needs("layout", "plain"),
    UrlOption::new(
        "value",
        Value::OneOf(&["hex", "guid", "base64"]),
        "hex",
        "how the holder's random value is written: as node-redlock, RedLock.net or redsync do",
    )
    .needs("layout", "plain"),
    UrlOption::new(
        "lock",
        Value::OneOf(&["plain", "fenced", "fair", "rw"]),
        "plain",
        "which type of Redisson's locks: RLock or RFairLock; the others are refused on a quorum",
    )
    .identity()
    .needs("layout", "redisson"),
    UrlOption::new(
        "namespace",
        Value::Word("WORD"),
        "lockkeeper",
        "what the keys begin with on every member",
    )
    .identity(),
    UrlOption::new(
        "max_ttl",
        Value::Duration,
        "60s",
        "the longest lease, of 60s or more; a member that may have forgotten leases waits for so \
         long",
    ),
    UrlOption::new(
        "clock_skew",
        Value::Duration,
        "10s",
        "how far the members' clocks may be apart: from 10s to 30s",
    ),
    UrlOption::new(
        "server_timeout",
        Value::Duration,
        "",
        "how long a member's answer to an acquire may take; ttl/100, at least 50ms, more on \
         slow links",
    ),
    UrlOption::new("connect_timeout", Value::Duration, "5s", "how long connecting may take"),
    UrlOption::new("request_timeout", Value::Duration, "2s", "how long other answers may take"),
    UrlOption::new(
        "password_file",
        Value::Text("FILE"),
        "",
        "the file that holds the password; read again for each connection",
    ),
    UrlOption::new(
        "password_env",
        Value::Text("NAME"),
        "",
        "the environment variable that holds the password",
    ),
    UrlOption::new("tls", Value::Switch, "false", "TLS to every member"),
];

/// How long members of the laboratory wait.
const LABORATORY_WAITS: Duration = Duration::from_secs(2);

pub(crate) fn registration() -> Registration {
    registered(&["redlock"], |url, common| open(url, common, None))
}

/// The same engine under a scheme of the laboratory, `redlock-lab`, whose members wait for two
/// seconds in place of the longest lease: its leases are shorter than that, or end before a member
/// forgets them. Nothing but a program that registers it can open such a URL.
pub fn laboratory() -> Registration {
    registered(&[crate::open::table::LABORATORY], |url, common| {
        open(url, common, Some(LABORATORY_WAITS))
    })
}

fn registered(schemes: &'static [&'static str], open: Open) -> Registration {
    let mut redlock = Registration::new("redlock", schemes, Keep::Lease, open);
    redlock.port = Some(PORT);
    redlock.paths_without_at = redlock.schemes;
    redlock.place = Some(place);
    redlock.options = OPTIONS.into_iter().chain(Tls::OPTIONS).collect();
    redlock
}

/// Members have no order.
fn place(url: &mut EngineUrl) -> Result<()> {
    url.hosts.sort();
    crate::engine::redis::url::place(url)
}

fn open(url: &mut EngineUrl, common: &Common, wait: Option<Duration>) -> Result<Box<dyn Engine>> {
    Ok(Box::new(Redlock::new(RedlockOptions::take(url, common, wait)?)))
}
