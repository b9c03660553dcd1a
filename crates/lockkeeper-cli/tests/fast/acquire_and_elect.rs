//! `acquire` and `elect`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{ChildStdout, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::terminal::Terminal;
use crate::common::{self, Place, Reaped, finish, is_alive, json, number, until_true};

/// An `acquire` that was granted, and its stdout.
fn acquired(place: &Place, options: &[&str], stdin: Stdio) -> (Reaped, BufReader<ChildStdout>) {
    let mut acquire = place.lk([&["acquire", "a"], options].concat());
    let mut child = Reaped::spawn(acquire.stdin(stdin).stdout(Stdio::piped()));
    let mut out = BufReader::new(child.0.stdout.take().unwrap());
    let granted = line(&mut out);
    assert_eq!(
        (granted["event"].as_str(), granted["name"].as_str()),
        (Some("granted"), Some("a")),
        "{granted}"
    );
    (child, out)
}

fn line(out: &mut BufReader<ChildStdout>) -> serde_json::Value {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    json(line.trim_end())
}

fn is_held(place: &Place) -> bool {
    place.run(["run", "a", "-n", "-q", "--", "true"]).code == 75
}

#[test]
fn acquire_holds_until_a_pipe_closes() {
    let place = Place::new();
    let (mut child, mut out) = acquired(&place, &[], Stdio::piped());
    let mut stdin = child.0.stdin.take().unwrap();
    stdin.write_all(b"what is written changes nothing\n").unwrap();
    assert!(is_held(&place));
    drop(stdin);
    let done = line(&mut out);
    assert_eq!(
        (done["event"].as_str(), done["outcome"].as_str(), done["release"].as_str()),
        (Some("done"), Some("ran"), Some("clean"))
    );
    assert_eq!(done["why"].as_str(), Some("stdin-closed"));
    assert_eq!(child.wait(), 0);
    assert!(!is_held(&place));
}

#[test]
fn acquire_does_not_take_dev_null_or_a_closed_stdin_for_an_end() {
    let place = Place::new();
    for stdin in ["< /dev/null", "<&-", "< Cargo.toml"] {
        std::fs::write(place.path("Cargo.toml"), "").unwrap();
        let began = Instant::now();
        let ran = finish(&mut place.sh(&format!("exec \"$LK\" acquire a --for 300ms {stdin}")));
        assert_eq!(ran.code, 0, "{stdin}: {ran:?}");
        assert!(began.elapsed() >= Duration::from_millis(300), "{stdin}");
        assert_eq!(
            json(ran.out.lines().nth(1).unwrap())["why"].as_str(),
            Some("time-over"),
            "{stdin}: {ran:?}"
        );
    }
}

#[test]
fn acquire_lets_go_on_a_signal() {
    let place = Place::new();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let (mut child, mut out) = acquired(&place, &[], Stdio::null());
        child.signal(signal);
        assert_eq!(line(&mut out)["why"].as_str(), Some(signal.as_str()));
        assert_eq!(child.wait(), 0);
    }
    assert!(!is_held(&place));
}

#[test]
fn acquire_on_a_terminal_lets_go_at_the_end_of_input() {
    let place = Place::new();
    let mut terminal = Terminal::start(place.lk(["acquire", "a"]));
    terminal.expect("\"granted\"");
    assert!(is_held(&place));
    terminal.type_in("words\n");
    terminal.type_in("\x04");
    terminal.expect("\"stdin-closed\"");
    assert_eq!(terminal.leader.wait(), 0);
}

#[test]
fn acquire_says_when_it_is_lost() {
    let place = Place::new();
    let (mut child, mut out) =
        acquired(&place, &["--json", "--lost-exit-code", "9"], Stdio::null());
    std::fs::remove_dir_all(place.path("locks")).unwrap();
    assert_eq!(line(&mut out)["event"].as_str(), Some("lost"));
    let done = line(&mut out);
    assert_eq!(
        (done["outcome"].as_str(), done["release"].as_str()),
        (Some("lost"), Some("already-lost"))
    );
    assert_eq!(child.wait(), 9);
}

#[test]
fn acquire_that_does_not_obtain_says_so() {
    let place = Place::new();
    let holder = place.hold("a");
    let ran = place.run(["acquire", "a", "-n"]);
    assert_eq!(ran.code, 75);
    assert!(ran.err.contains(&format!("pid {}", holder.pid())), "{ran:?}");
    assert_eq!(json(ran.out.trim_end())["outcome"].as_str(), Some("not-obtained"), "{ran:?}");
    assert_eq!(place.run(["acquire", "a", "-w", "100ms", "-E", "4"]).code, 4);
}

#[test]
fn elect_runs_one_at_a_time_and_stands_down_with_the_commands_code() {
    let place = Place::new();
    let script = "echo $$ > leader; while [ ! -e stop ]; do sleep 0.02; done; exit 6";
    let mut first =
        Reaped::spawn(&mut place.lk(["elect", "e", "--id", "host-a", "--", "sh", "-c", script]));
    let leader = number(&place.read("leader"));
    let mut second = Reaped::spawn(&mut place.lk([
        "elect",
        "e",
        "--id",
        "host-b",
        "--",
        "sh",
        "-c",
        "echo second > ran; exit 7",
    ]));
    let shown = common::until("somebody waits", || {
        let shown = place.run(["status", "e", "--json"]).out;
        let entry = json(shown.trim_end());
        (!entry["waiters"].as_array().unwrap().is_empty()).then_some(entry)
    });
    assert_eq!(shown["kind"].as_str(), Some("election"), "{shown}");
    assert!(is_alive(leader) && !place.path("ran").exists());
    assert!(place.run(["ls"]).out.contains("as host-a"));
    assert!(!is_held_named(&place, "e"), "an election is no lock of that name");
    std::fs::write(place.path("stop"), "").unwrap();
    assert_eq!(first.wait(), 6);
    assert_eq!(second.wait(), 7);
    assert_eq!(place.read("ran"), "second\n");
}

fn is_held_named(place: &Place, name: &str) -> bool {
    place.run(["run", name, "-n", "-q", "--", "true"]).code == 75
}

#[test]
fn elect_stands_again_after_a_loss() {
    let place = Place::new();
    let script = "echo $$ >> terms; exec sleep 1000";
    let mut elect =
        Reaped::spawn(place.lk(["elect", "e", "--", "sh", "-c", script]).stderr(Stdio::null()));
    let terms = || std::fs::read_to_string(place.path("terms")).unwrap_or_default();
    until_true("it leads", || terms().lines().count() == 1);
    let first = number(terms().lines().next().unwrap());
    std::fs::remove_dir_all(place.path("locks")).unwrap();
    until_true("it leads again", || terms().lines().count() == 2);
    assert!(!is_alive(first), "the first command was stopped before");
    elect.signal(Signal::SIGTERM);
    assert_eq!(elect.wait(), 143);
    assert_eq!(terms().lines().count(), 2, "who is told to end does not stand again");
}

#[test]
fn elect_again_runs_the_command_again() {
    let place = Place::new();
    // A command that has just ended by itself would answer the signal with its own code.
    let script = "if [ -e ran ]; then echo > again; exec sleep 1000; fi; echo > ran";
    let mut elect =
        Reaped::spawn(&mut place.lk(["elect", "e", "--again", "--", "sh", "-c", script]));
    place.read("again");
    elect.signal(Signal::SIGTERM);
    assert_eq!(elect.wait(), 143);
}

#[test]
fn elect_interrupted_while_it_stands_is_128_and_the_signals_number() {
    let place = Place::new();
    let mut first = Reaped::spawn(&mut place.lk([
        "elect",
        "e",
        "--",
        "sh",
        "-c",
        "echo > leads; exec sleep 1000",
    ]));
    place.read("leads");
    let mut second = Reaped::spawn(&mut place.lk(["elect", "e", "--", "touch", "ran"]));
    until_true("it stands", || {
        let shown = place.run(["status", "e", "--json"]).out;
        !json(shown.trim_end())["waiters"].as_array().unwrap().is_empty()
    });
    second.signal(Signal::SIGHUP);
    assert_eq!(second.wait(), 129);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), 143);
    assert!(!place.path("ran").exists());
}
