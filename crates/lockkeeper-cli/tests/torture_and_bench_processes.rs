//! What `torture` and `bench` start: it ends with them, and no URL stands in an argument list.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::process::{Command, Stdio};

use common::{Place, Reaped, children, finish, is_alive, json, until, until_true};
use nix::sys::signal::Signal;

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    place
}

fn torture(place: &Place, arguments: &[&str]) -> Command {
    let mut command = place.lk(["torture"]);
    command.args(arguments).env("TMPDIR", place.path("tmp"));
    command
}

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
fn a_fault_that_was_asked_for_by_name_and_never_happened_makes_a_torture_too_weak_to_say() {
    let place = place();
    // With this seed the schedule of so short a run has one of the two.
    let line = [
        "file:auto",
        "--faults",
        "stop-client,kill-client",
        "--seconds",
        "3",
        "--clients",
        "2",
        "--seed",
        "3",
    ];
    let ran = finish(&mut torture(&place, &line));
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(
        ran.out.contains("stop-client ")
            && ran.out.contains("too weak to say: kill-client was requested and never happened"),
        "{ran:?}"
    );
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
        .filter(|pid| arguments_of(*pid).contains("__torture-client"))
        .collect();
    assert_eq!(clients.len(), 2);
    clients.iter().for_each(|client| common::kill(*client, Signal::SIGSTOP));
    let begun = std::time::Instant::now();
    until_true("it ends when it is told so again", || {
        run.signal(Signal::SIGINT);
        run.0.try_wait().unwrap().is_some()
    });
    let took = begun.elapsed();
    assert!(took < std::time::Duration::from_secs(15), "it waits for nobody: {took:?}");
    let ran = run.output();
    assert_eq!((ran.code, ran.out.as_str()), (130, ""), "{ran:?}");
    until_true("they are gone", || started.iter().all(|pid| !is_alive(*pid)));
    // Whoever is not done with clearing away after 2 s ends without it.
    let left: Vec<_> = std::fs::read_dir(place.path("tmp"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(left.is_empty() || took > std::time::Duration::from_secs(2), "{left:?} after {took:?}");
}

const SHORT: [&str; 7] = ["--seconds", "2", "--clients", "2", "--faults", "none", "--json"];

fn histories(place: &Place) -> usize {
    let inside = std::fs::read_dir(place.path("tmp"))
        .unwrap()
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap());
    inside
        .filter(|file| file.as_ref().unwrap().file_name().to_string_lossy().starts_with("client-"))
        .count()
}

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
fn a_picture_goes_where_links_lead_and_into_pipes_and_descriptors_as_they_are() {
    let place = place();
    let (link, pipe) = (place.text("link.html"), place.text("pipe"));
    std::os::unix::fs::symlink("real.html", &link).unwrap();
    let ran = finish(torture(&place, &SHORT).args(["--report", &link]));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(place.path("link.html").is_symlink() && place.read("real.html").contains("<svg"));

    nix::unistd::mkfifo(pipe.as_str(), nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
    let (from, to) = (pipe.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || to.0.send(std::fs::read_to_string(from).unwrap()));
    assert_eq!(finish(torture(&place, &SHORT).args(["--report", &pipe])).code, 0);
    assert!(std::os::unix::fs::FileTypeExt::is_fifo(
        &std::fs::symlink_metadata(&pipe).unwrap().file_type()
    ));
    assert!(to.1.recv_timeout(common::PATIENCE).unwrap().contains("<svg"));

    let ran = finish(torture(&place, &SHORT).args(["--report", "/dev/fd/1"]));
    let (verdict, page) = ran.out.split_once('\n').unwrap();
    assert_eq!((ran.code, json(verdict)["verdict"].as_str()), (0, Some("clean")), "{ran:?}");
    assert!(page.contains("<svg"), "the verdict first, then the page");
    assert_eq!(std::fs::read_dir(place.path("tmp")).unwrap().count(), 0);
}

#[test]
fn a_picture_that_cannot_be_written_takes_nothing_of_the_verdict_away() {
    let place = place();
    // Through a link: nothing but the link could be replaced.
    let full = place.text("full.html");
    std::os::unix::fs::symlink("/dev/full", &full).unwrap();
    let ran = finish(torture(&place, &SHORT).args(["--report", &full]));
    assert_eq!((ran.code, json(ran.out.trim())["verdict"].as_str()), (0, Some("clean")), "{ran:?}");
    assert!(
        ran.err.lines().count() == 1
            && ran.err.contains("--report")
            && ran.err.contains("no space left"),
        "{}",
        ran.err
    );
    assert_eq!(histories(&place), 0);
    let ran = finish(&mut torture(
        &place,
        &["--client", "broken:unlink-on-release", "--json", "--report", &full],
    ));
    assert_eq!(
        (ran.code, json(ran.out.trim())["verdict"].as_str()),
        (1, Some("violations")),
        "{ran:?}"
    );
    assert!(histories(&place) > 0, "the histories are kept");
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

#[test]
fn what_is_tortured_was_named_or_is_refused_in_one_line() {
    let place = place();
    let url = format!("file://{}", place.text("locks"));
    let nowhere = "file:///nowhere/at/all";
    let tmp = ("TMPDIR", "/nowhere");
    let chosen = ("LOCKKEEPER_URL", url.as_str());
    for (arguments, env, code, words) in [
        (vec!["--url", &url, "file:auto"], ("X", ""), 64, "leave one out"),
        (vec![], chosen, 64, "LOCKKEEPER_URL"),
        (vec![], ("LOCKKEEPER_URL", ""), 64, "LOCKKEEPER_URL"),
        (vec!["--require", "hosts", "file:auto"], ("X", ""), 64, "--require"),
        (vec!["--require", "hosts", "--url", &url], ("X", ""), 64, "hosts was required"),
        (vec!["--url", &url], ("LOCKKEEPER_REQUIRE", "hosts"), 64, "hosts was required"),
        (vec!["--url", nowhere], ("X", ""), 69, "/nowhere"),
        (vec![nowhere], ("X", ""), 69, "/nowhere"),
        (vec!["gopher://x"], ("X", ""), 64, "gopher"),
        (vec!["memory:"], ("X", ""), 64, "one process"),
        (vec!["file:auto"], tmp, 69, "/nowhere"),
        (vec!["--faults", "earthquake"], ("X", ""), 64, "earthquake"),
        (vec!["--clients", "0"], ("X", ""), 64, "at least one client"),
        (vec!["--report", "/nowhere/at/all.html"], ("X", ""), 64, "--report"),
        (vec!["--client", "broken:plain-del", "file:auto"], ("X", ""), 64, "needs redis:auto"),
        (vec!["--client", "broken:flock-upgrade", "redis:auto"], ("X", ""), 64, "needs file:auto"),
    ] {
        let ran = finish(torture(&place, &arguments).env(env.0, env.1));
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.lines().count()),
            (code, "", 1),
            "{arguments:?} {env:?}: {ran:?}"
        );
        assert!(ran.err.contains(words), "{arguments:?} {env:?}: {}", ran.err);
        let ran = finish(torture(&place, &arguments).env(env.0, env.1).arg("--json"));
        let error = json(ran.err.trim());
        assert_eq!((ran.code, error["exit"].as_i64()), (code, Some(i64::from(code))), "{ran:?}");
        assert!(
            error["error"].is_string() && error["message"].as_str().unwrap().contains(words),
            "{error}"
        );
    }
}

#[test]
fn an_engine_that_was_named_by_option_or_argument_is_the_one_that_is_tortured() {
    for by_option in [true, false] {
        let place = place();
        let url = format!("file://{}", place.text("named"));
        let target = if by_option { vec!["--url", &url] } else { vec![url.as_str()] };
        let ran = finish(
            torture(&place, &["--seconds", "1", "--faults", "none", "--json"])
                .args(target)
                .env("LOCKKEEPER_URL", "redis://x"),
        );
        assert_eq!(
            (ran.code, json(ran.out.trim())["engine"].as_str()),
            (0, Some("file")),
            "{ran:?}"
        );
        assert!(std::fs::read_dir(place.path("named")).unwrap().count() > 0);
    }
}

#[test]
fn no_url_stands_in_the_argument_list_of_a_process_that_we_start() {
    let place = place();
    let url = format!("file://{}", place.text("sesame"));
    for arguments in [
        vec!["torture", "--seconds", "60", "--clients", "2"],
        vec!["bench", "--only", "process-handoff", "--seconds", "20"],
        vec!["demo", "oversell", "--stock", "50000", "--orders", "50000"],
    ] {
        let mut command = place.lk(&arguments);
        // bench takes its engines as arguments, the others by option too; either way it is ours
        // alone to show.
        if arguments[0] == "bench" {
            command.arg(&url)
        } else {
            command.args(["--url", &url])
        };
        let mut run = Reaped::spawn(
            command.env("TMPDIR", place.path("tmp")).stdout(Stdio::null()).stderr(Stdio::null()),
        );
        let started = until("it has started somebody", || {
            let all: Vec<_> = children(run.pid()).into_iter().map(arguments_of).collect();
            // Between fork and exec a child still has our own.
            (!all.is_empty() && all.iter().all(|a| a.contains("__"))).then_some(all)
        });
        assert!(started.iter().all(|a| !a.contains("sesame")), "{started:?}");
        run.signal(Signal::SIGTERM);
        run.wait();
    }
}

fn arguments_of(pid: i32) -> String {
    String::from_utf8_lossy(&std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default())
        .replace('\0', " ")
}

/// The number before a word of the report.
fn number(report: &str, word: &str) -> u64 {
    let before = report.split(word).next().unwrap();
    before
        .split_whitespace()
        .next_back()
        .unwrap()
        .parse()
        .unwrap_or_else(|_| panic!("{word}: {report}"))
}

#[test]
fn clients_hand_on_convert_renew_give_up_and_leave_and_the_report_counts_it_and_says_how_to_replay()
{
    for (engine, renews) in [("file:auto", false), ("redis:auto", true)] {
        let place = place();
        let ran = finish(&mut torture(
            &place,
            &[engine, "--seconds", "5", "--clients", "2", "--faults", "none", "--seed", "5"],
        ));
        assert_eq!(ran.code, 0, "{ran:?}");
        let count = |word| number(&ran.out, word);
        assert!(count("handed on,") > 0 && count("converted,") > 0, "{ran:?}");
        assert_eq!(count("renewals,") > 0, renews, "{ran:?}");
        // Writes that hang until after their turn are refused where somebody had the lock
        // meanwhile.
        assert!(!renews || count(" rejected,") > 0, "{ran:?}");
        for word in ["refused ", "timed out ", "left "] {
            let after: String = ran
                .out
                .split(word)
                .nth(1)
                .unwrap()
                .chars()
                .take_while(char::is_ascii_digit)
                .collect();
            assert!(after.parse::<u64>().unwrap() > 0, "{word}: {ran:?}");
        }
        let again = format!(
            "lockkeeper torture {engine} --seconds 5 --clients 2 --tasks 8 --names 8 --faults none \
             --replay 5"
        );
        assert!(
            ran.out.lines().any(|line| line.trim() == format!("the same schedule: {again}")),
            "{ran:?}"
        );
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
            "60",
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
    let begun = std::time::Instant::now();
    let ran = run.output();
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(30),
        "it waits for nobody: {:?}",
        begun.elapsed()
    );
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
