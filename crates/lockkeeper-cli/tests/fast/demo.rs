//! `lockkeeper demo oversell`: what it shows is true, and nothing of it stays.

use std::path::Path;
use std::process::{Command, Stdio};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::terminal::Terminal;
use crate::common::{
    LONG_PATIENCE, PROGRAM, Place, Reaped, children, finish, finish_within, is_alive, json,
    until_true,
};

const KEYS: [&str; 12] = [
    "act",
    "guard",
    "engine",
    "processes",
    "orders",
    "stock",
    "sold",
    "oversold",
    "late_writes_accepted",
    "late_writes_rejected",
    "seconds",
    "repeats",
];

/// A place whose temporary files are its own, too.
fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    place
}

fn demo(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.lk(["demo", "oversell"]);
    command.args(arguments).env("TMPDIR", place.path("tmp"));
    command
}

fn objects(out: &str) -> Vec<Value> {
    out.lines().map(json).collect()
}

fn sold(objects: &[Value]) -> Vec<(u64, String, u64, u64, u64)> {
    let number = |o: &Value, key: &str| o[key].as_u64().unwrap();
    let row = |o: &Value| {
        let guard = o["guard"].as_str().unwrap().to_owned();
        (number(o, "act"), guard, number(o, "processes"), number(o, "sold"), number(o, "oversold"))
    };
    objects.iter().map(row).collect()
}

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Neither a record nor a lock file is left.
fn nothing_is_left(place: &Place) {
    assert_eq!(names_in(&place.path("tmp")), [""; 0]);
    assert_eq!(names_in(&place.path("locks")), [""; 0]);
}

/// Makes a program run on one processor.
fn on_one_core(command: &mut Command) {
    let allowed = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let first = (0..nix::sched::CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap()).unwrap();
    let mut one = nix::sched::CpuSet::new();
    one.set(first).unwrap();
    // SAFETY: one system call between fork and exec, on a set that was made before.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(command, move || {
            nix::sched::sched_setaffinity(nix::unistd::Pid::from_raw(0), &one).map_err(Into::into)
        });
    }
}

#[test]
fn the_textbook_case_oversells_on_one_core_unless_lockkeeper_guards_it() {
    let place = place();
    let arguments = ["--workers", "2", "--stock", "1", "--orders", "2", "--json"];
    let mut command = demo(&place, &arguments);
    on_one_core(&mut command);
    let ran = finish(&mut command);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let objects = objects(&ran.out);
    for object in &objects {
        let keys: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
        let mut expected: Vec<_> = KEYS.map(str::to_owned).into();
        expected.sort();
        assert_eq!(keys, expected);
        assert_eq!(
            (object["engine"].as_str(), object["stock"].as_u64(), object["orders"].as_u64()),
            (Some("file"), Some(1), Some(2))
        );
    }
    let expected = [
        (1, "none", 2, 2, 1),
        (2, "process", 1, 1, 0),
        (2, "process", 2, 2, 1),
        (3, "lockkeeper", 2, 1, 0),
    ];
    assert_eq!(
        sold(&objects),
        expected.map(|(act, guard, processes, sold, over)| (
            act,
            guard.to_owned(),
            processes,
            sold,
            over
        ))
    );
    nothing_is_left(&place);
}

#[test]
fn without_a_common_lock_every_first_customer_gets_the_last_piece_on_one_core_as_on_many() {
    for workers in [64, 8] {
        let place = place();
        let mut command = demo(
            &place,
            &["--workers", &workers.to_string(), "--stock", "1", "--orders", "64", "--json"],
        );
        on_one_core(&mut command);
        let ran = finish_within(&mut command, LONG_PATIENCE);
        assert_eq!(ran.code, 0, "{ran:?}");
        let rows = sold(&objects(&ran.out));
        let of = |act, processes| rows.iter().find(|r| r.0 == act && r.2 == processes).unwrap().3;
        // With one customer a process it is exactly one piece a process; more of them may sell more
        // among themselves.
        assert!(if workers == 64 { of(1, workers) == 64 } else { of(1, workers) >= 2 }, "{rows:?}");
        assert_eq!((of(2, 1), of(2, workers), of(3, workers)), (1, workers, 1), "{rows:?}");
    }
}

#[test]
fn the_lock_file_of_a_story_in_the_default_directory_is_removed_too() {
    for url in ["file:", "file://"] {
        let place = place();
        let ran = finish(&mut demo(
            &place,
            &["--workers", "2", "--stock", "1", "--orders", "2", "--json", "--url", url],
        ));
        assert_eq!(ran.code, 0, "{ran:?}");
        nothing_is_left(&place);
    }
}

#[test]
fn the_line_of_progress_is_gone_after_ctrl_c() {
    let place = place();
    let mut terminal =
        Terminal::start(demo(&place, &["--workers", "2", "--stock", "50000", "--orders", "50000"]));
    terminal.expect("act 1: nothing:");
    terminal.type_in("\x03");
    terminal.leader.wait();
    until_true("the line is taken away", || terminal.seen().ends_with("\r\x1b[K"));
}

#[test]
fn the_story_as_it_is_told_by_default() {
    let place = place();
    let ran = finish(&mut demo(&place, &[]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.err, "", "no progress where nobody looks");
    let rows: Vec<&str> =
        ran.out.lines().skip_while(|line| !line.starts_with("act")).skip(1).take(4).collect();
    let ends = [
        ("  1  nothing", "oversold"),
        ("  2  a lock inside each process", "exactly the stock, so the flaw went unnoticed"),
        ("  2  a lock inside each process", "oversold: every process has a lock of its own"),
        ("  3  lockkeeper", "exactly the stock, never one more"),
    ];
    for (row, (start, end)) in rows.iter().zip(ends) {
        assert!(row.starts_with(start) && row.ends_with(end), "{}", ran.out);
    }
    assert!(ran.out.contains("needs an engine with leases"), "{}", ran.out);
    nothing_is_left(&place);
}

#[test]
fn more_pieces_than_orders_sells_as_many_as_were_ordered() {
    let place = place();
    let ran =
        finish(&mut demo(&place, &["--workers", "3", "--stock", "20", "--orders", "10", "--json"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    let rows = sold(&objects(&ran.out));
    assert_eq!(rows.last(), Some(&(3, "lockkeeper".to_owned(), 3, 10, 0)), "{ran:?}");
}

#[test]
fn progress_is_shown_on_a_terminal() {
    let place = place();
    let command = demo(&place, &["--workers", "2", "--stock", "40", "--orders", "60"]);
    let mut terminal = Terminal::start(command);
    terminal.expect("act 1: nothing:");
    terminal.expect("never one more");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn an_interrupted_story_leaves_no_process_and_no_record() {
    for signal in [Signal::SIGINT, Signal::SIGTERM] {
        let place = place();
        // Long enough to be interrupted for certain: act 2 alone takes 2 ms a piece.
        let mut command =
            demo(&place, &["--stock", "50000", "--orders", "50000", "--workers", "4"]);
        let mut story = Reaped::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        // And the one that removes the record's directory.
        until_true("its workers are there", || children(story.pid()).len() == 4 + 1);
        let workers = children(story.pid());
        until_true("it has a record", || !names_in(&place.path("tmp")).is_empty());
        story.signal(signal);
        assert_eq!(story.wait(), 128 + signal as i32);
        assert!(workers.iter().all(|worker| !is_alive(*worker)));
        nothing_is_left(&place);
    }
}

#[test]
fn a_reader_that_has_gone_away_ends_the_story_and_nothing_is_left() {
    let place = place();
    let mut command =
        place.sh("\"$LK\" demo oversell --workers 2 --stock 3 --orders 6 --json | head -n 1");
    let ran = finish(command.env("TMPDIR", place.path("tmp")));
    assert_eq!((ran.code, ran.out.lines().count(), ran.err.as_str()), (0, 1, ""));
    // The pipeline ends with its last part; the story itself may take a moment longer.
    until_true("nothing is left", || {
        names_in(&place.path("tmp")).is_empty() && names_in(&place.path("locks")).is_empty()
    });
}

#[test]
fn a_story_that_is_killed_takes_its_workers_along() {
    let place = place();
    let mut command = demo(&place, &["--stock", "50000", "--orders", "50000", "--workers", "3"]);
    let mut story = Reaped::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    // And the one that removes the record's directory.
    until_true("its workers are there", || children(story.pid()).len() == 3 + 1);
    let workers = children(story.pid());
    story.signal(Signal::SIGKILL);
    story.wait();
    until_true("its workers are gone", || workers.iter().all(|worker| !is_alive(*worker)));
    assert!(names_in(&place.path("tmp")).is_empty(), "and its record");
}

#[test]
fn what_cannot_be_right_is_refused_in_one_line() {
    let place = place();
    for (arguments, code, words) in [
        (vec!["--url", "memory:"], 64, "private to one process"),
        (vec!["--workers", "0"], 64, "--workers 0 is not between 1 and 64"),
        (vec!["--stock", "0"], 64, "--stock 0 is not between 1"),
        (vec!["--stock", "many"], 64, "neither how many pieces"),
        (vec!["--stock", "1", "--stock", "2"], 64, "--stock is given twice"),
        (vec!["--stock", "postgres://h?prefx=x"], 64, "did you mean prefix?"),
        (vec!["--stock", "redis://h"], 64, "and redis is none"),
        (vec!["--stock", "postgres://db.internal/x"], 64, "speaks no TLS"),
        (vec!["--stock", "postgres://127.0.0.1:1/x"], 69, "cannot reach the database"),
        (vec!["--orders", "100001"], 64, "--orders 100001 is not between 1"),
        (vec!["--url", "nonsense://x"], 64, "is not an engine"),
        (vec!["--require", "hosts"], 64, "hosts was required"),
        (vec!["--url", "file:///nowhere/at/all"], 69, "/nowhere"),
    ] {
        let ran = finish(&mut demo(&place, &arguments));
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.lines().count()),
            (code, "", 1),
            "{arguments:?}: {ran:?}"
        );
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
    assert_eq!(finish(Command::new(PROGRAM).args(["__helper", "x"]).stdin(Stdio::null())).code, 64);
    nothing_is_left(&place);
}
