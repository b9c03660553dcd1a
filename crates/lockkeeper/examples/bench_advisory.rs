//! PostgreSQL's own advisory locks under `interop/bench/`, through a plain client: what lockkeeper
//! is measured beside.
//!
//! `bench_advisory postgres://USER@HOST:PORT/DATABASE` answers lines as `bench_driver` does. It
//! waits in `pg_advisory_lock` on its one connection.

use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls, Statement};

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).ok_or("bench_advisory postgres://…")?;
    // What stands behind the question mark is lockkeeper's.
    let url = url.split('?').next().unwrap_or_default();
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    let version: String = client.query_one("SHOW server_version", &[]).await?.get(0);
    let lock = client.prepare("SELECT pg_advisory_lock(hashtextextended($1, 0))").await?;
    let unlock = client.prepare("SELECT pg_advisory_unlock(hashtextextended($1, 0))").await?;
    let version = version.split(' ').next().unwrap_or_default();
    println!("ready\t{version}\ttokio-postgres, prepared statements on one connection");
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let [_, milliseconds, name] = line.split('\t').collect::<Vec<_>>()[..] else {
            return Err(format!("{line:?} is not understood").into());
        };
        let window = Duration::from_millis(milliseconds.parse()?);
        let answer = turn(&client, &lock, &unlock, window, name).await;
        println!("{}", answer.unwrap_or_else(|error| format!("error {error}")));
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// Takes the lock and gives it back for as long as that.
async fn turn(
    client: &Client,
    lock: &Statement,
    unlock: &Statement,
    window: Duration,
    name: &str,
) -> Result<String, Failure> {
    let mut answer = String::new();
    let begun = Instant::now();
    while begun.elapsed() < window {
        let asked = Instant::now();
        client.query_one(lock, &[&name]).await?;
        let waited = asked.elapsed();
        if !client.query_one(unlock, &[&name]).await?.get::<_, bool>(0) {
            return Err("it was not ours".into());
        }
        answer += &format!("{}/{} ", waited.as_nanos(), asked.elapsed().as_nanos());
    }
    Ok(answer)
}
