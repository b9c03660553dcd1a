//! Kernel locks in a directory.

pub(crate) mod arena;
pub(crate) mod broken;
pub(crate) mod floor;
pub(crate) mod stock;

use std::path::{Path, PathBuf};

use lockkeeper::url::EngineUrl;
use lockkeeper::{Kind, Name, Result};

use super::own::Started;
use super::{LabEngine, Torture};
use crate::bench::{Row, Subject};
use crate::demo::stock::Shelf;
use crate::torture::arena::Arena;
use crate::torture::broken::Broken;

pub(crate) static LAB: Lab = Lab;

/// See the module.
pub(crate) struct Lab;

impl LabEngine for Lab {
    fn engine(&self) -> &'static str {
        "file"
    }

    fn auto(&self) -> Option<&'static str> {
        Some("file")
    }

    fn start(&self, options: &str, dir: &Path) -> Result<Started, (u8, String)> {
        Ok((arena::directory(dir, options)?, Box::new(())))
    }

    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[("", Torture::Always)]
    }

    fn arena(&self, options: &str, dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Ok(Box::new(arena::FileArena::new(dir, options)?))
    }

    fn shelf(&self) -> &'static dyn Shelf {
        &stock::File
    }

    #[cfg(target_os = "linux")]
    fn forget(&self, url: &str, name: &str) -> Result<()> {
        let dir = lockkeeper::direct::directory(&EngineUrl::parse(url)?.path)?;
        lockkeeper::direct::Files::open(&dir, false)?.remove_own(Kind::Lock, &Name::new(name)?)?;
        Ok(())
    }

    fn directory(&self, url: &str, own: &str) -> Result<Option<(String, PathBuf)>> {
        let directory = lockkeeper::direct::directory(&EngineUrl::parse(url)?.path)?.join(own);
        let query = url.split_once('?').map_or(String::new(), |(_, query)| format!("?{query}"));
        Ok(Some((lockkeeper::config::file_url(&directory) + &query, directory)))
    }

    fn rows(&self, subject: &Subject, name: &str) -> Result<Vec<Row>, String> {
        floor::measure(subject, name)
    }

    fn hand_off_target(&self) -> &'static str {
        "≥ 2 times the rate"
    }

    fn broken(&self) -> &'static [&'static Broken] {
        broken::ALL
    }

    fn broken_reach(&self, url: &str) -> (bool, &'static str) {
        (url.starts_with("file://"), "file:///path/of/a/directory")
    }
}
