//! Redis with Sentinels: what is done with a deployment of our own.

pub(crate) mod arena;
mod broken;
mod floor;
mod scenes;
pub(crate) mod started;

use std::path::Path;

use super::own::Started;
use super::{LabEngine, Torture};
use crate::bench::{Row, Subject};
use crate::demo::failover::Scene;
use crate::torture::arena::Arena;
use crate::torture::broken::Broken;

pub(crate) static LAB: Lab = Lab;

/// See the module.
pub(crate) struct Lab;

impl LabEngine for Lab {
    fn engine(&self) -> &'static str {
        "sentinel"
    }

    fn auto(&self) -> Option<&'static str> {
        Some("redis+sentinel")
    }

    fn start(&self, options: &str, dir: &Path) -> Result<Started, (u8, String)> {
        let (deployment, url) = started::start(options, dir)?;
        Ok((url, Box::new(deployment)))
    }

    fn arena(&self, options: &str, dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Ok(Box::new(arena::SentinelArena::start(options, dir)?))
    }

    fn scenes(&self) -> &'static [Scene] {
        &scenes::ALL
    }

    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[("", Torture::Long), ("wait_replicas=1", Torture::Long), ("layout=plain", Torture::Long)]
    }

    fn rows(&self, subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
        floor::measure(subject, name)
    }

    fn broken(&self) -> &'static [&'static Broken] {
        broken::ALL
    }
}
