use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use super::*;

/// What comes back on one connection of a client: an echo of what arrives.
struct Echo {
    stream: TcpStream,
    network: Network,
}

impl Echo {
    fn new() -> Self {
        let mut network = Network::new().expect(AS_ROOT);
        let listener = network.listen(0).unwrap();
        let at = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut from, _) = listener.accept().unwrap();
            let mut to = from.try_clone().unwrap();
            // It ends with the connection.
            let _ = std::io::copy(&mut from, &mut to);
        });
        let stream = network.home(0).unwrap().run(move || TcpStream::connect(at)).unwrap().unwrap();
        Self { stream, network }
    }

    fn comes(&mut self, wait: Duration) -> Option<u8> {
        self.stream.set_read_timeout(Some(wait)).unwrap();
        let mut byte = [0];
        self.stream.read_exact(&mut byte).is_ok().then_some(byte[0])
    }
}

/// Tests of these names are left out without root, and named.
const AS_ROOT: &str = "this test makes network namespaces: run it as root, as CI does";
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(120);

#[test]
fn needs_root_a_line_that_is_cut_loses_packets_each_way_and_what_was_lost_is_sent_again_when_it_is_whole()
 {
    let mut echo = Echo::new();
    let line = echo.network.line(0).unwrap();
    echo.stream.write_all(&[1]).unwrap();
    assert_eq!(echo.comes(LONG), Some(1));
    for (byte, ways) in [(2, &[Way::Up][..]), (3, &[Way::Down]), (4, &[Way::Up, Way::Down])] {
        ways.iter().for_each(|way| line.cut(*way).unwrap());
        echo.stream.write_all(&[byte]).unwrap();
        assert_eq!(
            echo.comes(SHORT),
            None,
            "{ways:?}: the sender is told nothing, and nothing comes"
        );
        let lost: Vec<u32> = ways.iter().map(|way| line.mend(*way).unwrap()).collect();
        assert!(lost[0] > 0, "{ways:?}: {lost:?}");
        assert_eq!(echo.comes(LONG), Some(byte), "{ways:?}: it comes late");
    }
    line.cut(Way::Up).unwrap();
    assert_eq!(line.mend(Way::Up), Ok(0), "a link on which nothing was sent loses nothing");
}

#[test]
fn needs_root_the_clients_of_two_networks_have_the_same_addresses_and_do_not_see_each_other() {
    let [mut one, mut other] = [(); 2].map(|()| Network::new().expect(AS_ROOT));
    let listener = one.listen(1).unwrap();
    let at = listener.local_addr().unwrap();
    let reaches = |network: &mut Network, client, to: SocketAddr, wait| {
        network
            .home(client)
            .unwrap()
            .run(move || TcpStream::connect_timeout(&to, wait).is_ok())
            .unwrap()
    };
    assert!(reaches(&mut one, 1, at, LONG));
    assert!(!reaches(&mut other, 1, at, SHORT));
    assert_eq!(other.listen(1).unwrap().local_addr().unwrap().ip(), at.ip());
    assert!(TcpStream::connect_timeout(&at, SHORT).is_err(), "outside there is no such address");
}

#[test]
fn needs_root_a_network_leaves_nothing_when_it_is_dropped() {
    let mut network = Network::new().expect(AS_ROOT);
    let numbers = |network: &mut Network| {
        let of = || std::fs::read_link("/proc/thread-self/ns/net").unwrap();
        [
            network.hub.run(of).unwrap(),
            network.switch.run(of).unwrap(),
            network.home(3).unwrap().run(of).unwrap(),
        ]
    };
    let namespaces = numbers(&mut network);
    let here = std::fs::read_link("/proc/self/ns/net").unwrap();
    assert!(!namespaces.contains(&here));
    let all = || {
        std::fs::read_dir("/proc/self/task")
            .unwrap()
            .flatten()
            .filter_map(|t| std::fs::read_link(t.path().join("ns/net")).ok())
    };
    assert!(namespaces.iter().all(|n| all().any(|of| of == *n)));
    drop(network);
    let begun = Instant::now();
    while let Some(left) = all().find(|of| namespaces.contains(of)) {
        assert!(begun.elapsed() < LONG, "{} is left", left.display());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn who_may_make_no_network_is_told_so() {
    if let Err(why) = Network::new() {
        assert!(why.starts_with("this process cannot"), "{why}");
    }
}
