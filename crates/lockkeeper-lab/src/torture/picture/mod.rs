//! The timeline of a run: one self-contained page for a browser, or a few lines for a terminal.

mod timeline;

use std::path::Path;

use serde_json::{Value, json};

use super::Conviction;
use super::excuse::Excuses;
use crate::check::{CheckError, Report};
use timeline::{Span, Timeline};

/// How many violations are listed, and have their surroundings drawn.
const LISTED: usize = 500;

/// The page without its data.
const PAGE: &str = include_str!("page.html");

/// What a picture tells beside the histories.
pub(super) struct Told<'a> {
    pub(super) engine: &'a str,
    /// `clean`, `violations` or `too-weak`.
    pub(super) verdict: &'a str,
    pub(super) report: &'a Report,
    pub(super) convictions: &'a [Conviction],
    /// What was expected gets no red frame.
    pub(super) excuses: &'a Excuses,
}

/// One that is listed.
struct Listed {
    at: u64,
    until: u64,
    allowed: bool,
    class: &'static str,
    name: String,
    text: String,
    records: Vec<Value>,
}

impl Told<'_> {
    /// What was not expected first.
    fn listed(&self) -> Vec<Listed> {
        let convicted = self.convictions.iter().map(|c| {
            let (allowed, name, text) = (self.excuses.expects_conviction(c), c.name.clone(), c.sentence.clone());
            Listed { at: c.at, until: c.until, allowed, class: c.class, name, text, records: Vec::new() }
        });
        let checked = self.report.violations.iter().map(|v| {
            let records = v.records.iter().map(|r| json!([r.client, r.record])).collect();
            let (allowed, name, text) = (self.excuses.expects(v), v.name.clone(), v.sentence.clone());
            Listed { at: v.at, until: v.at, allowed, class: v.class.as_str(), name, text, records }
        });
        let mut all: Vec<Listed> = convicted.chain(checked).collect();
        all.sort_by_key(|one| (one.allowed, one.at));
        all.truncate(LISTED);
        all
    }
}

/// One HTML file: a lane a client, a row a name; zoom, click, throughput and hand-off below. Needs no network.
///
/// # Errors
/// As [`crate::check::check_files`].
pub(super) fn page<P: AsRef<Path>>(paths: &[P], told: &Told<'_>) -> Result<String, CheckError> {
    let listed = told.listed();
    let timeline = Timeline::read(paths, listed.iter().map(|one| one.at).collect())?;
    let mut words: Vec<&str> = Vec::new();
    let mut word = |what: &'static str| {
        words.iter().position(|word| *word == what).unwrap_or_else(|| {
            words.push(what);
            words.len() - 1
        })
    };
    let holds: Vec<_> = timeline
        .holds
        .iter()
        .map(|h| {
            let events: Vec<_> = h.events.iter().map(|e| json!([e.index, e.at, word(e.what.as_str())])).collect();
            let token = h.token.to_string();
            json!([h.lane, h.row, h.asked, h.from, h.to, token, h.mode, h.deadline, h.end, h.records[0], h.records[1], events])
        })
        .collect();
    let waits: Vec<_> = timeline.waits.iter().map(|w| json!([w.lane, w.row, w.from, w.to, w.end, w.records[0], w.records[1]])).collect();
    let spans = |all: &[Span]| -> Vec<_> { all.iter().map(|s| json!([s.lane, s.from, s.to, s.text])).collect() };
    let violations = listed.iter().map(|one| {
        let [at, until] = [one.at, one.until].map(|at| timeline.since_start(at));
        json!({"class": one.class, "name": one.name, "at": at, "until": until, "text": one.text, "allowed": one.allowed, "records": one.records})
    });
    let data = json!({
        "engine": told.engine,
        "verdict": told.verdict,
        "holds_checked": told.report.counts.holds,
        "lanes": timeline.lanes,
        "rows": timeline.rows,
        "length": timeline.length,
        "holds": holds,
        "words": words,
        "waits": waits,
        "pauses": spans(&timeline.pauses),
        "deaths": spans(&timeline.deaths),
        "faults": spans(&timeline.faults),
        "violations": violations.collect::<Vec<_>>(),
    });
    // Nothing that begins with it can end the script element, or keep it open.
    Ok(PAGE.replace("/*DATA*/null", &data.to_string().replace('<', "\\u003c")))
}

/// The same for a terminal: a line a client and name, `width` columns wide.
///
/// # Errors
/// As [`crate::check::check_files`].
pub(super) fn ascii<P: AsRef<Path>>(paths: &[P], told: &Told<'_>, width: usize) -> Result<String, CheckError> {
    let listed = told.listed();
    let timeline = Timeline::read(paths, listed.iter().map(|one| one.at).collect())?;
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
    let (expected, others): (Vec<&Listed>, Vec<&Listed>) = listed.iter().partition(|one| one.allowed);
    let marks = |all: Vec<&Listed>, mark| all.into_iter().map(move |one| (one.at, mark)).collect::<Vec<_>>();
    let moments = marks(expected, 'e').into_iter().chain(marks(others, '^'));
    paint("violations", &mut moments.map(|(at, mark)| (timeline.since_start(at), timeline.since_start(at), mark)));
    text.push_str("# exclusive  + shared or permits  - waited in vain  = stopped  x dead  ! fault  ^ violation  e expected\n");
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper::{Kind, Mode};

    use super::*;
    use crate::check::{Class, Violation};
    use crate::history::{LockId, Record, What, Writer, WriterOptions};

    /// One hold of a name, and what is told of it.
    fn drawn(name: &str, report: &Report, convictions: &[Conviction], verdict: &str) -> [String; 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.lkh");
        let writer = Writer::create(&path, WriterOptions { label: "client 1".to_owned(), ..WriterOptions::default() }).unwrap();
        for what in [What::AcquireCalled, What::Acquired, What::ReleaseCalled] {
            writer.write_for(Kind::Lock, name, Record::about(what, LockId::NONE, 1).mode(Mode::Exclusive).token(64));
        }
        writer.finish().unwrap();
        let excuses = Excuses::new(true, Duration::ZERO, crate::check::Late::never());
        let told = Told { engine: "file", verdict, report, convictions, excuses: &excuses };
        [page(&[&path], &told).unwrap(), ascii(&[&path], &told, 40).unwrap()]
    }

    fn data(page: &str) -> Value {
        let start = page.find("const D=").unwrap() + "const D=".len();
        serde_json::Deserializer::from_str(&page[start..]).into_iter::<Value>().next().unwrap().unwrap()
    }

    #[test]
    fn no_name_of_a_lock_ends_the_script_or_keeps_it_open() {
        let name = "</script><!--<script>alert(1)";
        let [page, _] = drawn(name, &Report::default(), &[], "clean");
        assert_eq!(data(&page)["rows"][0], name);
        let count = |what: &str| page.matches(what).count();
        assert_eq!((count("<script"), count("</script"), count("<!--")), (1, 1, 0));
    }

    #[test]
    fn what_was_not_expected_is_listed_before_hundreds_that_were_and_a_weak_run_is_not_called_clean() {
        let violation = |class, at| Violation {
            class,
            name: "a".to_owned(),
            at,
            since: at,
            late: true,
            pair: None,
            sentence: format!("at {at}"),
            records: Vec::new(),
        };
        // Late writes are expected of leases at any time; the overlap comes after all of them.
        let late = (0..2 * LISTED as u64).map(|at| violation(Class::LateEffect, at));
        let report = Report { violations: late.chain([violation(Class::Overlap, 5_000)]).collect(), ..Report::default() };
        let found = Conviction { class: "crash", name: String::new(), at: 6_000, until: 6_000, sentence: "it ended".to_owned() };
        let [page, text] = drawn("a", &report, &[found], "violations");
        let data_ = data(&page);
        let listed: Vec<_> =
            data_["violations"].as_array().unwrap().iter().map(|v| (v["class"].as_str().unwrap(), v["allowed"].as_bool())).collect();
        assert_eq!(listed[..3], [("overlap", Some(false)), ("crash", Some(false)), ("late-effect", Some(true))]);
        assert_eq!((listed.len(), data_["verdict"].as_str()), (LISTED, Some("violations")));
        let framed: Vec<_> = data_["violations"][1].as_object().unwrap().keys().cloned().collect();
        assert!(["at", "until", "name"].iter().all(|key| framed.iter().any(|k| k == key)), "what has no record is framed by its time");
        let words = data_["words"].as_array().unwrap();
        let events =
            data_["holds"][0][11].as_array().unwrap().iter().map(|e| words[usize::try_from(e[2].as_u64().unwrap()).unwrap()].as_str());
        assert_eq!(events.collect::<Vec<_>>(), [Some("acq_inv"), Some("acq_ok"), Some("rel_inv")]);
        assert!(text.lines().any(|line| line.starts_with("violations") && line.contains('^')), "{text}");
        assert_eq!(data(&drawn("a", &Report::default(), &[], "too-weak")[0])["verdict"], "too-weak");
    }
}
