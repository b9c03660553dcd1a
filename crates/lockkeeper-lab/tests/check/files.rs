//! From files to reports: what people and programs read, and the exit codes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockkeeper::{Kind, Mode};
use lockkeeper_lab::check::{Class, Options, check_files, main_check, print};
use lockkeeper_lab::history::{
    Flags, Header, HoldMode, LockId, Record, Role, State, What, Writer, WriterOptions,
};
use serde_json::Value;

pub const SECOND: u64 = 1_000_000_000;

pub fn header(pid: u32) -> Header {
    Header {
        file: u64::from(pid),
        pid,
        role: Role::Client,
        clocks: [0, 0, 1_767_225_600 * SECOND],
        boot: 1,
        step: 64,
        host: "here".into(),
        program: "test".into(),
        label: format!("client {pid}"),
        state: State::Open,
    }
}

/// The same of one whose recording began so many seconds after the clock did, and who may have been
/// there before.
fn began(pid: u32, seconds: u64) -> Header {
    Header { clocks: [seconds * SECOND, 0, (1_767_225_600 + seconds) * SECOND], ..header(pid) }
}

pub fn put(dir: &Path, name: &str, header: &Header, records: &[Record]) -> PathBuf {
    let mut bytes = header.encode().to_vec();
    for (record, index) in records.iter().zip(0..) {
        bytes.extend(record.encode(header.file, index));
    }
    let path = dir.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn held(claim: u64, times: [u64; 4]) -> Vec<Record> {
    let kinds = [What::AcquireCalled, What::Acquired, What::ReleaseCalled, What::Released];
    kinds
        .into_iter()
        .zip(times)
        .map(|(what, at)| Record {
            at,
            ..Record::about(what, LockId(7), claim).mode(Mode::Exclusive)
        })
        .collect()
}

fn run(args: &[&str]) -> (u8, String, String) {
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let code = main_check(args.iter().map(OsString::from), &mut out, &mut err);
    (code, String::from_utf8(out).unwrap(), String::from_utf8(err).unwrap())
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

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
fn a_recording_that_ended_early_is_counted_with_its_end() {
    let dir = tempfile::tempdir().unwrap();
    put(
        dir.path(),
        "a.lkh",
        &Header { state: State::Stopped(4), ..header(1) },
        &held(1, [10, 20, 30, 40]),
    );
    put(dir.path(), "b.lkh", &header(2), &held(2, [50, 60, 70, 80]));
    let report = check_files(&[dir.path()], Options::default()).unwrap();
    assert_eq!((report.counts.stopped, report.blind_from), (1, Some(40)));
    let mut out = Vec::new();
    print(&report, &mut out).unwrap();
    let out = String::from_utf8(out).unwrap();
    assert!(
        out.contains("1 recording ended early: refusals and recovery after that are not judged"),
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
    let mut documented: Vec<_> = include_str!("../../../../docs/history.md")
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

/// A try of client 1 that was refused, called at these seconds.
fn refused(claim: u64, seconds: u64) -> [Record; 2] {
    let record = |what, at| Record {
        at,
        mode: HoldMode::Exclusive,
        ..Record::about(what, LockId(7), claim)
    };
    [
        record(What::AcquireCalled, seconds * SECOND).flag(Flags::TRY),
        record(What::Busy, seconds * SECOND + 5),
    ]
}

#[test]
fn a_refusal_is_judged_only_where_all_who_may_have_been_there_were_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options {
        linger: Duration::from_secs(3),
        withdraw: Duration::from_secs(3),
        ..Options::default()
    };
    let judge = |since: u64, tried: u64, ends: u64, state: State| {
        let holds = [[10, 11, 12, 12], [60, 61, 62, 63]].map(|times| times.map(|at| at * SECOND));
        let mut all = [held(1, holds[0]), refused(2, tried).to_vec(), held(3, holds[1])].concat();
        all.sort_by_key(|record| record.at);
        put(dir.path(), "a.lkh", &began(1, 1), &all);
        let other = [Record { at: ends * SECOND, ..Record::new(What::CheckCalled) }];
        put(dir.path(), "b.lkh", &Header { state, ..began(2, since) }, &other);
        check_files(&[dir.path()], options()).unwrap()
    };
    let wrong =
        |since, tried, ends| judge(since, tried, ends, State::Finished(1)).count(Class::WrongBusy);
    assert_eq!(wrong(1, 20, 70), 1, "nobody was there");
    assert_eq!(wrong(11, 20, 70), 1, "the other began when it was held");
    assert_eq!(wrong(12, 20, 70), 0, "who began later may have got it before");
    assert_eq!(wrong(1, 8, 70), 0, "before the first grant");
    assert_eq!(wrong(11, 14, 70), 1, "a place of before is gone when it has lingered");
    assert_eq!(wrong(11, 13, 70), 0, "and not earlier");
    assert_eq!(wrong(1, 20, 19), 0, "the other may have gone on, unrecorded");
    for state in [State::Finished(1), State::Stopped(1), State::Open] {
        let report = judge(1, 20, 19, state);
        assert_eq!(
            (report.is_clean(), report.judged_until),
            (true, Some(19 * SECOND)),
            "{state:?}"
        );
    }
    // Where somebody writes down how processes end, one that ended did not go on; but its recording
    // may have stopped before.
    let exit = Record { at: 30 * SECOND, ..Record::new(What::Exit).number(2) };
    put(dir.path(), "c.lkh", &Header { role: Role::Nemesis, ..header(3) }, &[exit]);
    assert_eq!([wrong(1, 20, 19), wrong(25, 20, 28), wrong(1, 8, 70)], [1, 1, 1]);
    let stopped = judge(1, 20, 19, State::Stopped(1));
    assert_eq!((stopped.count(Class::WrongBusy), stopped.judged_until), (0, Some(19 * SECOND)));
    let (code, out, _) = run(&[text(dir.path())]);
    assert_eq!(
        (code, out.lines().last()),
        (0, Some("clean as far as recorded: nothing wrong was found")),
        "{out}"
    );
    let (_, out, _) = run(&[text(dir.path()), "--json"]);
    assert!(out.contains("\"judged_until\":\"2026-01-01T00:00:19.000000Z\""), "{out}");
}

#[test]
fn nobody_is_slow_to_recover_once_somebody_may_hold_unrecorded() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "dead.lkh", &began(1, 1), &held(1, [SECOND, 2 * SECOND, 0, 0])[..2]);
    put(
        dir.path(),
        "waits.lkh",
        &began(2, 1),
        &held(2, [2 * SECOND, 9 * SECOND, 10 * SECOND, 11 * SECOND]),
    );
    let ends =
        |pid: u32, at, what| Record { at: at * SECOND, ..Record::new(what).number(u64::from(pid)) };
    let nemesis = [ends(1, 3, What::Kill), ends(2, 12, What::Exit)];
    put(dir.path(), "nemesis.lkh", &Header { role: Role::Nemesis, ..header(3) }, &nemesis);
    let slow = |state| {
        put(
            dir.path(),
            "other.lkh",
            &Header { state, ..began(4, 1) },
            &[Record { at: 4 * SECOND, ..Record::new(What::CheckCalled) }],
        );
        let report = check_files(
            &[dir.path()],
            Options { recovery: Some(Duration::from_secs(1)), ..Options::default() },
        )
        .unwrap();
        report.count(Class::SlowRecovery)
    };
    assert_eq!([State::Open, State::Finished(1), State::Stopped(1)].map(slow), [1, 0, 0]);
}

#[test]
fn a_process_that_began_after_the_kill_is_not_the_one_that_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let began =
        |seconds: u64| Header { file: 50 + seconds, clocks: [seconds * SECOND, 0, 0], ..header(1) };
    put(dir.path(), "old.lkh", &began(1), &held(1, [SECOND, 2 * SECOND, 0, 0])[..2]);
    put(
        dir.path(),
        "young.lkh",
        &began(5),
        &held(2, [5 * SECOND, 6 * SECOND, 7 * SECOND, 8 * SECOND]),
    );
    let nemesis = Header { role: Role::Nemesis, ..header(3) };
    let kill =
        |seconds: u64| vec![Record { at: seconds * SECOND, ..Record::new(What::Kill).number(1) }];
    put(dir.path(), "nemesis.lkh", &nemesis, &kill(4));
    let report = check_files(&[dir.path()], Options::default()).unwrap();
    assert_eq!((report.is_clean(), report.counts.holds), (true, 2), "{:?}", report.violations);
    // Killed at 5 s, it is the young one, in the moment of its birth; the old one goes on and is
    // never released.
    put(dir.path(), "nemesis.lkh", &nemesis, &kill(5));
    let report = check_files(&[dir.path()], Options::default()).unwrap();
    assert_eq!((report.is_clean(), report.counts.holds), (true, 1), "{:?}", report.violations);
}

#[test]
fn a_finished_history_ends_its_holds_even_where_a_nemesis_watches() {
    let dir = tempfile::tempdir().unwrap();
    let dead = &held(1, [SECOND, 2 * SECOND, 0, 0])[..2];
    put(
        dir.path(),
        "b.lkh",
        &header(2),
        &held(2, [2 * SECOND, 4 * SECOND, 5 * SECOND, 6 * SECOND]),
    );
    let nemesis = Header { role: Role::Nemesis, ..header(3) };
    put(
        dir.path(),
        "c.lkh",
        &nemesis,
        &[Record { at: 3 * SECOND, ..Record::new(What::FaultBegin) }],
    );
    for (state, found) in [(State::Finished(2), 0), (State::Stopped(2), 0), (State::Open, 1)] {
        put(dir.path(), "a.lkh", &Header { state, ..header(1) }, dead);
        let report = check_files(&[dir.path()], Options::default()).unwrap();
        assert_eq!(report.count(Class::Overlap), found, "{state:?}");
    }
}

#[test]
fn histories_of_two_machines_need_a_skew_and_are_judged_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let ms = SECOND / 1000;
    let there = Header { boot: 2, clocks: [50 * SECOND, 0, 1_767_225_600 * SECOND], ..header(2) };
    let a = put(dir.path(), "a.lkh", &header(1), &held(1, [ms, 100 * ms, 500 * ms, 510 * ms]));
    let b = |from: u64| {
        let shifted = |at: u64| 50 * SECOND + at * ms;
        put(
            dir.path(),
            "b.lkh",
            &there,
            &held(2, [shifted(2), shifted(from), shifted(900), shifted(910)]),
        )
    };
    let (code, _, err) = run(&[text(&a), text(&b(490))]);
    assert_eq!(code, 64);
    assert!(err.contains("several machines") && err.contains("--skew"), "{err}");
    let overlaps = |from: u64, skew: u64| {
        let options = Options { skew: Duration::from_millis(skew), ..Options::default() };
        check_files(&[&a, &b(from)], options).unwrap().count(Class::Overlap)
    };
    assert_eq!(
        [overlaps(490, 4), overlaps(490, 5), overlaps(479, 10), overlaps(480, 10)],
        [1, 0, 1, 0]
    );
    let (code, out, _) = run(&["--skew", "4ms", text(&a), text(&b(490))]);
    assert_eq!(code, 1);
    assert!(out.contains("client 2 got"), "{out}");
}

#[test]
fn what_cannot_be_judged_is_one_line_and_64() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign.lkh");
    std::fs::write(&foreign, "not a history at all").unwrap();
    let back = put(dir.path(), "back.lkh", &header(1), &held(1, [5, 9, 7, 8]));
    let cut = put(
        dir.path(),
        "cut.lkh",
        &Header { state: State::Finished(9), ..header(1) },
        &held(1, [1, 2, 3, 4]),
    );
    let empty = tempfile::tempdir().unwrap();
    for (path, words) in [
        (text(&foreign), "not a history"),
        (text(&back), "clock goes back by 1 µs at record 2"),
        (text(&cut), "finished with 9 records and 4 are here"),
        (text(empty.path()), "no file in this directory ends in .lkh"),
        ("/no/such/file", "No such file"),
    ] {
        let (code, out, err) = run(&[path]);
        assert_eq!((code, out.as_str(), err.lines().count()), (64, "", 1), "{path}: {err}");
        assert!(
            err.starts_with("lockkeeper: check: ") && err.contains(path) && err.contains(words),
            "{err}"
        );
    }
    let (code, _, err) = run(&[]);
    assert_eq!(code, 64);
    assert!(err.contains("no history was given"), "{err}");
}

#[test]
fn a_process_that_ended_before_its_first_byte_has_said_nothing() {
    let dir = tempfile::tempdir().unwrap();
    put(dir.path(), "a.lkh", &header(1), &held(1, [1, 2, 3, 4]));
    let nothing = dir.path().join("b.lkh");
    std::fs::write(&nothing, "").unwrap();
    assert_eq!(run(&[text(dir.path())]).0, 0, "beside others of its run");
    let (code, _, err) = run(&[text(&nothing)]);
    assert!(code == 64 && err.contains("it is empty"), "{code} {err}");
}

#[test]
fn two_names_of_one_id_cannot_be_judged() {
    let dir = tempfile::tempdir().unwrap();
    let name = |text: &[u8; 8]| Record {
        at: 1,
        weight: 8,
        number: 1 << 56,
        ..Record::about(What::Name, LockId(7), u64::from_le_bytes(*text))
    };
    let path = put(dir.path(), "a.lkh", &header(1), &[name(b"stock/11"), name(b"stock/12")]);
    let (code, _, err) = run(&[text(&path)]);
    assert_eq!(code, 64);
    assert!(
        err.contains("a.lkh: the names \"stock/11\" and \"stock/12\" have the same id"),
        "{err}"
    );
}

#[test]
fn a_file_that_may_not_be_read_is_69() {
    use lockkeeper_lab::check::CheckError;
    use lockkeeper_lab::history::ReadError;
    let error = CheckError::from(ReadError::Io(
        "h.lkh".into(),
        std::io::Error::from(std::io::ErrorKind::PermissionDenied),
    ));
    assert_eq!(
        (error.exit_code(), error.to_string().as_str()),
        (69, "h.lkh: cannot be read: permission denied")
    );
    assert!(
        std::error::Error::source(&error).is_some()
            && std::error::Error::source(&CheckError::SeveralMachines).is_none()
    );
}
