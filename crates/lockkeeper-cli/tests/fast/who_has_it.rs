//! Who has a lock and who waits for it is told in the same words and numbers everywhere (C6, C7).

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::lease::Engine;
use crate::common::{Place, Reaped, finish, is_alive, json, kill, number, until, until_true};

/// Holds `job`, and lets two stand in line one after the other: every line names the engine so, and
/// counts the places alone.
fn one_name_and_one_count(url: &str, engine: &str) {
    let place = Place::new();
    let status =
        || json(finish(&mut place.lk(["--json", "status", "job", "--url", url])).out.trim());
    let named = |object: &Value| assert_eq!(object["engine"].as_str(), Some(engine), "{object}");
    let holder = place.hold_with("job", &["--url", url, "-q"]);
    let mut waiting = Vec::new();
    for ahead in 0..2u64 {
        let mut lk = place.lk(["run", "job", "--url", url, "--json", "--", "true"]);
        let mut child = Reaped::spawn(lk.stderr(Stdio::piped()));
        let mut lines = BufReader::new(child.0.stderr.take().unwrap()).lines();
        let told = json(&lines.next().unwrap().unwrap());
        assert_eq!(
            (told["event"].as_str(), told["ahead"].as_u64()),
            (Some("waiting"), Some(ahead)),
            "{told}"
        );
        named(&told);
        until_true("it is seen in line", || {
            status()["waiters"].as_array().is_some_and(|w| w.len() as u64 == ahead + 1)
        });
        waiting.push((child, lines));
    }
    let entry = status();
    named(&entry);
    let counted: Vec<_> = entry["waiters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|waiter| waiter["ahead"].as_u64())
        .collect();
    assert_eq!(counted, [Some(0), Some(1)], "{entry}");
    let busy = finish(
        &mut place
            .lk(["run", "-n", "job", "--url", url, "--json", "--report", "report", "--", "true"]),
    );
    busy.err
        .lines()
        .map(json)
        .filter(|line| line.get("engine").is_some())
        .for_each(|line| named(&line));
    named(&json(place.read("report").trim()));
    named(&json(finish(&mut place.lk(["doctor", url, "--json"])).out.trim()));
    holder.end();
    for (mut child, lines) in waiting {
        for line in lines {
            let line = json(&line.unwrap());
            if line.get("engine").is_some() {
                named(&line);
            }
        }
        assert_eq!(child.wait(), 0);
    }
}

#[test]
fn c7_one_name_and_one_count_on_files() {
    let place = Place::new();
    one_name_and_one_count(&format!("file://{}", place.text("elsewhere")), "file");
}

#[test]
fn c7_one_name_and_one_count_on_redis() {
    let engine = Engine::redis();
    one_name_and_one_count(&engine.patient(), "redis");
}

#[test]
fn c7_one_name_and_one_count_on_zookeeper() {
    let engine = Engine::zookeeper();
    one_name_and_one_count(&engine.patient(), "zookeeper");
}

#[test]
fn c7_an_engine_that_cannot_be_reached_has_the_same_name() {
    let place = Place::new();
    for (url, engine) in [("zk://127.0.0.1:1", "zookeeper"), ("redis://127.0.0.1:1", "redis")] {
        let ran = finish(&mut place.lk(["ls", "--json", "--url", url]));
        assert_eq!(
            (ran.code, json(ran.err.trim())["engine"].as_str()),
            (69, Some(engine)),
            "{ran:?}"
        );
    }
}

/// The one who has `job`, and who keeps the next from it.
fn told(place: &Place) -> (Option<i64>, Option<String>) {
    let entry = json(place.run(["--json", "status", "job"]).out.trim());
    let holder = &entry["holders"][0];
    (holder["pid"].as_i64(), holder["program"].as_str().map(str::to_owned))
}

#[test]
fn c6_after_kill_9_status_names_the_command_that_still_has_the_lock() {
    for mode in [&[][..], &["-s"], &["--permits", "1/2"]] {
        let place = Place::new();
        let mut lk = place.lk(["run", "job"]);
        lk.args(mode).args(["--", "sh", "-c", "echo $$ > pid; exec sleep 1000"]);
        let mut front = Reaped::spawn(&mut lk);
        let command = number(&place.read("pid"));
        until_true("it is the sleeper", || {
            std::fs::read(format!("/proc/{command}/cmdline"))
                .is_ok_and(|line| line.starts_with(b"sleep"))
        });
        assert_eq!(told(&place).0, Some(i64::from(front.pid())), "{mode:?}");
        front.signal(Signal::SIGKILL);
        front.wait();
        let after = told(&place);
        assert_eq!(after, (Some(i64::from(command)), Some("sleep".to_owned())), "{mode:?}");
        if mode.is_empty() {
            let busy = place.run(["run", "-n", "job", "--", "true"]);
            assert!(busy.code == 75 && busy.err.contains(&format!("pid {command}")), "{busy:?}");
        }
        kill(command, Signal::SIGKILL);
        until("it is gone", || (!is_alive(command)).then_some(()));
        until_true("nobody has it", || place.run(["status", "job", "--exit-code"]).code == 1);
    }
}
