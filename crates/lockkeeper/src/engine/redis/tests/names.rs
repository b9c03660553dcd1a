//! A server behind a name that leads elsewhere after a failover, while the old primary stays up as
//! a replica: nobody is told, and no connection ends by itself.

use std::net::{Ipv4Addr, SocketAddr};

use super::server::RedisServer;
use super::support::{Process, granted, opened, options, patient, until};
use crate::engine::dial::names;
use crate::engine::redis::options::{Address, Layout, RedisOptions};
use crate::engine::{Attempt, End, Line, Renewal};
use crate::words::claim::Mode;
use crate::words::error::ErrorKind;

fn at(server: &RedisServer) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, server.port()).into()
}

/// Options whose server is behind this name.
fn behind(name: &str) -> RedisOptions {
    RedisOptions { address: Address::Tcp(name.into(), 6379), ..patient(options(1)) }
}

/// A replica that has all of its primary.
fn replica_of(primary: &RedisServer) -> RedisServer {
    let port = primary.port().to_string();
    let replica = RedisServer::start_with(&["--replicaof", "127.0.0.1", &port]);
    until("it follows", || {
        replica.command(&["INFO", "replication"]).concat().contains("master_link_status:up")
    });
    replica
}

/// The second server takes the first one's place, and has all that was written there. (WAIT counts
/// what its own connection wrote, which is nothing.)
fn fail_over(first: &RedisServer, second: &RedisServer) {
    let offset = |server: &RedisServer, field: &str| {
        let told = server.command(&["INFO", "replication"]).concat();
        let line = told.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|offset| offset.trim().parse::<u64>().ok()).expect("it says how far it is")
    };
    let written = offset(first, "master_repl_offset");
    until("it has all", || offset(second, "slave_repl_offset") >= written);
    second.command(&["REPLICAOF", "NO", "ONE"]);
    first.command(&["REPLICAOF", "127.0.0.1", &second.port().to_string()]);
}

#[test]
fn b1_a_server_that_became_a_replica_is_left_for_the_one_that_its_name_leads_to() {
    for layout in [Layout::Native, Layout::Plain, Layout::Redisson] {
        let first = RedisServer::start();
        let second = replica_of(&first);
        let name = format!("b1-redis-{}", layout.as_str());
        names::lead_to(&name, &[at(&first)]);
        let open = || Process::with(RedisOptions { layout, ..behind(&name) });
        let (holder, waiter) = (open(), open());
        let (held, _) = holder.take("a", Mode::Exclusive);
        let waits = waiter.exclusive("a");
        assert!(matches!(waiter.attempt(&waits), Attempt::InLine(_)), "{layout:?}");

        fail_over(&first, &second);
        names::lead_to(&name, &[at(&second)]);
        // What is held goes on there, and so does the line.
        until("it is renewed", || matches!(holder.renew(held.id), Renewal::Extended { .. }));
        assert!(matches!(holder.release(held.id), End::Freed), "{layout:?}");
        granted(waiter.attempt_until(&waits));
        granted(holder.attempt(&holder.exclusive("b")));
        assert!(matches!(waiter.renew(waits.id), Renewal::Extended { .. }), "{layout:?}");
    }
}

#[test]
fn b1_a_replica_is_left_until_its_name_leads_to_a_primary_and_says_what_it_is_meanwhile() {
    let first = RedisServer::start();
    let second = replica_of(&first);
    names::lead_to("b1-late", &[at(&first)]);
    let options =
        RedisOptions { connect_timeout: std::time::Duration::from_secs(1), ..behind("b1-late") };
    let process = opened(|| Process::try_with(options.clone()));
    process.take("a", Mode::Exclusive);
    fail_over(&first, &second);
    for line in [Line::Join, Line::Try, Line::Join] {
        // Again where it was not even connected in time.
        until("it says what it is", || {
            let asked = process.exclusive("b");
            let Attempt::Failed(error) = process.wait(process.engine.attempt(&asked, line)) else {
                panic!("a replica grants nothing");
            };
            error.kind() == ErrorKind::Refused
                && error.message().contains("Redis at b1-late:6379 is a read-only replica")
        });
    }
    names::lead_to("b1-late", &[at(&second)]);
    process.link(true);
    granted(process.attempt(&process.exclusive("b")));
}

#[test]
fn b1_a_replica_is_known_to_a_user_who_may_not_ask_of_whom() {
    let first = RedisServer::start();
    let second = replica_of(&first);
    second.command(&["ACL", "SETUSER", "default", "-info"]);
    let error = Process::try_with(options(second.port())).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("is a read-only replica: give"), "{error}");
}
