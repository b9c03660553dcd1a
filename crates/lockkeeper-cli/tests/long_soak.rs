//! Commands at default options hold their locks for as long as they run, on servers to which
//! nothing happens.
//!
//! `cargo xtask soak` asks for more and longer ones.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::time::{Duration, Instant};

use common::healthy::Servers;
use common::{Place, Reaped};

/// How long it may take beyond the commands' own time.
const PATIENCE: Duration = Duration::from_secs(60);

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse().unwrap_or_else(|_| panic!("{variable}={text} is no whole number"))
    })
}

#[test]
fn commands_at_defaults_hold_their_locks_on_every_engine_and_layout() {
    let commands = number("SOAK_COMMANDS", 2);
    // Longer than the longest lease of a default.
    let time = Duration::from_secs(number("SOAK_SECONDS", 40));
    let (servers, place) = (Servers::start(), Place::new());
    let setups = servers.setups();
    let began = Instant::now();
    let mut runs = Vec::new();
    for (at, setup) in setups.iter().enumerate() {
        for number in 0..commands {
            let name = format!("soak-{at}-{number}");
            let mut lk = place.lk([
                "run",
                &name,
                "--url",
                &setup.url,
                "--",
                "sleep",
                &time.as_secs().to_string(),
            ]);
            runs.push((at, Reaped::spawn(lk.stderr(std::process::Stdio::piped()))));
        }
    }
    println!("{} commands started within {:.1} s", runs.len(), began.elapsed().as_secs_f64());
    let mut rows = vec![[0_u32; 2]; setups.len()];
    let mut lost = Vec::new();
    for (at, run) in runs {
        let ran = run.output_within((time + PATIENCE).saturating_sub(began.elapsed()));
        rows[at][usize::from(ran.code != 0)] += 1;
        if ran.code != 0 {
            lost.push(format!("{}: exit {}: {}", setups[at].what, ran.code, ran.err.trim()));
        }
    }
    println!("{:<32} {:>6} {:>6}   for {} s", "engine and layout", "held", "lost", time.as_secs());
    for (setup, [held, lost]) in setups.iter().zip(&rows) {
        println!("{:<32} {held:>6} {lost:>6}", setup.what);
    }
    assert!(
        lost.is_empty(),
        "{} of {} commands lost their lock:\n{}",
        lost.len(),
        rows.as_flattened().iter().sum::<u32>(),
        lost.join("\n")
    );
    assert!(began.elapsed() >= time, "the commands ran for as long as was asked");
}
