//! The rows of Redis with Sentinels: what it costs that a replica has a grant.

use std::time::{Duration, Instant};

use lockkeeper::{Locks, Mutex};
use lockkeeper_testkit::redis::resp::command;
use lockkeeper_testkit::sentinel::server::SERVICE;

use crate::bench::measure::{Pairs, Row};
use crate::bench::uncontended;
use crate::bench::{Subject, general, text};
use crate::engines::redis::floor::raw::Raw;

/// The option whose price it is.
const WAIT: &str = "wait_replicas=";

/// How many grants of each kind are measured one after the other.
const BATCH: u32 = 32;

/// Measures a row.
pub(super) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        // A deployment that somebody has given may have a password, or no replica that lives.
        "uncontended" if subject.is_on_its_own() && !subject.url.contains(WAIT) => {
            let mut rows = vec![with_a_replica(subject)?];
            rows.extend(uncontended::uncontended(subject)?);
            Ok(rows)
        }
        _ => general(subject, name),
    }
}

/// Grants that a replica has, beside grants without and a raw WAIT for a write that was answered:
/// what a client pays at least for a write that a replica has.
fn with_a_replica(subject: &Subject) -> Result<Row, String> {
    let url = format!("{}&{WAIT}1", subject.url);
    let waits = subject.runtime.block_on(Locks::builder().io_enabled().open(&url)).map_err(text)?;
    let lock = waits.mutex(subject.name("waits"));
    let plain = subject.locks.mutex(subject.name("uncontended"));
    let mut master = Raw::connect(&master(&subject.url)?, &[])?;
    let (set, wait) =
        (command(&["SET", &subject.name("set"), "1"]), command(&["WAIT", "1", "1000"]));
    let (begun, mut all) = (Instant::now(), Vec::new());
    // The first pair is a warm-up.
    while all.len() < 4 || begun.elapsed() < subject.time {
        let ours = subject.runtime.block_on(grants(&lock, BATCH))?;
        let mut floor = subject.runtime.block_on(grants(&plain, BATCH))?;
        for _ in 0..BATCH {
            master.ask(&set)?;
            let asked = Instant::now();
            // It says how many have it, and there may be more than one.
            let has = |count: &String| count.parse().is_ok_and(|count: u32| count > 0);
            if !master.ask(&wait)?.first().is_some_and(has) {
                return Err("the replica does not acknowledge".to_owned());
            }
            floor += asked.elapsed();
        }
        let each = |time: Duration| time.as_secs_f64() * 1e6 / f64::from(BATCH);
        all.push((each(ours), each(floor)));
    }
    all.remove(0);
    let closed = subject.runtime.block_on(waits.close());
    if !closed.unknown.is_empty() {
        return Err(format!("what was released is not known: {:?}", closed.unknown));
    }
    let row = subject.row("uncontended", 1).measured(&Pairs(all));
    Ok(row.beside("a grant that no replica has to have, and a raw WAIT", "≤ 1"))
}

/// How long so many grants take; each is given back before the next, and waits for that.
async fn grants(lock: &Mutex, count: u32) -> Result<Duration, String> {
    let mut taken = Duration::ZERO;
    for _ in 0..count {
        let asked = Instant::now();
        let guard = lock.lock().await.map_err(text)?;
        taken += asked.elapsed();
        let released = guard.release().await;
        if !released.is_clean() {
            return Err(format!("a release was {released:?}"));
        }
    }
    Ok(taken)
}

/// The master's address, as the first Sentinel of the URL has it.
fn master(url: &str) -> Result<String, String> {
    let url = lockkeeper::url::EngineUrl::parse(url).map_err(text)?;
    let (host, port) = url.hosts.first().ok_or("the URL names no Sentinel")?;
    let mut sentinel = Raw::connect(&format!("{host}:{}", port.unwrap_or(26379)), &[])?;
    let at = sentinel.ask(&command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]))?;
    Ok(at.join(":"))
}
