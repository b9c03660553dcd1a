//! What another client of the server waits for a PING while many names are locked.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_testkit::redis::resp::command;

use super::learn::Words;
use super::raw::Raw;
use crate::bench::measure::{Pairs, Row, at, sorted};
use crate::bench::uncontended::in_parallel;
use crate::bench::{Subject, text};

/// How often the server is idle, and at work.
const ROUNDS: u32 = 5;
/// How many locks each name is locked at a time.
const EACH: u32 = 16;

/// So many clients with so many names each.
pub(super) fn bystander(
    subject: &Subject,
    (clients, names): (u32, u32),
    floor: &'static str,
) -> Result<Row, String> {
    let words = Words::learn(subject)?;
    let mut raw = Raw::connect(&words.address, &words.hello)?;
    let clients = (0..clients)
        .map(|client| Client::open(subject, client, names))
        .collect::<Result<Vec<_>, _>>()?;
    let time = subject.time / (ROUNDS * 2);
    let (mut rounds, mut all) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let idle = pings(&mut raw, time)?;
        let beside = beside(&clients, || pings(&mut raw, time))?;
        rounds.push((at(&beside, 0.5), at(&idle, 0.5)));
        all.extend(beside);
    }
    let all = sorted(all.into_iter());
    let row = subject.row("bystander", clients.len() as u32 * names).rates(&Pairs(rounds));
    Ok(Row { p50_us: at(&all, 0.5), p99_us: at(&all, 0.99), ..row.beside(floor, "-") })
}

/// What each PING takes, in microseconds, for so long.
fn pings(raw: &mut Raw, time: Duration) -> Result<Vec<f64>, String> {
    let (ping, began, mut all) = (command(&["PING"]), Instant::now(), Vec::new());
    while began.elapsed() < time {
        let asked = Instant::now();
        raw.ask(&ping)?;
        all.push(asked.elapsed().as_secs_f64() * 1e6);
    }
    Ok(sorted(all.into_iter()))
}

/// Does this while all of them lock and release.
fn beside<T>(clients: &[Client], act: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = |client: &Client| {
            while !over.load(Ordering::Relaxed) {
                client.works()?;
            }
            Ok::<(), String>(())
        };
        let working: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || work(client))).collect();
        let ends = Ends(&over);
        let done = act();
        drop(ends);
        for one in working {
            one.join().map_err(|_| "a client failed".to_owned())??;
        }
        done
    })
}

/// Says that it is over, also where it unwinds: the others are waited for then, too.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client with connections and a thread of its own, as another process has them.
struct Client {
    runtime: tokio::runtime::Runtime,
    names: Vec<lockkeeper::Mutex>,
    _locks: lockkeeper::Locks,
}

impl Client {
    fn open(subject: &Subject, client: u32, names: u32) -> Result<Self, String> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(text)?;
        let builder = lockkeeper::Locks::builder().io_enabled().hand_off(0);
        let locks = runtime.block_on(builder.open(&subject.url)).map_err(text)?;
        let name = |n| locks.mutex(subject.name(&format!("beside/{client}/{n}")));
        Ok(Self { runtime, names: (0..names).map(name).collect(), _locks: locks })
    }

    fn works(&self) -> Result<(), String> {
        let batch = EACH * self.names.len() as u32;
        self.runtime.block_on(in_parallel(&self.names, batch))
    }
}
