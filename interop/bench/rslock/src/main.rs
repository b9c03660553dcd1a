//! See peers.py. `bench-rust-peers rslock HOST:PORT …`, or `redis-rs HOST:PORT`.

mod redis_rs;

use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

use rslock::LockManager;
use tokio::task::JoinSet;

use redis_rs::Raw;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const TTL: Duration = Duration::from_secs(20);

/// What locks.
#[derive(Clone)]
enum Locker {
    Rslock(LockManager),
    Raw(Raw),
}

impl Locker {
    async fn new(library: &str, hosts: &[String]) -> Result<Self, Failure> {
        let urls: Vec<String> = hosts.iter().map(|host| format!("redis://{host}")).collect();
        Ok(match library {
            "rslock" => Self::Rslock(LockManager::new(urls)),
            _ => Self::Raw(Raw::connect(&urls[0]).await?),
        })
    }

    fn ready(&self) -> String {
        let redis = version("redis");
        match self {
            Self::Rslock(_) => {
                let rslock = version("rslock");
                format!("{rslock}\tredis {redis}, ttl {TTL:?}, its default retries")
            }
            Self::Raw(_) => format!("{redis}\t{}", Raw::SETTINGS),
        }
    }

    /// Takes the lock and gives it back; how long the first of it took.
    async fn pair(&mut self, name: &str) -> Result<Duration, Failure> {
        let asked = Instant::now();
        match self {
            Self::Rslock(manager) => {
                let guard = manager.acquire(name, TTL).await?;
                let waited = asked.elapsed();
                guard.release().await;
                Ok(waited)
            }
            Self::Raw(raw) => {
                let value = raw.lock(name).await?;
                let waited = asked.elapsed();
                raw.unlock(name, &value).await?;
                Ok(waited)
            }
        }
    }
}

/// Which version of a dependency this is.
fn version(package: &str) -> &'static str {
    let after = format!("name = \"{package}\"\nversion = \"");
    let found = include_str!("../Cargo.lock").split_once(&after);
    found.and_then(|(_, rest)| rest.split('"').next()).unwrap_or("?")
}

// One thread: what wakes another one is slower.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let (library, hosts) = words.split_first().ok_or("bench-rust-peers LIBRARY HOST:PORT …")?;
    let locker = Locker::new(library, hosts).await?;
    println!("ready\t{}", locker.ready());
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split('\t').collect();
        let [_, milliseconds, names @ ..] = &words[..] else {
            return Err(format!("{line:?} is not understood").into());
        };
        let window = Duration::from_millis(milliseconds.parse()?);
        let answer = turns(&locker, names, window).await;
        println!("{}", answer.unwrap_or_else(|error| format!("error {error}")));
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// A task for each name, and what all of them had.
async fn turns(locker: &Locker, names: &[&str], window: Duration) -> Result<String, Failure> {
    let mut tasks = JoinSet::new();
    for name in names {
        tasks.spawn(turn(locker.clone(), (*name).to_owned(), window));
    }
    let mut answer = String::new();
    while let Some(done) = tasks.join_next().await {
        for (waited, whole) in done?? {
            answer += &format!("{}/{} ", waited.as_nanos(), whole.as_nanos());
        }
    }
    Ok(answer)
}

async fn turn(
    mut locker: Locker,
    name: String,
    window: Duration,
) -> Result<Vec<(Duration, Duration)>, Failure> {
    let mut had = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < window {
        let asked = Instant::now();
        let waited = locker.pair(&name).await?;
        had.push((waited, asked.elapsed()));
    }
    Ok(had)
}
