//! `run`, `acquire` and `elect` at their defaults, for three leases on healthy servers: nothing is
//! lost.
//!
//! No option is given that this is about: neither a ttl, nor a session, nor `--kill-after`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test that cannot go on fails"
)]

mod common;

use std::process::Stdio;
use std::time::{Duration, Instant};

use common::{Place, Reaped, finish, json};
use lockkeeper_lab::engines::redis::server::RedisServer;
use lockkeeper_lab::engines::zookeeper::server::{Server, Settings};
use nix::sys::signal::Signal;

/// Three sessions of the default length, and more than three leases' renewals.
const SECONDS: &str = "46";
/// A server as its package configures it.
const TICK: Duration = Duration::from_secs(2);

fn zookeeper(tick: Duration) -> Server {
    Server::start(Settings { tick, ..Settings::default() }).expect("a ZooKeeper server")
}

#[test]
fn at_its_defaults_nothing_is_lost_on_a_healthy_server() {
    let (zk, redis, place) = (zookeeper(TICK), RedisServer::start(), Place::new());
    let zk = format!("zk://{}", zk.address());
    let urls =
        [zk.clone(), format!("{zk}?layout=kazoo"), format!("{zk}?layout=plain"), redis.url()];
    let began = Instant::now();
    let mut started = Vec::new();
    for (at, url) in urls.iter().enumerate() {
        let plain = url.contains("plain");
        let mut start = |what: String, args: &[&str]| {
            let mut lk = place.lk(args);
            lk.env("LOCKKEEPER_URL", url)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .stdin(Stdio::null());
            started.push((format!("{what} on {url}"), Reaped::spawn(&mut lk)));
        };
        let command = ["--", "sleep", SECONDS];
        start("run".into(), &[&["run", &format!("run-{at}")][..], &command].concat());
        start(
            "warn".into(),
            &[
                &["run", &format!("warn-{at}"), "--on-lost", "warn", "--lost-exit-code", "79"][..],
                &command,
            ]
            .concat(),
        );
        start("acquire".into(), &["acquire", &format!("acquire-{at}"), "--for", SECONDS]);
        if !plain {
            start("elect".into(), &[&["elect", &format!("elect-{at}")][..], &command].concat());
        }
        // The front of this one is stopped, as Ctrl-Z does it, for nearly as long.
        start("stopped".into(), &[&["run", &format!("stopped-{at}")][..], &command].concat());
    }
    let deep: Vec<&Reaped> = started
        .iter()
        .filter(|(what, _)| what.starts_with("stopped"))
        .map(|(_, front)| front)
        .collect();
    std::thread::sleep(Duration::from_secs(5).saturating_sub(began.elapsed()));
    deep.iter().for_each(|front| front.signal(Signal::SIGSTOP));
    std::thread::sleep(Duration::from_secs(40).saturating_sub(began.elapsed()));
    deep.iter().for_each(|front| front.signal(Signal::SIGCONT));
    for (what, front) in started {
        let ran = front.output_within(Duration::from_secs(60));
        assert_eq!(ran.code, 0, "{what}: {ran:?}");
        assert!(!ran.err.contains("lost") && !ran.out.contains("\"lost\""), "{what}: {ran:?}");
    }
}

#[test]
fn what_a_session_cannot_give_is_refused_and_names_the_two_options() {
    // Sessions of at most 20 ticks: 10 s.
    let (server, place) = (zookeeper(Duration::from_millis(500)), Place::new());
    let url = format!("zk://{}", server.address());
    let run = |options: &str, kill_after: &str| {
        let args = [
            "run",
            "a",
            "--kill-after",
            kill_after,
            "--report",
            "report",
            "--",
            "sh",
            "-c",
            "echo > ran",
        ];
        finish(place.lk(args).env("LOCKKEEPER_URL", format!("{url}{options}")))
    };
    let asked = run("", "6s");
    assert_eq!(asked.code, 64, "{asked:?}");
    assert!(
        asked.err.contains("--kill-after 6s") && asked.err.contains("session_timeout=18s"),
        "{asked:?}"
    );
    let negotiated = run("?session_timeout=60s", "4s");
    assert_eq!(negotiated.code, 64, "{negotiated:?}");
    assert!(
        negotiated.err.contains("--kill-after 4s") && negotiated.err.contains("session_timeout"),
        "{negotiated:?}"
    );
    assert!(negotiated.err.contains("10s"), "what the server gave: {negotiated:?}");
    assert_eq!(json(place.read("report").trim_end())["outcome"].as_str(), Some("not-started"));
    assert!(!place.path("ran").exists(), "nothing ran");
    assert_eq!(run("?session_timeout=60s", "3s").code, 0);
}
