//! A server that goes away, refuses us or stands still while we wait in its line, and comes back.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;
use std::time::{Duration, Instant};

use lockkeeper::ErrorKind;
use lockkeeper::blocking::Locks;
use lockkeeper_testkit::redis::server::RedisServer;
use nix::sys::signal::Signal;

use crate::common::lease::Engine;
use crate::common::{Place, Ran, Reaped, json, until_true};

/// A lockkeeper that stands in line for `job`, and since when.
fn in_line(engine: &Engine, place: &Place, args: &[&str]) -> Reaped {
    let mut lk = place.lk(args);
    lk.env("LOCKKEEPER_URL", engine.url()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let waiter = Reaped::spawn(&mut lk);
    let kind = if args[0] == "elect" { "election" } else { "lock" };
    let stands = || {
        let listed = engine.run(place, &["ls", "--json"]).out;
        let mine = |line: &&str| json(line)["kind"] == kind && json(line)["name"] == "job";
        listed
            .lines()
            .find(mine)
            .is_some_and(|line| json(line)["waiters"].as_array().is_some_and(|w| w.len() == 1))
    };
    until_true("it stands in line", stands);
    waiter
}

fn kill(engine: &mut Engine) {
    match engine {
        Engine::Redis(server) => server.kill(),
        Engine::ZooKeeper(server) => server.kill().unwrap(),
    }
}

fn restart(engine: &mut Engine) {
    match engine {
        Engine::Redis(server) => server.restart(),
        Engine::ZooKeeper(server) => server.restart().unwrap(),
    }
}

/// From now on the server asks everybody for a password.
fn refuse(server: &RedisServer) {
    let mut client = server.client();
    client.command(&["CONFIG", "SET", "requirepass", "s3same"]);
    client.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    client.command(&["CLIENT", "KILL", "TYPE", "pubsub", "SKIPME", "yes"]);
}

fn accept(server: &RedisServer) {
    let mut client = server.client();
    client.command(&["AUTH", "s3same"]);
    client.command(&["CONFIG", "SET", "requirepass", ""]);
}

/// The keys of an object, in alphabetical order.
fn keys(object: &serde_json::Value) -> Vec<&str> {
    let mut keys: Vec<&str> = object.as_object().unwrap().keys().map(String::as_str).collect();
    keys.sort_unstable();
    keys
}

/// A server that dies and comes back: `--json` tells both, and the waiter gets the lock in the end.
fn tells_an_outage_and_its_end(mut engine: Engine) {
    let place = Place::new();
    let locks = Locks::open(&engine.url()).unwrap();
    let held = locks.mutex("job").lock().run().unwrap();
    let mut waiter =
        in_line(&engine, &place, &["run", "job", "--json", "--report", "report", "--", "true"]);
    let mut told =
        BufReader::new(waiter.0.stderr.take().unwrap()).lines().map(|line| json(&line.unwrap()));
    assert_eq!(told.next().unwrap()["event"], "waiting");
    kill(&mut engine);
    let down = Instant::now();
    let outage = told.next().unwrap();
    let after = down.elapsed();
    assert_eq!((&outage["event"], &outage["name"]), (&json("\"unreachable\""), &json("\"job\"")));
    assert_eq!(keys(&outage), ["event", "name", "refused", "server", "why"], "docs/json.md");
    assert_eq!(outage["refused"], false, "{outage}");
    assert_eq!(outage["server"].as_str().unwrap(), engine.url());
    assert!(outage["why"].as_str().unwrap().contains("127.0.0.1"), "{outage}");
    println!("{}: told after {after:?}", engine.name());
    assert!(after > Duration::from_secs(9) && after < Duration::from_secs(16), "{after:?}");
    restart(&mut engine);
    let back = told.next().unwrap();
    assert_eq!(
        (&back["event"], back["server"].as_str()),
        (&json("\"reachable\""), Some(engine.url().as_str()))
    );
    assert_eq!(keys(&back), ["event", "name", "server"], "docs/json.md");
    drop(held);
    assert_eq!(told.next().unwrap()["event"], "granted");
    assert_eq!(told.next().unwrap()["event"], "done");
    assert_eq!(waiter.wait(), 0);
    assert_eq!(json(&place.read("report"))["outcome"], "ran");
}

#[test]
fn a_waiter_on_redis_tells_that_its_server_is_gone_and_that_it_is_back() {
    tells_an_outage_and_its_end(Engine::redis());
}

#[test]
fn a_waiter_on_zookeeper_tells_that_its_server_is_gone_and_that_it_is_back() {
    tells_an_outage_and_its_end(Engine::zookeeper());
}

/// A server that stands still: `--unreachable-after` ends the wait, and `--on-unreachable` decides.
fn ends_when_its_patience_is_over(engine: Engine, args: &[&str]) -> (Ran, Duration) {
    let place = Place::new();
    let locks = Locks::open(&engine.url()).unwrap();
    let _held = locks.mutex("job").lock().run().unwrap();
    let _led = locks.election("job").stand("other").run().unwrap();
    let waiter = in_line(&engine, &place, args);
    engine.stop();
    let stopped = Instant::now();
    let ran = waiter.output();
    let took = stopped.elapsed();
    println!("{} {args:?}: ended after {took:?}: {ran:?}", engine.name());
    engine.go_on();
    // It left nothing: its place is gone, at the latest after 15 s or with its session.
    let waiters = || {
        let listed = engine.run(&place, &["ls", "--json"]);
        assert_eq!(listed.code, 0, "{listed:?}");
        listed
            .out
            .lines()
            .filter_map(|line| json(line)["waiters"].as_array().map(Vec::len))
            .sum::<usize>()
    };
    until_true("its place is gone", || waiters() == 0);
    (ran, took)
}

/// The net asks every five seconds, an answer may take two, and the patience of two is counted from
/// the question.
const AT_MOST: Duration = Duration::from_secs(12);

#[test]
fn unreachable_after_ends_the_wait_of_run_with_69() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let (ran, took) = ends_when_its_patience_is_over(
            engine,
            &["run", "job", "--unreachable-after", "2s", "--", "echo", "ran"],
        );
        assert_eq!((ran.code, ran.out.as_str()), (69, ""), "{ran:?}");
        assert!(ran.err.contains("127.0.0.1") && took < AT_MOST, "{took:?}: {ran:?}");
    }
}

#[test]
fn unreachable_after_ends_the_waits_of_acquire_and_elect_with_69() {
    let (ran, took) = ends_when_its_patience_is_over(
        Engine::redis(),
        &["acquire", "job", "--unreachable-after", "2s"],
    );
    assert!(ran.code == 69 && took < AT_MOST, "{took:?}: {ran:?}");
    let (ran, took) = ends_when_its_patience_is_over(
        Engine::redis(),
        &["elect", "job", "--unreachable-after", "2s", "--", "echo", "ran"],
    );
    assert!(ran.code == 69 && ran.out.is_empty() && took < AT_MOST, "{took:?}: {ran:?}");
}

#[test]
fn on_unreachable_run_starts_the_command_unlocked_when_the_patience_of_a_waiter_is_over() {
    let args = [
        "run",
        "job",
        "--json",
        "--unreachable-after",
        "1s",
        "--on-unreachable",
        "run",
        "--",
        "echo",
        "ran",
    ];
    let (ran, took) = ends_when_its_patience_is_over(Engine::redis(), &args);
    let done = json(ran.err.lines().last().unwrap());
    assert_eq!((ran.code, ran.out.as_str()), (0, "ran\n"), "{ran:?}");
    assert_eq!((&done["event"], &done["outcome"]), (&json("\"done\""), &json("\"ran-unlocked\"")));
    assert!(took < AT_MOST, "{took:?}");
}

#[test]
fn a_server_that_begins_to_refuse_a_waiter_is_told_after_10_s_and_without_its_password() {
    let server = RedisServer::start();
    let engine = Engine::Redis(server);
    let Engine::Redis(server) = &engine else { unreachable!("it was just made") };
    let place = Place::new();
    let locks = Locks::open(&server.url()).unwrap();
    let held = locks.mutex("job").lock().run().unwrap();
    let mut plain = in_line(&engine, &place, &["run", "job", "--", "true"]);
    let mut err = BufReader::new(plain.0.stderr.take().unwrap());
    let mut line = String::new();
    err.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for job"), "{line}");
    let mut quiet = place.lk([
        "run",
        "job",
        "-q",
        "--unreachable-after",
        "12s",
        "--on-unreachable",
        "run",
        "--",
        "echo",
        "ran",
    ]);
    let quiet = Reaped::spawn(
        quiet.env("LOCKKEEPER_URL", engine.url()).stdout(Stdio::piped()).stderr(Stdio::piped()),
    );
    until_true("both stand in line", || {
        json(engine.run(&place, &["status", "job", "--json"]).out.trim())["waiters"][1].is_object()
    });
    refuse(server);
    line.clear();
    err.read_line(&mut line).unwrap();
    println!("{line}");
    assert!(
        line.contains(&server.url())
            && line.contains("wants a password")
            && line.contains("has refused it for")
            && line.contains("still waiting"),
        "{line}"
    );
    // A refusal is no outage that one may run through, and -q leaves the error alone.
    let ran = quiet.output();
    assert_eq!((ran.code, ran.out.as_str(), ran.err.lines().count()), (69, "", 1), "{ran:?}");
    accept(server);
    line.clear();
    err.read_line(&mut line).unwrap();
    assert!(line.contains("answers again"), "{line}");
    drop(held);
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("granted") && !rest.contains("s3same") && plain.wait() == 0, "{rest}");
}

#[test]
fn a_release_that_waits_for_its_server_is_said_after_a_second() {
    let engine = Engine::redis();
    let place = Place::new();
    let mut run =
        place.lk(["run", "job", "--report", "report", "--", "sh", "-c", "touch runs; cat"]);
    let mut run = Reaped::spawn(
        run.env("LOCKKEEPER_URL", engine.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped()),
    );
    until_true("it runs", || place.path("runs").exists());
    engine.stop();
    drop(run.0.stdin.take());
    let ended = Instant::now();
    let mut line = String::new();
    let mut err = BufReader::new(run.0.stderr.take().unwrap());
    err.read_line(&mut line).unwrap();
    let after = ended.elapsed();
    assert!(line.contains("giving the lock back") && line.contains(&engine.url()), "{line}");
    assert!(after > Duration::from_millis(900) && after < Duration::from_secs(3), "{after:?}");
    assert_eq!(run.wait(), 0);
    let mut rest = String::new();
    err.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "", "one line");
    assert_eq!(json(&place.read("report"))["release"], "unknown");
    engine.go_on();
}

#[test]
fn a_try_on_a_server_that_stands_still_ends_after_one_request_timeout() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let locks = Locks::open(&engine.url()).unwrap();
        engine.stop();
        let began = Instant::now();
        let error = locks.mutex("job").try_lock().run().unwrap_err();
        let took = began.elapsed();
        engine.go_on();
        println!("{}: {error} after {took:?}", engine.name());
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        assert!(
            took > Duration::from_millis(1_900) && took < Duration::from_secs(4),
            "{took:?}: {error}"
        );
    }
}

#[test]
fn a_lock_with_a_timeout_rides_out_a_restart_that_is_shorter() {
    for mut engine in [Engine::redis(), Engine::zookeeper()] {
        let locks = Locks::open(&engine.url()).unwrap();
        kill(&mut engine);
        let began = Instant::now();
        let locking = std::thread::spawn(move || {
            locks.mutex("job").lock().timeout(Duration::from_secs(40)).run().map(drop)
        });
        // Longer than any single request is waited for.
        let error = Locks::open(&engine.url()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        until_true("more than a connect's time has passed", || {
            began.elapsed() > Duration::from_secs(7)
        });
        assert!(!locking.is_finished(), "{}", engine.name());
        restart(&mut engine);
        locking.join().unwrap().unwrap();
        println!("{}: locked after {:?}", engine.name(), began.elapsed());
    }
}

#[test]
fn a_lock_whose_server_stays_away_for_all_of_its_timeout_is_unreachable() {
    let mut engine = Engine::redis();
    let locks = Locks::open(&engine.url()).unwrap();
    kill(&mut engine);
    let began = Instant::now();
    let error =
        locks.mutex("job").lock().timeout(Duration::from_secs(7)).run().map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        began.elapsed() >= Duration::from_secs(7) && began.elapsed() < Duration::from_secs(9),
        "{:?}",
        began.elapsed()
    );
}

#[test]
fn a_waiter_on_a_dead_server_still_ends_at_once_on_a_signal() {
    let mut engine = Engine::redis();
    let place = Place::new();
    let locks = Locks::open(&engine.url()).unwrap();
    let _held = locks.mutex("job").lock().run().unwrap();
    let mut waiter = in_line(&engine, &place, &["run", "job", "--", "true"]);
    kill(&mut engine);
    waiter.signal(Signal::SIGTERM);
    let began = Instant::now();
    assert_eq!(waiter.wait(), 143);
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());
}
