//! What is refused, and why.

use std::time::Duration;

use lockkeeper_lab::engines::redis::server::RedisServer;

use super::support::{Quorum, claim, open};
use crate::claim::Mode;
use crate::engine::redis::tests::support::{granted, until};
use crate::engine::{Attempt, Change, Query};
use crate::error::{Error, ErrorKind};
use crate::guarantee::{Ability, Class};
use crate::name::{Kind, Name};

/// What a member keeps about itself.
const KEY: &str = "lockkeeper:redlock";

fn failed(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Failed(error) => error,
        other => panic!("not refused but {other:?}"),
    }
}

#[test]
fn what_is_no_exclusive_lock_is_refused_with_the_reason() {
    let quorum = Quorum::young(3);
    let process = quorum.process();
    let about = process.engine.describe();
    assert_eq!((about.class, about.fenced, about.hosts), (Class::Efficiency, true, true));
    assert!(about.breaks.iter().any(|b| b.contains("clock_skew")), "{about:?}");
    for ability in [Ability::Shared, Ability::Permits, Ability::Latch, Ability::Election] {
        assert!(!about.can.has(ability), "{ability:?}");
    }
    let mut delayed = claim(&process, "a");
    delayed.lock_delay = Duration::from_secs(1);
    let mut elected = claim(&process, "a");
    elected.kind = Kind::Election;
    for asked in [
        process.claim("a", Mode::Shared),
        process.claim("a", Mode::Upgradable),
        process.claim("a", Mode::Permits { count: 1, limit: 3 }),
        delayed,
        elected,
    ] {
        let error = failed(process.attempt(&asked));
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.message().contains("only exclusive locks"), "{error}");
    }
    let mut long = claim(&process, "a");
    long.ttl = Duration::from_secs(3);
    let error = failed(process.attempt(&long));
    assert!(error.kind() == ErrorKind::InvalidArgument && error.message().contains("max_ttl=2s"));
    let name = Name::new("a").expect("a good name");
    for change in [Change::LatchSet(name.clone(), 1), Change::Resize(name.clone(), 1)] {
        let error = process.wait(process.engine.write(&change)).expect_err("no such thing");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
    let query = Query::One(Kind::Semaphore, name);
    assert!(process.wait(process.engine.read(&query)).is_err());
}

#[test]
fn a_server_that_cannot_be_a_member_is_refused_when_it_is_opened() {
    let refused = |servers: &[&RedisServer], more: &str| {
        let at: Vec<String> = servers.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
        open(&format!("redlock://{}{more}", at.join(","))).err().expect("it is refused")
    };
    let (one, two) = (RedisServer::start(), RedisServer::start());
    let locked = RedisServer::start_with(&["--requirepass", "s3cret"]);
    let error = refused(&[&one, &two, &locked], "");
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("wants a password"), "{error}");
    let port = one.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    let error = refused(&[&one, &two, &replica], "");
    assert!(error.message().contains("is a read-only replica"), "{error}");
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let error = refused(&[&one, &two, &node], "");
    assert!(error.message().contains("node of a Redis Cluster"), "{error}");
    // The same server by another name of its address.
    let error =
        open(&format!("redlock://127.0.0.1:{port},localhost:{port},127.0.0.1:{}", two.port()));
    let error = error.err().expect("it is refused");
    assert!(error.message().contains("are the same server"), "{error}");
}

#[test]
fn fewer_members_than_a_majority_are_named_with_what_each_says() {
    let (mut one, mut two, three) =
        (RedisServer::start(), RedisServer::start(), RedisServer::start());
    let at = [&one, &two, &three].map(|server| format!("127.0.0.1:{}", server.port()));
    one.kill();
    two.kill();
    let error = open(&format!("redlock://{}?connect_timeout=2s", at.join(","))).err();
    let error = error.expect("there is no majority");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().starts_with("1 of 3 members"), "{error}");
    assert!(error.message().contains(&at[0]) && error.message().contains(&at[1]), "{error}");
    assert!(!error.message().contains(&at[2]), "{error}");
}

#[test]
fn members_that_have_just_started_are_named_with_the_time_from_which_they_count() {
    let quorum = Quorum::young(3);
    let process = quorum.process();
    let young = |process: &crate::engine::redis::tests::support::Process| {
        process.engine.describe().warnings.into_iter().filter(|w| w.id == "member-young").count()
    };
    assert_eq!(young(&process), 3);
    let asked = claim(&process, "a");
    let Attempt::Unknown(error) = process.attempt(&asked) else { panic!("they do not count") };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("max_ttl=2s"), "{error}");
    until("they count", || young(&process) == 0);
    granted(process.attempt(&asked));
}

#[test]
fn c8_a_record_that_cannot_be_read_is_told_and_never_taken_for_a_free_name() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    let write = |text: &str, members: usize| {
        for server in &quorum.0[..members] {
            server.command(&["SET", "lockkeeper:{redlock:a}", text]);
        }
    };
    for (text, kind) in [
        ("what somebody else wrote", ErrorKind::Corrupt),
        ("2 of a later release", ErrorKind::NewerLayout),
    ] {
        write(text, 2);
        assert_eq!(failed(process.attempt(&claim(&process, "a"))).kind(), kind, "{text}");
        let entry = process.look(Kind::Lock, "a");
        assert_eq!(entry.unreadable.map(|why| why.kind), Some(kind));
    }
    quorum.until_clean_but("a", 2);
    // A minority keeps nobody out.
    for server in &quorum.0 {
        server.command(&["DEL", "lockkeeper:{redlock:a}"]);
    }
    write("what somebody else wrote", 1);
    granted(process.attempt(&claim(&process, "a")));
}

#[test]
fn r17_another_max_ttl_than_the_members_is_refused_and_named() {
    let quorum = Quorum::of(3);
    let one = quorum.process();
    let five = quorum.url().replace("max_ttl=2s", "max_ttl=5s");
    let error = open(&five).err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let at = format!("127.0.0.1:{}", quorum.0[0].port());
    for says in [at.as_str(), "max_ttl=2s", "URL says 5s", "HDEL lockkeeper:redlock max_ttl"] {
        assert!(error.message().contains(says), "{says}: {error}");
    }
    assert!(!error.message().contains('\n'));
    granted(one.attempt(&claim(&one, "a")));
    // While a client is connected: a minority does not count, and a majority refuses it.
    let set = |server: &RedisServer| server.command(&["HSET", KEY, "max_ttl", "5000"]);
    set(&quorum.0[0]);
    granted(one.attempt(&claim(&one, "b")));
    set(&quorum.0[1]);
    let error = failed(one.attempt(&claim(&one, "c")));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.message().contains("max_ttl=5s, and the URL says 2s"), "{error}");
    // What the message says to do. Whoever comes next says it anew.
    until("the servers are up for long enough", || {
        quorum.0.iter().for_each(|server| drop(server.command(&["HDEL", KEY, "max_ttl"])));
        open(&five).is_ok()
            && quorum.0.iter().all(|s| s.command(&["HGET", KEY, "max_ttl"]).concat() == "5000")
    });
    assert_eq!(failed(one.attempt(&claim(&one, "d"))).kind(), ErrorKind::InvalidArgument);
}

#[test]
fn r17_a_member_of_a_later_release_is_refused() {
    let quorum = Quorum::of(3);
    let one = quorum.process();
    quorum.0.iter().for_each(|server| drop(server.command(&["HSET", KEY, "layout", "2"])));
    assert_eq!(failed(one.attempt(&claim(&one, "a"))).kind(), ErrorKind::NewerLayout);
}
