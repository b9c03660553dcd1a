//! The timeline of a run: one self-contained page for a browser, or a few lines for a terminal.

mod density;
mod timeline;

use std::path::Path;

use serde_json::json;

use super::Conviction;
use super::excuse::Excuses;
use crate::check::{CheckError, Report};
use timeline::{Span, Timeline};

/// How many violations are listed, and have their surroundings drawn.
const LISTED: usize = 500;

/// The page without its data.
const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// What a picture tells beside the histories.
pub(super) struct Told<'a> {
    /// Whose lock: `lockkeeper`, `broken:NAME`, `exec`.
    pub(super) client: String,
    /// What is known to be wrong with it.
    pub(super) what: Option<&'static str>,
    pub(super) engine: &'static str,
    /// The class of the engine, where the lock is ours.
    pub(super) class: Option<String>,
    /// T.
    pub(super) recovery_ms: u64,
    pub(super) seed: u64,
    /// The command that plays the same schedule again.
    pub(super) replay: &'a str,
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
    /// What excuses it, and when that began.
    because: Option<(&'static str, Option<u64>)>,
    class: &'static str,
    name: String,
    text: String,
    /// The convicting one first, by file and number.
    records: Vec<(u32, u64)>,
}

impl Told<'_> {
    /// What was not expected first; and whether there is more than that.
    fn listed(&self) -> (Vec<Listed>, bool) {
        let convicted = self.convictions.iter().map(|c| {
            let (allowed, name, text) =
                (self.excuses.expects_conviction(c), c.name.clone(), c.sentence.clone());
            Listed {
                at: c.at,
                until: c.until,
                allowed,
                because: None,
                class: c.class,
                name,
                text,
                records: Vec::new(),
            }
        });
        let checked = self.report.violations.iter().map(|v| {
            let records = v.records.iter().map(|r| (r.client, r.record)).collect();
            let (allowed, name, text) =
                (self.excuses.expects(v), v.name.clone(), v.sentence.clone());
            let (because, class) = (self.excuses.reason(v), v.class.as_str());
            Listed { at: v.at, until: v.at, allowed, because, class, name, text, records }
        });
        let mut all: Vec<Listed> = convicted.chain(checked).collect();
        all.sort_by_key(|one| (one.allowed, one.at));
        let more = all.len() > LISTED;
        all.truncate(LISTED);
        (all, more)
    }
}

/// The histories as they are drawn, with what is listed.
fn read<P: AsRef<Path>>(paths: &[P], listed: &[Listed]) -> Result<Timeline, CheckError> {
    let records = listed.iter().flat_map(|one| one.records.iter().copied()).collect();
    Timeline::read(paths, listed.iter().map(|one| one.at).collect(), records)
}

/// One HTML file: a lane a client, a row a name; zoom, click, throughput and hand-off below. It
/// begins at the first violation that was not expected, and tells its story. Needs no network.
///
/// # Errors
/// As [`crate::check::check_files`].
pub(super) fn page<P: AsRef<Path>>(paths: &[P], told: &Told<'_>) -> Result<String, CheckError> {
    let (listed, more) = told.listed();
    let timeline = read(paths, &listed)?;
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
            let events: Vec<_> =
                h.events.iter().map(|e| json!([e.index, e.at, word(e.what.as_str())])).collect();
            let token = h.token.to_string();
            json!([
                h.lane,
                h.row,
                h.asked,
                h.from,
                h.to,
                token,
                h.mode,
                h.deadline,
                h.end,
                h.records[0],
                h.records[1],
                events
            ])
        })
        .collect();
    let waits: Vec<_> = timeline
        .waits
        .iter()
        .map(|w| json!([w.lane, w.row, w.from, w.to, w.end, w.records[0], w.records[1]]))
        .collect();
    let spans = |all: &[Span]| -> Vec<_> {
        all.iter().map(|s| json!([s.lane, s.from, s.to, s.text])).collect()
    };
    let violations: Vec<_> = listed
        .iter()
        .map(|one| {
            let [at, until] = [one.at, one.until].map(|at| timeline.since_start(at));
            let point = |record| Some((record, timeline.points.get(record)?));
            let found = one.records.iter().filter_map(point);
            let row =
                |((file, index), (lane, at, what)): (&(_, _), &(_, _, crate::history::What))| {
                    json!([file, index, lane, at, word(what.as_str())])
                };
            let records: Vec<_> = found.map(row).collect();
            json!({
                "class": one.class,
                "name": one.name,
                "at": at,
                "until": until,
                "text": one.text,
                "allowed": one.allowed,
                "because": one.because.map(|(what, from)| {
                    json!([what, from.map(|at| timeline.since_start(at))])
                }),
                "records": records,
            })
        })
        .collect();
    let data = json!({
        "client": told.client,
        "what": told.what,
        "class": told.class,
        "recovery_ms": told.recovery_ms,
        "seed": told.seed,
        "replay": told.replay,
        "version": env!("CARGO_PKG_VERSION"),
        "unlisted": more,
        "exact": timeline.exact(),
        "engine": told.engine,
        "verdict": told.verdict,
        "holds_checked": told.report.counts.holds,
        "lanes": timeline.lanes,
        "rows": timeline.rows,
        "length": timeline.length,
        "holds": holds,
        "words": words,
        "density": timeline.density.json(timeline.length, &timeline.order),
        "waits": waits,
        "pauses": spans(&timeline.pauses),
        "deaths": spans(&timeline.deaths),
        "faults": spans(&timeline.faults),
        "violations": violations,
    });
    // Nothing that begins with it can end the script element, or keep it open.
    let data = data.to_string().replace('<', "\\u003c");
    let page = PAGE.replace("/*STYLE*/", STYLE.trim_end()).replace("/*SCRIPT*/", SCRIPT.trim_end());
    Ok(page.replace("/*DATA*/null", &data))
}

/// The same for a terminal: a line a client and name, `width` columns wide.
///
/// # Errors
/// As [`crate::check::check_files`].
pub(super) fn ascii<P: AsRef<Path>>(
    paths: &[P],
    told: &Told<'_>,
    width: usize,
) -> Result<String, CheckError> {
    let (listed, _) = told.listed();
    let timeline = read(paths, &listed)?;
    let width = width.clamp(20, 400);
    let column = |at: u64| {
        usize::try_from(at.saturating_mul(width as u64) / timeline.length.max(1))
            .unwrap_or(width)
            .min(width - 1)
    };
    let mut text = String::new();
    let label =
        timeline.lanes.iter().chain(&timeline.rows).map(|l| l.chars().count()).max().unwrap_or(0)
            + 2;
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
            let waits = timeline
                .waits
                .iter()
                .filter(|w| w.lane == lane && w.row == row)
                .map(|w| (w.from, w.to, '-'));
            let holds =
                holds.map(|h| (h.from, h.to, if h.mode == "exclusive" { '#' } else { '+' }));
            paint(&format!("  {name}"), &mut waits.chain(holds));
        }
    }
    let (expected, others): (Vec<&Listed>, Vec<&Listed>) =
        listed.iter().partition(|one| one.allowed);
    let marks = |all: Vec<&Listed>, mark| {
        all.into_iter().map(move |one| (one.at, mark)).collect::<Vec<_>>()
    };
    let moments = marks(expected, 'e').into_iter().chain(marks(others, '^'));
    paint(
        "violations",
        &mut moments.map(|(at, mark)| (timeline.since_start(at), timeline.since_start(at), mark)),
    );
    text.push_str(
        "# exclusive  + shared or permits  - waited in vain  = stopped  x dead  ! fault  ^ \
         violation  e expected\n",
    );
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use lockkeeper::{Kind, Mode};
    use serde_json::Value;

    use super::super::fault::{self, Fault, Hits};
    use super::*;
    use crate::check::{Class, Violation};
    use crate::history::{LockId, Record, What, Writer, WriterOptions};

    /// One hold of a name, and what is told of it.
    fn drawn(
        name: &str,
        report: &Report,
        convictions: &[Conviction],
        verdict: &str,
    ) -> [String; 2] {
        let excuses = Excuses::new(true, Duration::ZERO, crate::check::Late::never());
        drawn_with(name, report, convictions, verdict, &excuses)
    }

    fn drawn_with(
        name: &str,
        report: &Report,
        convictions: &[Conviction],
        verdict: &str,
        excuses: &Excuses,
    ) -> [String; 2] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("client.lkh");
        let writer = Writer::create(
            &path,
            WriterOptions { label: "client 1".to_owned(), ..WriterOptions::default() },
        )
        .unwrap();
        for what in [What::AcquireCalled, What::Acquired, What::ReleaseCalled] {
            writer.write_for(
                Kind::Lock,
                name,
                Record::about(what, LockId::NONE, 1).mode(Mode::Exclusive).token(64),
            );
        }
        writer.finish().unwrap();
        let told = Told {
            client: "broken:plain-del".to_owned(),
            what: Some("it deletes by name alone"),
            engine: "file",
            class: None,
            recovery_ms: 600,
            seed: 7,
            replay: "lockkeeper torture --replay 7",
            verdict,
            report,
            convictions,
            excuses,
        };
        [page(&[&path], &told).unwrap(), ascii(&[&path], &told, 40).unwrap()]
    }

    fn data(page: &str) -> Value {
        let start = page.find("const D=").unwrap() + "const D=".len();
        serde_json::Deserializer::from_str(&page[start..])
            .into_iter::<Value>()
            .next()
            .unwrap()
            .unwrap()
    }

    #[test]
    fn no_name_of_a_lock_ends_the_script_or_keeps_it_open() {
        let name = "</script><!--<script>alert(1)";
        let [page, _] = drawn(name, &Report::default(), &[], "clean");
        assert_eq!(data(&page)["rows"][0], name);
        let count = |what: &str| page.matches(what).count();
        assert_eq!((count("<script"), count("</script"), count("<!--")), (1, 1, 0));
    }

    /// An overlap, with these records of the first client.
    fn two_hold_it(records: &[u64]) -> Report {
        let of_first = |record: &u64| crate::check::RecordRef { client: 0, record: *record };
        let violation = Violation {
            class: Class::Overlap,
            name: "a".to_owned(),
            at: 5_000,
            since: 5_000,
            late: false,
            pair: None,
            sentence: "two hold it".to_owned(),
            records: records.iter().map(of_first).collect(),
        };
        Report { violations: vec![violation], ..Report::default() }
    }

    #[test]
    fn c21_a_picture_says_whose_lock_it_was_with_which_seed_and_where_each_record_of_a_violation_stands()
     {
        let report = two_hold_it(&[2, 9]);
        let [page, _] = drawn("a", &report, &[], "violations");
        let data = data(&page);
        for (key, value) in [
            ("client", json!("broken:plain-del")),
            ("what", json!("it deletes by name alone")),
            ("engine", json!("file")),
            ("class", json!(null)),
            ("recovery_ms", json!(600)),
            ("seed", json!(7)),
            ("replay", json!("lockkeeper torture --replay 7")),
            ("version", json!(env!("CARGO_PKG_VERSION"))),
        ] {
            assert_eq!(data[key], value, "{key}");
        }
        let [record] = data["violations"][0]["records"].as_array().unwrap().as_slice() else {
            panic!("one of the two is there")
        };
        let word = data["words"][usize::try_from(record[4].as_u64().unwrap()).unwrap()].as_str();
        assert_eq!(
            (record[0].as_u64(), record[1].as_u64(), record[2].as_u64(), word),
            (Some(0), Some(2), Some(0), Some("acq_ok"))
        );
        let outside = ["http:", "https:", "src=", "@import", "url("].into_iter().filter(|what| {
            let known = page.matches("http://www.w3.org/2000/svg").count();
            page.matches(what).count()
                > if *what == "http:" {
                    known
                } else if *what == "url(" {
                    page.matches("url(#").count()
                } else {
                    0
                }
        });
        assert_eq!(outside.collect::<Vec<_>>(), [""; 0], "nothing comes from outside");
    }

    #[test]
    fn what_was_not_expected_is_listed_before_hundreds_that_were_and_a_weak_run_is_not_called_clean()
     {
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
        let report = Report {
            violations: late.chain([violation(Class::Overlap, 5_000)]).collect(),
            ..Report::default()
        };
        let found = Conviction {
            class: "crash",
            name: String::new(),
            at: 6_000,
            until: 6_000,
            sentence: "it ended".to_owned(),
        };
        let [page, text] = drawn("a", &report, &[found], "violations");
        let data_ = data(&page);
        let listed: Vec<_> = data_["violations"]
            .as_array()
            .unwrap()
            .iter()
            .map(|v| (v["class"].as_str().unwrap(), v["allowed"].as_bool()))
            .collect();
        assert_eq!(
            listed[..3],
            [("overlap", Some(false)), ("crash", Some(false)), ("late-effect", Some(true))]
        );
        assert_eq!((listed.len(), data_["verdict"].as_str()), (LISTED, Some("violations")));
        let because = |row: usize| &data_["violations"][row]["because"];
        assert_eq!(
            (because(0), because(2)[0].as_str()),
            (&json!(null), Some("what the engine promises"))
        );
        let framed: Vec<_> = data_["violations"][1].as_object().unwrap().keys().cloned().collect();
        assert!(
            ["at", "until", "name"].iter().all(|key| framed.iter().any(|k| k == key)),
            "what has no record is framed by its time"
        );
        let words = data_["words"].as_array().unwrap();
        let events = data_["holds"][0][11]
            .as_array()
            .unwrap()
            .iter()
            .map(|e| words[usize::try_from(e[2].as_u64().unwrap()).unwrap()].as_str());
        assert_eq!(events.collect::<Vec<_>>(), [Some("acq_inv"), Some("acq_ok"), Some("rel_inv")]);
        assert!(
            text.lines().any(|line| line.starts_with("violations") && line.contains('^')),
            "{text}"
        );
        assert_eq!(
            data(&drawn("a", &Report::default(), &[], "too-weak")[0])["verdict"],
            "too-weak"
        );
    }

    #[test]
    fn q15_a_picture_has_its_legend_and_axis_above_the_lanes_round_times_and_the_excusing_fault() {
        let report = two_hold_it(&[]);
        let flush =
            Fault { name: "flush", hits: Hits::Server, excuses: fault::FORGOTTEN, what: "" };
        let mut excuses = Excuses::new(true, Duration::ZERO, crate::check::Late::never());
        excuses.begin(flush, 0, 1_000);
        excuses.end(flush, 0, 9_000);
        let [page, _] = drawn_with("a", &report, &[], "clean", &excuses);
        let expected = &data(&page)["violations"][0];
        assert_eq!(
            (&expected["allowed"], &expected["because"][0]),
            (&json!(true), &json!("flush"))
        );
        assert!(SCRIPT.contains("(expected: ${what}"), "its row says so");

        let (above, _) = page.split_once("<svg id=\"chart\"").unwrap();
        let (_, legend) = above.split_once("<p class=\"key\">").expect("a legend above the chart");
        let marks = "exclusive,shared,permits,share of the time held,waiting,waited in vain,\
                     past its deadline,stopped,dead,fault,violation,expected of a fault";
        for mark in marks.split(',') {
            assert!(legend.contains(&format!("</i>{mark}")), "{mark}: {legend}");
        }

        let number = |name: &str| -> u32 {
            let (_, after) = SCRIPT.split_once(&format!("{name}=")).unwrap();
            after.split(',').next().unwrap().parse().unwrap()
        };
        assert!(number("const AXIS") < number("TOP"), "the axis is above the first lane");
        assert!(SCRIPT.contains("{x,y:AXIS-6,"), "the times stand at the axis");
        assert!(SCRIPT.contains("step=[1,2,5,10].map(k=>k*ten)"), "and are round");
        assert!(SCRIPT.contains("t=Math.ceil(from/step)*step"), "also where one looks closer");
    }
}
