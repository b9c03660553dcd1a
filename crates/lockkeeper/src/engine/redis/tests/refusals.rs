//! Servers that refuse us, or that are not what the URL says: one clear line each, and nothing
//! lost.

use std::io::Write;
use std::net::TcpListener;
use std::time::Duration;

use super::super::options::{Address, RedisOptions};
use super::server::RedisServer;
use super::support::{Process, number, options};
use crate::engine::password::Password;
use crate::engine::{Attempt, Change, End, Query, Renewal, Standing, WatchId};
use crate::open::url::Secret;
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::{Class, Expiry};
use crate::words::name::{Kind, Name};

pub(super) fn refused(options: RedisOptions) -> Error {
    match Process::try_with(options) {
        Ok(_) => panic!("the server was accepted"),
        Err(error) => error,
    }
}

fn failed(attempt: Attempt) -> Error {
    match attempt {
        Attempt::Failed(error) => error,
        other => panic!("not failed but {other:?}"),
    }
}

#[test]
fn a_password_that_is_missing_wrong_or_not_wanted() {
    let server = RedisServer::start_with(&["--requirepass", "sesame"]);
    let error = refused(options(server.port()));
    assert!(
        error.kind() == ErrorKind::Refused && error.message().contains("wants a password"),
        "{error}"
    );
    let mut wrong = options(server.port());
    wrong.password = Some(Password::given(Secret::new("open")));
    let error = refused(wrong);
    assert!(
        error.kind() == ErrorKind::Refused && error.message().contains("does not accept"),
        "{error}"
    );
    assert!(!format!("{error:?}").contains("open\""), "{error:?}");
    let mut right = options(server.port());
    right.password = Some(Password::given(Secret::new("sesame")));
    Process::with(right).take("a", Mode::Exclusive);
}

#[test]
fn a_password_that_is_set_later_is_asked_for_at_the_next_connect_and_nothing_is_lost() {
    let server = RedisServer::start();
    let mut options = options(server.port());
    options.connect_timeout = Duration::from_secs(2);
    let process = Process::with(options);
    let (held, _) = process.take("a", Mode::Exclusive);
    assert_eq!(server.command(&["CONFIG", "SET", "requirepass", "sesame"]), ["OK"]);
    // Who is connected stays so; the next connection is refused.
    assert!(matches!(process.look(Kind::Lock, "a").holders.as_slice(), [_]));
    let mut client = server.client();
    assert_eq!(client.command(&["AUTH", "sesame"]), ["OK"]);
    client.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    process.link(false);
    let claim = process.exclusive("b");
    let refused = || match process.attempt(&claim) {
        Attempt::Failed(error) if error.kind() == ErrorKind::Refused => {
            error.message().contains("wants a password")
        }
        _ => false,
    };
    super::support::until("it is told", refused);
    assert!(matches!(process.renew(held.id), Renewal::Unknown(_)), "not known, and not lost");
    assert_eq!(client.command(&["CONFIG", "SET", "requirepass", ""]), ["OK"]);
    process.link(true);
    super::support::until("it is renewed", || {
        matches!(process.renew(held.id), Renewal::Extended { .. })
    });
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn a_server_whose_clock_is_far_off_is_used_and_named() {
    use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};
    let shim = ClockShim::new().unwrap();
    let [(preload, library), (control, file)] = shim.environment();
    let server = RedisServer::start_in(
        &[],
        &[(preload, &library.to_string_lossy()), (control, &file.to_string_lossy())],
    );
    shim.step(Clocks::Wall, Duration::from_secs(3600)).unwrap();
    let process = Process::of(&server);
    let warnings = process.engine.describe().warnings;
    assert!(
        warnings.iter().any(|w| w.id == "clock-offset" && w.text.contains("s ahead of ours")),
        "{warnings:?}"
    );
    let (held, _) = process.take("a", Mode::Exclusive);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(process.attempt_try(&process.exclusive("a")), Attempt::Busy(Some(_))));
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn names_with_braces_are_locks_of_their_own_in_every_layout() {
    use super::super::options::Layout;
    let server = RedisServer::start();
    for layout in [Layout::Native, Layout::Redisson, Layout::Plain] {
        let mut options = options(server.port());
        options.layout = layout;
        let (one, two) = (Process::with(options.clone()), Process::with(options));
        let names = ["{", "}", "{}", "a{b}c", "}a{", "{a}:line", "a{b"];
        let held: Vec<_> = names.iter().map(|name| one.take(name, Mode::Exclusive).0.id).collect();
        for name in names {
            assert!(
                matches!(two.attempt_try(&two.exclusive(name)), Attempt::Busy(_)),
                "{layout:?}: {name}"
            );
            assert_eq!(two.look(Kind::Lock, name).holders.len(), 1, "{layout:?}: {name}");
        }
        for hold in held {
            assert!(matches!(one.release(hold), End::Freed), "{layout:?}");
        }
    }
    assert_eq!(server.command(&["KEYS", "{*"]), [""; 0]);
}

#[test]
fn a_user_without_a_right_is_told_which_command() {
    let server = RedisServer::start();
    let user = |rules: &[&str]| {
        let mut words = vec!["ACL", "SETUSER", "ann", "reset", "on", ">pw"];
        words.extend(rules);
        assert_eq!(server.command(&words), ["OK"]);
        let mut options = options(server.port());
        (options.user, options.password) =
            (Some("ann".into()), Some(Password::given(Secret::new("pw"))));
        options
    };
    let error = refused(user(&["~lockkeeper:*", "+@all"]));
    assert!(error.kind() == ErrorKind::Refused && error.message().contains("channel"), "{error}");
    let process = Process::with(user(&["~lockkeeper:*", "&lockkeeper:*", "+@all", "-evalsha"]));
    let error = failed(process.attempt(&process.exclusive("a")));
    assert!(error.kind() == ErrorKind::Refused && error.message().contains("'evalsha'"), "{error}");
    let process = Process::with(user(&["~lockkeeper:*", "&lockkeeper:*", "+@all", "-set"]));
    let error = failed(process.attempt(&process.exclusive("a")));
    assert!(
        error.kind() == ErrorKind::Refused
            && error.message().contains("the script uses")
            && error.message().contains(" SET"),
        "{error}"
    );
    let process = Process::with(user(&["~other:*", "&lockkeeper:*", "+@all"]));
    let error = failed(process.attempt(&process.exclusive("a")));
    assert!(error.kind() == ErrorKind::Refused, "{error}");
    // What the message says is needed is enough.
    let rights = [
        "~lockkeeper:*",
        "&lockkeeper:*",
        "+@scripting",
        "+@read",
        "+@write",
        "+@pubsub",
        "+@connection",
        "+time",
    ];
    let process = Process::with(user(&rights));
    let (held, _) = process.take("a", Mode::Exclusive);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    assert_eq!(process.list("").len(), 1);
    assert!(process.engine.describe().warnings.iter().any(|w| w.id == "info-denied"));
    process.release(held.id);
}

#[test]
fn a_user_who_may_not_publish_locks_and_frees_all_the_same() {
    let server = RedisServer::start();
    let user = |name: &str, rules: &[&str]| {
        let mut words =
            vec!["ACL", "SETUSER", name, "reset", "on", ">pw", "~lockkeeper:*", "+@all"];
        words.extend(rules);
        assert_eq!(server.command(&words), ["OK"]);
        let mut options = options(server.port());
        (options.user, options.password) =
            (Some(name.into()), Some(Password::given(Secret::new("pw"))));
        Process::with(options)
    };
    let watcher = Process::of(&server);
    watcher.wait(watcher.engine.watch(WatchId(1), &Query::Prefix(String::new()))).unwrap();
    let process = user("ann", &["&lockkeeper:process:*"]);
    let (held, _) = process.take("a", Mode::Exclusive);
    assert!(matches!(process.release(held.id), End::Freed), "nobody hears of it, and that is all");
    assert!(process.change(&Change::LatchSet(Name::new("b").unwrap(), 1)));
    let process = user("bob", &["&lockkeeper:*", "-publish"]);
    let (held, first) = process.take("a", Mode::Exclusive);
    let waiting = watcher.queue("a", Mode::Exclusive);
    server.command(&["DEL", "lockkeeper:{lock:a}:last"]);
    assert!(matches!(process.release(held.id), End::Freed));
    assert_eq!(server.command(&["EXISTS", "lockkeeper:{lock:a}:last"]), ["1"], "numbers rise on");
    // Untold, it finds out when it asks.
    let answers = watcher.wait(watcher.engine.recheck(&[waiting.id]));
    let [Standing::Held(grant)] = &answers[..] else { panic!("{answers:?}") };
    assert!(number(grant) > number(&first));
    assert!(process.change(&Change::Force(Kind::Lock, Name::new("a").unwrap(), Vec::new())));
}

#[test]
fn a_place_of_a_newer_layout_behind_one_of_ours_stops_nobody_halfway() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    let waiting = two.queue("a", Mode::Exclusive);
    let newer = "3 ab 0 x 1 30000 channel who 5 0 -";
    server.command(&["ZADD", "lockkeeper:{lock:a}:line", "7", newer]);
    assert!(matches!(one.release(held.id), End::Freed));
    two.granted(waiting.id);
    assert!(matches!(two.release(waiting.id), End::Freed));
    let error = failed(one.attempt(&one.exclusive("a")));
    assert_eq!(error.kind(), ErrorKind::NewerLayout, "{error}");
    assert_eq!(server.command(&["EXISTS", "lockkeeper:{lock:a}"]), ["0"]);
}

#[test]
fn a_replica_a_cluster_node_and_a_sentinel_are_named_for_what_they_are() {
    let primary = RedisServer::start();
    let replica =
        RedisServer::start_with(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let error = refused(options(replica.port()));
    assert!(
        error.kind() == ErrorKind::Refused
            && error.message().contains("read-only replica of 127.0.0.1"),
        "{error}"
    );
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let error = refused(options(node.port()));
    assert!(
        error.message().contains(&format!("redis+cluster://127.0.0.1:{}", node.port())),
        "{error}"
    );
    let sentinel = RedisServer::start_sentinel();
    let error = refused(options(sentinel.port()));
    assert!(error.message().contains("redis+sentinel://"), "{error}");
}

#[test]
fn a_primary_that_became_a_replica_says_so() {
    let (primary, server) = (RedisServer::start(), RedisServer::start());
    let process = Process::of(&server);
    let (held, _) = process.take("a", Mode::Exclusive);
    server.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]);
    let error = failed(process.attempt(&process.exclusive("b")));
    assert!(
        error.kind() == ErrorKind::Refused && error.message().contains("read-only replica"),
        "{error}"
    );
    assert!(matches!(process.release(held.id), End::Unknown(_) | End::NotOurs));
    // It is found out when it takes writes again.
    server.command(&["REPLICAOF", "NO", "ONE"]);
    process.link(true);
    process.take("b", Mode::Exclusive);
}

#[test]
fn a_full_server_gives_no_lock_but_renews_and_frees() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let (held, _) = process.take("a", Mode::Exclusive);
    let (reader, _) = process.take("b", Mode::Shared);
    let other = Process::of(&server);
    let (second, _) = other.take("b", Mode::Shared);
    let waiting = other.queue("a", Mode::Exclusive);
    server.command(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = failed(process.attempt(&process.exclusive("c")));
    assert!(
        error.kind() == ErrorKind::Refused
            && error.message().contains("maxmemory")
            && error.is_temporary(),
        "{error}"
    );
    for hold in [held.id, reader.id] {
        let renewal = process.renew(hold);
        assert!(matches!(renewal, Renewal::Extended { .. }), "{renewal:?}");
    }
    assert!(matches!(other.release(second.id), End::Freed));
    let end = process.release(held.id);
    assert!(matches!(end, End::Freed), "{end:?}");
    other.granted(waiting.id);
}

#[test]
fn a_server_that_cannot_save_says_so() {
    let server = RedisServer::start_with(&["--save", "3600 1", "--dbfilename", "x"]);
    let process = Process::of(&server);
    std::fs::create_dir(server.dir().join("x")).unwrap();
    server.command(&["SET", "k", "v"]);
    server.command(&["BGSAVE"]);
    super::support::until("saving has failed", || {
        server.command(&["INFO", "persistence"]).join("\n").contains("rdb_last_bgsave_status:err")
    });
    let error = failed(process.attempt(&process.exclusive("a")));
    assert!(error.kind() == ErrorKind::Refused && error.message().contains("disk"), "{error}");
}

#[test]
fn keys_of_another_kind_or_of_a_newer_layout_stop_with_their_name() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    server.command(&["RPUSH", "lockkeeper:{lock:list}", "x"]);
    let error = failed(process.attempt(&process.exclusive("list")));
    assert!(
        error.kind() == ErrorKind::Corrupt && error.message().contains("lockkeeper:{lock:list}"),
        "{error}"
    );
    server.command(&["SET", "lockkeeper:{lock:text}", "somebody's"]);
    let error = failed(process.attempt(&process.exclusive("text")));
    assert!(
        error.kind() == ErrorKind::Corrupt && error.message().contains("lockkeeper:{lock:text}"),
        "{error}"
    );
    assert_eq!(server.command(&["GET", "lockkeeper:{lock:text}"]), ["somebody's"]);
    let (held, _) = process.take("a", Mode::Exclusive);
    let record = server.command(&["GET", "lockkeeper:{lock:a}"])[0].replacen("2 ", "3 ", 1);
    server.command(&["SET", "lockkeeper:{lock:a}", &record]);
    let error = failed(process.attempt(&process.exclusive("a")));
    assert!(
        error.kind() == ErrorKind::NewerLayout
            && error.message().contains('3')
            && error.message().contains('2'),
        "{error}"
    );
    assert!(!matches!(process.release(held.id), End::Freed));
    server.command(&["SET", "lockkeeper:{lock:b}:last", "77:3:w"]);
    let error = failed(process.attempt(&process.exclusive("b")));
    assert_eq!(error.kind(), ErrorKind::NewerLayout, "{error}");
    assert_eq!(process.look(Kind::Lock, "b").holders, []);
}

#[test]
fn a_last_number_of_another_type_stops_with_its_name_and_is_not_overwritten() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    server.command(&["RPUSH", "lockkeeper:{lock:a}:last", "x"]);
    let failed_with_its_name = |claim| {
        let error = failed(process.attempt(&claim));
        assert!(
            error.kind() == ErrorKind::Corrupt
                && error.message().contains("lockkeeper:{lock:a}:last"),
            "{error}"
        );
    };
    failed_with_its_name(process.exclusive("a"));
    failed_with_its_name(process.claim("a", Mode::Shared));
    assert_eq!(server.command(&["LRANGE", "lockkeeper:{lock:a}:last", "0", "-1"]), ["x"]);
    assert_eq!(server.command(&["EXISTS", "lockkeeper:{lock:a}"]), ["0"], "nothing is half taken");
    server.command(&["DEL", "lockkeeper:{lock:a}:last"]);
    // Nor while somebody holds it, when the long way is taken.
    let (held, _) = process.take("a", Mode::Shared);
    let (other, _) = process.take("a", Mode::Shared);
    server.command(&["DEL", "lockkeeper:{lock:a}:last"]);
    server.command(&["RPUSH", "lockkeeper:{lock:a}:last", "x"]);
    failed_with_its_name(process.exclusive("a"));
    server.command(&["DEL", "lockkeeper:{lock:a}:last"]);
    for hold in [held, other] {
        assert!(matches!(process.release(hold.id), End::Freed));
    }
}

#[test]
fn something_that_is_no_redis_is_told_apart_from_one_that_is_not_there() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let http = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        stream
    });
    let error = refused(options(port));
    assert!(
        error.kind() == ErrorKind::Unreachable && error.message().contains("HTTP/1.1"),
        "{error}"
    );
    drop(http.join());
    let error = refused(options(lockkeeper_testkit::servers::free_port()));
    assert!(
        error.kind() == ErrorKind::Unreachable && error.message().contains("refused"),
        "{error}"
    );
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut impatient = options(silent.local_addr().unwrap().port());
    impatient.connect_timeout = Duration::from_millis(200);
    let error = refused(impatient);
    assert!(error.kind() == ErrorKind::Unreachable && error.message().contains("200ms"), "{error}");
}

#[test]
fn a_unix_socket_and_a_database_number() {
    let server = RedisServer::start();
    let mut options = RedisOptions::new(Address::Unix(server.socket()));
    options.db = 3;
    let process = Process::with(options.clone());
    let (held, _) = process.take("a", Mode::Exclusive);
    // The same name in another database is another lock.
    options.db = 0;
    Process::with(options).take("a", Mode::Exclusive);
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn what_a_server_is_decides_its_class_and_its_warnings() {
    let plain = RedisServer::start();
    let about = Process::of(&plain).engine.describe();
    assert_eq!((about.class, about.fenced, about.hosts), (Class::Efficiency, true, true));
    assert_eq!(about.recovery, Duration::from_secs(30));
    assert_eq!(about.expiry, Expiry::PerHold { claim_lease: Some(Duration::from_secs(2)) });
    assert!(
        about.server.starts_with("Redis 7")
            || about.server.starts_with("Redis 6")
            || about.server.starts_with("Redis 8"),
        "{}",
        about.server
    );
    assert!(about.warnings.is_empty(), "{:?}", about.warnings);
    let evicting = RedisServer::start_with(&[
        "--appendonly",
        "yes",
        "--appendfsync",
        "always",
        "--maxmemory",
        "100mb",
        "--maxmemory-policy",
        "allkeys-lru",
    ]);
    let about = Process::of(&evicting).engine.describe();
    assert_eq!(about.class, Class::Efficiency);
    assert!(
        about.warnings.iter().any(|w| w.id == "eviction" && w.text.contains("allkeys-lru")),
        "{:?}",
        about.warnings
    );
}
