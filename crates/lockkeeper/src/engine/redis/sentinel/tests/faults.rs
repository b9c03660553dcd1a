//! `wait_replicas`: what replicas do not have does not count.

use std::time::Duration;

use lockkeeper_testkit::proxy::{Fault, Proxy, Way};
use lockkeeper_testkit::sentinel::server::{Deployment, Setup};
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};

use super::support::open;
use crate::engine::redis::options::{RedisOptions, Wait};
use crate::engine::redis::tests::support::{PATIENCE, Process, granted, opened, options, until};
use crate::engine::{Attempt, End, Event, Query, Renewal};
use crate::words::claim::{Claim, Mode};
use crate::words::error::ErrorKind;
use crate::words::name::{Kind, Name};

/// Patient with a replica: a machine with much to do has it in time.
fn url(deployment: &Deployment, options: &str) -> String {
    let patient = "wait_replicas=1&wait_timeout=30s&request_timeout=1m";
    format!("{}?{patient}{options}", deployment.url())
}

/// Where no replica answers.
fn in_vain(deployment: &Deployment, options: &str) -> String {
    format!("{}?wait_replicas=1&wait_timeout=200ms{options}", deployment.url())
}

#[test]
fn s6_a_grant_that_no_replica_has_is_none_and_counts_once_it_is_asked_for_again() {
    let deployment = Deployment::start();
    let process =
        open(&format!("{}?wait_replicas=1&wait_timeout=3s&request_timeout=15s", deployment.url()))
            .unwrap();
    let first = process.exclusive("a");
    process.granted_at_last(&first);
    assert_eq!(deployment.command(1, &["EXISTS", "lockkeeper:{lock:a}"]), ["1"], "replicated");
    let renewed = |claim: &Claim| matches!(process.renew(claim.id), Renewal::Extended { .. });
    until("it is extended", || renewed(&first));

    deployment.stop_replication();
    let asked = process.exclusive("b");
    let Attempt::Unknown(error) = process.attempt(&asked) else { panic!("no replica has it") };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let says = "0 of the 1 replicas that wait_replicas asks for acknowledged it within 3s";
    assert!(error.message().contains(says), "{error}");
    // It stands on the master, and nobody else can have it.
    assert_eq!(deployment.command(0, &["EXISTS", "lockkeeper:{lock:b}"]), ["1"]);
    // A renewal changes nothing; what is no grant is told as ever.
    assert!(matches!(process.renew(first.id), Renewal::Unknown(_)));
    assert!(matches!(process.attempt_try(&process.exclusive("a")), Attempt::Busy(_)));

    deployment.go_on_replicating();
    until("a replica has it", || matches!(process.attempt(&asked), Attempt::Granted(_)));
    until("it is extended", || renewed(&asked));
    for held in [&first, &asked] {
        assert!(matches!(process.release(held.id), End::Freed));
    }
}

#[test]
fn s6_whoever_leaves_an_unacknowledged_grant_leaves_nothing() {
    let deployment = Deployment::start();
    let warm = open(&url(&deployment, "")).unwrap();
    warm.take("warm", Mode::Exclusive);
    deployment.stop_replication();
    for layout in ["", "&layout=plain", "&layout=redisson"] {
        // What may have come late is given back when no copy of its request is in time any more.
        let url = in_vain(&deployment, &format!("&request_timeout=2s{layout}"));
        let process = opened(|| open(&url));
        let asked = process.exclusive("a");
        assert!(matches!(process.attempt(&asked), Attempt::Unknown(_)), "{layout}");
        process.withdraw(asked.id);
        let query = Query::One(Kind::Lock, Name::new("a").unwrap());
        until("nothing is left", || {
            let told = process.wait(process.engine.read(&query));
            told.is_ok_and(|told| told[0].holders.is_empty())
        });
    }
    // The same for several at once.
    let process = open(&in_vain(&deployment, "")).unwrap();
    let both = [process.exclusive("a"), process.exclusive("b")];
    for attempt in process.wait(process.engine.attempt_all(&both)) {
        assert!(matches!(attempt, Attempt::Unknown(_)), "{attempt:?}");
    }
    for claim in &both {
        process.withdraw(claim.id);
    }
    until("nothing is left", || process.list("").iter().all(|entry| entry.name.as_str() == "warm"));
}

#[test]
fn s6_a_release_and_a_look_do_not_wait_for_replicas_and_renewals_share_one_wait() {
    let deployment = Deployment::start();
    // Whoever waits for a replica that does not come waits for longer than the test.
    let patient = "wait_replicas=1&wait_timeout=5m&request_timeout=6m";
    let process = open(&format!("{}?{patient}", deployment.url())).unwrap();
    let taken = |n| {
        let claim = Claim { ttl: PATIENCE * 5, ..process.exclusive(&format!("a{n}")) };
        granted(process.attempt(&claim));
        claim
    };
    let held: Vec<_> = (0..20).map(taken).collect();
    // The server knows the script from here on.
    assert!(matches!(process.renew(held[0].id), Renewal::Extended { .. }));
    deployment.stop_replication();
    let waits =
        |at: usize| deployment.servers[at].command_counts().get("wait").copied().unwrap_or(0);
    let before = waits(0);
    // One by one, and yet no more than two batches: the first of them, and the rest behind it.
    let renewals: Vec<_> =
        held.iter().map(|claim| process.engine.renew(&[claim.id.into()])).collect();
    assert!(matches!(process.release(held[0].id), End::Freed));
    assert!(process.look(Kind::Lock, "a0").holders.is_empty());
    deployment.go_on_replicating();
    for (n, renewal) in renewals.into_iter().enumerate() {
        let renewed = process.wait(renewal).remove(0);
        assert!(n == 0 || matches!(renewed, Renewal::Extended { .. }), "{n}: {renewed:?}");
    }
    assert!(waits(0) <= before + 2, "{} after {before}", waits(0));
}

#[test]
fn s6_a_link_that_loses_one_direction_or_is_slow_grants_once_and_loses_no_hold() {
    let deployment = Deployment::start();
    // The Sentinels name the master itself, so the link to it is that of one server.
    let proxy = Proxy::to(deployment.servers[0].port());
    let through = |request_timeout| {
        let wait = Some(Wait { replicas: 1, timeout: Duration::from_secs(2) });
        let connect_timeout = PATIENCE;
        RedisOptions { wait, connect_timeout, request_timeout, ..options(proxy.port()) }
    };
    let one = opened(|| Process::try_with(through(Duration::from_secs(4))));
    let two = open(&url(&deployment, "")).unwrap();
    let held = one.exclusive("held");
    one.granted_at_last(&held);
    let there = |name: &str| {
        deployment.command(0, &["EXISTS", &format!("lockkeeper:{{lock:{name}}}")]) == ["1"]
    };
    let holds_on = || {
        until("it is extended", || matches!(one.renew(held.id), Renewal::Extended { .. }));
    };

    holds_on();
    // Answers are lost: it was carried out, and nobody else gets it.
    proxy.blackhole(Way::Down);
    let asked = one.exclusive("a");
    assert!(matches!(one.attempt(&asked), Attempt::Unknown(_)));
    assert!(matches!(one.renew(held.id), Renewal::Unknown(_)));
    until("it was carried out", || there("a"));
    assert!(matches!(two.attempt_try(&two.exclusive("a")), Attempt::Busy(_)));
    proxy.heal();
    until("it is granted", || matches!(one.attempt(&asked), Attempt::Granted(_)));
    let end = one.release(asked.id);
    assert!(matches!(end, End::Freed | End::Unknown(_)), "{end:?}");
    until("it is free", || !there("a"));
    holds_on();

    // Requests are late: they lock for nobody, and another has it.
    proxy.hold(Way::Up);
    let asked = one.exclusive("b");
    assert!(matches!(one.attempt(&asked), Attempt::Unknown(_)));
    assert!(matches!(one.renew(held.id), Renewal::Unknown(_)));
    let (next, _) = two.take("b", Mode::Exclusive);
    proxy.heal();
    holds_on();
    one.withdraw(asked.id);
    until("it is told", || matches!(one.attempt_try(&one.exclusive("b")), Attempt::Busy(_)));
    assert!(matches!(two.renew(next.id), Renewal::Extended { .. }));

    // Slower than a replica may be: it is not waited for over this link. Its answers are waited
    // for, however late they are.
    let patient = Process::with(through(PATIENCE));
    let late = Duration::from_millis(2_500);
    proxy.set(Way::Down, Fault { delay: late, ..Fault::default() });
    let slow = patient.exclusive("c");
    let since = patient.granted_at_last(&slow).lease.and_then(|lease| lease.since);
    let since = since.expect("it has a lease");
    assert!(patient.now().since(since) >= late, "counted from the reply");
    proxy.heal();
    holds_on();
}

#[test]
fn s6_a_waiter_is_granted_once_a_replica_has_its_grant() {
    let deployment = Deployment::start_with(Setup { replicas: 2, ..Setup::default() });
    for layout in ["", "&layout=plain", "&layout=redisson"] {
        let one = open(&url(&deployment, layout)).unwrap();
        let two = open(&url(&deployment, layout)).unwrap();
        let name = format!("a{}", layout.len());
        let (held, _) = one.take(&name, Mode::Exclusive);
        let waits = two.exclusive(&name);
        two.queue_claim(&waits);
        if !layout.is_empty() {
            // Whoever asks first has it there.
            assert!(matches!(one.release(held.id), End::Freed));
            granted(two.attempt_until(&waits));
            continue;
        }
        // Its own next claim stands behind, and shares nothing with the release.
        let next = one.exclusive(&name);
        let released = one.release_again(held.id, &next);
        assert!(matches!(released.ends.as_slice(), [End::Freed]), "{released:?}");
        granted(two.attempt_until(&waits));
        assert_eq!(one.look(Kind::Lock, &name).holders.len(), 1);
        assert!(matches!(two.release(waits.id), End::Freed));
        granted(one.attempt_until(&next));
        assert!(matches!(one.release(next.id), End::Freed));
    }
}

#[test]
fn s6_a_grant_that_is_pushed_counts_only_once_a_replica_has_it() {
    let deployment = Deployment::start();
    let one = open(&url(&deployment, "")).unwrap();
    let two = open(&in_vain(&deployment, "")).unwrap();
    let (held, _) = one.take("a", Mode::Exclusive);
    let waits = two.queue("a", Mode::Exclusive);
    deployment.stop_replication();
    assert!(matches!(one.release(held.id), End::Freed));
    // The master has granted it, and says so.
    let told = |event: &Event| match event {
        Event::Granted { claim, .. } if *claim == waits.id => Some(true),
        Event::Wake { claim } if *claim == waits.id => Some(false),
        _ => None,
    };
    assert!(!two.event("a word", told), "no replica has it");
    assert!(matches!(two.attempt(&waits), Attempt::Unknown(_)));
    deployment.go_on_replicating();
    until("a replica has it", || matches!(two.attempt(&waits), Attempt::Granted(_)));
}

#[test]
fn a_replica_whose_clock_is_further_apart_than_the_drift_allowance_is_warned_of() {
    let clock = ClockShim::new().expect("cc is there");
    let replica_environment = clock
        .environment()
        .map(|(name, value)| (name.to_owned(), value.to_string_lossy().into_owned()))
        .to_vec();
    let deployment = Deployment::start_with(Setup { replica_environment, ..Setup::default() });
    let process = open(&deployment.url()).unwrap();
    let warned = || {
        // As doctor does.
        let name = crate::words::name::Name::new("probe").expect("a good name");
        process.wait(process.engine.clear_probe(&name)).expect("it is free");
        let all = process.engine.describe().warnings;
        all.into_iter().find(|w| w.id == "clocks-apart").map(|w| w.text)
    };
    assert_eq!(warned(), None);
    // A tenth of a lease of 30 s is allowed.
    clock.step(Clocks::Wall, Duration::from_secs(2)).expect("the file is ours");
    assert_eq!(warned(), None);
    clock.step(Clocks::Wall, Duration::from_secs(3)).expect("the file is ours");
    let mut text = String::new();
    until("it is told", || {
        text = warned().unwrap_or_default();
        !text.is_empty()
    });
    let replica = format!("127.0.0.1:{} is ", deployment.servers[1].port());
    let told = text.split_once(&replica).and_then(|(_, rest)| rest.split_once(" s ahead"));
    let ahead = told.and_then(|(seconds, _)| seconds.parse::<f64>().ok());
    assert!(ahead.is_some_and(|seconds| (3.0..7.0).contains(&seconds)), "{text}");
    assert!(text.contains("is 3s"), "{text}");
}

#[test]
fn more_replicas_than_there_are_grant_nothing_and_say_so() {
    let deployment = Deployment::start();
    let process =
        open(&format!("{}?wait_replicas=2&wait_timeout=3s&request_timeout=15s", deployment.url()))
            .unwrap();
    let asked = process.exclusive("a");
    until("one has it", || {
        let Attempt::Unknown(error) = process.attempt(&asked) else {
            panic!("there is one replica")
        };
        error.message().contains("1 of the 2 replicas")
    });
    let warned = process.engine.describe().warnings;
    assert!(warned.iter().any(|w| w.id == "too-few-replicas"), "{warned:?}");
}
