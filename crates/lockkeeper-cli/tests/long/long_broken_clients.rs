//! The test of the laboratory itself: every lock that is known to be wrong is convicted, by its own
//! violation.

use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;
use std::time::Instant;

fn lockkeeper(words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockkeeper"));
    let out =
        command.args(words).stdin(Stdio::null()).output().expect("the program can be started");
    (
        out.status.code(),
        String::from_utf8_lossy(&out.stdout).into_owned(),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    )
}

#[test]
fn every_broken_client_is_convicted_by_its_own_violation_and_the_report_says_why_and_when() {
    let (_, list, _) = lockkeeper(&["torture", "--list-clients"]);
    let names: Vec<(&str, &str)> = list
        .lines()
        .filter_map(|l| l.split_once(' '))
        .filter(|(n, _)| n.starts_with("broken:"))
        .collect();
    assert!(names.len() >= 20, "{list}");
    let (waiting, escaped) = (Mutex::new(names.into_iter()), Mutex::new(Vec::new()));
    // Two at a time: most of them wait most of their time.
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((name, what)) =
                    { waiting.lock().expect("nobody panics with it").next() }
                {
                    let why = escapes(name, what);
                    escaped.lock().expect("nobody panics with it").extend(why);
                }
            });
        }
    });
    let escaped = escaped.into_inner().expect("nobody panics with it");
    assert!(escaped.is_empty(), "not convicted:\n{}", escaped.join("\n"));
}

/// What there is to say of a client that is not convicted as it should be.
fn escapes(name: &str, what: &str) -> Option<String> {
    let began = Instant::now();
    let (code, said, complained) = lockkeeper(&["torture", "--client", name, "--seed", "1"]);
    let sentence = said
        .lines()
        .skip_while(|l| !l.starts_with("convicted of "))
        .take(2)
        .collect::<Vec<_>>()
        .join("\n");
    println!("{name:<32} {:>5.1} s  {sentence}", began.elapsed().as_secs_f64());
    if let Some(kept) = said.lines().find_map(|l| l.trim().strip_prefix("histories kept in ")) {
        std::fs::remove_dir_all(kept).expect("histories that are kept can be removed");
    }
    let convicted =
        code == Some(1) && sentence.contains(what.trim()) && sentence.contains("\n  at +");
    (!convicted).then(|| format!("{name}: exit {code:?}\n{said}{complained}"))
}

#[test]
fn a_client_that_nobody_knows_is_refused_and_says_how_to_list_them() {
    for wrong in ["broken:no-such", "mine", "broken:"] {
        let (code, _, complained) = lockkeeper(&["torture", "--client", wrong]);
        assert_eq!(code, Some(64), "{complained}");
        assert!(complained.contains("--list-clients"), "{complained}");
    }
}

/// A lock behind a program, on file:auto, without faults.
fn behind(program: &str) -> (Option<i32>, String, String) {
    let client = format!("exec:{program}");
    lockkeeper(&[
        "torture",
        "file:auto",
        "--client",
        &client,
        "--faults",
        "none",
        "--seconds",
        "3",
        "--json",
    ])
}

#[test]
fn somebody_elses_lock_behind_a_program_is_judged_like_ours() {
    let script = |acquire: &str, release: &str| {
        let loop_ = format!(
            "while read -r verb name rest; do case $verb in acquire) {acquire};; \
             release) {release};; check) echo yes;; token) echo -;; esac; done"
        );
        format!("sh -c '{loop_}'")
    };
    let directory = "${LOCKKEEPER_TORTURE_URL#file://}";
    let flock = format!(
        "exec 9>\"{directory}/${{name#*/}}.flock\"; if flock -w 1 9; then echo held -; \
         else echo busy; fi"
    );
    let (code, said, complained) = behind(&script(&flock, "exec 9>&-; echo released"));
    assert_eq!(code, Some(0), "{said}{complained}");
    let (code, said, complained) = behind(&script("echo held -", "echo released"));
    assert_eq!(code, Some(1), "{said}{complained}");
    assert!(said.contains("\"class\":\"overlap\""), "{said}");
    let (code, said, complained) = behind("false");
    assert_eq!(code, Some(2), "nothing was held: {said}{complained}");
    assert!(said.contains("\"verdict\":\"too-weak\""), "{said}");
}
