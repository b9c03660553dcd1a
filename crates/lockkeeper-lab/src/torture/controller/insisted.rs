//! A second signal: whoever sends it does not want to wait.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::signal_code;
use crate::interrupt;
use crate::torture::storm::Storm;

/// After a second signal, how long clearing away may take.
const CLEARED_WITHIN: Duration = Duration::from_secs(2);

/// A thread that ends the process when a second signal came and we are busy with something that
/// takes long: a server that starts, a judgement. What we started ends with us.
pub(super) struct Insisted {
    dir: Arc<OnceLock<PathBuf>>,
    _watch: Storm,
}

impl Insisted {
    pub(super) fn watch() -> Result<Self, String> {
        let (dir, mut since) = (Arc::<OnceLock<PathBuf>>::default(), None);
        let ours = dir.clone();
        let look = move || {
            if interrupt::insists()
                && since.get_or_insert_with(Instant::now).elapsed() > CLEARED_WITHIN
            {
                // Histories that nobody will judge; a directory that stays is in the place for
                // temporary ones.
                let _ = ours.get().map(std::fs::remove_dir_all);
                std::process::exit(i32::from(signal_code().unwrap_or(130)));
            }
        };
        Ok(Self { dir, _watch: Storm::begin(Duration::from_millis(50), look)? })
    }

    /// What is to be removed then.
    pub(super) fn clears(&self, dir: &Path) {
        // It is set once.
        let _ = self.dir.set(dir.to_owned());
    }
}
