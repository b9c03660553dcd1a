//! Writes into the store that keeps the lock, done only while the lock is held.

use crate::primitives::guard::{Guard, Held};
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Ability;
use crate::words::lost::Lost;
use crate::words::write::Write;

/// How many writes one call may ask for.
const WRITES_MAX: usize = 64;

impl Held {
    /// Carries out writes in the store that keeps the lock: all or none, and only if the lock is
    /// still held at that moment.
    ///
    /// The store itself checks it, in the same transaction. So a write of somebody who was paused,
    /// and who lost the lock meanwhile, is refused under any clock and any delay, without a token.
    /// ZooKeeper can do this.
    ///
    /// ```no_run
    /// # async fn example(locks: &lockkeeper::Locks) -> lockkeeper::Result<()> {
    /// use lockkeeper::Write;
    /// let guard = locks.mutex("stock/sku-42").lock().await?;
    /// let left = Write::put("left/sku-42", "41");
    /// guard.write([left, Write::create("orders/1001", "sku-42")]).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Lost` when the lock is gone: nothing was written. `Refused` when one of the writes cannot
    /// be done, such as a put where nothing is: nothing was written. `Unknown` when the answer was
    /// lost. `Unsupported` where the store cannot do it; `InvalidName` for a path that it cannot
    /// say; `InvalidArgument` for none or more than 64, and for more than a megabyte;
    /// `Unreachable`.
    ///
    /// # Cancel safety
    /// Once polled it happens, also when it is dropped.
    pub async fn write(&self, writes: impl IntoIterator<Item = Write>) -> Result<()> {
        let (cell, writes) = (self.cell(), writes.into_iter().collect::<Vec<Write>>());
        let entry = &cell.entry;
        let named = |error: Error| error.name(&entry.name).engine(entry.keeper.facts.engine);
        if writes.is_empty() || writes.len() > WRITES_MAX {
            let text =
                format!("write() takes 1 to {WRITES_MAX} writes and {} were given", writes.len());
            return Err(named(Error::new(ErrorKind::InvalidArgument, text)));
        }
        self.cell().not_lost()?;
        if !entry.keeper.facts.can.has(Ability::HeldWrites) {
            let text =
                "this engine does not write for the holder: give the token to what you write to";
            return Err(named(Error::new(ErrorKind::Unsupported, text)));
        }
        let answer = entry.keeper.engine.write_held(cell.hold, &writes);
        match entry.keeper.answer(answer).await? {
            Err(error) if error.kind() == ErrorKind::Lost => {
                entry.ended(cell.hold, Lost::TakenAway, false);
                self.cell().not_lost()?;
                Err(named(error))
            }
            result => result.map_err(named),
        }
    }
}

impl Guard {
    /// Carries out writes in the store that keeps the lock, only if the lock is still held; see
    /// [`Held::write`].
    ///
    /// # Errors
    /// As [`Held::write`].
    ///
    /// # Cancel safety
    /// Once polled it happens, also when it is dropped.
    pub async fn write(&self, writes: impl IntoIterator<Item = Write>) -> Result<()> {
        self.held().write(writes).await
    }
}
