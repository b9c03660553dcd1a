//! Servers that cannot be reached, or do not answer.

use std::net::TcpListener;
use std::process::Stdio;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::lease::Engine;
use crate::common::{Place, Reaped, finish, json, until, until_true};

#[test]
fn an_engine_that_cannot_be_reached_is_tried_once_or_as_long_as_is_waited_for() {
    let place = Place::new();
    let port = lockkeeper_testkit::servers::free_port();
    for url in [format!("redis://127.0.0.1:{port}"), format!("zk://127.0.0.1:{port}")] {
        let run = |options: &[&str]| {
            let began = Instant::now();
            let ran = finish(
                place
                    .lk(["run", "a", "--report", "report"])
                    .args(options)
                    .env("LOCKKEEPER_URL", &url),
            );
            (ran, began.elapsed(), json(place.read("report").trim_end()))
        };
        let (ran, _, report) = run(&["-n", "--", "true"]);
        assert_eq!(ran.code, 69, "{url}: {ran:?}");
        assert_eq!(report["outcome"].as_str(), Some("unreachable"), "{report}");
        let (ran, took, _) = run(&["-w", "2", "--", "true"]);
        assert!(ran.code == 69 && took > Duration::from_secs(1), "{url}: {took:?} {ran:?}");
        let (ran, _, report) = run(&[
            "-w",
            "300ms",
            "--on-unreachable",
            "run",
            "--",
            "sh",
            "-c",
            "test -z \"$LOCKKEEPER_TOKEN\" && exit 5",
        ]);
        assert_eq!(
            (ran.code, report["outcome"].as_str()),
            (5, Some("ran-unlocked")),
            "{url}: {ran:?}"
        );
        assert!(ran.err.contains("without the lock"), "{ran:?}");
    }
    let late = Reaped::spawn(
        place
            .lk(["run", "a", "--", "true"])
            .env("LOCKKEEPER_URL", format!("redis://127.0.0.1:{port}")),
    );
    std::thread::sleep(Duration::from_millis(500));
    // It comes up a little later, on the port that was asked.
    let mut server = std::process::Command::new("redis-server")
        .args([
            "--port",
            &port.to_string(),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            &place.text("home"),
        ])
        .stdout(Stdio::null())
        .spawn()
        .map(Reaped)
        .unwrap();
    let mut late = late;
    assert_eq!(late.wait(), 0);
    server.0.kill().unwrap();
    server.wait();
}

#[test]
fn a_server_that_does_not_answer_is_no_holder() {
    let (engine, place) = (Engine::redis(), Place::new());
    engine.stop();
    let ran = engine.run(&place, &["run", "a", "-w", "700ms", "--", "true"]);
    assert_eq!(ran.code, 69, "{ran:?}");
    engine.go_on();
    // This one hears the call, and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    silent.set_nonblocking(true).unwrap();
    let url = format!("redis://{}", silent.local_addr().unwrap());
    let mut waiting = Reaped::spawn(&mut place.lk(["run", "a", "--url", &url, "--", "true"]));
    let _call = until("it calls", || silent.accept().ok());
    waiting.signal(Signal::SIGINT);
    assert_eq!(waiting.wait(), 130, "a signal ends the wait for an engine too");
}

#[test]
fn timed_rule_9_a_wait_in_line_ends_in_time_though_the_server_has_begun_to_stand_still() {
    let (engine, place) = (Engine::redis(), Place::new());
    let _holder = engine.start(&place, &["run", "a", "--", "sleep", "1000"]);
    let status = || json(engine.run(&place, &["--json", "status", "a"]).out.trim());
    until_true("it is held", || status()["state"] == "held");
    let waiting =
        engine.start_hasty(&place, &["run", "a", "-w", "3", "--report", "report", "--", "true"]);
    until_true("somebody waits", || status()["waiters"][0]["ahead"].is_number());
    engine.stop();
    let ran = waiting.output();
    engine.go_on();
    assert_eq!(ran.code, 69, "{ran:?}");
    let report = json(place.read("report").trim_end());
    let waited = report["waited_ms"].as_u64().unwrap();
    assert!((3_000..3_300).contains(&waited), "{report}");
}

#[test]
fn the_commands_own_code_stays_although_the_release_is_not_answered() {
    let (engine, place) = (Engine::redis(), Place::new());
    let script = "echo > runs; while [ ! -e over ]; do sleep 0.01; done; exit 3";
    let line = ["run", "a", "--report", "report", "--", "sh", "-c", script];
    let front = engine.start_hasty(&place, &line);
    place.read("runs");
    engine.stop();
    std::fs::write(place.path("over"), "").unwrap();
    let ran = front.output();
    engine.go_on();
    assert_eq!(ran.code, 3, "{ran:?}");
    let report = json(place.read("report").trim_end());
    assert_eq!(
        (report["outcome"].as_str(), report["release"].as_str()),
        (Some("ran"), Some("unknown")),
        "{report}"
    );
}
