//! The timeline of a run: one self-contained page for a browser, or a few lines for a terminal.

mod timeline;

use std::path::Path;

use serde_json::json;

use super::Conviction;
use crate::check::{CheckError, Report, Violation};
use timeline::{Span, Timeline};

/// How many violations are listed.
const SHOWN: usize = 500;

/// The page without its data.
const PAGE: &str = include_str!("page.html");

/// One HTML file: a lane a client, a row a name; zoom, click, throughput and hand-off below. Needs no network. What was
/// `expected` gets no red frame.
///
/// # Errors
/// As [`crate::check::check_files`].
pub fn page<P: AsRef<Path>>(
    paths: &[P],
    report: &Report,
    convictions: &[Conviction],
    expected: &dyn Fn(&Violation) -> bool,
    engine: &str,
) -> Result<String, CheckError> {
    let timeline = Timeline::read(paths)?;
    let holds: Vec<_> = timeline
        .holds
        .iter()
        .map(|h| json!([h.lane, h.row, h.asked, h.from, h.to, h.token.to_string(), h.mode, h.deadline, h.end, h.records[0], h.records[1]]))
        .collect();
    let waits: Vec<_> = timeline.waits.iter().map(|w| json!([w.lane, w.row, w.from, w.to, w.end, w.records[0], w.records[1]])).collect();
    let spans = |all: &[Span]| -> Vec<_> { all.iter().map(|s| json!([s.lane, s.from, s.to, s.text])).collect() };
    let clients: Vec<_> = report.clients.iter().map(|c| c.label.as_str()).collect();
    let convicted = convictions.iter().map(|c| {
        let at = timeline.since_start(c.at);
        json!({"class": c.class, "name": c.name, "at": at, "text": c.sentence, "allowed": false, "records": []})
    });
    let checked = report
        .violations
        .iter()
        .take(SHOWN)
        .map(|v| {
            let allowed = expected(v);
            let records: Vec<_> = v.records.iter().map(|r| json!([r.client, r.record])).collect();
            json!({"class": v.class.as_str(), "name": v.name, "at": timeline.since_start(v.at), "text": v.sentence, "allowed": allowed, "records": records})
        });
    let violations: Vec<_> = convicted.chain(checked).collect();
    let data = json!({
        "engine": engine,
        "clean": convictions.is_empty() && report.violations.iter().all(expected),
        "holds_checked": report.counts.holds,
        "lanes": timeline.lanes,
        "rows": timeline.rows,
        "clients": clients,
        "length": timeline.length,
        "holds": holds,
        "waits": waits,
        "pauses": spans(&timeline.pauses),
        "deaths": spans(&timeline.deaths),
        "faults": spans(&timeline.faults),
        "violations": violations,
    });
    // Inside a script element only this sequence could end it.
    let data = data.to_string().replace("</", "<\\/");
    Ok(PAGE.replace("/*DATA*/null", &data))
}

/// The same for a terminal: a line a client and name, `width` columns wide.
///
/// # Errors
/// As [`crate::check::check_files`].
pub fn ascii<P: AsRef<Path>>(paths: &[P], report: &Report, convictions: &[Conviction], width: usize) -> Result<String, CheckError> {
    let timeline = Timeline::read(paths)?;
    let width = width.clamp(20, 400);
    let column = |at: u64| usize::try_from(at.saturating_mul(width as u64) / timeline.length.max(1)).unwrap_or(width).min(width - 1);
    let mut text = String::new();
    let label = timeline.lanes.iter().chain(&timeline.rows).map(|l| l.chars().count()).max().unwrap_or(0) + 2;
    let mut paint = |name: &str, marks: &mut dyn Iterator<Item = (u64, u64, char)>| {
        let mut line = vec!['·'; width];
        for (from, to, mark) in marks {
            for cell in line.iter_mut().take(column(to) + 1).skip(column(from)) {
                *cell = mark;
            }
        }
        text.push_str(&format!("{name:<label$}{}\n", line.into_iter().collect::<String>()));
    };
    paint("faults", &mut timeline.faults.iter().map(|f| (f.from, f.to, '!')));
    for (lane, name) in timeline.lanes.iter().enumerate() {
        let mine = |s: &&Span| s.lane == Some(lane);
        let pauses = timeline.pauses.iter().filter(mine).map(|s| (s.from, s.to, '='));
        let deaths = timeline.deaths.iter().filter(mine).map(|s| (s.from, s.to, 'x'));
        paint(name, &mut pauses.chain(deaths));
        for (row, name) in timeline.rows.iter().enumerate() {
            let holds = timeline.holds.iter().filter(|h| h.lane == lane && h.row == row);
            let waits = timeline.waits.iter().filter(|w| w.lane == lane && w.row == row).map(|w| (w.from, w.to, '-'));
            let holds = holds.map(|h| (h.from, h.to, if h.mode == "exclusive" { '#' } else { '+' }));
            paint(&format!("  {name}"), &mut waits.chain(holds));
        }
    }
    let moments = report.violations.iter().map(|v| v.at).chain(convictions.iter().map(|c| c.at)).map(|at| timeline.since_start(at));
    paint("violations", &mut moments.map(|at| (at, at, '^')));
    text.push_str("# exclusive  + shared or permits  - waited in vain  = stopped  x dead  ! fault  ^ violation\n");
    Ok(text)
}
