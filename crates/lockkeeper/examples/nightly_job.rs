//! A job that cron starts on every host and that must run on one: not now if somebody is at it. It
//! takes longer than the clocks of the hosts differ; a shorter one keeps the guard for so long, as
//! `lockkeeper run --hold-at-least` does.
//!
//! `cargo run -p lockkeeper --example nightly_job [URL]`; without a URL, the engine that the
//! command line would use.

use std::process::ExitCode;
use std::time::Duration;

use lockkeeper::blocking::Locks;
use lockkeeper::{Released, Result};

fn main() -> ExitCode {
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        // As `lockkeeper run -n` would say it: not obtained.
        Ok(false) => ExitCode::from(75),
        Err(error) => {
            eprintln!("nightly_job: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run() -> Result<bool> {
    let locks = std::env::args().nth(1).map_or_else(Locks::from_env, |url| Locks::open(&url))?;
    let nightly = locks.mutex("nightly");
    // A run that is stuck must not stop every night after it.
    let Some(guard) = nightly.try_lock().hold_at_most(Duration::from_secs(2 * 3600)).run()? else {
        let holders = locks.status(lockkeeper::Kind::Lock, "nightly")?.holders;
        let holder = holders.first();
        println!(
            "not now: {} (pid {}) is at it",
            holder.and_then(|h| h.host.as_deref()).unwrap_or("somebody"),
            holder.and_then(|h| h.pid).unwrap_or(0)
        );
        return Ok(false);
    };
    for part in 1..=3 {
        // The first thing before every part: is it still ours?
        guard.check()?;
        report(part, guard.token()?);
    }
    match guard.release() {
        Released::Clean => println!("done, and the lock was ours until now"),
        other => println!("done, but {other:?}: look at what the report wrote"),
    }
    Ok(true)
}

fn report(part: u32, token: lockkeeper::Token) {
    println!("report part {part}, written with token {token}");
    std::thread::sleep(Duration::from_millis(20));
}
