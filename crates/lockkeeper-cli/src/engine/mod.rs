//! What `run`, `acquire` and `elect` need from an engine: one lock, a wait that is a descriptor,
//! and the end of it.

mod file;
mod lease;

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use lockkeeper::engine::{Keep, Line, Place, Registration};
use lockkeeper::url::EngineUrl;
use lockkeeper::{Claim, ClaimId, Error, ErrorKind, Holder, Name, Require, Result, Token};

use crate::args::common::Lock;
use crate::choice::Choice;
use crate::failure::Failure;
use crate::guardian::Care;
pub use crate::guardian::Release;
use crate::kill_after::Lasts;
use crate::supervise::job::Announce;
use crate::text::{shown, spoken};
use crate::under::{Caution, Under};
use crate::urls;

/// What is told of an engine wherever a lock is asked for or looked at: those of several servers
/// that refuse, or say another thing than a majority. `doctor` tells the rest.
pub const OF_SERVERS: [&str; 4] =
    ["member-refuses", "sentinel-refuses", "sentinels-disagree", "sentinel-minority"];

/// How long an engine may be silent before it counts as one that cannot be reached.
pub const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// Takes locks on one engine.
pub trait Taker {
    /// Asks for a lock.
    ///
    /// # Errors
    /// What the engine says.
    fn begin(&self, asking: &Asking<'_>) -> Result<Begun>;

    /// Asks for a share beside one that an ancestor of ours holds: whoever waits, waits for that
    /// one to end, and it ends only after us. `None` when that is not possible; then
    /// [`Taker::begin`] asks as usual.
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
    /// It was granted while we stood still, and went on to the next (R5).
    Missed,
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
    /// It has not answered for so long, or has refused us, and why as far as is known.
    Unreachable { refused: bool, silent_for: Duration, why: String },
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

    /// Why the engine does not answer, as far as it is known.
    fn why(&mut self) -> Option<Error> {
        None
    }

    /// The next thing beside the lock that was heard of.
    fn caution(&mut self) -> Option<Caution> {
        None
    }

    /// Begins to ask who holds it, and waits for nothing.
    fn asks(&mut self) {}

    /// Whether the engine still answers. Takes a moment where it does not and was not asked
    /// [a moment ago](Self::asks).
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

    /// Lets programs that are started from now on have the descriptor that keeps it, if there is
    /// one.
    ///
    /// # Errors
    /// What the system says.
    fn pass_on(&self) -> Result<Option<BorrowedFd<'_>>>;

    /// How a command's process says that it is there, before it becomes the command, if somebody
    /// wants to know.
    fn announce(&self) -> Option<Announce<'_>> {
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

/// What is known of the chosen engine before it is opened.
///
/// # Errors
/// That there is none, and what there is.
fn registered(choice: &Choice) -> Result<Registration> {
    Registration::of(choice.scheme()).map_err(|e| Error::new(ErrorKind::Unsupported, e.message()))
}

/// Connects to the chosen engine, or prepares to; `care` is for a command that will run under the
/// lock.
///
/// # Errors
/// What the engine says.
pub fn open(choice: &Choice, care: Care) -> Result<Box<dyn Taker>> {
    match registered(choice)?.keep {
        Keep::Kernel => file::open(&choice.url),
        _ => Ok(lease::open(&choice.url, care)),
    }
}

/// The lease's length that the URL asks for.
///
/// # Errors
/// When it is no duration, or the URL is none.
pub fn ttl(choice: &Choice) -> Result<Option<Duration>, Failure> {
    Ok(EngineUrl::parse(&choice.url)?.take_duration("ttl")?)
}

/// Something that is said about leases where locks do not end by a lease of their own, or about a
/// server where there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idle {
    /// `--ttl`.
    Ttl(Duration),
    /// `?ttl=`.
    UrlTtl(Duration),
    /// `--no-renew`.
    NoRenew,
    /// `--on-unreachable run`.
    OnUnreachable,
    /// `--unreachable-after`.
    UnreachableAfter(Duration),
}

/// What such an option changes nothing about, in words: on engines whose locks do not end by a
/// lease of their own something else decides how long a dead holder keeps one.
pub fn idle(choice: &Choice, what: Idle) -> Option<String> {
    let engine = registered(choice).ok()?;
    let (word, ttl) = match what {
        Idle::Ttl(ttl) => (format!("--ttl {}", spoken(ttl)), Some(ttl)),
        Idle::UrlTtl(ttl) => (format!("ttl={} in the URL", spoken(ttl)), Some(ttl)),
        Idle::NoRenew => ("--no-renew".to_owned(), None),
        Idle::OnUnreachable => ("--on-unreachable run".to_owned(), None),
        Idle::UnreachableAfter(time) => (format!("--unreachable-after {}", spoken(time)), None),
    };
    let is_of_servers = matches!(what, Idle::OnUnreachable | Idle::UnreachableAfter(_));
    let nothing = format!("{word} changes nothing on {}", engine.engine);
    match engine.keep_of(&EngineUrl::parse(&choice.url).ok()?) {
        Keep::Kernel if is_of_servers => {
            Some(format!("{nothing}: there is no server that could be out of reach"))
        }
        Keep::Kernel => Some(format!(
            "{nothing}: a lock lasts until the last process that has it open has ended"
        )),
        // A hold that is not renewed ends with what was proven of the session at its grant.
        Keep::Session { .. } => {
            let (ttl, (session, option)) = (ttl?, urls::session(&choice.url).ok()??);
            let (ttl, session) = (spoken(ttl), spoken(session));
            Some(format!(
                "{nothing}: the session is the lease, {session} if the server grants it: give \
                 {option}={ttl} in the URL"
            ))
        }
        _ => None,
    }
}

/// The same for what is given on the command line; `is_firm`: `--on-unreachable run`.
pub fn idle_options(choice: &Choice, lock: &Lock, is_firm: bool) -> Vec<String> {
    let given = [
        lock.ttl.map(Idle::Ttl),
        lock.no_renew.then_some(Idle::NoRenew),
        is_firm.then_some(Idle::OnUnreachable),
        lock.unreachable_after.map(Idle::UnreachableAfter),
    ];
    given.into_iter().flatten().filter_map(|what| idle(choice, what)).collect()
}

/// What whoever takes a lock by hand should know, and nothing that is wrong with the line: `given`
/// is what [`idle_options`] says.
pub fn remarks(name: &Name, given: Vec<String>) -> Vec<String> {
    given.into_iter().chain(looks_like_a_file(name)).collect()
}

/// Users of flock(1) name a file, and it is locked. Where such files lie is no question to a disk,
/// which may not answer.
fn looks_like_a_file(name: &Name) -> Option<String> {
    let path = Path::new(name.as_str());
    let is_lock = path.extension().is_some_and(|end| end == "lock" || end == "lck" || end == "pid");
    let of_locks = ["/run/lock", "/var/lock"].iter().any(|place| path.starts_with(place));
    (path.is_absolute() && (is_lock || of_locks)).then(|| {
        format!(
            "{} is the lock's name here, and no file: programs that lock that file with flock(1) \
             are not excluded",
            shown(name.as_str())
        )
    })
}

/// How long what carries a hold lasts without renewal: its lease, or its session, as far as the
/// URL says it.
///
/// # Errors
/// When the URL says something that is no duration.
pub fn lasts(choice: &Choice, ttl: Duration) -> Result<Lasts, Failure> {
    // A scheme without an engine is refused where it is used.
    let Some((session, _)) =
        registered(choice).ok().and_then(|_| urls::session(&choice.url).transpose()).transpose()?
    else {
        return Ok(Lasts::Lease(ttl));
    };
    let mut url = EngineUrl::parse(&choice.url)?;
    // One that is no percentage is refused where the library reads it.
    let percent = url
        .take("drift")
        .and_then(|text| text.strip_suffix('%')?.parse().ok())
        .unwrap_or(DRIFT_PERCENT);
    Ok(Lasts::Session(session, percent.min(100) * 10))
}

/// The allowance for clock rates unless the URL says otherwise.
const DRIFT_PERCENT: u32 = 10;

/// Refuses engines that would not do what is asked of them, before anything is connected.
///
/// # Errors
/// Which, and why.
pub fn check(choice: &Choice, option: Option<&str>) -> Result<(), Failure> {
    let (scheme, engine) = (choice.scheme(), registered(choice)?);
    match (engine.keep, option) {
        (Keep::Process, _) => Err(Failure::usage(format!(
            "the engine {scheme}: ({}) is private to this process and nobody else would see the \
             lock: choose another engine",
            choice.source
        ))),
        (Keep::Kernel, _) => Ok(file::check(&choice.url)?),
        (_, Some(option)) => {
            let stays = match option {
                "-F" => {
                    "; a lease needs lockkeeper beside the command, to renew it and to stop the \
                     command in time"
                }
                _ => "",
            };
            Err(Failure::usage(format!(
                "{option} is about a lock file's descriptor, and {scheme}: has none{stays}: leave \
                 {option} out"
            )))
        }
        (_, None) => Ok(engine.check(&EngineUrl::parse(&choice.url)?)?),
    }
}

/// Removes idle lock files; answers how many.
///
/// # Errors
/// What the engine says, and that it has none.
pub fn gc(choice: &Choice) -> Result<usize, Failure> {
    match registered(choice)?.keep {
        Keep::Kernel => Ok(file::gc(&choice.url)?),
        _ => {
            let text = format!(
                "{}: has no lock files to remove: its records end by themselves",
                choice.scheme()
            );
            Err(Failure::usage(text))
        }
    }
}

/// What tells one engine from another: for files the directory's real path, for servers where they
/// are and how they write locks down; never a password.
pub fn canonical(choice: &Choice) -> String {
    EngineUrl::parse(&choice.url)
        .and_then(|url| url.canonical())
        .unwrap_or_else(|_| choice.redacted())
}
