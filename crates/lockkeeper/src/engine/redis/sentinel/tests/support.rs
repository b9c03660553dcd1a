//! Processes of a deployment of a test's own.

use std::time::Duration;

use lockkeeper_testkit::sentinel::server::Deployment;

use super::super::options::SentinelOptions;
use super::super::wire::Said;
use crate::engine::Common;
use crate::engine::redis::options::Address;
use crate::engine::redis::tests::support::{Process, engine_of, patient_url};
use crate::open::url::EngineUrl;
use crate::words::error::Result;

/// A process with this URL, which is patient where the URL does not say it.
pub(super) fn open(url: &str) -> Result<Process> {
    Process::around(engine_of(&patient_url(url), Duration::from_secs(30))?.into())
}

/// A process that uses the deployment, and waits for its answers however late they are.
pub(super) fn process(deployment: &Deployment) -> Process {
    open(&deployment.url()).expect("the master can be found")
}

/// The options of a URL that names these Sentinels.
pub(in super::super) fn options(sentinels: &str) -> SentinelOptions {
    options_of(&format!("{sentinels}/m"))
}

/// The same with a service and options of the URL.
pub(super) fn options_of(rest: &str) -> SentinelOptions {
    let mut url = EngineUrl::parse(&format!("redis+sentinel://{rest}")).unwrap();
    SentinelOptions::take(&mut url, &Common::new(Duration::from_secs(30), 100)).unwrap()
}

/// Where a server is.
pub(in super::super) fn at(port: u16) -> Address {
    Address::Tcp("h".into(), port)
}

/// A Sentinel names the server at this port.
pub(in super::super) fn said(port: u16, epoch: u64) -> Said {
    let down_after = Duration::from_secs(1);
    Said { at: at(port), epoch, down_after, replicas: 1, living: 1, others: 2 }
}
