//! No lock at all: many workers write one row by its version, beside one that is alone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockkeeper_testkit::dice::Dice;
use tokio_postgres::{Client, Statement};

use super::bare::{connect, locks, make_rows};
use crate::bench::measure::{Pairs, Row};
use crate::bench::{Subject, text};

const WORKERS: u32 = 32;
/// How long each of the two is measured before the other is.
const WINDOW: Duration = Duration::from_millis(500);
/// How often a pause doubles at most.
const DOUBLINGS: u32 = 5;

/// One worker, and its connection.
struct Worker {
    client: Client,
    read: Statement,
    write: Statement,
}

impl Worker {
    async fn new(url: &str) -> Result<Self, String> {
        let (client, table) = (connect(url).await?, locks(url));
        let of = "kind = 0 AND name = convert_to($1, 'UTF8')";
        // `since` counts what was written: neither column is in an index.
        let read = format!("SELECT version, since FROM {table} WHERE {of}");
        let write = format!(
            "UPDATE {table} SET since = since + 1, version = version + 1 \
             WHERE {of} AND version = $2"
        );
        let read = client.prepare(&read).await.map_err(text)?;
        let write = client.prepare(&write).await.map_err(text)?;
        Ok(Self { client, read, write })
    }

    /// The row's version, and how often it was written.
    async fn look(&self, name: &str) -> Result<(i64, i64), String> {
        let row = self.client.query_one(&self.read, &[&name]).await.map_err(text)?;
        Ok((row.get(0), row.get(1)))
    }

    /// Reads and writes until it is told to stop; answers how often it wrote. After a conflict it
    /// pauses at random, for longer the more of them there were in a row: else all write at once
    /// again, and all but one in vain.
    async fn work(&self, name: &str, over: &AtomicBool, mut dice: Dice) -> Result<i64, String> {
        let (mut written, mut conflicts) = (0, 0);
        while !over.load(Ordering::Relaxed) {
            let began = Instant::now();
            let (version, _) = self.look(name).await?;
            let rows = self.client.execute(&self.write, &[&name, &version]).await.map_err(text)?;
            if rows > 0 {
                (written, conflicts) = (written + 1, 0);
                continue;
            }
            conflicts = (conflicts + 1).min(DOUBLINGS);
            let longest = began.elapsed().min(WINDOW / 8) * (1 << conflicts);
            let pause = dice.below(u64::try_from(longest.as_micros()).unwrap_or(u64::MAX));
            tokio::time::sleep(Duration::from_micros(pause).min(WINDOW / 2)).await;
        }
        Ok(written)
    }
}

/// The time of one write that succeeded, in microseconds.
async fn each(workers: &[Arc<Worker>], name: &str) -> Result<f64, String> {
    let first = workers.first().ok_or("no worker")?;
    let (_, before) = first.look(name).await?;
    let (began, over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let mut dice = Dice::new(u64::try_from(before).unwrap_or(0));
    let run = |worker: &Arc<Worker>| {
        let (worker, name, over) = (worker.clone(), name.to_owned(), over.clone());
        let dice = dice.split();
        tokio::spawn(async move { worker.work(&name, &over, dice).await })
    };
    let running: Vec<_> = workers.iter().map(run).collect();
    tokio::time::sleep(WINDOW).await;
    over.store(true, Ordering::Relaxed);
    let mut written = 0;
    for worker in running {
        written += worker.await.map_err(text)??;
    }
    let took = began.elapsed();
    let (_, after) = first.look(name).await?;
    if after - before != written {
        return Err(format!("{written} were written, and the row says {}", after - before));
    }
    Ok(took.as_secs_f64() * 1e6 / written.max(1) as f64)
}

/// See the module.
pub(super) fn one_row(subject: &Subject) -> Result<Row, String> {
    let name = subject.name("version");
    make_rows(subject, std::slice::from_ref(&name))?;
    let found = subject.runtime.block_on(async {
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            workers.push(Arc::new(Worker::new(&subject.url).await?));
        }
        let (began, mut found) = (Instant::now(), Vec::new());
        // The first is a warm-up.
        while began.elapsed() < subject.time || found.len() < 3 {
            let alone = workers.get(..1).unwrap_or_default();
            found.push((each(&workers, &name).await?, each(alone, &name).await?));
        }
        Ok::<_, String>(found.split_off(1))
    })?;
    let row = subject.row("version-column", WORKERS).rates(&Pairs(found));
    Ok(row.beside("one worker alone", "≥ 0.5"))
}
