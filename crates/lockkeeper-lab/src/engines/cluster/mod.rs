//! Redis Cluster: what is done with nodes of our own.

pub(crate) mod arena;
mod floor;
mod scene;
pub(crate) mod started;

use std::path::Path;

use super::own::Started;
use super::{LabEngine, Torture};
use crate::bench::{Row, Subject};
use crate::demo::failover::Scene;
use crate::torture::arena::Arena;

pub(crate) static LAB: Lab = Lab;

/// See the module.
pub(crate) struct Lab;

impl LabEngine for Lab {
    fn engine(&self) -> &'static str {
        "cluster"
    }

    fn auto(&self) -> Option<&'static str> {
        Some("redis+cluster")
    }

    fn start(&self, options: &str, dir: &Path) -> Result<Started, (u8, String)> {
        let (nodes, url) = started::start(options, dir)?;
        Ok((url, Box::new(nodes)))
    }

    fn arena(&self, options: &str, dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Ok(Box::new(arena::ClusterArena::start(options, dir)?))
    }

    fn scenes(&self) -> &'static [Scene] {
        std::slice::from_ref(&scene::THIS)
    }

    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[("", Torture::Long), ("layout=plain", Torture::Long)]
    }

    fn rows(&self, subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
        floor::measure(subject, name)
    }
}
