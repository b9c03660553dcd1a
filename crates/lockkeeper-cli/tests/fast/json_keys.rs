//! Every JSON object has the keys of docs/json.md, in its order, and no other.

use std::collections::BTreeMap;
use std::process::Stdio;

use lockkeeper_testkit::zookeeper::client::{Client, Kind};
use lockkeeper_testkit::zookeeper::server::{Server, Settings};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::{self, Place, Reaped, json};

/// The keys of each section of the page.
fn page() -> BTreeMap<String, Vec<String>> {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md"))
        .unwrap();
    let mut sections = BTreeMap::new();
    let mut section = None;
    for line in text.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            section = Some(title.to_owned());
        } else if let (Some(title), Some(rest)) = (&section, line.strip_prefix("| ")) {
            let cell = rest.split(" |").next().unwrap();
            let keys: &mut Vec<String> = sections.entry(title.clone()).or_default();
            match cell {
                "key" => {}
                "the report's" => keys.push("…report".to_owned()),
                "the holder's" => keys.push("…holder".to_owned()),
                cell => keys.push(cell.trim_matches('`').to_owned()),
            }
        }
    }
    let of = |name: &str| sections[name].clone();
    let (report, holder) = (of("report"), of("holder"));
    for keys in sections.values_mut() {
        for (mark, with) in [("…report", &report), ("…holder", &holder)] {
            if let Some(at) = keys.iter().position(|k| k == mark) {
                keys.splice(at..=at, with.clone());
            }
        }
    }
    sections
}

struct Compare {
    page: BTreeMap<String, Vec<String>>,
    seen: std::collections::BTreeSet<String>,
}

impl Compare {
    fn object(&mut self, section: &str, line: &str) -> Value {
        let object = json(line);
        // The order in the text, which a parsed object has lost.
        let mut keys: Vec<_> = object
            .as_object()
            .unwrap()
            .keys()
            .map(|k| (line.find(&format!("\"{k}\":")).unwrap(), k.clone()))
            .collect();
        keys.sort();
        self.value(section, &object);
        let keys: Vec<_> = keys.into_iter().map(|(_, k)| k).collect();
        assert_eq!(keys, self.page[section], "{section}: {line}");
        object
    }

    fn value(&mut self, section: &str, object: &Value) {
        let mut keys: Vec<_> = object
            .as_object()
            .unwrap_or_else(|| panic!("{section}: {object}"))
            .keys()
            .cloned()
            .collect();
        let mut expected = self.page[section].clone();
        keys.sort();
        expected.sort();
        assert_eq!(keys, expected, "{section}: {object}");
        self.seen.insert(section.to_owned());
    }

    fn list(&mut self, section: &str, list: &Value) {
        let list = list.as_array().unwrap();
        assert!(!list.is_empty(), "{section}");
        list.iter().for_each(|object| self.value(section, object));
    }
}

#[test]
fn the_page_lists_what_the_program_prints() {
    let place = Place::new();
    let mut compare = Compare { page: page(), seen: std::collections::BTreeSet::new() };

    let holder = place.hold_with("a", &["--label", "nightly"]);
    let waiting = Reaped::spawn(&mut place.lk(["run", "a", "-q", "--", "true"]));
    let entry = common::until("somebody waits", || {
        let entry = place.run(["status", "a", "--json"]).out;
        (!json(&entry)["waiters"].as_array().unwrap().is_empty()).then_some(entry)
    });
    let entry = compare.object("entry", entry.trim_end());
    compare.list("holder", &entry["holders"]);
    compare.list("waiter", &entry["waiters"]);
    compare.object("entry", place.run(["ls", "--json"]).out.trim_end());

    drop(waiting);
    let ran = place.run(["run", "a", "--json", "-w", "1", "--report", "report", "--", "true"]);
    assert_eq!(ran.code, 75, "{ran:?}");
    let lines: Vec<_> = ran.err.lines().collect();
    let waited = compare.object("waiting", lines[0]);
    compare.value("holder", &waited["holder"]);
    compare.object("error", lines[1]);
    compare.object("done", lines[2]);
    let report = place.read("report");
    let report = compare.object("report", report.trim_end());
    compare.value("holder", &report["holder"]);
    holder.end();

    let ran = place.run(["run", "b", "--json", "--", "true"]);
    let lines: Vec<_> = ran.err.lines().collect();
    compare.object("granted", lines[0]);
    compare.object("done", lines[1]);
    assert_eq!((lines.len(), ran.out.as_str()), (2, ""));

    let mut run = place.lk(["run", "c", "--json", "--", "sh", "-c", "touch c; exec sleep 1000"]);
    let mut run = Reaped::spawn(run.stderr(Stdio::piped()));
    common::until_true("it runs", || place.path("c").exists());
    std::fs::remove_dir_all(place.path("locks")).unwrap();
    assert_eq!(run.wait(), 79);
    let ran = run.output();
    let lines: Vec<_> = ran.err.lines().collect();
    compare.object("lost", lines[1]);
    compare.object("done", lines[2]);

    let options = place.run(["doctor", "--options", "file", "--json"]);
    compare.object("option", options.out.lines().next().unwrap());
    let doctor = place.run(["doctor", "--json"]);
    let doctor = compare.object("doctor", doctor.out.trim_end());
    assert!(doctor["warnings"].is_array());
    for warning in doctor["warnings"].as_array().unwrap() {
        compare.value("warning", warning);
    }

    let refused = place.run(["release", "--force", "nobody", "--json"]);
    let refused = compare.object("error", refused.err.trim_end());
    assert_eq!(refused["engine"].as_str(), Some("file"), "{refused}");

    compare.object("removed", place.run(["gc", "--json"]).out.trim_end());
    compare.object("build", place.run(["version", "--json"]).out.trim_end());
    compare.object("entry", place.run(["permits", "gpu", "8", "--json"]).out.trim_end());

    let story = place.run([
        "demo",
        "oversell",
        "--workers",
        "2",
        "--stock",
        "1",
        "--orders",
        "2",
        "--json",
    ]);
    compare.object("demo", story.out.lines().next().unwrap());
    let contenders = place.run([
        "demo",
        "contenders",
        "--url",
        "memory:",
        "--threads",
        "2",
        "--hold",
        "1ms",
        "--json",
    ]);
    compare.object("contenders", contenders.out.lines().next().unwrap());
    let rows = place.run(["bench", "--only", "uncontended", "--seconds", "1", "--json"]).out;
    compare.object("bench", rows.lines().next().unwrap());
    let verdict = place.run(["torture", "--seconds", "4", "--json", "--seed", "3"]);
    compare.object("torture", verdict.out.trim_end());
    assert_eq!(verdict.code, 0, "{}", verdict.out);

    let unseen: Vec<_> =
        compare.page.keys().filter(|k| !compare.seen.contains(*k)).cloned().collect();
    // Shown elsewhere: `watch` in its own test, outages in theirs; `taken` needs an engine that can
    // take a lock away, `warning` one that warns.
    assert!(
        unseen.iter().all(|s| ["change", "taken", "warning", "beside", "unreachable", "reachable"]
            .contains(&s.as_str())),
        "{unseen:?}"
    );
}

#[test]
fn c31_a_warning_of_another_librarys_lock_has_the_keys_of_the_page() {
    let (server, place) = (Server::start(Settings::default()).unwrap(), Place::new());
    let mut client = Client::connect(server.port()).unwrap();
    client.create("/a", b"", Kind::Persistent).unwrap();
    client
        .create("/a/3f1c5a0e9b8d4f6aa1b2c3d4e5f60718__rlock__", b"", Kind::EphemeralSequential)
        .unwrap();
    let url = format!("zk://{}", server.address());
    let ran = place.run(["run", "-n", "--json", "--url", &url, "a", "--", "true"]);
    let mut compare = Compare { page: page(), seen: std::collections::BTreeSet::new() };
    let told = compare.object("beside", ran.err.lines().next().unwrap());
    assert_eq!((told["event"].as_str(), ran.code), (Some("warning"), 75), "{ran:?}");
}

#[test]
fn watch_prints_changes() {
    let place = Place::new();
    let mut compare = Compare { page: page(), seen: std::collections::BTreeSet::new() };
    let holder = place.hold("first");
    let mut watch = Reaped::spawn(place.lk(["watch", "--json"]).stdout(Stdio::piped()));
    let mut out = std::io::BufReader::new(watch.0.stdout.take().unwrap());
    let mut next = || {
        let mut line = String::new();
        std::io::BufRead::read_line(&mut out, &mut line).unwrap();
        let change = compare.object("change", line.trim_end());
        (change["event"].as_str().unwrap().to_owned(), change["name"].as_str().unwrap().to_owned())
    };
    assert_eq!(
        next(),
        ("held".to_owned(), "first".to_owned()),
        "nobody has seen when it was granted"
    );
    holder.end();
    assert_eq!(next(), ("released".to_owned(), "first".to_owned()));
    let second = place.hold("second");
    assert_eq!(next(), ("granted".to_owned(), "second".to_owned()));
    let mut waiting = Reaped::spawn(&mut place.lk(["run", "second", "--", "true"]));
    assert_eq!(next(), ("waiting".to_owned(), "second".to_owned()));
    waiting.signal(Signal::SIGTERM);
    waiting.wait();
    assert_eq!(next(), ("left".to_owned(), "second".to_owned()));
    second.end();
    watch.signal(Signal::SIGINT);
    assert_eq!(watch.wait(), 130);
}

#[test]
fn an_error_is_a_line_and_done_still_the_last_one_once_anything_was_asked_for() {
    let place = Place::new();
    let holder = place.hold("held");
    std::fs::write(place.path("file"), "").unwrap();
    let no_directory = format!("file://{}", place.path("file").display());
    let cases: [(&[&str], &[&str], i32, &str); 4] = [
        (&["run", "held", "-n", "--", "true"], &["timed-out", "done"], 75, "not-obtained"),
        (
            &["run", "held", "-n", "-E", "7", "--", "true"],
            &["timed-out", "done"],
            7,
            "not-obtained",
        ),
        (&["run", "a", "--url", &no_directory, "--", "true"], &["refused", "done"], 69, "refused"),
        (
            &["run", "a", "--", "/no/such/program"],
            &["granted", "not-found", "done"],
            127,
            "not-started",
        ),
    ];
    let word = |line: &Value| line["event"].as_str().or(line["error"].as_str()).map(str::to_owned);
    for (args, words, code, outcome) in cases {
        let ran = place.run([&["--json"], args].concat());
        let lines: Vec<_> = ran.err.lines().map(json).collect();
        assert_eq!(lines.iter().filter_map(word).collect::<Vec<_>>(), words, "{args:?}: {ran:?}");
        for line in lines.iter().filter(|line| line["error"].is_string() || line["event"] == "done")
        {
            assert_eq!(
                (line["exit"].as_i64(), ran.code),
                (Some(i64::from(code)), code),
                "{args:?}: {line}"
            );
        }
        assert_eq!(lines.last().unwrap()["outcome"], outcome, "{args:?}");
    }
    let wrong = place.run(["--json", "run", "a", "-w", "abc", "--", "true"]);
    assert_eq!((wrong.code, wrong.err.lines().count()), (64, 1), "{wrong:?}");

    let acquired = place.run(["--json", "acquire", "held", "-n"]);
    assert_eq!(
        (acquired.code, json(acquired.err.trim_end())["error"].as_str()),
        (75, Some("timed-out")),
        "{acquired:?}"
    );
    let done = json(acquired.out.trim_end());
    assert_eq!(
        (done["event"].as_str(), done["exit"].as_i64()),
        (Some("done"), Some(75)),
        "{acquired:?}"
    );
    holder.end();
}
