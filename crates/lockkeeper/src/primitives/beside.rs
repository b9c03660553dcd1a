//! What stands beside a lock of a name in a layout that does not exclude it.

use crate::open::locks::Locks;
use crate::words::error::Result;
use crate::words::guarantee::Warning;
use crate::words::name::Name;

impl Locks {
    /// Looks for locks that other programs hold under this name in a layout that does not exclude
    /// this one's: one warning for each such layout, which says what to give the URL instead.
    ///
    /// On ZooKeeper an acquisition tells the same, by `tracing` and by
    /// [`Seen::Warned`](crate::observe::Seen::Warned). Locks alone are looked for here, and only
    /// those that exclude neither a mutex nor a read-write lock of ours. On Redis nothing but this
    /// looks at the keys of other layouts: asking for a lock stays one message. Engines without
    /// such layouts answer nothing.
    ///
    /// # Errors
    /// `InvalidName`; `Unreachable`, `Refused`, `Closed`.
    ///
    /// # Cancel safety
    /// It changes nothing, and may be dropped at any time.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// let locks = lockkeeper::Locks::open("memory:").await?;
    /// assert!(locks.other_layouts("nightly").await?.is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn other_layouts(&self, name: impl AsRef<str>) -> Result<Vec<Warning>> {
        let name = Name::new(name)?;
        self.keeper.check_open()?;
        let answer = self.keeper.answer(self.keeper.engine.other_layouts(&name)).await;
        let found = answer.and_then(|found| found);
        found.map_err(|error| error.name(&name).engine(self.keeper.facts.engine))
    }
}
