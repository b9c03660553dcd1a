//! `redis:auto` and the like under `demo` and `bench`: a server for one run, and nothing of it
//! afterwards.

use std::io::{BufRead as _, BufReader};
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::common::{Place, Ran, Reaped, finish_within, json, until_true};

/// As long as three servers of an ensemble may take to start on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn place() -> Place {
    let place = Place::new();
    std::fs::create_dir(place.path("tmp")).unwrap();
    place
}

fn run(place: &Place, line: &[&str]) -> Ran {
    finish_within(place.lk(line).env("TMPDIR", place.path("tmp")), PATIENCE)
}

/// What was made for servers that were started for a run.
fn directories(place: &Place) -> Vec<PathBuf> {
    let all = std::fs::read_dir(place.path("tmp")).unwrap().flatten().map(|entry| entry.path());
    all.filter(|dir| dir.file_name().unwrap().to_string_lossy().contains("-auto-")).collect()
}

/// Servers whose directory is here: some work in it, the others were told of it.
fn servers(place: &Place) -> usize {
    let tmp = place.path("tmp");
    let is_here = |process: PathBuf| {
        let told = std::fs::read(process.join("cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&told).contains(&*tmp.to_string_lossy())
            || std::fs::read_link(process.join("cwd")).is_ok_and(|at| at.starts_with(&tmp))
    };
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    all.filter(|process| is_here(process.path())).count()
}

fn nothing_is_left(place: &Place) {
    until_true("no server is left, and no directory", || {
        let left = std::fs::read_dir(place.path("tmp")).unwrap().count();
        left == 0 && servers(place) == 0
    });
}

#[test]
fn the_story_is_told_on_a_server_of_its_own_that_is_gone_afterwards() {
    let place = place();
    for (url, engine, acts) in [
        ("file:auto", "file", 4),
        ("postgres:auto", "postgres", 8),
        ("redis:auto", "redis", 6),
        ("redis:auto?durable=true&ttl=5s", "redis", 6),
        ("redis+cluster:auto", "cluster", 10),
        ("redis+sentinel:auto", "sentinel", 10),
        ("redlock:auto?members=3", "redlock", 10),
        ("zk:auto", "zookeeper", 6),
        ("zk:auto?nodes=3", "zookeeper", 6),
    ] {
        let small = ["--workers", "2", "--stock", "1", "--orders", "2"];
        let line = [&["demo", "oversell", "--json", "--url", url][..], &small].concat();
        let ran = run(&place, &line);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{url}: {ran:?}");
        let runs: Vec<_> = ran.out.lines().map(json).collect();
        assert_eq!(runs.len(), acts, "{url}: {ran:?}");
        let named = runs.iter().filter(|run| run["act"] != 5).all(|run| run["engine"] == engine);
        assert!(named, "{url}: {ran:?}");
        nothing_is_left(&place);
    }
}

#[test]
fn act_5_sells_one_piece_twice_where_the_replica_lacks_the_lock_and_once_where_it_does_not() {
    let place = place();
    let small = ["--workers", "2", "--stock", "1", "--orders", "2"];
    // What is acknowledged in its acts 3 and 4 costs act 5 nothing.
    let url = "redis+sentinel:auto?wait_replicas=1";
    let line = [&["demo", "oversell", "--json", "--url", url][..], &small].concat();
    let ran = run(&place, &line);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let runs = ran.out.lines().map(json).filter(|run| run["act"] == 5);
    let told: Vec<_> = runs
        .map(|run| {
            let [engine, guard] =
                ["engine", "guard"].map(|key| run[key].as_str().unwrap().to_owned());
            let [sold, oversold] = ["sold", "oversold"].map(|key| run[key].as_u64().unwrap());
            (engine, guard, sold, oversold)
        })
        .collect();
    let row = |engine: &str, guard: &str, sold, oversold| {
        (engine.to_owned(), guard.to_owned(), sold, oversold)
    };
    let expected = [
        row("sentinel", "lockkeeper", 2, 1),
        row("cluster", "lockkeeper", 2, 1),
        row("sentinel", "lockkeeper+wait_replicas", 1, 0),
        row("redlock", "lockkeeper", 1, 0),
    ];
    assert_eq!(told, expected, "{ran:?}");
    nothing_is_left(&place);
}

#[test]
fn contenders_and_the_bench_start_one_too() {
    let place = place();
    for url in [
        "file:auto",
        "redis:auto",
        "redis+cluster:auto?replicas=1",
        "redis+sentinel:auto",
        "redlock:auto",
        "redlock:auto?members=9",
        "zk:auto",
    ] {
        let line = ["demo", "contenders", "--url", url, "--processes", "2", "--hold", "50ms"];
        let ran = run(&place, &line);
        assert!(ran.code == 0 && ran.out.contains("2 of 2 held the lock"), "{url}: {ran:?}");
        let ran = run(&place, &["bench", "--json", "--seconds", "1", "--only", "turn", url]);
        assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{url}: {ran:?}");
        assert_eq!(json(ran.out.trim())["bench"], "turn", "{url}: {ran:?}");
        nothing_is_left(&place);
    }
}

#[test]
fn a_shard_of_a_cluster_is_measured_beside_a_server_that_is_gone_as_well() {
    let place = place();
    let line = ["bench", "--json", "--seconds", "1", "--only", "uncontended", "redis+cluster:auto"];
    let ran = run(&place, &line);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    let row = ran.out.lines().map(json).next().unwrap();
    let floor = row["floor"].as_str();
    assert_eq!(floor, Some("the same on one server that is no node"), "{ran:?}");
    nothing_is_left(&place);
}

#[test]
fn after_ctrl_c_and_after_a_kill_neither_the_server_nor_its_directory_is_left() {
    let demo = ["demo", "contenders", "--threads", "2", "--hold", "1h", "--url"];
    let bench = ["bench", "--seconds", "600", "--only", "turn"];
    for (line, url, tells) in [
        (&demo[..], "redis:auto", true),
        (&demo, "zk:auto", true),
        (&demo, "redis+sentinel:auto", false),
        // While it starts.
        (&demo, "zk:auto", false),
        (&bench, "redis:auto", false),
    ] {
        for signal in [Signal::SIGINT, Signal::SIGKILL] {
            let place = place();
            let mut command = place.lk(line.iter().chain([&url]));
            command.env("TMPDIR", place.path("tmp")).stdout(Stdio::piped()).stderr(Stdio::null());
            let mut front = Reaped::spawn(&mut command);
            let mut out = BufReader::new(front.0.stdout.take().unwrap()).lines();
            if tells {
                out.next().unwrap().unwrap();
            }
            until_true("the server is there", || {
                !directories(&place).is_empty() && servers(&place) > 0
            });
            front.signal(signal);
            assert_ne!(front.wait(), 0, "{line:?} {signal}");
            nothing_is_left(&place);
        }
    }
}

#[test]
fn a_missing_program_is_named_with_its_package_in_one_line() {
    let place = place();
    for (url, package) in [
        ("redis:auto", "redis-server"),
        ("redis+cluster:auto", "redis-server"),
        ("redis+sentinel:auto", "redis-server"),
        ("zk:auto", "default-jre-headless"),
    ] {
        for line in [&["demo", "oversell", "--url"][..], &["bench"], &["torture"]] {
            let mut command = place.lk(line.iter().chain([&url]));
            command.env("TMPDIR", place.path("tmp")).env("PATH", place.path("nowhere"));
            let ran = finish_within(&mut command, PATIENCE);
            assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{line:?} {url}: {ran:?}");
            assert!(
                ran.err.lines().count() == 1
                    && ran.err.contains(&format!("install Debian's package {package}")),
                "{line:?} {url}: {ran:?}"
            );
            nothing_is_left(&place);
        }
    }
}

#[test]
fn what_cannot_be_right_is_refused_before_anything_is_told() {
    let place = place();
    for (line, words) in [
        (
            &["demo", "oversell", "--url", "rediss:auto"][..],
            "file:auto, postgres:auto, redis+cluster:auto, redis+sentinel:auto, redis:auto, \
             redlock:auto and zk:auto",
        ),
        (
            &["bench", "rediss:auto"],
            "file:auto, postgres:auto, redis+cluster:auto, redis+sentinel:auto, redis:auto, \
             redlock:auto and zk:auto",
        ),
        (&["demo", "oversell", "--url", "zk:auto?nodes=2"], "give 1, 3 or 5"),
        (&["demo", "oversell", "--url", "redlock:auto?members=4"], "give 3, 5, 7 or 9"),
        (&["bench", "redis+sentinel:auto?replicas=9"], "give a number from 1 to 5"),
        (&["bench", "redis+cluster:auto?shards=2"], "give a number from 3 to 9"),
        (&["bench", "redis:auto?durable=perhaps"], "give true or false"),
        (&["bench", "redis:auto?tlt=5s"], "did you mean ttl?"),
        (&["demo", "oversell", "--url", "redis:auto", "--require", "hosts"], "leave it out"),
        (&["bench", "redis:auto", "--require", "hosts"], "leave it out"),
        (&["run", "x", "--url", "redis:auto", "--", "true"], "demo, bench and torture"),
        (&["acquire", "x", "--url", "zk:auto?nodes=3"], "demo, bench and torture"),
        (&["doctor", "redis:auto"], "demo, bench and torture"),
    ] {
        let ran = run(&place, line);
        assert_eq!((ran.code, ran.out.as_str()), (64, ""), "{line:?}: {ran:?}");
        assert!(ran.err.lines().count() == 1 && ran.err.contains(words), "{line:?}: {ran:?}");
        nothing_is_left(&place);
    }
}
