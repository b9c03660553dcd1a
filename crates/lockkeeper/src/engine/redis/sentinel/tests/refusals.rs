//! What is refused, and why: one line with the URL to use.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockkeeper_testkit::proxy::{Proxy, Way};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::{Deployment, Setup};
use lockkeeper_testkit::servers::clock_shim::{ClockShim, Clocks};
use lockkeeper_testkit::servers::{certificates, free_port};

use tokio::sync::watch;

use super::super::wire::Node;
use super::support::{open, options_of, process};
use crate::engine::redis::options::Address;
use crate::engine::redis::tests::support::{
    Process, fill, opened, options, silence_is_no_reason_to_leave_out_tls, until,
};
use crate::engine::{End, Renewal};
use crate::words::claim::Mode;
use crate::words::clock::Clock;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::Class;

fn refused(url: &str) -> Error {
    let error = open(url).err().expect("it is refused");
    assert!(!error.message().contains('\n'), "{error}");
    error
}

#[test]
fn a_sentinel_url_at_a_plain_server_names_the_url_to_use_and_the_reverse() {
    let server = RedisServer::start();
    let at = format!("127.0.0.1:{}", server.port());
    let error = refused(&format!("redis+sentinel://{at}/mymaster"));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(&format!("use redis://{at},")), "{error}");

    let node = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let at = format!("127.0.0.1:{}", node.port());
    let error = refused(&format!("redis+sentinel://{at}/mymaster"));
    assert!(error.message().contains(&format!("use redis+cluster://{at},")), "{error}");

    let sentinel = RedisServer::start_sentinel();
    let error = Process::try_with(options(sentinel.port())).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let url = format!("use redis+sentinel://127.0.0.1:{}/SERVICE", sentinel.port());
    assert!(error.message().contains(&url), "{error}");
}

#[test]
fn several_that_are_no_sentinels_are_named_in_one_sentence() {
    let servers = [RedisServer::start(), RedisServer::start()];
    let at = servers.each_ref().map(|server| format!("127.0.0.1:{}", server.port()));
    let error = refused(&format!("redis+sentinel://{}/mymaster", at.join(",")));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert_eq!(error.message().matches("a Redis server and no Sentinel").count(), 1, "{error}");
    let [one, two] = &at;
    let text = error.message();
    let says = |first, other| {
        text.contains(&format!("use redis://{first},"))
            && text.ends_with(&format!("; the same at {other}"))
    };
    assert!(says(one, two) || says(two, one), "{error}");
}

/// A Sentinel, and its port for TLS.
fn sentinel_with_tls(dir: &Path, lines: &str) -> (RedisServer, u16) {
    let (secure, file) = (free_port(), |name: &str| dir.join(name).display().to_string());
    let (certificate, key, ca) = (file("server.pem"), file("server.key"), file("ca.pem"));
    let sentinel = RedisServer::start_sentinel_with(&format!(
        "tls-port {secure}\ntls-cert-file {certificate}\ntls-key-file {key}\n\
         tls-ca-cert-file {ca}\ntls-auth-clients no\ntls-replication yes\n{lines}"
    ));
    (sentinel, secure)
}

fn over_tls(dir: &Path) -> String {
    format!("tls=true&tls_ca={}&tls_name=localhost", dir.join("ca.pem").display())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_sentinel_that_is_slow_in_tls_is_silent_to_those_who_wait_and_connected_all_the_same() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = certificates::make(home.path());
    let (_sentinel, secure) = sentinel_with_tls(&dir, "");
    // Again where the machine stood still for longer than a dial may take.
    until("a dial that is slow comes to its end", || {
        let proxy = Proxy::to(secure);
        proxy.hold(Way::Down);
        let (at, tls) = (format!("127.0.0.1:{}", proxy.port()), over_tls(&dir));
        let options = Arc::new(options_of(&format!("{at}/m?connect_timeout=4s&{tls}")));
        let node = Node::new(Address::Tcp("127.0.0.1".into(), proxy.port()));
        let (_close, closed) = watch::channel(false);
        let by = ("test".to_owned(), Clock::real());
        let keeping = tokio::spawn(node.clone().keep(options, by, closed, |_, _| ()));
        until("its silence is told", || node.why_down().is_some());
        let why = node.why_down().expect("it is told");
        proxy.heal();
        until("it is connected", || node.why_down().is_none());
        keeping.abort();
        let once = proxy.accepted() == 1;
        assert!(!once || why.message().contains("give the Sentinels' TLS port"), "{why}");
        once
    });
}

#[test]
fn tls_is_spoken_to_sentinels_and_their_master_and_on_one_side_only_it_is_named() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = certificates::make(home.path());
    let (_master, port) = RedisServer::start_with_tls(&dir, &["--tls-auth-clients", "no"]);
    // The master is watched at its port for TLS, and that is what they name.
    let (sentinel, secure) =
        sentinel_with_tls(&dir, &format!("sentinel monitor m 127.0.0.1 {port} 1\n"));
    let tls = over_tls(&dir);
    let url = |port, options: &str| format!("redis+sentinel://127.0.0.1:{port}/m?{options}");
    let process = open(&url(secure, &tls)).expect("it names a master that speaks TLS");
    let (held, _) = process.take("a", Mode::Exclusive);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    assert!(matches!(process.release(held.id), End::Freed));
    let error = refused(&url(secure, ""));
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("if it wants TLS, add tls=true"), "{error}");
    // A line end in our greeting makes it answer; without one it waits for one, and a machine that
    // is busy may not even be connected by then.
    until("the one that speaks no TLS is named for that", || {
        let error = refused(&url(sentinel.port(), &format!("connect_timeout=1s&{tls}")));
        error.message().contains("give the Sentinels' TLS port")
    });
}

#[test]
fn silence_is_no_reason_to_leave_out_tls_and_says_nothing_of_it_where_nobody_took_the_call() {
    silence_is_no_reason_to_leave_out_tls(
        "redis+sentinel",
        "/m",
        "give the Sentinels' TLS port",
        refused,
    );
}

#[test]
fn a_service_that_nobody_knows_is_told_with_those_that_they_know() {
    let sentinel = RedisServer::start_sentinel();
    let at = format!("127.0.0.1:{}", sentinel.port());
    let error = refused(&format!("redis+sentinel://{at}/mymaster"));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("they watch nothing yet"), "{error}");
    sentinel.command(&["SENTINEL", "MONITOR", "orders", "127.0.0.1", "1", "2"]);
    let error = refused(&format!("redis+sentinel://{at}/mymaster"));
    let url = format!("use redis+sentinel://{at}/orders");
    assert!(error.message().contains(&url), "{error}");
    sentinel.command(&["SENTINEL", "MONITOR", "stock", "127.0.0.1", "2", "2"]);
    let error = refused(&format!("redis+sentinel://{at}/mymaster"));
    assert!(error.message().contains("orders") && error.message().contains("stock"), "{error}");
}

#[test]
fn a_sentinel_that_takes_no_more_clients_keeps_nobody_from_the_master() {
    let server = RedisServer::start();
    let watch = |lines: &str| {
        let port = server.port();
        let lines = format!("sentinel monitor m 127.0.0.1 {port} 2\n{lines}");
        RedisServer::start_sentinel_with(&lines)
    };
    let sentinels = [watch("maxclients 8\n"), watch(""), watch("")];
    let full = fill(sentinels[0].port());
    let at: Vec<String> = sentinels.iter().map(|s| format!("127.0.0.1:{}", s.port())).collect();
    let process = open(&format!("redis+sentinel://{}/m", at.join(","))).expect("two know it");
    process.take("a", Mode::Exclusive);
    let is_full = || process.engine.describe().warnings.iter().any(|w| w.id == "sentinel-refuses");
    until("it is told", is_full);
    drop(full);
    until("it is connected", || !is_full());
}

#[test]
fn b7_sentinels_that_are_all_full_say_so_and_that_is_a_refusal() {
    let master = RedisServer::start();
    let line = format!("sentinel monitor m 127.0.0.1 {} 1\nmaxclients 8\n", master.port());
    let sentinel = RedisServer::start_sentinel_with(&line);
    let full = fill(sentinel.port());
    // Beside it there is one that cannot be reached.
    for beside in ["", ",127.0.0.1:1"] {
        let at = format!("127.0.0.1:{}{beside}", sentinel.port());
        let error = refused(&format!("redis+sentinel://{at}/m?connect_timeout=1m"));
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        let says = format!("{} has as many clients as it takes (maxclients)", sentinel.port());
        assert!(error.message().contains(&says) && error.is_temporary(), "{error}");
    }
    drop(full);
    opened(|| open(&format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port())));
}

/// Two Sentinels, and the masters that they name.
fn two_that_disagree() -> ([RedisServer; 2], [RedisServer; 2]) {
    let servers = [RedisServer::start(), RedisServer::start()];
    let sentinels = [RedisServer::start_sentinel(), RedisServer::start_sentinel()];
    for (sentinel, server) in sentinels.iter().zip(&servers) {
        let port = server.port().to_string();
        sentinel.command(&["SENTINEL", "MONITOR", "m", "127.0.0.1", &port, "1"]);
    }
    (sentinels, servers)
}

fn url_of([one, other]: &[u16; 2], options: &str) -> String {
    format!("redis+sentinel://127.0.0.1:{one},127.0.0.1:{other}/m?{options}")
}

fn assert_named(error: &Error, at: &[u16; 2], servers: &[RedisServer; 2]) {
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    for (sentinel, server) in at.iter().zip(servers) {
        let names = format!("127.0.0.1:{sentinel} names 127.0.0.1:{}", server.port());
        assert!(error.message().contains(&names), "{error}");
    }
}

#[test]
fn sentinels_that_disagree_are_named_with_their_masters() {
    let (sentinels, servers) = two_that_disagree();
    let at = sentinels.each_ref().map(RedisServer::port);
    // A machine with much to do connects to both in time.
    assert_named(&refused(&url_of(&at, "connect_timeout=10s")), &at, &servers);
}

#[test]
fn sentinels_that_disagreed_are_named_though_one_is_late_when_it_is_asked_again() {
    let (sentinels, servers) = two_that_disagree();
    let proxy = Proxy::to(sentinels[1].port());
    let at = [sentinels[0].port(), proxy.port()];
    // A machine with much to do asks several times before half of that is over.
    let url = url_of(&at, "connect_timeout=20s&request_timeout=1m");
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| refused(&url));
        // What one answer says is a thousand bytes.
        until("it has answered more than once", || {
            proxy.passed(Way::Down) > 4_000 || opening.is_finished()
        });
        assert!(!opening.is_finished(), "nobody was late yet");
        proxy.hold(Way::Down);
        assert_named(&opening.join().expect("no panic"), &at, &servers);
    });
}

#[test]
fn a_clock_that_is_off_is_no_matter_of_times_shown_alone() {
    let clock = ClockShim::new().expect("cc is there");
    let [(preload, library), (control, file)] = clock.environment();
    let environment = [(preload, &*library.to_string_lossy()), (control, &*file.to_string_lossy())];
    let server = RedisServer::start_in(&[], &environment);
    clock.step(Clocks::Wall, Duration::from_secs(60)).expect("the control file is ours");
    let sentinel = RedisServer::start_sentinel();
    let port = server.port().to_string();
    sentinel.command(&["SENTINEL", "MONITOR", "m", "127.0.0.1", &port, "1"]);
    let process = open(&format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port())).unwrap();
    let warned = process.engine.describe().warnings;
    let offset = warned.iter().find(|w| w.id == "clock-offset").expect("a minute is much");
    assert!(offset.text.contains("leases are counted by another server's clock"), "{offset:?}");
    assert!(!offset.text.contains("do not mind"), "{offset:?}");
}

#[test]
fn a_password_is_asked_for_by_whom_it_is_wanted() {
    let setup = Setup {
        password: Some("s3cret".into()),
        sentinel_password: Some("gu4rd".into()),
        ..Setup::default()
    };
    let deployment = Deployment::start_with(setup);
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), "gu4rd\n").expect("it is ours");
    let hosts = deployment.hosts();
    let of_sentinels = format!("sentinel_password_file={}", file.path().display());

    let error = refused(&format!("redis+sentinel://:s3cret@{hosts}/mymaster"));
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("give sentinel_password_file=FILE"), "{error}");

    let error = refused(&format!("redis+sentinel://{hosts}/mymaster?{of_sentinels}"));
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("redis+sentinel://user:password@host"), "{error}");
    let error = refused(&format!("redis+sentinel://:wr0ng@{hosts}/mymaster?{of_sentinels}"));
    assert!(error.message().contains("does not accept this user and password"), "{error}");
    assert!(!error.message().contains("wr0ng"), "{error}");

    let both = format!("redis+sentinel://:s3cret@{hosts}/mymaster?{of_sentinels}");
    open(&both).expect("both passwords are right").take("a", Mode::Exclusive);
    std::fs::write(file.path(), "wr0ng").expect("it is ours");
    let error = refused(&both);
    assert!(error.message().contains("does not accept the password of sentinel_"), "{error}");
}

#[test]
fn what_is_not_there_for_a_failover_is_warned_of_and_the_class_says_why() {
    let sentinel = RedisServer::start_sentinel();
    let server = RedisServer::start_with(&["--appendonly", "yes", "--appendfsync", "always"]);
    let port = server.port().to_string();
    sentinel.command(&["SENTINEL", "MONITOR", "m", "127.0.0.1", &port, "1"]);
    let alone = open(&format!("redis+sentinel://127.0.0.1:{}/m", sentinel.port())).unwrap();
    let about = alone.engine.describe();
    let warned: Vec<_> = about.warnings.iter().map(|w| w.id).collect();
    assert!(warned.contains(&"few-sentinels") && warned.contains(&"no-replica"), "{warned:?}");
    // Whatever the server has on disk: a failover leaves it behind.
    assert_eq!((about.engine, about.class), ("sentinel", Class::Efficiency));
    assert!(about.breaks[0].contains("before its replicas have a write"), "{about:?}");
    assert!(about.breaks[1].contains("min-replicas-to-write"), "{about:?}");
    assert!(about.breaks.iter().any(|line| line.contains("both masters make them")), "{about:?}");
    assert!(about.server.contains(&format!("127.0.0.1:{port} (the master of m)")), "{about:?}");
    // A lease, 30 s until it counts as down, and a failover.
    assert_eq!(about.recovery, Duration::from_secs(65));

    let setup = Setup { down_after: Duration::from_secs(20), ..Setup::default() };
    let deployment = Deployment::start_with(setup);
    let whole = process(&deployment);
    until("nothing is warned of", || whole.engine.describe().warnings.is_empty());
    let about = whole.engine.describe();
    let waits = open(&format!("{}?wait_replicas=1", deployment.url())).unwrap();
    let breaks = waits.engine.describe().breaks;
    assert!(breaks[1].contains("leaves the old master 1 of its replicas"), "{breaks:?}");
    assert_eq!(about.recovery, Duration::from_secs(55));
}
