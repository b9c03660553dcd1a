//! Ten tasks, then ten processes, on one lock: who waits behind whom, and who got it.
//!
//! `cargo run --example ten_contenders [URL]`; without a URL, lock files in a directory of its own.

use std::future::{Future, IntoFuture, poll_fn};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Command};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::{Entry, Kind, Locks, Token, Waiter};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const NAME: &str = "ten-contenders";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [contender, url, log] = words.as_slice() {
        return contend(contender, url, log.as_ref()).await;
    }
    let place = tempfile::tempdir()?;
    let url = words.first().cloned().unwrap_or_else(|| format!("file://{}", place.path().display()));
    let locks = Locks::open(&url).await?;
    tasks(&locks).await?;
    if locks.describe().engine == "memory" {
        println!("\nTen processes: not on memory, which nobody else sees.");
        return Ok(());
    }
    processes(&locks, &url, &place.path().join("tokens")).await
}

/// Tasks of one process queue in memory, first come first served; the engine sees one place for all of them.
async fn tasks(locks: &Locks) -> Result<(), Failure> {
    println!("Ten tasks of one process:");
    let mutex = locks.mutex(NAME);
    let held = mutex.lock().await?;
    println!("  main has it, token {}", held.token()?);
    let mut waiting = Vec::new();
    for number in 0..10 {
        let mut wait = Box::pin(mutex.lock().into_future());
        // Its place in the line is given at the first poll.
        let now = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context).is_ready())).await;
        println!("  task {number} {}", if now { "has it already?".to_owned() } else { format!("waits behind {}", before(number)) });
        waiting.push(tokio::spawn(async move {
            let guard = wait.await?;
            println!("  task {number} got it, token {}", guard.token()?);
            guard.token()
        }));
    }
    let mut last = held.token()?;
    drop(held);
    for task in waiting {
        last = later(last, task.await??)?;
    }
    Ok(())
}

fn before(number: u32) -> String {
    number.checked_sub(1).map_or_else(|| "main".to_owned(), |number| format!("task {number}"))
}

/// Processes stand in the engine's line.
async fn processes(locks: &Locks, url: &str, log: &Path) -> Result<(), Failure> {
    println!("\nTen processes, as {} sees them:", locks.describe().engine);
    let guard = locks.mutex(NAME).lock().await?;
    let mut children: Vec<Child> = Vec::new();
    for number in 0..10 {
        let words = [number.to_string(), url.to_owned(), log.display().to_string()];
        children.push(Command::new(std::env::current_exe()?).args(words).spawn()?);
        // The next one comes when this one stands in line.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while waiters(&locks.status(Kind::Lock, NAME).await?).len() <= number {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if tokio::time::Instant::now() > deadline {
                return Err(format!("process {number} does not stand in line").into());
            }
        }
    }
    println!("  main (pid {}) has it, token {}", std::process::id(), guard.token()?);
    let mut before = "main".to_owned();
    for waiter in waiters(&locks.status(Kind::Lock, NAME).await?) {
        let pid = waiter.pid.map_or_else(|| "somebody".to_owned(), |pid| format!("pid {pid}"));
        println!("  {pid} waits behind {before}");
        before = pid;
    }
    let first = guard.token()?;
    drop(guard);
    for child in &mut children {
        if !child.wait()?.success() {
            return Err(format!("pid {} failed", child.id()).into());
        }
    }
    let mut text = String::new();
    std::fs::File::open(log)?.read_to_string(&mut text)?;
    let tokens: Vec<Token> = text.lines().map(str::parse).collect::<Result<_, _>>()?;
    tokens.iter().try_fold(first, |last, token| later(last, *token))?;
    if tokens.len() == 10 { Ok(()) } else { Err(format!("{} of ten got it", tokens.len()).into()) }
}

fn waiters(entry: &Entry) -> Vec<Waiter> {
    let mut waiters = entry.waiters.clone();
    waiters.sort_by_key(|waiter| (waiter.ahead, waiter.since));
    waiters
}

/// One of the ten processes.
async fn contend(number: &str, url: &str, log: &Path) -> Result<(), Failure> {
    let locks = Locks::open(url).await?;
    let guard = locks.mutex(NAME).lock().timeout(Duration::from_secs(60)).await?;
    let token = guard.token()?;
    println!("  process {number} (pid {}) got it, token {token}", std::process::id());
    // Without the lock two processes would write into each other's lines.
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(log)?;
    file.write_all(token.to_string().as_bytes())?;
    file.write_all(b"\n")?;
    _ = guard.release().await;
    Ok(())
}

/// Every turn has a greater token than the one before.
fn later(last: Token, token: Token) -> Result<Token, Failure> {
    if token > last { Ok(token) } else { Err(format!("token {token} came after {last}").into()) }
}
