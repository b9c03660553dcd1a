//! How a torture ends: what it started ends with it, and nothing is left.

use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{arguments_of, histories, place, torture};
use crate::common::{self, Place, Reaped, children, finish, is_alive, json, until, until_true};

#[test]
fn a_signal_ends_a_torture_with_its_code_a_partial_report_and_nothing_left() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let place = place();
        let mut command = torture(&place, &["--seconds", "60", "--clients", "3", "--json"]);
        let run = Reaped::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
        let clients =
            until("its clients are there", || Some(children(run.pid())).filter(|c| c.len() == 3));
        until_true("they have begun", || histories(&place) >= 3);
        run.signal(signal);
        let pid = run.pid();
        let ran = run.output();
        assert_eq!(ran.code, 128 + signal as i32, "{ran:?}");
        let report = json(ran.out.trim());
        assert!(report["verdict"].is_string() && report["engine"] == "file", "{report}");
        for key in "holds faults violations expected_violations stale_writes_rejected \
                    stale_writes_accepted recovery_ms seed client weak left_out kept"
            .split(' ')
        {
            assert!(report.get(key).is_some(), "{key} is there, whatever ended it: {report}");
        }
        assert!(clients.iter().all(|client| !is_alive(*client)) && children(pid).is_empty());
        assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
    }
}

#[test]
fn what_a_program_behind_a_client_started_ends_with_the_client() {
    let place = place();
    let ran = finish(&mut torture(
        &place,
        &[
            "file:auto",
            "--client",
            "exec:sleep 271828182 & exec cat",
            "--seconds",
            "1",
            "--clients",
            "2",
            "--faults",
            "none",
            "--json",
        ],
    ));
    assert_eq!(json(ran.out.trim())["holds"], 0, "{ran:?}");
    // A KILL is acted on a moment after it was sent.
    until_true("what it started is gone", || {
        let mut all = std::fs::read_dir("/proc")
            .unwrap()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        !all.any(|pid| arguments_of(pid).contains("271828182"))
    });
}

#[test]
fn a_second_signal_ends_a_torture_at_once_without_a_verdict_and_nothing_left() {
    // Whoever does not end is waited for for 20 s, and then killed. Again where the machine was
    // too slow to tell that from what ends at once.
    until_true("it waits for nobody", || ended_by_a_second_signal() < Duration::from_secs(15));
}

/// How long a torture took to end whose clients do not.
fn ended_by_a_second_signal() -> Duration {
    let place = place();
    let mut command = torture(
        &place,
        &["redis:auto", "--seconds", "60", "--clients", "2", "--faults", "none", "--json"],
    );
    let mut run = Reaped::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let started = until("its server and its clients are there", || {
        Some(children(run.pid())).filter(|all| all.len() == 3)
    });
    until_true("they have begun", || histories(&place) >= 2);
    // One that does not hear that it is to end is waited for.
    let clients: Vec<i32> = started
        .iter()
        .copied()
        .filter(|pid| arguments_of(*pid).contains("torture-client"))
        .collect();
    assert_eq!(clients.len(), 2);
    clients.iter().for_each(|client| common::kill(*client, Signal::SIGSTOP));
    let begun = std::time::Instant::now();
    until_true("it ends when it is told so again", || {
        run.signal(Signal::SIGINT);
        run.0.try_wait().unwrap().is_some()
    });
    let took = begun.elapsed();
    let ran = run.output();
    assert_eq!((ran.code, ran.out.as_str()), (130, ""), "{ran:?}");
    until_true("they are gone", || started.iter().all(|pid| !is_alive(*pid)));
    // Whoever is not done with clearing away after 2 s ends without it.
    let left: Vec<_> = std::fs::read_dir(place.path("tmp"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(left.is_empty() || took > Duration::from_secs(2), "{left:?} after {took:?}");
    took
}

#[test]
fn a_signal_that_was_ignored_when_a_torture_started_stays_ignored() {
    let place = place();
    let mut command = place
        .sh("trap '' HUP TERM; exec \"$LK\" torture --seconds 2 --clients 2 --faults none --json");
    let run = Reaped::spawn(
        command.env("TMPDIR", place.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::piped()),
    );
    until_true("its clients are there", || children(run.pid()).len() == 2);
    run.signal(Signal::SIGHUP);
    run.signal(Signal::SIGTERM);
    let ran = run.output();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(json(ran.out.trim())["verdict"], "clean", "{ran:?}");
}

#[test]
fn clients_of_a_torture_that_is_killed_are_killed_with_it() {
    let place = place();
    let mut command = torture(&place, &["--seconds", "60", "--clients", "2"]);
    let mut run = Reaped::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
    // Each in a group of its own: Ctrl-C is for the one who clears away. Between fork and exec they
    // are in ours.
    let apart =
        |all: &Vec<i32>| all.len() == 2 && all.iter().all(|pid| common::group(*pid) == *pid);
    let clients = until("its clients are there", || Some(children(run.pid())).filter(apart));
    run.signal(Signal::SIGKILL);
    run.wait();
    until_true("they are gone", || clients.iter().all(|client| !is_alive(*client)));
}

#[test]
fn the_server_of_a_torture_ends_with_it_however_it_ends() {
    for signal in [Signal::SIGINT, Signal::SIGKILL] {
        let place = place();
        let mut command = torture(
            &place,
            &["redis:auto", "--seconds", "60", "--clients", "2", "--faults", "none", "--json"],
        );
        let mut run = Reaped::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        // Each in a group of its own: Ctrl-C is for the one who clears away. Between fork and exec
        // they are in ours.
        let apart =
            |all: &Vec<i32>| all.len() == 3 && all.iter().all(|pid| common::group(*pid) == *pid);
        let started = until("its server and its clients are there", || {
            Some(children(run.pid())).filter(apart)
        });
        assert!(started.iter().any(|pid| arguments_of(*pid).contains("redis-server")));
        run.signal(signal);
        run.wait();
        until_true("they are gone", || started.iter().all(|pid| !is_alive(*pid)));
        if signal == Signal::SIGINT {
            assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
        }
    }
}

/// How many holds are recorded so far.
fn held(place: &Place) -> usize {
    let files = std::fs::read_dir(place.path("tmp"))
        .unwrap()
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).into_iter().flatten());
    let readers =
        files.filter_map(|file| lockkeeper_lab::history::Reader::open(file.unwrap().path()).ok());
    let acquired = |mut reader: lockkeeper_lab::history::Reader| {
        std::iter::from_fn(move || reader.next().ok().flatten())
            .filter(|(_, record)| record.what == lockkeeper_lab::history::What::Acquired)
            .count()
    };
    readers.map(acquired).sum()
}

#[test]
fn a_server_that_ends_for_good_ends_the_torture_with_one_line_and_what_was_seen_until_then() {
    let place = place();
    let report = place.text("report.html");
    let mut command = torture(
        &place,
        &[
            "redis:auto",
            "--seconds",
            "600",
            "--clients",
            "2",
            "--faults",
            "none",
            "--json",
            "--report",
            &report,
        ],
    );
    let run = Reaped::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let all = until("its server and its clients are there", || {
        Some(children(run.pid())).filter(|all| all.len() == 3)
    });
    until_true("clients hold", || histories(&place) >= 2 && held(&place) > 20);
    let server = all.iter().find(|pid| arguments_of(**pid).contains("redis-server")).unwrap();
    common::kill(*server, Signal::SIGKILL);
    // It waits for nobody: it was told to go on for longer than the test.
    let ran = run.output();
    let verdict = json(ran.out.trim());
    assert_eq!((ran.code, verdict["verdict"].as_str()), (2, Some("too-weak")), "{ran:?}");
    assert!(
        verdict["holds"].as_u64().unwrap() > 0 && verdict["violations"] == serde_json::json!([]),
        "{verdict}"
    );
    let lines: Vec<_> = ran.err.lines().filter(|line| line.contains("ended by itself")).collect();
    assert!(
        lines.len() == 1 && lines[0].contains("redis-server") && lines[0].contains("signal: 9"),
        "{ran:?}"
    );
    assert!(place.read("report.html").contains("<svg") && all.iter().all(|pid| !is_alive(*pid)));
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
}
