//! Processes of a cluster of a test's own.

use std::time::Duration;

use lockkeeper_testkit::cluster::server::Nodes;

use crate::engine::redis::tests::support::{Process, engine_of};
use crate::words::error::Result;

/// A process with this URL.
pub(super) fn open(url: &str) -> Result<Process> {
    Process::around(engine_of(url, Duration::from_secs(30))?.into())
}

/// A process that uses the cluster with the defaults.
pub(super) fn process(nodes: &Nodes) -> Process {
    open(&nodes.url()).expect("its nodes can be asked")
}
