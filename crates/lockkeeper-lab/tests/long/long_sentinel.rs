//! The rows of Redis with Sentinels: a master, a replica and three Sentinels, in every layout. What
//! is a restart elsewhere is a failover here.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use lockkeeper_lab::conformance::Subject;
use lockkeeper_testkit::redis::server::RedisServer;
use lockkeeper_testkit::sentinel::server::{Deployment, Setup};

use crate::subjects::{LEASES, PATIENT};

/// The program that takes locks in another process.
const HELPER: &str = env!("CARGO_BIN_EXE_lab-helper");

fn sentinel(row: &str, options: &str) -> Subject {
    // Nothing that a test stops for a while is to be failed over meanwhile, nor what is slow.
    let setup = Setup {
        // A second one, so that a failover leaves one that acknowledges.
        replicas: if options.contains("wait_replicas") { 2 } else { 1 },
        down_after: Duration::from_secs(20),
        ..Setup::default()
    };
    let deployment = Deployment::start_with(setup);
    let [url, brief] =
        LEASES.map(|lease| format!("{}?{lease}&{PATIENT}{options}", deployment.url()));
    let deployment = Arc::new(Mutex::new(deployment));
    let with = |deed: fn(&mut Deployment)| {
        let deployment = deployment.clone();
        move || {
            let deployment = deployment.clone();
            async move { deed(&mut deployment.lock().expect("no test panics while it has it")) }
        }
    };
    Subject::url(row, url)
        .briefly(brief)
        .helper(HELPER)
        .effort(20)
        .wiped_by(with(|deployment| {
            let master = deployment.master();
            deployment.command(master, &["FLUSHALL"]);
        }))
        .restarted_by(with(Deployment::fail_over))
        .cut_by(
            with(|deployment| deployment.servers.iter().for_each(RedisServer::stop)),
            with(|deployment| deployment.servers.iter().for_each(RedisServer::go_on)),
        )
        .keeping(deployment)
}

lockkeeper_lab::conformance! {
    sentinel_native => sentinel("sentinel", ""),
    sentinel_acknowledged => sentinel(
        "sentinel, wait_replicas=1",
        "&wait_replicas=1&wait_timeout=1s",
    ),
    sentinel_plain => sentinel("sentinel, layout=plain", "&layout=plain").foreign(),
    sentinel_redisson => sentinel("sentinel, layout=redisson", "&layout=redisson").foreign(),
}
