//! What a torture came to, for people and for scripts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;

use super::arena::About;
use super::excuse::Excuses;
use crate::check::{Class, Report};

/// The last line, its keys in the order of docs/json.md.
#[derive(Serialize)]
struct Object<'a> {
    engine: &'a str,
    verdict: &'a str,
    holds: u64,
    faults: &'a BTreeMap<&'static str, u64>,
    violations: &'a [Found],
    expected_violations: &'a [Found],
    stale_writes_rejected: u64,
    stale_writes_accepted: u64,
    recovery_ms: Recovery,
    seed: u64,
}

/// What was found of one class.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Found {
    pub(super) class: &'static str,
    pub(super) count: u64,
    /// The first one, in a sentence.
    pub(super) first: Option<String>,
}

#[derive(Serialize)]
struct Recovery {
    p50: Option<u64>,
    max: Option<u64>,
    promised: Option<u64>,
}

/// See the module.
pub(super) struct Verdict {
    about: About,
    seed: u64,
    faults: BTreeMap<&'static str, u64>,
    left_out: Vec<String>,
    report: Report,
    violations: Vec<Found>,
    expected: Vec<Found>,
    /// Why nothing could be learnt.
    weak: Option<String>,
    /// Where the histories are kept, when something was found.
    kept: Option<PathBuf>,
}

impl Verdict {
    pub(super) fn new(
        about: About,
        seed: u64,
        faults: BTreeMap<&'static str, u64>,
        left_out: Vec<String>,
        report: Report,
        excuses: &Excuses,
        weak: Option<String>,
    ) -> Self {
        let (mut violations, mut expected) = (Vec::new(), Vec::new());
        for (class, count) in &report.found {
            let (fine, bad) = divide(*class, *count, &report, excuses);
            violations.extend(bad);
            expected.extend(fine);
        }
        Self { about, seed, faults, left_out, report, violations, expected, weak, kept: None }
    }

    pub(super) fn report(&self) -> &Report {
        &self.report
    }

    pub(super) fn has_violations(&self) -> bool {
        !self.violations.is_empty()
    }

    pub(super) fn kept_in(self, dir: PathBuf) -> Self {
        Self { kept: Some(dir), ..self }
    }

    fn word(&self) -> &'static str {
        if self.has_violations() {
            "violations"
        } else if self.weak.is_some() {
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
        let ms = |ns: Option<u64>| ns.map(|ns| ns / 1_000_000);
        let recovery = &self.report.recovery;
        let object = Object {
            engine: self.about.engine,
            verdict: self.word(),
            holds: self.report.counts.holds,
            faults: &self.faults,
            violations: &self.violations,
            expected_violations: &self.expected,
            stale_writes_rejected: self.report.counts.stale_rejected,
            stale_writes_accepted: self.report.counts.stale_accepted,
            recovery_ms: Recovery { p50: ms(recovery.p50()), max: ms(recovery.max()), promised: ms(self.report.recovery_promised_ns) },
            seed: self.seed,
        };
        // Numbers and plain words: there is nothing that could not be written.
        serde_json::to_string(&object).unwrap_or_default()
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let counts = &self.report.counts;
        let faults: u64 = self.faults.values().sum();
        let (engine, class) = (self.about.engine, self.about.class);
        writeln!(out, "{engine}, class {class}: {} holds checked under {faults} faults, seed {}", counts.holds, self.seed)?;
        for (fault, times) in &self.faults {
            writeln!(out, "  {fault:<20} {times:>6} ×")?;
        }
        for left in &self.left_out {
            writeln!(out, "  left out: {left}")?;
        }
        let ms = |ns: Option<u64>| ns.map_or("none measured".to_owned(), |ns| format!("{:.1} ms", ns as f64 / 1e6));
        writeln!(out, "  recovery after a death: median {}, at most {}", ms(self.report.recovery.p50()), ms(self.report.recovery.max()))?;
        if self.about.leases {
            writeln!(
                out,
                "  stale writes: {} rejected, {} accepted where tokens are checked",
                counts.stale_rejected, counts.stale_accepted
            )?;
        }
        for (found, how) in [(&self.expected, "expected"), (&self.violations, "NOT expected")] {
            for Found { class, count, first } in found {
                writeln!(out, "  {how}: {class} × {count}: {}", first.as_deref().unwrap_or_default())?;
            }
        }
        if let Some(kept) = &self.kept {
            writeln!(out, "  histories kept in {}", kept.display())?;
        }
        match (self.word(), &self.weak) {
            ("violations", _) => writeln!(out, "VIOLATIONS beyond what its class allows"),
            (_, Some(why)) => writeln!(out, "too weak to say: {why}"),
            _ => writeln!(out, "clean: nothing beyond what its class allows"),
        }
    }
}

/// Those of one class that were expected, and those that were not. What is not described any more is like those that are.
fn divide(class: Class, count: u64, report: &Report, excuses: &Excuses) -> (Option<Found>, Option<Found>) {
    let described = || report.violations.iter().filter(|v| v.class == class);
    let bad = described().filter(|v| !excuses.expects(v)).count() as u64;
    let bad = if bad == 0 { 0 } else { bad + (count - described().count() as u64) };
    let found = |count: u64, expected: bool| {
        let first = described().find(|v| excuses.expects(v) == expected).map(|v| v.sentence.clone());
        (count > 0).then(|| Found { class: class.as_str(), count, first })
    };
    (found(count - bad, true), found(bad, false))
}
