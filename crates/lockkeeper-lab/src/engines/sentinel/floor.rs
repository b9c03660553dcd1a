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

/// Four things in turn, again and again: each has each other one right before it as often, for what
/// came before may still be on its way to the replica.
const TURNS: [usize; 12] = [0, 1, 0, 2, 0, 3, 1, 2, 1, 3, 2, 3];

/// How often all of it makes one measurement.
const ROUNDS: u32 = 11;

/// Measures a row.
pub(super) fn measure(subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
    match name {
        // A deployment that somebody has given may have a password, or no replica that lives.
        "uncontended" if subject.is_on_its_own() && !subject.url.contains(WAIT) => {
            let half = subject.time / 2;
            let mut rows = vec![with_a_replica(subject, half)?];
            rows.extend(uncontended::uncontended(subject, half)?);
            Ok(rows)
        }
        _ => general(subject, name),
    }
}

/// Grants that a replica has, beside grants without and what a raw client pays for a replica: a
/// write and its WAIT in one message, less a write alone.
fn with_a_replica(subject: &Subject, time: Duration) -> Result<Row, String> {
    let url = format!("{}&{WAIT}1", subject.url);
    let waits = subject.runtime.block_on(Locks::builder().io_enabled().open(&url)).map_err(text)?;
    let lock = waits.mutex(subject.name("waits"));
    let plain = subject.locks.mutex(subject.name("uncontended"));
    let mut master = Raw::connect(&master(&subject.url)?, &[])?;
    let set = command(&["SET", &subject.name("set"), "1"]);
    let both = [set.clone(), command(&["WAIT", "1", "1000"])].concat();
    let (begun, mut all) = (Instant::now(), Vec::new());
    // The first pair is a warm-up.
    while all.len() < 4 || begun.elapsed() < time {
        let mut taken = [Duration::ZERO; 4];
        for _ in 0..ROUNDS {
            for which in TURNS {
                let asked = match which {
                    0 => subject.runtime.block_on(grant(&lock))?,
                    1 => subject.runtime.block_on(grant(&plain))?,
                    2 => acknowledged(&mut master, &both)?,
                    _ => {
                        let asked = Instant::now();
                        master.ask(&set)?;
                        asked.elapsed()
                    }
                };
                if let Some(sum) = taken.get_mut(which) {
                    *sum += asked;
                }
            }
        }
        // Each stands three times among the turns.
        let each = |sum: Duration| sum.as_secs_f64() * 1e6 / f64::from(3 * ROUNDS);
        let [ours, plain, both, set] = taken.map(each);
        all.push((ours, plain + both - set));
    }
    all.remove(0);
    let closed = subject.runtime.block_on(waits.close());
    if !closed.unknown.is_empty() {
        return Err(format!("what was released is not known: {:?}", closed.unknown));
    }
    let row = subject.row("uncontended", 1).measured(&Pairs(all));
    Ok(row.beside("a grant that no replica has to have, and a raw WAIT", "≤ 1"))
}

/// How long a write takes that a replica has.
fn acknowledged(master: &mut Raw, both: &[u8]) -> Result<Duration, String> {
    let asked = Instant::now();
    master.send(both)?;
    master.answer()?;
    // It says how many have it, and there may be more than one.
    let has = |count: &String| count.parse().is_ok_and(|count: u32| count > 0);
    if !master.answer()?.first().is_some_and(has) {
        return Err("the replica does not acknowledge".to_owned());
    }
    Ok(asked.elapsed())
}

/// How long a grant takes; it is given back before the next, and that is waited for.
async fn grant(lock: &Mutex) -> Result<Duration, String> {
    let asked = Instant::now();
    let guard = lock.lock().await.map_err(text)?;
    let taken = asked.elapsed();
    let released = guard.release().await;
    if !released.is_clean() {
        return Err(format!("a release was {released:?}"));
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::TURNS;

    #[test]
    fn of_four_things_in_turn_each_comes_right_behind_each_other_one_as_often() {
        let next = TURNS.iter().skip(1).chain(&TURNS);
        let pairs: BTreeSet<_> = TURNS.iter().zip(next).filter(|(one, next)| one != next).collect();
        assert_eq!(pairs.len(), 12, "there are no more, and each is there once");
    }
}
