//! `acquire` and `elect` hold with a lease, and say when it is lost.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::common::lease::Engine;
use crate::common::{Place, Reaped, json, until_true};

#[test]
fn acquire_holds_with_a_lease_and_says_when_it_is_lost() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let acquire = |options: &[&str]| {
            let mut lk = place.lk([&["acquire", "a"], options].concat());
            let mut child = Reaped::spawn(
                lk.env("LOCKKEEPER_URL", engine.patient())
                    .stdin(Stdio::piped())
                    .stdout(Stdio::piped()),
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

        let (mut child, mut lines) = acquire(&["--ttl", "9s"]);
        assert_eq!(engine.run(&place, &["release", "--force", "a"]).code, 0);
        let done = json(&lines.next().unwrap().unwrap());
        assert_eq!((done["outcome"].as_str(), child.wait()), (Some("lost"), 79), "{done}");

        let (child, _) = acquire(&[]);
        child.signal(Signal::SIGKILL);
        let next = engine.run(&place, &["run", "a", "-w", "120", "--", "true"]);
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
