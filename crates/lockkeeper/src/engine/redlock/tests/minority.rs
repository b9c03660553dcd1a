//! A minority that refuses: it does not count, is named once, and stops nobody.

use std::time::{Duration, Instant};

use lockkeeper_testkit::proxy::{Fault, Way};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::certificates;

use super::refusals::answering;
use super::support::{KEY, Proxied, Quorum, SHORT, TTL, claim, open};
use crate::engine::redis::tests::support::{Process, granted, until};
use crate::engine::{Attempt, End, Renewal};
use crate::words::claim::Claim;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::Warning;
use crate::words::name::{Kind, Name};

/// The rights of a user who may do all.
const ALL: [&str; 7] = ["ACL", "SETUSER", "shop", "on", ">pw", "~*", "&*"];

/// A command, also to a server that wants a password.
fn command(server: &RedisServer, words: &[&str]) {
    let mut client = server.client();
    client.command(&["AUTH", "s3cret"]);
    client.command(words);
}

fn at(server: &RedisServer) -> String {
    format!("127.0.0.1:{}", server.port())
}

/// As [`Quorum::url`], of these, and with more time for whoever answers last.
fn url(at: &[String]) -> String {
    let options = "max_ttl=24h&server_timeout=10s&request_timeout=1m";
    format!("redlock-lab://{}?{options}", at.join(","))
}

/// What is warned of about members.
fn warned(process: &Process) -> Vec<Warning> {
    let warnings = process.engine.describe().warnings;
    warnings.into_iter().filter(|w| w.id.starts_with("member-")).collect()
}

/// The only warning about a member is that this one refuses, and why.
fn assert_named_once(process: &Process, at: &str, why: &str) {
    let warned = warned(process);
    let [one] = &warned[..] else { panic!("not once: {warned:?}") };
    assert_eq!(one.id, "member-refuses", "{warned:?}");
    assert!(one.text.contains(at) && one.text.contains(why), "{why}: {warned:?}");
    assert!(!one.text.contains("pw"), "{warned:?}");
}

fn refused(url: &str) -> Error {
    open(url).err().expect("there is no majority")
}

/// One turn, a look and a list, as of a process that has just begun.
fn assert_of_use(process: &Process) {
    let held = claim(process, "a");
    granted(process.attempt_until(&held));
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    assert_eq!(process.look(Kind::Lock, "a").holders.len(), 1);
    assert_eq!(process.list("").len(), 1);
    assert!(matches!(process.release(held.id), End::Freed));
}

#[test]
fn b4_a_member_that_refuses_keeps_no_new_process_out_and_is_named_once() {
    let quorum = Quorum::of(3);
    let members: Vec<String> = quorum.0.iter().map(at).collect();
    quorum.0.iter().for_each(|server| {
        server.command(&[&ALL[..], &["+@all"]].concat());
    });
    let third = &quorum.0[2];
    let of_shop = url(&members).replace("://", "://shop:pw@");
    let replica = ["REPLICAOF", "127.0.0.1", "1"];
    for (breaks, mends, url, why) in [
        (
            &["CONFIG", "SET", "requirepass", "s3cret"][..],
            &["CONFIG", "SET", "requirepass", ""][..],
            url(&members),
            "wants a password",
        ),
        (
            &["ACL", "SETUSER", "shop", "off"],
            &["ACL", "SETUSER", "shop", "on"],
            of_shop.clone(),
            "does not accept this user and password",
        ),
        (
            &["ACL", "SETUSER", "shop", "-info"],
            &["ACL", "SETUSER", "shop", "+info"],
            of_shop.clone(),
            "does not let this user run INFO",
        ),
        (
            &["ACL", "SETUSER", "shop", "-evalsha", "-eval"],
            &["ACL", "SETUSER", "shop", "+evalsha", "+eval"],
            of_shop,
            "'evalsha' command",
        ),
        (&replica, &["REPLICAOF", "NO", "ONE"], url(&members), "is a read-only replica"),
    ] {
        command(third, breaks);
        let process = open(&url).expect("two are a majority");
        assert_of_use(&process);
        until("it is named", || warned(&process).iter().any(|w| w.id == "member-refuses"));
        assert_named_once(&process, &members[2], why);
        command(third, mends);
        // It joins by itself.
        let held = Claim { ttl: TTL * 10, ..process.exclusive("joins") };
        granted(process.attempt_until(&held));
        until("it counts again", || {
            assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
            warned(&process).is_empty() && quorum.with_record(&held) == 3
        });
        assert!(matches!(process.release(held.id), End::Freed));
        quorum.until_clean("joins");
    }
}

#[test]
fn b4_what_is_no_member_behind_a_port_keeps_no_new_process_out_and_is_named_once() {
    let quorum = Quorum::of(3);
    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let sentinel = RedisServer::start_sentinel();
    let [another] = &answering(b"HTTP/1.1 400 Bad Request\r\n\r\n")[..1] else { panic!("one") };
    let full = &answering(b"-ERR max number of clients reached\r\n")[0];
    let twin = at(&quorum.0[0]).replace("127.0.0.1", "localhost");
    for (third, why) in [
        (at(&node), "node of a Redis Cluster"),
        (at(&sentinel), "Sentinel"),
        (another.clone(), "does not speak the Redis protocol"),
        (full.clone(), "(maxclients)"),
        (twin, "are the same server"),
    ] {
        let members = [at(&quorum.0[0]), at(&quorum.0[1]), third.clone()];
        let process = open(&url(&members)).expect("two are a majority");
        assert_of_use(&process);
        until("it is named", || warned(&process).iter().any(|w| w.id == "member-refuses"));
        assert_named_once(&process, third.trim_start_matches("localhost"), why);
    }
}

#[test]
fn b4_a_majority_is_one_of_all_members_of_the_url_and_not_of_those_that_do_not_refuse() {
    let quorum = Quorum::of(5);
    let members: Vec<String> = quorum.0.iter().map(at).collect();
    let password = ["CONFIG", "SET", "requirepass", "s3cret"];
    quorum.0[..2].iter().for_each(|server| drop(server.command(&password)));
    let process = open(&url(&members)).expect("three are a majority of five");
    granted(process.attempt_until(&claim(&process, "a")));
    // Two are left, of three that do not refuse.
    quorum.0[2].command(&password);
    let error = refused(&url(&members));
    assert!(error.message().starts_with("2 of 5 members"), "{error}");
    assert!(error.message().contains("a majority is 3"), "{error}");
    command(&quorum.0[2], &["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    command(&quorum.0[2], &["CLIENT", "KILL", "TYPE", "pubsub"]);
    until("nobody grants it", || {
        let asked = claim(&process, "b");
        match process.attempt(&asked) {
            Attempt::Granted(_) => {
                assert!(matches!(process.release(asked.id), End::Freed));
                false
            }
            Attempt::Failed(error) => error.kind() == ErrorKind::Refused,
            _ => false,
        }
    });
}

#[test]
fn b4_without_a_majority_each_member_is_named_and_what_they_say_alike_is_said_once() {
    let servers: Vec<RedisServer> =
        (0..3).map(|_| RedisServer::start_with(&["--requirepass", "s3cret"])).collect();
    let members: Vec<String> = servers.iter().map(at).collect();
    let error = refused(&url(&members));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(!error.is_temporary(), "{error}");
    assert_eq!(error.message().matches("wants a password").count(), 1, "{error}");
    assert!(error.message().contains("(redlock://user:password@a,b,c)"), "{error}");
    for at in &members {
        assert_eq!(error.message().matches(at).count(), 1, "{error}");
    }
    // What two say differently is told of each.
    let mixed = [members[0].clone(), "127.0.0.1:1".into(), members[1].clone()];
    let error = refused(&url(&mixed));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    for part in ["wants a password", "Connection refused"] {
        assert_eq!(error.message().matches(part).count(), 1, "{error}");
    }
}

#[test]
fn r6_a_member_that_is_full_or_lets_nothing_be_published_is_named() {
    let quorum = Quorum::of(3);
    let members: Vec<String> = quorum.0.iter().map(at).collect();
    quorum.0[2].command(&["CONFIG", "SET", "maxmemory", "1"]);
    let process = open(&url(&members)).expect("they can be used");
    until("it was asked", || {
        assert_of_use(&process);
        !warned(&process).is_empty()
    });
    assert_named_once(&process, &members[2], "is out of memory (maxmemory)");
    quorum.0[2].command(&["CONFIG", "SET", "maxmemory", "0"]);
    until("it counts again", || {
        assert_of_use(&process);
        warned(&process).is_empty()
    });

    for (server, denied) in quorum.0.iter().zip(["+@all", "+@all", "-publish"]) {
        server.command(&[&ALL[..], &["+@all", denied]].concat());
    }
    let process = open(&url(&members).replace("://", "://shop:pw@")).expect("they can be used");
    let name = Name::new("probe").expect("a good name");
    let told = process.wait(process.engine.clear_probe(&name)).expect("a majority answers");
    let [one] = &told[..] else { panic!("not once: {told:?}") };
    assert_eq!(one.id, "publish-refused");
    assert!(one.text.contains(&members[2]) && !one.text.contains(&members[0]), "{one:?}");
}

#[test]
fn r17_one_member_of_a_newer_layout_stops_who_does_not_know_it_and_is_named_with_both() {
    let quorum = Quorum::of(3);
    let process = quorum.process();
    granted(process.attempt_until(&claim(&process, "a")));
    quorum.0[1].command(&["HSET", KEY, "layout", "3"]);
    let says = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::NewerLayout, "{error}");
        let both = "layout 3 and this release knows 2";
        assert!(error.message().contains(both), "{error}");
        assert!(error.message().contains(&at(&quorum.0[1])), "{error}");
    };
    let members: Vec<String> = quorum.0.iter().map(at).collect();
    says(&refused(&url(&members)));
    // Whoever runs already stops as well, though two others would grant.
    until("it is noticed", || match process.attempt(&claim(&process, "b")) {
        Attempt::Failed(error) => {
            says(&error);
            true
        }
        _ => false,
    });
    quorum.0[1].command(&["HSET", KEY, "layout", "2"]);
    let asked = claim(&process, "c");
    until("it goes on", || matches!(process.attempt(&asked), Attempt::Granted(_)));
}

#[test]
fn members_that_are_nodes_of_one_cluster_or_replicas_are_refused_with_what_to_name_instead() {
    let nodes: Vec<RedisServer> =
        (0..3).map(|_| RedisServer::start_with(&["--cluster-enabled", "yes"])).collect();
    let members: Vec<String> = nodes.iter().map(at).collect();
    let error = refused(&url(&members));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    // Each may be of another one.
    let instead = format!("redis+cluster://{}", members.join(","));
    let says = format!("; if these are nodes of one cluster, use {instead}");
    assert!(error.message().ends_with(&says), "{error}");
    assert_eq!(error.message().matches("use ").count(), 1, "{error}");

    let master = RedisServer::start();
    let port = master.port().to_string();
    let replicas: Vec<RedisServer> =
        (0..2).map(|_| RedisServer::start_with(&["--replicaof", "127.0.0.1", &port])).collect();
    let members: Vec<String> = [&master].into_iter().chain(&replicas).map(at).collect();
    let error = refused(&url(&members));
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.message().contains(&format!("replica of {}", members[0])), "{error}");
    let says = "name independent servers, or the service's Sentinels (redis+sentinel://";
    assert_eq!(error.message().matches(says).count(), 1, "{error}");
    assert!(!error.message().contains("the URL of the primary"), "that one is there: {error}");
}

#[test]
fn tls_on_some_members_only_keeps_nobody_out_and_each_of_the_others_is_named_with_what_to_do() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = certificates::make(home.path());
    let servers: Vec<(RedisServer, u16)> =
        (0..3).map(|_| RedisServer::start_with_tls(&dir, &["--tls-auth-clients", "no"])).collect();
    // Each has a plain port and one for TLS.
    let of = |secure: [bool; 3], options: &str| {
        let each = servers.iter().zip(secure);
        let ports = each.map(|((server, tls), secure)| if secure { *tls } else { server.port() });
        let at: Vec<String> = ports.map(|port| format!("localhost:{port}")).collect();
        let process = open(&format!("{}&connect_timeout=1m{options}", url(&at)));
        (at[2].clone(), process.expect("two are a majority"))
    };
    let named = |process: &Process, at: &str| {
        let warned = warned(process);
        let mut away = warned.iter().filter(|w| ["member-down", "member-refuses"].contains(&w.id));
        let text = away.next().map(|w| w.text.clone()).filter(|text| text.contains(at));
        assert!(away.next().is_none(), "no other: {warned:?}");
        text
    };
    // A plain port says nothing before a line ends: if our greeting has no end of a line, why is
    // known only when its time is over.
    let ca = format!("&tls=true&tls_ca={}", dir.join("ca.pem").display());
    let (third, process) = of([true, true, false], &ca);
    let text = named(&process, &third).expect("it is not connected");
    assert!(text.contains("speak TLS") && text.ends_with("give its TLS port"), "{text}");
    let first = claim(&process, "first");
    until("they count", || matches!(process.attempt(&first), Attempt::Granted(_)));
    assert!(matches!(process.release(first.id), End::Freed));
    assert_of_use(&process);
    let (third, process) = of([false, false, true], "");
    until("it says why", || {
        named(&process, &third).is_some_and(|text| text.contains("if it wants TLS, add tls=true"))
    });
    assert_of_use(&process);
}

/// The second and the third member end all connections and take no more, until they are told to.
fn full(quorum: &Quorum, process: &Process) -> impl FnOnce() + use<> {
    let mut clients: Vec<_> = quorum.0[1..].iter().map(RedisServer::client).collect();
    for client in &mut clients {
        client.command(&["CONFIG", "SET", "maxclients", "1"]);
        client.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        client.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    let refuses = |warning: &Warning| warning.id == "member-refuses";
    until("both refuse", || warned(process).into_iter().filter(refuses).count() == 2);
    move || {
        for client in &mut clients {
            client.command(&["CONFIG", "SET", "maxclients", "10000"]);
        }
    }
}

/// What whoever waits is told meanwhile.
fn passes(attempt: &Attempt) {
    let (Attempt::Unknown(error) | Attempt::Failed(error)) = attempt else { panic!("{attempt:?}") };
    assert!(error.kind() == ErrorKind::Refused && error.is_outage(), "{error}");
}

#[test]
fn r4_a_claim_that_is_asked_for_again_after_a_refusal_is_not_given_back_once_it_holds() {
    let quorum = Quorum::long_up(3);
    let with = |options: &str| quorum.process_with(&format!("max_ttl=24h&{options}"));
    let within = Duration::from_secs(5);
    let one = with("server_timeout=600ms&request_timeout=5s");
    let two = with("server_timeout=600ms");
    let long = |process: &Process| Claim { ttl: TTL * 10, ..claim(process, "a") };
    quorum.warm(&one);
    quorum.until_clean("warm");
    let takes_more = full(&quorum, &one);
    quorum.0[0].stop();
    let asked = long(&one);
    passes(&one.attempt(&asked));
    takes_more();
    until("it is granted", || matches!(one.attempt(&asked), Attempt::Granted(_)));
    // What the first member was sent before is on its way still, and is over now.
    let granted = Instant::now();
    until("that is over", || {
        let taken = two.attempt_try(&long(&two));
        assert!(!matches!(taken, Attempt::Granted(_)), "BROKEN LOCK: two hold it: {taken:?}");
        granted.elapsed() > within + SHORT
    });
    until("it is held still", || match one.renew(asked.id) {
        Renewal::Extended { .. } => true,
        Renewal::Unknown(_) => false,
        other => panic!("it is lost: {other:?}"),
    });
    quorum.0[0].go_on();
}

#[test]
fn a_wait_goes_on_after_a_refusal_that_passes_though_a_member_may_have_taken_it() {
    let proxied = Proxied::before(Quorum::long_up(3));
    let (quorum, proxy) = (&proxied.quorum, &proxied.proxies[0]);
    let one = proxied.process("max_ttl=24h&server_timeout=600ms&request_timeout=10s");
    let asked = Claim { ttl: TTL * 10, ..claim(&one, "a") };
    let takes_more = full(quorum, &one);
    proxy.set(Way::Down, Fault { cut_after: Some(0), ..Fault::default() });
    passes(&one.attempt(&asked));
    // As the keeper does, a moment later.
    let begun = Instant::now();
    until("it is asked again", || begun.elapsed() > Duration::from_millis(250));
    passes(&one.attempt(&asked));
    takes_more();
    proxy.set(Way::Down, Fault::default());
    until("it is granted", || match one.attempt(&asked) {
        Attempt::Granted(_) => true,
        Attempt::Unknown(_) => false,
        other => panic!("its wait is over: {other:?}"),
    });
    until("it stays", || quorum.with_record(&asked) == 3);
    assert!(matches!(one.release(asked.id), End::Freed));
    quorum.until_clean("a");
}
