//! A temporary directory that is removed whatever ends this process.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use crate::bench::{Stay, Traces};

/// A directory of ours. A helper process that outlives this one removes it, so that nothing stays
/// after Ctrl-C, an error or a KILL.
pub(crate) struct Scratch {
    path: PathBuf,
    helper: Option<Traces>,
    /// Where no helper could be started: then it goes with us.
    _ours: Option<TempDir>,
}

impl Scratch {
    /// Makes one whose name begins like this.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn new(prefix: &str) -> std::io::Result<Self> {
        let dir = tempfile::Builder::new().prefix(prefix).tempdir()?;
        let path = dir.path().to_owned();
        Ok(match Traces::directory(&path) {
            Ok(helper) => {
                // From here on it is the helper's.
                let _ = dir.keep();
                Self { path, helper: Some(helper), _ours: None }
            }
            Err(_) => Self { path, helper: None, _ours: Some(dir) },
        })
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Has it removed, and answers whether it was.
    pub(crate) fn end(self) -> Result<(), Stay> {
        self.helper.map_or(Ok(()), Traces::end)
    }
}
