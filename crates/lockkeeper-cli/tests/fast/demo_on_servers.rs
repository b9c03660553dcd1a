//! `demo oversell` with its stock where the lock is: in Redis, in a znode.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use nix::sys::signal::Signal;

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

fn the_whole_story(engine: &Engine) {
    let place = Place::new();
    assert!(is_clean(engine));
    // Act 4 waits for a session to end.
    let url = engine.url_with_sessions_of(1);
    let ran = place.run([
        "demo",
        "oversell",
        "--workers",
        "3",
        "--stock",
        "8",
        "--orders",
        "30",
        "--json",
        "--url",
        &url,
    ]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let runs: Vec<_> = ran.out.lines().map(json).collect();
    let of = |at: usize, key: &str| runs[at][key].clone();
    let guards: Vec<_> = runs
        .iter()
        .map(|r| (r["act"].as_u64().unwrap(), r["guard"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [
        (1, "none"),
        (2, "process"),
        (2, "process"),
        (3, "lockkeeper"),
        (4, "lockkeeper"),
        (4, "lockkeeper+token"),
    ];
    assert_eq!(guards, expected.map(|(act, guard)| (act, guard.to_owned())));
    for run in &runs {
        assert_eq!(run["engine"].as_str(), Some(engine.name()), "{run}");
    }
    assert!(of(0, "oversold").as_u64() > Some(0), "{ran:?}");
    assert_eq!(of(1, "sold").as_u64(), Some(8), "{ran:?}");
    assert!(of(2, "oversold").as_u64() > Some(0), "{ran:?}");
    assert_eq!(of(3, "oversold").as_u64(), Some(0), "BROKEN LOCK: {ran:?}");
    assert_eq!(of(3, "sold").as_u64(), Some(8), "{ran:?}");
    let late = |at: usize| {
        (
            of(at, "late_writes_accepted").as_u64(),
            of(at, "late_writes_rejected").as_u64(),
            of(at, "oversold").as_u64(),
        )
    };
    assert_eq!(
        (late(4), late(5)),
        ((Some(1), Some(0), Some(1)), (Some(0), Some(1), Some(0))),
        "{ran:?}"
    );
    common::until_true("the demo's records are gone", || is_clean(engine));
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
