//! The report for people and for programs.

use std::io::{self, Write};
use std::path::Path;

use lockkeeper::text::{json_line, printable};
use serde_json::{Map, Value, json};

use crate::history::Role;
use crate::judge::{Class, Report, Violation};

/// Writes the report for people: what was read, a table of classes, each described violation with
/// its records.
///
/// # Errors
/// When `out` cannot be written.
pub fn print(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let counts = &report.counts;
    let seconds = seconds(report.span.1 - report.span.0);
    writeln!(
        out,
        "{} from {}: {} ({} handed on) of {} in {seconds:.3} s",
        many(counts.events, "event", "events"),
        many(report.clients.len() as u64, "history", "histories"),
        many(counts.holds, "hold", "holds"),
        counts.handed,
        many(counts.names, "name", "names"),
    )?;
    writeln!(
        out,
        "busy {}, timed out {}, lost {}, unknown {}; longest wait {:.3} ms",
        counts.busy,
        counts.timed_out,
        counts.lost,
        counts.unknown,
        millis(counts.wait_max_ns)
    )?;
    if report.recovery.count() > 0 || report.recovery_promised_ns.is_some() {
        let promised = report.recovery_promised_ns.map_or_else(
            || "nothing promised".to_owned(),
            |t| format!("promised {:.1} ms", millis(t)),
        );
        let (p50, max) = (report.recovery.p50().unwrap_or(0), report.recovery.max().unwrap_or(0));
        let faults = many(counts.faults, "fault", "faults");
        let cases = report.recovery.count();
        writeln!(
            out,
            "{faults}; recovered {cases} times, median {:.1} ms, longest {:.1} ms ({promised})",
            millis(p50),
            millis(max)
        )?;
    }
    let stale = [counts.stale_rejected, counts.stale_accepted, counts.stale_accepted_unfenced];
    if stale != [0; 3] {
        writeln!(
            out,
            "stale operations: {} refused, {} accepted, {} accepted where no token is checked",
            stale[0], stale[1], stale[2]
        )?;
    }
    if counts.torn > 0 {
        writeln!(
            out,
            "{} with a record that was being written",
            many(counts.torn, "history ends", "histories end")
        )?;
    }
    if counts.may_be_cut > 0 {
        writeln!(
            out,
            "{} of an older release may have been cut short",
            many(counts.may_be_cut, "open history", "open histories")
        )?;
    }
    if counts.stopped > 0 {
        let ended = many(counts.stopped, "recording", "recordings");
        writeln!(
            out,
            "{ended} ended early: refusals and recovery after that are not judged, nor is what its \
             process did"
        )?;
    }
    let unseen = if report.clients.iter().any(|client| client.role == Role::Nemesis) {
        ""
    } else {
        ", so refusals and recovery are not judged"
    };
    for file in &report.empty {
        let file = short(file);
        writeln!(out, "{} is empty: its process recorded nothing{unseen}", printable(file))?;
    }
    if counts.foreign > 0 {
        writeln!(
            out,
            "{} of kinds this release does not know were passed over",
            many(counts.foreign, "record", "records")
        )?;
    }
    if counts.strangers > 0 {
        writeln!(
            out,
            "{} about claims that began before the recording",
            many(counts.strangers, "record", "records")
        )?;
    }
    print_violations(report, out)
}

fn print_violations(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    if report.found.is_empty() {
        return writeln!(out, "{}: nothing wrong was found", clean(report));
    }
    writeln!(out, "\n{:>9}  {:<22} meaning", "found", "class")?;
    for (class, count) in &report.found {
        let allowed = if report.allowed.contains(class) { " (allowed)" } else { "" };
        writeln!(out, "{count:>9}  {:<22} {}{allowed}", class.as_str(), class.meaning())?;
    }
    for violation in &report.violations {
        writeln!(out, "\n{}: {}", violation.class, printable(violation.sentence.as_str()))?;
        let records: Vec<_> = violation
            .records
            .iter()
            .map(|r| format!("{} record {}", printable(file(report, r.client)), r.record))
            .collect();
        writeln!(out, "    at {}: {}", rfc3339(report.unix_ns, violation.at), records.join(", "))?;
    }
    if report.is_clean() {
        writeln!(out, "\n{}: only allowed violations were found", clean(report))
    } else {
        writeln!(out, "\nnot clean")
    }
}

fn clean(report: &Report) -> &'static str {
    let is_whole = report.counts.stopped == 0 && report.empty.is_empty();
    if is_whole { "clean" } else { "clean as far as recorded" }
}

/// Writes the report as one JSON object a line: every described violation, then a summary.
///
/// # Errors
/// When `out` cannot be written.
pub fn print_json(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    for violation in &report.violations {
        writeln!(out, "{}", json_line(violation_json(report, violation).to_string()))?;
    }
    writeln!(out, "{}", json_line(summary_json(report).to_string()))
}

/// One violation as JSON.
pub fn violation_json(report: &Report, violation: &Violation) -> Value {
    let records: Vec<_> = violation
        .records
        .iter()
        .map(|r| json!(
            {"file": file(report, r.client), "client": client(report, r.client), "record": r.record}
        ))
        .collect();
    json!({
        "event": "violation",
        "class": violation.class.as_str(),
        "verdict": violation.class.verdict().as_str(),
        "allowed": report.allowed.contains(&violation.class),
        "name": violation.name,
        "at": rfc3339(report.unix_ns, violation.at),
        "offset_us": violation.at.saturating_sub(report.span.0) / 1000,
        "sentence": violation.sentence,
        "records": records,
    })
}

/// The counts as JSON.
pub fn summary_json(report: &Report) -> Value {
    let counts = &report.counts;
    let found: Map<_, _> = Class::ALL
        .iter()
        .filter(|c| report.count(**c) > 0)
        .map(|c| (c.to_string(), json!(report.count(*c))))
        .collect();
    let ms = |ns: Option<u64>| ns.map(|ns| ns / 1_000_000);
    json!({
        "event": "summary",
        "clean": report.is_clean(),
        "violations": found,
        "files": report.clients.len(),
        "names": counts.names,
        "events": counts.events,
        "holds": counts.holds,
        "handed": counts.handed,
        "converted": counts.converted,
        "busy": counts.busy,
        "cancelled": counts.cancelled,
        "timed_out": counts.timed_out,
        "unknown": counts.unknown,
        "lost": counts.lost,
        "renewed": counts.renewed,
        "faults": counts.faults,
        "wait_max_ms": counts.wait_max_ns / 1_000_000,
        "loss_late_max_ms": counts.loss_late_max_ns / 1_000_000,
        "recovery_ms": {
            "cases": report.recovery.count(),
            "p50": ms(report.recovery.p50()),
            "max": ms(report.recovery.max()),
            "promised": ms(report.recovery_promised_ns),
        },
        "stale_writes_rejected": counts.stale_rejected,
        "stale_writes_accepted": counts.stale_accepted,
        "stale_writes_accepted_unfenced": counts.stale_accepted_unfenced,
        "before_recording": counts.strangers,
        "torn": counts.torn,
        "stopped": counts.stopped,
        "empty": report.empty.iter().map(|file| short(file)).collect::<Vec<_>>(),
        "may_be_cut": counts.may_be_cut,
        "foreign": counts.foreign,
        "judged_until": report.judged_until.map(|at| rfc3339(report.unix_ns, at)),
        "began": rfc3339(report.unix_ns, report.span.0),
        "span_ms": (report.span.1 - report.span.0) / 1_000_000,
    })
}

fn file(report: &Report, client: u32) -> String {
    report.clients.get(client as usize).map(|c| short(&c.path)).unwrap_or_default()
}

fn client(report: &Report, client: u32) -> &str {
    report.clients.get(client as usize).map_or("", |c| &c.label)
}

fn short(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}

fn many(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

fn millis(ns: u64) -> f64 {
    ns as f64 / 1e6
}

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A moment as RFC 3339 in UTC with microseconds; the date after Hinnant's `civil_from_days`.
fn rfc3339(unix_ns: i64, at: u64) -> String {
    let us = i64::try_from(at).unwrap_or(i64::MAX).saturating_add(unix_ns).div_euclid(1000);
    let (days, us) = (us.div_euclid(86_400_000_000), us.rem_euclid(86_400_000_000));
    let z = days + 719_468;
    let (era, day_of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let (day, month) = (
        day_of_year - (153 * shifted + 2) / 5 + 1,
        if shifted < 10 { shifted + 3 } else { shifted - 9 },
    );
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (s, us) = (us / 1_000_000, us % 1_000_000);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}.{us:06}Z",
        s / 3600,
        s / 60 % 60,
        s % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::Counts;

    #[test]
    fn moments_are_utc_and_leap_days_are_days() {
        let at = |s: i64| rfc3339(s * 1_000_000_000, 1_500);
        assert_eq!(at(0), "1970-01-01T00:00:00.000001Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000001Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00.000001Z");
        assert_eq!(at(1_795_219_199), "2026-11-20T23:59:59.000001Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59.000001Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00.000001Z");
        assert_eq!(rfc3339(-1_000, 0), "1969-12-31T23:59:59.999999Z");
    }

    #[test]
    fn records_that_were_passed_over_are_told_when_there_are_some() {
        let told = |foreign| {
            let mut out = Vec::new();
            let report =
                Report { counts: Counts { foreign, ..Counts::default() }, ..Report::default() };
            print(&report, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert!(
            told(2).contains("\n2 records of kinds this release does not know were passed over\n"),
            "{}",
            told(2)
        );
        assert!(!told(0).contains("kinds"), "{}", told(0));
    }

    #[test]
    fn one_is_one_and_more_are_more() {
        assert_eq!(
            [many(0, "a", "b"), many(1, "a", "b"), many(2, "a", "b")],
            ["0 b", "1 a", "2 b"]
        );
    }
}
