//! Redlock: members of our own, and what is done with them.

pub(crate) mod arena;
mod broken;
mod floor;
pub(crate) mod members;
mod scene;

use std::path::Path;

use lockkeeper::Result;

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
        "redlock"
    }

    fn auto(&self) -> Option<&'static str> {
        Some("redlock")
    }

    fn start(&self, options: &str, dir: &Path) -> Result<Started, (u8, String)> {
        let (members, options) = members::Members::start(options, dir)?;
        Ok((members::url(&members.addresses(), &options), Box::new(members)))
    }

    fn arena(&self, options: &str, dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Ok(Box::new(arena::RedlockArena::start(options, dir)?))
    }

    fn scenes(&self) -> &'static [Scene] {
        std::slice::from_ref(&scene::THIS)
    }

    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[("", Torture::Long), ("layout=plain", Torture::Long), ("layout=redisson", Torture::Long)]
    }

    fn rows(&self, subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
        floor::measure(subject, name)
    }

    fn broken(&self) -> &'static [&'static Broken] {
        broken::ALL
    }
}
