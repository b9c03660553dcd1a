//! Rule 10: what is recorded of a command, and where its report is written.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

use crate::common::{Place, Reaped, finish, json};

#[test]
fn rule_10_arguments_are_never_recorded() {
    let place = Place::new();
    let mut lk = place.lk([
        "run",
        "a",
        "--label",
        "backup",
        "--",
        "sh",
        "-c",
        "echo held; read x",
        "--password=sesame",
    ]);
    let mut run = Reaped::spawn(lk.stdin(Stdio::piped()).stdout(Stdio::piped()));
    let mut line = String::new();
    BufReader::new(run.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let ran = place.run(["run", "a", "-n", "--json", "--report", "report", "--", "true"]);
    assert_eq!(ran.code, 75);
    let holder = &json(&place.read("report"))["holder"];
    assert_eq!(holder["pid"].as_i64(), Some(i64::from(run.pid())));
    assert_eq!(
        (holder["program"].as_str(), holder["label"].as_str(), holder["mode"].as_str()),
        (Some("sh"), Some("backup"), Some("exclusive"))
    );
    assert!(
        holder["host"].is_string() && holder["since"].is_string() && holder["token"].is_string(),
        "{holder}"
    );
    let mut dirs = vec![place.path("locks")];
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                dirs.push(entry);
                continue;
            }
            let mut bytes = Vec::new();
            std::fs::File::open(&entry).unwrap().read_to_end(&mut bytes).unwrap();
            assert!(!bytes.windows(6).any(|w| w == b"sesame"), "{entry:?}");
        }
    }
    drop(run.0.stdin.take());
    run.wait();
}

#[test]
fn a_report_to_a_descriptor_is_written_there_and_takes_nothing_away() {
    let place = Place::new();
    // The report comes after what the command wrote, in the same file.
    for (how, to) in [
        ("> out", "/dev/stdout"),
        ("2> out", "/dev/stderr"),
        ("7> out", "/dev/fd/7"),
        ("> out", "link"),
        ("| cat > out", "/dev/stdout"),
    ] {
        _ = std::os::unix::fs::symlink("/dev/stdout", place.path("link"));
        let fd = if how.starts_with(['2', '7']) { &how[..1] } else { "1" };
        let script = format!(
            "{{ echo before >&{fd}; \"$LK\" run a --report {to} -- sh -c 'echo hello >&{fd}'; \
             echo after >&{fd}; }} {how}"
        );
        let ran = finish(&mut place.sh(&script));
        assert_eq!(ran.code, 0, "{ran:?}");
        let out = place.read("out");
        let lines: Vec<_> = out.lines().collect();
        assert_eq!(
            (lines.len(), lines[0], lines[1], lines[3]),
            (4, "before", "hello", "after"),
            "{to} {how}: {out}"
        );
        assert_eq!(json(lines[2])["outcome"], "ran");
    }
    for closed in ["/dev/stdout >&-", "/dev/fd/9"] {
        let ran = finish(&mut place.sh(&format!("\"$LK\" run a --report {closed} -- touch ran")));
        assert!(
            ran.code == 64 && ran.err.contains("is closed") && !place.path("ran").exists(),
            "{ran:?}"
        );
    }
}
