//! `--ttl` where a lock does not end by a lease of its own.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;

use common::lease::Engine;
use common::{Place, Ran};

/// Every command that takes `--ttl`, with it and with these options.
fn each(place: &Place, url: &str, options: &[&str]) -> Vec<Ran> {
    let with = |before: &[&str], after: &[&str]| {
        place.run([before, &["--url", url], options, after].concat())
    };
    vec![
        with(&["run", "a"], &["--", "true"]),
        with(&["acquire", "b", "--for", "10ms"], &[]),
        with(&["elect", "c"], &["--", "true"]),
    ]
}

#[test]
fn a_ttl_that_changes_nothing_is_warned_of_in_one_line_that_says_what_decides() {
    let place = Place::new();
    let server = Engine::zookeeper();
    for (url, engine, decides) in [
        (
            format!("file://{}", place.text("locks")),
            "on file",
            "until the last process that has it open has ended",
        ),
        (server.url(), "on zookeeper", "the session is the lease, 15s if"),
        (server.url_with_sessions_of(6), "on zookeeper", "the session is the lease, 6s if"),
    ] {
        for ran in each(&place, &url, &["--ttl", "5s"]) {
            assert_eq!((ran.code, ran.err.lines().count()), (0, 1), "{url}: {ran:?}");
            assert!(
                ran.err.starts_with("lockkeeper: warning: --ttl 5s changes nothing "),
                "{ran:?}"
            );
            assert!(ran.err.contains(engine) && ran.err.contains(decides), "{ran:?}");
        }
        for options in [&[][..], &["--ttl", "5s", "-q"]] {
            for ran in each(&place, &url, options) {
                assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{url} {options:?}");
            }
        }
        // Of an option that is refused nothing else is said, and JSON stays JSON.
        let refused = place.run(["run", "a", "--url", &url, "--ttl", "199ms", "--", "true"]);
        assert!(
            refused.code == 64
                && refused.err.contains("out of range")
                && refused.err.lines().count() == 1,
            "{refused:?}"
        );
        let objects = place.run(["run", "a", "--url", &url, "--ttl", "5s", "--json", "--", "true"]);
        assert!(
            objects.err.lines().all(|line| common::json(line)["event"].is_string()),
            "{objects:?}"
        );
    }
}

#[test]
fn a_ttl_on_redis_is_the_lease_and_nothing_is_said() {
    let place = Place::new();
    let server = Engine::redis();
    for ran in each(&place, &server.url(), &["--ttl", "5s"]) {
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    }
}
