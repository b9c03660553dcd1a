//! The layouts that belong to other programs, against the very commands of those programs.

use std::time::{Duration, Instant};

use super::super::options::{Layout, RedisOptions, RedissonLock, ValueFormat};
use super::server::RedisServer;
use super::support::{Process, granted, options, patient, until};
use crate::engine::{Attempt, Change, End, Event, Number, Query, Renewal, WatchId};
use crate::words::claim::{Ends, Mode};
use crate::words::error::ErrorKind;
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

pub(super) fn plain(server: &RedisServer) -> RedisOptions {
    RedisOptions { layout: Layout::Plain, ..patient(options(server.port())) }
}

pub(super) fn redisson(server: &RedisServer, lock: RedissonLock) -> RedisOptions {
    let options = patient(options(server.port()));
    RedisOptions { layout: Layout::Redisson, redisson: lock, ..options }
}

pub(super) fn woken(process: &Process, claim: ClaimId) -> Duration {
    let before = Instant::now();
    process.event("a wake-up", |e| {
        let (Event::Wake { claim: id } | Event::Granted { claim: id, .. }) = e else {
            return None;
        };
        (*id == claim).then_some(())
    });
    before.elapsed()
}

#[test]
fn plain_writes_what_the_others_write() {
    let server = RedisServer::start();
    let id = ClaimId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    for (format, key, value) in [
        (ValueFormat::Hex, "{name}", "0123456789abcdef0123456789abcdef"),
        (ValueFormat::Guid, "redlock:{name}", "01234567-89ab-cdef-0123-456789abcdef"),
        (ValueFormat::Base64, "mutex:{name}", "ASNFZ4mrze8BI0VniavN7w=="),
    ] {
        let mut options = plain(&server);
        (options.value, options.key) = (format, key.into());
        let process = Process::with(options);
        let mut claim = process.exclusive("a {b} é");
        claim.id = id;
        let grant = granted(process.attempt(&claim));
        assert_eq!(grant.number, Number::None);
        let key = key.replace("{name}", "a {b} é");
        assert_eq!(server.command(&["GET", &key]), [value]);
        let ttl: i64 = server.command(&["PTTL", &key])[0].parse().unwrap();
        assert!((1_000..=30_000).contains(&ttl), "{ttl}");
        granted(process.attempt(&claim));
        assert!(matches!(process.release(id), End::Freed));
        assert!(matches!(process.release(id), End::NotOurs));
        assert_eq!(server.command(&["EXISTS", &key]), ["0"]);
    }
}

#[test]
fn plain_waits_for_a_foreign_lock_and_is_woken_by_its_release() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    process.by_word_alone();
    for set in [&["SET", "a", "theirs", "NX", "PX", "30000"][..], &["SETNX", "a", "theirs"]] {
        server.command(set);
        assert!(matches!(process.attempt_try(&process.exclusive("a")), Attempt::Busy(_)));
        let waiting = process.queue("a", Mode::Exclusive);
        // Compare and delete by EVAL, as the articles have it.
        let script = "if redis.call('get',KEYS[1]) == ARGV[1] then return \
                      redis.call('del',KEYS[1]) else return 0 end";
        assert_eq!(server.command(&["EVAL", script, "1", "a", "theirs"]), ["1"]);
        woken(&process, waiting.id);
        granted(process.attempt(&waiting));
        assert_eq!(
            server.command(&["SET", "a", "theirs", "NX", "PX", "30000"]),
            ["(nil)"],
            "and they wait for us"
        );
        assert!(matches!(process.release(waiting.id), End::Freed));
    }
}

#[test]
fn plain_goes_on_waiting_while_the_server_is_away() {
    let mut server = RedisServer::start();
    let mut options = plain(&server);
    options.connect_timeout = Duration::from_secs(2);
    let process = Process::with(options);
    server.command(&["SET", "a", "theirs", "NX", "PX", "30000"]);
    let waiting = process.queue("a", Mode::Exclusive);
    server.kill();
    process.link(false);
    let away = process.attempt(&waiting);
    assert!(matches!(away, Attempt::Unknown(_)), "{away:?}");
    server.restart();
    process.link(true);
    granted(process.attempt_until(&waiting));
}

#[test]
fn plain_looks_again_when_a_foreign_lease_ends() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    server.command(&["SET", "a", "dead", "NX", "PX", "1500"]);
    let waiting = process.queue("a", Mode::Exclusive);
    woken(&process, waiting.id);
    granted(process.attempt_until(&waiting));
    // Without tracking there is the lease's end alone.
    server.command(&[
        "ACL",
        "SETUSER",
        "ann",
        "on",
        ">pw",
        "~*",
        "&*",
        "+@all",
        "-client|tracking",
    ]);
    let mut options = plain(&server);
    (options.user, options.password) = (
        Some("ann".into()),
        Some(crate::engine::password::Password::given(crate::open::url::Secret::new("pw"))),
    );
    let deaf = Process::with(options);
    let before = Instant::now();
    server.command(&["SET", "b", "dead", "NX", "PX", "1500"]);
    let waiting = deaf.queue("b", Mode::Exclusive);
    woken(&deaf, waiting.id);
    let waited = before.elapsed();
    assert!(waited >= Duration::from_millis(1500), "{waited:?}");
    granted(deaf.attempt_until(&waiting));
}

#[test]
fn plain_never_extends_or_deletes_what_is_not_its_own() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    let (held, _) = process.take("a", Mode::Exclusive);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    server.command(&["SET", "a", "theirs", "PX", "5000"]);
    assert!(matches!(process.renew(held.id), Renewal::Gone(_)));
    assert!(matches!(process.release(held.id), End::NotOurs));
    assert_eq!(server.command(&["GET", "a"]), ["theirs"]);
    let seen = process.look(Kind::Lock, "a");
    assert_eq!(seen.holders[0].label.as_deref(), Some("theirs"));
    for (kind, mode) in [
        (Kind::Lock, Mode::Shared),
        (Kind::Semaphore, Mode::Permits { count: 1, limit: 2 }),
        (Kind::Election, Mode::Exclusive),
    ] {
        let mut claim = process.claim("x", mode);
        claim.kind = kind;
        assert!(matches!(
            process.attempt(&claim),
            Attempt::Failed(e) if e.kind() == ErrorKind::Unsupported
        ));
    }
    assert!(process.change(&Change::Force(Kind::Lock, Name::new("a").unwrap(), Vec::new())));
    server.command(&["RPUSH", "list", "x"]);
    let attempt = process.attempt(&process.exclusive("list"));
    assert!(
        matches!(
            &attempt,
            Attempt::Failed(e)
                if e.kind() == ErrorKind::Corrupt && e.message().contains("the key list is")
        ),
        "{attempt:?}"
    );
}

#[test]
fn whoever_begins_to_listen_while_another_stops_is_heard() {
    let server = RedisServer::start();
    for process in [Process::with(redisson(&server, RedissonLock::Plain)), Process::of(&server)] {
        let query = Query::One(Kind::Lock, Name::new("a").unwrap());
        let watch = |n| assert!(process.wait(process.engine.watch(WatchId(n), &query)).is_ok());
        watch(0);
        for n in 0..300 {
            std::thread::scope(|scope| {
                scope.spawn(|| process.engine.unwatch(WatchId(n)));
                scope.spawn(|| watch(n + 1));
            });
            // Behind both on the same connection.
            let claim = process.exclusive("b");
            granted(process.attempt(&claim));
            assert!(matches!(process.release(claim.id), End::Freed));
            let channels = server.command(&["PUBSUB", "CHANNELS", "*"]);
            let ours = ["redisson_lock__channel:{a}", "lockkeeper:{lock:a}:watch:0"];
            assert!(channels.iter().any(|c| ours.contains(&c.as_str())), "round {n}: {channels:?}");
        }
        process.engine.unwatch(WatchId(300));
        until("nobody listens", || {
            !server
                .command(&["PUBSUB", "CHANNELS", "*"])
                .iter()
                .any(|c| c.contains("{a}") || c.contains("watch"))
        });
    }
}

#[test]
fn a_lock_that_somebody_left_without_a_time_to_live_is_shown_and_waited_for() {
    let server = RedisServer::start();
    server.command(&["SETNX", "a", "worker-3"]);
    server.command(&["HSET", "b", "b983c153-7421-469a-addb-44fb92259a1b:1", "1"]);
    for (options, name, who) in [
        (plain(&server), "a", "worker-3"),
        (redisson(&server, RedissonLock::Plain), "b", "b983c153-7421-469a-addb-44fb92259a1b:1"),
    ] {
        let process = Process::with(options);
        let Attempt::Busy(Some(holder)) = process.attempt_try(&process.exclusive(name)) else {
            panic!("somebody has it")
        };
        assert_eq!(
            (holder.label.as_deref(), holder.ends),
            (Some(who), Some(Ends::Never)),
            "who has it, and that it does not end by itself"
        );
        let waiting = process.queue(name, Mode::Exclusive);
        assert!(
            process.change(&Change::Force(Kind::Lock, Name::new(name).unwrap(), Vec::new())),
            "it can be taken away"
        );
        granted(process.attempt_until(&waiting));
        let rest: i64 = server.command(&["PTTL", name])[0].parse().unwrap();
        assert!(rest > 29_000, "ours has one: {rest}");
    }
}
