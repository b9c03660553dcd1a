//! Processes of a deployment of a test's own.

use std::time::Duration;

use lockkeeper_testkit::sentinel::server::Deployment;

use crate::engine::redis::tests::support::{Process, engine_of};
use crate::words::error::Result;

/// A process with this URL.
pub(super) fn open(url: &str) -> Result<Process> {
    Process::around(engine_of(url, Duration::from_secs(30))?.into())
}

/// A process that uses the deployment with the defaults.
pub(super) fn process(deployment: &Deployment) -> Process {
    open(&deployment.url()).expect("the master can be found")
}
