//! Names with several addresses, in front of real servers.

use std::net::{Ipv4Addr, Ipv6Addr};

use lockkeeper_testkit::postgres::server::{PostgresServer, USER};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::silent::Silent;
use lockkeeper_testkit::zookeeper::server::{Server, Settings};
use tokio::net::TcpListener;

use super::*;
use crate::engine::redis::tests::support::{Process, engine_of};
use crate::words::error::ErrorKind;

/// Longer than anything takes here.
const LONG: Duration = Duration::from_secs(120);

fn v4(last: u8) -> SocketAddr {
    (Ipv4Addr::new(127, 0, 0, last), 1).into()
}

fn v6(last: u16) -> SocketAddr {
    (Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, last), 1).into()
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Where nobody listens.
fn nobody() -> SocketAddr {
    local(1)
}

#[test]
fn families_are_tried_in_turn_and_no_address_twice() {
    let found = vec![v6(1), v6(2), v6(3), v4(1), v4(2), v6(1)];
    assert_eq!(in_turn(found), [v6(1), v4(1), v6(2), v4(2), v6(3)]);
    assert_eq!(in_turn(vec![v4(1), v4(2), v6(1)]), [v4(1), v6(1), v4(2)]);
    assert_eq!(in_turn(vec![v4(2), v4(2), v4(1)]), [v4(2), v4(1)]);
}

#[tokio::test]
async fn the_first_address_is_used_while_it_answers_and_the_next_is_left_in_peace() {
    let listeners =
        [TcpListener::bind(local(0)).await.unwrap(), TcpListener::bind(local(0)).await.unwrap()];
    let at = listeners.each_ref().map(|listener| listener.local_addr().unwrap());
    let stream = first_of(&at, Instant::now() + LONG).await.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), at[0]);
    // Who connects there first is this test.
    let ours = TcpStream::connect(at[1]).await.unwrap();
    assert_eq!(listeners[1].accept().await.unwrap().1, ours.local_addr().unwrap());
}

#[tokio::test]
async fn b6_an_address_is_tried_while_others_refuse_or_are_silent_and_those_are_dropped_then() {
    let silent = Silent::start();
    let listener = TcpListener::bind(local(0)).await.unwrap();
    let at = listener.local_addr().unwrap();
    let stream = first_of(&[nobody(), silent.address(), at], Instant::now() + LONG).await.unwrap();
    assert_eq!(stream.peer_addr().unwrap(), at);
}

#[test]
fn b6_every_address_has_its_part_where_there_is_no_time_for_a_quarter_of_a_second_each() {
    assert_eq!(alone(3, Duration::from_secs(5)), NEXT_AFTER);
    let mut left = Duration::from_millis(600);
    for others in [3, 2, 1] {
        let part = alone(others, left);
        assert_eq!(part, Duration::from_millis(150));
        left -= part;
    }
}

#[tokio::test]
async fn b6_where_no_address_takes_the_connection_each_is_named_with_its_reason() {
    let silent = Silent::start();
    let all = [silent.address(), nobody()];
    // A machine with much to do gets more time: whoever was not asked yet does not answer either.
    let mut within = Duration::from_secs(1);
    let said = loop {
        let error = first_of(&all, Instant::now() + within).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let said = error.to_string();
        if within > LONG || !said.contains("127.0.0.1:1 does not answer") {
            break said;
        }
        within *= 2;
    };
    assert!(said.starts_with("127.0.0.1:1: Connection refused"), "{said}");
    assert!(said.ends_with(&format!("; {} does not answer", silent.address())), "{said}");

    let error = first_of(&[nobody(), v4(3)], Instant::now() + LONG).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    let said = error.to_string();
    assert!(said.contains("127.0.0.1:1: ") && said.contains("127.0.0.3:1: "), "{said}");
}

/// The engine of this URL, whose host is a name with a silent address before that of the server.
fn leads_past_a_silent_address(name: &str, port: u16, url: &str) {
    let silent = Silent::start();
    names::lead_to(name, &[silent.address(), local(port)]);
    let engine = engine_of(url, Duration::from_secs(30)).unwrap();
    Process::around(engine.into()).unwrap_or_else(|error| panic!("{url}: {error}"));
}

#[test]
fn b6_redis_is_reached_by_a_name_with_a_silent_address() {
    let server = RedisServer::start();
    leads_past_a_silent_address("b6-redis", server.port(), "redis://b6-redis");
}

#[test]
fn b6_a_sentinel_is_reached_by_a_name_with_a_silent_address() {
    let master = RedisServer::start();
    let line = format!("sentinel monitor m 127.0.0.1 {} 1\n", master.port());
    let sentinel = RedisServer::start_sentinel_with(&line);
    let url = "redis+sentinel://b6-sentinel/m";
    leads_past_a_silent_address("b6-sentinel", sentinel.port(), url);
}

#[test]
fn b6_zookeeper_is_reached_by_a_name_with_a_silent_address() {
    let server = Server::start(Settings::default()).unwrap();
    leads_past_a_silent_address("b6-zookeeper", server.port(), "zk://b6-zookeeper");
}

#[test]
fn b6_postgres_is_reached_by_a_name_with_a_silent_address() {
    let server = PostgresServer::start();
    let table = format!("postgres://{USER}@b6-postgres/postgres?sslmode=disable");
    leads_past_a_silent_address("b6-postgres", server.port(), &table);
    let session = table.replace("b6-postgres", "b6-postgres-session") + "&layout=session";
    leads_past_a_silent_address("b6-postgres-session", server.port(), &session);
}

#[test]
fn b6_an_engine_says_which_addresses_of_a_name_it_tried() {
    let silent = Silent::start();
    names::lead_to("b6-named", &[silent.address(), nobody()]);
    for url in ["redis://b6-named", "postgres://ann@b6-named/x"] {
        let url = format!("{url}?connect_timeout=1s");
        let engine = engine_of(&url, Duration::from_secs(30)).unwrap();
        let error = Process::around(engine.into()).map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable);
        let named = [silent.address().to_string(), "127.0.0.1:1".into()];
        assert!(named.iter().all(|at| error.message().contains(at)), "{error}");
    }
}
