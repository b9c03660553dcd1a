//! What is refused, and why: one line with the URL to use.

use lockkeeper_testkit::cluster::server::{Nodes, Setup};
use lockkeeper_testkit::redis::server::RedisServer;

use super::support::{open, process};
use crate::engine::redis::tests::support::{Process, options};
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
    // The lease, the second after which a node counts as down, and a failover.
    assert_eq!(about.recovery.as_secs(), 33);
    assert!(about.server.contains("a cluster of 3 shards"), "{}", about.server);
    for says in ["a failover of a shard", "a partition", "is being moved", "tokens: a failover"] {
        assert!(about.breaks.iter().any(|text| text.contains(says)), "{says}: {:?}", about.breaks);
    }
    let warned: Vec<&str> = about.warnings.iter().map(|warning| warning.id).collect();
    assert!(warned.contains(&"full-coverage") && warned.contains(&"no-replica"), "{warned:?}");
}
