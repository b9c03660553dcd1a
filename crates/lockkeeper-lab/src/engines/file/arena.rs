//! Kernel locks in a directory of the run's own. There is no server to hit.

use std::path::Path;
use std::time::Duration;

use crate::engines::own::with_options;
use crate::torture::arena::{About, Arena};

pub(crate) struct FileArena {
    url: String,
    about: About,
}

impl FileArena {
    pub(crate) fn new(dir: &Path, options: &str) -> Result<Self, (u8, String)> {
        let url = directory(dir, options)?;
        Ok(Self { about: About::of(&url)?, url })
    }
}

/// The URL of a fresh directory for locks inside of `dir`.
pub(super) fn directory(dir: &Path, options: &str) -> Result<String, (u8, String)> {
    let locks = dir.join("locks");
    std::fs::create_dir(&locks).map_err(|e| (69, format!("{}: {e}", locks.display())))?;
    Ok(with_options(&lockkeeper::config::file_url(&locks), options))
}

impl Arena for FileArena {
    fn url(&mut self, _: u32) -> Result<String, String> {
        Ok(self.url.clone())
    }
    fn about(&self) -> About {
        self.about
    }
    fn linger(&self) -> Duration {
        // The kernel takes from the dead at once whatever they had.
        Duration::from_secs(1)
    }
}
