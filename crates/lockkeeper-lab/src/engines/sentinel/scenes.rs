//! Act 5 of the demo: the master dies before a replica has what it granted.

use std::path::Path;
use std::time::Duration;

use lockkeeper_testkit::sentinel::server::{Deployment, QUICK, Setup};

use crate::demo::Guarding;
use crate::demo::failover::{Ends, Falls, Scene};

/// Longer than a failover takes, by far.
const TTL: Duration = Duration::from_secs(30);

pub(super) static ALL: [Scene; 2] = [
    Scene {
        engine: "sentinel",
        guarding: Guarding::Lockkeeper,
        ends: Ends::TwoSold,
        ttl: TTL,
        start: |dir| start(dir, ""),
    },
    Scene {
        engine: "sentinel",
        guarding: Guarding::Replicas,
        ends: Ends::GrantedLater,
        ttl: TTL,
        start: |dir| start(dir, "?wait_replicas=1"),
    },
];

struct Servers {
    deployment: Deployment,
    options: &'static str,
}

/// Two replicas, so that one is left when the other is promoted.
fn start(dir: &Path, options: &'static str) -> Result<Box<dyn Falls>, (u8, String)> {
    let setup = Setup { replicas: 2, down_after: QUICK, ..Setup::default() };
    let deployment = Deployment::try_start_below(dir, setup).map_err(|text| (69, text))?;
    Ok(Box::new(Servers { deployment, options }))
}

impl Falls for Servers {
    fn url(&self) -> String {
        format!("{}{}", self.deployment.url(), self.options)
    }

    fn prepare(&mut self) -> Result<(), String> {
        self.deployment.try_stop_replication()
    }

    fn fall(&mut self) -> Result<(), String> {
        let master = self.deployment.try_master()?;
        self.deployment.servers.get_mut(master).ok_or("there is no master")?.try_kill()?;
        // The other replica follows the one that is promoted.
        self.deployment.try_let_replicate()?;
        self.deployment.try_until_failed_over(master).map(|_| ())
    }
}
