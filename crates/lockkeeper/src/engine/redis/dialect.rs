//! What differs between the layouts that belong to other programs: keys, values, channels, and what
//! they can say at all.

use std::time::Duration;

use super::script::{Call, Which};
use crate::engine::Number;
use crate::engine::redis::client::texts::Texts;
use crate::engine::words::millis;
use crate::words::claim::Claim;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::{Ability, Can, Description};
use crate::words::id::ClaimId;
use crate::words::name::{Kind, Name};

/// What the layout native can instead.
pub(super) const IN_NATIVE: (Can, &str) =
    (Can::ALL.without(&[Ability::Barrier, Ability::Statements]), "use layout=native");

/// One foreign layout.
pub(super) trait Dialect: Send + Sync + 'static {
    /// Takes away what it cannot do.
    fn describe(&self, description: &mut Description);

    /// What a claim is there.
    ///
    /// # Errors
    /// What the layout cannot say, with the reason (R12).
    fn terms(&self, claim: &Claim) -> Result<Terms>;

    /// Who holds a name; the script answers as `plain/inspect.lua` does.
    ///
    /// # Errors
    /// What the layout cannot say.
    fn inspect(&self, kind: Kind, name: &Name) -> Result<Call>;

    /// Takes a name away from whoever holds it; unless `from` is empty, only while nobody but these
    /// identities does.
    ///
    /// # Errors
    /// What the layout cannot do.
    fn force(&self, kind: Kind, name: &Name, from: &[&str]) -> Result<Call>;

    /// Removes what a lock leaves once nobody uses it; `None` when it leaves nothing.
    fn clear(&self, name: &Name) -> Option<Call> {
        _ = name;
        None
    }

    /// Sets or counts down a latch.
    ///
    /// # Errors
    /// What the layout cannot do.
    fn latch(&self, name: &Name, step: LatchStep) -> Result<Call> {
        _ = (name, step);
        Err(unsupported("this layout has no latches: use layout=native"))
    }

    /// Changes a semaphore's limit.
    ///
    /// # Errors
    /// What the layout cannot do.
    fn resize(&self, name: &Name, limit: u16) -> Result<Call> {
        _ = (name, limit);
        Err(unsupported("this layout stores no limit: use layout=native"))
    }

    /// The channel that tells of changes of a name.
    fn channel(&self, kind: Kind, name: &Name) -> Option<String>;

    /// The channel that a waiter for a lock of that name listens to.
    fn waits_at(&self, name: &Name) -> Option<String> {
        self.channel(Kind::Lock, name)
    }

    /// The keys whose invalidation tells of a change.
    fn watched_key(&self, kind: Kind, name: &Name) -> Option<String> {
        _ = (kind, name);
        None
    }
}

/// What is done to a latch.
#[derive(Clone, Copy, Debug)]
pub(super) enum LatchStep {
    /// Closed with this count.
    Set(u64),
    /// Counted down, once for each id.
    Down(ClaimId),
}

/// How one claim is asked for, kept and given back.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    /// The call that asks, without its time limit.
    acquire: Call,
    /// Where the time limit goes: after this many arguments come it and how to ask.
    limit_at: usize,
    pub(super) renew: Call,
    pub(super) release: Call,
    /// Whether renewals of several holds fit into one call.
    pub(super) batch: bool,
    /// The layout keeps a line, so that leaving has to be said.
    pub(super) has_line: bool,
    /// What wakes a waiter: a channel, or else the invalidation of the key.
    pub(super) channel: Option<String>,
    pub(super) key: String,
    /// What the script's third word means.
    pub(super) counted: bool,
}

impl Terms {
    /// Terms of a lock: one key first, wake-up by channel or by invalidation.
    pub(super) fn new(acquire: Call, limit_at: usize, renew: Call, release: Call) -> Self {
        let key = acquire.keys.first().unwrap_or_default().to_owned();
        Self {
            acquire,
            limit_at,
            renew,
            release,
            batch: true,
            has_line: false,
            channel: None,
            key,
            counted: false,
        }
    }

    /// The call that asks; refused on arrival after `not_after_us`.
    pub(super) fn ask(&self, not_after_us: u64, how: &str) -> Call {
        let mut call = self.acquire.clone();
        let mut limit = Texts::default();
        limit.push_number(not_after_us);
        limit.push(how);
        call.arguments.insert(self.limit_at, &limit);
        call
    }

    /// The number that a grant carries.
    pub(super) fn number(&self, text: Option<&str>) -> Number {
        match text.and_then(|t| t.parse().ok()) {
            Some(token) if self.counted => Number::Raw(token),
            _ => Number::None,
        }
    }
}

/// A call from its parts.
pub(super) fn call(script: Which, keys: &[&str], arguments: &[&str]) -> Call {
    Call { script, keys: keys.iter().collect(), arguments: arguments.iter().collect() }
}

/// A lease as scripts take it.
pub(super) fn lease(ttl: Duration) -> String {
    millis(ttl).to_string()
}

/// A layout that cannot do something.
pub(super) fn unsupported(why: impl Into<String>) -> Error {
    Error::new(ErrorKind::Unsupported, why)
}
