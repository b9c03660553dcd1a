//! What a lease leaves for the command's end.

use crate::common::lease::Engine;
use crate::common::{Place, finish, json};

#[test]
fn what_a_session_cannot_give_is_refused_and_names_the_two_options() {
    // Sessions of at most 20 ticks: 10 s.
    let (engine, place) = (Engine::zookeeper(), Place::new());
    let url = engine.url();
    let run = |options: &str, kill_after: &str| {
        let args = [
            "run",
            "a",
            "--kill-after",
            kill_after,
            "--report",
            "report",
            "--",
            "sh",
            "-c",
            "echo > ran",
        ];
        finish(place.lk(args).env("LOCKKEEPER_URL", format!("{url}{options}")))
    };
    let asked = run("", "6s");
    assert_eq!(asked.code, 64, "{asked:?}");
    assert!(
        asked.err.contains("--kill-after 6s") && asked.err.contains("session_timeout=18s"),
        "{asked:?}"
    );
    let negotiated = run("?session_timeout=60s", "4s");
    assert_eq!(negotiated.code, 64, "{negotiated:?}");
    assert!(
        negotiated.err.contains("--kill-after 4s") && negotiated.err.contains("session_timeout"),
        "{negotiated:?}"
    );
    assert!(negotiated.err.contains("10s"), "what the server gave: {negotiated:?}");
    assert_eq!(json(place.read("report").trim_end())["outcome"].as_str(), Some("not-started"));
    assert!(!place.path("ran").exists(), "nothing ran");
    assert_eq!(run("?session_timeout=60s", "3s").code, 0);
}
