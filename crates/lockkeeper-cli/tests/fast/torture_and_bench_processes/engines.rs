//! Which engine is tortured, and that its URL stands in no argument list.

use std::process::Stdio;

use nix::sys::signal::Signal;

use super::{arguments_of, place, torture};
use crate::common::{Reaped, children, finish, json, until};

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
