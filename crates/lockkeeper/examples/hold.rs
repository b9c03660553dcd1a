//! Holds a lock until standard input is closed: `hold URL NAME [-n] [-s | --permits N/MAX]`.
//!
//! Without arguments it does so in memory. One line says that it was granted. Exit 75 when `-n` found it taken. The drivers under `interop/` use it.

use std::process::ExitCode;

use lockkeeper::{ErrorKind, Guard, Locks, Result};

enum Mode {
    Exclusive,
    Shared,
    Permits(u16, u16),
}

async fn take(locks: &Locks, name: &str, mode: &Mode, now: bool) -> Result<Option<Guard>> {
    Ok(match (mode, now) {
        (Mode::Exclusive, true) => locks.mutex(name).try_lock().await?,
        (Mode::Exclusive, false) => Some(locks.mutex(name).lock().await?),
        (Mode::Shared, true) => locks.rwlock(name).try_read().await?,
        (Mode::Shared, false) => Some(locks.rwlock(name).read().await?),
        (Mode::Permits(count, limit), true) => locks.semaphore(name, *limit).try_acquire(*count).await?,
        (Mode::Permits(count, limit), false) => Some(locks.semaphore(name, *limit).acquire(*count).await?),
    })
}

async fn run(url: &str, name: &str, mode: &Mode, now: bool) -> Result<u8> {
    let locks = Locks::open(url).await?;
    let Some(guard) = take(&locks, name, mode, now).await? else { return Ok(75) };
    println!("granted {}", guard.token().map_or_else(|_| "-".to_owned(), |token| token.to_string()));
    let end = tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()));
    // Whatever the input ends with, it has ended.
    let _ = end.await;
    let _ = guard.release().await;
    let _ = locks.close().await;
    Ok(0)
}

fn permits(text: &str) -> Option<Mode> {
    let (count, limit) = text.split_once('/')?;
    Some(Mode::Permits(count.parse().ok()?, limit.parse().ok()?))
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        // Nothing to share with anybody: shows itself on a lock of this process.
        words = ["memory:", "example", "-n"].map(str::to_owned).to_vec();
    }
    let [url, name, options @ ..] = words.as_slice() else {
        eprintln!("usage: hold URL NAME [-n] [-s | --permits N/MAX]");
        return ExitCode::from(64);
    };
    let (mut mode, mut now) = (Mode::Exclusive, false);
    let mut options = options.iter();
    while let Some(option) = options.next() {
        match option.as_str() {
            "-n" => now = true,
            "-s" => mode = Mode::Shared,
            "--permits" => match options.next().and_then(|text| permits(text)) {
                Some(permits) => mode = permits,
                None => return ExitCode::from(64),
            },
            _ => return ExitCode::from(64),
        }
    }
    match run(url, name, &mode, now).await {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(if error.kind() == ErrorKind::TimedOut { 75 } else { error.kind().exit_code() })
        }
    }
}
