//! What is refused, and why: one line with the URL to use.

use lockkeeper_testkit::cluster::server::{Nodes, Setup};
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::servers::{certificates, free_port};

use super::support::{open, process};
use crate::engine::End;
use crate::engine::redis::tests::support::{
    Process, options, silence_is_no_reason_to_leave_out_tls, silent, until,
};
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind};
use crate::words::guarantee::{Ability, Class};

fn refused(url: &str) -> Error {
    let error = open(url).err().expect("it is refused");
    assert!(!error.message().contains('\n'), "{error}");
    error
}

#[test]
fn a_cluster_url_at_a_single_server_names_the_url_to_use_and_the_reverse() {
    let server = RedisServer::start();
    let at = format!("127.0.0.1:{}", server.port());
    let error = refused(&format!("redis+cluster://{at}"));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains(&format!("use redis://{at},")), "{error}");

    let sentinel = RedisServer::start_sentinel();
    let error = refused(&format!("redis+cluster://127.0.0.1:{}", sentinel.port()));
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.message().contains("use redis+sentinel://"), "{error}");

    let nodes = Nodes::start();
    let port = nodes.nodes[0].port();
    let error = Process::try_with(options(port)).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    let url = format!("use redis+cluster://127.0.0.1:{port}");
    assert!(error.message().contains(&url), "{error}");
    // What one of those that are named says counts, whatever becomes of the others.
    let mixed = refused(&format!("redis+cluster://127.0.0.1:1,{at}"));
    assert!(mixed.message().contains(&format!("use redis://{at},")), "{mixed}");
}

#[test]
fn a_server_that_is_no_node_beside_nodes_of_the_url_is_passed_over_and_named() {
    let (nodes, server) = (Nodes::start(), RedisServer::start());
    let at = format!("127.0.0.1:{}", server.port());
    // It may say so before a node tells its map, or after that.
    let beside = |one: usize, other: usize| {
        let [one, other] = [one, other].map(|at| nodes.nodes[at].port());
        open(&format!("redis+cluster://127.0.0.1:{one},{at},127.0.0.1:{other}"))
    };
    let process = beside(0, 1).or_else(|_| beside(1, 2));
    let Ok(process) = process else { panic!("a node tells where the slots are") };
    process.take("a", Mode::Exclusive);
    let named = || {
        let warnings = process.engine.describe().warnings;
        let mut named = warnings.into_iter().filter(|w| w.id == "not-in-cluster");
        let text = named.next().map(|w| w.text);
        assert!(named.next().is_none(), "once");
        text
    };
    until("it is named", || named().is_some());
    let text = named().expect("it is named");
    assert!(text.contains(&format!("the server at {at} is no node of a Redis Cluster")), "{text}");
}

#[test]
fn tls_is_spoken_to_every_node_of_a_cluster_and_on_one_side_only_it_is_named() {
    let home = tempfile::tempdir().expect("a directory");
    let dir = certificates::make(home.path());
    let arguments =
        ["--cluster-enabled", "yes", "--tls-cluster", "yes", "--tls-auth-clients", "no"];
    // Their bus has ports of its own: that of its TLS port and 10000 may be somebody else's.
    let buses = [(); 2].map(|()| free_port().to_string());
    let nodes = buses.each_ref().map(|bus| {
        let arguments = [&arguments[..], &["--cluster-port", bus]].concat();
        RedisServer::start_with_tls(&dir, &arguments)
    });
    let [(one, port), (two, other)] = &nodes;
    one.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
    two.command(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
    let meet = ["CLUSTER", "MEET", "127.0.0.1", &other.to_string(), &buses[1]];
    assert_eq!(one.command(&meet), ["OK"]);
    let is_whole = |server: &RedisServer| {
        let info = server.command(&["CLUSTER", "INFO"]).concat();
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:2")
    };
    until("they know each other", || is_whole(one) && is_whole(two));
    let ca = dir.join("ca.pem").display().to_string();
    let tls = format!("tls=true&tls_ca={ca}&tls_name=localhost");
    let patient = "connect_timeout=2m&request_timeout=2m";
    let url = |port: u16, options: &str| format!("redis+cluster://127.0.0.1:{port}?{options}");
    let process = open(&url(*port, &format!("{patient}&{tls}")));
    let process = process.expect("it tells where the slots are");
    let all: Vec<_> =
        (0..20).map(|n| process.take(&format!("n{n}"), Mode::Exclusive).0.id).collect();
    for server in [one, two] {
        assert_ne!(server.command(&["DBSIZE"]), ["0"], "each has some of them");
    }
    for id in all {
        assert!(matches!(process.release(id), End::Freed));
    }
    let error = refused(&url(*port, patient));
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("if it wants TLS, add tls=true"), "{error}");
    // A line end in our greeting makes it answer; without one it waits for one, and a machine that
    // is busy may not even be connected by then.
    until("the one that speaks no TLS is named for that", || {
        let error = refused(&url(one.port(), &format!("connect_timeout=1s&{tls}")));
        error.message().contains("give its TLS port")
    });
}

#[test]
fn silence_is_no_reason_to_leave_out_tls_and_says_nothing_of_it_where_nobody_took_the_call() {
    silence_is_no_reason_to_leave_out_tls("redis+cluster", "", "give its TLS port", refused);
}

#[test]
fn nodes_that_do_not_answer_in_time_are_named_in_one_sentence_with_the_time_of_the_url() {
    let silent = [silent(), silent()];
    let at = silent.each_ref().map(|at| at.local_addr().expect("it is bound").to_string());
    let error = refused(&format!("redis+cluster://{}?connect_timeout=1s", at.join(",")));
    let text = error.message();
    assert!(text.contains("no answer within 1s; the same at "), "{text}");
}

#[test]
fn a_node_that_is_in_no_cluster_or_away_or_wants_a_password_says_so() {
    let lonely = RedisServer::start_with(&["--cluster-enabled", "yes"]);
    let error = refused(&format!("redis+cluster://127.0.0.1:{}", lonely.port()));
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.message().contains("knows of no slots"), "{error}");
    let error = refused("redis+cluster://127.0.0.1:1,127.0.0.1:2?connect_timeout=2s");
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    let text = error.message();
    assert!(text.contains("127.0.0.1:1 ") && text.contains("; the same at 127.0.0.1:2"), "{text}");
    let secret = RedisServer::start_with(&["--cluster-enabled", "yes", "--requirepass", "s3same"]);
    let at = format!("127.0.0.1:{}", secret.port());
    let error = refused(&format!("redis+cluster://{at}"));
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.message().contains("redis+cluster://user:password@host"), "{error}");
    let error = refused(&format!("redis+cluster://:s3cret@{at}"));
    assert!(error.message().contains("does not accept"), "{error}");
    assert!(!error.message().contains("s3cret"), "{error}");
}

#[test]
fn one_node_that_is_there_is_enough_and_a_replica_tells_as_well() {
    let mut nodes = Nodes::start_with(Setup { shards: 3, replicas: 1, ..Setup::default() });
    let replica = format!("redis+cluster://127.0.0.1:{}", nodes.nodes[5].port());
    let name = nodes.name_in(0, "a");
    open(&replica).expect("a replica knows the others").take(&name, Mode::Exclusive);
    nodes.nodes[1].kill();
    nodes.nodes[2].kill();
    let process = process(&nodes);
    assert!(!process.look(crate::words::name::Kind::Lock, &name).holders.is_empty());
}

#[test]
fn what_a_cluster_promises_and_what_is_worth_changing_is_told() {
    let nodes = Nodes::start_with(Setup { full_coverage: true, ..Setup::default() });
    let about = process(&nodes).engine.describe();
    assert_eq!((about.engine, about.class), ("cluster", Class::Efficiency));
    assert!(!about.can.has(Ability::Together), "a script is about one slot");
    // The lease, the 20 s after which a node counts as down, and a failover.
    assert_eq!(about.recovery.as_secs(), 52);
    assert!(about.server.contains("a cluster of 3 shards"), "{}", about.server);
    for says in ["a failover of a shard", "a partition", "is being moved", "tokens: a failover"] {
        assert!(about.breaks.iter().any(|text| text.contains(says)), "{says}: {:?}", about.breaks);
    }
    let warned: Vec<&str> = about.warnings.iter().map(|warning| warning.id).collect();
    assert!(warned.contains(&"full-coverage") && warned.contains(&"no-replica"), "{warned:?}");
}
