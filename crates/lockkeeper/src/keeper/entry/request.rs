//! What a caller asks for, as the builders collect it.

use std::panic::Location;
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::Duration;

use crate::primitives::owner::Owner;
use crate::protocol::line::Shape;
use crate::words::claim::{Identity, Mode, Through};
use crate::words::error::{Error, ErrorKind, Result};

/// The shortest and the longest ttl (R13).
pub(crate) const TTL_MIN: Duration = Duration::from_millis(200);
pub(crate) const TTL_MAX: Duration = Duration::from_secs(24 * 3600);

/// One acquisition, as asked for.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    /// How much of the lease its holder relies on.
    pub(crate) margin: Option<Duration>,
    pub(crate) lock_delay: Duration,
    pub(crate) timeout: Option<Duration>,
    /// How long the engine may be silent before the wait ends.
    pub(crate) unreachable_after: Option<Duration>,
    pub(crate) try_only: bool,
    pub(crate) hold_at_most: Option<Duration>,
    pub(crate) owner: Option<Owner>,
    pub(crate) thread: Option<ThreadId>,
    /// Its thread waits for this alone, and as long as it takes.
    pub(crate) here: bool,
    /// Who is shown as the holder, where it is not this process as it is.
    pub(crate) who: Option<Arc<Identity>>,
    pub(crate) value: Option<Arc<str>>,
    /// Through which primitive.
    pub(crate) through: Through,
    pub(crate) taken_at: &'static Location<'static>,
}

impl Request {
    /// Checks every range (R13).
    pub(crate) fn check(&self) -> Result<()> {
        check_ttl(self.ttl)?;
        if self.lock_delay > TTL_MAX {
            return Err(invalid(format!(
                "lock_delay is at most 24h and {:?} was requested",
                self.lock_delay
            )));
        }
        if let Mode::Permits { count, limit } = self.mode
            && (count == 0 || count > limit)
        {
            return Err(invalid(format!(
                "{count} permits of {limit} are not available: request 1 to {limit}"
            )));
        }
        Ok(())
    }

    /// Whether it is asked for again while the engine cannot be reached, until it gives up.
    pub(crate) fn is_patient(&self) -> bool {
        !self.try_only && (self.timeout.is_some() || self.unreachable_after.is_some())
    }

    pub(crate) fn shape(&self) -> Shape {
        Shape {
            mode: self.mode,
            ttl: self.ttl,
            renew: self.renew,
            margin: self.margin,
            lock_delay: self.lock_delay,
            own_value: self.value.is_some(),
            through: self.through,
        }
    }
}

/// A ttl between 200 ms and 24 h.
pub(crate) fn check_ttl(ttl: Duration) -> Result<()> {
    if ttl < TTL_MIN || ttl > TTL_MAX {
        return Err(invalid(format!("a ttl is between 200ms and 24h and {ttl:?} was requested")));
    }
    Ok(())
}

pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, message)
}
