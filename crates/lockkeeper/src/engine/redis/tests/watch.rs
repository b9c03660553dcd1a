//! Watching, and what it costs those who lock.

use std::collections::BTreeMap;

use super::super::options::RedissonLock;
use super::interop::{plain, redisson};
use super::server::RedisServer;
use super::support::{Process, opened, options, patient, until};
use crate::engine::password::Password;
use crate::engine::{Attempt, End, Event, Query, WatchId};
use crate::open::url::Secret;
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind};
use crate::words::name::{Kind, Name};

const KEY: &str = "lockkeeper:{lock:a}:watch:0";
const LAST: &str = "lockkeeper:{lock:a}:last";

fn one_name() -> Query {
    Query::One(Kind::Lock, Name::new("a").unwrap())
}

fn changed(id: u64) -> impl FnMut(&Event) -> Option<()> {
    move |e: &Event| matches!(e, Event::Changed { watch: WatchId(n) } if *n == id).then_some(())
}

fn watch(process: &Process, id: u64, query: &Query) {
    process.wait(process.engine.watch(WatchId(id), query)).unwrap();
}

/// The calls of one acquire and release of a name that was used before.
fn calls(server: &RedisServer, process: &Process, name: &str) -> BTreeMap<String, u64> {
    let (held, _) = process.take(name, Mode::Exclusive);
    process.release(held.id);
    server.command(&["CONFIG", "RESETSTAT"]);
    let (held, _) = process.take(name, Mode::Exclusive);
    process.release(held.id);
    let mut counts = server.command_counts();
    counts.retain(|command, _| command != "config|resetstat");
    counts
}

/// The server's line about the connection that hears of every key.
fn tracker(server: &RedisServer) -> Option<String> {
    let list = server.command(&["CLIENT", "LIST"]).join("\n");
    list.lines().find(|line| line.contains(":watch ")).map(str::to_owned)
}

#[test]
fn a_watch_of_a_name_costs_that_name_alone_and_ends_by_itself() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let bare = calls(&server, &one, "a");
    watch(&two, 1, &one_name());
    let left: u64 = server.command(&["PTTL", KEY])[0].parse().unwrap();
    assert!((1..=15_000).contains(&left), "{left}");
    assert_eq!(calls(&server, &one, "a").get("publish"), Some(&2));
    two.event("the grant", changed(1));
    assert_eq!(calls(&server, &one, "b"), bare, "another name costs what it did");
    // Its process dies, and the time of what it left runs out.
    two.die();
    server.command(&["PEXPIRE", KEY, "1"]);
    until("it is gone", || server.command(&["EXISTS", KEY]) == ["0"]);
    assert_eq!(calls(&server, &one, "a"), bare);
}

#[test]
fn a_watch_of_a_beginning_calls_nothing_and_its_connection_ends_with_it() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let bare = calls(&server, &one, "jobs/x");
    let prefix = |text: &str| Query::Prefix(text.into());
    watch(&two, 1, &prefix("jobs/"));
    watch(&two, 2, &prefix("other/"));
    assert_eq!(calls(&server, &one, "jobs/x"), bare);
    two.event("the grant", changed(1));
    assert!(two.event_within(std::time::Duration::from_millis(300), &mut changed(2)).is_none());
    // A subscriber: the server limits how much it keeps for one that does not read.
    let line = tracker(&server).expect("a connection");
    let flags = line.split(' ').find_map(|word| word.strip_prefix("flags=")).unwrap();
    assert!(['P', 't', 'B'].iter().all(|flag| flags.contains(*flag)), "{line}");
    server.command(&["FLUSHALL"]);
    two.event("the flush", changed(2));
    two.engine.unwatch(WatchId(1));
    assert!(tracker(&server).is_some(), "somebody watches");
    two.engine.unwatch(WatchId(2));
    until("the connection is gone", || tracker(&server).is_none());
    watch(&two, 3, &prefix("jobs/"));
    one.take("jobs/x", Mode::Exclusive);
    two.event("the grant", changed(3));
}

#[test]
fn a_watcher_that_does_not_read_is_cut_by_the_server_and_looks_again_when_it_is_back() {
    let server = RedisServer::start();
    server.command(&["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 0 0"]);
    let two = Process::of(&server);
    watch(&two, 1, &Query::Prefix("jobs/".into()));
    let go_on = two.stall();
    let mut client = server.client();
    let long = "x".repeat(1000);
    until("it is cut", || {
        // Each is told of in a message of its own.
        for n in 0..100 {
            client.command(&["SET", &format!("lockkeeper:{{lock:{n}{long}}}"), "1"]);
        }
        tracker(&server).is_none()
    });
    drop(go_on);
    two.event("another look", changed(1));
    until("it is back", || tracker(&server).is_some());
}

#[test]
fn where_tracking_is_denied_a_beginning_is_looked_at_now_and_then() {
    let server = RedisServer::start();
    let rules = ["~lockkeeper:*", "&lockkeeper:*", "+@all", "-client|tracking", ">secret"];
    server.command(&[&["ACL", "SETUSER", "ann", "on"][..], &rules].concat());
    let mut options = patient(options(server.port()));
    (options.user, options.password) =
        (Some("ann".into()), Some(Password::given(Secret::new("secret"))));
    let process = Process::with(options);
    watch(&process, 1, &Query::Prefix("jobs/".into()));
    process.event("a look", changed(1));
}

#[test]
fn a_watched_name_is_looked_at_at_once_when_the_server_is_back() {
    let server = RedisServer::start();
    let all = [options(server.port()), plain(&server), redisson(&server, RedissonLock::Plain)];
    let all = all.map(patient);
    for options in all {
        // Again where the machine was slower than the first round, which is five seconds away.
        until("it is told before the first round", || {
            let process = Process::with(options.clone());
            let began = std::time::Instant::now();
            watch(&process, 1, &one_name());
            for kind in ["pubsub", "normal"] {
                server.command(&["CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes"]);
            }
            process.event("the way back", |e| matches!(e, Event::Link { up: true }).then_some(()));
            process.event("something was missed", changed(1));
            began.elapsed() < std::time::Duration::from_secs(5)
        });
    }
}

#[test]
fn a_beginning_is_watched_in_rounds_while_the_server_lets_in_no_more_connections() {
    let server = RedisServer::start();
    let mut options = patient(options(server.port()));
    options.connect_timeout = std::time::Duration::from_secs(1);
    let process = opened(|| Process::try_with(options.clone()));
    let mut client = server.client();
    let count = client.command(&["CLIENT", "LIST"]).join("").matches("id=").count().to_string();
    client.command(&["CONFIG", "SET", "maxclients", &count]);
    let jobs = Query::Prefix("jobs/".into());
    until("it is watched", || process.wait(process.engine.watch(WatchId(1), &jobs)).is_ok());
    process.event("a look", changed(1));
    client.command(&["CONFIG", "SET", "maxclients", "100"]);
    until("the connection is there", || tracker(&server).is_some());
}

/// What is kept beside the last number of the name.
fn flagged(server: &RedisServer) -> bool {
    let kept = server.command(&["GET", LAST]).concat();
    kept.rsplit_once(':').is_some_and(|(_, flags)| flags.contains('o'))
}

#[test]
fn the_flag_of_a_watcher_outlives_what_it_stands_for() {
    let server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| Process::of(&server));
    let lives = |key: &str| server.command(&["PTTL", key])[0].parse::<i64>().unwrap();
    watch(&two, 1, &one_name());
    assert!(flagged(&server) && lives(LAST) > lives(KEY), "without a number");
    two.engine.unwatch(WatchId(1));
    server.command(&["DEL", KEY, LAST]);
    let (held, _) = one.take("a", Mode::Exclusive);
    // A number that is about to be forgotten.
    server.command(&["PEXPIRE", LAST, "9000"]);
    watch(&two, 1, &one_name());
    assert!(flagged(&server) && lives(LAST) > lives(KEY), "with a number");
    assert!(matches!(one.release(held.id), End::Freed));
    two.event("the release", changed(1));
    // Whoever clears up after a probe leaves it.
    one.wait(one.engine.clear_probe(&Name::new("a").unwrap())).unwrap();
    two.event("the probe", changed(1));
    assert!(flagged(&server) && lives(LAST) > lives(KEY), "after a probe");
    one.take("a", Mode::Exclusive);
    two.event("the grant", changed(1));
    // And with nobody there it takes the number along.
    two.engine.unwatch(WatchId(1));
    server.command(&["DEL", KEY, "lockkeeper:{lock:a}"]);
    one.wait(one.engine.clear_probe(&Name::new("a").unwrap())).unwrap();
    assert_eq!(server.command(&["EXISTS", LAST]), ["0"]);
}

#[test]
fn who_watches_is_told_of_a_lease_that_ran_out_also_where_the_next_call_is_refused() {
    let server = RedisServer::start();
    let [one, two] = [(); 2].map(|()| Process::of(&server));
    let (reader, _) = one.take("a", Mode::Shared);
    let mut short = one.claim("a", Mode::Shared);
    short.ttl = std::time::Duration::from_millis(1500);
    one.granted_at_last(&short);
    watch(&two, 1, &one_name());
    until("its lease is over", || two.look(Kind::Lock, "a").holders.len() == 1);
    server.command(&["CONFIG", "RESETSTAT"]);
    let refused = one.wait(one.engine.convert(reader.id, &one.exclusive("a")));
    let is = |error: &Error| error.kind() == ErrorKind::WouldDeadlock;
    assert!(matches!(&refused, Attempt::Failed(error) if is(error)), "{refused:?}");
    assert_eq!(server.command_counts().get("publish"), Some(&1), "the one that watches");
}
