//! What a network and a server can do to us (the numbers are those of the failure catalogue).

use std::time::{Duration, Instant};

use super::proxy::{Fault, Proxy, Way};
use super::server::RedisServer;
use super::support::{PATIENCE, Process, engine_of, granted, number, opened, options, until};
use crate::engine::{Attempt, End, Event, Line, Renewal, Standing};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::name::Kind;

const RECORD: &str = "lockkeeper:{lock:a}";

/// How long an answer may take where none is waited for in vain.
const AMPLE: Duration = Duration::from_secs(5);

pub(super) fn behind(proxy: &Proxy, request_timeout: Duration) -> Process {
    let mut options = options(proxy.port());
    options.request_timeout = request_timeout;
    let process = opened(|| Process::try_with(options.clone()));
    // The server learns the scripts, so that a fault meets the call that it is meant for.
    let mut turn = 0;
    until("each is answered in time", || {
        turn += 1;
        let [claim, waiting] = [(); 2].map(|()| process.exclusive(&format!("warm{turn}")));
        let granted = matches!(process.attempt(&claim), Attempt::Granted(_));
        let renewed = matches!(process.renew(claim.id), Renewal::Extended { .. });
        let stands = matches!(process.attempt(&waiting), Attempt::InLine(_));
        let left = matches!(process.withdraw(waiting.id), End::Freed);
        let freed = matches!(process.release(claim.id), End::Freed);
        granted && renewed && stands && left && freed
    });
    process
}

#[test]
fn g4_g10_a_lease_counts_from_before_the_request_left_however_late_the_answer_is() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let process = behind(&proxy, AMPLE);
    proxy.set(Way::Down, Fault { delay: Duration::from_millis(300), ..Fault::default() });
    let claim = process.exclusive("a");
    let lease = granted(process.attempt(&claim)).lease.unwrap();
    let late = process.now().since(lease.since.unwrap());
    assert!(late >= Duration::from_millis(300), "counted from the reply: {late:?}");
    let before = process.now();
    let Renewal::Extended { since, .. } = process.renew(claim.id) else { panic!("not extended") };
    assert!(
        since.unwrap() >= before
            && process.now().since(since.unwrap()) >= Duration::from_millis(300)
    );
}

#[test]
fn g5_an_acquire_whose_reply_was_lost_is_unknown_and_the_same_claim_again_holds_once() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let process = behind(&proxy, AMPLE);
    // Each a name of its own: the word that a request may still be on its way would be in the way.
    for (name, lost) in [("a", 0), ("b", 3)] {
        let record = &format!("lockkeeper:{{lock:{name}}}");
        proxy.set(Way::Down, Fault { cut_after: Some(lost), ..Fault::default() });
        let claim = process.exclusive(name);
        let attempt = process.attempt(&claim);
        assert!(
            matches!(&attempt, Attempt::Unknown(e) if e.kind() == ErrorKind::Unknown),
            "{attempt:?}"
        );
        process.link(false);
        process.link(true);
        until("the lost request has arrived", || server.command(&["EXISTS", record]) == ["1"]);
        let written = server.command(&["GET", record])[0].clone();
        let grant = granted(process.attempt(&claim));
        assert_eq!(
            written.split(' ').nth(11),
            Some(number(&grant).to_string().as_str()),
            "the grant of the lost reply: {written}"
        );
        assert!(matches!(process.release(claim.id), End::Freed));
        assert_eq!(server.command(&["EXISTS", record]), ["0"], "held once");
    }
}

#[test]
fn g6_an_acquire_that_arrives_after_the_caller_left_and_cleaned_up_locks_nobody() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let process = behind(&proxy, AMPLE);
    proxy.hold_present(Way::Up);
    let claim = process.exclusive("a");
    let asked = process.engine.attempt(&claim, crate::engine::Line::Join);
    until("the request is on its way", || proxy.held(Way::Up) > 0);
    proxy.cut_client();
    assert!(matches!(process.wait(asked), Attempt::Unknown(_)));
    process.link(true);
    assert!(matches!(process.withdraw(claim.id), End::NotOurs));
    let asked_before = server.command_counts().get("evalsha").copied().unwrap_or(0);
    proxy.heal();
    until("the late request has arrived", || {
        server.command_counts().get("evalsha").copied().unwrap_or(0) > asked_before
    });
    assert_eq!(server.command(&["EXISTS", RECORD]), ["0"], "it must find that its caller has left");
    process.take("a", Mode::Exclusive);
}

#[test]
fn g7_a_release_repeated_after_its_reply_was_lost_frees_nobody_else() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (behind(&proxy, AMPLE), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    proxy.set(Way::Down, Fault { cut_after: Some(0), ..Fault::default() });
    assert!(matches!(one.release(held.id), End::Unknown(_)));
    let (theirs, _) = two.take("a", Mode::Exclusive);
    one.link(true);
    assert!(matches!(one.release(held.id), End::NotOurs));
    assert!(matches!(two.renew(theirs.id), Renewal::Extended { .. }));
}

#[test]
fn r1_a_push_that_is_read_after_a_pause_is_not_a_grant() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (Process::of(&server), behind(&proxy, AMPLE));
    let (held, _) = one.take("a", Mode::Exclusive);
    let mut claim = two.exclusive("a");
    claim.ttl = Duration::from_millis(900);
    two.queue_claim(&claim);
    proxy.hold(Way::Down);
    one.release(held.id);
    until("the push is on its way", || proxy.held(Way::Down) > 0);
    // The claim lease is 300 ms.
    std::thread::sleep(Duration::from_millis(350));
    let other = one.take("a", Mode::Exclusive).0;
    proxy.heal();
    let woken = two.event("word of it", |e| match e {
        Event::Wake { claim: id } if *id == claim.id => Some(true),
        Event::Granted { claim: id, .. } if *id == claim.id => Some(false),
        _ => None,
    });
    assert!(woken, "a grant that is over was believed");
    assert!(matches!(one.renew(other.id), Renewal::Extended { .. }));
    assert!(matches!(two.attempt(&claim), Attempt::InLine(_)));
}

#[test]
fn r7_a_grant_that_is_read_late_gives_its_number_to_no_later_hold_of_the_same_claim() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // Its answers are late by more than a lease.
    let (one, two) = (Process::of(&server), behind(&proxy, Duration::from_secs(60)));
    let (held, _) = one.take("a", Mode::Exclusive);
    let mut claim = two.exclusive("a");
    claim.ttl = Duration::from_secs(6);
    // Nobody asks about it but this test.
    let stands = two.wait(two.engine.attempt(&claim, Line::Join));
    assert!(matches!(stands, Attempt::InLine(_)), "{stands:?}");
    let has_it = || server.command(&["GET", RECORD]).concat().contains(&claim.id.to_string());
    // The answer to a check gives the whole lease, and is read only when that is over.
    proxy.hold(Way::Down);
    assert!(matches!(one.release(held.id), End::Freed));
    until("it is granted", has_it);
    let late = two.engine.recheck(&[claim.id]);
    until("the check has given the whole lease", || {
        server.command(&["PTTL", RECORD])[0].parse::<i64>().unwrap() > 2_000
    });
    until("the lease is over", || server.command(&["EXISTS", RECORD]) == ["0"]);
    let (next, between) = one.take("a", Mode::Exclusive);
    // Another check makes it stand in line, and it gets the lock once more.
    let again = two.engine.recheck(&[claim.id]);
    until("it stands in line", || server.command(&["ZCARD", "lockkeeper:{lock:a}:line"]) != ["0"]);
    assert!(matches!(one.release(next.id), End::Freed));
    until("it is granted again", has_it);
    proxy.heal();
    let answers = two.wait(late);
    assert!(matches!(answers[..], [Standing::Unknown(_)]), "{answers:?}");
    two.wait(again);
    let grant = two.granted(claim.id);
    assert!(number(&grant) > number(&between), "{grant:?} after {between:?}");
}

#[test]
fn r7_a_check_of_a_hold_says_the_number_that_the_server_has() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let checked = |claim: &Claim| {
        let answers = process.wait(process.engine.recheck(&[claim.id]));
        let [Standing::Held(grant)] = &answers[..] else { panic!("{answers:?}") };
        number(grant)
    };
    // One holder is a string.
    let (alone, grant) = process.take("a", Mode::Exclusive);
    assert_eq!(checked(&alone), number(&grant));
    let text = server.command(&["GET", RECORD]).concat();
    let later = (number(&grant) + 5).to_string();
    let granted_again = text.replace(&number(&grant).to_string(), &later);
    server.command(&["SET", RECORD, &granted_again, "KEEPTTL"]);
    assert_eq!(checked(&alone), number(&grant) + 5);
    // Several are a hash.
    let (first, grant) = process.take("b", Mode::Shared);
    process.take("b", Mode::Shared);
    assert_eq!(checked(&first), number(&grant));
    let field = first.id.to_string();
    let text = server.command(&["HGET", "lockkeeper:{lock:b}", &field]).concat();
    let later = (number(&grant) + 5).to_string();
    let granted_again = text.replace(&number(&grant).to_string(), &later);
    server.command(&["HSET", "lockkeeper:{lock:b}", &field, &granted_again]);
    assert_eq!(checked(&first), number(&grant) + 5);
}

#[test]
fn d3_a_restart_without_data_loses_the_lock_and_says_so_and_numbers_still_rise() {
    let mut server = RedisServer::start();
    let process = Process::of(&server);
    let (held, before) = process.take("a", Mode::Exclusive);
    server.restart();
    process.link(false);
    process.link(true);
    assert!(matches!(process.renew(held.id), Renewal::Gone(_)));
    let (_, after) = process.take("a", Mode::Exclusive);
    assert!(number(&after) > number(&before), "D5");
}

#[test]
fn a_restart_with_its_data_keeps_the_lock() {
    let mut server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let process = Process::of(&server);
    assert_eq!(process.engine.describe().class, crate::Class::Timed);
    let (held, _) = process.take("a", Mode::Exclusive);
    server.restart();
    process.link(true);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn d7_a_server_that_was_stopped_longer_than_the_lease_revives_nothing() {
    let server = RedisServer::start();
    let mut options = options(server.port());
    options.request_timeout = Duration::from_secs(1);
    let process = Process::with(options);
    let claim = Claim { ttl: Duration::from_secs(8), ..process.exclusive("a") };
    process.granted_at_last(&claim);
    until("it is extended", || match process.renew(claim.id) {
        Renewal::Extended { .. } => true,
        Renewal::Unknown(_) => false,
        gone @ Renewal::Gone(_) => panic!("not extended but {gone:?}"),
    });
    // By then the server has seen its end as well.
    let end = process.now().plus(claim.ttl);
    let connections = || format!("{:?}", server.command(&["CLIENT", "LIST"]));
    until("the second connection is up", || connections().contains(":renewals"));
    server.stop();
    let renewal = process.renew(claim.id);
    let late = process.exclusive("b");
    let attempt = process.attempt(&late);
    until("its lease is over", || process.now() > end);
    server.go_on();
    assert!(matches!(renewal, Renewal::Unknown(_)), "{renewal:?}");
    assert!(matches!(attempt, Attempt::Unknown(_)), "{attempt:?}");
    process.link(true);
    until("it is told that it is gone", || match process.renew(claim.id) {
        Renewal::Gone(_) => true,
        Renewal::Unknown(_) => false,
        other => panic!("a renewal that was applied late must not revive it: {other:?}"),
    });
    assert_eq!(
        server.command(&["EXISTS", "lockkeeper:{lock:b}"]),
        ["0"],
        "it came too late to lock"
    );
    until("it is left", || match process.withdraw(late.id) {
        End::NotOurs => true,
        End::Unknown(_) => false,
        other => panic!("it locked: {other:?}"),
    });
}

#[test]
fn d8_a_wake_up_that_was_lost_is_made_up_for_by_the_check_after_the_reconnect() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (Process::of(&server), behind(&proxy, AMPLE));
    let (held, _) = one.take("a", Mode::Exclusive);
    let waiting = two.queue("a", Mode::Exclusive);
    proxy.refuse(true);
    proxy.cut();
    two.link(false);
    one.release(held.id);
    proxy.refuse(false);
    two.link(true);
    let answers = two.wait(two.engine.recheck(&[waiting.id]));
    assert!(matches!(answers[..], [Standing::Held(_)]), "{answers:?}");
}

#[test]
fn every_connection_may_be_killed_at_any_time() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    for _ in 0..3 {
        let (held, _) = process.take("a", Mode::Exclusive);
        assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
        for line in server
            .command(&["CLIENT", "LIST"])
            .join("\n")
            .lines()
            .filter(|l| l.contains("name=lockkeeper"))
        {
            let id = line.split_once("id=").and_then(|(_, rest)| rest.split_once(' ')).unwrap().0;
            server.command(&["CLIENT", "KILL", "ID", id]);
        }
        process.link(false);
        process.link(true);
        until("it is renewed", || matches!(process.renew(held.id), Renewal::Extended { .. }));
        assert!(matches!(process.release(held.id), End::Freed));
    }
}

#[test]
fn a_paused_server_is_waited_for() {
    let server = RedisServer::start();
    let process = Process::of(&server);
    let before = Instant::now();
    server.command(&["CLIENT", "PAUSE", "300", "ALL"]);
    let (held, _) = process.take("a", Mode::Exclusive);
    assert!(before.elapsed() >= Duration::from_millis(200));
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn a_connection_that_swallows_everything_is_found_out_and_remade() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let process = behind(&proxy, Duration::from_secs(2));
    proxy.blackhole(Way::Up);
    let claim = process.exclusive("a");
    assert!(matches!(process.attempt(&claim), Attempt::Unknown(_)));
    proxy.heal();
    process.link(true);
    process.granted_at_last(&claim);
}

#[test]
fn a_renewal_goes_over_the_first_connection_at_once_when_there_is_no_second() {
    let server = RedisServer::start();
    let mut patient = options(server.port());
    // Whoever waits for another connection waits for longer than the test.
    (patient.request_timeout, patient.connect_timeout) = (PATIENCE * 5, PATIENCE * 5);
    let process = Process::with(patient);
    let (held, _) = process.take("a", Mode::Exclusive);
    let clients = server
        .command(&["CLIENT", "LIST"])
        .join("\n")
        .lines()
        .filter(|l| l.contains("name=lockkeeper"))
        .count();
    assert_eq!(clients, 1);
    server.command(&["CONFIG", "SET", "maxclients", "1"]);
    let renewal = process.renew(held.id);
    assert!(matches!(renewal, Renewal::Extended { .. }), "{renewal:?}");
}

#[test]
fn a_server_that_takes_no_more_clients_is_named_as_full_each_time() {
    let server = RedisServer::start();
    let _inside = Process::of(&server);
    server.command(&["CONFIG", "SET", "maxclients", "1"]);
    for _ in 0..20 {
        let url = format!("redis://127.0.0.1:{}", server.port());
        let engine = engine_of(&url, Duration::from_secs(30)).unwrap();
        let error = Process::around(engine.into()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.message().contains("(maxclients)"), "{error}");
    }
}

#[test]
fn one_process_that_cannot_write_to_its_server_for_long_fails_and_leaves_nothing() {
    let mut server = RedisServer::start();
    let mut options = options(server.port());
    options.connect_timeout = Duration::from_secs(2);
    let process = Process::with(options);
    server.kill();
    process.link(false);
    let claim = process.exclusive("a");
    let attempt = process.attempt(&claim);
    assert!(
        matches!(
            &attempt,
            Attempt::Failed(e)
                if e.kind() == ErrorKind::Unreachable && e.message().contains("refused")
        ),
        "{attempt:?}"
    );
    server.restart();
    process.link(true);
    assert_eq!(process.look(Kind::Lock, "a").holders, []);
}

#[test]
fn d8_a_subscriber_that_the_output_limit_cuts_off_listens_again_and_misses_nothing() {
    let server = RedisServer::start_with(&["--client-output-buffer-limit", "pubsub 100000 0 0"]);
    let (holder, process) = (Process::of(&server), Process::of(&server));
    let (held, _) = holder.take("a", Mode::Exclusive);
    let waiting = process.queue("a", Mode::Exclusive);
    let mine = server.command(&["PUBSUB", "CHANNELS", "*"]);
    let flood = "x".repeat(1_000_000);
    for channel in &mine {
        server.command(&["PUBLISH", channel, &flood]);
    }
    process.link(false);
    // What the holder says meanwhile is heard by nobody.
    until("the holder is back", || matches!(holder.release(held.id), End::Freed | End::NotOurs));
    process.link(true);
    let answers = process.wait(process.engine.recheck(&[waiting.id]));
    match answers.as_slice() {
        [Standing::Held(_)] => {}
        // The grant may be heard while the question is on its way.
        [Standing::InLine(_)] => drop(process.granted(waiting.id)),
        other => panic!("the place is lost: {other:?}"),
    }
    assert!(matches!(process.renew(waiting.id), Renewal::Extended { .. }));
}

#[test]
fn g6_a_downgrade_that_arrives_after_a_later_upgrade_takes_nothing_back() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    // So long that the late copy is in time by the server's clock.
    let (one, two) = (behind(&proxy, Duration::from_secs(15)), Process::of(&server));
    let (up, _) = one.take("a", Mode::Upgradable);
    let convert = |claim: &Claim| one.wait(one.engine.convert(up.id, claim));
    granted(convert(&one.exclusive("a")));
    proxy.hold_present(Way::Up);
    let down = one.claim("a", Mode::Upgradable);
    let asked = one.engine.convert(up.id, &down);
    until("the request is on its way", || proxy.held(Way::Up) > 0);
    proxy.cut_client();
    assert!(matches!(one.wait(asked), Attempt::Unknown(_)));
    one.link(true);
    granted(convert(&down));
    granted(convert(&one.exclusive("a")));
    let asked_before = server.command_counts().get("evalsha").copied().unwrap_or(0);
    proxy.heal();
    until("the late request has arrived", || {
        server.command_counts().get("evalsha").copied().unwrap_or(0) > asked_before
    });
    let reader = two.attempt_try(&two.claim("a", Mode::Shared));
    assert!(matches!(reader, Attempt::Busy(_)), "the writer believes that it is alone: {reader:?}");
    assert!(matches!(one.renew(up.id), Renewal::Extended { .. }));
    // What it asks for from now on is younger still.
    granted(convert(&one.claim("a", Mode::Upgradable)));
    granted(two.attempt_try(&two.claim("a", Mode::Shared)));
}

#[test]
fn r3_a_try_whose_first_copy_is_still_on_its_way_and_that_is_busy_locks_nothing_later() {
    let server = RedisServer::start();
    let proxy = Proxy::to(server.port());
    let (one, two) = (behind(&proxy, Duration::from_secs(15)), Process::of(&server));
    let (held, _) = one.take("a", Mode::Exclusive);
    one.release(held.id);
    proxy.hold_present(Way::Up);
    let claim = one.exclusive("a");
    let asked = one.engine.attempt(&claim, crate::engine::Line::Try);
    until("the request is on its way", || proxy.held(Way::Up) > 0);
    proxy.cut_client();
    assert!(matches!(one.wait(asked), Attempt::Unknown(_)));
    one.link(true);
    let (theirs, _) = two.take("a", Mode::Exclusive);
    let attempt = one.attempt_try(&claim);
    assert!(matches!(attempt, Attempt::Busy(_)), "{attempt:?}");
    // Its caller has gone by now.
    until("word of it was left", || {
        server.command(&["ZCARD", "lockkeeper:{lock:a}:line"]) == ["1"]
    });
    assert!(matches!(two.release(theirs.id), End::Freed));
    let asked_before = server.command_counts().get("evalsha").copied().unwrap_or(0);
    proxy.heal();
    until("the late request has arrived", || {
        server.command_counts().get("evalsha").copied().unwrap_or(0) > asked_before
    });
    assert_eq!(server.command(&["EXISTS", RECORD]), ["0"], "it must find that its caller has left");
}
