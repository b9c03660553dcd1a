//! What the examples print is what their first lines, the README and the articles say of them.
#![cfg(all(
    feature = "file",
    feature = "memory",
    feature = "postgres",
    feature = "redis",
    feature = "zookeeper"
))]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

/// An example, which was built before.
fn example(name: &str, words: &[&str]) -> Command {
    let tests = std::env::current_exe().unwrap();
    let program = tests.parent().unwrap().with_file_name("examples").join(name);
    assert!(
        program.exists(),
        "{} is missing: cargo build --workspace --all-features --examples",
        program.display()
    );
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null());
    command
}

fn lines(output: &Output) -> Vec<String> {
    let (out, err) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{out}\n{err}", output.status);
    out.lines().map(str::to_owned).collect()
}

/// The number behind a word.
fn number(line: &str, word: &str) -> u64 {
    let rest = line.split(word).nth(1).unwrap_or_else(|| panic!("no {word:?} in {line:?}"));
    rest.trim_start().chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap()
}

fn rise(tokens: &[u64]) -> bool {
    tokens.windows(2).all(|pair| pair[0] < pair[1])
}

#[test]
fn ten_contenders_says_who_waits_behind_whom_and_who_got_it_in_that_order() {
    let run = || lines(&example("ten_contenders", &[]).output().unwrap());
    let in_order = |lines: &Vec<String>| {
        let got = lines.iter().filter(|l| l.starts_with("  process "));
        got.enumerate().all(|(n, l)| l.starts_with(&format!("  process {n} (pid ")))
    };
    // A process is seen in line a moment before it waits in the kernel: the next one may overtake
    // it then, but not each time.
    let lines = (0..2).map(|_| run()).find(in_order).unwrap_or_else(run);
    let at = lines.iter().position(|l| l.starts_with("Ten processes, as file sees them:")).unwrap();
    let (tasks, processes) = lines.split_at(at);
    assert_eq!(tasks[0], "Ten tasks of one process:");
    for n in 0..10 {
        let before = if n == 0 { "main".to_owned() } else { format!("task {}", n - 1) };
        assert_eq!(tasks[2 + n], format!("  task {n} waits behind {before}"));
        assert!(tasks[12 + n].starts_with(&format!("  task {n} got it, token ")), "{tasks:?}");
        assert!(
            processes[12 + n].starts_with(&format!("  process {n} (pid ")),
            "first come, first served: {processes:?}"
        );
    }
    let waits: Vec<_> =
        processes[2..12].iter().map(|l| l.trim().split_once(" waits behind ").unwrap()).collect();
    assert!(
        waits[0].1 == "main" && waits.windows(2).all(|pair| pair[1].1 == pair[0].0),
        "{waits:?}"
    );
    let pids = processes[12..22].iter().map(|l| format!("pid {}", number(l, "(pid ")));
    assert!(
        pids.eq(waits.iter().map(|(pid, _)| (*pid).to_owned())),
        "they got it as they stood: {processes:?}"
    );
    let tokens: Vec<_> =
        lines.iter().filter(|l| l.contains("token ")).map(|l| number(l, "token ")).collect();
    assert!(tokens.len() == 22 && rise(&tokens), "{tokens:?}");
}

/// The layouts of one server, each a URL's options.
fn contends_on(server: &str, options: &[&str]) {
    for options in options {
        let lines =
            lines(&example("ten_contenders", &[&format!("{server}{options}")]).output().unwrap());
        let got =
            lines.iter().filter(|l| l.starts_with("  process ") && l.contains(" got it")).count();
        assert_eq!(got, 10, "{options}: {lines:?}");
    }
}

#[test]
fn c36_ten_contenders_runs_on_every_layout_of_redis_with_and_without_tokens() {
    let redis = lockkeeper_testkit::redis::server::RedisServer::start();
    let options = [
        "",
        "&layout=plain",
        "&layout=redisson",
        "&layout=redisson&lock=fair",
        "&layout=redisson&lock=fenced",
    ];
    contends_on(&format!("redis://127.0.0.1:{}?ttl=30s", redis.port()), &options);
}

#[test]
fn c36_ten_contenders_runs_on_every_layout_of_zookeeper() {
    let server = lockkeeper_testkit::zookeeper::server::Server::start(Default::default()).unwrap();
    let options = ["?layout=curator", "?layout=kazoo", "?layout=plain"];
    contends_on(&format!("zk://127.0.0.1:{}", server.port()), &options);
}

#[test]
fn order_service_sells_what_is_in_stock_and_no_more() {
    let lines = lines(&example("order_service", &[]).output().unwrap());
    assert!(lines.iter().any(|l| l.ends_with("5 in stock: 5 sold, 0 left")), "{lines:?}");
}

#[test]
fn leader_has_one_leader_at_a_time_and_the_next_when_it_stands_down() {
    let lines = lines(&example("leader", &[]).output().unwrap());
    let rounds: Vec<_> =
        lines.iter().filter_map(|l| Some((l.split_once(" leads, round ")?.0, l))).collect();
    assert_eq!(rounds.len(), 9, "{lines:?}");
    for term in rounds.chunks(3) {
        assert!(term.iter().all(|(who, _)| *who == term[0].0), "{lines:?}");
        assert_eq!(term.iter().map(|(_, l)| number(l, "round ")).collect::<Vec<_>>(), [1, 2, 3]);
    }
    let tokens: Vec<_> = rounds.chunks(3).map(|term| number(term[0].1, "token ")).collect();
    assert!(rise(&tokens), "{tokens:?}");
    assert_eq!(lines.iter().filter(|l| l.ends_with(" stood down")).count(), 3, "{lines:?}");
}

#[test]
fn nightly_job_runs_once_and_says_who_is_at_it() {
    let dir = tempfile::tempdir().unwrap();
    let url = lockkeeper::config::file_url(&dir.path().join("locks"));
    let done = lines(&example("nightly_job", &[&url]).output().unwrap());
    assert_eq!(
        done.last().map(String::as_str),
        Some("done, and the lock was ours until now"),
        "{done:?}"
    );
    let locks = lockkeeper::blocking::Locks::open(&url).unwrap();
    let guard = locks.mutex("nightly").lock().run().unwrap();
    let busy = example("nightly_job", &[&url]).output().unwrap();
    let said = String::from_utf8_lossy(&busy.stdout).into_owned();
    assert_eq!(busy.status.code(), Some(75), "{said}");
    assert!(
        said.starts_with("not now: ")
            && said.contains(&format!("(pid {}) is at it", std::process::id())),
        "{said}"
    );
    drop(guard);
}

#[test]
fn engine_in_100_lines_excludes_hands_over_and_numbers() {
    let lines = lines(&example("engine_in_100_lines", &[]).output().unwrap());
    assert!(
        lines[0].starts_with("here has it, token ") && lines[0].ends_with("there: false"),
        "{lines:?}"
    );
    assert_eq!(lines[1], "given back: Clean");
    assert!(
        rise(&[number(&lines[0], "token "), number(&lines[2], "there has it, token ")]),
        "{lines:?}"
    );
    let text = include_str!("../../examples/engine_in_100_lines.rs");
    let says = |l: &&str| !l.trim_start().starts_with("//") && l.contains(char::is_alphanumeric);
    let code = text.lines().filter(says).count();
    assert!(code <= 130, "{code} lines that say something, its main included");
}

#[test]
fn hold_says_that_it_was_granted_and_ends_with_its_input() {
    let lines = lines(&example("hold", &["memory:", "name"]).output().unwrap());
    assert!(lines[0].contains("granted"), "{lines:?}");
}

#[test]
fn convert_writes_goes_back_and_stays_as_a_reader() {
    let lines = lines(&example("convert", &[]).output().unwrap());
    assert_eq!(lines, ["upgradable", "writing", "upgradable", "reading"]);
}

#[test]
fn fenced_redis_sells_one_and_refuses_the_late_write() {
    let server = lockkeeper_testkit::redis::server::RedisServer::start();
    let address = format!("127.0.0.1:{}", server.port());
    let lines = lines(&example("fenced_redis", &[&address]).output().unwrap());
    assert_eq!(lines, ["sold: true, 49 left", "a late write was accepted: false"]);
}

#[test]
fn optimistic_stock_sells_by_version_what_there_is_and_shows_the_traps() {
    let lines = lines(&example("optimistic_stock", &[]).output().unwrap());
    assert!(lines[0].starts_with("by version: 5 sold, 0 left; done again: "), "{lines:?}");
    assert!(number(&lines[0], "done again: ") > 0, "all have read the same: {lines:?}");
    let expected = [
        "lost update: 2 sold of 2, and 1 is left",
        "only the write again: refused at first: true; then 2 sold of 1",
        "ABA: sold for 10 what costs 25: true",
        "ABA, by version: false",
        "a row that came back, versions from 1: a stale write went through: true",
        "a row that came back, versions from the clock: a stale write went through: false",
    ];
    assert_eq!(lines[1..], expected);
}

#[test]
fn transaction_under_lock_commits_under_the_lock_and_not_after_it() {
    let lines = lines(&example("transaction_under_lock", &[]).output().unwrap());
    let expected = [
        "under the lock: sold: true, 4 left",
        "given back: Clean",
        "after it: sold: false, 4 left",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn bench_driver_answers_a_window_with_the_times_of_each_turn_in_it() {
    answers_a_window(example("bench_driver", &[]), 20);
}

#[test]
fn bench_advisory_answers_a_window_with_the_times_of_each_turn_in_it() {
    let server = lockkeeper_testkit::postgres::server::PostgresServer::start();
    let url = format!("{}?ttl=20s", server.url());
    answers_a_window(example("bench_advisory", &[&url]), 100);
}

fn answers_a_window(mut driver: Command, window_ms: u64) {
    driver.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut driver = driver.spawn().unwrap();
    driver
        .stdin
        .take()
        .unwrap()
        .write_all(format!("turn\t{window_ms}\tstock\n").as_bytes())
        .unwrap();
    let lines = lines(&driver.wait_with_output().unwrap());
    assert!(lines[0].starts_with("ready\t"), "{lines:?}");
    let turns: Vec<[u64; 2]> = lines[1]
        .split_whitespace()
        .map(|turn| {
            let (granted, released) = turn.split_once('/').unwrap();
            [granted, released].map(|nanoseconds| nanoseconds.parse().unwrap())
        })
        .collect();
    assert!(turns.iter().all(|[granted, released]| granted <= released), "{turns:?}");
    let took: u64 = turns.iter().map(|[_, released]| released).sum();
    let before_the_last = took - turns.last().expect("one turn at least")[1];
    assert!(before_the_last < window_ms * 1_000_000, "no turn begins after the window: {turns:?}");
}

#[test]
fn every_example_has_a_test() {
    let tests = include_str!("examples.rs");
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    for name in files.map(|f| f.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned()) {
        assert!(
            tests.contains(&format!("example(\"{name}\", ")),
            "examples/{name}.rs has no test here"
        );
    }
}

#[test]
fn moving_excludes_those_with_either_engine_and_its_token_rises_from_step_to_step() {
    let lines = lines(&example("moving", &[]).output().unwrap());
    let tokens: Vec<_> = lines.iter().filter(|line| line.contains("token")).collect();
    assert_eq!(tokens.len(), 3, "{lines:?}");
    assert!(rise(&tokens.iter().map(|line| number(line, "token ")).collect::<Vec<_>>()));
    assert!(tokens[0].ends_with("moving: false"), "{lines:?}");
    assert!(tokens[1].ends_with("old: false, new: false"), "{lines:?}");
    assert!(tokens[2].ends_with("moving: false"), "{lines:?}");
    assert_eq!(lines.iter().filter(|line| *line == "given back: Clean").count(), 3, "{lines:?}");
}
