#![allow(clippy::panic, reason = "a test that cannot go on fails")]
//! This library on a link that is cut. Where namespaces are not allowed there is none.

use std::time::Instant;

use lockkeeper::blocking::Locks;

use super::*;
use crate::servers::redis::RedisServer;
use crate::servers::zookeeper::{Server, Settings};

const PATIENCE: Duration = Duration::from_secs(20);
/// How much later than its time a thread may run on a busy machine.
const LATE: Duration = Duration::from_secs(1);

/// Two clients on links of their own; `url` says how a server at an address is written.
struct Two {
    links: Links,
    locks: [Locks; 2],
}

impl Two {
    fn of(port: u16, url: impl Fn(SocketAddr) -> String) -> Option<Self> {
        let mut links = Links::to(vec![port]);
        if links.left_out().is_some() {
            assert!(!nix::unistd::geteuid().is_root(), "root can: {:?}", links.left_out());
            return None;
        }
        links.are_to_suffer(&[CUT]);
        let mut open = |client| {
            let url = url(links.addresses(client).unwrap()[0]);
            // Its thread and its sockets are where it was opened.
            links.home(client).unwrap().unwrap().run(move || Locks::open(&url)).unwrap().unwrap()
        };
        let locks = [open(0), open(1)];
        Some(Self { links, locks })
    }

    /// Does something as a client.
    fn does<T: Send + 'static>(&mut self, client: u32, act: impl FnOnce(&Locks) -> T + Send + 'static) -> T {
        let locks = self.locks[client as usize].clone();
        self.links.home(client).unwrap().unwrap().run(move || act(&locks)).unwrap()
    }
}

/// What a cut does to a guard; answers how long its client needed to lock again once the link was whole.
fn loses_its_guard_and_locks_again(mut two: Two, fault: &'static str) -> Duration {
    let lock = |locks: &Locks| locks.mutex("a").lock().timeout(PATIENCE).run();
    let guard = two.does(0, lock).unwrap();
    two.links.strike(fault, 0).unwrap().unwrap();
    // What was renewed before the cut is in it, and nothing is after it.
    let deadline = guard.deadline().unwrap();
    let (heard, when) = std::sync::mpsc::channel();
    let held = guard.held();
    std::thread::spawn(move || heard.send((held.lost_blocking(), Instant::now())));
    let next = two.does(1, lock).unwrap();
    assert!(guard.is_lost(), "{fault}: another has it, and the first holder does not know");
    let (why, at) = when.recv_timeout(PATIENCE).unwrap();
    assert!(guard.check().is_err() && at <= deadline + LATE, "{fault}: {why:?}, told {:?} after its deadline", at - deadline);
    drop(guard);
    assert!(next.release().is_clean());
    assert!(two.does(0, |locks| locks.mutex("a").lock().timeout(Duration::from_millis(300)).run()).is_err(), "{fault}: it is cut off");
    assert_eq!(two.links.mend(fault, 0), Some(Ok(Mended::Ended)), "packets were lost");
    let whole = Instant::now();
    loop {
        match two.does(0, lock) {
            Ok(again) => assert!(again.release().is_clean()),
            // It says so when no server has answered for as long as a request may take: then it is asked again.
            Err(error) if error.is_temporary() && whole.elapsed() < PATIENCE => continue,
            Err(error) => panic!("{fault}: {error}"),
        }
        return whole.elapsed();
    }
}

#[test]
fn r2_a_redis_guard_on_a_cut_link_is_lost_before_another_holds_and_its_client_locks_again() {
    for fault in [CUT, CUT_UP, CUT_DOWN] {
        let server = RedisServer::start();
        let Some(two) = Two::of(server.port(), |at| format!("redis://{at}?ttl=1s&request_timeout=500ms")) else { return };
        let took = loses_its_guard_and_locks_again(two, fault);
        assert!(took < Duration::from_secs(5), "{fault}: {took:?}");
    }
}

#[test]
fn r2_a_zookeeper_guard_on_a_cut_link_is_lost_before_another_holds_and_its_client_locks_again() {
    let settings = Settings { tick: Duration::from_millis(200), ends_with_us: true, ..Settings::default() };
    let server = Server::start(settings).unwrap();
    for fault in [CUT, CUT_UP, CUT_DOWN] {
        let Some(two) = Two::of(server.port(), |at| format!("zk://{at}?session_timeout=1s&request_timeout=500ms")) else { return };
        let took = loses_its_guard_and_locks_again(two, fault);
        assert!(took < Duration::from_secs(5), "{fault}: {took:?}");
    }
}
