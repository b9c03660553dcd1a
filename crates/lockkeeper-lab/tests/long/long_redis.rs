//! Redis at the real defaults: a lease of 30 s, renewed every 10 s.

use std::future::IntoFuture;
use std::path::Path;
use std::time::{Duration, Instant};

use lockkeeper::{Locks, Mode};
use lockkeeper_lab::conformance::Helper;
use lockkeeper_testkit::redis::server::RedisServer;

use crate::common::{HELPER, runtime};

const RECORD: &str = "lockkeeper:{lock:a}";

#[test]
fn a_lock_held_for_45_s_never_has_less_than_19_s_left_and_is_put_back_to_30_s_about_every_10_s() {
    let server = RedisServer::start();
    runtime(2).block_on(async {
        let locks = Locks::open(&server.url()).await.expect("the server can be used");
        let guard = locks.mutex("a").lock().await.expect("it is free");
        let (began, mut before, mut renewed) = (Instant::now(), i64::MAX, Vec::new());
        let mut looked = began;
        while began.elapsed() < Duration::from_secs(45) {
            let asked = Instant::now();
            let left: i64 = server.command(&["PTTL", RECORD])[0].parse().expect("a number");
            assert!(left >= 19_000, "{left} ms left after {:?}", began.elapsed());
            if left > before.saturating_add(1000) {
                // It ran on since it was renewed, which is after the look before.
                let since = i64::try_from(looked.elapsed().as_millis()).expect("a minute at most");
                assert!(left + since > 29_600, "renewed to {left} ms at most {since} ms ago");
                renewed.push(began.elapsed());
            }
            (before, looked) = (left, asked);
            // The subject is time itself: sampled ten times a second.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        guard.check().expect("it is held");
        assert_eq!(renewed.len(), 4, "{renewed:?}");
        for (at, renewed) in renewed.iter().zip([10.0, 20.0, 30.0, 40.0f64]) {
            assert!((at.as_secs_f64() - renewed).abs() < 1.5, "{at:?} and not about {renewed} s");
        }
        assert!(guard.release().await.is_clean());
    });
}

#[test]
fn the_lock_of_a_killed_holder_is_free_within_31_s() {
    let server = RedisServer::start();
    runtime(2).block_on(async {
        let there = Helper::start(Path::new(HELPER), &server.url()).await;
        let locks = Locks::open(&server.url()).await.expect("the server can be used");
        there.lock(Mode::Exclusive, "a", Duration::from_secs(5)).await.expect("it is free");
        let waiting = locks.mutex("a").lock().timeout(Duration::from_secs(40)).into_future();
        let waiting = tokio::spawn(waiting);
        there.kill();
        let died = Instant::now();
        let guard = waiting.await.expect("no panic").expect("its lease runs out");
        let waited = died.elapsed();
        assert!(waited < Duration::from_secs(31), "{waited:?}");
        assert!(waited > Duration::from_secs(25), "{waited:?}: nobody takes a lease away early");
        assert!(guard.release().await.is_clean());
    });
}

/// Lets processes of two tasks each compete for one name; answers how many turns each had, and what
/// part of all in percent.
fn compete(url: &str, processes: u32, time: Duration) -> Vec<(u64, f64)> {
    runtime(2).block_on(async {
        let mut helpers = Vec::new();
        for _ in 0..processes {
            helpers.push(Helper::start(Path::new(HELPER), url).await);
        }
        let competing: Vec<_> = helpers
            .into_iter()
            .map(|there| tokio::spawn(async move { there.compete("a", 2, time).await }))
            .collect();
        let mut turns = Vec::new();
        for there in competing {
            turns.push(there.await.expect("no panic").expect("each turn comes"));
        }
        let all: u64 = turns.iter().sum();
        turns.into_iter().map(|n| (n, n as f64 * 100.0 / all as f64)).collect()
    })
}

#[test]
fn four_processes_share_a_lock_of_the_layout_plain_evenly() {
    let server = RedisServer::start();
    let url = format!("{}?layout=plain", server.url());
    let shares = compete(&url, 4, Duration::from_secs(30));
    println!("turns and shares of four: {shares:?}");
    assert!(shares.iter().all(|(_, percent)| (15.0..=35.0).contains(percent)), "{shares:?}");
}

#[test]
fn one_process_that_nobody_competes_with_keeps_most_of_its_turns_in_the_layout_plain() {
    let server = RedisServer::start();
    let url = server.url();
    let turns: Vec<_> = ["?layout=plain", ""]
        .iter()
        .map(|layout| compete(&format!("{url}{layout}"), 1, Duration::from_secs(8))[0].0)
        .collect();
    println!("alone, turns in 8 s: plain {}, native {}", turns[0], turns[1]);
    assert!(turns[0] * 2 > turns[1], "{turns:?}");
}
