//! What a torture came to, for people and for scripts.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::arena::About;
use super::broken::Broken;
use super::crew::CRASH;
use super::excuse::Excuses;
use super::picture::Told;
use super::{Conviction, Subject};
use crate::check::{Class, Counts, Report};
use crate::judge::chances::Chances;
use crate::judge::cost::{COST, Cost};
use crate::judge::groundless::GROUNDLESS;
use crate::judge::liveness::LIVENESS;
use crate::judge::starvation::{Judged, STARVATION};

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
    replay: &'a str,
    passed_over: Passed,
    waits_judged_ms: Option<u64>,
    fully_judged: u64,
    judged_spans: u64,
    leases_ended: u64,
    loss_late_ms: f64,
    client: &'a str,
    weak: Option<&'a str>,
    left_out: &'a [String],
    kept: Option<String>,
    cost: Option<&'a Cost>,
}

/// What was found of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Found {
    class: &'static str,
    count: u64,
    /// The first that is described, in a sentence.
    first: Option<String>,
    /// When that was, or else the first one: seconds after the first event.
    at_s: Option<f64>,
}

/// From the first event to that moment, to the millisecond.
fn seconds(start: u64, at: u64) -> f64 {
    (at.saturating_sub(start) / 1_000_000) as f64 / 1e3
}

#[derive(Serialize)]
struct Recovery {
    p50: Option<u64>,
    max: Option<u64>,
    promised: Option<u64>,
}

#[derive(Serialize)]
struct Passed {
    max: u64,
    promised: Option<u64>,
}

/// What a run came to, before it is judged.
pub(super) struct Outcome {
    pub(super) about: About,
    pub(super) seed: u64,
    /// The command that plays the same schedule again.
    pub(super) replay: String,
    /// Whose lock.
    pub(super) client: Subject,
    pub(super) broken: Option<&'static Broken>,
    pub(super) faults: BTreeMap<&'static str, u64>,
    pub(super) left_out: Vec<String>,
    pub(super) report: Report,
    pub(super) convictions: Vec<Conviction>,
    /// How many that asked later got a lock before one who waited, at most, and how many may.
    pub(super) passed: (u64, Option<u64>),
    /// For how long who waited was judged.
    pub(super) waits: Judged,
    /// What could have been found.
    pub(super) chances: Chances,
    /// What it costs the server, where that was measured.
    pub(super) cost: Option<Cost>,
    /// Why nothing could be learnt.
    pub(super) weak: Option<String>,
}

/// What convicts a client that is known to be wrong: when, in which words, and whether a fault
/// excuses it.
pub(super) struct Shown<'a> {
    pub(super) class: &'static str,
    pub(super) at: u64,
    sentence: &'a str,
    pub(super) is_excused: bool,
}

/// Everything of the classes that convict this client.
pub(super) fn shown<'a>(
    broken: &'static Broken,
    report: &'a Report,
    convictions: &'a [Conviction],
    excuses: &'a Excuses,
) -> impl Iterator<Item = Shown<'a>> {
    let checked = report.violations.iter().map(|v| {
        let (class, sentence) = (v.class.as_str(), v.sentence.as_str());
        Shown { class, at: v.at, sentence, is_excused: excuses.expects(v) }
    });
    let others = convictions.iter().map(|c| {
        let (class, sentence) = (c.class, c.sentence.as_str());
        Shown { class, at: c.at, sentence, is_excused: excuses.expects_conviction(c) }
    });
    checked.chain(others).filter(|shown| broken.convicted_by.contains(&shown.class))
}

/// Why a run is too weak in which the flaw of a lock that is known to be wrong did not show.
pub(super) fn unseen(broken: &Broken) -> String {
    format!("the flaw of broken:{} was not seen", broken.name)
}

/// See the module.
pub(super) struct Verdict {
    /// The first violation of the class that convicts this client: when, after the first event, and
    /// in which words.
    convicted: Option<(&'static str, f64, String)>,
    of: Outcome,
    violations: Vec<Found>,
    expected: Vec<Found>,
    /// Where the histories are kept, when something was found.
    kept: Option<PathBuf>,
}

impl Verdict {
    pub(super) fn new(mut of: Outcome, excuses: &Excuses) -> Self {
        let convicted = of.broken.and_then(|broken| {
            let start = of.report.span.0;
            let place = |class| broken.convicted_by.iter().position(|known| *known == class);
            let all = || shown(broken, &of.report, &of.convictions, excuses);
            let first = |excused: bool| {
                let all = all().filter(move |shown| shown.is_excused == excused);
                all.min_by_key(|shown| (place(shown.class), shown.at))
            };
            let of_it = |shown: Shown<'_>| {
                (shown.class, seconds(start, shown.at), shown.sentence.to_owned())
            };
            match (first(false), first(true)) {
                (Some(shown), _) => Some(Ok(of_it(shown))),
                (None, excused) => excused.map(of_it).map(Err),
            }
        });
        let convicted = convicted.and_then(|shown| match (shown, of.broken) {
            (Ok(shown), _) => Some(shown),
            (Err((class, at, _)), Some(broken)) => {
                // What is missing is a moment that nothing excuses, where nothing else is.
                if of.weak.as_ref() == Some(&unseen(broken)) {
                    of.weak = Some(format!(
                        "broken:{} showed {class} at +{at:.3} s, which a fault or the busy \
                         machine excuses: give it more --seconds, or a machine with less to do",
                        broken.name
                    ));
                }
                None
            }
            (Err(_), None) => None,
        });
        let (mut violations, mut expected) = (Vec::new(), Vec::new());
        for (class, count) in &of.report.found {
            let (fine, bad) = divide(*class, *count, &of.report, excuses);
            violations.extend(bad);
            expected.extend(fine);
        }
        for class in [LIVENESS, STARVATION, GROUNDLESS, COST, CRASH] {
            for (all, fine) in [(&mut expected, true), (&mut violations, false)] {
                let found = of
                    .convictions
                    .iter()
                    .filter(|c| c.class == class && excuses.expects_conviction(c) == fine);
                let count = found.clone().count() as u64;
                all.extend(found.min_by_key(|c| c.at).map(|c| {
                    let (first, at_s) =
                        (Some(c.sentence.clone()), Some(seconds(of.report.span.0, c.at)));
                    Found { class, count, first, at_s }
                }));
            }
        }
        Self { convicted, of, violations, expected, kept: None }
    }

    /// For its picture.
    pub(super) fn told<'a>(&'a self, excuses: &'a Excuses) -> Told<'a> {
        let about = &self.of.about;
        Told {
            client: self.of.client.shown(),
            what: self.of.broken.map(|broken| broken.what),
            engine: about.engine,
            class: (self.of.client == Subject::Shipped).then(|| about.class.to_string()),
            recovery_ms: u64::try_from(about.recovery.as_millis()).unwrap_or(u64::MAX),
            seed: self.of.seed,
            replay: &self.of.replay,
            verdict: self.word(),
            report: &self.of.report,
            convictions: &self.of.convictions,
            excuses,
        }
    }

    /// For how long who waited in an order that is promised was judged, all together; nothing where
    /// none is.
    fn waits_judged(&self) -> Option<Duration> {
        let about = &self.of.about;
        (about.fair || about.fair_permits).then_some(self.of.waits.judged)
    }

    pub(super) fn has_violations(&self) -> bool {
        !self.violations.is_empty()
    }

    pub(super) fn kept_in(self, dir: PathBuf) -> Self {
        Self { kept: Some(dir), ..self }
    }

    /// Why nothing could be learnt, where nothing was found.
    fn weak(&self) -> Option<&str> {
        self.of.weak.as_deref().filter(|_| !self.has_violations())
    }

    fn word(&self) -> &'static str {
        if self.has_violations() {
            "violations"
        } else if self.weak().is_some() {
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
        let recovery = &self.of.report.recovery;
        let object = Object {
            engine: self.of.about.engine,
            verdict: self.word(),
            holds: self.of.report.counts.holds,
            faults: &self.of.faults,
            violations: &self.violations,
            expected_violations: &self.expected,
            stale_writes_rejected: self.of.report.counts.stale_rejected,
            stale_writes_accepted: self.of.report.counts.stale_accepted,
            recovery_ms: Recovery {
                p50: ms(recovery.p50()),
                max: ms(recovery.max()),
                promised: ms(self.of.report.recovery_promised_ns),
            },
            seed: self.of.seed,
            replay: &self.of.replay,
            passed_over: Passed { max: self.of.passed.0, promised: self.of.passed.1 },
            waits_judged_ms: self
                .waits_judged()
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            fully_judged: self.of.chances.outside,
            judged_spans: self.of.chances.judged,
            leases_ended: self.of.chances.ended,
            loss_late_ms: self.of.report.counts.loss_late_max_ns as f64 / 1e6,
            client: &self.of.client.shown(),
            weak: self.weak(),
            left_out: &self.of.left_out,
            kept: self.kept.as_ref().map(|dir| dir.display().to_string()),
            cost: self.of.cost.as_ref(),
        };
        // Numbers and plain words: there is nothing that could not be written.
        serde_json::to_string(&object).unwrap_or_default()
    }

    pub(super) fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let counts = &self.of.report.counts;
        let faults: u64 = self.of.faults.values().sum();
        let (engine, class) = (self.of.about.engine, self.of.about.class);
        let ours = self.of.client == Subject::Shipped;
        if !ours {
            write!(out, "{} on ", self.of.client.shown())?;
        }
        writeln!(
            out,
            "{engine}, class {class}: {} holds checked under {faults} faults, seed {}",
            counts.holds, self.of.seed
        )?;
        for (fault, times) in &self.of.faults {
            writeln!(out, "  {fault:<20} {times:>6} ×")?;
        }
        let Counts { handed, converted, renewed, busy, timed_out, cancelled, lost, .. } = counts;
        writeln!(
            out,
            "  {handed} handed on, {converted} converted, {renewed} renewals, {lost} lost; \
             refused {busy}, timed out {timed_out}, left {cancelled}"
        )?;
        for left in &self.of.left_out {
            writeln!(out, "  left out: {left}")?;
        }
        let recovery = &self.of.report.recovery;
        match (recovery.p50(), recovery.max()) {
            (Some(p50), Some(max)) => writeln!(
                out,
                "  recovery after a death or a fault: median {:.1} ms, at most {:.1} ms",
                p50 as f64 / 1e6,
                max as f64 / 1e6
            )?,
            _ => writeln!(out, "  recovery: nobody waited where a holder died or a fault ended")?,
        }
        let Chances { judged, ended, outside, .. } = self.of.chances;
        writeln!(
            out,
            "  {outside} holds began when no fault could excuse a violation; \
             {judged} spans without a fault were longer than T{}",
            if self.of.about.expiry.is_timed() {
                format!("; {ended} leases ended under their holders")
            } else {
                String::new()
            }
        )?;
        let (passed, may) = self.of.passed;
        let may = may.map_or("no order is promised".to_owned(), |may| format!("at most {may} may"));
        let judged = self.waits_judged().map_or(String::new(), |time| {
            format!(
                "; judged for {:.1} of {:.1} s of waiting",
                time.as_secs_f64(),
                self.of.waits.waited.as_secs_f64()
            )
        });
        writeln!(
            out,
            "  overtaking: no waiter by more than {passed} later callers ({may}){judged}"
        )?;
        if let Some(cost) = &self.of.cost {
            writeln!(out, "  {}", cost.sentence())?;
        }
        if self.of.about.expiry.is_timed() {
            writeln!(
                out,
                "  news of a loss: at most {:.1} ms after its deadline",
                counts.loss_late_max_ns as f64 / 1e6
            )?;
            writeln!(
                out,
                "  stale writes: {} rejected, {} accepted where tokens are checked",
                counts.stale_rejected, counts.stale_accepted
            )?;
        }
        let allowed = format!("allowed by class {class} under these faults");
        for (found, how) in [(&self.expected, allowed.as_str()), (&self.violations, "NOT expected")]
        {
            for Found { class, count, first, at_s } in found {
                let at = at_s.map_or(String::new(), |at| format!(" at +{at:.3} s"));
                writeln!(
                    out,
                    "  {how}: {class} × {count}{at}: {}",
                    first.as_deref().unwrap_or("not described")
                )?;
            }
        }
        writeln!(out, "  the same schedule: {}", self.of.replay)?;
        if let Some(kept) = &self.kept {
            writeln!(out, "  histories kept in {}", kept.display())?;
        }
        if let Some((class, seconds, sentence)) = &self.convicted {
            let what = self.of.broken.map_or("", |b| b.what);
            writeln!(out, "convicted of {class}: {what}\n  at +{seconds:.3} s: {sentence}")?;
        }
        match self.weak() {
            _ if self.has_violations() && !ours => writeln!(out, "VIOLATIONS"),
            _ if self.has_violations() => writeln!(out, "VIOLATIONS beyond what its class allows"),
            Some(why) => writeln!(out, "too weak to say: {why}"),
            None if self.expected.is_empty() => writeln!(out, "clean: nothing was found"),
            None => writeln!(out, "clean: nothing beyond what its class allows, as listed above"),
        }
    }
}

/// Those of one class that were expected, and those that were not; also those that are not
/// described any more.
fn divide(
    class: Class,
    count: u64,
    report: &Report,
    excuses: &Excuses,
) -> (Option<Found>, Option<Found>) {
    let described = || report.violations.iter().filter(|v| v.class == class);
    let moments = |expected: bool| {
        let all = report.moments.get(&class).into_iter().flatten();
        all.filter(move |moment| excuses.expects_at(class, **moment) == expected)
            .map(|moment| moment.at)
    };
    let bad = moments(false).count() as u64;
    let found = |count: u64, expected: bool| {
        let first = described().filter(|v| excuses.expects(v) == expected).min_by_key(|v| v.at);
        let at = first.map(|v| v.at).or_else(|| moments(expected).min());
        let at_s = at.map(|at| seconds(report.span.0, at));
        (count > 0).then(|| Found {
            class: class.as_str(),
            count,
            first: first.map(|v| v.sentence.clone()),
            at_s,
        })
    };
    (found(count - bad, true), found(bad, false))
}

#[cfg(test)]
mod tests;
