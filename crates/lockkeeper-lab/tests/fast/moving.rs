//! An engine made of two, the example `moving`: from one layout of Redis to another, and in memory.

#[path = "../../../lockkeeper/examples/moving/both/mod.rs"]
mod both;
mod slow;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Once};
use std::time::{Duration, Instant};

use lockkeeper::{ErrorKind, Kind, Locks, Token};
use lockkeeper_lab::conformance::Subject;
use lockkeeper_testkit::redis::server::RedisServer;

use crate::subjects::{PATIENT, redis_server};

/// Only what hangs takes longer than this.
const HANGS: Duration = Duration::from_secs(120);

/// A URL as the value of an option of another one.
fn quoted(url: &str) -> String {
    url.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn url(old: &str, new: &str) -> String {
    static KNOWN: Once = Once::new();
    KNOWN.call_once(|| both::register().expect("nobody else has the scheme"));
    format!("both:?ttl=8s&old={}&new={}", quoted(old), quoted(new))
}

/// The URLs of two stores of their own, and of both.
fn stores() -> [String; 3] {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let [old, new] = ["old", "new"].map(|side| format!("memory:moving-{count}-{side}"));
    let both = url(&old, &new);
    [old, both, new]
}

fn memory() -> Subject {
    let [_, both, _] = stores();
    Subject::url("both: memory", both)
}

/// From the shared layout of a server to the default one, on the same server.
fn layouts() -> Subject {
    redis_server::redis_as("both: redis, layout=plain, and native", |server| {
        url(&format!("{server}?layout=plain&{PATIENT}"), &format!("{server}?{PATIENT}"))
    })
}

/// From files to a server.
fn file_to_redis() -> Subject {
    let home = tempfile::tempdir().expect("a temporary directory");
    let files = lockkeeper::config::file_url(home.path());
    let both = |server: &str| url(&files, &format!("{server}?{PATIENT}"));
    redis_server::redis_as("both: file and redis", both).keeping(home)
}

lockkeeper_lab::conformance! {
    both_memory => memory(),
    both_layouts => layouts(),
    both_file_and_redis => file_to_redis(),
}

/// Whoever holds, and the tokens of all that held.
#[derive(Default)]
struct Shelf {
    inside: Option<usize>,
    tokens: Vec<Token>,
}

#[tokio::test]
async fn in_every_step_of_a_move_holders_exclude_each_other_and_tokens_rise() {
    const ROUNDS: usize = 50;
    let urls = stores();
    let shelf = Arc::new(Mutex::new(Shelf::default()));
    // The old one alone beside both, both, and both beside the new one alone.
    for step in [[0, 1, 1], [1, 1, 1], [1, 1, 2]] {
        let mut clients = tokio::task::JoinSet::new();
        for (client, which) in step.into_iter().enumerate() {
            let locks = Locks::open(&urls[which]).await.expect("it can be opened");
            let shelf = Arc::clone(&shelf);
            clients.spawn(async move {
                for _ in 0..ROUNDS {
                    let guard = locks.mutex("stock").lock().await.expect("it is granted");
                    let token = guard.token().expect("there is one");
                    let before = {
                        let mut shelf = shelf.lock().expect("no panic");
                        shelf.tokens.push(token);
                        shelf.inside.replace(client)
                    };
                    assert_eq!(before, None, "BROKEN LOCK: two are inside");
                    tokio::task::yield_now().await;
                    shelf.lock().expect("no panic").inside = None;
                    assert!(guard.release().await.is_clean());
                }
            });
        }
        let all = async { while let Some(Ok(())) = clients.join_next().await {} };
        let ended = tokio::time::timeout(HANGS, all).await;
        assert!(ended.is_ok() && clients.is_empty(), "nobody waits for ever, in step {step:?}");
    }
    let tokens = &shelf.lock().expect("no panic").tokens;
    assert_eq!(tokens.len(), 3 * 3 * ROUNDS);
    assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
}

#[tokio::test]
async fn a_hold_ends_with_either_half_and_the_other_is_given_back() {
    for side in [0, 2] {
        let urls = stores();
        let both = Locks::open(&urls[1]).await.expect("it can be opened");
        let one = Locks::open(&urls[side]).await.expect("it can be opened");
        // Nothing ends by itself while the test lasts.
        let guard = both.mutex("stock").lock().ttl(5 * HANGS).await.expect("it is free");
        assert!(one.force_release(Kind::Lock, "stock").await.expect("it can be taken away"));
        let lost = tokio::time::timeout(HANGS, guard.lost());
        assert!(lost.await.is_ok(), "the loss of one half is told");
        drop(guard);
        let other = Locks::open(&urls[2 - side]).await.expect("it can be opened");
        let free = other.mutex("stock").lock().timeout(HANGS).await;
        assert!(free.is_ok(), "the other half is given back");
    }
}

#[tokio::test]
async fn what_is_taken_away_is_the_lock_of_who_holds_it_and_not_of_the_next_who_gets_it_meanwhile()
{
    slow::register();
    let both = url("memory:moving-forced", "slow:moving-forced-too");
    let (one, two) = (Locks::open(&both).await, Locks::open(&both).await);
    let (one, two) = (one.expect("it can be opened"), two.expect("it can be opened"));
    let guard = one.mutex("stock").lock().await.expect("it is free");
    let next = tokio::spawn(two.mutex("stock").lock().into_future());
    let forces = {
        let one = one.clone();
        tokio::spawn(async move { one.force_release(Kind::Lock, "stock").await })
    };
    // One half is taken away from the first, and the other one not yet.
    let next = tokio::time::timeout(HANGS, next).await.expect("in time").expect("no panic");
    let next = next.expect("it is granted");
    assert!(guard.is_lost());
    slow::GOES_ON.add_permits(1);
    let forced = tokio::time::timeout(HANGS, forces).await.expect("in time").expect("no panic");
    assert!(forced.expect("it can be taken away"));
    next.verify().await.expect("nobody took it from this one");
    assert!(next.release().await.is_clean());
}

/// Opened at one of a few tries, where the URL gives it little time.
async fn opened_at_last(url: &str) -> Locks {
    let begun = Instant::now();
    loop {
        match Locks::open(url).await {
            Ok(locks) => return locks,
            Err(error) => assert!(begun.elapsed() < HANGS, "{url}: {error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_half_that_can_be_reached_is_given_back_while_the_other_is_out_of_reach() {
    let (home, server) = (tempfile::tempdir().expect("a directory"), RedisServer::start());
    let files = lockkeeper::config::file_url(home.path());
    let new = format!("redis://127.0.0.1:{}?request_timeout=500ms", server.port());
    let both = opened_at_last(&url(&files, &new)).await;
    let old = Locks::open(&files).await.expect("it can be opened");
    let guard = both.mutex("stock").lock().ttl(5 * HANGS).await.expect("it is free");
    server.stop();
    drop(guard);
    let free = old.mutex("stock").lock().timeout(HANGS).await;
    assert!(free.is_ok(), "the server is still out of reach: {:?}", free.err());
    server.go_on();
    let new = opened_at_last(&new).await;
    let free = new.mutex("stock").lock().timeout(HANGS).await;
    assert!(free.is_ok(), "and is told when it is back: {:?}", free.err());
}

#[tokio::test]
async fn force_takes_away_the_half_that_can_be_reached_and_says_that_the_other_cannot() {
    let server = RedisServer::start();
    let (memory, away) = ("memory:moving-away", format!("redis://127.0.0.1:{}", server.port()));
    let away = format!("{away}?request_timeout=500ms&connect_timeout=1s");
    for urls in [[memory, &away], [&away, memory]] {
        let both = url(urls[0], urls[1]);
        let (holds, forces) = (opened_at_last(&both).await, opened_at_last(&both).await);
        // Nothing ends by itself while the test lasts.
        let guard = holds.mutex("stock").lock().ttl(5 * HANGS).await.expect("it is free");
        server.stop();
        let error = forces.force_release(Kind::Lock, "stock").await.expect_err("one is away");
        assert!(error.message().contains("only one of the two halves"), "{error}");
        let one = Locks::open(memory).await.expect("it can be opened");
        let free = one.mutex("stock").lock().timeout(HANGS).await;
        assert!(free.is_ok(), "the half that can be reached: {:?}", free.err());
        let lost = tokio::time::timeout(HANGS, guard.lost());
        assert!(lost.await.is_ok(), "its holder has lost both");
        server.go_on();
        drop(guard);
        let other = opened_at_last(&away).await;
        let free = other.mutex("stock").lock().timeout(HANGS).await;
        assert!(free.is_ok(), "and the other is given back: {:?}", free.err());
    }
}

#[tokio::test]
async fn a_place_that_is_lent_on_does_not_keep_the_first_caller_s_time_limit() {
    let server = RedisServer::start();
    let old = format!("redis://127.0.0.1:{}?layout=plain", server.port());
    let both = url(&old, &format!("redis://127.0.0.1:{}", server.port()));
    let (both, old) = (Locks::open(&both).await, Locks::open(&old).await);
    let (both, old) = (both.expect("it can be opened"), old.expect("it can be opened"));
    let guard = old.mutex("stock").lock().await.expect("it is free");
    let hurried = both.mutex("stock").lock().timeout(Duration::from_millis(500));
    let patient = tokio::spawn(both.mutex("stock").lock().into_future());
    let error = hurried.await.map(drop).expect_err("it is held");
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    // For longer than until the next look at all that wait.
    let refused = tokio::time::timeout(Duration::from_secs(6), async {
        while !patient.is_finished() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    assert!(refused.await.is_err(), "it waits on: {:?}", patient.await.map(|r| r.map(drop)));
    assert!(guard.release().await.is_clean());
    let granted = tokio::time::timeout(HANGS, patient).await;
    assert!(granted.expect("in time").expect("no panic").is_ok());
}

#[tokio::test]
async fn a_url_without_its_two_urls_says_what_is_missing() {
    url("", "");
    let refused = [
        ("both:", "needs old=URL"),
        ("both:?old=memory%3A", "needs new=URL"),
        ("both:?old=memory%3A&new=memory%3A%3Fttl%3D5s", "not of new="),
        ("both:?old=memory%3A&new=memory%3A%3Fttk%3D5s", "did you mean ttl?"),
    ];
    for (url, why) in refused {
        let error = Locks::open(url).await.map(drop).expect_err("it is refused");
        assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains(why));
    }
}

#[test]
fn the_canonical_name_of_both_names_both_and_no_password() {
    let canonical = |old: &str| {
        let url = url(old, "file:///var/lib/new");
        lockkeeper::url::EngineUrl::parse(&url).and_then(|url| url.canonical()).expect("a URL")
    };
    let name = canonical("redis://user:secret@old:6379/0?connect_timeout=1s");
    assert_eq!(name, canonical("redis://old"));
    assert!(name.contains("redis://old") && name.contains("/var/lib/new"), "{name}");
    assert!(!name.contains("secret"), "{name}");
    assert_ne!(name, canonical("redis://old?layout=plain"));
}
