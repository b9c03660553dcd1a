//! Act 5 of the demo: a member dies, and comes back without what it granted.

use std::time::Duration;

use super::members::{Members, url};
use crate::demo::Guarding;
use crate::demo::failover::{Ends, Falls, Scene};

pub(super) static THIS: Scene = Scene {
    engine: "redlock",
    guarding: Guarding::Lockkeeper,
    ends: Ends::Kept,
    // As long as members of ours wait that forgot one.
    ttl: Duration::from_secs(2),
    start: |dir| {
        let (members, options) = Members::start("members=3", dir)?;
        Ok(Box::new(Servers { members, options }))
    },
};

struct Servers {
    members: Members,
    options: String,
}

impl Falls for Servers {
    fn url(&self) -> String {
        url(&self.members.addresses(), &self.options)
    }

    /// They never hear of each other's grants.
    fn prepare(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn fall(&mut self) -> Result<(), String> {
        self.members.forget(0)
    }
}
