//! What torture and check owe their users, by the real binary.

use std::process::Stdio;

use nix::sys::signal::Signal;

use crate::common::{Place, Reaped, finish, history, json, until_true};

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    place
}

/// A right lock by flock(1) in the directory it is started in, as somebody else's program.
const FLOCK: &str = r#"
while read -r verb name rest; do case $verb in
acquire) exec 9>"${name#*/}.flock"; if flock -w 1 9; then echo held -; else echo busy; fi ;;
release) exec 9>&-; echo released ;;
check) echo yes ;;
token) echo - ;;
esac; done
"#;

#[test]
fn c17_the_time_that_a_client_needs_to_start_is_no_wait_for_the_lock() {
    let place = place();
    std::fs::write(place.path("flock.sh"), FLOCK).unwrap();
    // T is the ttl.
    for start in ["0", "4"] {
        let client = format!("exec:cd '{}'; sleep {start}; exec sh flock.sh", place.text("."));
        let options = [
            "--client",
            &client,
            "--clients",
            "2",
            "--tasks",
            "2",
            "--names",
            "2",
            "--seconds",
            "6",
            "--faults",
            "none",
        ];
        let ran = finish(
            place
                .lk(["torture", "redis:auto?ttl=2s", "--json"])
                .args(options)
                .env("TMPDIR", place.path("tmp")),
        );
        let report = json(ran.out.trim());
        assert_eq!(
            (ran.code, report["verdict"].as_str()),
            (0, Some("clean")),
            "sleep {start}: {ran:?}"
        );
        assert!(report["holds"].as_u64() > Some(0), "{report}");
    }
}

#[test]
fn needs_root_c18_a_disk_of_a_torture_leaves_nothing_behind_after_its_end_and_after_ctrl_c() {
    assert!(
        nix::unistd::geteuid().is_root(),
        "this test mounts a file system: run it as root, as CI does"
    );
    for signal in [None, Some(Signal::SIGINT)] {
        let place = place();
        let seconds = if signal.is_some() { "60" } else { "2" };
        let options = ["--seconds", seconds, "--clients", "2", "--tasks", "2", "--faults", "none"];
        let mut command = place.lk(["torture", "redis:auto?durable=true"]);
        command
            .args(options)
            .env("TMPDIR", place.path("tmp"))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let run = Reaped::spawn(&mut command);
        if let Some(signal) = signal {
            until_true("a client has begun", || histories(&place) > 0);
            run.signal(signal);
        }
        let ran = run.output();
        assert!(!ran.out.contains("disk-full"), "a disk was had: {ran:?}");
        assert_eq!(ran.code, if signal.is_some() { 130 } else { 0 }, "{ran:?}");
        let left: Vec<_> = std::fs::read_dir(place.path("tmp"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert!(left.is_empty(), "{left:?}");
    }
}

fn histories(place: &Place) -> usize {
    let inside = std::fs::read_dir(place.path("tmp"))
        .unwrap()
        .flat_map(|dir| std::fs::read_dir(dir.unwrap().path()).into_iter().flatten());
    inside
        .flatten()
        .filter(|file| file.file_name().to_string_lossy().starts_with("client-"))
        .count()
}

#[test]
fn c20_a_history_that_was_given_twice_is_refused_and_an_empty_one_is_called_empty() {
    let place = place();
    std::fs::create_dir(place.path("run")).unwrap();
    history(&place.path("run/a.lkh"));
    let (dir, file) = (place.text("run"), place.text("run/a.lkh"));
    assert_eq!(place.run(["check", &dir]).code, 0);
    for given in [[&file, &file], [&dir, &file]] {
        let ran = finish(place.lk(["check"]).args(given));
        let said =
            format!("lockkeeper: check: {file}: this history was given twice: name it once\n");
        assert_eq!(
            (ran.code, ran.out.as_str(), ran.err.as_str()),
            (64, "", said.as_str()),
            "{given:?}"
        );
    }
    let copy = place.text("copy.lkh");
    std::fs::copy(&file, &copy).unwrap();
    let ran = place.run(["check", &file, &copy]);
    assert!(
        ran.code == 64
            && ran
                .err
                .contains(&format!("{file} and {copy} are the same history: name one of them")),
        "{ran:?}"
    );
    std::fs::create_dir(place.path("empty")).unwrap();
    let empty = place.text("empty");
    let says = |words: &str| {
        let ran = place.run(["check", &empty]);
        assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{ran:?}");
        assert!(
            ran.err.starts_with(&format!("lockkeeper: check: {empty}: "))
                && ran.err.contains(words),
            "{ran:?}"
        );
    };
    says("no file in this directory ends in .lkh");
    std::fs::write(place.path("empty/a.lkh"), "").unwrap();
    says(
        "the only .lkh file in this directory is empty: its process ended before it wrote anything",
    );
    std::fs::write(place.path("empty/b.lkh"), "").unwrap();
    says("all 2 .lkh files in this directory are empty");
}

#[test]
fn an_empty_history_beside_others_is_named_and_nothing_that_it_would_show_is_judged() {
    let place = place();
    std::fs::create_dir(place.path("run")).unwrap();
    history(&place.path("run/a.lkh"));
    let dir = place.text("run");
    let whole = place.run(["check", &dir]);
    assert!(whole.code == 0 && whole.out.contains("\nclean: "), "{whole:?}");
    std::fs::write(place.path("run/b.lkh"), "").unwrap();
    let ran = place.run(["check", &dir]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let says = "b.lkh is empty: its process recorded nothing, so refusals and recovery are not";
    assert!(ran.out.contains(says), "{ran:?}");
    assert!(ran.out.contains("\nclean as far as recorded: "), "{ran:?}");
    let summary = json(place.run(["check", &dir, "--json"]).out.trim());
    assert_eq!(summary["empty"], serde_json::json!(["b.lkh"]), "{summary}");
    let [until, began] = ["judged_until", "began"].map(|key| summary[key].as_str().unwrap());
    assert!(summary["files"] == 1 && until <= began, "{summary}");
}
