//! A statement for a transaction of the caller's own, which finds its row only while the lock is
//! held.

use crate::keeper::caller_io::park::wait;
use crate::primitives::blocking;
use crate::primitives::guard::{Guard, Held};
use crate::primitives::rwlock::WriteGuard;
use crate::words::claim::Mode;
use crate::words::error::{Error, ErrorKind, Result};
use crate::words::guarantee::Ability;
use crate::words::lost::Lost;
use crate::words::statement::Statement;

impl Held {
    /// A statement for a transaction of the caller's own, on the database that keeps the lock:
    /// whatever that transaction writes is committed only if the lock was held until then.
    ///
    /// It is to be the first statement of a transaction that writes: not one of its own, which
    /// would end at once (autocommit), and not behind a savepoint, whose rollback would take the
    /// row's lock along. Commit before the lock is given back: until the transaction has ended the
    /// lock cannot pass, so the release would wait for it.
    /// Others who ask meanwhile stand in line, or hear that it is busy. From this call on the hold
    /// is not handed to another task of this process, because nobody tells lockkeeper when the
    /// transaction ends. PostgreSQL can do this, for exclusive locks.
    ///
    /// ```no_run
    /// # async fn example(
    /// #     locks: &lockkeeper::Locks,
    /// #     db: &Database,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let guard = locks.mutex("stock/sku-42").lock().await?;
    /// let held = guard.statement().await?;
    /// db.run("BEGIN").await?;
    /// if db.run(&held.to_string()).await? == 1 {
    ///     db.run("UPDATE stock SET n = n - 1 WHERE sku = 'sku-42'").await?;
    ///     db.run("COMMIT").await?;
    /// } else {
    ///     db.run("ROLLBACK").await?; // the lock is gone
    /// }
    /// # Ok(())
    /// # }
    /// # struct Database;
    /// # impl Database {
    /// #     async fn run(&self, _: &str) -> Result<u64, std::io::Error> { Ok(1) }
    /// # }
    /// ```
    ///
    /// # Errors
    /// `Lost` when the lock is gone; `Unsupported` where the engine cannot do it, for a lock that
    /// is not exclusive, and where the table lacks the index that it needs; `Unreachable`.
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn statement(&self) -> Result<Statement> {
        let cell = self.cell();
        let entry = &cell.entry;
        let named = |error: Error| error.name(&entry.name).engine(entry.keeper.facts.engine);
        self.cell().not_lost()?;
        let cannot = |text: &str| named(Error::new(ErrorKind::Unsupported, text));
        if !entry.keeper.facts.can.has(Ability::Statements) {
            return Err(cannot(
                "this engine has no statement for transactions: have the token checked instead",
            ));
        }
        if !cell.mode_is(Mode::Exclusive) {
            return Err(cannot("only an exclusive lock has a statement for transactions"));
        }
        // First, so that no turn gets it while the answer is on its way.
        entry.given_out(cell.hold);
        let answer = entry.keeper.engine.statement(cell.hold);
        match entry.keeper.answer(answer).await? {
            Err(error) if error.kind() == ErrorKind::Lost => {
                entry.ended(cell.hold, Lost::TakenAway, false);
                self.cell().not_lost()?;
                Err(named(error))
            }
            Err(error) => Err(named(error)),
            Ok(statement) => self.cell().not_lost().map(|()| statement),
        }
    }
}

impl Guard {
    /// A statement for a transaction of the caller's own, which finds its row only while the lock
    /// is held; see [`Held::statement`].
    ///
    /// # Errors
    /// As [`Held::statement`].
    ///
    /// # Cancel safety
    /// Cancel safe.
    pub async fn statement(&self) -> Result<Statement> {
        self.held().statement().await
    }
}

impl Held {
    /// [`Held::statement`] for threads.
    ///
    /// # Errors
    /// The same.
    pub fn statement_blocking(&self) -> Result<Statement> {
        wait(self.statement())
    }
}

impl blocking::Guard<Guard> {
    /// A statement for a transaction of the caller's own, which finds its row only while the lock
    /// is held; see [`Held::statement`].
    ///
    /// # Errors
    /// The same.
    pub fn statement(&self) -> Result<Statement> {
        self.held().statement_blocking()
    }
}

impl blocking::Guard<WriteGuard> {
    /// A statement for a transaction of the caller's own, which finds its row only while the lock
    /// is held; see [`Held::statement`].
    ///
    /// # Errors
    /// The same.
    pub fn statement(&self) -> Result<Statement> {
        self.held().statement_blocking()
    }
}
