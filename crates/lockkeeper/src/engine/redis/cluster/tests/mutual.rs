//! Locks of two processes, and what they cost the nodes.

use lockkeeper_testkit::cluster::server::Nodes;
use lockkeeper_testkit::redis::server::RedisServer;

use super::support::{open, process};
use crate::engine::redis::tests::support::{granted, until};
use crate::engine::{Attempt, End, Renewal};
use crate::words::claim::Mode;

fn connections(server: &RedisServer) -> usize {
    let clients = server.command(&["CLIENT", "LIST"]).concat();
    clients.lines().filter(|line| line.contains("name=lockkeeper:")).count()
}

#[test]
fn two_processes_exclude_each_other_on_every_shard_and_in_every_layout() {
    let nodes = Nodes::start();
    for layout in ["native", "plain", "redisson"] {
        let one = open(&format!("{}?layout={layout}", nodes.url())).unwrap();
        let two = open(&format!("{}?layout={layout}", nodes.url())).unwrap();
        for name in (0..9).map(|n| format!("{layout}{n}")) {
            let (held, _) = one.take(&name, Mode::Exclusive);
            let tried = two.attempt_try(&two.exclusive(&name));
            assert!(matches!(tried, Attempt::Busy(_)), "{name}: {tried:?}");
            let waits = two.exclusive(&name);
            two.queue_claim(&waits);
            assert!(matches!(one.renew(held.id), Renewal::Extended { .. }), "{name}");
            assert!(matches!(one.release(held.id), End::Freed), "{name}");
            granted(two.attempt_until(&waits));
        }
    }
    let keys = |at: usize| nodes.command(at, &["DBSIZE"]).concat();
    assert!((0..3).all(|at| keys(at) != "0"), "each has its share");
}

#[test]
fn a_process_has_two_connections_to_a_node_that_it_uses_and_leaves_none() {
    let nodes = Nodes::start();
    let name = nodes.name_in(1, "a");
    let process = process(&nodes);
    let all = || nodes.nodes.iter().map(connections).collect::<Vec<_>>();
    until("who was asked for the slots is left", || all() == [0, 0, 0]);
    let (held, _) = process.take(&name, Mode::Exclusive);
    // A node whose first connection takes its time is asked for the slots once more beside it.
    until("one is left", || all() == [0, 1, 0]);
    assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
    until("renewals have theirs", || all() == [0, 2, 0]);
    assert!(matches!(process.release(held.id), End::Freed));
    drop(process);
    until("none is left", || all() == [0, 0, 0]);
}
