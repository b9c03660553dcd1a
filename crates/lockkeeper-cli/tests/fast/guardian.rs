//! The promise of a lock with a lease: the command is gone before anybody else can have it,
//! whatever happens to us.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::lease::{
    Engine, arguments, guardian, next_writer, nobody_wrote_late, rounds, until_gone,
};
use crate::common::terminal::Terminal;
use crate::common::{self, Place, Reaped, group, is_alive, json, number, until_true};

#[test]
fn killed_with_kill_nothing_of_the_command_writes_after_the_next_one_began() {
    rounds(&Engine::redis(), 8, 2, |holder, _| holder.signal(Signal::SIGKILL));
}

#[test]
fn when_the_guardian_is_killed_the_command_is_stopped_before_the_lease_passes() {
    let engine = Engine::redis();
    rounds(&engine, 2, 1, |holder, _| common::kill(guardian(holder.pid()), Signal::SIGKILL));
    let place = Place::new();
    let front = engine.start(
        &place,
        &[
            "run",
            "b",
            "--ttl",
            "9s",
            "--report",
            "report",
            "--",
            "sh",
            "-c",
            "echo > runs; exec sleep 1000",
        ],
    );
    place.read("runs");
    common::kill(guardian(front.pid()), Signal::SIGKILL);
    let ran = front.output();
    assert_eq!(ran.code, 79, "{ran:?}");
    let report = json(place.read("report").trim_end());
    assert_eq!(
        (report["outcome"].as_str(), report["why"].as_str()),
        (Some("lost"), Some("guardian-gone")),
        "{report}"
    );
    assert_eq!(report["release"].as_str(), Some("unknown"), "{report}");
}

#[test]
fn a_guardian_that_stands_still_is_made_up_for_and_does_not_stay() {
    let engine = Engine::redis();
    let stopped = std::cell::Cell::new(0);
    rounds(&engine, 2, 1, |holder, _| {
        stopped.set(guardian(holder.pid()));
        common::kill(stopped.get(), Signal::SIGSTOP);
    });
    until_gone(stopped.get());
    let place = Place::new();
    let mut front = engine.start(
        &place,
        &["run", "b", "--ttl", "2s", "--", "sh", "-c", "echo > runs; exec sleep 1000"],
    );
    place.read("runs");
    let keeper = guardian(front.pid());
    common::kill(keeper, Signal::SIGSTOP);
    assert_eq!(front.wait(), 79);
    assert!(!is_alive(keeper), "it would stay for ever");
}

#[test]
fn a_lease_that_is_not_renewed_ends_its_command_in_time() {
    let (engine, place) = (Engine::redis(), Place::new());
    let began = Instant::now();
    let ran = engine.run(&place, &["run", "a", "--ttl", "1s", "--no-renew", "--", "sleep", "1000"]);
    assert_eq!(ran.code, 79, "{ran:?}");
    assert!(ran.err.contains("lost: its lease ends, and --no-renew keeps"), "{ran:?}");
    assert!(began.elapsed() > Duration::from_millis(500), "{:?}", began.elapsed());
    assert_eq!(engine.run(&place, &["run", "a", "-n", "--", "true"]).code, 0, "it was given back");
}

#[test]
fn a_lock_taken_away_stops_kills_or_only_warns() {
    let (engine, place) = (Engine::redis(), Place::new());
    // How it ended, and what was reported. `then` is done once it was taken away.
    let taken = |name: &str, options: &[&str], script: &str, then: &dyn Fn()| {
        _ = std::fs::remove_file(place.path("runs"));
        let args = [
            &["run", name, "--ttl", "9s", "--report", "report"],
            options,
            &["--", "sh", "-c", script],
        ]
        .concat();
        let mut front = place.lk(args);
        front.env("LOCKKEEPER_URL", engine.url());
        front.stderr(std::fs::File::create(place.path("told")).unwrap());
        let mut front = Reaped::spawn(&mut front);
        place.read("runs");
        assert_eq!(engine.run(&place, &["release", "--force", name]).code, 0);
        then();
        (front.wait(), json(place.read("report").trim_end()))
    };
    let (code, report) = taken("a", &[], "echo > runs; exec sleep 1000", &|| ());
    assert_eq!(
        (code, report["why"].as_str(), report["release"].as_str()),
        (79, Some("taken-away"), Some("already-lost")),
        "{report}"
    );
    assert_eq!(report["command_signal"].as_str(), Some("SIGTERM"), "{report}");
    let (code, report) = taken(
        "b",
        &["--on-lost", "kill", "--lost-exit-code", "9"],
        "trap '' TERM; echo > runs; sleep 1000",
        &|| (),
    );
    assert_eq!((code, report["command_signal"].as_str()), (9, Some("SIGKILL")), "{report}");
    let (code, report) = taken(
        "c",
        &["--on-lost", "warn"],
        "echo > runs; while [ ! -e over ]; do sleep 0.01; done; exit 5",
        &|| {
            until_true("it warns", || place.read("told").contains("goes on without it"));
            std::fs::write(place.path("over"), "").unwrap();
        },
    );
    assert_eq!(
        (code, report["outcome"].as_str(), report["release"].as_str()),
        (5, Some("ran"), Some("already-lost")),
        "{report}"
    );
}

#[test]
fn a_lock_goes_back_when_the_command_is_over_although_lockkeeper_is_stopped() {
    let (engine, place) = (Engine::redis(), Place::new());
    let front = engine.start(
        &place,
        &[
            "run",
            "a",
            "--report",
            "report",
            "--",
            "sh",
            "-c",
            "echo > runs; while [ ! -e over ]; do sleep 0.01; done",
        ],
    );
    place.read("runs");
    front.signal(Signal::SIGSTOP);
    std::fs::write(place.path("over"), "").unwrap();
    let next = engine.run(&place, &["run", "a", "-w", "120", "--", "true"]);
    assert_eq!(next.code, 0, "{next:?}");
    front.signal(Signal::SIGCONT);
    let ran = front.output();
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(json(place.read("report").trim_end())["release"].as_str(), Some("clean"));
}

#[test]
fn the_guardian_has_a_session_of_its_own_holds_no_pipe_and_shows_no_secret() {
    let server =
        lockkeeper_testkit::redis::server::RedisServer::start_with(&["--requirepass", "sesame"]);
    let place = Place::new();
    let url = format!("redis://:sesame@127.0.0.1:{}", server.port());
    let mut lk = place.lk([
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "env > environment; echo $$ > runs; exec sleep 1000",
    ]);
    let mut front =
        Reaped::spawn(lk.env("LOCKKEEPER_URL", &url).stdout(std::process::Stdio::piped()));
    let command = number(&place.read("runs"));
    let keeper = guardian(front.pid());
    let session =
        |pid: i32| nix::unistd::getsid(Some(nix::unistd::Pid::from_raw(pid))).unwrap().as_raw();
    assert_eq!(session(keeper), keeper);
    assert_ne!(session(front.pid()), keeper);
    assert!(
        arguments(keeper).iter().all(|word| !word.contains("sesame")),
        "{:?}",
        arguments(keeper)
    );
    assert_eq!(group(command), command, "the command leads a group of its own");
    // A script that reads our output must not wait for the guardian.
    let out = std::fs::read_link(format!("/proc/{}/fd/1", front.pid())).unwrap();
    for fd in std::fs::read_dir(format!("/proc/{keeper}/fd")).unwrap() {
        assert_ne!(std::fs::read_link(fd.unwrap().path()).ok().as_ref(), Some(&out));
    }
    // What ends whole jobs does not reach it, and it does not end by it.
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
        common::kill(keeper, signal);
    }
    front.signal(Signal::SIGTERM);
    assert_eq!(front.wait(), 143);
    assert!(!is_alive(keeper) && !is_alive(command));
}

#[test]
fn a_command_in_our_own_group_is_found_by_its_mark_when_we_are_killed() {
    let (engine, place) = (Engine::redis(), Place::new());
    // The child that writes has lost its parent before, and so it stands in no tree of ours.
    let script = "(sh -c 'while :; do echo $LOCKKEEPER_TOKEN. >> writes; sleep 0.01; done' &) ; \
                  echo > runs; exec sleep 1000";
    let front = engine
        .start(&place, &["run", "a", "--ttl", "9s", "--foreground", "--", "sh", "-c", script]);
    place.read("runs");
    let first = next_writer(&place, 0);
    let keeper = guardian(front.pid());
    front.signal(Signal::SIGKILL);
    let next = engine.run(
        &place,
        &["run", "a", "-w", "120", "--", "sh", "-c", "echo $LOCKKEEPER_TOKEN. >> writes"],
    );
    assert_eq!(next.code, 0, "{next:?}");
    next_writer(&place, first);
    nobody_wrote_late(&place.path("writes"));
    until_gone(keeper);
}

#[test]
fn the_keyboards_stop_does_not_end_the_lock() {
    let (engine, place) = (Engine::redis(), Place::new());
    let mut shell = place.program("bash");
    shell.args(["--norc", "--noprofile", "-i"]).env("LOCKKEEPER_URL", engine.url());
    let terminal = Terminal::start(shell);
    terminal.expect("ready> ");
    // A shell that starts something is not stopped while that one is, just before it becomes
    // another program; this one starts nothing.
    nix::unistd::mkfifo(&place.path("over"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    terminal.type_in(
        "\"$LK\" run a --ttl 9s -- sh -c 'echo $$ > runs; read line < over'; echo code $?\n",
    );
    let command = number(&place.read("runs"));
    until_true("the command is in front", || terminal.front() == command);
    terminal.type_in("\x1a");
    terminal.expect("Stopped");
    // Four renewals are longer than the lease.
    for _ in 0..4 {
        engine.until_renewed("a");
        assert_eq!(engine.run(&place, &["run", "a", "-n", "-q", "--", "true"]).code, 75);
    }
    terminal.type_in("fg\n");
    terminal.expect("fg");
    std::fs::write(place.path("over"), "\n").unwrap();
    until_true("it is given back", || {
        engine.run(&place, &["status", "a", "--exit-code"]).code == 1
    });
    terminal.type_in("exit\n");
}
