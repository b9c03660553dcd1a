//! lockkeeper's driver under `interop/bench/`: a process that stays and answers lines, as those of
//! its peers do.
//!
//! `bench_driver [URL [drop]]`; without a URL, locks of this process. To `turn`, MILLISECONDS and
//! NAME …, with tabs between, one task for each NAME takes that lock and gives it back for that
//! time. The answer is one word for each time that one had it: nanoseconds until the lock was
//! granted, and until its release was answered. With `drop`, no task waits for that answer.

use std::io::{BufRead as _, Write as _};
use std::time::{Duration, Instant};

use lockkeeper::Locks;
use tokio::task::JoinSet;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let url = std::env::args().nth(1).unwrap_or_else(|| "memory:".to_owned());
    let awaited = std::env::args().nth(2).is_none_or(|word| word != "drop");
    // Members of the drivers' own need not be waited for.
    #[cfg(feature = "redlock")]
    if url.starts_with("redlock-lab:") {
        Locks::register(lockkeeper::redlock_laboratory())?;
    }
    let locks = Locks::builder().io_enabled().open(&url).await?;
    let options = url.split_once('?').map_or("no options", |(_, options)| options);
    let release = if awaited { "its release is awaited" } else { "its guard is dropped" };
    println!("ready\t{}\t{options}; {release}", env!("CARGO_PKG_VERSION"));
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let words: Vec<&str> = line.split('\t').collect();
        let [_, milliseconds, names @ ..] = &words[..] else {
            return Err(format!("{line:?} is not understood").into());
        };
        let window = Duration::from_millis(milliseconds.parse()?);
        let answer = turns(&locks, names, window, awaited).await;
        println!("{}", answer.unwrap_or_else(|error| format!("error {error}")));
        std::io::stdout().flush()?;
    }
    Ok(())
}

/// A task for each name, and what all of them had.
async fn turns(
    locks: &Locks,
    names: &[&str],
    window: Duration,
    awaited: bool,
) -> Result<String, Failure> {
    let mut tasks = JoinSet::new();
    for name in names {
        tasks.spawn(turn(locks.clone(), (*name).to_owned(), window, awaited));
    }
    let mut answer = String::new();
    while let Some(done) = tasks.join_next().await {
        for (waited, whole) in done?? {
            answer += &format!("{}/{} ", waited.as_nanos(), whole.as_nanos());
        }
    }
    Ok(answer)
}

/// Takes the lock and gives it back for as long as that.
async fn turn(
    locks: Locks,
    name: String,
    window: Duration,
    awaited: bool,
) -> Result<Vec<(Duration, Duration)>, Failure> {
    let mutex = locks.mutex(&name);
    let mut had = Vec::new();
    let begun = Instant::now();
    while begun.elapsed() < window {
        let asked = Instant::now();
        let guard = mutex.lock().await?;
        let waited = asked.elapsed();
        if awaited {
            let released = guard.release().await;
            if !released.is_clean() {
                return Err(format!("{released:?}").into());
            }
        } else {
            drop(guard);
        }
        had.push((waited, asked.elapsed()));
    }
    Ok(had)
}
