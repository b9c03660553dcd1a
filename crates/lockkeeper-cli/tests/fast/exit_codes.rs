//! The table of exit codes, every row.

use nix::sys::signal::Signal;

use crate::common::{self, Place, Reaped, kill, until, until_true};

/// A row of which the whole line is enough: what, arguments after `run a`, code.
const ROWS: [(&str, &[&str], i32); 21] = [
    ("the command's own", &["--", "true"], 0),
    ("the command's own", &["--", "sh", "-c", "exit 7"], 7),
    ("the command's own, also where it looks like ours", &["--", "sh", "-c", "exit 75"], 75),
    ("128+N when signal N killed it", &["--", "sh", "-c", "kill -TERM $$"], 143),
    ("128+N when signal N killed it", &["--", "sh", "-c", "kill -KILL $$"], 137),
    ("a text goes through the shell", &["-c", "exit 3"], 3),
    ("not found", &["--", "no-such-program-anywhere"], 127),
    ("not found", &["--", "/no/such/program"], 127),
    ("not executable", &["--", "/etc/passwd"], 126),
    ("not executable", &["--", "/etc"], 126),
    ("not found, as -F", &["-F", "--", "/no/such/program"], 127),
    ("not executable, as -F", &["-F", "--", "/etc/passwd"], 126),
    ("the command's own, as -F", &["-F", "--", "sh", "-c", "exit 7"], 7),
    ("--hold-at-most was over", &["--hold-at-most", "100ms", "--", "sleep", "100"], 124),
    (
        "--hold-at-most was over, whatever its own code",
        &["--hold-at-most", "100ms", "-c", "trap 'exit 0' TERM; sleep 100 & wait"],
        124,
    ),
    (
        "--hold-at-most was over, and TERM was not enough",
        &[
            "--hold-at-most",
            "100ms",
            "--kill-after",
            "100ms",
            "-c",
            "trap '' TERM; sleep 100 & wait; wait",
        ],
        124,
    ),
    ("--hold-at-most was not over", &["--hold-at-most", "1h", "--", "sh", "-c", "exit 4"], 4),
    ("an option that does not exist", &["--no-such-option", "--", "true"], 64),
    ("--require not met", &["--require", "hosts", "--", "true"], 64),
    ("an engine that does not exist", &["--url", "gopher://host", "--", "true"], 64),
    ("an engine that nobody else would see", &["--url", "memory:", "--", "true"], 64),
];

#[test]
fn every_row_that_one_line_shows() {
    let place = Place::new();
    for (what, options, code) in ROWS {
        let ran = place.run([&["run", "a"], options].concat());
        assert_eq!(ran.code, code, "{what}: {options:?}: {ran:?}");
        let after = place.run(["run", "a", "-n", "--", "true"]);
        assert_eq!(after.code, 0, "after {what:?} the lock is free: {after:?}");
    }
}

#[test]
fn not_obtained_is_75_and_only_dash_capital_e_changes_that() {
    let place = Place::new();
    let holder = place.hold("a");
    for (options, code) in [
        (&["-n"][..], 75),
        (&["-w", "0"], 75),
        (&["-w", "100ms"], 75),
        (&["-n", "-E", "3"], 3),
        (&["-n", "-E", "0"], 0),
        (&["-n", "-E", "255"], 255),
        (&["-n", "--lost-exit-code", "4"], 75),
        (&["-s", "-n"], 75),
    ] {
        let ran = place.run([&["run", "a"], options, &["--", "touch", "ran"]].concat());
        assert_eq!(ran.code, code, "{options:?}: {ran:?}");
        assert!(!place.path("ran").exists(), "{options:?} ran it");
    }
    assert_eq!(
        place.run(["run", "b", "-n", "-E", "3", "--", "sh", "-c", "exit 75"]).code,
        75,
        "-E changes nothing else"
    );
    holder.end();
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 0);
}

#[test]
fn lost_is_79_and_the_command_was_stopped_whatever_its_own_code() {
    let place = Place::new();
    for (options, code) in [
        (&[][..], 79),
        (&["--on-lost", "kill"], 79),
        (&["--lost-exit-code", "5"], 5),
        (&["-E", "3"], 79),
    ] {
        let script = "trap 'exit 0' TERM; echo $$ > pid; sleep 100 & wait";
        let mut run = Reaped::spawn(
            place.lk([&["run", "a"], options, &["-c", script]].concat()).env("SHELL", "/bin/sh"),
        );
        let command = common::number(&place.read("pid"));
        lose(&place);
        assert_eq!(run.wait(), code, "{options:?}");
        assert!(!common::is_alive(command), "{options:?}");
        std::fs::remove_file(place.path("pid")).unwrap();
    }
}

#[test]
fn lost_with_on_lost_warn_is_the_commands_own() {
    let place = Place::new();
    let script = "echo $$ > pid; read x; exit 6";
    let mut command =
        place.lk(["run", "a", "--on-lost", "warn", "--report", "report", "-c", script]);
    let mut run = Reaped::spawn(
        command.stdin(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()),
    );
    place.read("pid");
    lose(&place);
    let mut err = std::io::BufReader::new(run.0.stderr.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut err, &mut line).unwrap();
    assert!(line.contains("a: lost:") && line.contains("goes on without it"), "{line}");
    drop(run.0.stdin.take());
    assert_eq!(run.wait(), 6);
    let report = common::json(&place.read("report"));
    assert_eq!(
        (report["outcome"].as_str(), report["release"].as_str()),
        (Some("ran"), Some("already-lost"))
    );
}

/// Deletes the one lock file that there is.
fn lose(place: &Place) {
    let mut files = Vec::new();
    let mut dirs = vec![place.path("locks")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { dirs.push(path) } else { files.push(path) }
        }
    }
    assert_eq!(files.len(), 1, "{files:?}");
    std::fs::remove_file(&files[0]).unwrap();
}

#[test]
fn a_signal_while_waiting_is_128_and_its_number() {
    let place = Place::new();
    let holder = place.hold("a");
    for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut waiting =
            Reaped::spawn(&mut place.lk(["run", "a", "--report", "report", "--", "touch", "ran"]));
        until_waiting(&waiting);
        waiting.signal(signal);
        assert_eq!(waiting.wait(), code);
        let report = common::json(&place.read("report"));
        assert_eq!(
            (report["outcome"].as_str(), report["exit"].as_i64()),
            (Some("interrupted"), Some(i64::from(code)))
        );
    }
    holder.end();
    assert!(!place.path("ran").exists());
}

/// Waits until a lockkeeper sleeps with its signals taken over.
fn until_waiting(waiting: &Reaped) {
    until_true("it waits", || {
        let blocked =
            std::fs::read_to_string(format!("/proc/{}/status", waiting.pid())).unwrap_or_default();
        let blocked = blocked
            .lines()
            .find_map(|l| l.strip_prefix("SigBlk:"))
            .map(|s| u64::from_str_radix(s.trim(), 16));
        let taken = blocked
            .and_then(Result::ok)
            .is_some_and(|mask| mask & (1 << (Signal::SIGTERM as u64 - 1)) != 0);
        taken && common::state(waiting.pid()) == Some('S')
    });
}

#[test]
fn our_own_failure_is_125_and_the_lock_is_given_back() {
    let place = Place::new();
    let script = |limit: u32| format!("ulimit -n {limit}; exec \"$LK\" run a -- true");
    // With ever more descriptors to be had, it fails ever later: last of all when the command is
    // started.
    let codes: Vec<_> =
        (4..20).map(|limit| common::finish(&mut place.sh(&script(limit))).code).collect();
    assert!(codes.contains(&125), "{codes:?}");
    assert!(codes.iter().all(|code| [0, 69, 125, 127].contains(code)), "{codes:?}");
    assert_eq!(codes.last(), Some(&0), "{codes:?}");
    assert_eq!(place.run(["run", "a", "-n", "--", "true"]).code, 0);
}

#[test]
fn what_the_engine_refuses_is_69() {
    let place = Place::new();
    std::fs::write(place.path("file"), "").unwrap();
    for (what, dir) in [("a missing parent", "no/such/parent"), ("a file and no directory", "file")]
    {
        let ran = common::finish(
            place.lk(["run", "a", "-n", "--", "true"]).env("LOCKKEEPER_DIR", place.path(dir)),
        );
        assert_eq!(ran.code, 69, "{what}: {ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{what}: {ran:?}");
    }
}

#[test]
fn would_deadlock_is_64() {
    let place = Place::new();
    let nested = |outer: &str, inner: &str| {
        let ran = common::finish(
            &mut place
                .sh(&format!("\"$LK\" run a {outer} -- sh -c '\"$LK\" run a {inner} -- true'")),
        );
        (ran.code, ran.err)
    };
    for (outer, inner) in [("", ""), ("", "-s"), ("-s", ""), ("-F", ""), ("-o", "-w 5")] {
        let (code, err) = nested(outer, inner);
        assert_eq!(code, 64, "{outer:?} {inner:?}: {err}");
        assert!(err.contains("would deadlock"), "{err}");
    }
    assert_eq!(nested("-s", "-s").0, 0);
    let other = common::finish(
        &mut place.sh("\"$LK\" run a -- sh -c 'LOCKKEEPER_DIR=$PWD/other \"$LK\" run a -- true'"),
    );
    assert_eq!(other.code, 0, "another directory is another engine: {other:?}");
    for sub in ["run", "elect"] {
        let script = format!("\"$LK\" {sub} a -- \"$LK\" --json {sub} a -- true");
        let ran = common::finish(&mut place.sh(&script));
        let lines: Vec<_> = ran.err.lines().map(common::json).collect();
        let [said, done] = &lines[..] else { panic!("{sub}: {ran:?}") };
        assert_eq!(
            (&said["error"], &done["event"], &done["exit"], &done["holder"]["mode"]),
            (&"would-deadlock".into(), &"done".into(), &64.into(), &"exclusive".into()),
            "{sub}"
        );
    }
    let case = common::finish(&mut place.sh("\"$LK\" run a -- sh -c '\"$LK\" run A -- true'"));
    assert_eq!(case.code, 0, "another name is another lock: {case:?}");
}

#[test]
fn whoever_does_not_wait_for_what_an_ancestor_holds_is_told_as_by_flock_that_it_is_held() {
    let place = Place::new();
    for (inner, code) in [
        ("run a -n", 75),
        ("run a -w 0", 75),
        ("run a -n -E 1", 1),
        ("run a -s -n", 75),
        ("acquire a -n -E 9", 9),
        ("run s --permits 1/2 -n", 75),
    ] {
        let command = if inner.starts_with("run") { "-- touch ran" } else { "--for 1ms" };
        let script = format!(
            "\"$LK\" run a -- \"$LK\" run s --permits 2/2 -- \"$LK\" --json {inner} {command}"
        );
        let ran = common::finish(&mut place.sh(&script));
        assert_eq!(ran.code, code, "{inner}: {ran:?}");
        let said = ran.err.lines().find(|line| line.contains("\"error\"")).expect("an error");
        let said = common::json(said);
        assert_eq!((&said["error"], &said["exit"]), (&"timed-out".into(), &code.into()), "{inner}");
        assert!(said["message"].as_str().unwrap().contains("an ancestor"), "{inner}: {said}");
        let lines = ran.err.clone() + &ran.out;
        let done = lines.lines().find(|line| line.contains("\"done\"")).expect("how it ended");
        let done = common::json(done);
        assert_eq!(
            (&done["outcome"], &done["exit"]),
            (&"not-obtained".into(), &code.into()),
            "{inner}"
        );
        assert!(done["holder"]["pid"].is_u64() && done["holder"]["mode"].is_string(), "{done}");
    }
    assert!(!place.path("ran").exists(), "nothing ran");
    let script = "\"$LK\" run a -- \"$LK\" run a -n --report report -- true";
    assert_eq!(common::finish(&mut place.sh(script)).code, 75);
    let report = common::json(&place.read("report"));
    assert_eq!((&report["outcome"], &report["exit"]), (&"not-obtained".into(), &75.into()));
}

#[test]
fn would_deadlock_is_seen_in_a_directory_that_the_outer_call_has_made_and_by_another_path() {
    let place = Place::new();
    std::os::unix::fs::symlink(".", place.path("link")).unwrap();
    // Neither directory is there when the outer call looks; the link is there all the time.
    for (outer, inner) in [("$PWD/link/new", "$PWD/link/new"), ("$PWD/link/newer", "$PWD/newer")] {
        let script = format!(
            "LOCKKEEPER_DIR={outer} \"$LK\" run a -- sh -c 'LOCKKEEPER_DIR={inner} exec \"$LK\" \
             run a -w 10 -- true'"
        );
        let ran = common::finish(&mut place.sh(&script));
        assert_eq!(ran.code, 64, "{outer} {inner}: {ran:?}");
        assert!(ran.err.contains("would deadlock"), "{ran:?}");
    }
}

#[test]
fn a_share_inside_a_share_passes_the_writer_that_waits_for_the_outer_one() {
    let place = Place::new();
    let script = "echo held; while [ ! -e go ]; do sleep 0.02; done; \
                  \"$LK\" run -s a -w 120 -- sh -c 'echo inner >> order'";
    let mut outer = Reaped::spawn(&mut place.lk(["run", "-s", "a", "--", "sh", "-c", script]));
    let status = || common::json(place.run(["--json", "status", "a"]).out.trim());
    until_true("the outer one is there", || status()["state"] == "held");
    let mut writer =
        Reaped::spawn(&mut place.lk(["run", "a", "--", "sh", "-c", "echo writer >> order"]));
    until_true("the writer stands in line", || {
        status()["waiters"].as_array().is_some_and(|w| w.len() == 1)
    });
    // Anybody else's share waits behind the writer.
    assert_eq!(place.run(["run", "-s", "a", "-n", "--", "true"]).code, 75);
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!((outer.wait(), writer.wait()), (0, 0));
    assert_eq!(place.read("order"), "inner\nwriter\n");
}

#[test]
fn a_command_that_a_realtime_signal_killed_is_128_and_its_number() {
    let place = Place::new();
    let ran = place.run(["run", "a", "--report", "report", "--", "bash", "-c", "kill -RTMIN+2 $$"]);
    assert_eq!(ran.code, 128 + 36, "{ran:?}");
    let report = common::json(&place.read("report"));
    assert_eq!(
        (report["command_signal"].as_str(), report["command_exit"].as_i64()),
        (Some("SIGRTMIN+2"), None)
    );
}

#[test]
fn an_ancestor_that_is_gone_is_no_deadlock() {
    let place = Place::new();
    // The inner one is started by a process that outlives the outer lockkeeper; its stack names
    // somebody who is no ancestor any more.
    let script = "\"$LK\" run a --leave-children -- sh -c '(while kill -0 $PPID 2>/dev/null; \
                  do sleep 0.01; done; \"$LK\" run a -w 120 -- true; echo $? > code) & true'";
    // $PPID in the subshell is the one of its shell: lockkeeper.
    assert_eq!(common::finish(&mut place.sh(script)).code, 0);
    assert_eq!(place.read("code").trim(), "0");
}

#[test]
fn a_wait_that_ends_with_the_lock_runs_the_command() {
    let place = Place::new();
    let holder = place.hold("a");
    let mut waiting = Reaped::spawn(&mut place.lk([
        "run",
        "a",
        "-w",
        "120",
        "--",
        "sh",
        "-c",
        "echo > ran; exit 5",
    ]));
    until_waiting(&waiting);
    kill(holder.pid(), Signal::SIGTERM);
    assert_eq!(waiting.wait(), 5);
    until("it ran", || place.path("ran").exists().then_some(()));
}

#[test]
fn the_script_reproduces_the_table() {
    let place = Place::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/exit-codes.sh");
    let ran = common::finish(place.program(script).arg(common::PROGRAM));
    assert_eq!(ran.code, 0, "{}\n{}", ran.out, ran.err);
    for code in [0, 7, 143, 75, 3, 79, 5, 124, 64, 69, 125, 126, 127] {
        assert!(
            ran.out.lines().any(|l| l.trim_start().starts_with(&format!("{code} "))),
            "{code}: {}",
            ran.out
        );
    }
}
