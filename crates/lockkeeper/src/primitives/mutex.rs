//! Mutual exclusion: the exclusive mode of a name.

use std::future::Future;
use std::sync::Arc;

use crate::keeper::Keeper;
use crate::keeper::entry::Entry;
use crate::keeper::entry::request::Request;
use crate::primitives::acquire::{Acquire, Plan, TryAcquire};
use crate::primitives::guard::{Guard, Held};
use crate::words::claim::Mode;
use crate::words::error::{Error, Result};
use crate::words::name::{Kind, Name};

/// A lock that one holder has at a time, on every engine. Cloning it costs nothing; making it does
/// no I/O.
#[derive(Clone)]
pub struct Mutex(pub(crate) Base);

/// What every primitive is made of: a name of one kind at one keeper.
#[derive(Clone)]
pub(crate) struct Base {
    pub(crate) keeper: Arc<Keeper>,
    kind: Kind,
    entry: Result<Arc<Entry>>,
}

impl Base {
    pub(crate) fn new(keeper: &Arc<Keeper>, kind: Kind, name: &str) -> Self {
        let name = Name::new(name).map_err(|e| e.engine(keeper.facts.engine));
        let entry = name.map(|name| keeper.entry(kind, &name));
        Self { keeper: keeper.clone(), kind, entry }
    }

    #[track_caller]
    pub(crate) fn plan(&self, mode: Mode) -> Plan {
        let request = Request::of(&self.keeper, mode);
        Plan { entry: self.entry.clone(), request }
    }

    pub(crate) fn name(&self) -> Result<&Name> {
        self.entry.as_ref().map(|entry| &entry.name).map_err(Clone::clone)
    }
}

impl std::fmt::Debug for Base {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct(self.kind.as_str())
            .field("name", &self.name())
            .field("engine", &self.keeper.facts.engine)
            .finish()
    }
}

impl Mutex {
    /// Waits for the lock: without a [`timeout`](Acquire::timeout) for as long as it takes.
    ///
    /// A server that is away, or refuses for now, is waited for as well: one that is full, out of
    /// memory or cannot save to its disk. The log says so after 10 s.
    #[track_caller]
    pub fn lock(&self) -> Acquire<Guard> {
        Acquire::new(self.0.plan(Mode::Exclusive))
    }

    /// Takes the lock if nobody has it or waits for it.
    #[track_caller]
    pub fn try_lock(&self) -> TryAcquire<Guard> {
        TryAcquire::new(self.0.plan(Mode::Exclusive))
    }

    /// Waits for the lock and runs `work` under it: released on every path, and `work` is dropped
    /// when the lock is lost.
    ///
    /// # Errors
    /// The work's own, or what acquiring gave, or `Lost`.
    ///
    /// # Cancel safety
    /// Dropping it drops the work and releases.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
    /// # let locks = lockkeeper::Locks::open("memory:").await?;
    /// let stock = locks.mutex("stock/sku-42");
    /// let token = stock.with(|held| async move { held.token() }).await?;
    /// # assert!(token.get() > 0);
    /// # Ok(()) }
    /// ```
    pub async fn with<T, E, F>(&self, work: impl FnOnce(Held) -> F) -> Result<T, E>
    where
        E: From<Error>,
        F: Future<Output = Result<T, E>>,
    {
        let guard = self.lock().await?;
        let done = guard.try_run(work(guard.held())).await;
        // The work is done or dropped by now; how its lock went back changes nothing about it.
        drop(guard);
        done
    }
}

impl std::fmt::Debug for Mutex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.0, f)
    }
}
