//! A lock under another of the same process tree.

use nix::sys::signal::Signal;

use crate::common::lease::{Engine, guardian, until_gone};
use crate::common::{self, Place};

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
            "9s",
            "--kill-after",
            "400ms",
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
        .run(&place, &["run", "a", "-w", "120", "-q", "--", "sh", "-c", "echo next >> writes"]);
    assert_eq!(next.code, 0, "{next:?}");
    until_gone(keeper);
    assert_eq!(engine.run(&place, &["run", "b", "-w", "120", "-q", "--", "true"]).code, 0);
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
