//! What is tortured: how clients reach it, what can be done to it, and what it promises.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::check::Class;

/// A fault that hits the arena itself, not a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) name: &'static str,
    /// What its documented consequences are: these violations are expected while it is in the schedule, and no others.
    pub(super) excuses: &'static [Class],
}

/// See the module.
pub(super) trait Arena {
    /// How client `number` reaches it.
    fn url(&self, number: u32) -> String;
    /// The faults it has, besides those that hit clients.
    fn faults(&self) -> &'static [Fault];
    /// Begins a fault; it lasts until [`Arena::mend`].
    fn strike(&mut self, fault: &'static str) -> Result<(), String>;
    /// Ends a fault.
    fn mend(&mut self, fault: &'static str) -> Result<(), String>;
    /// What is expected whatever the schedule: an engine with leases lets late writes reach a resource without tokens.
    fn expected(&self) -> BTreeSet<Class>;
    /// The files and processes that are left at the end; removed by dropping.
    fn name(&self) -> &'static str;
    /// Whether a stopped client can lose its lock.
    fn has_leases(&self) -> bool;
    /// T, the recovery that is promised after a death.
    fn recovery(&self) -> Duration;
}

/// Writes that come late, where nobody checks tokens: what leases cannot prevent and tokens can.
const LATE: [Class; 3] = [Class::LateEffect, Class::StaleWriteUnfenced, Class::LostUpdate];

/// Opens the arena that the URL names; `dir` is for its files.
pub(super) fn open(url: &str, dir: &Path) -> Result<Box<dyn Arena>, String> {
    match url {
        "file:auto" => {
            let locks = dir.join("locks");
            std::fs::create_dir(&locks).map_err(|e| format!("{}: {e}", locks.display()))?;
            Ok(Box::new(FileArena { url: lockkeeper::config::file_url(&locks) }))
        }
        url if url.ends_with(":auto") => Err(format!("{url}: torture starts its own server for file:auto")),
        url => given(url),
    }
}

struct FileArena {
    url: String,
}

impl Arena for FileArena {
    fn url(&self, _: u32) -> String {
        self.url.clone()
    }
    fn faults(&self) -> &'static [Fault] {
        &[]
    }
    fn strike(&mut self, fault: &'static str) -> Result<(), String> {
        Err(format!("the file engine has no fault {fault}"))
    }
    fn mend(&mut self, _: &'static str) -> Result<(), String> {
        Ok(())
    }
    fn expected(&self) -> BTreeSet<Class> {
        BTreeSet::new()
    }
    fn name(&self) -> &'static str {
        "file"
    }
    fn has_leases(&self) -> bool {
        false
    }
    fn recovery(&self) -> Duration {
        Duration::ZERO
    }
}

/// A server of somebody else's: only clients are hit.
struct Given {
    url: String,
    engine: &'static str,
    leases: bool,
    recovery: Duration,
}

fn given(url: &str) -> Result<Box<dyn Arena>, String> {
    let locks = lockkeeper::blocking::Locks::open(url).map_err(|e| e.to_string())?;
    let about = locks.describe();
    let _ = locks.close();
    if about.engine == "memory" {
        return Err("memory: is seen by one process only, and torture needs several".to_owned());
    }
    Ok(Box::new(Given { url: url.to_owned(), engine: about.engine, leases: about.leases, recovery: about.recovery }))
}

impl Arena for Given {
    fn url(&self, _: u32) -> String {
        self.url.clone()
    }
    fn faults(&self) -> &'static [Fault] {
        &[]
    }
    fn strike(&mut self, fault: &'static str) -> Result<(), String> {
        Err(format!("a given server is not hit with {fault}"))
    }
    fn mend(&mut self, _: &'static str) -> Result<(), String> {
        Ok(())
    }
    fn expected(&self) -> BTreeSet<Class> {
        if self.leases { LATE.into() } else { BTreeSet::new() }
    }
    fn name(&self) -> &'static str {
        self.engine
    }
    fn has_leases(&self) -> bool {
        self.leases
    }
    fn recovery(&self) -> Duration {
        self.recovery
    }
}

/// A directory of this run's own, gone with the value unless it is kept.
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
