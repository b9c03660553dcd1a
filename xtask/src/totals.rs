//! What runs of `lockkeeper torture` came to, read from their last lines and added up.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use serde_json::Value;

/// One run.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Run {
    verdict: String,
    weak: Option<String>,
    holds: u64,
    faults: BTreeMap<String, u64>,
    rejected: u64,
    accepted: u64,
    leases_ended: u64,
    /// Median and maximum, in milliseconds.
    recovery: [Option<u64>; 2],
}

impl Run {
    /// From what it printed; `None` when that is no verdict.
    pub fn read(text: &str) -> Option<Self> {
        let line: Value = serde_json::from_str(text.lines().last()?).ok()?;
        let number = |key: &str| line.get(key).and_then(Value::as_u64).unwrap_or(0);
        let text = |key: &str| Some(line.get(key)?.as_str()?.to_owned());
        let recovery = |key: &str| line.get("recovery_ms")?.get(key)?.as_u64();
        let faults = line.get("faults").and_then(Value::as_object).into_iter().flatten();
        Some(Self {
            verdict: text("verdict")?,
            weak: text("weak"),
            holds: number("holds"),
            faults: faults
                .filter_map(|(name, count)| Some((name.clone(), count.as_u64()?)))
                .collect(),
            rejected: number("stale_writes_rejected"),
            accepted: number("stale_writes_accepted"),
            leases_ended: number("leases_ended"),
            recovery: [recovery("p50"), recovery("max")],
        })
    }

    /// Whether it found something.
    pub fn convicts(&self) -> bool {
        self.verdict == "violations"
    }
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { verdict, holds, faults, rejected, accepted, .. } = self;
        write!(
            f,
            "{verdict}, {holds} holds, {} faults, {rejected} stale writes rejected, {accepted} \
             accepted",
            faults.values().sum::<u64>()
        )?;
        self.weak.as_ref().map_or(Ok(()), |why| write!(f, " ({why})"))
    }
}

/// What all runs of a kind came to.
#[derive(Debug, Default)]
pub struct Total {
    /// Clean ones, weak ones, and those that found something.
    verdicts: [u64; 3],
    holds: u64,
    faults: BTreeMap<String, u64>,
    rejected: u64,
    accepted: u64,
    leases_ended: u64,
    medians: Vec<u64>,
    longest: Option<u64>,
}

impl Total {
    /// One run more.
    pub fn add(&mut self, run: &Run) {
        let [clean, weak, convicted] = &mut self.verdicts;
        *match run.verdict.as_str() {
            "clean" => clean,
            "violations" => convicted,
            _ => weak,
        } += 1;
        self.holds += run.holds;
        for (name, count) in &run.faults {
            *self.faults.entry(name.clone()).or_default() += count;
        }
        self.rejected += run.rejected;
        self.accepted += run.accepted;
        self.leases_ended += run.leases_ended;
        let [median, longest] = run.recovery;
        self.medians.extend(median);
        self.longest = self.longest.max(longest);
    }

    fn runs(&self) -> u64 {
        self.verdicts.iter().sum()
    }

    fn all_faults(&self) -> u64 {
        self.faults.values().sum()
    }

    /// The median of the runs' medians: what each run measured is not in its last line.
    fn median(&self) -> Option<u64> {
        let mut sorted = self.medians.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len().saturating_sub(1) / 2).copied()
    }
}

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (runs, faults) = (self.runs(), self.all_faults());
        let Self { holds, rejected, accepted, .. } = self;
        let s = if runs == 1 { "" } else { "s" };
        write!(
            f,
            "{runs} run{s}, {holds} holds, {faults} faults, {rejected} stale writes rejected, \
             {accepted} accepted"
        )
    }
}

/// Prints them as a table, and the faults of each by name.
///
/// # Errors
/// It cannot be written.
pub fn print(totals: &BTreeMap<String, Total>, out: &mut dyn Write) -> io::Result<()> {
    let titles = [
        "engine",
        "runs",
        "clean/weak/convicted",
        "holds",
        "faults",
        "stale rejected",
        "accepted",
        "leases ended",
        "recovery ms",
    ];
    writeln!(out)?;
    row(out, &titles.map(str::to_owned))?;
    for (name, total) in totals {
        let ms = |ms: Option<u64>| ms.map_or("-".to_owned(), |ms| ms.to_string());
        let [clean, weak, convicted] = total.verdicts;
        let counts =
            [total.holds, total.all_faults(), total.rejected, total.accepted, total.leases_ended]
                .map(|count| count.to_string());
        let verdicts = format!("{clean}/{weak}/{convicted}");
        let [holds, faults, rejected, accepted, ended] = counts;
        let recovery = format!("{}, at most {}", ms(total.median()), ms(total.longest));
        row(
            out,
            &[
                name.clone(),
                total.runs().to_string(),
                verdicts,
                holds,
                faults,
                rejected,
                accepted,
                ended,
                recovery,
            ],
        )?;
    }
    writeln!(out, "recovery: the median of the runs' medians, and the longest")?;
    for (name, total) in totals {
        let faults: Vec<String> =
            total.faults.iter().map(|(fault, count)| format!("{fault} {count}")).collect();
        writeln!(
            out,
            "{name}: {}",
            if faults.is_empty() { "no fault".to_owned() } else { faults.join(", ") }
        )?;
    }
    out.flush()
}

fn row(out: &mut dyn Write, cells: &[String; 9]) -> io::Result<()> {
    let [name, runs, verdicts, holds, faults, rejected, accepted, ended, recovery] = cells;
    let counts = format!(
        "{runs:>4} {verdicts:>20} {holds:>11} {faults:>7} {rejected:>14} {accepted:>8} {ended:>12}"
    );
    writeln!(out, "{name:<25} {counts}  {recovery}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_added_up_from_their_last_lines() {
        let line = |verdict: &str, recovery: &str| {
            let text = format!(
                r#"{{"engine":"redis","verdict":"{verdict}","holds":70,
                "faults":{{"flush":2,"reset":3}},"violations":[{{"first":"\"holds\":9 {{"}}],
                "stale_writes_rejected":4,"stale_writes_accepted":1,"recovery_ms":{recovery},
                "seed":1,"leases_ended":6,"weak":null}}"#
            );
            Run::read(&text.replace('\n', "")).unwrap()
        };
        let mut total = Total::default();
        for (verdict, recovery) in [
            ("clean", r#"{"p50":5,"max":9,"promised":1000}"#),
            ("too-weak", r#"{"p50":null,"max":null,"promised":null}"#),
            ("clean", r#"{"p50":7,"max":8,"promised":1000}"#),
            ("violations", r#"{"p50":1,"max":70,"promised":1000}"#),
        ] {
            let run = line(verdict, recovery);
            assert_eq!(run.convicts(), verdict == "violations");
            total.add(&run);
        }
        assert_eq!(
            total.to_string(),
            "4 runs, 280 holds, 20 faults, 16 stale writes rejected, 4 accepted"
        );
        let mut out = Vec::new();
        print(&BTreeMap::from([("redis:auto".to_owned(), total)]), &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let row: Vec<&str> = out
            .lines()
            .find(|line| line.starts_with("redis:auto "))
            .unwrap()
            .split_whitespace()
            .collect();
        assert_eq!(
            row,
            ["redis:auto", "4", "2/1/1", "280", "20", "16", "4", "24", "5,", "at", "most", "70"],
            "{out}"
        );
        assert!(out.contains("redis:auto: flush 8, reset 12\n"), "{out}");
    }

    #[test]
    fn what_is_no_verdict_is_no_run() {
        for text in ["", "\n", "not obtained", r#"{"error":"refused","exit":69}"#, r#"{"verdict":"#]
        {
            assert_eq!(Run::read(text), None, "{text}");
        }
    }
}
