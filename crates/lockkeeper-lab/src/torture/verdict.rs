//! What a torture came to, for people and for scripts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use crate::check::Report;

/// The last line, its keys in the order of docs/json.md.
#[derive(Serialize)]
struct Object<'a> {
    engine: &'a str,
    verdict: &'a str,
    holds: u64,
    faults: &'a BTreeMap<&'static str, u64>,
    violations: Vec<Found<'a>>,
    expected_violations: Vec<Found<'a>>,
    stale_writes_rejected: u64,
    stale_writes_accepted: u64,
    recovery_ms: Recovery,
    seed: u64,
}

#[derive(Serialize)]
struct Found<'a> {
    class: &'a str,
    count: u64,
    first: Option<&'a str>,
}

#[derive(Serialize)]
struct Recovery {
    p50: Option<u64>,
    max: Option<u64>,
    promised: Option<u64>,
}

/// See the module.
pub(super) struct Verdict {
    pub(super) engine: &'static str,
    pub(super) seed: u64,
    /// Some fault really happened, or none was wanted.
    pub(super) planned: bool,
    pub(super) has_leases: bool,
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) report: Report,
    /// Where the histories are kept, when something was found.
    pub(super) kept: Option<PathBuf>,
}

impl Verdict {
    fn word(&self) -> &'static str {
        if !self.report.is_clean() {
            "violations"
        } else if !self.planned || self.report.counts.holds == 0 {
            "too-weak"
        } else {
            "clean"
        }
    }

    pub(super) fn exit_code(&self) -> u8 {
        match self.word() {
            "clean" => 0,
            "violations" => 1,
            _ => 2,
        }
    }

    pub(super) fn json(&self) -> String {
        let list = |expected: bool| -> Vec<Found<'_>> {
            let of = |class| self.report.allowed.contains(class) == expected;
            let found = self.report.found.iter().filter(|(class, _)| of(class));
            found.map(|(class, count)| Found { class: class.as_str(), count: *count, first: self.first(class.as_str()) }).collect()
        };
        let ms = |ns: Option<u64>| ns.map(|ns| ns / 1_000_000);
        let recovery = &self.report.recovery;
        let object = Object {
            engine: self.engine,
            verdict: self.word(),
            holds: self.report.counts.holds,
            faults: &self.faults,
            violations: list(false),
            expected_violations: list(true),
            stale_writes_rejected: self.report.counts.stale_rejected,
            stale_writes_accepted: self.report.counts.stale_accepted,
            recovery_ms: Recovery { p50: ms(recovery.p50()), max: ms(recovery.max()), promised: ms(self.report.recovery_promised_ns) },
            seed: self.seed,
        };
        // Numbers and plain words: there is nothing that could not be written.
        serde_json::to_string(&object).unwrap_or_default()
    }

    fn first(&self, class: &str) -> Option<&str> {
        self.report.violations.iter().find(|v| v.class.as_str() == class).map(|v| v.sentence.as_str())
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let counts = &self.report.counts;
        let faults: u64 = self.faults.values().sum();
        writeln!(out, "{}: {} holds checked under {faults} faults, seed {}", self.engine, counts.holds, self.seed)?;
        for (fault, times) in &self.faults {
            writeln!(out, "  {fault:<20} {times:>6} ×")?;
        }
        let ms = |ns: Option<u64>| ns.map_or("none measured".to_owned(), |ns| format!("{:.1} ms", ns as f64 / 1e6));
        writeln!(out, "  recovery after a death: median {}, at most {}", ms(self.report.recovery.p50()), ms(self.report.recovery.max()))?;
        if self.has_leases {
            writeln!(
                out,
                "  stale writes: {} rejected, {} accepted where tokens are checked",
                counts.stale_rejected, counts.stale_accepted
            )?;
        }
        for (class, count) in &self.report.found {
            let expected = if self.report.allowed.contains(class) { "expected" } else { "NOT expected" };
            writeln!(out, "  {expected}: {class} × {count}: {}", self.first(class.as_str()).unwrap_or(class.meaning()))?;
        }
        if let Some(kept) = &self.kept {
            writeln!(out, "  histories kept in {}", kept.display())?;
        }
        let verdict = match self.word() {
            "clean" => "clean: nothing beyond what its class allows",
            "violations" => "VIOLATIONS beyond what its class allows",
            _ => "too weak to say: no fault happened, or nothing was held",
        };
        writeln!(out, "{verdict}")
    }
}
