//! The numbered rules of `run`, each by its number, where no terminal is needed.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Place, Reaped, finish, group, is_alive, json, kill, number, until_true};
use nix::sys::signal::Signal;

/// The signals in a mask of /proc/PID/status.
fn mask(pid: i32, which: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|l| l.strip_prefix(which)).unwrap();
    u64::from_str_radix(line.trim_start_matches(':').trim(), 16).unwrap()
}

fn has(mask: u64, signal: Signal) -> bool {
    mask & (1 << (signal as u64 - 1)) != 0
}

fn until_it_waits(waiting: &Reaped) {
    until_true("it waits", || {
        common::state(waiting.pid()) == Some('S')
            && has(mask(waiting.pid(), "SigBlk"), Signal::SIGTERM)
    });
}

#[test]
fn rule_1_a_signal_ends_the_wait_at_once_and_leaves_the_line() {
    let place = Place::new();
    let holder = place.hold("a");
    let mut first = Reaped::spawn(&mut place.lk(["run", "a", "--", "touch", "first"]));
    until_it_waits(&first);
    let mut second = Reaped::spawn(&mut place.lk(["run", "a", "--", "touch", "second"]));
    until_it_waits(&second);
    let began = Instant::now();
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), 143);
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    holder.end();
    assert_eq!(second.wait(), 0, "who stood behind it got the lock");
    assert!(!place.path("first").exists() && place.path("second").exists());
}

#[test]
fn rule_1_what_was_ignored_when_we_started_stays_ignored_by_us_and_by_the_command() {
    let place = Place::new();
    let holder = place.hold("a");
    let script = "trap '' INT TERM HUP QUIT PIPE CHLD; exec \"$LK\" run a -- sh -c 'grep SigIgn \
                  /proc/$$/status > ignored'";
    let mut waiting = Reaped::spawn(&mut place.sh(script));
    until_true("it waits", || {
        common::state(waiting.pid()) == Some('S')
            && has(mask(waiting.pid(), "SigBlk"), Signal::SIGTTOU)
    });
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        waiting.signal(signal);
    }
    holder.end();
    assert_eq!(waiting.wait(), 0);
    let ignored = place.read("ignored");
    let ignored = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    for signal in
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGPIPE]
    {
        assert!(has(ignored, signal), "{signal} in {ignored:x}");
    }
}

#[test]
fn the_command_finds_signals_as_we_found_them() {
    let place = Place::new();
    let masks = |command: &mut std::process::Command| {
        let ran = finish(command);
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out
    };
    let show = "grep -E '^Sig(Blk|Ign|Cgt)' /proc/self/status";
    let (direct, under) = (
        masks(&mut place.sh(show)),
        masks(place.lk(["run", "a", "--", "sh", "-c", show]).env("X", "")),
    );
    assert_eq!(direct, under);
    assert_eq!(direct, masks(&mut place.lk(["run", "-F", "a", "--", "sh", "-c", show])));
}

#[test]
fn rule_2_the_command_has_its_own_group_and_gets_what_we_get() {
    let place = Place::new();
    let script = "for s in INT TERM HUP QUIT USR1 USR2 CONT WINCH; do trap \"echo $s >> got\" $s; \
                  done; echo $$ > pid; \
                  while [ ! -e stop ]; do sleep 0.02; done; exit 9";
    let mut run = Reaped::spawn(&mut place.lk(["run", "a", "--", "sh", "-c", script]));
    let pid = number(&place.read("pid"));
    assert_eq!(group(pid), pid);
    let mut expected = String::new();
    for signal in ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2", "CONT", "WINCH"] {
        run.signal(format!("SIG{signal}").parse().unwrap());
        expected += signal;
        expected += "\n";
        until_true(signal, || {
            std::fs::read_to_string(place.path("got")).is_ok_and(|got| got == expected)
        });
    }
    std::fs::write(place.path("stop"), "").unwrap();
    assert_eq!(run.wait(), 9);
}

#[test]
fn rule_2_grandchildren_get_it_too() {
    let place = Place::new();
    // What killed only /bin/sh left its child at work without the lock.
    let mut run = Reaped::spawn(&mut place.lk([
        "run",
        "a",
        "--",
        "sh",
        "-c",
        "sleep 1000 & echo $! > pid; wait; wait",
    ]));
    let sleeper = number(&place.read("pid"));
    run.signal(Signal::SIGTERM);
    assert_eq!(run.wait(), 143);
    assert!(!is_alive(sleeper));
}

#[test]
fn rule_2_with_foreground_it_stays_in_our_group() {
    let place = Place::new();
    let script = "trap 'exit 5' USR1; echo $$ > pid; while :; do sleep 0.02; done";
    let mut run =
        Reaped::spawn(&mut place.lk(["run", "--foreground", "a", "--", "sh", "-c", script]));
    let pid = number(&place.read("pid"));
    assert_eq!(group(pid), group(run.pid()));
    run.signal(Signal::SIGUSR1);
    assert_eq!(run.wait(), 5);
}

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
    assert_eq!(place.run(["run", "a", "-w", "20", "--", "true"]).code, 0, "and now it does not");
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
        assert_eq!(place.run(["run", "a", "-w", "20", "--", "true"]).code, 0, "{option}");
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
    assert_eq!(place.run(["run", "a", "-w", "20", "--", "true"]).code, 0);
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
fn rule_6_stdin_stdout_and_stderr_are_the_commands() {
    let place = Place::new();
    let mut run = place.lk(["run", "a", "--", "sh", "-c", "cat; echo err >&2"]);
    let mut run =
        Reaped::spawn(run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    run.0.stdin.take().unwrap().write_all(b"through\0and through").unwrap();
    let ran = run.output();
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (0, "through\0and through", "err\n")
    );
}

#[test]
fn rule_6_a_closed_stdin_stays_closed_and_nothing_else_is_open_but_the_lock() {
    let place = Place::new();
    let open = |script: &str| -> std::collections::BTreeSet<i32> {
        let ran = finish(&mut place.sh(script));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out.lines().map(number).collect()
    };
    // Whoever runs the tests may have descriptors of their own open, and `ls` opens one more.
    let without = open("exec ls /proc/self/fd 0<&-");
    let with = open("exec \"$LK\" run a -- ls /proc/self/fd 0<&-");
    let more: Vec<_> = with.difference(&without).collect();
    assert!(without.is_subset(&with) && more.len() == 1 && *more[0] >= 100, "{without:?} {with:?}");
    assert_eq!(open("exec \"$LK\" run -o a -- ls /proc/self/fd 0<&-"), without);
    let ran = finish(&mut place.sh("exec \"$LK\" run a -- sh -c 'test ! -e /proc/$$/fd/0' 0<&-"));
    assert_eq!(ran.code, 0, "{ran:?}");
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

#[test]
fn rule_7_the_command_finds_its_lock_in_its_environment() {
    let place = Place::new();
    let ran = place.run(["run", "a", "--report", "report", "--", "env"]);
    let find = |key: &str| {
        ran.out.lines().find_map(|l| l.strip_prefix(&format!("{key}="))).map(str::to_owned)
    };
    assert_eq!(find("LOCKKEEPER_NAME").as_deref(), Some("a"));
    assert_eq!(find("LOCKKEEPER_ENGINE").as_deref(), Some("file"));
    assert_eq!(
        find("LOCKKEEPER_TOKEN"),
        json(&place.read("report"))["token"].as_str().map(str::to_owned)
    );
    assert_eq!(find("LOCKKEEPER_OWNER").map(|o| o.len()), Some(32));
    assert_eq!(find("LOCKKEEPER_URL"), None);
    let stack = json(&find("LOCKKEEPER_STACK").unwrap());
    for key in ["engine", "name", "mode", "token", "pid", "start"] {
        assert!(!stack[0][key].is_null(), "{key}: {stack}");
    }
}

#[test]
fn rule_7_the_inner_locks_values_win() {
    let place = Place::new();
    let show = "echo \"$LOCKKEEPER_NAME $LOCKKEEPER_TOKEN\"; echo \"$LOCKKEEPER_STACK\"";
    let ran = finish(&mut place.lk([
        "run",
        "outer",
        "--",
        common::PROGRAM,
        "run",
        "inner",
        "--",
        "sh",
        "-c",
        show,
    ]));
    let mut lines = ran.out.lines();
    let (name, token) = lines.next().and_then(|l| l.split_once(' ')).unwrap();
    let stack = json(lines.next().unwrap());
    let names: Vec<_> =
        stack.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!((name, names), ("inner", vec!["outer", "inner"]));
    assert_eq!(stack[1]["token"].as_str(), Some(token));
}

#[test]
fn rule_7_a_url_from_the_option_is_handed_on_and_an_exported_one_is_left_alone() {
    let place = Place::new();
    let url = format!("file://{}", place.text("other"));
    let show = ["--", "sh", "-c", "echo \"$LOCKKEEPER_URL\""];
    let ran = finish(&mut place.lk([&["run", "a", "--url", &url][..], &show].concat()));
    assert_eq!(ran.out.trim(), url);
    let ran = finish(place.lk([&["run", "a"][..], &show].concat()).env("LOCKKEEPER_URL", &url));
    assert_eq!(ran.out.trim(), url);
}

#[test]
fn rule_8_without_a_terminal_a_short_wait_is_silent_and_a_long_one_says_two_lines() {
    let place = Place::new();
    assert_eq!(place.run(["run", "a", "--", "true"]).err, "");
    let said = || std::fs::read_to_string(place.path("said")).unwrap();
    // What is said by one that waits until `over` returns, and how long it was there.
    let wait_for = |options: &[&str], over: &dyn Fn()| {
        let holder = place.hold_with("a", &["--label", "nightly"]);
        let mut lk = place.lk([&["run", "a"], options, &["--", "true"]].concat());
        let began = Instant::now();
        let mut waiting =
            Reaped::spawn(lk.stderr(std::fs::File::create(place.path("said")).unwrap()));
        until_it_waits(&waiting);
        over();
        holder.end();
        assert_eq!(waiting.wait(), 0);
        (said(), began.elapsed())
    };
    let pause = |ms: u64| move || std::thread::sleep(Duration::from_millis(ms));
    // On a busy machine a wait may become a long one.
    let short = (0..5)
        .map(|_| wait_for(&[], &pause(200)))
        .find(|(_, took)| *took < Duration::from_millis(900));
    assert!(short.as_ref().is_none_or(|(said, _)| said.is_empty()), "{short:?}");
    let (said, took) =
        wait_for(&[], &|| until_true("it says that it waits", || said().ends_with('\n')));
    assert!(took >= Duration::from_secs(1) && took < Duration::from_secs(10), "{took:?}: {said}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].contains("waiting for a: held by ")
            && lines[0].contains("nightly")
            && lines[0].contains("(pid "),
        "{said}"
    );
    let after: f64 = lines[1]
        .split_once("a: granted after ")
        .and_then(|(_, text)| text.split('s').next()?.parse().ok())
        .unwrap();
    assert!((1.0..=took.as_secs_f64()).contains(&after), "{said}");
    assert_eq!(wait_for(&["-q"], &pause(1_300)).0, "");
    let (said, _) = wait_for(&["-v"], &|| ());
    assert!(
        said.contains("engine file://")
            && said.contains("waiting for a")
            && said.contains("granted after"),
        "{said}"
    );
}

#[test]
fn rule_8_not_obtained_is_one_line_that_says_who_holds_it() {
    let place = Place::new();
    let holder = place.hold_with("a", &["--label", "nightly"]);
    for options in [&["-n"][..], &["-w", "300ms"]] {
        let ran = place.run([&["run", "a"], options, &["--", "true"]].concat());
        assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
        assert!(ran.err.contains(&format!("(pid {}, nightly)", holder.pid())), "{ran:?}");
        assert_eq!(place.run([&["-q", "run", "a"], options, &["--", "true"]].concat()).err, "");
    }
}

#[test]
fn rule_9_the_wait_counts_from_the_start() {
    let place = Place::new();
    let _holder = place.hold("a");
    for (patience, at_least) in [("0", 0), ("300ms", 300), ("0.5", 500)] {
        let began = Instant::now();
        assert_eq!(place.run(["run", "a", "-w", patience, "--", "true"]).code, 75);
        let took = began.elapsed();
        assert!(
            took >= Duration::from_millis(at_least)
                && took < Duration::from_millis(at_least + 2_000),
            "{patience}: {took:?}"
        );
    }
}

#[test]
fn rule_10_arguments_are_never_recorded() {
    let place = Place::new();
    let mut lk = place.lk([
        "run",
        "a",
        "--label",
        "backup",
        "--",
        "sh",
        "-c",
        "echo held; read x",
        "--password=sesame",
    ]);
    let mut run = Reaped::spawn(lk.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(run.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ran = place.run(["run", "a", "-n", "--json", "--report", "report", "--", "true"]);
    assert_eq!(ran.code, 75);
    let holder = &json(&place.read("report"))["holder"];
    assert_eq!(holder["pid"].as_i64(), Some(i64::from(run.pid())));
    assert_eq!(
        (holder["program"].as_str(), holder["label"].as_str(), holder["mode"].as_str()),
        (Some("sh"), Some("backup"), Some("exclusive"))
    );
    assert!(
        holder["host"].is_string() && holder["since"].is_string() && holder["token"].is_string(),
        "{holder}"
    );
    let mut dirs = vec![place.path("locks")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                dirs.push(entry);
                continue;
            }
            let mut bytes = Vec::new();
            std::fs::File::open(&entry).unwrap().read_to_end(&mut bytes).unwrap();
            assert!(!bytes.windows(6).any(|w| w == b"sesame"), "{entry:?}");
        }
    }
    drop(run.0.stdin.take());
    run.wait();
}

#[test]
fn a_report_to_a_descriptor_is_written_there_and_takes_nothing_away() {
    let place = Place::new();
    // The report comes after what the command wrote, in the same file.
    for (how, to) in [
        ("> out", "/dev/stdout"),
        ("2> out", "/dev/stderr"),
        ("7> out", "/dev/fd/7"),
        ("> out", "link"),
        ("| cat > out", "/dev/stdout"),
    ] {
        _ = std::os::unix::fs::symlink("/dev/stdout", place.path("link"));
        let fd = if how.starts_with(['2', '7']) { &how[..1] } else { "1" };
        let script = format!(
            "{{ echo before >&{fd}; \"$LK\" run a --report {to} -- sh -c 'echo hello >&{fd}'; \
             echo after >&{fd}; }} {how}"
        );
        let ran = finish(&mut place.sh(&script));
        assert_eq!(ran.code, 0, "{ran:?}");
        let out = place.read("out");
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(
            (lines.len(), lines[0], lines[1], lines[3]),
            (4, "before", "hello", "after"),
            "{to} {how}: {out}"
        );
        assert_eq!(json(lines[2])["outcome"], "ran");
    }
    for closed in ["/dev/stdout >&-", "/dev/fd/9"] {
        let ran = finish(&mut place.sh(&format!("\"$LK\" run a --report {closed} -- touch ran")));
        assert!(
            ran.code == 64 && ran.err.contains("is closed") && !place.path("ran").exists(),
            "{ran:?}"
        );
    }
}

#[test]
fn eight_shells_and_fifty_increments_each_make_four_hundred() {
    let place = Place::new();
    std::fs::write(place.path("counter"), "0\n").unwrap();
    let script = "i=0; while [ $i -lt 50 ]; do \"$LK\" run counter -- sh -c 'read n < counter; \
                  echo $((n + 1)) > counter'; echo $? >> codes.$0; i=$((i + 1)); done";
    let mut shells: Vec<_> = (0..8)
        .map(|n| {
            let mut sh = place.program("sh");
            sh.args(["-c", script, &n.to_string()]);
            Reaped::spawn(&mut sh)
        })
        .collect();
    for shell in &mut shells {
        assert_eq!(shell.wait_within(common::LONG_PATIENCE), 0);
    }
    for n in 0..8 {
        assert_eq!(
            std::fs::read_to_string(place.path(&format!("codes.{n}"))).unwrap(),
            "0\n".repeat(50)
        );
    }
    assert_eq!(std::fs::read_to_string(place.path("counter")).unwrap(), "400\n");
}
