//! What `run`, `acquire` and `elect` need from an engine: one lock, a wait that is a descriptor, and the end of it.

mod file;
mod lease;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lockkeeper::engine::{Line, Place};
use lockkeeper::url::EngineUrl;
use lockkeeper::{Claim, ClaimId, Description, Error, ErrorKind, Holder, Require, Result, Token, Warning};

use crate::choice::Choice;
use crate::failure::Failure;
use crate::guardian::Care;
pub use crate::guardian::Release;
use crate::kill_after::Lasts;
use crate::supervise::Under;

/// Takes locks on one engine.
pub trait Taker {
    /// Asks for a lock.
    ///
    /// # Errors
    /// What the engine says.
    fn begin(&self, asking: &Asking<'_>) -> Result<Begun>;

    /// Asks for a share beside one that an ancestor of ours holds: whoever waits, waits for that one to end, and it ends
    /// only after us. `None` when that is not possible; then [`Taker::begin`] asks as usual.
    ///
    /// # Errors
    /// What the engine says.
    fn begin_beside(&self, _asking: &Asking<'_>) -> Result<Option<Box<dyn Holding>>> {
        Ok(None)
    }
}

/// What is asked for.
pub struct Asking<'a> {
    pub claim: &'a Claim,
    pub line: Line,
    /// How long the engine may be silent while we stand in line; `None` for ever.
    pub unreachable_after: Option<Duration>,
    /// What the engine must promise, before anybody waits for it.
    pub require: &'a [Require],
}

/// The answer.
pub enum Begun {
    /// At once.
    Now(Got),
    /// Later.
    Waiting(Box<dyn Waiting>),
}

/// What was got.
pub enum Got {
    /// It is held.
    Held(Box<dyn Holding>),
    /// Somebody else holds it, or stands in line.
    Busy(Option<Box<Holder>>),
}

/// How far a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The engine has not answered yet.
    Reaching,
    /// A place in line.
    InLine,
    /// There is an answer.
    Over,
}

/// What is heard about the engine's server while we wait.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It has not answered for so long, and why as far as is known.
    Unreachable(Duration, String),
    /// It answers again.
    Over,
}

/// An answer that comes later; dropping it leaves the line.
pub trait Waiting {
    /// Readable when the stage may be another.
    fn news(&self) -> BorrowedFd<'_>;

    /// How far it is.
    fn stage(&mut self) -> Stage;

    /// Who holds it, and how many stand before us.
    fn place(&mut self) -> Place;

    /// The next thing that was heard about the engine's server.
    fn outage(&mut self) -> Option<Outage> {
        None
    }

    /// Whether the engine still answers; takes a moment where it does not.
    fn is_reached(&mut self) -> bool {
        true
    }

    /// The answer, once the wait is over; waits when it is not.
    ///
    /// # Errors
    /// What ended the wait without it.
    fn finish(self: Box<Self>) -> Result<Got>;
}

/// A lock that is held; dropping it gives it back.
pub trait Holding: Under {
    /// Its fencing token.
    fn token(&self) -> Option<Token>;

    /// Lets programs that are started from now on have the descriptor that keeps it, if there is one.
    ///
    /// # Errors
    /// What the system says.
    fn pass_on(&self) -> Result<Option<BorrowedFd<'_>>>;

    /// Where a command's process says that it is there, before it becomes the command, if somebody wants to know.
    fn announce(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// From TERM to KILL, where what was negotiated decides it.
    fn kill_after(&self) -> Option<Duration> {
        None
    }

    /// The hold's id, where it is another than the claim's.
    fn hold(&self) -> Option<ClaimId> {
        None
    }

    /// Gives it back; `for_all`: also where others have its descriptor open. `waits` is called once
    /// when a server lets us wait for its answer.
    fn release(self: Box<Self>, for_all: bool, waits: &mut dyn FnMut()) -> Release;
}

/// Engines whose leases end while a command runs, as far as this build has them: a guardian keeps them.
const LEASES: &[&str] = &[
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "redis")]
    "rediss",
    #[cfg(feature = "redis")]
    "redis+unix",
    #[cfg(feature = "zookeeper")]
    "zk",
];

/// Connects to the chosen engine, or prepares to; `care` is for a command that will run under the lock.
///
/// # Errors
/// What the engine says.
pub fn open(choice: &Choice, care: Care) -> Result<Box<dyn Taker>> {
    match choice.scheme() {
        "file" => file::open(&choice.url),
        scheme if LEASES.contains(&scheme) => Ok(lease::open(&choice.url, care)),
        _ => Err(no_engine(choice)),
    }
}

/// The lease's length that the URL asks for.
///
/// # Errors
/// When it is no duration, or the URL is none.
pub fn ttl(choice: &Choice) -> Result<Option<Duration>, Failure> {
    Ok(EngineUrl::parse(&choice.url)?.take_duration("ttl")?)
}

/// How long what carries a hold lasts without renewal: its lease, or on ZooKeeper its session, as
/// far as the URL says it.
///
/// # Errors
/// When the URL says something that is no duration.
pub fn lasts(choice: &Choice, ttl: Duration) -> Result<Lasts, Failure> {
    Ok(match choice.scheme() {
        "zk" => {
            let mut url = EngineUrl::parse(&choice.url)?;
            let session = url.take_duration("session_timeout")?.unwrap_or(SESSION);
            // One that is no percentage is refused where the library reads it.
            let percent = url.take("drift").and_then(|text| text.strip_suffix('%')?.parse().ok()).unwrap_or(DRIFT_PERCENT);
            Lasts::Session(session, percent.min(100) * 10)
        }
        _ => Lasts::Lease(ttl),
    })
}

/// How long a ZooKeeper session lasts unless the URL says otherwise.
pub const SESSION: Duration = Duration::from_secs(15);

/// The allowance for clock rates unless the URL says otherwise.
const DRIFT_PERCENT: u32 = 10;

fn no_engine(choice: &Choice) -> Error {
    let scheme = choice.scheme();
    const LATER: [&str; 8] = ["redis", "rediss", "redis+unix", "redis+sentinel", "redis+cluster", "redlock", "zk", "etcd"];
    let message = if LATER.contains(&scheme) || ["postgres", "mysql"].contains(&scheme) {
        format!("this build has no engine for {scheme}: lockkeeper doctor says which one is used and where that was said")
    } else {
        format!("there is no engine {scheme}: lockkeeper doctor --help says where the engine is chosen")
    };
    Error::new(ErrorKind::Unsupported, message)
}

/// Refuses an engine that cannot promise what was asked for.
///
/// # Errors
/// [`ErrorKind::NotMet`], saying why.
fn meets(about: &Description, require: &[Require]) -> Result<()> {
    let Some(missing) = require.iter().find(|r| !about.meets(**r)) else { return Ok(()) };
    let engine = about.engine;
    let why = match missing {
        Require::Hosts => format!("{engine} is seen by this machine only"),
        Require::Timed => format!("one ordinary fault can give {engine} two holders"),
        _ => format!("{engine} cannot promise tokens that only ever grow"),
    };
    let message = format!("{} was required, and {why}: choose another engine, or require less", missing.as_str());
    Err(Error::new(ErrorKind::NotMet, message).engine(engine))
}

/// Refuses engines that would not do what is asked of them, before anything is connected.
///
/// # Errors
/// Which, and why.
pub fn check(choice: &Choice, option: Option<&str>) -> Result<(), Failure> {
    match (choice.scheme(), option) {
        ("memory", _) => Err(Failure::usage(format!(
            "the engine memory: ({}) is private to this process and nobody else would see the lock: choose another engine",
            choice.source
        ))),
        (scheme, Some(option)) if scheme != "file" => Err(Failure::usage(format!(
            "{option} is about a lock file's descriptor, and {scheme}: has none: a lease needs lockkeeper beside the command, to renew it \
             and to stop the command in time; leave {option} out"
        ))),
        ("file", _) => Ok(file::check(&choice.url)?),
        (scheme, _) if LEASES.contains(&scheme) => Ok(()),
        _ => Err(no_engine(choice).into()),
    }
}

/// What is worth changing about where the engine keeps its locks, as far as that can be seen before it is opened.
pub fn warning(url: &str) -> Option<Warning> {
    url.starts_with("file:").then(|| file::warning(url)).flatten()
}

/// Removes idle lock files; answers how many.
///
/// # Errors
/// What the engine says, and that it has none.
pub fn gc(choice: &Choice) -> Result<usize, Failure> {
    match choice.scheme() {
        "file" => Ok(file::gc(&choice.url)?),
        scheme => Err(Failure::usage(format!("{scheme}: has no lock files to remove: its records end by themselves"))),
    }
}

/// What tells one engine from another: for files the directory's real path, for servers where they are and how they write
/// locks down; never a password.
pub fn canonical(choice: &Choice) -> String {
    match choice.scheme() {
        "file" => file::canonical(&choice.url),
        _ => server(&choice.url).unwrap_or_else(|_| choice.redacted()),
    }
}

/// A server's URL without user and password, with its port, and with those options only that make it another lock.
fn server(url: &str) -> Result<String> {
    let mut url = EngineUrl::parse(url)?;
    let port = if url.scheme == "zk" { 2181 } else { 6379 };
    let hosts: Vec<_> = url.hosts.iter().map(|(host, given)| format!("{host}:{}", given.unwrap_or(port))).collect();
    let path = if url.path == "/0" { "" } else { url.path.trim_end_matches('/') };
    let mut text = format!("{}://{}{path}", url.scheme, hosts.join(","));
    let mut mark = '?';
    for option in ["db", "layout", "lock", "key", "namespace", "prefix"] {
        // An empty prefix is the default.
        if let Some(value) = url.take(option).filter(|value| option != "prefix" || !value.is_empty()) {
            text = format!("{text}{mark}{option}={value}");
            mark = '&';
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_ways_to_write_one_server_are_one_engine_and_no_password_is_in_it() {
        let of = |url: &str| server(url).unwrap();
        assert_eq!(of("redis://h"), of("redis://ann:secret@h:6379/0?ttl=5s&password_file=x"));
        assert_eq!(of("zk://a,b:2181/shop"), of("zk://a:2181,b/shop/?auth=digest:u:secret&session_timeout=5s"));
        assert_ne!(of("redis://h"), of("redis://h/1"));
        assert_ne!(of("redis://h"), of("redis://h?layout=plain"));
        assert_eq!(of("zk://h?layout=plain"), of("zk://h?layout=plain&prefix="));
        assert_ne!(of("zk://h?layout=plain"), of("zk://h?layout=plain&prefix=Lock"));
    }
}
