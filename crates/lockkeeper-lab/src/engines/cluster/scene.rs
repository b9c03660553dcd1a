//! Act 5 of the demo: a master dies before its replica has what it granted.

use std::path::Path;
use std::time::Duration;

use lockkeeper_testkit::cluster::server::{Nodes, QUICK, Setup};

use crate::demo::Guarding;
use crate::demo::failover::{Ends, Falls, Scene};

pub(super) static THIS: Scene = Scene {
    engine: "cluster",
    guarding: Guarding::Lockkeeper,
    ends: Ends::TwoSold,
    // Longer than a failover takes, by far.
    ttl: Duration::from_secs(30),
    start,
};

struct Servers(Nodes);

fn start(dir: &Path) -> Result<Box<dyn Falls>, (u8, String)> {
    let setup = Setup { replicas: 1, node_timeout: QUICK, ..Setup::default() };
    let nodes = Nodes::try_start_below(dir, setup).map_err(|text| (69, text))?;
    Ok(Box::new(Servers(nodes)))
}

impl Falls for Servers {
    fn url(&self) -> String {
        self.0.url()
    }

    fn prepare(&mut self) -> Result<(), String> {
        self.0.try_stop_replication(&self.0.moves().masters()?)
    }

    fn fall(&mut self) -> Result<(), String> {
        let masters = self.0.moves().masters()?.into_iter();
        // It has the one lock that there is.
        let has_keys = |at: &usize| self.0.try_command(*at, &["DBSIZE"]).is_ok_and(|n| n != ["0"]);
        let old = masters.into_iter().find(has_keys).ok_or("no node has the lock")?;
        self.0.nodes.get_mut(old).ok_or("there is no such node")?.try_kill()?;
        self.0.try_let_replicate()?;
        self.0.try_until_replaced(old)
    }
}
