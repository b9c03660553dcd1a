//! Rules 6 and 7: the command's streams, descriptors and environment.

use std::io::Write as _;
use std::process::Stdio;

use crate::common::{self, Place, Reaped, finish, json, number};

#[test]
fn rule_6_stdin_stdout_and_stderr_are_the_commands() {
    let place = Place::new();
    let mut run = place.lk(["run", "a", "--", "sh", "-c", "cat; echo err >&2"]);
    let mut run =
        Reaped::spawn(run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    run.0.stdin.take().unwrap().write_all(b"through\0and through").unwrap();
    let ran = run.output();
    assert_eq!(
        (ran.code, ran.out.as_str(), ran.err.as_str()),
        (0, "through\0and through", "err\n")
    );
}

#[test]
fn rule_6_a_closed_stdin_stays_closed_and_nothing_else_is_open_but_the_lock() {
    let place = Place::new();
    let open = |script: &str| -> std::collections::BTreeSet<i32> {
        let ran = finish(&mut place.sh(script));
        assert_eq!(ran.code, 0, "{ran:?}");
        ran.out.lines().map(number).collect()
    };
    // Whoever runs the tests may have descriptors of their own open, and `ls` opens one more.
    let without = open("exec ls /proc/self/fd 0<&-");
    let with = open("exec \"$LK\" run a -- ls /proc/self/fd 0<&-");
    let more: Vec<_> = with.difference(&without).collect();
    assert!(without.is_subset(&with) && more.len() == 1 && *more[0] >= 100, "{without:?} {with:?}");
    assert_eq!(open("exec \"$LK\" run -o a -- ls /proc/self/fd 0<&-"), without);
    let ran = finish(&mut place.sh("exec \"$LK\" run a -- sh -c 'test ! -e /proc/$$/fd/0' 0<&-"));
    assert_eq!(ran.code, 0, "{ran:?}");
}

#[test]
fn rule_7_the_command_finds_its_lock_in_its_environment() {
    let place = Place::new();
    let ran = place.run(["run", "a", "--report", "report", "--", "env"]);
    let find = |key: &str| {
        ran.out.lines().find_map(|l| l.strip_prefix(&format!("{key}="))).map(str::to_owned)
    };
    assert_eq!(find("LOCKKEEPER_NAME").as_deref(), Some("a"));
    assert_eq!(find("LOCKKEEPER_ENGINE").as_deref(), Some("file"));
    assert_eq!(
        find("LOCKKEEPER_TOKEN"),
        json(&place.read("report"))["token"].as_str().map(str::to_owned)
    );
    assert_eq!(find("LOCKKEEPER_OWNER").map(|o| o.len()), Some(32));
    assert_eq!(find("LOCKKEEPER_URL"), None);
    let stack = json(&find("LOCKKEEPER_STACK").unwrap());
    for key in ["engine", "name", "mode", "token", "pid", "start"] {
        assert!(!stack[0][key].is_null(), "{key}: {stack}");
    }
}

#[test]
fn rule_7_the_inner_locks_values_win() {
    let place = Place::new();
    let show = "echo \"$LOCKKEEPER_NAME $LOCKKEEPER_TOKEN\"; echo \"$LOCKKEEPER_STACK\"";
    let ran = finish(&mut place.lk([
        "run",
        "outer",
        "--",
        common::PROGRAM,
        "run",
        "inner",
        "--",
        "sh",
        "-c",
        show,
    ]));
    let mut lines = ran.out.lines();
    let (name, token) = lines.next().and_then(|l| l.split_once(' ')).unwrap();
    let stack = json(lines.next().unwrap());
    let names: Vec<_> =
        stack.as_array().unwrap().iter().map(|e| e["name"].as_str().unwrap()).collect();
    assert_eq!((name, names), ("inner", vec!["outer", "inner"]));
    assert_eq!(stack[1]["token"].as_str(), Some(token));
}

#[test]
fn rule_7_a_url_from_the_option_is_handed_on_and_an_exported_one_is_left_alone() {
    let place = Place::new();
    let url = format!("file://{}", place.text("other"));
    let show = ["--", "sh", "-c", "echo \"$LOCKKEEPER_URL\""];
    let ran = finish(&mut place.lk([&["run", "a", "--url", &url][..], &show].concat()));
    assert_eq!(ran.out.trim(), url);
    let ran = finish(place.lk([&["run", "a"][..], &show].concat()).env("LOCKKEEPER_URL", &url));
    assert_eq!(ran.out.trim(), url);
}
