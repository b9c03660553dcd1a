//! Who was recorded, on which machine, from when and until when: what is judged, and what is not.

use std::time::Duration;

use lockkeeper_lab::check::{Class, Options, check_files, print};
use lockkeeper_lab::history::{Flags, Header, HoldMode, LockId, Record, Role, State, What};

use super::files::{SECOND, began, header, held, put, run, text};

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
    let empty = dir.path().join("empty.lkh");
    std::fs::write(&empty, "").unwrap();
    assert_eq!(wrong(1, 20, 70), 0, "one whose history is empty may have had it at any time");
    // Where somebody writes down how processes end, one that ended did not go on; but its recording
    // may have stopped before.
    let exit = Record { at: 30 * SECOND, ..Record::new(What::Exit).number(2) };
    put(dir.path(), "c.lkh", &Header { role: Role::Nemesis, ..header(3) }, &[exit]);
    assert_eq!([wrong(1, 20, 19), wrong(25, 20, 28), wrong(1, 8, 70)], [1, 1, 1]);
    std::fs::remove_file(empty).unwrap();
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
