//! What an engine can promise, printed and required.

use std::fmt;
use std::time::Duration;

use crate::words::error::{Error, ErrorKind, Result};
use crate::words::name::Kind;

/// How strong an engine's promise of one holder at a time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Arbiter and holder die together.
    OneKernel,
    /// Effects are safe under any pause, delay or clock, provided the resource checks the token. No
    /// engine of this crate has it by itself: see [`Description::fenced`].
    Fenced,
    /// No two holders at once while clock rates stay within the drift allowance and acknowledged
    /// writes survive.
    Timed,
    /// One ordinary fault can give two holders.
    Efficiency,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OneKernel => "CORRECTNESS (one kernel)",
            Self::Fenced => "CORRECTNESS (fenced)",
            Self::Timed => "TIMED",
            Self::Efficiency => "EFFICIENCY",
        })
    }
}

/// What [`Locks::require`](crate::Locks::require) can ask for, at start-up and not at the incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Require {
    /// Other machines see the lock.
    Hosts,
    /// No two holders at once while clock rates stay within the drift allowance: not an EFFICIENCY
    /// engine.
    Timed,
    /// Every exclusive turn carries a fencing token that only ever grows.
    Fenced,
}

impl Require {
    /// The word of the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Hosts => "hosts",
            Self::Timed => "timed",
            Self::Fenced => "fenced",
        }
    }
}

/// Something about an engine's configuration that is worth knowing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// A stable word.
    pub id: &'static str,
    /// What it means and what to do.
    pub text: String,
}

/// How a hold ends that nobody gives back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expiry {
    /// With its process, and never before: a kernel's lock.
    WithProcess,
    /// By a lease of its own, which lasts the claim's `ttl` and which the keeper renews.
    PerHold {
        /// How long, at most, a pushed grant is kept for a claim that has not confirmed it;
        /// `None` where no grant is pushed before it is confirmed.
        claim_lease: Option<Duration>,
    },
    /// With a session that carries all holds. The engine renews it by itself, and tells that by
    /// [`Event::Renewed`](crate::engine::Event::Renewed).
    ///
    /// A connection to a server that ends its locks with it (an advisory lock of PostgreSQL) is a
    /// session, too: a partition ends it while its process lives, and the server gives the lock on
    /// before the holder has noticed, unless the holder stops in time. `ttl` is how long the
    /// server keeps a silent connection, by its keepalives. Every answer on the connection is a
    /// renewal. A connection that breaks is [`Event::Ended`](crate::engine::Event::Ended) with its
    /// lease, whether the server has noticed or not. A stopped process keeps its connection open:
    /// [`Description::recovery_stopped`] says so.
    Session {
        /// How long it lasts without a sign of life, as it was negotiated.
        ttl: Duration,
    },
}

impl Expiry {
    /// Whether a hold has a lease of its own, so that `ttl` and renewal mean something.
    pub fn is_per_hold(self) -> bool {
        matches!(self, Self::PerHold { .. })
    }

    /// Whether a holder that lives, and is late, can lose its hold.
    pub fn is_timed(self) -> bool {
        !matches!(self, Self::WithProcess)
    }

    /// How long the session lasts that carries all holds, where there is one.
    pub fn session(self) -> Option<Duration> {
        match self {
            Self::Session { ttl } => Some(ttl),
            Self::WithProcess | Self::PerHold { .. } => None,
        }
    }

    /// How long a pushed grant is kept for a claim that has not confirmed it.
    pub fn claim_lease(self) -> Option<Duration> {
        match self {
            Self::PerHold { claim_lease } => claim_lease,
            Self::WithProcess | Self::Session { .. } => None,
        }
    }
}

/// Something that not every engine can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ability {
    /// Shared mode.
    Shared,
    /// Upgradable mode, upgrade and downgrade.
    Upgrade,
    /// Semaphores.
    Permits,
    /// Elections.
    Election,
    /// Latches.
    Latch,
    /// Double barriers.
    Barrier,
    /// Asking a holder to let go.
    Ask,
    /// Listing of names.
    List,
    /// Forced release.
    Force,
    /// `lock_delay`.
    Delay,
    /// Changing a semaphore's limit, which the engine stores and holds everybody to.
    Resize,
    /// A line for locks whose order the engine keeps between processes.
    Fair,
    /// The same for semaphores.
    FairPermits,
    /// A writer that waits is not passed by readers for ever.
    WriterTurns,
    /// Host, process, program and label of holders and waiters are recorded.
    Identity,
    /// Several locks in one message, all or none.
    Together,
    /// Writes in the store that are done only while the hold is there.
    HeldWrites,
    /// Statements for transactions of the caller's own, which find their row only while the hold is
    /// there.
    Statements,
}

impl Ability {
    /// All of them.
    pub const ALL: &'static [Self] = &[
        Self::Shared,
        Self::Upgrade,
        Self::Permits,
        Self::Election,
        Self::Latch,
        Self::Barrier,
        Self::Ask,
        Self::List,
        Self::Force,
        Self::Delay,
        Self::Resize,
        Self::Fair,
        Self::FairPermits,
        Self::WriterTurns,
        Self::Identity,
        Self::Together,
        Self::HeldWrites,
        Self::Statements,
    ];

    /// What an engine without it has not.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Shared => "shared locks",
            Self::Upgrade => "upgradable locks",
            Self::Permits => "semaphores",
            Self::Election => "elections",
            Self::Latch => "latches",
            Self::Barrier => "double barriers",
            Self::Ask => "requests to let go",
            Self::List => "lists of names",
            Self::Force => "forced release",
            Self::Delay => "lock delay",
            Self::Resize => "stored limits",
            Self::Fair => "line of its own",
            Self::FairPermits => "line for permits",
            Self::WriterTurns => "turns for writers",
            Self::Identity => "records of holders",
            Self::Together => "several locks in one message",
            Self::HeldWrites => "writes under a hold",
            Self::Statements => "statements for transactions",
        }
    }
}

/// What the methods of an engine begin without.
const WITHOUT: &[Ability] =
    &[Ability::Barrier, Ability::Ask, Ability::Together, Ability::HeldWrites, Ability::Statements];

/// What the engine can do; what it cannot answers
/// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
///
/// ```
/// use lockkeeper::{Ability, Can};
///
/// let can = Can::ALL.without(&[Ability::List]);
/// assert!(can.has(Ability::Shared) && !can.has(Ability::List));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Can(u32);

impl Can {
    /// Nothing but mutexes.
    pub const NONE: Self = Self(0);

    /// Everything.
    pub const ALL: Self = Self::NONE.with(Ability::ALL);

    /// Whether this is among them.
    pub const fn has(self, ability: Ability) -> bool {
        self.0 & (1 << ability as u32) != 0
    }

    /// These, too.
    #[must_use]
    pub const fn with(mut self, abilities: &[Ability]) -> Self {
        let mut rest = abilities;
        while let [first, others @ ..] = rest {
            self.0 |= 1 << *first as u32;
            rest = others;
        }
        self
    }

    /// All but these.
    #[must_use]
    pub const fn without(self, abilities: &[Ability]) -> Self {
        Self(self.0 & !Self::NONE.with(abilities).0)
    }

    /// Whether a line keeps the order between processes for what is of this kind.
    pub const fn is_fair(self, kind: Kind) -> bool {
        let line =
            if matches!(kind, Kind::Semaphore) { Ability::FairPermits } else { Ability::Fair };
        self.has(line)
    }
}

impl fmt::Debug for Can {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Ability::ALL.iter().filter(|ability| self.has(**ability))).finish()
    }
}

/// What an engine says about itself, from the values actually negotiated.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Description {
    /// The engine's name: `file`, `redis`, …
    pub engine: &'static str,
    /// The layout's name.
    pub layout: &'static str,
    /// The server and its version, or the directory and its file system.
    pub server: String,
    /// The class.
    pub class: Class,
    /// Whether tokens only ever grow.
    pub fenced: bool,
    /// Whether other machines see the lock.
    pub hosts: bool,
    /// T: until another client can get the lock if the holder dies now.
    pub recovery: Duration,
    /// The same for a holder that is stopped and not dead; `None` when nothing bounds it.
    pub recovery_stopped: Option<Duration>,
    /// How a hold ends that nobody gives back.
    pub expiry: Expiry,
    /// Whether holds may pass inside the process; false for layouts whose counter belongs to
    /// others.
    pub hand_off: bool,
    /// Whether an uncontended attempt is answered in the caller, without a task switch.
    pub immediate: bool,
    /// Whether the first poll of an answer that comes later may be made in the caller: it does not
    /// wait, and it sends no event.
    pub early: bool,
    /// The longest lease that it grants, where that may be less than the 24h that every claim is
    /// held to.
    pub max_ttl: Option<Duration>,
    /// How long one request may take before it counts as unanswered; `None` where the lock is kept
    /// on this machine.
    pub request_timeout: Option<Duration>,
    /// What it can do.
    pub can: Can,
    /// Where what it cannot do is found, such as in another layout: abilities, and what to do for
    /// them. The first entry that has an ability counts; without one, another engine is advised.
    pub elsewhere: &'static [(Can, &'static str)],
    /// What would break the promise, a sentence each.
    pub breaks: Vec<String>,
    /// What is worth changing.
    pub warnings: Vec<Warning>,
}

impl Description {
    /// A description with the strongest defaults; engines then take away what they cannot do. What
    /// the methods of an engine begin without is taken away already: barriers, asking, several
    /// locks in one message, writes under a hold, statements.
    pub fn new(engine: &'static str, layout: &'static str, class: Class) -> Self {
        Self {
            engine,
            layout,
            server: String::new(),
            class,
            fenced: true,
            hosts: false,
            recovery: Duration::ZERO,
            recovery_stopped: None,
            expiry: Expiry::WithProcess,
            hand_off: true,
            immediate: false,
            early: false,
            max_ttl: None,
            request_timeout: None,
            can: Can::ALL.without(WITHOUT),
            elsewhere: &[],
            breaks: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// What [`Description::can`] denies, in words.
    fn lacks(&self) -> Vec<&'static str> {
        [
            (Ability::Shared, "shared mode"),
            (Ability::Upgrade, "upgrades"),
            (Ability::Permits, "semaphores"),
            (Ability::Election, "elections"),
            (Ability::Latch, "latches"),
            (Ability::Barrier, "double barriers"),
            (Ability::List, "listing"),
            (Ability::Force, "forced release"),
            (Ability::Ask, "requests to let go"),
            (Ability::Delay, "lock delay"),
        ]
        .into_iter()
        .filter_map(|(ability, what)| (!self.can.has(ability)).then_some(what))
        .collect()
    }

    /// Whether a requirement is met.
    pub fn meets(&self, require: Require) -> bool {
        match require {
            Require::Hosts => self.hosts,
            Require::Timed => self.class != Class::Efficiency,
            Require::Fenced => self.fenced,
        }
    }

    /// Refuses an engine that cannot promise this.
    ///
    /// # Errors
    /// `NotMet`, saying what the engine promises instead.
    pub fn require(&self, require: Require) -> Result<()> {
        if self.meets(require) {
            return Ok(());
        }
        let what = match require {
            Require::Hosts => "other machines do not see its locks",
            Require::Timed => "one ordinary fault can give two holders",
            Require::Fenced => "it has no fencing tokens, or they can go back",
        };
        let text = format!(
            "{} was required and {} cannot promise it: {what} (class {}); choose another engine, \
             or require less",
            require.as_str(),
            self.engine,
            self.class
        );
        Err(Error::new(ErrorKind::NotMet, text).engine(self.engine))
    }
}

/// One line for a log at start-up: engine, class, T, what the engine lacks, and the ids of its
/// warnings.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// let locks = lockkeeper::Locks::open("memory:").await?;
/// assert!(locks.describe().to_string().starts_with("memory: CORRECTNESS (one kernel), fenced"));
/// # Ok(()) }
/// ```
impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.engine)?;
        if self.layout != self.engine {
            write!(f, " ({})", self.layout)?;
        }
        write!(f, ": {}, {}", self.class, if self.fenced { "fenced" } else { "not fenced" })?;
        f.write_str(if self.hosts { ", seen by other hosts" } else { ", this machine only" })?;
        write!(f, ", recovery within {:?}", self.recovery)?;
        if !self.server.is_empty() {
            write!(f, ", at {}", self.server.escape_debug())?;
        }
        let lacks = self.lacks();
        if !lacks.is_empty() {
            write!(f, "; without {}", lacks.join(", "))?;
        }
        let warnings: Vec<_> = self.warnings.iter().map(|warning| warning.id).collect();
        if !warnings.is_empty() {
            write!(f, "; warnings: {}", warnings.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c29_a_description_prints_one_line_that_names_what_is_lacking_and_every_warning() {
        let mut about = Description::new("redis", "plain", Class::Efficiency);
        about.server = "h:6379\nx".to_owned();
        about.fenced = false;
        about.hosts = true;
        about.recovery = Duration::from_secs(30);
        about.can = about.can.without(&[Ability::Shared]);
        about.warnings.push(Warning { id: "no-aof", text: "long text".to_owned() });
        assert_eq!(
            about.to_string(),
            "redis (plain): EFFICIENCY, not fenced, seen by other hosts, recovery within 30s, at \
             h:6379\\nx; \
             without shared mode, double barriers, requests to let go; warnings: no-aof"
        );
    }
    #[test]
    fn what_an_engine_can_is_a_set() {
        for &ability in Ability::ALL {
            assert!(Can::ALL.has(ability) && !Can::NONE.has(ability), "{ability:?}");
            assert_eq!(Can::NONE.with(&[ability]).without(&[ability]), Can::NONE);
        }
        let can = Can::NONE.with(&[Ability::FairPermits, Ability::Permits]);
        assert!(can.is_fair(Kind::Semaphore) && !can.is_fair(Kind::Lock));
        assert_eq!(format!("{can:?}"), "{Permits, FairPermits}");
    }
}
