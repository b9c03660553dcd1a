//! Rules 3 and 5: which process keeps the lock, and what becomes of those that the command leaves.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::common::{Place, Reaped, finish, is_alive, json, kill, number, until_true};

#[test]
fn rule_3_killed_we_do_not_leave_the_command_running_unlocked() {
    let place = Place::new();
    let run = Reaped::spawn(&mut place.lk([
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "echo $$ > pid; exec sleep 1000",
    ]));
    let command = number(&place.read("pid"));
    run.signal(Signal::SIGKILL);
    drop(run);
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 75, "the command still runs");
    kill(command, Signal::SIGKILL);
    assert_eq!(place.run(["run", "a", "-w", "120", "--", "true"]).code, 0, "and now it does not");
}

#[test]
fn rule_3_the_last_process_that_has_the_descriptor_keeps_the_lock_and_dash_o_takes_it_away() {
    let place = Place::new();
    let daemon = "setsid sh -c 'echo $$ > pid; exec sleep 1000' < /dev/null > /dev/null 2>&1 & \
                  while [ ! -s pid ]; do sleep 0.02; done";
    for (option, after) in [("-x", 75), ("-o", 0), ("--leave-children", 0)] {
        assert_eq!(place.run(["run", option, "a", "--", "sh", "-c", daemon]).code, 0);
        let pid = number(&place.read("pid"));
        assert!(is_alive(pid), "{option}: a daemon that left the group is nobody's business");
        assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, after, "{option}");
        kill(pid, Signal::SIGKILL);
        until_true("it is gone", || !is_alive(pid));
        assert_eq!(place.run(["run", "a", "-w", "120", "--", "true"]).code, 0, "{option}");
        std::fs::remove_file(place.path("pid")).unwrap();
    }
}

#[test]
fn rule_3_dash_capital_f_becomes_the_command_and_the_lock_lives_with_it() {
    let place = Place::new();
    // stdin is /dev/null
    let mut run =
        Reaped::spawn(&mut place.lk(["run", "-F", "a", "--", "sh", "-c", "echo $$ > pid; read x"]));
    assert_eq!(number(&place.read("pid")), run.pid());
    run.wait();
    let run = Reaped::spawn(&mut place.lk(["run", "-F", "a", "--", "sleep", "1000"]));
    until_true("it is the command", || {
        std::fs::read_to_string(format!("/proc/{}/comm", run.pid()))
            .is_ok_and(|c| c.trim() == "sleep")
    });
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 75);
    run.signal(Signal::SIGKILL);
    drop(run);
    assert_eq!(place.run(["run", "a", "-w", "120", "--", "true"]).code, 0);
}

/// Where the command's processes are told from others by their group, and where by their descent.
const RULE_5: [&[&str]; 3] = [&["-o"], &["--foreground"], &["-o", "--foreground"]];

#[test]
fn rule_5_members_that_stay_are_asked_to_end_and_then_ended() {
    let script = "sh -c 'trap \"echo asked > polite; exit\" TERM; echo $$ > polite.pid; while :; \
                  do sleep 0.02; done' & sh -c 'trap \"\" TERM; echo $$ > stubborn.pid; \
                  exec sleep 1000' & while [ ! -s polite.pid ] || [ ! -s stubborn.pid ]; \
                  do sleep 0.02; done; exit 3";
    for options in [&[][..]].into_iter().chain(RULE_5) {
        let place = Place::new();
        let options =
            [&["run", "a", "--kill-after", "500ms", "--report", "report"], options].concat();
        let ran = place.run([&options[..], &["--", "sh", "-c", script]].concat());
        assert_eq!(ran.code, 3, "{ran:?}");
        assert_eq!(
            std::fs::read_to_string(place.path("polite")).unwrap(),
            "asked\n",
            "{options:?}"
        );
        assert!(
            !is_alive(number(&place.read("polite.pid")))
                && !is_alive(number(&place.read("stubborn.pid"))),
            "{options:?}"
        );
        let report = json(&place.read("report"));
        assert_eq!(
            (report["outcome"].as_str(), report["release"].as_str()),
            (Some("ran"), Some("clean"))
        );
        assert!(report["held_ms"].as_u64() >= Some(500), "{report}");
    }
}

#[test]
fn rule_5_members_that_are_about_to_end_may_finish() {
    for options in [&[][..]].into_iter().chain(RULE_5) {
        let finishes = || {
            let place = Place::new();
            let run = [
                &["run", "a"],
                options,
                &["--", "sh", "-c", "(sleep 0.02; echo whole > written) & exit 0"],
            ]
            .concat();
            assert_eq!(place.run(run).code, 0);
            std::fs::read_to_string(place.path("written")).is_ok_and(|written| written == "whole\n")
        };
        // On a busy machine even that may take longer than they are given.
        assert!((0..3).any(|_| finishes()), "{options:?}");
    }
}

#[test]
fn rule_5_a_daemon_that_left_our_group_is_nobodys_business_with_foreground() {
    let place = Place::new();
    let daemon = "setsid sh -c 'echo $$ > pid; exec sleep 1000' < /dev/null > /dev/null 2>&1 & \
                  while [ ! -s pid ]; do sleep 0.02; done";
    assert_eq!(place.run(["run", "-o", "--foreground", "a", "--", "sh", "-c", daemon]).code, 0);
    let pid = number(&place.read("pid"));
    let alive = is_alive(pid);
    kill(pid, Signal::SIGKILL);
    assert!(alive);
}

#[test]
fn rule_5_whom_the_script_that_became_us_left_in_our_group_is_nobodys_business_with_foreground() {
    let place = Place::new();
    let script = "sleep 1000 > /dev/null 2>&1 & echo $! > pid; exec \"$LK\" run --foreground \
                  --kill-after 100ms a -- sh -c 'sleep 1000 & :'";
    let ran = finish(&mut place.sh(script));
    let pid = number(&place.read("pid"));
    let alive = is_alive(pid);
    kill(pid, Signal::SIGKILL);
    assert_eq!(ran.code, 0, "and whom the command left there is ended: {ran:?}");
    assert!(alive);
}

#[test]
fn rule_5_orphans_in_our_group_are_reaped_while_the_command_runs() {
    let place = Place::new();
    let script = "(sh -c 'echo $$ > orphan' &); while [ ! -e stop ]; do sleep 0.02; done";
    let mut run =
        Reaped::spawn(&mut place.lk(["run", "--foreground", "a", "--", "sh", "-c", script]));
    let orphan = number(&place.read("orphan"));
    until_true("nothing is left of it", || {
        !std::path::Path::new(&format!("/proc/{orphan}")).exists()
    });
    std::fs::write(place.path("stop"), "").unwrap();
    assert_eq!(run.wait(), 0);
}

#[test]
fn rule_5_leave_children_releases_without_them() {
    let place = Place::new();
    let script = "sleep 1000 > /dev/null 2>&1 & echo $! > pid";
    let ran = place.run(["run", "a", "--leave-children", "--", "sh", "-c", script]);
    let sleeper = number(&place.read("pid"));
    let free = place.run(["run", "a", "-n", "--", "true"]).code;
    let alive = is_alive(sleeper);
    kill(sleeper, Signal::SIGKILL);
    assert_eq!((ran.code, free, alive), (0, 0, true));
}

#[test]
fn rule_5_hold_at_least_counts_from_the_grant_and_a_signal_ends_it() {
    let place = Place::new();
    let began = Instant::now();
    let ran = place.run([
        "run",
        "a",
        "--hold-at-least",
        "600ms",
        "--report",
        "report",
        "--",
        "sh",
        "-c",
        "exit 4",
    ]);
    assert_eq!(ran.code, 4);
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    assert!(json(&place.read("report"))["held_ms"].as_u64() >= Some(600));
    let mut run = Reaped::spawn(&mut place.lk([
        "run",
        "a",
        "--hold-at-least",
        "1h",
        "--",
        "sh",
        "-c",
        "echo $$ > pid; exit 4",
    ]));
    let pid = number(&place.read("pid"));
    until_true("the command ended", || !is_alive(pid));
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 75, "the lock is kept");
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 4, "the command's own");
}

#[test]
fn a_child_that_closes_every_descriptor_does_not_free_the_lock() {
    let place = Place::new();
    let script = "for fd in /proc/self/fd/*; do fd=${fd##*/}; [ $fd -gt 2 ] && \
                  eval \"exec $fd>&-\" 2>/dev/null; done; \"$LK\" run b -- true; \
                  touch ready; while [ ! -e stop ]; do sleep 0.02; done";
    let mut run = Reaped::spawn(&mut place.lk(["run", "a", "--", "bash", "-c", script]));
    until_true("it closed them", || place.path("ready").exists());
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 75);
    std::fs::write(place.path("stop"), "").unwrap();
    assert_eq!(run.wait(), 0);
}
