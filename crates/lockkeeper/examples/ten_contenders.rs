//! Ten tasks, then ten processes, on one lock: who waits behind whom, and who got it.
//!
//! `cargo run -p lockkeeper --example ten_contenders [URL]`; without a URL, lock files in a
//! directory of its own. A file that is created exclusively shows that one contender is inside.
//! Tokens are compared where the layout has them.

use std::future::{Future, IntoFuture, poll_fn};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command};
use std::task::Poll;
use std::time::Duration;

use lockkeeper::{Ability, Entry, Kind, Locks, Token, Waiter};

type Failure = Box<dyn std::error::Error + Send + Sync>;
const NAME: &str = "ten-contenders";

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [contender, url, place] = words.as_slice() {
        return contend(contender, url, place.as_ref()).await;
    }
    let place = tempfile::tempdir()?;
    let url =
        words.first().cloned().unwrap_or_else(|| format!("file://{}", place.path().display()));
    let locks = Locks::open(&url).await?;
    tasks(&locks).await?;
    if locks.describe().engine == "memory" {
        println!("\nTen processes: not on memory, which no other process sees.");
        return Ok(());
    }
    processes(&locks, &url, place.path()).await
}

/// Tasks of one process queue in memory, first come first served; the engine sees one place for all
/// of them.
async fn tasks(locks: &Locks) -> Result<(), Failure> {
    println!("Ten tasks of one process:");
    let mutex = locks.mutex(NAME);
    let held = mutex.lock().await?;
    println!("  main has it{}", said(held.token().ok()));
    let mut waiting = Vec::new();
    for number in 0..10 {
        let mut wait = Box::pin(mutex.lock().into_future());
        // Its place in the line is given at the first poll.
        let now = poll_fn(|context| Poll::Ready(wait.as_mut().poll(context).is_ready())).await;
        println!(
            "  task {number} {}",
            if now {
                "has it already?".to_owned()
            } else {
                format!("waits behind {}", before(number))
            }
        );
        waiting.push(tokio::spawn(async move {
            let guard = wait.await?;
            let token = guard.token().ok();
            println!("  task {number} got it{}", said(token));
            Ok::<_, lockkeeper::Error>(token)
        }));
    }
    let mut tokens = vec![held.token().ok()];
    drop(held);
    for task in waiting {
        tokens.push(task.await??);
    }
    rise(&tokens)
}

/// The token as it is printed; nothing in layouts without one.
fn said(token: Option<Token>) -> String {
    token.map_or_else(String::new, |token| format!(", token {token}"))
}

fn before(number: u32) -> String {
    number.checked_sub(1).map_or_else(|| "main".to_owned(), |number| format!("task {number}"))
}

/// Processes stand in the engine's line, where it has one.
async fn processes(locks: &Locks, url: &str, place: &Path) -> Result<(), Failure> {
    let about = locks.describe();
    println!("\nTen processes, as {} sees them:", about.engine);
    let records = about.can.has(Ability::Identity) && !about.expiry.is_per_hold();
    let shows_waiters = about.can.has(Ability::Fair) || records;
    let guard = locks.mutex(NAME).lock().await?;
    let mut children: Vec<Child> = Vec::new();
    for number in 0..10 {
        let words = [number.to_string(), url.to_owned(), place.display().to_string()];
        children.push(Command::new(std::env::current_exe()?).args(words).spawn()?);
        // The next one comes when this one stands in line.
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while shows_waiters && waiters(&locks.status(Kind::Lock, NAME).await?).len() <= number {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if tokio::time::Instant::now() > deadline {
                return Err(format!("process {number} does not stand in line").into());
            }
        }
    }
    let first = guard.token().ok();
    println!("  main (pid {}) has it{}", std::process::id(), said(first));
    if shows_waiters {
        let mut before = "main".to_owned();
        for waiter in waiters(&locks.status(Kind::Lock, NAME).await?) {
            let pid = waiter.pid.map_or_else(|| "a process".to_owned(), |pid| format!("pid {pid}"));
            println!("  {pid} waits behind {before}");
            before = pid;
        }
    } else {
        println!("  they wait without a line: the layout {} keeps none", about.layout);
    }
    drop(guard);
    for child in &mut children {
        if !child.wait()?.success() {
            return Err(format!("pid {} failed", child.id()).into());
        }
    }
    let text = std::fs::read_to_string(place.join("log"))?;
    let mut tokens = vec![first];
    for line in text.lines() {
        tokens.push(if line == "-" { None } else { Some(line.parse()?) });
    }
    rise(&tokens)?;
    if tokens.len() == 11 {
        Ok(())
    } else {
        Err(format!("{} of ten got it", tokens.len() - 1).into())
    }
}

fn waiters(entry: &Entry) -> Vec<Waiter> {
    let mut waiters = entry.waiters.clone();
    waiters.sort_by_key(|waiter| (waiter.ahead, waiter.since));
    waiters
}

/// One of the ten processes.
async fn contend(number: &str, url: &str, place: &Path) -> Result<(), Failure> {
    let locks = Locks::open(url).await?;
    let guard = locks.mutex(NAME).lock().timeout(Duration::from_secs(60)).await?;
    let inside = place.join("inside");
    // Refused while another contender's file is there: two would be inside.
    std::fs::OpenOptions::new().write(true).create_new(true).open(&inside)?;
    let token = guard.token().ok();
    println!("  process {number} (pid {}) got it{}", std::process::id(), said(token));
    let mut log = std::fs::OpenOptions::new().create(true).append(true).open(place.join("log"))?;
    writeln!(log, "{}", token.map_or_else(|| "-".to_owned(), |token| token.to_string()))?;
    std::fs::remove_file(&inside)?;
    _ = guard.release().await;
    Ok(())
}

/// Each turn has a greater token than the turn before it, where the layout has tokens: then all
/// have one.
fn rise(tokens: &[Option<Token>]) -> Result<(), Failure> {
    match tokens.windows(2).find(|pair| pair[0] >= pair[1] && pair.iter().any(Option::is_some)) {
        Some(pair) => Err(format!("token {:?} came after {:?}", pair[1], pair[0]).into()),
        None => Ok(()),
    }
}
