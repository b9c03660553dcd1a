//! Processes of a cluster of a test's own.

use std::time::Duration;

use lockkeeper_testkit::cluster::server::Nodes;

use crate::engine::redis::tests::support::{PATIENCE, Process, engine_of, patient_url, until};
use crate::engine::{Attempt, Renewal};
use crate::words::claim::Claim;
use crate::words::error::Result;

/// A process with this URL, which is patient where the URL does not say it.
pub(super) fn open(url: &str) -> Result<Process> {
    Process::around(engine_of(&patient_url(url), Duration::from_secs(30))?.into())
}

/// A process that uses the cluster, and waits for its answers however late they are.
pub(super) fn process(nodes: &Nodes) -> Process {
    open(&nodes.url()).expect("its nodes can be asked")
}

/// Takes a lock that is free, for longer than the test: asked for until it is granted, also by a
/// process that waits for nothing for long.
pub(super) fn taken(process: &Process, name: &str) -> Claim {
    let claim = Claim { ttl: PATIENCE * 5, ..process.exclusive(name) };
    until("it is granted", || matches!(process.attempt(&claim), Attempt::Granted(_)));
    claim
}

/// Renews a hold until that is answered.
pub(super) fn renewed(process: &Process, held: &Claim) {
    until("it is extended", || match process.renew(held.id) {
        Renewal::Extended { .. } => true,
        Renewal::Unknown(_) => false,
        gone @ Renewal::Gone(_) => panic!("it is lost: {gone:?}"),
    });
}
