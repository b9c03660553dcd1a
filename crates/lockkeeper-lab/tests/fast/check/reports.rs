//! From files to reports: what people and programs read.

use lockkeeper::{Kind, Mode};
use lockkeeper_lab::check::{Class, Options, check_files, print};
use lockkeeper_lab::history::{Flags, Header, LockId, Record, Role, What, Writer, WriterOptions};
use serde_json::Value;

use super::files::{SECOND, header, held, put, run, text};

#[test]
fn a_history_written_by_the_library_is_judged_clean_with_its_names() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::create(dir.path().join("a.lkh"), WriterOptions::default()).unwrap();
    for claim in 1..=3 {
        for what in [What::AcquireCalled, What::Acquired, What::ReleaseCalled, What::Released] {
            writer.write_for(
                Kind::Lock,
                "stock/1",
                Record::about(what, LockId::NONE, claim).mode(Mode::Exclusive).token(claim),
            );
        }
    }
    drop(writer);
    let report = check_files(&[dir.path()], Options::default()).unwrap();
    assert!(report.is_clean(), "{:?}", report.violations);
    assert_eq!((report.counts.holds, report.counts.events, report.counts.names), (3, 12, 1));
    assert_eq!(report.clients[0].label, format!("pid {}", std::process::id()));
    let mut out = Vec::new();
    print(&report, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.starts_with("12 events from 1 history: 3 holds (0 handed on) of 1 name in 0.0"),
        "{out}"
    );
    assert!(
        out.ends_with("clean: nothing wrong was found\n")
            && !out.contains("stale")
            && !out.contains("recovered"),
        "{out}"
    );
}

#[test]
fn names_stand_in_sentences_with_their_kind() {
    let dir = tempfile::tempdir().unwrap();
    let writers: Vec<_> = ["a.lkh", "b.lkh"]
        .map(|name| Writer::create(dir.path().join(name), WriterOptions::default()).unwrap())
        .into();
    let both = |what| {
        for (writer, claim) in writers.iter().zip(1..) {
            writer.write_for(
                Kind::Election,
                "scheduler",
                Record::about(what, LockId::NONE, claim).mode(Mode::Exclusive),
            );
        }
    };
    for what in [What::AcquireCalled, What::Acquired, What::ReleaseCalled, What::Released] {
        both(what);
    }
    drop(writers);
    let report = check_files(&[dir.path()], Options::default()).unwrap();
    assert_eq!(
        (report.count(Class::Overlap), report.violations[0].name.as_str()),
        (1, "election scheduler")
    );
    assert!(
        report.violations[0].sentence.contains("got election scheduler exclusive"),
        "{}",
        report.violations[0].sentence
    );
}

#[test]
fn names_and_labels_of_foreign_histories_never_reach_a_terminal_raw() {
    const HOSTILE: &str = "\u{1b}]0;pwned\u{7}\u{9b}2J\u{202e}\u{200b}\u{2028}\u{feff}\u{ad}\u{7f}";
    let raw = |text: &str| {
        text.chars().any(|c| {
            c != '\n' && (c.is_control() || HOSTILE.contains(c)) && !"]0;pwned2J".contains(c)
        })
    };
    let dir = tempfile::tempdir().unwrap();
    let label = |pid| Header { label: HOSTILE.to_owned(), ..header(pid) };
    put(
        dir.path(),
        &format!("a{HOSTILE}.lkh"),
        &label(1),
        &held(1, [SECOND, 2 * SECOND, 5 * SECOND, 6 * SECOND]),
    );
    put(dir.path(), "b.lkh", &label(2), &held(2, [SECOND, 3 * SECOND, 4 * SECOND, 6 * SECOND]));
    let named = tempfile::tempdir().unwrap();
    let writer = |file| Writer::create(named.path().join(file), WriterOptions::default()).unwrap();
    let writers = ["a.lkh", "b.lkh"].map(writer);
    for what in [What::AcquireCalled, What::Acquired, What::ReleaseCalled, What::Released] {
        for (writer, claim) in writers.iter().zip(1..) {
            let record = Record::about(what, LockId::NONE, claim).mode(Mode::Exclusive);
            writer.write_for(Kind::Lock, HOSTILE, record);
        }
    }
    drop(writers);
    for dir in [dir.path(), named.path()] {
        for json in [false, true] {
            let (code, out, err) = run(&[if json { "--json" } else { "--fenced" }, text(dir)]);
            assert!(
                (code, err.as_str()) == (1, "") && out.contains("pwned") && !raw(&out),
                "{out:?} {err:?}"
            );
            if json {
                let violation: Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
                assert!(violation["sentence"].as_str().unwrap().contains(HOSTILE), "{violation}");
            }
        }
    }
    std::fs::write(named.path().join(format!("{HOSTILE}.lkh")), "no history").unwrap();
    let (code, out, err) = run(&[text(named.path())]);
    assert!((code, out.as_str()) == (64, "") && err.contains("pwned") && !raw(&err), "{err:?}");
}

#[test]
fn violations_are_told_in_a_table_and_in_sentences_with_their_records_and_exit_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let a = put(
        dir.path(),
        "a.lkh",
        &header(1),
        &held(1, [SECOND, 2 * SECOND, 5 * SECOND, 6 * SECOND]),
    );
    let b = put(
        dir.path(),
        "b.lkh",
        &header(2),
        &held(2, [SECOND, 3 * SECOND, 4 * SECOND, 6 * SECOND]),
    );
    let (code, out, err) = run(&[text(&a), text(&b)]);
    assert_eq!((code, err.as_str()), (1, ""));
    let lines: Vec<_> = out.lines().collect();
    assert_eq!(lines[0], "8 events from 2 histories: 2 holds (0 handed on) of 0 names in 5.000 s");
    assert_eq!(lines[1], "busy 0, timed out 0, lost 0, unknown 0; longest wait 2000.000 ms");
    assert_eq!(lines[3], "    found  class                  meaning");
    assert_eq!(
        lines[4],
        "        1  overlap                Two exclusive (or two upgradable) holds of one name at \
         one moment."
    );
    assert_eq!(
        lines[6],
        "overlap: client 2 got lock 0000000000000007 exclusive at +2.000000 s while client 1 held \
         it exclusive since +1.000000 s"
    );
    assert_eq!(lines[7], "    at 2026-01-01T00:00:03.000000Z: b.lkh record 1, a.lkh record 1");
    assert_eq!(lines[9], "not clean");
    let (code, out, _) = run(&[text(&a), text(&b), "--allow", "overlap", "--details=0"]);
    assert_eq!(code, 0);
    assert!(
        out.contains("moment. (allowed)")
            && out.ends_with("\nclean: only allowed violations were found\n")
            && !out.contains("client 2 got"),
        "{out}"
    );
}

#[test]
fn json_is_one_object_a_line_with_stable_keys() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.lkh", &header(1), &held(1, [SECOND, 2 * SECOND, 5 * SECOND, 6 * SECOND]));
    put(dir.path(), "b.lkh", &header(2), &held(2, [SECOND, 3 * SECOND, 4 * SECOND, 6 * SECOND]));
    let (code, out, _) = run(&["--json", "--recovery", "1.5", text(dir.path())]);
    assert_eq!(code, 1);
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    let violation = &lines[0];
    assert_eq!(violation["event"], "violation");
    assert_eq!(
        (&violation["class"], &violation["verdict"], &violation["allowed"]),
        (&"overlap".into(), &"broken".into(), &false.into())
    );
    assert_eq!(
        (&violation["at"], &violation["offset_us"]),
        (&"2026-01-01T00:00:03.000000Z".into(), &2_000_000.into())
    );
    assert_eq!(
        violation["records"][0],
        serde_json::json!({"file": "b.lkh", "client": "client 2", "record": 1})
    );
    assert!(violation["sentence"].as_str().unwrap().starts_with("client 2 got lock"));
    let summary = &lines[1];
    assert_eq!(
        (&summary["event"], &summary["clean"], &summary["violations"]),
        (&"summary".into(), &false.into(), &serde_json::json!({"overlap": 1}))
    );
    assert_eq!(
        (&summary["wait_max_ms"], &summary["span_ms"], &summary["began"]),
        (&2_000.into(), &5_000.into(), &"2026-01-01T00:00:01.000000Z".into())
    );
    assert_eq!(
        summary["recovery_ms"],
        serde_json::json!({"cases": 0, "p50": null, "max": null, "promised": 1_500})
    );
    let mut keys: Vec<_> = summary.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    let mut documented: Vec<_> = include_str!("../../../../../docs/history.md")
        .lines()
        .skip_while(|line| !line.starts_with("### The summary"))
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    documented.sort_unstable();
    assert_eq!(keys, documented, "docs/history.md lists the keys of the summary");
}

#[test]
fn recovery_resource_and_damage_are_told_when_there_is_something_to_tell() {
    let dir = tempfile::tempdir().unwrap();
    let dead = &held(1, [SECOND, 2 * SECOND, 0, 0])[..2];
    put(dir.path(), "a.lkh", &header(1), dead);
    let next = put(
        dir.path(),
        "b.lkh",
        &header(2),
        &held(2, [2 * SECOND, 4 * SECOND, 5 * SECOND, 6 * SECOND]),
    );
    let mut bytes = std::fs::read(&next).unwrap();
    bytes.extend([9; 64]);
    std::fs::write(&next, bytes).unwrap();
    let nemesis = Header { role: Role::Nemesis, ..header(3) };
    put(
        dir.path(),
        "c.lkh",
        &nemesis,
        &[Record { at: 3 * SECOND, ..Record::new(What::Kill).number(1) }],
    );
    let log = |at: u64, token: u64, flags: Flags| Record {
        at,
        ..Record::about(What::ResourceWrite, LockId(7), 9).token(token).flag(flags)
    };
    let fenced = Flags::YES.and(Flags::FENCED);
    let resource = Header { role: Role::Resource, ..header(4) };
    put(
        dir.path(),
        "d.lkh",
        &resource,
        &[
            log(1, 9, fenced),
            log(2, 8, Flags::FENCED),
            Record { at: 3, ..Record::about(What::Lost, LockId(7), 5) },
        ],
    );
    let (code, out, err) = run(&[text(dir.path()), "--recovery=1s"]);
    assert_eq!(code, 0, "{out}{err}");
    for line in [
        "1 fault; recovered 1 times, median 1000.0 ms, longest 1000.0 ms (promised 1000.0 ms)",
        "stale operations: 1 refused, 0 accepted, 0 accepted where no token is checked",
        "1 history ends with a record that was being written",
        "1 record about claims that began before the recording",
    ] {
        assert!(out.lines().any(|l| l == line), "{line:?} is in\n{out}");
    }
    let (code, out, _) = run(&[text(dir.path()), "--recovery=800ms"]);
    assert_eq!(code, 1, "{out}");
    let (_, out, _) = run(&[text(dir.path())]);
    assert!(out.contains("longest 1000.0 ms (nothing promised)"), "{out}");
    let (_, out, _) = run(&[text(&dir.path().join("a.lkh")), "--recovery=1s"]);
    assert!(out.contains("0 faults; recovered 0 times, median 0.0 ms"), "{out}");
}
