//! Torture: briefly in `cargo xtask test --all`, and for hours with `cargo xtask torture --hours N`.

use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::Outcome;
use crate::project::{cargo, must, root, show};
use crate::stage::Workshop;

/// What is tortured: every engine, with servers of its own.
const ENGINES: [&str; 5] = ["file:auto", "redis:auto", "redis:auto?durable=true", "zk:auto", "zk:auto?nodes=3"];
/// In a stage an engine has so long; the ensemble is left to the hours.
const BRIEFLY: &str = "30";
/// In the long form.
const TURN: Duration = Duration::from_secs(600);

/// Each engine for half a minute, with a debug build: it is the machine's speed that counts here, and not ours.
pub fn briefly(workshop: &Workshop) -> Outcome {
    for engine in ENGINES.iter().filter(|e| !e.contains("nodes=")) {
        workshop.run(&mut cargo(&["run", "--package", "lockkeeper-cli", "--", "torture", engine, "--seconds", BRIEFLY, "--seed", "1"]))?;
    }
    Ok(())
}

/// `cargo xtask torture --hours N`: the engines in turn with rising seeds, until a violation or the end.
pub fn long(words: &[String]) -> Outcome {
    let time = hours(words)?;
    must(&mut cargo(&["build", "--release", "--package", "lockkeeper-cli"]))?;
    let reports = root().join("target/torture");
    fs::create_dir_all(&reports).map_err(|error| format!("{}: {error}", reports.display()))?;
    let end = Instant::now() + time;
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    let turns = (1u64..).flat_map(|seed| ENGINES.iter().map(move |engine| (seed, *engine)));
    for (seed, engine) in turns {
        let left = end.saturating_duration_since(Instant::now()).min(TURN);
        if left < Duration::from_secs(5) {
            break;
        }
        let report = reports.join(format!("{}-{seed}.html", engine.replace([':', '?', '='], "-")));
        let (seconds, seed_word) = (left.as_secs().to_string(), seed.to_string());
        let mut command = Command::new(root().join("target/release/lockkeeper"));
        command.args(["torture", engine, "--seconds", &seconds, "--seed", &seed_word, "--json", "--report"]).arg(&report);
        let out = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().map_err(|e| format!("{}: {e}", show(&command)))?;
        let line = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        println!("{engine} seed {seed}: {line}");
        sums.entry(engine).or_default().add(&line);
        // 2 is "too weak to say": a seed whose schedule showed nothing.
        if !matches!(out.status.code(), Some(0 | 2)) {
            print_sums(&sums);
            return Err(format!("{} ended with {}; its picture is {}", show(&command), out.status, report.display()));
        }
    }
    print_sums(&sums);
    Ok(())
}

fn hours(words: &[String]) -> Result<Duration, String> {
    let [flag, number] = words else { return Err("say for how long: cargo xtask torture --hours N".to_owned()) };
    let hours = number.parse::<f64>().ok().filter(|h| flag == "--hours" && h.is_finite() && (0.0..=10_000.0).contains(h));
    hours.map(|h| Duration::from_secs_f64(h * 3600.0)).ok_or_else(|| format!("{flag} {number}: cargo xtask torture --hours N is expected"))
}

/// What all runs of an engine came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Sum {
    runs: u64,
    holds: u64,
    faults: u64,
    rejected: u64,
    accepted: u64,
}

impl Sum {
    fn add(&mut self, line: &str) {
        let after = |key: &str| line.split_once(key).map_or("", |(_, rest)| rest);
        let number = |text: &str| text.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<u64>().unwrap_or(0);
        let faults = after("\"faults\":{").split('}').next().unwrap_or_default();
        self.runs += 1;
        self.holds += number(after("\"holds\":"));
        self.faults += faults.split(',').filter_map(|f| f.rsplit_once(':')).map(|(_, n)| number(n)).sum::<u64>();
        self.rejected += number(after("\"stale_writes_rejected\":"));
        self.accepted += number(after("\"stale_writes_accepted\":"));
    }
}

fn print_sums(sums: &BTreeMap<&str, Sum>) {
    println!("\n{:<26} {:>5} {:>12} {:>8} {:>15} {:>15}", "engine", "runs", "holds", "faults", "stale rejected", "stale accepted");
    for (engine, sum) in sums {
        let Sum { runs, holds, faults, rejected, accepted } = sum;
        println!("{engine:<26} {runs:>5} {holds:>12} {faults:>8} {rejected:>15} {accepted:>15}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_added_up_from_their_last_lines() {
        let line = r#"{"engine":"redis","verdict":"clean","holds":70,"faults":{"flush":2,"reset":3},"violations":[],"stale_writes_rejected":4,"stale_writes_accepted":0}"#;
        let mut sum = Sum::default();
        sum.add(line);
        sum.add(line);
        assert_eq!(sum, Sum { runs: 2, holds: 140, faults: 10, rejected: 8, accepted: 0 });
        sum.add("");
        assert_eq!((sum.runs, sum.holds), (3, 140));
    }

    #[test]
    fn hours_are_a_number_and_nothing_else_is_taken() {
        let given = |text: &str| hours(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(given("--hours 0.5"), Ok(Duration::from_secs(1800)));
        for wrong in ["", "--hours", "--hours x", "--hours -1", "--days 1", "--hours 1 2"] {
            assert!(given(wrong).is_err_and(|text| text.contains("--hours N")), "{wrong}");
        }
    }
}
