//! What is asked of an engine, and what it says about who has what.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::words::clock::Ticks;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};
use crate::words::token::Token;

/// In which way a name is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// With other readers.
    Shared,
    /// With other readers, and as the only one that may become exclusive.
    Upgradable,
    /// `count` permits of a semaphore with `limit` permits.
    Permits {
        /// How many are asked for.
        count: u16,
        /// The limit that the caller believes the semaphore has.
        limit: u16,
    },
}

impl Mode {
    /// The word that records and JSON use.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
            Self::Upgradable => "upgradable",
            Self::Permits { .. } => "permits",
        }
    }

    /// How many permits; `None` for locks.
    pub fn permits(self) -> Option<u16> {
        match self {
            Self::Permits { count, .. } => Some(count),
            _ => None,
        }
    }

    /// Whether a hold in this mode and one in the other may exist at the same time (permits: as far
    /// as the limit goes).
    pub fn shares_with(self, other: Self) -> bool {
        use Mode::{Exclusive, Permits, Shared, Upgradable};
        match (self, other) {
            (Exclusive, _) | (_, Exclusive) | (Upgradable, Upgradable) => false,
            (Shared | Upgradable, Shared | Upgradable)
            | (Permits { .. }, _)
            | (_, Permits { .. }) => true,
        }
    }
}

/// The primitive that a lock is asked for through. A mutex is the exclusive mode of the rw-lock of
/// its name, so lockkeeper's own clients need not know. In layouts of other libraries a mutex and
/// the write side of an rw-lock are written differently, and only the right one is respected by the
/// others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Through {
    /// A mutex. Semaphores, elections and all other kinds say this, too.
    Mutex,
    /// A read-write lock, in any of its modes.
    RwLock,
}

impl Through {
    /// The one that a mode alone tells: only an rw-lock has readers. Its writer says so by itself.
    pub fn of(mode: Mode) -> Self {
        match mode {
            Mode::Shared | Mode::Upgradable => Self::RwLock,
            Mode::Exclusive | Mode::Permits { .. } => Self::Mutex,
        }
    }
}

/// Who this process is, as recorded about holders and waiters: no arguments, no environment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// Host name.
    pub host: String,
    /// Process id.
    pub pid: u32,
    /// When the process started, in clock ticks since boot as /proc/PID/stat says; 0 when unknown.
    /// Only for display.
    pub started: u64,
    /// The program's name: `argv[0]` only, arguments hold secrets.
    pub program: String,
    /// A text of the user's choice.
    pub label: Option<String>,
}

/// One request for a name in a mode.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Fresh for every request.
    pub id: ClaimId,
    /// The name space.
    pub kind: Kind,
    /// The name.
    pub name: Name,
    /// In which way.
    pub mode: Mode,
    /// Through which primitive. It changes nothing about who excludes whom.
    pub through: Through,
    /// How long the lease is, on engines with leases per hold.
    pub ttl: Duration,
    /// Whether the lease is renewed for as long as the guard lives.
    pub renew: bool,
    /// How much of its lease, or of its session, the holder relies on at any time; `None` for a
    /// fifth. An engine whose holds rest on a session proves that one early enough for the greatest
    /// margin of its holds.
    pub margin: Option<Duration>,
    /// After a lease that ran out, how long nobody else gets the lock; zero for none.
    pub lock_delay: Duration,
    /// The instant on our clock after which the caller has left: the engine refuses the request on
    /// arrival then.
    pub give_up: Option<Ticks>,
    /// Who asks.
    pub who: Arc<Identity>,
    /// A value that is stored with the hold: a candidate's id in an election.
    pub value: Option<Arc<str>>,
}

/// How a hold ends that nobody gives back, as its record says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ends {
    /// With its lease, which lasts for so long still.
    Lease(Duration),
    /// With the session of its client.
    Session,
    /// Never: only a forced release takes it away.
    Never,
}

/// Somebody who holds a lock, as far as the engine knows; foreign records leave fields empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Its claim, where the record is ours.
    pub claim: Option<ClaimId>,
    /// Host name.
    pub host: Option<String>,
    /// Process id on that host.
    pub pid: Option<u32>,
    /// Since when.
    pub since: Option<SystemTime>,
    /// Program name.
    pub program: Option<String>,
    /// The holder's own text.
    pub label: Option<String>,
    /// How it holds.
    pub mode: Option<Mode>,
    /// Its fencing token.
    pub token: Option<Token>,
    /// How its hold ends if it does not give it back; `None` where no time ends it, because it
    /// ends with its process, and where that is not known.
    pub ends: Option<Ends>,
    /// The value stored with the hold: the leader's id in an election.
    pub value: Option<String>,
}

impl Holder {
    /// How long its lease still lasts; `None` where there is no lease.
    pub fn expires_in(&self) -> Option<Duration> {
        match self.ends {
            Some(Ends::Lease(left)) => Some(left),
            _ => None,
        }
    }

    /// Whether both are the same hold: by the claim, and where the record is another program's by
    /// the token, the time of the grant and what it says.
    pub fn is_same_hold(&self, other: &Self) -> bool {
        match (self.claim, other.claim) {
            (Some(one), Some(other)) => one == other,
            (None, None) => {
                (self.token, self.since, &self.label, &self.value)
                    == (other.token, other.since, &other.label, &other.value)
            }
            _ => false,
        }
    }

    /// What is known from an identity, a mode and a claim.
    pub fn new(claim: ClaimId, who: &Identity, mode: Mode) -> Self {
        Self {
            claim: Some(claim),
            host: Some(who.host.clone()),
            pid: Some(who.pid),
            program: Some(who.program.clone()),
            label: who.label.clone(),
            mode: Some(mode),
            ..Self::default()
        }
    }
}

/// Somebody who waits in an engine's line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// Host name.
    pub host: Option<String>,
    /// Process id on that host.
    pub pid: Option<u32>,
    /// Since when.
    pub since: Option<SystemTime>,
    /// How many places stand before its own: those who wait, and not those who hold.
    pub ahead: Option<u32>,
    /// What it asks for.
    pub mode: Option<Mode>,
}

/// What an engine knows about one name.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entry {
    /// The name space.
    pub kind: Kind,
    /// The name.
    pub name: Name,
    /// A semaphore's limit.
    pub limit: Option<u16>,
    /// A latch's count.
    pub count: Option<u64>,
    /// Who holds it.
    pub holders: Vec<Holder>,
    /// Who waits for it.
    pub waiters: Vec<Waiter>,
    /// Why its record cannot be read. Then it is not known who holds or waits: it is not free.
    pub unreadable: Option<Unreadable>,
}

/// Why a record cannot be read: damaged, of another type, written by a newer layout, or closed to
/// us.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unreadable {
    /// [`ErrorKind::Corrupt`], [`ErrorKind::NewerLayout`] or [`ErrorKind::Refused`].
    pub kind: ErrorKind,
    /// What stands there, and what to do.
    pub message: String,
}

impl From<Error> for Unreadable {
    fn from(error: Error) -> Self {
        Self { kind: error.kind(), message: error.message().to_owned() }
    }
}

impl Entry {
    /// An entry about which nothing is known yet.
    pub fn new(kind: Kind, name: Name) -> Self {
        Self {
            kind,
            name,
            limit: None,
            count: None,
            holders: Vec::new(),
            waiters: Vec::new(),
            unreadable: None,
        }
    }

    /// Whether there is anything to tell: somebody holds it or waits for it, it keeps a latch's
    /// count, or its record cannot be read.
    ///
    /// ```
    /// use lockkeeper::{Entry, Kind, Name};
    ///
    /// let entry = Entry::new(Kind::Lock, Name::new("stock/sku-42")?);
    /// assert!(!entry.is_in_use());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn is_in_use(&self) -> bool {
        !self.holders.is_empty()
            || !self.waiters.is_empty()
            || self.count.is_some()
            || self.unreadable.is_some()
    }

    /// The error that the name answers with, when its record cannot be read.
    ///
    /// # Errors
    /// `Corrupt`, `NewerLayout`, `Refused`: what [`Entry::unreadable`] says.
    ///
    /// ```
    /// use lockkeeper::{Entry, Kind, Name};
    ///
    /// let entry = Entry::new(Kind::Lock, Name::new("stock/sku-42")?);
    /// assert!(entry.readable().is_ok());
    /// # Ok::<(), lockkeeper::Error>(())
    /// ```
    pub fn readable(&self) -> Result<()> {
        match &self.unreadable {
            None => Ok(()),
            Some(why) => Err(Error::new(why.kind, why.message.clone()).name(&self.name)),
        }
    }
}

#[cfg(test)]
impl Identity {
    /// A process of a test's, on this host.
    pub(crate) fn of_test(host: &str) -> Arc<Self> {
        let (pid, program) = (std::process::id(), "test".to_owned());
        Arc::new(Self { host: host.to_owned(), pid, started: 0, program, label: None })
    }
}

#[cfg(test)]
impl Claim {
    /// What a test asks for unless it says otherwise: a renewed lease of half a minute.
    pub(crate) fn of_test(name: &str, mode: Mode, who: Arc<Identity>) -> Self {
        Self {
            id: ClaimId::fresh(),
            kind: if mode.permits().is_some() { Kind::Semaphore } else { Kind::Lock },
            name: Name::new(name).expect("a good name"),
            mode,
            through: Through::of(mode),
            ttl: Duration::from_secs(30),
            renew: true,
            margin: None,
            lock_delay: Duration::ZERO,
            give_up: None,
            who,
            value: None,
        }
    }
}
