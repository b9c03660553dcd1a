//! `lockkeeper bench URL` leaves a given server or directory as it was, in whatever layout, however
//! it is reached, and however it ends.
//!
//! Runs alone: it measures, and has both processors busy.

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::zookeeper::client::{Client, Kind};
use lockkeeper_testkit::zookeeper::server::{Server, Settings};
use nix::sys::signal::Signal::{self, SIGINT, SIGKILL};

use crate::common::{LONG_PATIENCE, Place, Reaped, until, until_within};

/// Measures one row for a second; answers the code and how many rows were printed.
fn measure(place: &Place, row: &str, url: &str) -> (i32, usize, String) {
    let ran = place.run(["bench", "--json", "--seconds", "1", "--only", row, url]);
    (ran.code, ran.out.lines().count(), ran.err)
}

fn is_measured(place: &Place, row: &str, url: &str) {
    let (code, rows, err) = measure(place, row, url);
    assert!(
        (code, err.as_str()) == (0, "") && rows > 0,
        "{row} on {url}: {code}, {rows} rows, {err}"
    );
}

/// Ends a measurement once `some` of it is there.
fn end_by(signal: Signal, place: &Place, row: &str, url: &str, mut some: impl FnMut() -> bool) {
    let mut bench = place.lk(["bench", "--only", row, "--seconds", "60", url]);
    let mut bench = Reaped::spawn(
        bench.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()),
    );
    until("it has begun", || some().then_some(()));
    bench.signal(signal);
    bench.wait();
}

fn keys(server: &RedisServer) -> u64 {
    server.command(&["DBSIZE"])[0].parse().unwrap()
}

/// A server with a key of somebody else's.
fn redis_in_use(arguments: &[&str]) -> RedisServer {
    let server = RedisServer::start_with(arguments);
    server.command(&["SET", "bench", "somebody else's"]);
    server
}

/// What is left on the server of a measurement that was ended, or nothing.
fn until_only_somebody_elses(server: &RedisServer) {
    until_within(LONG_PATIENCE, "nothing is left on the server", || {
        (keys(server) == 1).then_some(())
    });
}

#[test]
fn c13_a_measurement_leaves_nothing_on_a_given_server() {
    let (place, server) = (Place::new(), redis_in_use(&[]));
    for row in ["uncontended", "turn", "many-names", "one-name", "process-handoff"] {
        is_measured(&place, row, &server.url());
        assert_eq!(keys(&server), 1, "{row}");
    }
    let dir = place.path("given");
    is_measured(&place, "turn", &format!("file://{}", dir.display()));
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0);
}

#[test]
fn c13_a_measurement_that_is_ended_anywhere_leaves_nothing_on_a_given_server() {
    let (place, server) = (Place::new(), redis_in_use(&[]));
    for signal in [SIGINT, SIGKILL] {
        end_by(signal, &place, "leases", &server.url(), || keys(&server) > 1_000);
        until_only_somebody_elses(&server);
    }
}

#[test]
fn c13_a_measurement_leaves_nothing_in_the_layouts_of_others() {
    let (place, server) = (Place::new(), redis_in_use(&[]));
    let layouts = [
        "layout=plain",
        "layout=plain&key=app:{name}:lock",
        "layout=redisson",
        "layout=redisson&lock=fair",
    ];
    for layout in layouts.into_iter().chain(["layout=redisson&lock=fenced"]) {
        let url = format!("{}?{layout}", server.url());
        is_measured(&place, "turn", &url);
        assert_eq!(keys(&server), 1, "{layout}: {:?}", server.command(&["KEYS", "*"]));
        // The floor of this row cannot be had in these layouts.
        assert_eq!(measure(&place, "uncontended", &url).0, 1, "{layout}");
        assert_eq!(
            keys(&server),
            1,
            "after an error, {layout}: {:?}",
            server.command(&["KEYS", "*"])
        );
    }
    for (signal, layout) in [(SIGINT, "layout=plain"), (SIGKILL, "layout=redisson&lock=fenced")] {
        end_by(signal, &place, "leases", &format!("{}?{layout}", server.url()), || {
            keys(&server) > 1_000
        });
        until_only_somebody_elses(&server);
    }
}

#[test]
fn a_measurement_whose_traces_stay_says_so_and_fails() {
    let (place, server) = (Place::new(), redis_in_use(&[]));
    server.command(&["ACL", "SETUSER", "ann", "on", ">pw", "~*", "&*", "+@all", "-scan"]);
    let url = server.url().replace("redis://", "redis://ann:pw@");
    let (code, rows, err) = measure(&place, "turn", &url);
    assert!(code == 1 && rows > 0, "{code}, {rows} rows, {err}");
    assert!(err.starts_with("lockkeeper: what begins with bench-") && err.contains(" stays: "));
    assert!(!err.contains("pw") && err.lines().count() == 1, "{err}");
}

#[test]
fn c13_a_measurement_over_tls_or_a_socket_leaves_nothing() {
    let place = Place::new();
    let certificates = lockkeeper_testkit::servers::certificates::make(&place.path("home"));
    let file = |name: &str| certificates.join(name).display().to_string();
    let port = lockkeeper_testkit::servers::free_port().to_string();
    let (cert, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let tls = [
        "--tls-port",
        &port,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "no",
    ];
    let server = redis_in_use(&tls);
    let secure = format!("rediss://localhost:{port}?tls_ca={ca}");
    let socket = format!("redis+unix://{}", server.socket().display());
    for url in [&secure, &socket] {
        is_measured(&place, "turn", url);
        assert_eq!(keys(&server), 1, "{url}");
        assert_eq!(measure(&place, "one-name", url).0, 1, "{url}");
        assert_eq!(keys(&server), 1, "after an error, {url}");
    }
    for (signal, url) in [(SIGINT, &secure), (SIGKILL, &secure), (SIGINT, &socket)] {
        end_by(signal, &place, "leases", url, || keys(&server) > 1_000);
        until_only_somebody_elses(&server);
    }
}

/// How many nodes there are.
fn nodes(server: &Server) -> u64 {
    let text = server.ask("mntr").unwrap();
    let count =
        text.lines().find_map(|line| line.strip_prefix("zk_znode_count\t")).expect("a count");
    count.trim().parse().unwrap()
}

#[test]
fn c13_a_measurement_leaves_nothing_in_zookeeper() {
    let (place, server) = (Place::new(), Server::start(Settings::default()).unwrap());
    let mut client = Client::connect(server.port()).unwrap();
    for path in ["/bench", "/app", "/app/bench"] {
        client.create(path, b"somebody else's", Kind::Persistent).unwrap();
    }
    let before = nodes(&server);
    let given = format!("zk://{}", server.address());
    for row in ["uncontended", "turn", "process-handoff", "places"] {
        is_measured(&place, row, &given);
        assert_eq!(nodes(&server), before, "{row}");
    }
    for layout in ["/app", "?layout=kazoo", "?layout=plain", "/app?layout=plain&prefix=Lock"] {
        is_measured(&place, "uncontended", &format!("{given}{layout}"));
        assert_eq!(nodes(&server), before, "{layout}");
    }
    // A chroot that is not there: nothing can be measured.
    assert_eq!(measure(&place, "turn", &format!("{given}/none")).0, 69);
    assert_eq!(nodes(&server), before, "after an error");
}

#[test]
fn c13_a_measurement_that_is_ended_anywhere_leaves_nothing_in_zookeeper() {
    let (place, server) = (Place::new(), Server::start(Settings::default()).unwrap());
    let before = nodes(&server);
    for (signal, row, query) in [
        (SIGINT, "many-names", ""),
        (SIGKILL, "many-names", "?session_timeout=40s"),
        (SIGKILL, "process-handoff", "?layout=kazoo"),
    ] {
        end_by(signal, &place, row, &format!("zk://{}{query}", server.address()), || {
            nodes(&server) > before + 1
        });
        // Long before the session of the killed one ends.
        until_within(std::time::Duration::from_secs(8), "nothing is left in ZooKeeper", || {
            (nodes(&server) == before).then_some(())
        });
    }
}
