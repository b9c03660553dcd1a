//! ZooKeeper: what is done with servers of our own, single or as an ensemble.

pub(crate) mod arena;
pub(crate) mod broken;
pub(crate) mod floor;
#[cfg(feature = "zookeeper")]
pub(crate) mod stock;

use std::path::Path;

use lockkeeper::Result;
use lockkeeper_testkit::zookeeper::server::{Ensemble, Server};

use super::own::{Started, with_options};
use super::{LabEngine, Torture};
use crate::bench::{Row, Subject};
#[cfg(feature = "zookeeper")]
use crate::demo::stock::Shelf;
use crate::torture::arena::Arena;
use crate::torture::broken::Broken;

pub(crate) static LAB: Lab = Lab;

/// See the module.
pub(crate) struct Lab;

impl LabEngine for Lab {
    fn engine(&self) -> &'static str {
        "zookeeper"
    }

    fn auto(&self) -> Option<&'static str> {
        Some("zk")
    }

    fn start(&self, options: &str, dir: &Path) -> Result<Started, (u8, String)> {
        let (nodes, mut settings, options) = arena::wanted(options)?;
        settings.below = Some(dir.to_owned());
        let start = || match nodes {
            1 => Ok(Ensemble { servers: vec![Server::start(settings.clone())?] }),
            _ => Ensemble::start(nodes, &settings),
        };
        // A port can be taken between the look and the start: then it is tried once more.
        let ensemble = start().or_else(|_| start()).map_err(|e| (69, e.to_string()))?;
        let url = format!("zk://{}", ensemble.addresses());
        Ok((with_options(&url, &options), Box::new(ensemble)))
    }

    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[("", Torture::Always), ("nodes=3", Torture::Long), ("", Torture::Crowd)]
    }

    fn arena(&self, options: &str, _: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Ok(Box::new(arena::ZooKeeperArena::start(options)?))
    }

    #[cfg(feature = "zookeeper")]
    fn shelf(&self) -> &'static dyn Shelf {
        &stock::Nodes
    }

    fn rows(&self, subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
        floor::measure(subject, name)
    }

    fn hand_off_target(&self) -> &'static str {
        "≥ 20 times the rate"
    }

    fn broken(&self) -> &'static [&'static Broken] {
        broken::ALL
    }

    fn broken_reach(&self, url: &str) -> (bool, &'static str) {
        (broken::port(url).is_some(), "a server at zk://127.0.0.1:PORT")
    }
}
