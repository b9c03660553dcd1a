//! PostgreSQL from the command line.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::proxy::{Proxy, Way};
use nix::sys::signal::Signal;

use crate::common::{
    self, Place, Reaped, finish, held_then_taken_away, json, kill, run, until_true,
};

#[test]
fn postgres_runs_shows_and_is_examined_from_the_command_line() {
    let mut server = PostgresServer::start();
    let url = format!("{}?ttl=2s", server.url());
    let place = Place::new();
    let ran = run(&place, &url, &["run", "nightly", "--", "sh", "-c", "exit 7"]);
    assert_eq!(ran.code, 7, "{ran:?}");

    held_then_taken_away(&place, &url);

    let examined = run(&place, &url, &["doctor"]);
    assert_eq!(examined.code, 0, "{examined:?}");
    for says in ["TIMED", "PostgreSQL 15.", "only ever grow", "synchronous_standby_names"] {
        assert!(examined.out.contains(says), "{says}: {examined:?}");
    }
    for require in ["timed", "fenced", "hosts"] {
        let ran = run(&place, &url, &["run", "--require", require, "a", "--", "true"]);
        assert_eq!(ran.code, 0, "{require}: {ran:?}");
    }
    assert_eq!(run(&place, &url, &["run", "-s", "a", "--", "true"]).code, 0);
    assert_eq!(run(&place, &url, &["run", "--permits", "2/4", "a", "--", "true"]).code, 0);

    server.kill();
    let url = format!("{url}&connect_timeout=1s");
    let alone = run(&place, &url, &["run", "a", "--", "true"]);
    assert!(alone.code == 69 && alone.err.lines().count() == 1, "{alone:?}");
}

#[test]
fn whoever_only_looks_or_types_makes_no_tables() {
    let server = PostgresServer::start();
    let place = Place::new();
    let made = || server.sql("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'");
    for layout in ["table", "shedlock"] {
        let url = format!("{}?layout={layout}", server.url());
        let looked = run(&place, &url, &["doctor", "--no-probe"]);
        assert_eq!((looked.code, looked.err.lines().count()), (69, 1), "{looked:?}");
        assert!(looked.err.contains("lockkeeper schema"), "{looked:?}");
        assert_eq!(offered(&place, &url, "lockkeeper run "), "");
        assert_eq!(made(), "0", "{layout}");
    }
    let url = server.url();
    let mut holder = place.lk(["acquire", "nightly", "--for", "60s"]);
    let _holder = Reaped::spawn(holder.env("LOCKKEEPER_URL", &url));
    until_true("it is offered", || offered(&place, &url, "lockkeeper run ni") == "nightly\n");
    let looked = run(&place, &url, &["doctor", "--no-probe", "--json"]);
    assert_eq!(looked.code, 0, "{looked:?}");
    assert!(!looked.out.contains("create=false"), "its URL is as it was said: {looked:?}");
}

/// What a shell is told for the end of a line.
fn offered(place: &Place, url: &str, line: &str) -> String {
    let mut asked = place.lk(["__complete"]);
    asked.env("LOCKKEEPER_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Reaped::spawn(&mut asked);
    let mut stdin = child.0.stdin.take().unwrap();
    writeln!(stdin, "{line}").unwrap();
    drop(stdin);
    child.output().out
}

#[test]
fn what_libpq_would_read_in_the_environment_is_refused_by_name() {
    let place = Place::new();
    for layout in ["table", "session", "shedlock"] {
        let url = format!("postgres://127.0.0.1:1/x?layout={layout}");
        let mut asked = place.lk(["run", "42", "--", "true"]);
        let ran = finish(asked.env("LOCKKEEPER_URL", &url).env("PGSERVICE", "there"));
        assert_eq!(ran.code, 64, "{layout}: {ran:?}");
        let named = ran.err.contains("PGSERVICE") && ran.err.contains("unset it");
        assert!(named && ran.err.lines().count() == 1, "{layout}: {ran:?}");
    }
}

#[test]
fn advisory_locks_are_shared_with_psql_from_the_command_line() {
    let server = PostgresServer::start();
    let times = "session_timeout=8s&connect_timeout=1m&request_timeout=20s";
    let url = format!("{}?layout=session&{times}", server.url());
    let place = Place::new();
    let ran = run(&place, &url, &["run", "42", "--", "sh", "-c", "exit 7"]);
    assert_eq!(ran.code, 7, "{ran:?}");

    let mut holder = place.lk(["acquire", "42", "--for", "60s"]);
    let mut holder = Reaped::spawn(holder.env("LOCKKEEPER_URL", &url));
    let tries = || server.sql("SELECT pg_try_advisory_lock(42)");
    until_true("it is held", || tries() == "f");
    assert_eq!(run(&place, &url, &["run", "-n", "42", "--", "true"]).code, 75);
    assert_eq!(run(&place, &url, &["run", "-n", "4,2", "--", "true"]).code, 0);
    let shown = json(&run(&place, &url, &["status", "42", "--json"]).out);
    let label = shown["holders"][0]["label"].as_str().unwrap().to_owned();
    assert!(label.contains(&format!(":{}@", holder.pid())), "{shown}");
    assert!(run(&place, &url, &["ls"]).out.contains("42"));
    kill(holder.pid(), Signal::SIGKILL);
    holder.wait();
    until_true("a dead holder's lock is free", || tries() == "t");

    let sleeps = "SELECT pg_advisory_lock(42); SELECT pg_sleep(60)";
    std::thread::scope(|scope| {
        let psql = scope.spawn(|| server.ask(sleeps));
        let busy = || run(&place, &url, &["run", "-n", "42", "--", "true"]);
        until_true("psql has it", || busy().code == 75);
        let forced = run(&place, &url, &["release", "--force", "42"]);
        assert!(forced.code == 1 && forced.err.contains("cannot take a lock away"), "{forced:?}");
        let ends = "SELECT count(pg_terminate_backend(pid)) FROM pg_locks \
                    WHERE locktype = 'advisory'";
        assert_eq!(server.sql(ends), "1");
        assert!(psql.join().unwrap().is_err());
        assert_eq!(busy().code, 0);
    });

    for (arguments, code, says) in [
        (&["run", "a", "--", "true"][..], 64, "names=hash"),
        (&["run", "--permits", "1/2", "42", "--", "true"], 64, "use layout=table"),
        (&["run", "--require", "fenced", "42", "--", "true"], 64, "fenced was required"),
    ] {
        let ran = run(&place, &url, arguments);
        assert_eq!(ran.code, code, "{ran:?}");
        assert!(ran.err.lines().count() == 1 && ran.err.contains(says), "{ran:?}");
    }
    assert_eq!(run(&place, &url, &["run", "--require", "timed", "42", "--", "true"]).code, 0);
    let hashes = format!("{url}&names=hash");
    assert_eq!(run(&place, &hashes, &["run", "a", "--", "true"]).code, 0);
    let examined = run(&place, &hashes, &["doctor"]);
    for says in ["TIMED", "session_timeout", "hashtextextended", "no fencing token"] {
        assert!(examined.out.contains(says), "{says}: {examined:?}");
    }
}

const SMALL: [&str; 5] = ["--workers", "3", "--stock", "8", "--orders"];

/// Act, guard, processes and what was sold, of each run.
fn sales(out: &str) -> Vec<(u64, String, u64, u64)> {
    let of = |line: &str| {
        let run = json(line);
        let number = |key: &str| run[key].as_u64().unwrap();
        let guard = run["guard"].as_str().unwrap().to_owned();
        (number("act"), guard, number("processes"), number("sold"))
    };
    out.lines().map(of).collect()
}

/// What each run of a story says that was told in a database.
fn story_in_a_database(ran: &common::Ran) {
    assert_eq!(ran.code, 0, "{ran:?}");
    let told = sales(&ran.out);
    let acts: Vec<_> = told.iter().map(|(act, guard, ..)| (*act, guard.as_str())).collect();
    let expected = [
        (1, "none"),
        (2, "process"),
        (2, "process"),
        (3, "lockkeeper"),
        (4, "lockkeeper"),
        (4, "lockkeeper+token"),
        (6, "lockkeeper"),
        (6, "version"),
        (6, "lockkeeper"),
        (6, "version"),
    ];
    assert_eq!(acts, expected, "{ran:?}");
    assert!(told[0].3 > 8 && told[2].3 > 8, "acts 1 and 2 oversell: {ran:?}");
    let processes: Vec<_> = told[6..].iter().map(|(_, _, processes, _)| *processes).collect();
    assert_eq!(processes, [2, 2, 8, 8], "{ran:?}");
    for (act, guard, _, sold) in &told[6..] {
        assert_eq!(*sold, 8, "{act} {guard}: {ran:?}");
    }
    let runs: Vec<_> = ran.out.lines().map(json).collect();
    for run in &runs {
        let repeats = run["repeats"].as_u64();
        assert_eq!(repeats.is_some(), run["guard"] == "version", "{run}");
        // All first customers have read the same version.
        let least = run["processes"].as_u64().unwrap() - 1;
        assert!(repeats.is_none_or(|repeats| repeats >= least), "{run}");
    }
    let late = |at: usize, key: &str| runs[at][key].as_u64();
    assert_eq!(late(4, "late_writes_accepted"), Some(1), "{ran:?}");
    assert_eq!(late(5, "late_writes_rejected"), Some(1), "{ran:?}");
}

/// Whether nothing of a demo is in the database.
fn is_clean(server: &PostgresServer) -> bool {
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'lockkeeper_demo%'";
    let locks = "SELECT count(*) FROM lockkeeper_locks";
    let no_locks = server.ask(locks).map_or(true, |count| count == "0");
    server.sql(tables) == "0" && no_locks
}

#[test]
fn act_6_sells_by_version_exactly_beside_the_lock_and_nothing_of_it_stays() {
    let server = PostgresServer::start_with(&["max_connections=60"]);
    let place = Place::new();
    let line = [&["demo", "oversell", "--json"][..], &SMALL, &["30"]].concat();
    let ran = run(&place, &format!("{}?schema=sales", server.url()), &line);
    story_in_a_database(&ran);
    assert_eq!(server.sql("SELECT count(*) FROM sales.lockkeeper_locks"), "0", "{ran:?}");
    assert!(is_clean(&server), "{ran:?}");
    let table = run(&place, &server.url(), &[&["demo", "oversell"][..], &SMALL, &["9"]].concat());
    assert_eq!(table.code, 0, "{table:?}");
    for says in ["Act 6: the same sales without any lock", "no lock: the row's version", "again"] {
        assert!(table.out.contains(says), "{says}: {table:?}");
    }
}

#[test]
fn an_interrupted_demo_leaves_neither_its_row_nor_its_places_in_line() {
    let server = PostgresServer::start();
    let place = Place::new();
    let line = "demo oversell --json --workers 3 --stock 400 --orders 1200";
    let mut lk = place.lk(line.split(' '));
    let mut demo = Reaped::spawn(lk.env("LOCKKEEPER_URL", server.url()).stdout(Stdio::piped()));
    let mut out = BufReader::new(demo.0.stdout.take().unwrap()).lines();
    // Until act 3, in which the lock is held and waited for.
    for _ in 0..3 {
        out.next().unwrap().unwrap();
    }
    let used = "SELECT count(*) FROM lockkeeper_locks JOIN lockkeeper_line USING (kind, name)";
    until_true("workers stand in line", || server.ask(used).is_ok_and(|count| count != "0"));
    demo.signal(Signal::SIGINT);
    assert_eq!(demo.wait(), 130);
    assert!(is_clean(&server), "{}", server.sql("SELECT kind, record FROM lockkeeper_locks"));
    assert_eq!(server.sql("SELECT count(*) FROM lockkeeper_line"), "0");
}

#[test]
fn a_stock_in_a_database_is_sold_from_under_a_lock_on_redis_with_the_fence_on_its_row() {
    let (server, redis) =
        (PostgresServer::start(), lockkeeper_testkit::redis::server::RedisServer::start());
    let place = Place::new();
    // Nobody else makes the schema: the lock is not there.
    let stock = format!("{}?schema=New%20one", server.url());
    let line = [&["demo", "oversell", "--json", "--stock", &stock][..], &SMALL, &["30"]].concat();
    let ran = run(&place, &redis.url(), &line);
    story_in_a_database(&ran);
    assert!(ran.out.lines().all(|line| json(line)["engine"] == "redis"), "{ran:?}");
    assert!(is_clean(&server), "{ran:?}");
    assert_eq!(redis.command(&["KEYS", "*"]).concat(), "", "{ran:?}");
}

#[test]
fn a_database_that_falls_silent_ends_the_demo_with_one_line() {
    let server = PostgresServer::start();
    let proxy = Proxy::to(server.port());
    let place = Place::new();
    let stock = format!("postgres://{USER}@127.0.0.1:{}/postgres", proxy.port());
    let line = ["demo", "oversell", "--json", "--stock", &stock, "--orders", "30"];
    let mut demo = place.lk(line);
    let mut demo = Reaped::spawn(demo.stdout(Stdio::piped()).stderr(Stdio::piped()));
    let mut out = BufReader::new(demo.0.stdout.take().unwrap()).lines();
    out.next().unwrap().unwrap();
    proxy.blackhole(Way::Down);
    let ran = demo.output_within(common::PATIENCE);
    assert!(ran.code == 69 && ran.err.lines().count() == 1, "{ran:?}");
    assert!(ran.err.contains("no answer in 5 s"), "{ran:?}");
}

#[test]
fn thirty_two_sell_at_once_and_too_few_connections_are_named() {
    let place = Place::new();
    let server = PostgresServer::start();
    let line = "demo oversell --json --workers 2 --stock 8 --orders 32";
    let line: Vec<&str> = line.split(' ').collect();
    let ran = run(&place, &server.url(), &line);
    assert_eq!(ran.code, 0, "{ran:?}");
    let last = sales(&ran.out).pop();
    assert_eq!(last, Some((6, "version".to_owned(), 32, 8)), "{ran:?}");
    drop(server);
    let small = PostgresServer::start_with(&["max_connections=20"]);
    let line = "demo oversell --json --workers 14 --stock 8 --orders 32";
    let line: Vec<&str> = line.split(' ').collect();
    let refused = run(&place, &small.url(), &line);
    assert!(refused.code == 69 && refused.err.lines().count() == 1, "{refused:?}");
    assert!(refused.err.contains("max_connections"), "{refused:?}");
}

#[test]
fn the_schema_is_printed_with_the_least_rights_and_only_for_a_database() {
    let place = Place::new();
    let printed = place.run(["schema", "postgres://app@h/db?schema=lk&prefix=x"]);
    assert_eq!((printed.code, printed.err.as_str()), (0, ""), "{printed:?}");
    for says in [
        "CREATE SCHEMA IF NOT EXISTS \"lk\";",
        "CREATE TABLE IF NOT EXISTS \"lk\".\"x_locks\" (",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON \"lk\".\"x_locks\", \"lk\".\"x_line\" TO \"app\";",
        "GRANT SELECT, UPDATE (line) ON \"lk\".\"x_locks\" TO that_role;",
    ] {
        assert!(printed.out.contains(says), "{says}: {printed:?}");
    }
    let none = place.run(["schema", "redis://h"]);
    assert_eq!((none.code, none.err.lines().count()), (64, 1), "{none:?}");
    assert!(none.err.contains("no tables"), "{none:?}");
}

#[test]
fn a_postgres_url_that_cannot_be_right_is_one_line_that_says_what_to_write() {
    let place = Place::new();
    for (url, says) in [
        ("postgres:", "names no host"),
        ("postgres://h?tabel=x", "does not know the option"),
        ("postgres://h?sslmode=require", "none of disable, verify-full"),
        ("postgres://h?sslmode=disable&sslrootcert=/x", "sslrootcert"),
        ("postgres://h/db?socket=/run", "goes without a host"),
        ("postgres:///db?socket=run", "absolute path"),
        ("postgres://u:p@h?password_file=/x", "given twice"),
        ("postgres://h?prefix=", "1 to 48 bytes"),
    ] {
        let refused = run(&place, url, &["run", "-n", "x", "--", "true"]);
        assert_eq!(refused.code, 64, "{url}: {refused:?}");
        assert!(refused.err.contains(says) && refused.err.lines().count() == 1, "{refused:?}");
    }
}
