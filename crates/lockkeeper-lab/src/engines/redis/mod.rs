//! Redis: what is done with a server of our own.

pub(crate) mod arena;
pub(crate) mod broken;
pub(crate) mod floor;
#[cfg(feature = "redis")]
pub(crate) mod stock;

use std::path::Path;

use lockkeeper::Result;
use lockkeeper_testkit::redis::server;

use super::own::{Started, with_options};
use super::{LabEngine, Torture};
use crate::bench::{Row, Subject};
#[cfg(feature = "redis")]
use crate::demo::stock::Shelf;
use crate::torture::arena::Arena;
use crate::torture::broken::Broken;

pub(crate) static LAB: Lab = Lab;

/// See the module.
pub(crate) struct Lab;

impl LabEngine for Lab {
    fn engine(&self) -> &'static str {
        "redis"
    }

    fn auto(&self) -> Option<&'static str> {
        Some("redis")
    }

    fn start(&self, options: &str, dir: &Path) -> Result<Started, (u8, String)> {
        let (durable, options) = arena::durable(options)?;
        let server = server::RedisServer::try_start_below(dir, arena::on_disk(durable), &[])
            .map_err(|text| (69, text))?;
        Ok((with_options(&server.url(), &options), Box::new(server)))
    }

    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[("", Torture::Always), ("durable=true", Torture::Always), ("", Torture::Crowd)]
    }

    fn arena(&self, options: &str, dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Ok(Box::new(arena::RedisArena::start(options, dir)?))
    }

    #[cfg(feature = "redis")]
    fn shelf(&self) -> &'static dyn Shelf {
        &stock::Keys
    }

    fn rows(&self, subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
        floor::measure(subject, name)
    }

    fn hand_off_target(&self) -> &'static str {
        "≥ 20 times the rate"
    }

    fn helper(&self, kind: &str) -> Option<fn() -> Result<()>> {
        (kind == floor::HELPER).then_some(floor::serve)
    }

    fn broken(&self) -> &'static [&'static Broken] {
        broken::ALL
    }

    fn broken_reach(&self, url: &str) -> (bool, &'static str) {
        let else_at = "a server at redis://127.0.0.1:PORT, in its database 0";
        (broken::port(url).is_some(), else_at)
    }
}
