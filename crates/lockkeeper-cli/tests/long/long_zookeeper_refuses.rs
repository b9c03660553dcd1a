//! ZooKeeper servers that refuse whoever already stands in line: what is told names the server and
//! the reason, and the place is kept.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _};
use std::net::TcpStream;
use std::process::Stdio;
use std::time::Duration;

use crate::common::{Place, Reaped, json, run, until_true};
use lockkeeper_testkit::zookeeper::proxy::Proxy;
use lockkeeper_testkit::zookeeper::server::{Ensemble, Server, Settings};
use nix::sys::signal::Signal;

/// A holder of `a`, and one that stands in line behind it, each on its own URL.
struct Two {
    place: Place,
    holder: Reaped,
    waiter: Reaped,
}

impl Two {
    fn on(holds: &str, waits: &str) -> Self {
        let place = Place::new();
        let start = |url: &str, command: &[&str]| {
            let mut lk = place.lk([&["run", "a", "--"], command].concat());
            lk.env("LOCKKEEPER_URL", url).stderr(Stdio::piped());
            Reaped::spawn(&mut lk)
        };
        let shown = || json(run(&place, holds, &["status", "a", "--json"]).out.trim_end());
        let holder = start(holds, &["sleep", "1000"]);
        until_true("it is held", || shown()["state"] == "held");
        let waiter = start(waits, &["true"]);
        until_true("one waits", || shown()["waiters"].as_array().is_some_and(|w| w.len() == 1));
        Self { place, holder, waiter }
    }

    /// Reads what the waiter is told until it is this; with the first ten seconds of a silence it
    /// is told first.
    fn is_told(&mut self, says: &[String]) {
        let said = BufReader::new(self.waiter.0.stderr.as_mut().unwrap()).lines();
        let mut told = Vec::new();
        for line in said.map(Result::unwrap) {
            if says.iter().all(|part| line.contains(part)) {
                return;
            }
            assert!(!line.contains("not obtained"), "{line}");
            told.push(line);
        }
        panic!("it has ended: {told:?}");
    }
}

#[test]
fn n3_a_waiter_whose_server_becomes_read_only_is_told_so() {
    let properties = vec!["readonlymode.enabled=true".to_owned()];
    let mut both = Ensemble::start(2, &Settings { properties, ..Settings::default() }).unwrap();
    let url = format!("zk://{}", both.addresses());
    let mut two = Two::on(&url, &url);
    both.servers[1].kill().unwrap();
    let [left, gone] = [&both.servers[0], &both.servers[1]].map(Server::address);
    two.is_told(&[
        "has not answered for".to_owned(),
        format!("{left}: the server is cut off from its ensemble and read-only"),
        format!("{gone}: Connection refused"),
    ]);
}

#[test]
fn n3_a_waiter_that_finds_its_server_full_is_told_so_and_gets_the_lock_once_there_is_room() {
    let settings = Settings {
        // So long that the test itself keeps its connections.
        properties: vec!["zookeeper.nio.sessionlessCnxnTimeout=3600000".to_owned()],
        lines: vec!["maxClientCnxns=8".to_owned()],
        tick: Duration::from_secs(2),
        ..Settings::default()
    };
    let server = Server::start(settings).unwrap();
    let way = Proxy::start(server.port()).unwrap();
    let waits = format!("zk://127.0.0.1:{}?session_timeout=40s", way.port());
    let mut two = Two::on(&format!("zk://{}", server.address()), &waits);
    way.close();
    way.cut();
    let full = fill(server.port());
    way.open();
    let says = "closes each connection without a word: it has as many as it takes";
    two.is_told(&[format!("127.0.0.1:{} {says}", way.port()), "(maxClientCnxns)".to_owned()]);
    drop(full);
    two.holder.signal(Signal::SIGTERM);
    assert_eq!(two.waiter.wait(), 0, "{:?}", two.place.text("a"));
}

/// Connections until the server takes no more.
fn fill(port: u16) -> Vec<TcpStream> {
    let mut held = Vec::new();
    let mut refused = 0;
    // Who went before may still be counted for a moment.
    while refused < 3 {
        let mut one = TcpStream::connect(("127.0.0.1", port)).unwrap();
        one.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        match one.read(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => held.push(one),
            _ => refused += 1,
        }
    }
    held
}
