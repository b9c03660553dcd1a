//! The layouts that belong to other programs, against the very commands of those programs.

use std::time::{Duration, Instant};

use super::super::options::{Layout, RedisOptions, RedissonLock, ValueFormat};
use super::proxy::{Proxy, Way};
use super::server::RedisServer;
use super::support::{Process, granted, options, until};
use crate::claim::{Ends, Mode};
use crate::engine::{Attempt, Change, End, Event, Line, Number, Query, Renewal, Standing, WatchId};
use crate::error::ErrorKind;
use crate::id::ClaimId;
use crate::name::{Kind, Name};

pub(super) fn plain(server: &RedisServer) -> RedisOptions {
    let mut options = options(server.port());
    options.layout = Layout::Plain;
    options
}

pub(super) fn redisson(server: &RedisServer, lock: RedissonLock) -> RedisOptions {
    let mut options = options(server.port());
    (options.layout, options.redisson) = (Layout::Redisson, lock);
    options
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
        assert!((29_000..=30_000).contains(&ttl));
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
    for set in [&["SET", "a", "theirs", "NX", "PX", "30000"][..], &["SETNX", "a", "theirs"]] {
        server.command(set);
        assert!(matches!(process.attempt_try(&process.exclusive("a")), Attempt::Busy(_)));
        let waiting = process.queue("a", Mode::Exclusive);
        // Compare and delete by EVAL, as the articles have it.
        let script = "if redis.call('get',KEYS[1]) == ARGV[1] then return \
                      redis.call('del',KEYS[1]) else return 0 end";
        assert_eq!(server.command(&["EVAL", script, "1", "a", "theirs"]), ["1"]);
        let waited = woken(&process, waiting.id);
        // By itself it looks after five seconds.
        assert!(waited < Duration::from_secs(3), "{waited:?}");
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
    (options.user, options.password) = (Some("ann".into()), Some(crate::url::Secret::new("pw")));
    let deaf = Process::with(options);
    let before = Instant::now();
    server.command(&["SET", "b", "dead", "NX", "PX", "1500"]);
    let waiting = deaf.queue("b", Mode::Exclusive);
    woken(&deaf, waiting.id);
    let waited = before.elapsed();
    assert!(waited >= Duration::from_millis(1500) && waited < Duration::from_secs(4), "{waited:?}");
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
fn r2_asking_about_a_lost_hold_never_takes_the_lock_anew() {
    let server = RedisServer::start();
    let all = [plain(&server)].into_iter().chain(
        [RedissonLock::Plain, RedissonLock::Fenced, RedissonLock::Fair, RedissonLock::ReadWrite]
            .map(|lock| redisson(&server, lock)),
    );
    for options in all {
        let process = Process::with(options);
        let (held, _) = process.take("a", Mode::Exclusive);
        let asked = process.wait(process.engine.recheck(&[held.id]));
        assert!(matches!(asked[..], [Standing::Held(_)]), "{asked:?}");
        server.command(&["DEL", "a"]);
        let asked = process.wait(process.engine.recheck(&[held.id]));
        assert!(
            matches!(&asked[..], [Standing::Gone(e)] if e.kind() == ErrorKind::Lost),
            "{asked:?}"
        );
        assert_eq!(server.command(&["EXISTS", "a"]), ["0"], "it was not taken anew");
    }
}

#[test]
fn r4_a_busy_that_is_read_behind_a_newer_grant_changes_nothing() {
    let server = RedisServer::start();
    for options in [plain(&server), redisson(&server, RedissonLock::Plain)] {
        let (other, process) = (Process::with(options.clone()), Process::with(options));
        let (held, _) = other.take("a", Mode::Exclusive);
        let claim = process.exclusive("a");
        // Nobody asks about it but this test.
        let stands = process.wait(process.engine.attempt(&claim, Line::Join));
        assert!(matches!(stands, Attempt::InLine(_)), "{stands:?}");
        let older = process.engine.recheck(&[claim.id]);
        // On one connection it is carried out before this look is answered.
        process.look(Kind::Lock, "a");
        assert!(matches!(other.release(held.id), End::Freed));
        let newer = process.wait(process.engine.recheck(&[claim.id]));
        assert!(matches!(newer[..], [Standing::Held(_)]), "{newer:?}");
        let older = process.wait(older);
        assert!(matches!(older[..], [Standing::Unknown(_)]), "{older:?}");
        assert!(matches!(process.release(claim.id), End::Freed), "it was forgotten");
        assert_eq!(server.command(&["EXISTS", "a"]), ["0"]);
    }
}

#[test]
fn r5_what_was_granted_and_read_too_late_is_given_back_when_its_caller_leaves() {
    let server = RedisServer::start();
    for layout in [Layout::Native, Layout::Plain, Layout::Redisson] {
        let proxy = Proxy::to(server.port());
        let mut options = options(proxy.port());
        (options.layout, options.request_timeout) = (layout, Duration::from_secs(5));
        let process = Process::with(options);
        let record = if layout == Layout::Native { "lockkeeper:{lock:a}" } else { "a" };
        let is_there = || server.command(&["EXISTS", record]) == ["1"];
        let mut claim = process.exclusive("a");
        claim.ttl = Duration::from_millis(1500);
        // The server learns the script.
        let (warm, _) = process.take("warm", Mode::Exclusive);
        assert!(matches!(process.release(warm.id), End::Freed));
        proxy.hold(Way::Down);
        let asked = process.engine.attempt(&claim, Line::Join);
        until("it is granted", is_there);
        until("its lease is over", || !is_there());
        proxy.heal();
        let attempt = process.wait(asked);
        assert!(matches!(attempt, Attempt::Unknown(_)), "{layout:?}: {attempt:?}");
        // Asked again it holds, but its caller leaves.
        let again = process.wait(process.engine.attempt(&claim, Line::Join));
        assert!(matches!(again, Attempt::Granted(_)), "{layout:?}: {again:?}");
        assert!(is_there());
        assert!(matches!(process.withdraw(claim.id), End::Freed), "{layout:?}");
        assert!(!is_there(), "{layout:?}");
    }
}

#[test]
fn r10_who_waits_hears_of_a_release_also_after_an_answer_that_came_too_late() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let mut options = redisson(&server, RedissonLock::Plain);
    options.address = super::support::options(proxy.port()).address;
    options.request_timeout = Duration::from_secs(5);
    let (other, process) =
        (Process::with(redisson(&server, RedissonLock::Plain)), Process::with(options));
    let (held, _) = other.take("a", Mode::Exclusive);
    let mut claim = process.exclusive("a");
    claim.ttl = Duration::from_millis(1500);
    let stands = process.wait(process.engine.attempt(&claim, Line::Join));
    assert!(matches!(stands, Attempt::InLine(_)), "{stands:?}");
    // A check is answered with a grant that is read when it is over, and somebody else has it.
    proxy.hold(Way::Down);
    assert!(matches!(other.release(held.id), End::Freed));
    let late = process.engine.recheck(&[claim.id]);
    let owner_is_there = || server.command(&["EXISTS", "a"]) == ["1"];
    until("it is granted", owner_is_there);
    until("its lease is over", || !owner_is_there());
    let (next, _) = other.take("a", Mode::Exclusive);
    proxy.heal();
    let late = process.wait(late);
    assert!(matches!(late[..], [Standing::Unknown(_)]), "{late:?}");
    // The release from before is heard by now, too: the next one is what counts.
    process.look(Kind::Lock, "a");
    while process.event_within(Duration::from_millis(200), &mut |_: &Event| Some(())).is_some() {}
    assert!(matches!(other.release(next.id), End::Freed));
    woken(&process, claim.id);
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

/// Takes a lock, on a server that knows the scripts: a release that has to be sent twice comes
/// behind the next claim.
fn taken(process: &Process, name: &str) -> ClaimId {
    let (held, _) = process.take("scripts", Mode::Exclusive);
    assert!(matches!(process.release(held.id), End::Freed));
    process.take(name, Mode::Exclusive).0.id
}

/// Gives a lock back and asks for it again in the same message, until the process stands back;
/// answers the claim that does.
fn standing_back(process: &Process, held: ClaimId, name: &str) -> ClaimId {
    let (mut held, began) = (held, Instant::now());
    loop {
        let again = process.exclusive(name);
        match process.release_again(held, &again).again.expect("it was asked for again") {
            Attempt::Granted(_) => held = again.id,
            Attempt::InLine(_) => return again.id,
            other => panic!("{other:?}"),
        }
        assert!(began.elapsed() < Duration::from_secs(10), "it never lets anybody pass");
    }
}

#[test]
fn a_claim_that_came_before_a_release_that_was_sent_twice_is_woken_once_that_is_answered() {
    for at_once in [true, false] {
        let server = RedisServer::start();
        let process = Process::with(plain(&server));
        // The server does not know the script of the release.
        let (held, _) = process.take("a", Mode::Exclusive);
        let next = process.exclusive("a");
        let attempt = if at_once {
            process.release_again(held.id, &next).again.expect("it was asked for again")
        } else {
            let release = process.engine.release(&[held.id], None);
            let attempt = process.engine.attempt(&next, Line::Join);
            process.wait(release);
            process.attempted(&next, attempt)
        };
        if matches!(attempt, Attempt::InLine(_)) {
            // By itself it looks after five seconds.
            let waited = woken(&process, next.id);
            assert!(waited < Duration::from_secs(3), "{waited:?}");
            granted(process.attempt(&next));
        }
        assert!(matches!(process.release(next.id), End::Freed));
    }
}

#[test]
fn a_process_that_had_a_plain_lock_for_long_lets_others_pass_for_a_quarter_of_a_second() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    let began = Instant::now();
    let held = taken(&process, "a");
    let waiting = standing_back(&process, held, "a");
    let ran = began.elapsed();
    assert!(ran >= Duration::from_millis(50), "{ran:?}: not after each hold");
    // A wake-up is for those who compete.
    let since = Instant::now();
    assert_eq!(
        server.command(&["SET", "a", "theirs", "NX", "PX", "30000"]),
        ["OK"],
        "whoever asks now gets it"
    );
    assert_eq!(server.command(&["DEL", "a"]), ["1"]);
    woken(&process, waiting);
    let stood = since.elapsed();
    assert!(stood > Duration::from_millis(200) && stood < Duration::from_secs(3), "{stood:?}");
    let mut claim = process.exclusive("a");
    claim.id = waiting;
    granted(process.attempt(&claim));
    // Somebody else wanted it, so it stands back again as soon.
    let again = Instant::now();
    let waiting = standing_back(&process, waiting, "a");
    assert!(again.elapsed() < Duration::from_secs(2), "{:?}", again.elapsed());
    assert!(
        matches!(process.withdraw(waiting), End::NotOurs),
        "there is nothing of it on the server"
    );
    assert_eq!(server.command(&["EXISTS", "a"]), ["0"]);
}

#[test]
fn a_process_that_nobody_competes_with_for_a_plain_lock_stands_back_once_in_seconds() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    let held = taken(&process, "a");
    let mut claim = process.exclusive("a");
    claim.id = standing_back(&process, held, "a");
    granted(process.attempt_until(&claim));
    let began = Instant::now();
    standing_back(&process, claim.id, "a");
    assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn a_claim_that_stands_back_looks_before_its_caller_gives_up() {
    let server = RedisServer::start();
    let process = Process::with(plain(&server));
    let mut held = taken(&process, "a");
    loop {
        let mut again = process.exclusive("a");
        again.give_up = Some(process.clock.now().plus(Duration::from_millis(240)));
        match process.release_again(held, &again).again {
            Some(Attempt::Granted(_)) => held = again.id,
            _ => {
                woken(&process, again.id);
                granted(process.attempt(&again));
                return;
            }
        }
    }
}

#[test]
fn no_other_layout_stands_back() {
    let server = RedisServer::start();
    for options in [redisson(&server, RedissonLock::Plain), options(server.port())] {
        let process = Process::with(options);
        let mut held = taken(&process, "a");
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(300) {
            let again = process.exclusive("a");
            let answer = process.release_again(held, &again).again;
            assert!(matches!(answer, Some(Attempt::Granted(_))), "{answer:?}");
            held = again.id;
        }
    }
}
