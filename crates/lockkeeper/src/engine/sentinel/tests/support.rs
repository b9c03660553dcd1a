//! Processes of a deployment of a test's own.

use lockkeeper_lab::engines::sentinel::server::Deployment;

use crate::engine::Common;
use crate::engine::redis::tests::support::Process;
use crate::error::Result;
use crate::url::EngineUrl;

/// A process with this URL.
pub(super) fn open(url: &str) -> Result<Process> {
    let mut url = EngineUrl::parse(url)?;
    let registration = super::super::registration();
    registration.check(&url)?;
    let ttl = url.take_duration("ttl")?.unwrap_or(std::time::Duration::from_secs(30));
    let engine = (registration.open)(&mut url, &Common::new(ttl, 100))?;
    url.finish()?;
    Process::around(engine.into())
}

/// A process that uses the deployment with the defaults.
pub(super) fn process(deployment: &Deployment) -> Process {
    open(&deployment.url()).expect("the master can be found")
}
