//! What `run` gives to its command and reports of it, and the code it ends with.

use lockkeeper_testkit::redis::server::RedisServer;

use crate::common::lease::Engine;
use crate::common::{Place, json};

/// What one line shows, the same on every engine: what, arguments after `run a`, code.
const ROWS: [(&str, &[&str], i32); 18] = [
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
    ("held by an ancestor", &["--", "sh", "-c", "\"$LK\" run a -n -- true"], 75),
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
            has(&format!("LOCKKEEPER_URL={}", engine.patient())),
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
