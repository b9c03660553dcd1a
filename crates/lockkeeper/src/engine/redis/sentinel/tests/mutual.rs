//! Locks of two processes, and what they cost their servers.

use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::Deployment;

use super::support::{open, process};
use crate::engine::redis::tests::support::{granted, until};
use crate::engine::{Attempt, End, Renewal};
use crate::words::claim::Mode;

fn connections(server: &RedisServer) -> usize {
    let clients = server.command(&["CLIENT", "LIST"]).concat();
    clients.lines().filter(|line| line.contains("name=lockkeeper:")).count()
}

#[test]
fn two_processes_exclude_each_other_in_every_layout() {
    let deployment = Deployment::start();
    for (at, layout) in ["native", "plain", "redisson"].into_iter().enumerate() {
        let name = format!("a{at}");
        let one = open(&format!("{}?layout={layout}", deployment.url())).unwrap();
        let two = open(&format!("{}?layout={layout}", deployment.url())).unwrap();
        let (held, _) = one.take(&name, Mode::Exclusive);
        assert!(matches!(two.attempt_try(&two.exclusive(&name)), Attempt::Busy(_)), "{layout}");
        let waits = two.exclusive(&name);
        two.queue_claim(&waits);
        assert!(matches!(one.release(held.id), End::Freed));
        granted(two.attempt_until(&waits));
        // The keys are those of one server, whoever finds it.
        let keys = deployment.servers[0].command(&["KEYS", &format!("*{name}*")]);
        assert!(!keys.is_empty(), "{layout}");
    }
}

#[test]
fn a_process_has_two_connections_to_its_master_and_one_to_each_sentinel_and_leaves_none() {
    let deployment = Deployment::start();
    for (options, at_first) in [("", 1), ("?wait_replicas=1", 2)] {
        let process = if options.is_empty() {
            process(&deployment)
        } else {
            open(&format!("{}{options}", deployment.url())).unwrap()
        };
        until("they are made", || connections(&deployment.servers[0]) == at_first);
        let (held, _) = process.take("a", Mode::Exclusive);
        assert!(matches!(process.renew(held.id), Renewal::Extended { .. }));
        until("renewals have theirs", || connections(&deployment.servers[0]) == 2);
        until("each Sentinel has one", || {
            deployment.sentinels.iter().all(|sentinel| connections(sentinel) == 1)
        });
        assert_eq!(connections(&deployment.servers[1]), 0, "nothing is asked of a replica");
        assert!(matches!(process.release(held.id), End::Freed));
        drop(process);
        let servers = || deployment.servers.iter().chain(&deployment.sentinels);
        until("none is left", || servers().all(|server| connections(server) == 0));
    }
}
