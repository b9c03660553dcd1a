//! A disk of the run's own that gets full: a small file system in memory, which only this process
//! and those that it starts see, and which ends with them.

use std::fmt;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::statfs::statfs;

/// See the module.
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// Mounts one. The calling thread, and whatever it starts from now on, gets a view of the file
    /// systems of its own.
    ///
    /// # Errors
    /// Why that is not allowed, or not possible.
    pub(crate) fn new(at: PathBuf) -> Result<Self, String> {
        std::fs::create_dir_all(&at).map_err(|e| cannot("make a directory", e))?;
        unshare(CloneFlags::CLONE_NEWNS)
            .map_err(|e| cannot("have a view of the file systems of its own (root may)", e))?;
        let nothing = None::<&str>;
        mount(nothing, "/", nothing, MsFlags::MS_REC | MsFlags::MS_PRIVATE, nothing)
            .map_err(|e| cannot("keep its mounts to itself", e))?;
        mount(Some("lockkeeper"), &at, Some("tmpfs"), MsFlags::empty(), Some("mode=700"))
            .map_err(|e| cannot("mount a tmpfs", e))?;
        Ok(Self(at))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// From now on there is room for nothing more than what is there.
    pub(crate) fn fill(&self) -> Result<(), String> {
        let stat = statfs(&self.0).map_err(|e| cannot("look at its disk", e))?;
        let used = stat.blocks().saturating_sub(stat.blocks_free()).max(1);
        self.resize(&format!(
            "size={}",
            used.saturating_mul(u64::try_from(stat.block_size()).unwrap_or(4096))
        ))
    }

    /// There is room again.
    pub(crate) fn make_room(&self) -> Result<(), String> {
        self.resize("size=50%")
    }

    fn resize(&self, size: &str) -> Result<(), String> {
        let nothing = None::<&str>;
        mount(nothing, &self.0, nothing, MsFlags::MS_REMOUNT, Some(size))
            .map_err(|e| cannot("change the size of its disk", e))
    }
}

impl Drop for Disk {
    /// The directory under it goes as well: whoever removes the directory around it could not,
    /// while something is mounted there (C18). What the kernel refuses ends with this process.
    fn drop(&mut self) {
        let _ = umount2(&self.0, MntFlags::MNT_DETACH);
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn cannot(what: &str, why: impl fmt::Display) -> String {
    format!("this process cannot {what}: {why}")
}
