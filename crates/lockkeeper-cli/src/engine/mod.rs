//! What `run`, `acquire` and `elect` need from an engine: one lock, a wait that is a descriptor, and the end of it.

mod file;

use std::os::fd::BorrowedFd;
use std::time::Duration;

use lockkeeper::engine::{Line, Place};
use lockkeeper::url::EngineUrl;
use lockkeeper::{Claim, Description, ErrorKind, Holder, Result, Token};

use crate::choice::Choice;
use crate::failure::Failure;

use crate::supervise::Under;

/// Takes locks on one engine.
pub trait Taker {
    /// What the engine is and promises.
    fn describe(&self) -> Description;

    /// Asks for a lock.
    ///
    /// # Errors
    /// What the engine says.
    fn begin(&self, claim: &Claim, line: Line) -> Result<Begun>;

    /// Asks for a share beside one that an ancestor of ours holds: whoever waits, waits for that one to end, and it ends
    /// only after us. `None` when that is not possible; then [`Taker::begin`] asks as usual.
    ///
    /// # Errors
    /// What the engine says.
    fn begin_beside(&self, _claim: &Claim) -> Result<Option<Box<dyn Holding>>> {
        Ok(None)
    }
}

/// The answer.
pub enum Begun {
    /// It is held.
    Held(Box<dyn Holding>),
    /// Somebody else holds it, or stands in line.
    Busy(Option<Box<Holder>>),
    /// A place in line.
    Waiting(Box<dyn Waiting>),
}

/// A place in line; dropping it leaves the line.
pub trait Waiting {
    /// Readable when the wait is over.
    fn over(&self) -> BorrowedFd<'_>;

    /// Who holds it, and how many stand before us.
    fn place(&self) -> Place;

    /// The lock, once the wait is over; waits when it is not.
    ///
    /// # Errors
    /// What ended the wait without it.
    fn finish(self: Box<Self>) -> Result<Box<dyn Holding>>;
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

    /// Gives it back; `for_all`: also where others have its descriptor open.
    fn release(self: Box<Self>, for_all: bool) -> Release;
}

/// How giving back went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// It was ours until now.
    Clean,
    /// It was lost before.
    AlreadyLost,
}

impl Release {
    /// The word of the report.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clean => "clean",
            Self::AlreadyLost => "already-lost",
        }
    }
}

/// Connects to the chosen engine.
///
/// # Errors
/// What the engine says.
pub fn open(choice: &Choice) -> Result<Box<dyn Taker>> {
    match choice.scheme() {
        "file" => file::open(&choice.url),
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

/// Engines whose leases end while a command runs: who holds one for a command must be able to end the command first.
const LEASES: [&str; 10] =
    ["redis", "rediss", "redis+unix", "redis+sentinel", "redis+cluster", "redlock", "zk", "postgres", "mysql", "etcd"];

fn no_engine(choice: &Choice) -> lockkeeper::Error {
    let scheme = choice.scheme();
    let message = if LEASES.contains(&scheme) {
        format!("{scheme}: cannot hold a lock for a command yet, because nobody would stop the command when the lease ends: use file:")
    } else {
        format!("there is no engine {scheme}: lockkeeper doctor --help says where the engine is chosen")
    };
    lockkeeper::Error::new(ErrorKind::Unsupported, message)
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
        (scheme, Some(option)) if scheme != "file" => {
            Err(Failure::usage(format!("{option} hands on a file's descriptor, and {scheme}: has none: leave it out")))
        }
        ("file", _) => Ok(file::check(&choice.url)?),
        _ => Err(no_engine(choice).into()),
    }
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

/// What tells one engine from another: its URL without password, and for files the directory's real path.
pub fn canonical(choice: &Choice) -> String {
    match choice.scheme() {
        "file" => file::canonical(&choice.url),
        _ => choice.redacted(),
    }
}
