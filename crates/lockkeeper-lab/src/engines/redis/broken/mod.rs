//! Locks on Redis.

mod deadline_from_reply;
mod get_then_del;
mod late_push;
mod lost_wakeup;
mod no_fencing;
mod no_watchdog;
mod plain_del;
mod same_value;
mod script_half_way;
mod setnx_forever;
mod setnx_then_expire;
mod unbounded_backoff;
mod watchdog_outlives;

use std::io;
use std::time::Duration;

use lockkeeper_testkit::redis::resp::{Reply, Resp};

use crate::history::Writer;
use crate::torture::broken::{self, Broken, Strike, TTL};
use crate::torture::orders::Orders;
use crate::torture::raw::{Ending, GiveUp, Grant, RawLock};

pub(crate) const ALL: &[&Broken] = &[
    &setnx_forever::THIS,
    &setnx_then_expire::THIS,
    &script_half_way::THIS,
    &same_value::THIS,
    &plain_del::THIS,
    &get_then_del::THIS,
    &no_watchdog::THIS,
    &watchdog_outlives::THIS,
    &deadline_from_reply::THIS,
    &late_push::THIS,
    &no_fencing::THIS,
    &lost_wakeup::THIS,
    &unbounded_backoff::THIS,
];

/// What most of them have in common.
const BASE: Broken = Broken { url: "redis:auto?ttl=300ms", ..broken::BASE };

/// How often they ask again.
const EVERY: Duration = Duration::from_millis(5);
/// How long they wait for an answer: longer than any reply is held.
const PATIENCE: Duration = Duration::from_secs(3);
/// Deletes a key that has our value.
pub(crate) const COMPARE_AND_DELETE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

/// A connection, and the value that this holder puts into keys.
struct Base {
    wire: Resp,
    name: String,
    value: String,
    /// Until when the hold is believed in, on the clock of histories.
    deadline: u64,
}

impl Base {
    fn of(orders: &Orders, task: u32) -> Result<Self, String> {
        let value = format!("{}:{}:{task}", orders.label, std::process::id());
        Ok(Self { wire: wire(&orders.url)?, name: String::new(), value, deadline: 0 })
    }

    /// `SET name value NX PX ttl` until it succeeds; believed in from before the request on.
    fn set_if_free(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        give_up.poll(EVERY, || self.try_to_set(name))
    }

    /// The same once.
    fn try_to_set(&mut self, name: &str) -> io::Result<Option<Grant>> {
        self.name = name.to_owned();
        let ttl = TTL.as_millis().to_string();
        let before = Writer::now();
        let set = self.wire.ask(&["SET", name, &self.value, "NX", "PX", &ttl])?.is_ok();
        let got = set.then(|| Grant { token: 0, deadline: before + lease() });
        self.deadline = got.map_or(0, |g| g.deadline);
        Ok(got)
    }

    /// `SETNX name value` until it succeeds; it knows of no deadline.
    fn set_for_ever(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        self.name = name.to_owned();
        give_up.poll(EVERY, || {
            Ok(self.wire.ask(&["SETNX", name, &self.value])?.is_ok().then(Grant::default))
        })
    }

    /// Deletes the key, whosever it is.
    fn delete(&mut self) -> io::Result<Ending> {
        Ok(ending(&self.wire.ask(&["DEL", &self.name])?))
    }

    /// Deletes the key if it has our value, in one step.
    fn compare_and_delete(&mut self) -> io::Result<Ending> {
        Ok(ending(&self.wire.ask(&["EVAL", COMPARE_AND_DELETE, "1", &self.name, &self.value])?))
    }
}

type Take = fn(&mut Base, &str, &GiveUp) -> io::Result<Option<Grant>>;
type Free = fn(&mut Base) -> io::Result<Ending>;

/// One key, with ways of its own to take and to free it.
struct OneKey {
    base: Base,
    take: Take,
    free: Free,
}

impl OneKey {
    fn boxed(base: Base, take: Take, free: Free) -> Result<Box<dyn RawLock>, String> {
        Ok(Box::new(Self { base, take, free }))
    }
}

impl RawLock for OneKey {
    fn acquire(&mut self, name: &str, give_up: &GiveUp) -> io::Result<Option<Grant>> {
        (self.take)(&mut self.base, name, give_up)
    }

    fn release(&mut self) -> io::Result<Ending> {
        (self.free)(&mut self.base)
    }
}

fn ending(reply: &Reply) -> Ending {
    match reply {
        Reply::Number(1) => Ending::Released,
        Reply::Number(_) => Ending::NotOurs,
        _ => Ending::Unknown,
    }
}

/// A lease in nanoseconds.
fn whole_lease() -> u64 {
    u64::try_from(TTL.as_nanos()).unwrap_or(u64::MAX)
}

/// What remains of it when clocks may differ by a tenth.
fn lease() -> u64 {
    whole_lease() / 10 * 9
}

fn wire(url: &str) -> Result<Resp, String> {
    Ok(Resp::to(port(url).ok_or("this server cannot be reached")?, PATIENCE))
}

/// These clients know nothing of databases: one with a number would be another than that they work
/// in.
pub(crate) fn port(url: &str) -> Option<u16> {
    let rest = url.strip_prefix("redis://")?;
    let (address, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (address, database) = address.split_once('/').unwrap_or((address, ""));
    let elsewhere = options.split('&').any(|option| option.starts_with("db=") && option != "db=0");
    if elsewhere || !matches!(database, "" | "0") {
        return None;
    }
    address.strip_prefix("127.0.0.1:").or_else(|| address.strip_prefix("localhost:"))?.parse().ok()
}
