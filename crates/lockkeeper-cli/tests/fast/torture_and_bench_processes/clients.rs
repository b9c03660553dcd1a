//! Clients that end by themselves, and those that have no room for their records or descriptors.

use std::process::Stdio;

use nix::sys::signal::Signal;

use super::{histories, place, torture};
use crate::common::{self, Place, Reaped, children, finish, json, until, until_true};

/// A torture without faults, and its clients, which have begun.
fn begun_torture(place: &Place, seconds: &str, clients: usize) -> (Reaped, Vec<i32>) {
    let mut command = torture(
        place,
        &["--seconds", seconds, "--clients", &clients.to_string(), "--faults", "none", "--json"],
    );
    let run = Reaped::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let started =
        until("its clients are there", || Some(children(run.pid())).filter(|c| c.len() == clients));
    until_true("they have begun", || histories(place) >= clients);
    (run, started)
}

#[test]
fn a_client_that_ends_by_itself_is_a_conviction_and_its_end_is_known_at_once() {
    let place = place();
    let (run, clients) = begun_torture(&place, "4", 3);
    for client in clients.iter().take(2) {
        common::kill(*client, Signal::SIGABRT);
    }
    until_true("they are buried while the others work", || children(run.pid()).len() == 1);
    let ran = run.output();
    assert_eq!(ran.code, 1, "{ran:?}");
    let report = json(ran.out.trim());
    assert_eq!(report["verdict"], "violations", "{report}");
    let [found] = report["violations"].as_array().unwrap().as_slice() else {
        panic!("nothing but the crash: {report}")
    };
    assert!(
        found["class"] == "crash"
            && found["count"] == 2
            && found["first"].as_str().unwrap().contains("signal: 6"),
        "{found}"
    );
    assert_eq!(
        ran.err.lines().filter(|line| line.contains("ended by itself")).count(),
        2,
        "{ran:?}"
    );
    assert!(histories(&place) >= 3, "what convicts it is kept");
}

#[test]
fn a_torture_whose_clients_are_all_gone_ends_at_once() {
    let place = place();
    let (run, clients) = begun_torture(&place, "60", 2);
    clients.iter().for_each(|client| common::kill(*client, Signal::SIGABRT));
    // It waits for half as long as the torture would last.
    let ran = run.output();
    assert_eq!(
        (ran.code, json(ran.out.trim())["violations"][0]["count"].as_u64()),
        (1, Some(2)),
        "{ran:?}"
    );
    assert!(ran.err.contains("no client is left; this torture ends here"), "{ran:?}");
}

#[test]
fn a_client_that_the_laboratory_has_no_room_for_convicts_nobody() {
    let place = place();
    let mut command = torture(
        &place,
        &["--seconds", "30", "--clients", "2", "--faults", "kill-client", "--json"],
    );
    let run = Reaped::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()));
    // It is there before its clients are.
    let dir = until("it has a directory", || {
        Some(std::fs::read_dir(place.path("tmp")).unwrap().next()?.unwrap().path())
    });
    for (start, client) in (2..6).flat_map(|start| [(start, 0), (start, 1)]) {
        // What stands there already cannot be its history when it is started again; one that was
        // quicker than we is killed again.
        _ = std::fs::File::create_new(dir.join(format!("client-{client}-{start}.lkh")));
    }
    let ran = run.output();
    let report = json(ran.out.trim());
    assert_eq!(
        (ran.code, report["verdict"].as_str(), &report["violations"]),
        (2, Some("too-weak"), &serde_json::json!([])),
        "{ran:?}"
    );
    assert!(ran.err.contains("had no room for its history, or no resource"), "{}", ran.err);
}

#[test]
fn more_clients_than_the_soft_limit_of_descriptors_has_room_for_can_work() {
    let place = place();
    let mut command = place.sh("ulimit -Sn 64; exec \"$LK\" torture --seconds 2 --clients 6 \
                                --tasks 16 --faults none --json");
    let ran = finish(command.env("TMPDIR", place.path("tmp")));
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    assert_eq!(json(ran.out.trim())["verdict"], "clean", "{ran:?}");
}

#[test]
fn records_that_have_no_room_make_a_torture_too_weak_and_convict_nobody() {
    let place = place();
    // A file may not grow beyond one step of a history and a bit.
    let mut command = place
        .sh("ulimit -f 2200; exec \"$LK\" torture --seconds 60 --clients 2 --faults none --json");
    let run = Reaped::spawn(
        command.env("TMPDIR", place.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::piped()),
    );
    until_true("the recording of a client has ended", || {
        let histories = std::fs::read_dir(place.path("tmp"))
            .unwrap()
            .flat_map(|d| std::fs::read_dir(d.unwrap().path()).unwrap());
        let clients = histories
            .filter(|f| f.as_ref().unwrap().file_name().to_string_lossy().starts_with("client-"));
        // The word of the header that says how it ended: 2 is early.
        clients.map(|f| lockkeeper_lab::history::Reader::open(f.unwrap().path())).any(|r| {
            r.is_ok_and(|r| matches!(r.header().state, lockkeeper_lab::history::State::Stopped(_)))
        })
    });
    run.signal(Signal::SIGTERM);
    let ran = run.output();
    let report = json(ran.out.trim());
    assert_eq!(
        (report["verdict"].as_str(), &report["violations"]),
        (Some("too-weak"), &serde_json::json!([])),
        "{ran:?}"
    );
    assert!(ran.err.contains("recording stopped after"), "{ran:?}");
}
