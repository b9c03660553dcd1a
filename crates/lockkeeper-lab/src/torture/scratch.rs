//! A directory of a run's own.

use std::path::{Path, PathBuf};

/// Gone with the value unless it is kept.
pub(super) struct Scratch(Option<PathBuf>);

impl Scratch {
    pub(super) fn new() -> Result<Self, String> {
        let base = std::env::temp_dir();
        for number in 0..1000u32 {
            let dir = base.join(format!("lockkeeper-torture-{}-{number}", std::process::id()));
            match std::fs::create_dir(&dir) {
                Ok(()) => return Ok(Self(Some(dir))),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(format!("{}: {e}", dir.display())),
            }
        }
        Err(format!("{}: too many directories of earlier runs are left there", base.display()))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.as_deref().unwrap_or(Path::new("."))
    }

    /// Leaves it where it is, for somebody to look at.
    pub(super) fn keep(&mut self) -> PathBuf {
        self.0.take().unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Some(dir) = self.0.take() {
            // What cannot be removed is named by the next run's error, not by this one's end.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}
