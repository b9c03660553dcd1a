//! One lock, alone and against others.

use std::time::Duration;

use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use super::server::RedisServer;
use super::support::{Process, granted, number};
use crate::engine::{Attempt, End, Renewal};
use crate::words::claim::Mode;
use crate::words::lost::Lost;
use crate::words::name::Kind;

const RECORD: &str = "lockkeeper:{lock:a}";

#[test]
fn an_uncontended_acquire_and_release_are_four_calls_at_most_and_publish_nothing() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let modes =
        [Mode::Exclusive, Mode::Shared, Mode::Upgradable, Mode::Permits { count: 2, limit: 4 }];
    // The server learns the scripts.
    for mode in modes {
        let (warm, _) = process.take("a", mode);
        process.release(warm.id);
    }
    for mode in modes {
        server.command(&["CONFIG", "RESETSTAT"]);
        let (claim, _) = process.take("a", mode);
        let acquire = server.command_counts();
        assert_eq!(acquire.get("evalsha"), Some(&1), "{mode:?}: {acquire:?}");
        let inner: u64 = acquire
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "evalsha" | "config|resetstat" | "info"))
            .map(|(_, n)| n)
            .sum();
        assert!(inner <= 4, "{mode:?}: {acquire:?}");
        server.command(&["CONFIG", "RESETSTAT"]);
        assert!(matches!(process.release(claim.id), End::Freed));
        let release = server.command_counts();
        let inner: u64 = release
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "evalsha" | "config|resetstat" | "info"))
            .map(|(_, n)| n)
            .sum();
        assert!(inner <= 4, "{mode:?}: {release:?}");
        assert!(!acquire.contains_key("publish") && !release.contains_key("publish"));
    }
    assert_eq!(server.command(&["KEYS", "*"]).len(), 2, "nothing but the last numbers stays");
}

#[test]
fn try_leaves_nothing_behind_and_says_who_holds_it() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (held, grant) = one.take("a", Mode::Exclusive);
    let Attempt::Busy(Some(holder)) = two.attempt_try(&two.exclusive("a")) else {
        panic!("not busy")
    };
    assert_eq!(holder.claim, Some(held.id));
    assert_eq!(
        (holder.host.as_deref(), holder.pid, holder.mode),
        (Some("host"), Some(std::process::id()), Some(Mode::Exclusive))
    );
    assert_eq!(holder.token, crate::Token::of(number(&grant), 0));
    // Of its thirty seconds, and a slow machine has not taken all.
    let lease = Duration::from_secs(1)..=Duration::from_secs(30);
    assert!(holder.expires_in().is_some_and(|left| lease.contains(&left)), "{holder:?}");
    assert_eq!(server.command(&["EXISTS", "lockkeeper:{lock:a}:line"]), ["0"]);
    // Somebody in line is not overtaken either (R11).
    let waiting = two.queue("a", Mode::Exclusive);
    one.release(held.id);
    two.granted(waiting.id);
    assert!(matches!(one.attempt_try(&one.exclusive("a")), Attempt::Busy(_)));
}

#[test]
fn r7_numbers_rise_after_the_record_was_deleted_and_after_the_server_was_flushed() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let mut before = 0;
    for wipe in
        [&["GET", "x"][..], &["DEL", RECORD], &["DEL", "lockkeeper:{lock:a}:last"], &["FLUSHALL"]]
    {
        let (claim, grant) = process.take("a", Mode::Exclusive);
        assert!(number(&grant) > before, "after {wipe:?}");
        before = number(&grant);
        server.command(wipe);
        process.release(claim.id);
    }
    process.take("b", Mode::Exclusive);
    let seconds: u64 = server.command(&["TIME"])[0].parse().unwrap();
    let tick = (seconds - 1_767_225_600) * 1_000_000 / 16;
    assert!(
        before.abs_diff(tick) < 10 * 1_000_000 / 16,
        "the number is the server's clock: {before} at {tick}"
    );
    let ttl: u64 = server.command(&["TTL", "lockkeeper:{lock:b}:last"])[0].parse().unwrap();
    assert!(ttl > 604_000, "the last number is kept 7 days, not {ttl} s");
}

#[test]
fn g8_d6_a_record_deleted_by_an_operator_is_noticed_at_the_next_renewal_and_not_freed_for_the_next()
{
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    assert!(
        matches!(one.renew(held.id), Renewal::Extended { ttl, since: Some(_) } if ttl == held.ttl)
    );
    server.command(&["DEL", RECORD]);
    let (theirs, _) = two.take("a", Mode::Exclusive);
    assert!(matches!(one.renew(held.id), Renewal::Gone(Lost::TakenAway)));
    assert!(matches!(one.release(held.id), End::NotOurs));
    assert!(matches!(two.renew(theirs.id), Renewal::Extended { .. }));
}

#[test]
fn r3_a_request_that_arrives_after_its_caller_left_is_refused() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let mut claim = process.exclusive("a");
    // So long ago that it is over by the server's clock too, whose time we know to within one
    // answer.
    claim.give_up = Some(process.now().minus(Duration::from_secs(1)));
    let attempt = process.attempt(&claim);
    assert!(
        matches!(&attempt, Attempt::Failed(error) if error.kind() == crate::ErrorKind::TimedOut),
        "{attempt:?}"
    );
    assert_eq!(server.command(&["EXISTS", RECORD]), ["0"]);
}

#[test]
fn d9_scripts_are_sent_again_after_a_script_flush() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    for _ in 0..5 {
        server.command(&["SCRIPT", "FLUSH"]);
        let (claim, _) = process.take("a", Mode::Exclusive);
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(matches!(process.renew(claim.id), Renewal::Extended { .. }));
        server.command(&["SCRIPT", "FLUSH"]);
        assert!(matches!(process.release(claim.id), End::Freed));
    }
}

#[test]
fn r12_names_that_differ_are_different_locks() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let names = [
        "a",
        "A",
        "a/",
        "a b",
        "a%20b",
        "{a}",
        "a}",
        "é",
        "e\u{301}",
        "a.b",
        "a..b",
        "a:line",
        "a:last",
        "*",
        "lock:a",
        &"x".repeat(1024),
    ];
    let mut held = Vec::new();
    for name in names {
        held.push(process.take(name, Mode::Exclusive).0);
    }
    let mut listed: Vec<String> =
        process.list("").into_iter().map(|e| e.name.as_str().to_owned()).collect();
    let mut expected: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for claim in held {
        assert!(matches!(process.release(claim.id), End::Freed));
    }
    assert_eq!(process.list(""), []);
}

#[test]
fn a_lock_that_lost_its_time_to_live_gets_one_again() {
    let server = RedisServer::start();
    let (one, two) = (Process::of(&server), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    server.command(&["PERSIST", RECORD]);
    two.queue("a", Mode::Exclusive);
    let left: i64 = server.command(&["PTTL", RECORD])[0].parse().unwrap();
    assert!(left > 0, "it would be held for ever: {left}");
    assert!(matches!(one.renew(held.id), Renewal::Extended { .. }));
    assert_eq!(two.look(Kind::Lock, "a").holders.len(), 1);
}

#[test]
fn a_renewal_answers_for_its_own_lease_also_when_another_of_the_batch_was_given_back_meanwhile() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    // More than once: the connection for renewals is made when it is needed first, and until then
    // each waits for its reader.
    for _ in 0..20 {
        let [a, b, c] = ["a", "b", "c"].map(|name| process.take(name, Mode::Exclusive).0.id);
        assert_eq!(server.command(&["DEL", "lockkeeper:{lock:c}"]), ["1"]);
        let renewing = process.engine.renew(&[a.into(), b.into(), c.into()]);
        // On the same connection, so the server has answered the first by now; nobody has looked at
        // its answer yet.
        assert!(matches!(process.renew(a), Renewal::Extended { .. }));
        assert!(matches!(process.release(b), End::Freed));
        let renewals = process.wait(renewing);
        assert!(
            matches!(
                renewals[..],
                [Renewal::Extended { .. }, Renewal::Gone(_), Renewal::Gone(Lost::TakenAway)]
            ),
            "{renewals:?}"
        );
        assert!(matches!(process.release(a), End::Freed));
    }
}

#[test]
fn r7_tokens_rise_and_nobody_passes_a_line_where_the_clock_is_stepped_by_an_hour_and_back() {
    const HOUR: Duration = Duration::from_secs(3600);
    let shim = ClockShim::new().unwrap();
    let [(preload, library), (control, file)] = shim.environment();
    let server = RedisServer::start_in(
        &[],
        &[(preload, &library.to_string_lossy()), (control, &file.to_string_lossy())],
    );
    let [one, two, three] = [(); 3].map(|()| Process::of(&server));
    let (_, first) = one.take("a", Mode::Exclusive);
    two.queue("a", Mode::Exclusive);
    two.die();
    shim.step(Clocks::Wall, HOUR).unwrap();
    // The lease and the line are over; the flag of the line is there.
    let (held, second) = three.take("a", Mode::Exclusive);
    assert!(number(&second) > number(&first));
    let waiting = one.queue("a", Mode::Exclusive);
    shim.step_back(Clocks::Wall, HOUR).unwrap();
    let four = Process::of(&server);
    assert!(matches!(four.attempt_try(&four.exclusive("a")), Attempt::Busy(_)));
    assert!(matches!(three.release(held.id), End::Freed));
    assert!(matches!(four.attempt_try(&four.exclusive("a")), Attempt::Busy(_)));
    let mut last = granted(one.attempt_until(&waiting));
    assert!(number(&last) > number(&second));
    assert!(matches!(one.release(waiting.id), End::Freed));
    for process in [&one, &three, &four, &four] {
        let (held, next) = process.take("a", Mode::Exclusive);
        assert!(number(&next) > number(&last));
        assert!(matches!(process.release(held.id), End::Freed));
        last = next;
    }
}
