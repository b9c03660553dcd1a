//! One folder an engine, with the same rooms: `arena` (what torture does to it), `stock` (where the
//! demo's record is), `floor` (what the bench measures beside it), `broken` (locks on it that are
//! known to be wrong). The servers themselves are in the package `lockkeeper-testkit`.
//!
//! `ENGINES` is the one table: a line an engine. An engine that is not in it, such as one that a
//! program of its own has registered, is measured, tortured and shown as `Other` is.

pub mod cluster;
pub(crate) mod file;
pub(crate) mod own;
pub mod postgres;
pub mod redis;
pub(crate) mod redlock;
pub mod sentinel;
pub mod zookeeper;

pub use redlock::members::until_they_count;

use std::path::{Path, PathBuf};

use lockkeeper::Result;
use lockkeeper::engine::Registration;

use crate::bench::{self, Row};
use crate::demo::failover::Scene;
use crate::demo::stock::{InAFile, Shelf};
use crate::torture::arena::Arena;
use crate::torture::broken::Broken;

/// The engines that the laboratory has servers, floors and broken clients of.
static ENGINES: [&dyn LabEngine; 7] = [
    &redis::LAB,
    &redlock::LAB,
    &sentinel::LAB,
    &cluster::LAB,
    &zookeeper::LAB,
    &postgres::LAB,
    &file::LAB,
];

/// What is tortured unless something is named.
pub(crate) const USUAL: &str = "file:auto";

/// Why nothing is done to a server that a URL names.
pub(crate) const NOT_OURS: &str = "faults of servers and links: the server is not ours (redis:auto \
                                   and the like start their own)";

/// What is measured unless something is named: a directory of ours, and what only we see.
pub(crate) fn usual_subjects(dir: &Path) -> Vec<String> {
    vec![lockkeeper::config::file_url(dir), "memory:".to_owned()]
}

/// How a campaign tortures an engine.
#[derive(Clone, Copy)]
pub(crate) enum Torture {
    /// In brief checks and in long campaigns.
    Always,
    /// In long campaigns only.
    Long,
    /// With a crowd that waits for one name: what each that asks costs the server.
    Crowd,
}

/// What the laboratory knows of an engine, beyond what its [`Registration`] and its description
/// say. What is not said here is as for an engine from outside.
pub(crate) trait LabEngine: Sync {
    /// As its registration calls it.
    fn engine(&self) -> &'static str;

    /// The scheme `S` of the URL `S:auto`, which has a server of its own started.
    fn auto(&self) -> Option<&'static str> {
        None
    }

    /// Starts what `S:auto?OPTIONS` names for the demo and the bench, with its files in `dir`. The
    /// number is the exit code.
    fn start(&self, _options: &str, _dir: &Path) -> Result<own::Started, (u8, String)> {
        Err((64, "no server of this engine is started".to_owned()))
    }

    /// Starts what is tortured under `S:auto?OPTIONS`; `dir` is for its files. The number is the
    /// exit code.
    fn arena(&self, _options: &str, _dir: &Path) -> Result<Box<dyn Arena>, (u8, String)> {
        Err((64, "torture starts no server of this engine".to_owned()))
    }

    /// What a campaign of tortures does to it: options of `S:auto`, and how.
    fn campaign(&self) -> &'static [(&'static str, Torture)] {
        &[]
    }

    /// Where the demo's stock is.
    fn shelf(&self) -> &'static dyn Shelf {
        &InAFile
    }

    /// What act 5 of the demo tells of it: how its server dies.
    fn scenes(&self) -> &'static [Scene] {
        &[]
    }

    /// Removes what the engine keeps about a lock that is in nobody's hands.
    ///
    /// # Errors
    /// When it cannot be removed.
    fn forget(&self, _url: &str, _name: &str) -> Result<()> {
        Ok(())
    }

    /// Where names leave files: the URL of a directory of this name inside the URL's own, and its
    /// path.
    ///
    /// # Errors
    /// When the URL cannot be right.
    fn directory(&self, _url: &str, _own: &str) -> Result<Option<(String, PathBuf)>> {
        Ok(None)
    }

    /// Measures a row of the bench; none for one that says nothing about this engine.
    ///
    /// # Errors
    /// Why it could not be measured.
    fn rows(&self, subject: &bench::Subject, name: &str) -> Result<Vec<Row>, String> {
        bench::general(subject, name)
    }

    /// The target of one hot lock, beside the same without hand-off.
    fn hand_off_target(&self) -> &'static str {
        "-"
    }

    /// The work of a helper process of this kind, if its floors have one.
    fn helper(&self, _kind: &str) -> Option<fn() -> Result<()>> {
        None
    }

    /// The locks on it that are known to be wrong, in the order in which people meet them.
    fn broken(&self) -> &'static [&'static Broken] {
        &[]
    }

    /// Whether the broken clients can reach what a URL names that is not ours, and what they need.
    fn broken_reach(&self, _url: &str) -> (bool, &'static str) {
        (false, "a server of its own")
    }
}

/// An engine that has no folder here.
pub(crate) struct Other;

impl LabEngine for Other {
    fn engine(&self) -> &'static str {
        "other"
    }
}

/// All that have a folder.
pub(crate) fn all() -> impl Iterator<Item = &'static dyn LabEngine> {
    ENGINES.into_iter()
}

/// The engine of a URL.
pub(crate) fn of(url: &str) -> &'static dyn LabEngine {
    let registered = registration(url);
    let engine = registered.as_ref().map_or("", |registered| registered.engine);
    all().find(|lab| lab.engine() == engine).unwrap_or(&Other)
}

/// Makes the laboratory's own registrations known to this process: the quorum whose members wait
/// for two seconds in place of a minute, so that tests need not.
pub fn known() {
    #[cfg(feature = "redlock")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let registered = lockkeeper::Locks::register(lockkeeper::redlock_laboratory());
            assert!(registered.is_ok(), "the scheme is ours alone: {registered:?}");
        });
    }
}

/// What is registered for a URL.
///
/// # Errors
/// When no engine has its scheme.
pub(crate) fn registration(url: &str) -> Result<Registration> {
    known();
    let scheme = url.split(':').next().unwrap_or_default();
    Registration::of(&scheme.to_ascii_lowercase())
}

/// Whether a URL names what the demo, the bench and torture start for themselves: `redis:auto` and
/// the like.
pub fn is_started_for(url: &str) -> bool {
    let start = url.split('?').next().unwrap_or_default();
    start.strip_suffix(":auto").is_some_and(|scheme| started_by(scheme).is_some())
}

/// The engine whose server `SCHEME:auto` starts.
pub(crate) fn started_by(scheme: &str) -> Option<&'static dyn LabEngine> {
    all().find(|lab| lab.auto() == Some(scheme))
}

/// The kind of helper that says what a campaign consists of.
pub(crate) const CAMPAIGN: &str = "campaign";

/// What a campaign of tortures consists of, a line each: the URL, and `always`, `long` or `crowd`;
/// the crowds come last.
pub(crate) fn campaign() -> Vec<String> {
    let line = |scheme: &str, (options, how): &(&str, Torture)| {
        let how = match how {
            Torture::Always => "always",
            Torture::Long => "long",
            Torture::Crowd => "crowd",
        };
        format!("{} {how}", own::with_options(&format!("{scheme}:auto"), options))
    };
    let lines = |lab: &'static dyn LabEngine| {
        let all = lab.auto().map(|scheme| lab.campaign().iter().map(move |one| line(scheme, one)));
        all.into_iter().flatten()
    };
    let mut lines: Vec<_> = all().flat_map(lines).collect();
    lines.sort_by_key(|line| line.ends_with("crowd"));
    lines
}

/// `file:auto, redis+sentinel:auto, redis:auto and zk:auto`, in the order of the alphabet.
pub(crate) fn autos() -> String {
    let mut all: Vec<_> = all().filter_map(LabEngine::auto).map(|s| format!("{s}:auto")).collect();
    all.sort();
    let last = all.pop().unwrap_or_default();
    format!("{} and {last}", all.join(", "))
}
