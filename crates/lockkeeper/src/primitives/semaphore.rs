//! Permits: at most `limit` at a time, over all processes.

use crate::engine::Change;
use crate::primitives::acquire::{Acquire, TryAcquire};
use crate::primitives::guard::Guard;
use crate::primitives::mutex::Base;
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind, Result};

/// A weighted semaphore. Permits die with their holder; the limit is stored with the name.
#[derive(Clone)]
pub struct Semaphore {
    pub(crate) base: Base,
    pub(crate) limit: u16,
}

impl Semaphore {
    /// Waits for `count` permits at once, 1 to the limit. Their guard carries no token.
    #[track_caller]
    pub fn acquire(&self, count: u16) -> Acquire<Guard> {
        Acquire::new(self.base.plan(self.mode(count)))
    }

    /// Takes `count` permits if they are free and nobody waits.
    #[track_caller]
    pub fn try_acquire(&self, count: u16) -> TryAcquire<Guard> {
        TryAcquire::new(self.base.plan(self.mode(count)))
    }

    fn mode(&self, count: u16) -> Mode {
        Mode::Permits { count, limit: self.limit }
    }

    /// Changes the limit that is stored for everybody, 1 to 65 535. Permits that are out stay out.
    ///
    /// # Errors
    /// `InvalidArgument`, `InvalidName`, `Unsupported`, `Unreachable`, `Refused`, `Closed`.
    pub async fn resize(&mut self, limit: u16) -> Result<()> {
        if limit == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a semaphore has at least 1 permit",
            ));
        }
        let name = self.base.name()?.clone();
        self.base.keeper.write(&Change::Resize(name, limit)).await?;
        self.limit = limit;
        Ok(())
    }
}

impl std::fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.base, f)
    }
}
