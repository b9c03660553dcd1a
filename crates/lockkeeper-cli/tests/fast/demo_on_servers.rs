//! `demo oversell` with its stock where the lock is: in Redis, in a znode.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::common::lease::Engine;
use crate::common::{self, Place, Reaped, json};

/// Whether the server keeps anything of a demo.
fn is_clean(engine: &Engine) -> bool {
    match engine {
        Engine::Redis(server) => server.command(&["KEYS", "*"]).iter().all(String::is_empty),
        // Everything that a server is born with.
        Engine::ZooKeeper(server) => {
            server.ask("mntr").unwrap().lines().any(|line| line == "zk_znode_count\t5")
        }
    }
}

/// Acts and what guards them, of runs on this engine.
fn guards<'a>(engine: &Engine, runs: &'a [Value]) -> Vec<(u64, &'a str)> {
    for run in runs {
        assert_eq!(run["engine"].as_str(), Some(engine.name()), "{run}");
    }
    runs.iter().map(|r| (r["act"].as_u64().unwrap(), r["guard"].as_str().unwrap())).collect()
}

fn the_whole_story(engine: &Engine) {
    let place = Place::new();
    assert!(is_clean(engine));
    the_acts_of_sellers(engine, &place);
    the_act_of_who_is_late(engine, &place);
    common::until_true("the demo's records are gone", || is_clean(engine));
}

/// No session ends before these do; act 4 would wait for the end of one, and is not waited for.
fn the_acts_of_sellers(engine: &Engine, place: &Place) {
    let url = engine.url_with_sessions_of(10);
    let line = "demo oversell --workers 3 --stock 8 --orders 30 --json --url";
    let mut demo = place.lk(line.split(' ').chain([&*url]));
    let mut demo = Reaped::spawn(demo.stdout(Stdio::piped()));
    let mut out = BufReader::new(demo.0.stdout.take().unwrap()).lines();
    let runs: Vec<_> = out.by_ref().take(4).map(|line| json(&line.unwrap())).collect();
    demo.signal(Signal::SIGINT);
    assert!(matches!(demo.wait(), 0 | 130), "{runs:?}");
    let expected = [(1, "none"), (2, "process"), (2, "process"), (3, "lockkeeper")];
    assert_eq!(guards(engine, &runs), expected);
    let of = |at: usize, key: &str| runs[at][key].as_u64();
    assert!(of(0, "oversold") > Some(0), "{runs:?}");
    assert_eq!(of(1, "sold"), Some(8), "{runs:?}");
    assert!(of(2, "oversold") > Some(0), "{runs:?}");
    assert_eq!(of(3, "oversold"), Some(0), "BROKEN LOCK: {runs:?}");
    assert_eq!(of(3, "sold"), Some(8), "{runs:?}");
}

/// Act 4 waits for a session to end. Where one ended that was not to, the story is told again.
fn the_act_of_who_is_late(engine: &Engine, place: &Place) {
    let url = engine.url_with_sessions_of(1);
    let line = "demo oversell --workers 2 --stock 1 --orders 2 --json --url";
    common::until_true("all of it is told", || {
        let ran = place.run(line.split(' ').chain([&*url]));
        let mut runs: Vec<_> = ran.out.lines().map(json).collect();
        runs.retain(|run| run["act"] == 4);
        if runs.len() == 2 {
            assert_eq!(guards(engine, &runs), [(4, "lockkeeper"), (4, "lockkeeper+token")]);
            let late = runs.iter().map(|run| {
                ["late_writes_accepted", "late_writes_rejected", "oversold"]
                    .map(|key| run[key].as_u64())
            });
            let late: Vec<_> = late.collect();
            let expected = [[1, 0, 1], [0, 1, 0]].map(|run| run.map(Some));
            assert_eq!(late, expected, "{ran:?}");
        }
        if ran.code != 0 {
            eprintln!("{ran:?}");
        }
        ran.code == 0 && runs.len() == 2
    });
}

#[test]
fn the_demo_tells_the_whole_story_on_redis_and_leaves_nothing() {
    the_whole_story(&Engine::redis());
}

#[test]
fn the_demo_tells_the_whole_story_on_zookeeper_and_leaves_nothing() {
    the_whole_story(&Engine::zookeeper());
}

#[test]
fn an_interrupted_demo_leaves_nothing() {
    for engine in [Engine::redis(), Engine::zookeeper()] {
        let place = Place::new();
        let mut lk = place.lk([
            "demo",
            "oversell",
            "--workers",
            "3",
            "--stock",
            "20",
            "--orders",
            "60",
            "--json",
        ]);
        let mut demo = Reaped::spawn(lk.env("LOCKKEEPER_URL", engine.url()).stdout(Stdio::piped()));
        let mut out = BufReader::new(demo.0.stdout.take().unwrap()).lines();
        // Until the lock is in use.
        for _ in 0..3 {
            out.next().unwrap().unwrap();
        }
        demo.signal(Signal::SIGINT);
        assert_eq!(demo.wait(), 130);
        common::until_true("the demo's records are gone", || is_clean(&engine));
    }
}

#[test]
fn a_password_reaches_the_stock_too() {
    let server =
        lockkeeper_testkit::redis::server::RedisServer::start_with(&["--requirepass", "sesame"]);
    let place = Place::new();
    let url = format!("redis://:sesame@127.0.0.1:{}", server.port());
    let ran = place.run([
        "demo",
        "oversell",
        "--url",
        &url,
        "--workers",
        "2",
        "--stock",
        "1",
        "--orders",
        "2",
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!format!("{}{}", ran.out, ran.err).contains("sesame"), "{ran:?}");
}
