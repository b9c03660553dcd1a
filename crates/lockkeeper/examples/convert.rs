//! Holds a read-write lock in a way that changes: `convert URL NAME upgradable|write`, then a line
//! for each change.
//!
//! `up` makes an upgradable hold the writer, `back` takes that back, `down` makes either a reader,
//! for good. Each is answered by what it is then: `upgradable`, `writing`, `reading`. The end of
//! the input releases. Without arguments it shows itself in memory.

use std::io::BufRead;
use std::process::ExitCode;

use lockkeeper::{Locks, Result, UpgradableGuard, WriteGuard};

/// What is asked for next; nothing at the end.
async fn asked(lines: &mut std::vec::IntoIter<String>, from_input: bool) -> Option<String> {
    if !from_input {
        return lines.next();
    }
    let line = tokio::task::spawn_blocking(|| {
        std::io::stdin().lock().lines().next().and_then(std::io::Result::ok)
    });
    line.await.ok().flatten()
}

enum Grip {
    Upgradable(UpgradableGuard),
    Writer(WriteGuard),
}

async fn run(url: &str, name: &str, begins: &str, script: &[&str]) -> Result<()> {
    let locks = Locks::open(url).await?;
    let lock = locks.rwlock(name);
    let mut lines = script.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>().into_iter();
    let from_input = script.is_empty();
    let mut grip = if begins == "write" {
        Grip::Writer(lock.write().await?)
    } else {
        Grip::Upgradable(lock.upgradable().await?)
    };
    loop {
        println!("{}", if matches!(grip, Grip::Writer(_)) { "writing" } else { "upgradable" });
        let next = asked(&mut lines, from_input).await;
        match (next.as_deref(), &mut grip) {
            (Some("up"), Grip::Upgradable(guard)) => {
                let writing = guard.upgrade().await?;
                println!("writing");
                // Whatever comes next takes it back.
                _ = asked(&mut lines, from_input).await;
                drop(writing);
            }
            (Some("down"), _) => {
                let guard = match grip {
                    Grip::Upgradable(guard) => guard.downgrade().await?,
                    Grip::Writer(guard) => guard.downgrade().await?,
                };
                println!("reading");
                _ = asked(&mut lines, from_input).await;
                _ = guard.release().await;
                break;
            }
            (None, _) => {
                _ = match grip {
                    Grip::Upgradable(guard) => guard.release().await,
                    Grip::Writer(guard) => guard.release().await,
                };
                break;
            }
            (Some(other), _) => println!("cannot {other}"),
        }
    }
    let _ = locks.close().await;
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let done = match words.as_slice() {
        [] => run("memory:", "example", "upgradable", &["up", "back", "down"]).await,
        [url, name, begins] => run(url, name, begins, &[]).await,
        _ => {
            eprintln!("usage: convert URL NAME upgradable|write");
            return ExitCode::from(64);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}
