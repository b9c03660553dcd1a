//! `run`, `acquire` and `elect` on engines with leases.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::{Duration, Instant};

use common::lease::{Engine, guardian, until_gone};
use common::{Place, Reaped, finish, json, until_true};
use lockkeeper_lab::engines::redis::server::RedisServer;
use lockkeeper_lab::proxy::{Proxy, Way};
use nix::sys::signal::Signal;

/// What one line shows, the same on every engine: what, arguments after `run a`, code.
const ROWS: [(&str, &[&str], i32); 17] = [
    ("the command's own", &["--", "true"], 0),
    ("the command's own", &["-s", "--", "sh", "-c", "exit 7"], 7),
    ("128+N when signal N killed it", &["--", "sh", "-c", "kill -KILL $$"], 137),
    ("not found", &["--", "no-such-program-anywhere"], 127),
    ("not executable", &["--", "/etc/passwd"], 126),
    ("--hold-at-most was over", &["--hold-at-most", "100ms", "--", "sleep", "100"], 124),
    ("nobody else has it", &["-n", "--", "true"], 0),
    ("a lease of its own length", &["--ttl", "5s", "--no-renew", "--", "true"], 0),
    ("the engine's hosts see it", &["--require", "hosts,fenced", "--", "true"], 0),
    ("-F needs a descriptor", &["-F", "--", "true"], 64),
    ("-o needs a descriptor", &["-o", "--", "true"], 64),
    ("a third of the lease and more", &["--kill-after", "11s", "--", "true"], 64),
    ("no lease lasts so long", &["--ttl", "25h", "--", "true"], 64),
    ("no lease is so short", &["--ttl", "199ms", "--", "true"], 64),
    ("would deadlock", &["--", "sh", "-c", "\"$LK\" run a -- true"], 64),
    ("readers share", &["-s", "--", "sh", "-c", "\"$LK\" run a -s -- true"], 0),
    ("another name inside", &["--", "sh", "-c", "\"$LK\" run b -- sh -c 'exit 9'"], 9),
];

#[test]
fn every_row_of_the_table_is_the_same_with_a_lease() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        for (what, options, code) in ROWS {
            let ran = engine.run(&place, &[&["run", "a"], options].concat());
            assert_eq!(ran.code, code, "{}: {what}: {ran:?}", engine.name());
            let after = engine.run(&place, &["run", "a", "-n", "--", "true"]);
            assert_eq!(
                after.code,
                0,
                "{}: after {what:?} the lock is free: {after:?}",
                engine.name()
            );
        }
        let why = engine.run(&place, &["run", "a", "-F", "--", "true"]);
        assert!(why.err.contains("descriptor") && why.err.contains("leave -F out"), "{why:?}");
    }
}

#[test]
fn not_obtained_says_who_has_it() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let mut holder = engine.start(
            &place,
            &["run", "a", "--label", "import", "--", "sh", "-c", "echo > runs; exec sleep 1000"],
        );
        place.read("runs");
        for (options, code) in [
            (&["-n"][..], 75),
            (&["-w", "1500ms"], 75),
            (&["-n", "-E", "3"], 3),
            (&["-w", "0"], 75),
        ] {
            let ran = engine.run(
                &place,
                &[&["run", "a", "--report", "report"], options, &["--", "true"]].concat(),
            );
            assert_eq!(ran.code, code, "{}: {options:?}: {ran:?}", engine.name());
            assert!(
                ran.err.contains(&format!("pid {}", holder.pid())) && ran.err.contains("import"),
                "{}: {ran:?}",
                engine.name()
            );
            let report = json(place.read("report").trim_end());
            assert_eq!(report["holder"]["pid"].as_i64(), Some(i64::from(holder.pid())), "{report}");
            assert_eq!(report["holder"]["program"].as_str(), Some("sh"), "{report}");
        }
        let status = json(engine.run(&place, &["status", "a", "--json"]).out.trim_end());
        assert!(
            status["waiters"].as_array().unwrap().is_empty(),
            "who gave up stands in no line: {status}"
        );
        holder.signal(Signal::SIGTERM);
        assert_eq!(holder.wait(), 143);
    }
}

#[test]
fn the_command_finds_its_lock_in_its_environment_and_the_report_agrees() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let args = [
            "run",
            "a",
            "--report",
            "report",
            "--json",
            "--",
            "sh",
            "-c",
            "env | grep ^LOCKKEEPER > environment; cat >&2 /dev/null",
        ];
        let ran = engine.run(&place, &args);
        assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{ran:?}");
        let environment = place.read("environment");
        let report = json(place.read("report").trim_end());
        let token = report["token"].as_str().unwrap();
        let has = |line: &str| environment.lines().any(|l| l == line);
        assert!(
            has("LOCKKEEPER_NAME=a") && has(&format!("LOCKKEEPER_TOKEN={token}")),
            "{environment} {report}"
        );
        let scheme = engine.url().split(':').next().unwrap().to_owned();
        assert!(has(&format!("LOCKKEEPER_ENGINE={scheme}")), "{environment}");
        assert!(
            has(&format!("LOCKKEEPER_URL={}", engine.url())),
            "what was exported passes untouched: {environment}"
        );
        assert!(
            environment.contains("LOCKKEEPER_OWNER=") && environment.contains("LOCKKEEPER_STACK=["),
            "{environment}"
        );
        assert_eq!(
            (report["outcome"].as_str(), report["release"].as_str()),
            (Some("ran"), Some("clean")),
            "{report}"
        );
        let lines: Vec<_> = ran.err.lines().map(json).collect();
        let events: Vec<_> = lines.iter().map(|l| l["event"].as_str().unwrap()).collect();
        assert_eq!(events, ["granted", "done"], "{ran:?}");
        assert_eq!(lines[0]["token"].as_str(), Some(token));
    }
}

#[test]
fn a_password_given_by_option_reaches_the_engine_and_not_the_command() {
    let (server, place) = (RedisServer::start_with(&["--requirepass", "sesame"]), Place::new());
    let url = format!("redis://:sesame@127.0.0.1:{}", server.port());
    let ran = place.run(["run", "a", "-v", "--url", &url, "--", "env"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains(&format!("LOCKKEEPER_URL=redis://127.0.0.1:{}\n", server.port())),
        "{ran:?}"
    );
    assert!(!format!("{}{}", ran.out, ran.err).contains("sesame"), "{ran:?}");
    let refused = place.run([
        "run",
        "a",
        "--url",
        &url.replace("sesame", "swordfish"),
        "--report",
        "report",
        "--",
        "true",
    ]);
    assert_eq!(refused.code, 69, "{refused:?}");
    assert!(!refused.err.contains("swordfish"), "{refused:?}");
    assert_eq!(json(place.read("report").trim_end())["outcome"].as_str(), Some("refused"));
}

#[test]
fn an_engine_that_cannot_be_reached_is_tried_once_or_as_long_as_is_waited_for() {
    let place = Place::new();
    let port = lockkeeper_lab::servers::free_port();
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
        let (ran, took, report) = run(&["-n", "--", "true"]);
        assert!(ran.code == 69 && took < Duration::from_secs(8), "{url}: {took:?} {ran:?}");
        assert_eq!(report["outcome"].as_str(), Some("unreachable"), "{report}");
        let (ran, took, _) = run(&["-w", "2", "--", "true"]);
        assert!(
            ran.code == 69 && took > Duration::from_secs(1) && took < Duration::from_secs(8),
            "{url}: {took:?} {ran:?}"
        );
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
    let began = Instant::now();
    let ran = engine.run(&place, &["run", "a", "-w", "700ms", "--", "true"]);
    assert_eq!(ran.code, 69, "{ran:?}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
    let mut waiting = engine.start(&place, &["run", "a", "--", "true"]);
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    waiting.signal(Signal::SIGINT);
    assert_eq!(waiting.wait(), 130, "a signal ends the wait for an engine too");
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    engine.go_on();
}

#[test]
fn a_signal_ends_the_wait_and_the_place_in_line_goes() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let mut holder =
            engine.start(&place, &["run", "a", "--", "sh", "-c", "echo > runs; exec sleep 1000"]);
        place.read("runs");
        let waiters = || {
            json(engine.run(&place, &["status", "a", "--json"]).out.trim_end())["waiters"]
                .as_array()
                .unwrap()
                .len()
        };
        for (signal, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143), (Signal::SIGHUP, 129)]
        {
            let mut waiting = engine.start(&place, &["run", "a", "--", "true"]);
            until_true("it stands in line", || waiters() == 1);
            let keeper = guardian(waiting.pid());
            waiting.signal(signal);
            assert_eq!(waiting.wait(), code);
            until_gone(keeper);
            assert_eq!(waiters(), 0);
        }
        holder.signal(Signal::SIGTERM);
        holder.wait();
    }
}

#[test]
fn permits_are_so_many_at_a_time() {
    let (engine, place) = (Engine::redis(), Place::new());
    let script = "echo > $0; exec sleep 1000";
    let one =
        engine.start(&place, &["run", "gpu", "--permits", "1/3", "--", "sh", "-c", script, "one"]);
    let two =
        engine.start(&place, &["run", "gpu", "--permits", "2/3", "--", "sh", "-c", script, "two"]);
    place.read("one");
    place.read("two");
    assert_eq!(
        engine.run(&place, &["run", "gpu", "-n", "--permits", "1/3", "--", "true"]).code,
        75
    );
    let other = engine.run(&place, &["run", "gpu", "-n", "--permits", "1/4", "--", "true"]);
    assert_eq!(other.code, 64, "{other:?}");
    for mut front in [one, two] {
        front.signal(Signal::SIGTERM);
        assert_eq!(front.wait(), 143);
    }
    assert_eq!(
        engine
            .run(
                &place,
                &[
                    "run",
                    "gpu",
                    "-n",
                    "--permits",
                    "3/3",
                    "--",
                    "sh",
                    "-c",
                    "test -z \"$LOCKKEEPER_TOKEN\""
                ]
            )
            .code,
        0
    );
}

#[test]
fn acquire_holds_with_a_lease_and_says_when_it_is_lost() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let acquire = |options: &[&str]| {
            let mut lk = place.lk([&["acquire", "a"], options].concat());
            let mut child = Reaped::spawn(
                lk.env("LOCKKEEPER_URL", engine.url()).stdin(Stdio::piped()).stdout(Stdio::piped()),
            );
            let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
            let granted = json(&lines.next().unwrap().unwrap());
            assert_eq!(
                (granted["event"].as_str(), granted["engine"].is_string()),
                (Some("granted"), true),
                "{granted}"
            );
            (child, lines)
        };
        let (mut child, mut lines) = acquire(&[]);
        assert_eq!(engine.run(&place, &["run", "a", "-n", "-q", "--", "true"]).code, 75);
        drop(child.0.stdin.take());
        let done = json(&lines.next().unwrap().unwrap());
        assert_eq!(
            (done["why"].as_str(), done["release"].as_str()),
            (Some("stdin-closed"), Some("clean")),
            "{done}"
        );
        assert_eq!(child.wait(), 0);

        let (mut child, mut lines) = acquire(&["--for", "200ms"]);
        assert_eq!(json(&lines.next().unwrap().unwrap())["why"].as_str(), Some("time-over"));
        assert_eq!(child.wait(), 0);

        let (mut child, mut lines) = acquire(&["--ttl", "2s"]);
        assert_eq!(engine.run(&place, &["release", "--force", "a"]).code, 0);
        let done = json(&lines.next().unwrap().unwrap());
        assert_eq!((done["outcome"].as_str(), child.wait()), (Some("lost"), 79), "{done}");

        let (child, _) = acquire(&[]);
        child.signal(Signal::SIGKILL);
        let next = engine.run(&place, &["run", "a", "-w", "20", "--", "true"]);
        assert_eq!(next.code, 0, "its guardian gives it back: {next:?}");
    }
}

#[test]
fn elect_leads_shows_its_id_and_stands_again_after_a_loss() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let mut leader = engine.start(
            &place,
            &[
                "elect",
                "boss",
                "--id",
                "host-a",
                "--",
                "sh",
                "-c",
                "echo $LOCKKEEPER_TOKEN >> terms; exec sleep 1000",
            ],
        );
        let first = place.read("terms");
        let story = engine.run(&place, &["status", "boss"]).out;
        assert!(story.contains("as host-a"), "{}: {story}", engine.name());
        assert_eq!(engine.run(&place, &["release", "--force", "boss"]).code, 0);
        until_true("it leads again", || {
            std::fs::read_to_string(place.path("terms")).unwrap().lines().count() == 2
        });
        let terms = std::fs::read_to_string(place.path("terms")).unwrap();
        let tokens: Vec<u64> = terms.lines().map(|l| l.parse().unwrap()).collect();
        assert!(tokens[0] < tokens[1], "{first} {terms}");
        leader.signal(Signal::SIGTERM);
        assert_eq!(leader.wait(), 143);
        assert_eq!(engine.run(&place, &["elect", "boss", "--", "sh", "-c", "exit 6"]).code, 6);
    }
}

#[test]
fn the_commands_own_code_stays_although_the_release_is_not_answered() {
    let (engine, place) = (Engine::redis(), Place::new());
    let script = "echo > runs; while [ ! -e over ]; do sleep 0.01; done; exit 3";
    let front = engine.start(&place, &["run", "a", "--report", "report", "--", "sh", "-c", script]);
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

#[test]
fn a_lock_under_another_goes_with_it() {
    let (engine, place) = (Engine::redis(), Place::new());
    let script = "trap '' TERM; echo > runs; while :; do echo first >> writes; sleep 0.005; done";
    let outer = engine.start(
        &place,
        &[
            "run",
            "a",
            "--ttl",
            "2s",
            "-q",
            "--",
            common::PROGRAM,
            "run",
            "b",
            "-q",
            "--",
            "sh",
            "-c",
            script,
        ],
    );
    place.read("runs");
    let keeper = guardian(outer.pid());
    outer.signal(Signal::SIGKILL);
    let next = engine
        .run(&place, &["run", "a", "-w", "20", "-q", "--", "sh", "-c", "echo next >> writes"]);
    assert_eq!(next.code, 0, "{next:?}");
    until_gone(keeper);
    assert_eq!(engine.run(&place, &["run", "b", "-w", "20", "-q", "--", "true"]).code, 0);
    let writes = std::fs::read_to_string(place.path("writes")).unwrap();
    assert!(
        writes.ends_with("first\nnext\n"),
        "nothing of the first was written after the next began"
    );
}

#[test]
fn a_share_that_could_only_wait_for_its_own_ancestor_is_refused() {
    let (engine, place) = (Engine::redis(), Place::new());
    // A writer stands in line between the share above and the one below.
    let script = "\"$LK\" run a -q -- true & writer=$!; until \"$LK\" status a --json | \
                  grep -q '\"waiters\":\\[{'; do :; done; \
                  \"$LK\" run a -s -- true; code=$?; kill $writer; exit $code";
    // The writer is asked for by the shell, and not by us: it would be refused at once.
    let script = format!(
        "stack=$LOCKKEEPER_STACK; {}",
        script.replace("\"$LK\" run a -q", "env -u LOCKKEEPER_STACK \"$LK\" run a -q")
    );
    let ran = engine.run(&place, &["run", "a", "-s", "--", "sh", "-c", &script]);
    assert_eq!(ran.code, 64, "{ran:?}");
    assert!(ran.err.contains("would deadlock"), "{ran:?}");
}

#[test]
fn a_command_that_waited_for_its_turn_runs_for_longer_than_its_lease() {
    let (engine, place) = (Engine::redis(), Place::new());
    let mut first =
        engine.start(&place, &["run", "a", "--", "sh", "-c", "echo > runs; exec sleep 1000"]);
    place.read("runs");
    let script = "trap 'echo > stopped' TERM; for i in 1 2 3 4 5 6 7 8; do sleep 0.5; done";
    let second = engine.start(
        &place,
        &["run", "a", "--ttl", "3s", "--kill-after", "1s", "--", "sh", "-c", script],
    );
    until_true("it stands in line", || waits(&engine, &place));
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), 143);
    let ran = second.output();
    assert_eq!((ran.code, place.path("stopped").exists()), (0, false), "{ran:?}");
}

#[test]
fn who_waits_goes_on_waiting_when_a_pushed_grant_could_not_be_confirmed() {
    let (server, place) = (RedisServer::start(), Place::new());
    let proxy = Proxy::to(server.port());
    let engine = Engine::Redis(server);
    let mut first =
        engine.start(&place, &["run", "a", "--", "sh", "-c", "echo > runs; exec sleep 1000"]);
    place.read("runs");
    let url = format!("redis://127.0.0.1:{}", proxy.port());
    let second = engine.start(&place, &["run", "a", "--url", &url, "--ttl", "3s", "--", "true"]);
    until_true("it stands in line", || waits(&engine, &place));
    // It hears of the grant, and nobody hears it.
    proxy.hold(Way::Up);
    first.signal(Signal::SIGTERM);
    assert_eq!(first.wait(), 143);
    until_true("the grant is over", || {
        engine.run(&place, &["run", "a", "-n", "-q", "--", "true"]).code == 0
    });
    proxy.heal();
    let ran = second.output();
    assert_eq!(ran.code, 0, "{ran:?}");
}

fn waits(engine: &Engine, place: &Place) -> bool {
    json(engine.run(place, &["status", "a", "--json"]).out.trim_end())["waiters"]
        .as_array()
        .is_some_and(|w| !w.is_empty())
}
