//! A quorum of Redis servers from the command line.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;

use common::{Place, Ran, Reaped, finish, json, until_true};
use lockkeeper_lab::engines::redis::server::RedisServer;

fn run(place: &Place, url: &str, args: &[&str]) -> Ran {
    finish(place.lk(args).env("LOCKKEEPER_URL", url))
}

#[test]
fn redlock_runs_shows_and_is_examined_from_the_command_line() {
    let mut servers: Vec<RedisServer> = (0..3).map(|_| RedisServer::start()).collect();
    let at: Vec<String> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    let url = format!("redlock://{}?ttl=2s&max_ttl=2s&server_timeout=500ms", at.join(","));
    let place = Place::new();

    // A member that has just started does not count: that is said, and until when.
    let young = run(&place, &url, &["doctor"]);
    assert_eq!(young.code, 69, "{young:?}");
    assert!(young.err.contains("counts in") && young.err.contains("max_ttl=2s"), "{young:?}");
    let ran = run(&place, &url, &["run", "nightly", "-w", "20s", "--", "true"]);
    assert_eq!(ran.code, 0, "whoever waits gets it once they count: {ran:?}");

    let mut holder = place.lk(["acquire", "nightly", "--for", "60s"]);
    let mut holder = Reaped::spawn(holder.env("LOCKKEEPER_URL", &url));
    let status = || run(&place, &url, &["status", "nightly", "--json"]);
    until_true("it is held", || json(&status().out)["holders"][0]["pid"] == holder.pid());
    assert_eq!(run(&place, &url, &["run", "-n", "nightly", "--", "true"]).code, 75);
    let listed = run(&place, &url, &["ls"]);
    assert!(listed.out.contains("nightly"), "{listed:?}");
    assert_eq!(run(&place, &url, &["release", "--force", "nightly"]).code, 0);
    until_true("it is free", || json(&status().out)["holders"].as_array().unwrap().is_empty());
    assert_eq!(holder.wait(), 79, "it hears that it was taken away");

    let examined = run(&place, &url, &["doctor"]);
    assert_eq!(examined.code, 1, "all members are on one host: {examined:?}");
    for says in ["EFFICIENCY", "all members are on 127.0.0.1", "only ever grow", "clock_skew"] {
        assert!(examined.out.contains(says), "{says}: {examined:?}");
    }
    for (require, code) in [("timed", 64), ("fenced", 0)] {
        let ran = run(&place, &url, &["run", "--require", require, "a", "--", "true"]);
        assert_eq!(ran.code, code, "{require}: {ran:?}");
    }
    let shared = run(&place, &url, &["run", "-s", "a", "--", "true"]);
    assert!(shared.code == 64 && shared.err.contains("shared"), "{shared:?}");

    servers[0].kill();
    assert_eq!(run(&place, &url, &["run", "a", "--", "true"]).code, 0, "two of three are left");
    servers[1].kill();
    let alone = run(&place, &format!("{url}&connect_timeout=1s"), &["run", "a", "--", "true"]);
    assert!(alone.code == 69 && alone.err.contains("a majority is 2"), "{alone:?}");
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
