//! The contract between the keeper and what stores a lock.
//!
//! An engine knows no guards, no log levels and no user policy; it waits and retries only where its
//! recipe says so. Every method returns at once: [`Answer::Now`] where nothing has to be waited
//! for, else [`Answer::Later`], a future that the keeper polls to its end on its own thread,
//! whatever becomes of the caller.
//!
//! The keeper calls an engine while it holds the lock of that name's entry. So an engine must not
//! send an [`Event`] from inside a call, nor hold a lock of its own while it sends one from
//! elsewhere.

#[cfg(any(feature = "redis", feature = "postgres"))]
mod anchor;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
mod at_exit;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
mod dial;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
mod either;
mod events;
#[cfg(all(feature = "file", target_os = "linux"))]
pub(crate) mod file;
mod inlet;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod parting;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
mod password;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
#[cfg(feature = "redis")]
pub(crate) mod redis;
#[cfg(feature = "redlock")]
pub(crate) mod redlock;
mod registration;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
mod reread;
#[cfg(feature = "postgres")]
mod sql;
#[cfg(any(feature = "redis", feature = "zookeeper"))]
pub(crate) mod stream;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "postgres"))]
pub(crate) mod tls;
#[cfg(any(feature = "redis", feature = "postgres"))]
mod words;
#[cfg(feature = "zookeeper")]
pub(crate) mod zookeeper;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use crate::words::claim::{
    Claim, Ends, Entry, Holder, Identity, Mode, Through, Unreadable, Waiter,
};
pub use crate::words::clock::{Clock, Ticks, unix_us};
pub use crate::words::error::{Error, ErrorKind, Result};
pub use crate::words::guarantee::{Ability, Can, Class, Description, Expiry, Warning};
pub use crate::words::id::{ClaimId, HoldId, LeaseId};
pub use crate::words::lost::Lost;
pub use crate::words::name::{Kind, Name};
pub use crate::words::statement::Statement;
pub use crate::words::token::next_number;
pub use crate::words::write::Write;
pub use events::{Event, EventSink, Which};
#[cfg(feature = "redis")]
pub(crate) use inlet::lends;
pub(crate) use inlet::while_lending;
pub use inlet::{Flush, Inlet, Took};
pub use registration::{Common, Keep, Open, Registration, UrlOption, Value};

#[cfg(feature = "memory")]
pub(crate) mod memory;

/// A boxed future that the keeper can run on its thread.
pub type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send + 'static>>;

/// An answer that is there, or one that comes.
pub enum Answer<T> {
    /// There: no allocation, no task switch.
    Now(T),
    /// Comes; never dropped unfinished while the keeper lives.
    Later(BoxFuture<T>),
}

impl<T: Send + 'static> Answer<T> {
    /// An answer that a future will give.
    pub fn later(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self::Later(Box::pin(future))
    }

    /// Waits for it.
    pub(crate) async fn get(self) -> T {
        match self {
            Self::Now(value) => value,
            Self::Later(future) => future.await,
        }
    }

    /// The same answer, changed.
    pub fn map<U>(self, change: impl FnOnce(T) -> U + Send + 'static) -> Answer<U> {
        match self {
            Self::Now(value) => Answer::Now(change(value)),
            Self::Later(future) => Answer::Later(Box::pin(async move { change(future.await) })),
        }
    }
}

/// Whether a claim that is not granted at once stands in the engine's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Line {
    /// Stand in line.
    Join,
    /// Leave nothing behind; also when somebody else stands in line.
    Try,
}

/// What the engine gave. It always carries its number, also when it is pushed or found by a
/// recheck: an engine that only learns that a claim holds, and not with which number, says nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The number; `None` only in layouts without one, and for permits, which carry no token.
    pub number: Number,
    /// The lease, on engines that have them.
    pub lease: Option<Lease>,
}

/// Where a hold's token comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Number {
    /// Our own number: the token is number × 64 + turn.
    Ours(u64),
    /// Another program's counter, kept raw; such a hold is never handed off.
    Raw(u64),
    /// The layout has none.
    None,
}

/// The lease that came with a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Which lease: the hold's own, or its session's.
    pub id: LeaseId,
    /// How long it lasts from `since`.
    pub ttl: Duration,
    /// The latest instant on our clock before which the grant cannot have happened. `None` in
    /// an answer means the reading that the keeper took before it called, so an answer from memory
    /// must say it; a push must say it, or set `confirm`.
    pub since: Option<Ticks>,
    /// Short claim lease of a pushed grant: renew at once, and with `since` unknown do not offer it
    /// before that.
    pub confirm: bool,
}

/// The answer to an attempt.
#[derive(Clone, Debug)]
pub enum Attempt {
    /// Granted.
    Granted(Grant),
    /// Standing in line; [`Event::Granted`] or [`Event::Wake`] follows.
    InLine(Place),
    /// Somebody holds it or stands in line, and nothing of ours is left there.
    Busy(Option<Box<Holder>>),
    /// It is not known; the keeper asks again with the same claim, except after an answer that
    /// cannot be understood (`Corrupt`).
    Unknown(Error),
    /// It certainly did not happen, and nothing of ours is left there. With the kind `Unreachable`
    /// the keeper asks again for a caller who waits.
    Failed(Error),
}

/// A place in the engine's line.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// How many places stand before ours, as far as the engine says: those who wait, and not those
    /// who hold.
    pub ahead: Option<u32>,
    /// Who holds the lock now.
    pub holder: Option<Box<Holder>>,
    /// When the keeper asks about the place by [`Engine::recheck`], unless something is heard of it
    /// before; for engines that do nothing by themselves when a lease ends: the first in line
    /// at that moment, the others one claim lease later. `None` where an event tells everything.
    pub ask_at: Option<Ticks>,
}

/// How a claim stands: the answer to [`Engine::recheck`].
#[derive(Clone, Debug)]
pub enum Standing {
    /// It holds, with the number that it was granted with and its lease as it is now: asking may
    /// have renewed it. Of a claim that stood in line this is its grant.
    Held(Grant),
    /// It stands in line.
    InLine(Place),
    /// Nothing of it is there any more. With the kind `Lost` the keeper stands again with the same
    /// claim; with any other, whoever waits is refused with it.
    Gone(Error),
    /// Not known; it changes nothing. Also of a claim whose attempt is still under way.
    Unknown(Error),
}

/// What the repeated attempt of a claim says of it, for engines that check by asking again.
impl From<Attempt> for Standing {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Granted(grant) => Self::Held(grant),
            Attempt::InLine(place) => Self::InLine(place),
            Attempt::Busy(_) => {
                Self::Gone(Error::new(ErrorKind::Lost, "it is neither held nor in line"))
            }
            Attempt::Unknown(error) => Self::Unknown(error),
            // Only the question was not sent; what it is about may be there.
            Attempt::Failed(error) if error.kind() == ErrorKind::Unreachable => {
                Self::Unknown(error)
            }
            Attempt::Failed(error) => Self::Gone(error),
        }
    }
}

/// What is known of the lease of a hold that was asked about.
impl From<Standing> for Renewal {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Held(Grant { lease: Some(Lease { ttl, since, .. }), .. }) => {
                Self::Extended { ttl, since }
            }
            Standing::Gone(error) if !error.is_temporary() => Self::Gone(Lost::TakenAway),
            Standing::InLine(_) => Self::Gone(Lost::TakenAway),
            Standing::Unknown(error) | Standing::Gone(error) => Self::Unknown(error),
            Standing::Held(_) => Self::Unknown(Error::new(ErrorKind::Unknown, "it has no lease")),
        }
    }
}

/// What an attempt answers whose claim is there already.
impl From<Standing> for Attempt {
    fn from(standing: Standing) -> Self {
        match standing {
            Standing::Held(grant) => Self::Granted(grant),
            Standing::InLine(place) => Self::InLine(place),
            Standing::Gone(error) => Self::Failed(error),
            Standing::Unknown(error) => Self::Unknown(error),
        }
    }
}

/// How a hold or a place ended.
#[derive(Clone, Debug)]
pub enum End {
    /// It is gone, and it was ours until now.
    Freed,
    /// It was not ours (any more); nothing was touched.
    NotOurs,
    /// It was ours, and some of what made it so had gone before; the rest is gone now.
    Gone(Lost),
    /// It is not known; the keeper asks again until the lease would be over.
    Unknown(Error),
}

/// The answer to a renewal.
#[derive(Clone, Debug)]
pub enum Renewal {
    /// Extended: it lasts `ttl` from `since` (`None`: from the reading before the call).
    Extended {
        /// How long.
        ttl: Duration,
        /// From when.
        since: Option<Ticks>,
    },
    /// Gone; final.
    Gone(Lost),
    /// Not known: changes nothing, the deadline decides.
    Unknown(Error),
}

/// The answer to a release.
#[derive(Clone, Debug)]
pub struct Released {
    /// One end for each hold, in order.
    pub ends: Vec<End>,
    /// What became of the claim that was to stand in line in the same message.
    pub again: Option<Attempt>,
}

/// What is asked in [`Engine::read`] and [`Engine::watch`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// One name of one kind; answers one entry, also when nothing is stored.
    One(Kind, Name),
    /// Every name that starts with the text, of every kind; only names that somebody holds or waits
    /// for, or that keep a value.
    Prefix(String),
}

/// What is done in [`Engine::write`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a latch's count, if it is zero or absent; answers whether it did.
    LatchSet(Name, u64),
    /// Counts a latch down by one; answers whether it is open now. `id` makes a repeated call count
    /// once.
    LatchCountDown(Name, ClaimId),
    /// Takes a lock away from these holders, as [`Engine::read`] told them, and from nobody who
    /// came since; without any, from whoever holds it. Answers whether somebody did.
    Force(Kind, Name, Vec<Holder>),
    /// Changes a semaphore's limit, or stores it; answers whether it changed.
    Resize(Name, u16),
}

/// A step of a barrier's member. Each may be asked for twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Membership {
    /// Comes in, unless it is in; answers whether so many are, or were a moment ago.
    Enter(u32),
    /// Has finished; answers whether all members have gone. `Lost` when it was not counted any
    /// more.
    Leave,
    /// Goes without waiting for anybody.
    Withdraw,
}

/// A watch's id, chosen by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchId(pub u64);

/// Starts tasks on the keeper's own thread, where they go on when the user's runtime is starved,
/// blocked or gone.
#[derive(Clone)]
pub struct Spawner(pub(crate) Arc<dyn Fn(BoxFuture<()>) + Send + Sync>);

impl Spawner {
    /// A spawner that hands every future to `run`; for tests of engines.
    pub fn new(run: impl Fn(BoxFuture<()>) + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }

    /// Starts a task; it ends at the latest when its `Locks` is closed.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        (self.0)(Box::pin(task));
    }
}

/// What an engine is given when it is opened.
#[derive(Clone)]
pub struct Context {
    /// The clock of all deadlines.
    pub clock: Clock,
    /// Where events go.
    pub events: EventSink,
    /// Where tasks run.
    pub spawner: Spawner,
    /// Who we are.
    pub who: Arc<Identity>,
}

/// A wait that the caller's own thread does, and the event that ended it; see
/// [`Engine::attempt_here`].
pub type OwnWait = Box<dyn FnOnce() -> Option<Event> + Send>;

/// What stores a lock.
///
/// Outsiders plug theirs in with [`Locks::with_engine`](crate::Locks::with_engine), or give it URLs
/// with a [`Registration`]; the conformance suite of `lockkeeper-lab` runs on it.
pub trait Engine: Send + Sync + 'static {
    /// Called once, before anything else.
    ///
    /// # Errors
    /// What keeps the engine from working at all: unreachable, refused, newer layout.
    fn open(&self, context: Context) -> Answer<Result<()>>;

    /// What it is and what it promises, from the values negotiated so far.
    fn describe(&self) -> Description;

    /// Asks for a lock. Asking twice with the same claim has the effect of once. Whoever is put in
    /// line is answered [`Attempt::InLine`] at once, and granted by an event: of an answer that
    /// comes with the grant alone, a caller that gives up is told that the engine was silent.
    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt>;

    /// Asks how claims and holds stand, one message for all; also the sign of life for places.
    /// It grants what is free for a claim then, where no event would. What the server did
    /// not answer is `Unknown`, and never answered from memory: the keeper counts the silence from
    /// it.
    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>>;

    /// Leaves the line, or gives back a grant that is under way. Also ends a conversion: one that
    /// waits leaves, and an upgrade that was granted meanwhile is taken back; the hold stays as it
    /// was before.
    fn withdraw(&self, claim: ClaimId) -> Answer<End>;

    /// Upgrades or downgrades a hold; `claim` has an id of its own and the new mode, and the hold
    /// keeps its id.
    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt>;

    /// Renews leases, one message for all.
    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>>;

    /// Gives holds back; `again` stands in line in the same message. Releasing twice frees only the
    /// hold's own grant.
    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released>;

    /// The same for a caller that waits for the answer: it may leave together with what others ask.
    fn release_awaited(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        self.release(holds, again)
    }

    /// Tells who holds and who waits, and values. A record that cannot be read is told as
    /// [`Entry::unreadable`], and never as a name that is free; it keeps no other name from being
    /// told. Where names are kept by several servers and one does not answer, the error has what
    /// the others told ([`Error::with_partial`]).
    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>>;

    /// Changes a latch, a limit, or takes a lock away.
    fn write(&self, change: &Change) -> Answer<Result<bool>>;

    /// Sends [`Event::Changed`] whenever the answer to `query` may have changed.
    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>>;

    /// Ends a watch.
    fn unwatch(&self, watch: WatchId);

    // Optional methods. One with an ability is called only where `Description::can` names that;
    // elsewhere it answers `Unsupported`.

    /// As [`Engine::attempt`] with [`Line::Join`], for a caller whose thread waits for this claim
    /// alone and does not give up. A wait that blocks in the kernel can be left to that thread: it
    /// runs what is answered beside `InLine`, at most once, and that answers the claim's event,
    /// which is not sent then. Where it is dropped before it ran, the engine goes on with the wait
    /// itself, and sends the event.
    fn attempt_here(&self, claim: &Claim) -> (Answer<Attempt>, Option<OwnWait>) {
        (self.attempt(claim, Line::Join), None)
    }

    /// Asks for all of several claims in one message, none of which stands in line: all are granted
    /// or none ([`Ability::Together`]). Without, the keeper asks one after the other in byte order.
    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        Answer::Now(claims.iter().map(|_| Attempt::Failed(not_there())).collect())
    }

    /// A step of a member of the name's double barrier ([`Ability::Barrier`]). [`Event::Changed`]
    /// of a watch on the latch of that name tells when to ask again.
    fn barrier(&self, name: &Name, member: ClaimId, step: Membership) -> Answer<Result<bool>> {
        let _ = (name, member, step);
        Answer::Now(Err(not_there()))
    }

    /// Asks whoever holds a name to let go, which they see as [`Event::Asked`]; answers whether
    /// somebody holds it ([`Ability::Ask`]).
    fn ask(&self, kind: Kind, name: &Name) -> Answer<Result<bool>> {
        let _ = (kind, name);
        Answer::Now(Err(not_there()))
    }

    /// Carries out writes in the store, all or none, and only while the hold is there; `Lost` when
    /// it is not ([`Ability::HeldWrites`]).
    fn write_held(&self, hold: HoldId, writes: &[Write]) -> Answer<Result<()>> {
        let _ = (hold, writes);
        Answer::Now(Err(not_there()))
    }

    /// A statement for a transaction of the holder's own, which finds its row only while the hold
    /// is there, and keeps it from passing until the transaction ends; `Lost` when it is not there
    /// ([`Ability::Statements`]). The hold is handed to no other turn from then on.
    fn statement(&self, hold: HoldId) -> Answer<Result<Statement>> {
        let _ = hold;
        Answer::Now(Err(not_there()))
    }

    /// In which part of the store a claim is, where parts fail one by one. Claims of several parts
    /// are asked about, and renewed, in calls of their own: a part that does not answer keeps back
    /// no news of another.
    fn part(&self, claim: ClaimId) -> u32 {
        let _ = claim;
        0
    }

    /// Looks for locks that others hold under this name in a layout that does not exclude ours: one
    /// warning for each such layout.
    fn other_layouts(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let _ = name;
        Answer::Now(Ok(Vec::new()))
    }

    /// Ends a probe: removes everything that a name which nobody uses any more has left in the
    /// store, and answers what makes waiting worse here, such as messages that are not let through.
    fn clear_probe(&self, name: &Name) -> Answer<Result<Vec<Warning>>> {
        let _ = name;
        Answer::Now(Ok(Vec::new()))
    }

    /// Removes everything in the store whose name has this word in its first part, held or not:
    /// what a measurement or a demonstration of ours leaves under names that hold a random word.
    /// On Redis that is every key with the word anywhere in it, whoever made it. Answers whether
    /// there was something.
    #[doc(hidden)]
    fn sweep(&self, word: &str) -> Answer<Result<bool>> {
        let _ = word;
        Answer::Now(Ok(false))
    }

    /// Where answers come in, if callers may read them too. Only where the first look at an answer
    /// may be taken in the caller.
    fn inlet(&self) -> Option<Arc<dyn Inlet>> {
        None
    }

    /// The same for answers to releases, where they come in elsewhere.
    #[doc(hidden)]
    fn inlet_of_releases(&self) -> Option<Arc<dyn Inlet>> {
        self.inlet()
    }

    /// Ends every task, thread, watch and connection. What is still held stays until its lease
    /// ends.
    fn close(&self) -> Answer<()>;
}

/// What is asked of an engine that says that it does not have it.
fn not_there() -> Error {
    Error::new(ErrorKind::Unsupported, "this engine does not have that")
}
