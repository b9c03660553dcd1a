//! A table for people, an object a row for scripts.

use std::io::Write;

use super::measure::Row;

pub(super) struct Printer<'a> {
    out: &'a mut dyn Write,
    json: bool,
    printed: bool,
}

impl<'a> Printer<'a> {
    pub(super) fn new(out: &'a mut dyn Write, json: bool) -> Self {
        Self { out, json, printed: false }
    }

    pub(super) fn row(&mut self, row: &Row) {
        let line = if self.json { object(row) } else { self.line(row) };
        self.printed = true;
        // Whoever reads may have gone.
        let _ = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
    }

    fn line(&self, row: &Row) -> String {
        let head = if self.printed {
            String::new()
        } else {
            format!(
                "{:<20} {:<7} {:>5} {:>10} {:>10} {:>11} {:>10} {:>6} {:>13}  {:<8} {:<8} {}\n",
                "BENCH",
                "ENGINE",
                "TASKS",
                "P50 µs",
                "P99 µs",
                "A SECOND",
                "FLOOR µs",
                "RATIO",
                "SPREAD",
                "TARGET",
                "VERDICT",
                "FLOOR"
            )
        };
        let some = |value: Option<f64>, places: usize| {
            value.map_or(String::new(), |v| format!("{v:.places$}"))
        };
        let none_if_zero = |value: f64, places: usize| some((value > 0.0).then_some(value), places);
        let spread = row.spread.map_or(String::new(), |(low, high)| format!("{low:.2}–{high:.2}"));
        let ratio_places = if row.ratio.is_some_and(|r| r < 0.1) { 4 } else { 2 };
        format!(
            "{head}{:<20} {:<7} {:>5} {:>10} {:>10} {:>11} {:>10} {:>6} {:>13}  {:<8} {:<8} {}",
            row.bench,
            row.engine,
            row.tasks,
            none_if_zero(row.p50_us, 2),
            none_if_zero(row.p99_us, 2),
            none_if_zero(row.per_second, 0),
            some(row.floor_p50_us, 2),
            some(row.ratio, ratio_places),
            spread,
            row.target,
            row.verdict(),
            row.floor
        )
    }

    pub(super) fn end(&mut self) {
        if self.printed && !self.json {
            let text = "RATIO: median of neighbouring measurements, ours to the floor (one-name: \
                        the rate to that without hand-off; version-column, bystander: of rates; \
                        places: share of a processor). SPREAD: 10th to 90th percentile. VERDICT: \
                        whether RATIO meets TARGET.";
            let _ = writeln!(self.out, "{text}");
        }
    }
}

/// A row for scripts, its keys in the order of docs/json.md.
#[derive(serde::Serialize)]
struct Object {
    bench: &'static str,
    engine: &'static str,
    tasks: u32,
    p50_us: Option<f64>,
    p99_us: Option<f64>,
    per_second: Option<f64>,
    floor: &'static str,
    floor_p50_us: Option<f64>,
    ratio: Option<f64>,
    spread: Option<[f64; 2]>,
    target: &'static str,
    verdict: Option<&'static str>,
}

fn object(row: &Row) -> String {
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    let measured = |value: f64| (value > 0.0).then(|| round(value));
    let object = Object {
        bench: row.bench,
        engine: row.engine,
        tasks: row.tasks,
        p50_us: measured(row.p50_us),
        p99_us: measured(row.p99_us),
        per_second: measured(row.per_second).map(f64::round),
        floor: row.floor,
        floor_p50_us: row.floor_p50_us.map(round),
        ratio: row.ratio.map(|r| (r * 100_000.0).round() / 100_000.0),
        spread: row.spread.map(|(low, high)| [round(low), round(high)]),
        target: row.target,
        verdict: row.is_met().map(|_| row.verdict()),
    };
    // Numbers and plain words: there is nothing that could not be written.
    serde_json::to_string(&object).unwrap_or_default()
}
