//! What an engine can promise (design §5), printed and required (R14).

use std::fmt;
use std::time::Duration;

use crate::name::Kind;

/// How strong an engine's promise of one holder at a time is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Class {
    /// Arbiter and holder die together.
    OneKernel,
    /// Effects are safe under any pause, delay or clock, provided the resource checks the token.
    Fenced,
    /// No two holders at once while clock rates stay within the drift allowance and acknowledged writes survive.
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
    /// No two holders at once while clock rates stay within the drift allowance: not an EFFICIENCY engine.
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

/// What the engine can do; what is false answers [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Can {
    /// Shared mode.
    pub shared: bool,
    /// Upgradable mode, upgrade and downgrade.
    pub upgrade: bool,
    /// Semaphores.
    pub permits: bool,
    /// Elections.
    pub election: bool,
    /// Latches.
    pub latch: bool,
    /// Double barriers.
    pub barrier: bool,
    /// Asking a holder to let go.
    pub ask: bool,
    /// Listing of names.
    pub list: bool,
    /// Forced release.
    pub force: bool,
    /// `lock_delay`.
    pub delay: bool,
    /// Changing a semaphore's limit, which the engine stores and holds everybody to.
    pub resize: bool,
    /// A line for locks whose order the engine keeps between processes.
    pub fair: bool,
    /// The same for semaphores.
    pub fair_permits: bool,
    /// A writer that waits is not passed by readers for ever.
    pub writer_turns: bool,
    /// Host, process, program and label of holders and waiters are recorded.
    pub identity: bool,
}

impl Can {
    /// Everything.
    pub const ALL: Self = Self {
        shared: true,
        upgrade: true,
        permits: true,
        election: true,
        latch: true,
        barrier: true,
        ask: true,
        list: true,
        force: true,
        delay: true,
        resize: true,
        fair: true,
        fair_permits: true,
        writer_turns: true,
        identity: true,
    };

    /// Whether a line keeps the order between processes for what is of this kind.
    pub const fn is_fair(&self, kind: Kind) -> bool {
        if matches!(kind, Kind::Semaphore) { self.fair_permits } else { self.fair }
    }
}

/// What an engine says about itself, from the values actually negotiated (R14).
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
    /// Whether a hold has a lease of its own, so that `ttl` and renewal mean something.
    pub leases: bool,
    /// How long the session lasts that carries all holds, as it was negotiated; `None` where there
    /// is none. The engine renews it by itself, and tells that by
    /// [`Event::Renewed`](crate::engine::Event::Renewed).
    pub session: Option<Duration>,
    /// Whether holds may pass inside the process (R9); false for layouts whose counter belongs to others.
    pub hand_off: bool,
    /// Whether an uncontended attempt is answered in the caller, without a task switch.
    pub immediate: bool,
    /// Whether the first poll of an answer that comes later may be made in the caller: it does not wait, and it sends no event.
    pub early: bool,
    /// How long one request may take before it counts as unanswered; `None` where the lock is kept on this machine.
    pub request_timeout: Option<Duration>,
    /// What it can do.
    pub can: Can,
    /// What would break the promise, a sentence each.
    pub breaks: Vec<String>,
    /// What is worth changing.
    pub warnings: Vec<Warning>,
}

impl Description {
    /// A description with the strongest defaults; engines then take away what they cannot do. What the methods of an engine begin
    /// without, barriers and asking, is taken away already.
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
            leases: false,
            session: None,
            hand_off: true,
            immediate: false,
            early: false,
            request_timeout: None,
            can: Can { barrier: false, ask: false, ..Can::ALL },
            breaks: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// What [`Description::can`] denies, in words.
    fn lacks(&self) -> Vec<&'static str> {
        let can = &self.can;
        [
            (can.shared, "shared mode"),
            (can.upgrade, "upgrades"),
            (can.permits, "semaphores"),
            (can.election, "elections"),
            (can.latch, "latches"),
            (can.barrier, "double barriers"),
            (can.list, "listing"),
            (can.force, "forced release"),
            (can.ask, "requests to let go"),
            (can.delay, "lock delay"),
        ]
        .into_iter()
        .filter_map(|(can, what)| (!can).then_some(what))
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
}

/// One line for a log at start-up: engine, class, T, what the engine lacks, and the ids of its warnings.
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
        about.can.shared = false;
        about.warnings.push(Warning { id: "no-aof", text: "long text".to_owned() });
        assert_eq!(
            about.to_string(),
            "redis (plain): EFFICIENCY, not fenced, seen by other hosts, recovery within 30s, at h:6379\\nx; \
             without shared mode, double barriers, requests to let go; warnings: no-aof"
        );
    }
}
