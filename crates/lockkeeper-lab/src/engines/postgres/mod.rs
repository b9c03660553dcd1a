//! PostgreSQL: what is done with a server of our own.

pub(crate) mod arena;
#[cfg(feature = "postgres")]
pub(crate) mod broken;
#[cfg(feature = "postgres")]
mod client;
#[cfg(feature = "postgres")]
mod floor;
mod pair;
#[cfg(feature = "postgres")]
mod stock;
mod told;

use std::path::Path;

use lockkeeper::Result;
use lockkeeper_testkit::postgres::server;

use super::own::{Started, with_options};
use super::{LabEngine, Torture};
#[cfg(feature = "postgres")]
use crate::bench::{Row, Subject};
#[cfg(feature = "postgres")]
use crate::demo::stock::Shelf;
use crate::torture::arena::{Arena, has, take};
#[cfg(feature = "postgres")]
use crate::torture::broken::Broken;

pub(crate) static LAB: Lab = Lab;

/// See the module.
pub(crate) struct Lab;

/// What a run's own server is used with unless its URL says otherwise: advisory locks have numbers
/// for names, and are granted only once the server has run for a session.
fn usual(options: &str) -> String {
    let mut options = options.to_owned();
    if take(&options, "layout").0 == Some("session") {
        for (option, value) in [("names", "hash"), ("session_timeout", "2s")] {
            if !has(&options, option) {
                options += &format!("&{option}={value}");
            }
        }
    }
    options
}

impl LabEngine for Lab {
    fn engine(&self) -> &'static str {
        "postgres"
    }

    fn auto(&self) -> Option<&'static str> {
        Some("postgres")
    }

    fn start(&self, options: &str, dir: &Path) -> Result<Started, (u8, String)> {
        let (durable, options) = take(options, "durable");
        let fsync = match durable {
            None | Some("true") => "fsync=on",
            Some("false") => "fsync=off",
            Some(other) => {
                return Err((64, format!("postgres:auto: durable={other}: give true or false")));
            }
        };
        // Two connections each of the 64 processes that the demo has at most.
        let settings = &["max_connections=200", fsync];
        let server =
            server::PostgresServer::try_start_below(dir, settings).map_err(|text| (69, text))?;
        Ok((with_options(&server.url(), &usual(&options)), Box::new(server)))
    }

    #[cfg(feature = "postgres")]
    fn shelf(&self) -> &'static dyn Shelf {
        &stock::Rows
    }

    fn arena(&self, options: &str, dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Ok(Box::new(arena::PostgresArena::start(options, dir)?))
    }

    #[cfg(feature = "postgres")]
    fn broken(&self) -> &'static [&'static Broken] {
        broken::ALL
    }

    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[
            ("", Torture::Always),
            ("replicas=1", Torture::Long),
            ("layout=session", Torture::Long),
            ("layout=shedlock", Torture::Long),
        ]
    }

    #[cfg(feature = "postgres")]
    fn rows(&self, subject: &Subject, name: &str) -> std::result::Result<Vec<Row>, String> {
        floor::measure(subject, name)
    }

    fn hand_off_target(&self) -> &'static str {
        "≥ 20 times the rate"
    }

    #[cfg(feature = "postgres")]
    fn helper(&self, kind: &str) -> Option<fn() -> Result<()>> {
        (kind == floor::HELPER).then_some(floor::serve)
    }
}
