#![allow(clippy::panic, reason = "a test that cannot go on fails")]
//! Links that are cut and reset, and this library on them. Where namespaces are not allowed no
//! packet can be lost.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Instant;

use lockkeeper::blocking::Locks;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::until::until;
use lockkeeper_testkit::zookeeper::server::{Server, Settings};

use super::*;

const PATIENCE: Duration = Duration::from_secs(120);

/// A server that says what it hears.
fn echo() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
        }
    });
    port
}

/// The links of one client to it, which lose no packets, and a new connection over them.
fn client_of_echo() -> (Links, impl Fn() -> TcpStream) {
    let mut links = Links::to(vec![echo()]);
    links.are_to_suffer(&["partition"], 1);
    let at = links.addresses(0).unwrap()[0];
    (links, move || TcpStream::connect(at).unwrap())
}

/// Whether it carries a byte there and back; false once it is gone.
fn carries(stream: &mut TcpStream) -> bool {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(b"x").is_ok() && stream.read(&mut [0]).is_ok_and(|read| read == 1)
}

#[test]
fn the_end_of_what_happened_to_a_server_mends_no_link() {
    let (mut links, connect) = client_of_echo();
    let mut stream = connect();
    assert!(carries(&mut stream));
    links.strike("partition", 0).unwrap().unwrap();
    stream.write_all(b"x").unwrap();
    assert!(links.mend("kill-server", 0).is_none());
    stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
    assert!(stream.read(&mut [0]).is_err(), "it is held back still");
    assert_eq!(links.mend("partition", 0), Some(Ok(Mended::Ended)));
    assert!(carries(&mut connect()));
}

#[test]
fn a_link_that_carries_no_connection_is_hit_by_nothing_until_one_is_made() {
    let (mut links, connect) = client_of_echo();
    for fault in FAULTS.map(|f| f.name) {
        if fault == "reset" {
            assert_eq!(links.strike(fault, 0), Some(Err(Failed::Undone(UNCONNECTED.to_owned()))));
            continue;
        }
        assert_eq!(links.strike(fault, 0), Some(Ok(())));
        assert_eq!(links.mend(fault, 0), Some(Ok(Mended::HitNobody(UNCONNECTED))), "{fault}");
    }
    links.strike("partition", 0).unwrap().unwrap();
    let mut late = connect();
    until("the proxy has it", || links.connections(&ALL, 0).1 == 1);
    assert_eq!(links.mend("partition", 0), Some(Ok(Mended::Ended)), "one that came meanwhile");
    assert!(!carries(&mut late), "it is cut");
    let mut there = connect();
    assert!(carries(&mut there));
    assert_eq!(links.strike("slow-link", 0), Some(Ok(())));
    assert_eq!(links.mend("slow-link", 0), Some(Ok(Mended::Ended)), "one that was there");
    assert_eq!(links.strike("flush", 0), None);
}

#[test]
fn whether_a_fault_of_all_links_hit_somebody_is_not_forgotten_with_the_end_of_one_of_some() {
    let (mut links, _connect) = client_of_echo();
    links.strike("partition", 0).unwrap().unwrap();
    links.strike_some(0..1, "partition", 0).unwrap().unwrap();
    let nobody = Some(Ok(Mended::HitNobody(UNCONNECTED)));
    assert_eq!(links.mend_some(0..1, "partition", 0), nobody);
    assert_eq!(links.mend("partition", 0), nobody);
}

#[test]
fn a_reset_cuts_again_and_again_and_nothing_once_it_is_over() {
    let (mut links, connect) = client_of_echo();
    let mut first = connect();
    assert!(carries(&mut first));
    links.strike("reset", 0).unwrap().unwrap();
    for _ in 0..3 {
        let mut next = connect();
        until("it is cut as well", || !carries(&mut next));
    }
    assert!(!carries(&mut first));
    links.mend_some(0..1, "partition", 0).unwrap().unwrap();
    let mut next = connect();
    until("the end of another fault does not end it", || !carries(&mut next));
    assert_eq!(links.mend("reset", 0), Some(Ok(Mended::Ended)));
    let mut last = connect();
    assert!(carries(&mut last) && carries(&mut last));
}

/// Two clients on links of their own; `url` says how a server at an address is written.
struct Two {
    links: Links,
    locks: [Locks; 2],
}

impl Two {
    fn of(port: u16, url: impl Fn(SocketAddr) -> String) -> Self {
        let mut links = Links::to(vec![port]);
        let as_root = "this test makes network namespaces: run it as root, as CI does";
        assert!(links.left_out().is_none(), "{as_root}: {:?}", links.left_out());
        links.are_to_suffer(&[CUT], 1);
        let mut open = |client| {
            let url = url(links.addresses(client).unwrap()[0]);
            // Its thread and its sockets are where it was opened.
            let home = links.home(client).unwrap().unwrap();
            home.run(move || answered("it opens", || Locks::open(&url))).unwrap()
        };
        let locks = [open(0), open(1)];
        Self { links, locks }
    }

    /// Does something as a client.
    fn does<T: Send + 'static>(
        &mut self,
        client: u32,
        act: impl FnOnce(&Locks) -> T + Send + 'static,
    ) -> T {
        let locks = self.locks[client as usize].clone();
        self.links.home(client).unwrap().unwrap().run(move || act(&locks)).unwrap()
    }
}

/// Asks until it is answered: short times go by before an answer where the machine is busy.
fn answered<T>(what: &str, mut ask: impl FnMut() -> lockkeeper::Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(error) if error.is_temporary() && begun.elapsed() < PATIENCE => {}
            Err(error) => panic!("{what}: {error}"),
        }
    }
}

/// What a cut does to a guard, and that its client locks again once the link is whole.
fn loses_its_guard_and_locks_again(mut two: Two, fault: &'static str) {
    let lock = |locks: &Locks| locks.mutex("a").lock().timeout(PATIENCE).run();
    let guard = answered(fault, || two.does(0, lock));
    two.links.strike(fault, 0).unwrap().unwrap();
    let (heard, told) = std::sync::mpsc::channel();
    let held = guard.held();
    std::thread::spawn(move || heard.send(held.lost_blocking()));
    let next = answered(fault, || two.does(1, lock));
    assert!(guard.is_lost(), "{fault}: another has it, and the first holder does not know");
    let why = told.recv_timeout(PATIENCE).unwrap();
    assert!(guard.check().is_err(), "{fault}: {why:?}");
    drop(guard);
    drop(next);
    assert!(
        two.does(0, |locks| locks.mutex("a").lock().timeout(Duration::from_millis(300)).run())
            .is_err(),
        "{fault}: it is cut off"
    );
    assert_eq!(two.links.mend(fault, 0), Some(Ok(Mended::Ended)), "packets were lost");
    drop(answered(fault, || two.does(0, lock)));
}

#[test]
fn needs_root_r2_a_redis_guard_on_a_cut_link_is_lost_before_another_holds_and_locks_again() {
    for fault in [CUT, CUT_UP, CUT_DOWN] {
        let server = RedisServer::start();
        let two = Two::of(server.port(), |at| format!("redis://{at}?ttl=1s&request_timeout=500ms"));
        loses_its_guard_and_locks_again(two, fault);
    }
}

#[test]
fn needs_root_r2_a_zookeeper_guard_on_a_cut_link_is_lost_before_another_holds_and_locks_again() {
    let settings =
        Settings { tick: Duration::from_millis(200), ends_with_us: true, ..Settings::default() };
    let server = Server::start(settings).unwrap();
    for fault in [CUT, CUT_UP, CUT_DOWN] {
        let url = |at| format!("zk://{at}?session_timeout=1s&request_timeout=500ms");
        let two = Two::of(server.port(), url);
        loses_its_guard_and_locks_again(two, fault);
    }
}
