//! A quorum of Redis servers from the command line.

use std::time::Duration;

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use crate::common::{Place, Reaped, held_then_taken_away, json, run, until_true};

#[test]
fn redlock_runs_shows_and_is_examined_from_the_command_line() {
    let clock = ClockShim::new().unwrap();
    let environment = clock.environment();
    let environment: Vec<_> =
        environment.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
    let start = |_| RedisServer::start_in(&[], &environment);
    let mut servers: Vec<RedisServer> = (0..3).map(start).collect();
    let at: Vec<String> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    let patient = "server_timeout=10s&request_timeout=20s";
    let url = format!("redlock://{}?ttl=2s&{patient}", at.join(","));
    let place = Place::new();

    // A member that has just started does not count: that is said, and until when.
    let young = run(&place, &url, &["doctor"]);
    assert_eq!(young.code, 69, "{young:?}");
    let waits = "1m after a client first met it";
    assert!(young.err.contains("counts in") && young.err.contains(waits), "{young:?}");
    // And whoever waits for less is told the reason, not that nobody answers (W1), and names no
    // holder where nobody holds it (R5). A busy machine may need more than one try until they were
    // reached at all.
    until_true("the reason is said", || {
        let waited = run(&place, &url, &["run", "nightly", "-v", "-w", "2s", "--", "true"]);
        assert!(waited.code == 69 && !waited.err.contains("held by"), "{waited:?}");
        waited.err.contains("counts in") && waited.err.contains(&at[0])
    });
    // Without -w it waits for them, and says so.
    let said = place.path("said");
    let mut patient = place.lk(["run", "patient", "-v", "--", "true"]);
    patient.env("LOCKKEEPER_URL", &url).stderr(std::fs::File::create(&said).unwrap());
    let mut patient = Reaped::spawn(&mut patient);
    until_true("it says for what it waits", || {
        let said = std::fs::read_to_string(&said).unwrap();
        said.contains("patient: waiting: ") && said.contains("counts in")
    });
    // A minute goes by.
    clock.step(Clocks::Wall, Duration::from_secs(61)).unwrap();
    assert_eq!(patient.wait(), 0, "{}", place.read("said"));
    assert!(!place.read("said").contains("held by"), "{}", place.read("said"));
    let ran = run(&place, &url, &["run", "nightly", "-w", "120s", "--", "true"]);
    assert_eq!(ran.code, 0, "whoever waits gets it once they count: {ran:?}");

    held_then_taken_away(&place, &url);

    let left = || -> usize {
        let keys = |server: &RedisServer| server.command(&["KEYS", "*lockkeeper/doctor*"]).len();
        servers.iter().map(keys).sum()
    };
    let before = left();
    let examined = run(&place, &url, &["doctor"]);
    assert_eq!(examined.code, 0, "all members are on one host: {examined:?}");
    assert_eq!(run(&place, &url, &["doctor", "--strict"]).code, 1, "that is a warning");
    let limits = "limits    names and labels of 1 KiB, leases from 200ms to 1m\n";
    for says in
        ["EFFICIENCY", "all members are on 127.0.0.1", "only ever grow", "clock_skew", limits]
    {
        assert!(examined.out.contains(says), "{says}: {examined:?}");
    }
    assert!(!examined.out.contains("publish-refused"), "{examined:?}");
    until_true("the probe leaves nothing", || left() == before);
    for (require, code) in [("timed", 64), ("fenced", 0)] {
        let ran = run(&place, &url, &["run", "--require", require, "a", "--", "true"]);
        assert_eq!(ran.code, code, "{require}: {ran:?}");
    }
    let mut reads = place.lk(["acquire", "-s", "both", "--for", "60s", "--ttl", "30s"]);
    let mut reads = Reaped::spawn(reads.env("LOCKKEEPER_URL", &url));
    let both = || json(&run(&place, &url, &["status", "both", "--json"]).out);
    until_true("it is shared", || both()["holders"][0]["mode"] == "shared");
    assert_eq!(run(&place, &url, &["run", "-n", "-s", "both", "--", "true"]).code, 0);
    assert_eq!(run(&place, &url, &["run", "-n", "both", "--", "true"]).code, 75);
    let told = json(&run(&place, &url, &["doctor", "--json"]).out);
    let ids: Vec<_> = told["warnings"].as_array().unwrap().iter().map(|w| &w["id"]).collect();
    assert_eq!(ids, ["one-host"], "readers are no reason for a warning");
    assert_eq!(run(&place, &url, &["release", "--force", "both"]).code, 0);
    assert_eq!(reads.wait(), 79);
    assert_eq!(run(&place, &url, &["run", "-n", "both", "--", "true"]).code, 0);
    let permits = run(&place, &url, &["run", "--permits", "2", "a", "--", "true"]);
    assert!(permits.code == 64 && permits.err.contains("permits"), "{permits:?}");

    servers[0].kill();
    assert_eq!(run(&place, &url, &["run", "a", "--", "true"]).code, 0, "two of three are left");
    servers[1].kill();
    let alone = run(&place, &format!("{url}&connect_timeout=1s"), &["run", "a", "--", "true"]);
    assert!(alone.code == 69 && alone.err.contains("a majority is 2"), "{alone:?}");
}

#[test]
fn b4_a_member_that_wants_a_password_stops_no_command_and_each_names_it_once() {
    let clock = ClockShim::new().unwrap();
    let environment = clock.environment();
    let environment: Vec<_> =
        environment.iter().map(|(name, path)| (*name, path.to_str().unwrap())).collect();
    let start = |_| RedisServer::start_in(&[], &environment);
    let servers: Vec<RedisServer> = (0..3).map(start).collect();
    let at: Vec<String> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    let url = format!("redlock://{}?ttl=2s&server_timeout=10s", at.join(","));
    let place = Place::new();
    assert_eq!(run(&place, &url, &["doctor"]).code, 69, "they are met");
    let mut early = place.lk(["run", "--json", "--url", &url, "a", "--", "true"]);
    early.stderr(std::fs::File::create(place.path("told")).unwrap());
    let mut early = Reaped::spawn(&mut early);
    until_true("it is told", || place.read("told").contains("unreachable"));
    clock.step(Clocks::Wall, Duration::from_secs(61)).unwrap();
    assert_eq!(early.wait(), 0);
    let told = place.read("told");
    let events: Vec<_> = told.lines().map(|line| json(line)["event"].clone()).collect();
    assert!(events.starts_with(&["unreachable".into(), "reachable".into()]), "{told}");
    assert_eq!(run(&place, &url, &["run", "-w", "120s", "a", "--", "true"]).code, 0);

    servers[2].command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let says = format!("the member {} does not count: Redis at {} wants a password", at[2], at[2]);
    let ran = run(&place, &url, &["run", "a", "--", "true"]);
    assert_eq!((ran.code, ran.err.matches(&says).count()), (0, 1), "{ran:?}");
    let quiet = run(&place, &url, &["run", "-q", "a", "--", "true"]);
    assert_eq!((quiet.code, quiet.err.as_str()), (0, ""), "{quiet:?}");
    let status = run(&place, &url, &["status", "a"]);
    assert_eq!((status.code, status.out.matches(&says).count()), (0, 1), "{status:?}");
    let told = run(&place, &url, &["status", "a", "--json"]);
    let event = json(&told.err);
    assert_eq!((&event["event"], &event["id"]), (&"warning".into(), &"member-refuses".into()));
    assert_eq!(run(&place, &url, &["ls"]).code, 0);
    let examined = run(&place, &url, &["doctor"]);
    assert_eq!((examined.code, examined.out.matches(&says).count()), (0, 1), "{examined:?}");
    assert_eq!(examined.out.matches("member-").count(), 1, "{examined:?}");

    // Another one, and there is no majority: that is one line, with what both say said once.
    servers[1].command(&["CONFIG", "SET", "requirepass", "s3cret"]);
    let refused = run(&place, &url, &["run", "-n", "a", "--", "true"]);
    assert_eq!((refused.code, refused.err.lines().count()), (69, 1), "{refused:?}");
    assert_eq!(refused.err.matches("wants a password").count(), 1, "{refused:?}");
    assert!(refused.err.contains(&at[1]) && refused.err.contains(&at[2]), "{refused:?}");
}

#[test]
fn a_quorum_url_that_cannot_be_right_is_one_line_that_says_what_to_write() {
    let place = Place::new();
    for (url, says) in [
        ("redlock://a,b", "name 3, 5, 7 or 9 independent servers, as in redlock://a,b,c"),
        ("redlock://a,b,c,d", "survives no more failures than one of 3"),
        ("redlock://a,b,a", "named twice"),
        ("redlock://a,b,c?max_tll=2s", "did you mean max_ttl?"),
    ] {
        let refused = run(&place, url, &["run", "-n", "x", "--", "true"]);
        assert_eq!(refused.code, 64, "{url}: {refused:?}");
        assert!(refused.err.contains(says) && refused.err.lines().count() == 1, "{refused:?}");
    }
}
