//! Bad input: one clear line that says what, which, and what to do; exit 64; nothing runs.

use crate::common::{self, Place};

/// Arguments, and what the line must say.
const ROWS: [(&[&str], &[&str]); 50] = [
    (&["run", "", "--", "touch", "ran"], &["cannot be empty"]),
    (&["run", "a", "--permits", "0/3", "--", "touch", "ran"], &["--permits 0/3", "at least one"]),
    (&["run", "a", "--permits", "1/0", "--", "touch", "ran"], &["--permits 1/0", "65535"]),
    (&["run", "a", "--permits", "1/65536", "--", "touch", "ran"], &["--permits 1/65536", "65535"]),
    (&["run", "a", "--permits", "4/3", "--", "touch", "ran"], &["--permits 4/3", "4 of 3"]),
    (&["run", "a", "--permits", "-1/3", "--", "touch", "ran"], &["--permits", "2/8"]),
    (&["run", "a", "--permits", "two", "--", "touch", "ran"], &["--permits two", "2/8"]),
    (
        &["run", "a", "--permits", "1/2", "-s", "--", "touch", "ran"],
        &["--permits", "--shared", "exclude each other"],
    ),
    (&["run", "a", "--ttl", "199ms", "--", "touch", "ran"], &["--ttl 199ms", "200ms to 24h"]),
    (&["run", "a", "--ttl", "25h", "--", "touch", "ran"], &["--ttl", "200ms to 24h"]),
    (
        &["run", "a", "--kill-after", "11", "--", "touch", "ran"],
        &["--kill-after 11s", "third of the ttl", "--ttl 33s"],
    ),
    (&["run", "a", "-w", "abc", "--", "touch", "ran"], &["--wait abc", "2.5", "1h30m"]),
    (&["run", "a", "-w", "-1", "--", "touch", "ran"], &["--wait -1", "negative"]),
    (&["run", "a", "-w", "", "--", "touch", "ran"], &["--wait", "duration"]),
    (&["run", "a", "-w"], &["--wait", "needs a value"]),
    (&["run", "a", "--timeout", "1x", "--", "touch", "ran"], &["--wait 1x", "duration"]),
    (&["run", "a", "-E", "600", "--", "touch", "ran"], &["--conflict-exit-code 600", "0 to 255"]),
    (&["run", "a", "-E", "-1", "--", "touch", "ran"], &["--conflict-exit-code -1", "0 to 255"]),
    (
        &["run", "a", "-E", "many", "--", "touch", "ran"],
        &["--conflict-exit-code many", "not a number"],
    ),
    (
        &["run", "a", "--lost-exit-code", "256", "--", "touch", "ran"],
        &["--lost-exit-code 256", "0 to 255"],
    ),
    (
        &["run", "a", "--on-lost", "shout", "--", "touch", "ran"],
        &["--on-lost shout", "term", "kill", "warn"],
    ),
    (
        &["run", "a", "--on-unreachable", "panic", "--", "touch", "ran"],
        &["--on-unreachable panic", "fail", "run"],
    ),
    (&["run", "a"], &["command is missing", "lockkeeper run a -- CMD"]),
    (&["run", "a", "--"], &["command is missing", "lockkeeper run a -- CMD"]),
    (&["run", "a", "touch", "ran"], &["lockkeeper run a -- touch ran"]),
    (
        &["run", "-w", "3", "a b", "-n", "touch", "-c", "ran"],
        &["lockkeeper run -w 3 'a b' -n -- touch -c ran"],
    ),
    (&["elect", "a", "touch", "ran"], &["lockkeeper elect a -- touch ran"]),
    (&["elect", "a"], &["command is missing", "lockkeeper elect a -- CMD"]),
    (&["run"], &["NAME is missing", "lockkeeper run NAME -- CMD"]),
    (&["run", "--", "touch", "ran"], &["NAME is missing"]),
    (&["run", "a", "-c", "touch ran", "--", "touch", "ran"], &["-c", "--", "exclude each other"]),
    (&["run", "a", "-F", "-o", "--", "touch", "ran"], &["-F", "-o", "exclude each other"]),
    (
        &["run", "a", "-F", "--report", "r", "--", "touch", "ran"],
        &["-F", "--report", "exclude each other"],
    ),
    (&["run", "a", "--wiat", "3", "--", "touch", "ran"], &["--wiat", "did you mean --wait"]),
    (&["run", "a", "--url", "gopher://host", "--", "touch", "ran"], &["gopher"]),
    (
        &["run", "a", "--url", "file:///no/such/dir?wiat=1", "--", "touch", "ran"],
        &["wiat", "the options are durable, ttl"],
    ),
    (
        &["run", "a", "--url", "file:///no/such/dir?ttl=1ms", "--", "touch", "ran"],
        &["ttl 1ms", "200ms to 24h"],
    ),
    (&["run", "a", "--url", "", "--", "touch", "ran"], &["--url is empty"]),
    (
        &["run", "a", "--require", "luck", "--", "touch", "ran"],
        &["--require luck", "hosts", "timed", "fenced"],
    ),
    (
        &["run", "a", "--report", "/no/such/dir/file", "--", "touch", "ran"],
        &["--report /no/such/dir/file", "/no/such/dir"],
    ),
    (&["a", "--", "touch", "ran"], &["no subcommand a", "lockkeeper run a -- touch ran"]),
    (&["acquire", "a", "b"], &["no place for b"]),
    (&["permits", "a", "0"], &["MAX 0", "65535"]),
    (&["status"], &["NAME is missing"]),
    (&["run", "a", "--url", "redis://h", "-o", "--", "touch", "ran"], &["has none: leave -o out"]),
    (&["run", "a", "--url", "redis://h", "-F", "--", "touch", "ran"], &["stop the command in"]),
    (
        &["run", "a", "--unlock"],
        &["--unlock: a lock is given back", "lockkeeper release --force NAME"],
    ),
    (
        &["demo", "contenders", "--threads", "2", "--processes", "--hold", "100ms"],
        &["--threads and --processes exclude each other"],
    ),
    (&["demo", "oversell", "--url", "bogus:"], &["bogus: is not an engine"]),
    (&["man", "nosuch"], &["PAGE nosuch is not known: choose run"]),
];

#[test]
fn every_bad_line_is_one_clear_line_and_nothing_runs() {
    let place = Place::new();
    for (args, says) in ROWS {
        let ran = place.run(args);
        assert_eq!(ran.code, 64, "{args:?}: {ran:?}");
        assert_eq!((ran.err.lines().count(), ran.out.as_str()), (1, ""), "{args:?}: {ran:?}");
        assert!(ran.err.starts_with("lockkeeper: "), "{args:?}: {ran:?}");
        for word in says {
            assert!(ran.err.contains(word), "{args:?} should say {word:?}: {}", ran.err);
        }
        assert!(!ran.err.contains("redlock-lab"), "nobody chooses it: {ran:?}");
        assert!(!place.path("ran").exists(), "{args:?} ran it");
    }
    assert!(!place.path("locks").exists(), "nothing was touched");
}

#[test]
fn names_that_no_lock_can_have_are_refused() {
    use std::os::unix::ffi::OsStrExt as _;
    let place = Place::new();
    let long = "x".repeat(1_025);
    for name in [std::ffi::OsStr::new(&long), std::ffi::OsStr::from_bytes(b"a\xff")] {
        let mut lk = place.lk(["run"]);
        let ran = common::finish(lk.arg(name).args(["--", "touch", "ran"]));
        assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{ran:?}");
    }
    let longest = "é".repeat(512);
    assert_eq!(place.run(["run", &longest, "--", "true"]).code, 0);
}

#[test]
fn with_json_a_bad_line_is_an_object() {
    let place = Place::new();
    for args in [
        &["--json", "run", "a", "-w", "abc", "--", "true"][..],
        &["run", "a", "--json"],
        &["run", "", "--json", "--", "true"],
    ] {
        let ran = place.run(args);
        let object = common::json(ran.err.trim_end());
        assert_eq!((ran.code, object["exit"].as_i64()), (64, Some(64)), "{ran:?}");
        assert!(object["error"].is_string() && object["message"].is_string(), "{ran:?}");
        assert!(object.get("name").is_some() && object.get("engine").is_some(), "{ran:?}");
    }
    let nowhere = "redis://127.0.0.1:1";
    for args in [
        &["run", "z", "--bogus", "--report", "report", "--", "true"][..],
        &["elect", "z", "--url", "bogus:", "--", "true"],
        &["status", "z", "--require", "hosts"],
        &["status", "z", "--url", nowhere],
        &["permits", "z", "3", "--url", nowhere],
        &["release", "--force", "z", "--url", nowhere],
    ] {
        let ran = place.run([&["--json"], args].concat());
        let object = common::json(ran.err.trim_end());
        assert_eq!(object["name"].as_str(), Some("z"), "{args:?}: {ran:?}");
    }
    assert_eq!(common::json(&place.read("report"))["name"].as_str(), Some("z"));
    assert_eq!(place.run(["run", "--bogus", "--report", "report", "--", "true"]).code, 64);
    assert!(common::json(&place.read("report"))["name"].is_null(), "none was read");
}

#[test]
fn a_line_that_is_refused_is_told_without_the_passwords_of_its_urls() {
    let place = Place::new();
    let url = "redis://ann:s3same@h";
    let joined = format!("--url={url}");
    let nested = format!("lockkeeper run b --url {url} -- make");
    let set = format!("LOCKKEEPER_URL={url}");
    for args in [
        &["run", "job", "--url", url, "./x.sh"][..],
        &["run", "job", &joined, "./x.sh", "y"],
        &["run", "--url", url, "job", "./x.sh"],
        &["elect", "job", "--url", "redis://h?password=s3same", "./x.sh"],
        &["run", "job", "--url", "redis://ann:12?s3same&4@h", "./x.sh"],
        &["run", "job", "--url", "redis://ann:2024/s3same@h", "./x.sh"],
        &["run", "job", "env", &set, "./x.sh"],
        &["run", "job", "sh", "-c", &nested],
        &["job", "--url", url, "--", "./x.sh"],
        &["--url", url, "job", "./x.sh"],
        &[url, "run", "job", "--", "./x.sh"],
        &["acquire", "job", url],
        &["run", url],
        &["run", url, "-E", "600"],
        &["elect", url],
        &["run", "job", "--wiat", url, "--", "./x.sh"],
        &["run", "job", "--urll=redis://ann:s3same@h", "--", "./x.sh"],
        &["run", "job", "-w", url, "--", "./x.sh"],
        &["run", "job", "--on-lost", url, "--", "./x.sh"],
        &["run", "job", "--require", url, "--", "./x.sh"],
        &["run", "job", "-E", url, "--", "./x.sh"],
        &["run", "job", "-n=redis://ann:s3same@h", "--", "./x.sh"],
    ] {
        for more in [&[][..], &["--json"], &["--report", "report.json"]] {
            let (first, rest) = args.split_at(1);
            let ran = common::finish(place.lk(first).args(more).args(rest));
            let report = std::fs::read_to_string(place.path("report.json")).unwrap_or_default();
            _ = std::fs::remove_file(place.path("report.json"));
            assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{more:?} {args:?}: {ran:?}");
            let told = format!("{}{}{report}", ran.out, ran.err);
            assert!(
                !told.contains("s3same") && !told.contains("12?") && !told.contains("2024/"),
                "{more:?} {args:?}: {told}"
            );
        }
    }
    // The rest of the line is there to be copied.
    let ran = place.run(["run", "job", "--url", url, "--report", "r", "./x.sh", "y z"]);
    assert!(
        ran.err
            .contains("lockkeeper run job --url redis://ann:PASSWORD@h --report r -- ./x.sh 'y z'"),
        "{ran:?}"
    );
    assert!(std::fs::read_to_string(place.path("r")).unwrap().contains("redis://ann:PASSWORD@h"));
}

#[test]
fn what_is_set_and_empty_is_a_mistake() {
    let place = Place::new();
    for key in ["LOCKKEEPER_URL", "LOCKKEEPER_DIR", "LOCKKEEPER_REQUIRE"] {
        let ran = common::finish(place.lk(["run", "a", "--", "touch", "ran"]).env(key, ""));
        assert_eq!((ran.code, ran.err.lines().count()), (64, 1), "{key}: {ran:?}");
        assert!(ran.err.contains(key), "{ran:?}");
    }
    assert!(!place.path("ran").exists());
}

#[test]
fn help_and_version_are_no_errors() {
    let place = Place::new();
    for args in [
        &["--help"][..],
        &["-h"],
        &["--version"],
        &["-V"],
        &["run", "--help"],
        &["elect", "-h"],
        &["doctor", "--help"],
    ] {
        let ran = place.run(args);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{args:?}");
        assert!(ran.out.contains("lockkeeper"), "{args:?}: {}", ran.out);
    }
    let nothing = place.run::<&str>([]);
    assert_eq!((nothing.code, nothing.out.as_str()), (64, ""));
    assert!(nothing.err.contains("Usage"), "{}", nothing.err);
}

#[test]
fn options_stand_before_or_after_the_name_and_the_shared_ones_before_the_subcommand_too() {
    let place = Place::new();
    for args in [
        &["run", "-x", "-w", "1", "a", "--", "true"][..],
        &["run", "a", "-x", "-w", "1", "--", "true"],
        &["run", "-e", "a", "--timeout", "1", "--", "true"],
        &["-q", "--json", "--require", "fenced", "run", "a", "--nb", "--", "true"],
        &["run", "a", "--require", "timed,fenced", "-v", "--", "true"],
        &["run", "a", "-s", "-x", "--exclusive", "--", "true"],
        &["run", "a", "-w1.5", "--wait=2m", "--", "true"],
        &["run", "a", "-xn", "-E9", "--label", "x y", "--", "true"],
        &["run", "a", "--", "true", "--help", "-w"],
        &["run", "run", "--", "true"],
    ] {
        let ran = place.run(args);
        assert_eq!(ran.code, 0, "{args:?}: {ran:?}");
    }
}

#[test]
fn r17_a_record_of_a_newer_layout_ends_with_69_and_both_numbers() {
    use std::os::unix::fs::FileExt as _;
    let place = Place::new();
    assert_eq!(place.run(["run", "a", "--", "true"]).code, 0);
    let record =
        std::fs::File::options().write(true).open(place.path("locks").join("a.lock")).unwrap();
    record.write_all_at(&[9], 20).unwrap();
    let ran = place.run(["run", "a", "--", "touch", "ran"]);
    assert_eq!((ran.code, ran.err.lines().count()), (69, 1), "{ran:?}");
    assert!(ran.err.contains("layout 9") && ran.err.contains("layout 1"), "{ran:?}");
    let said = place.run(["run", "a", "--json", "--", "touch", "ran"]).err;
    let object = common::json(said.lines().next().unwrap());
    assert_eq!(
        (object["error"].as_str(), object["exit"].as_i64()),
        (Some("newer-layout"), Some(69)),
        "{object}"
    );
    assert!(!place.path("ran").exists(), "it ran without the lock");
}
