//! What a [`Locks`] is opened with that its URL cannot say.

use std::sync::Arc;
use std::time::Duration;

use crate::engine::{Engine, Registration};
use crate::keeper::entry::request::{check_ttl, invalid};
use crate::keeper::{Keeper, Settings};
use crate::observe::Observer;
use crate::open::locks::Locks;
use crate::open::url::EngineUrl;
use crate::words::claim::Identity;
use crate::words::clock::Clock;
use crate::words::error::Result;

/// Opens a [`Locks`] with more than a URL can say.
#[derive(Default)]
pub struct Builder {
    pub(crate) settings: Settings,
    pub(crate) clock: Option<Clock>,
    label: Option<String>,
    who: Option<Identity>,
}

impl Builder {
    /// How long leases last unless an acquisition says otherwise, 200 ms to 24 h.
    #[must_use]
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.settings.ttl = ttl;
        self
    }

    /// How many turns a hold may have inside the process before it goes back to the engine, 0 to
    /// 64; 0 = none passes.
    #[must_use]
    pub fn hand_off(mut self, turns: u8) -> Self {
        self.settings.rules.turns_max = turns;
        self
    }

    /// For how long after its grant a hold may pass inside the process; 0 = none passes.
    #[must_use]
    pub fn hand_off_time(mut self, time: Duration) -> Self {
        self.settings.rules.pass_for = time;
        self
    }

    /// Says that every tokio runtime in which a task waits for these locks has its I/O driver
    /// enabled, as those of `#[tokio::main]`, `enable_all` and `enable_io` have. Then a task that
    /// waits for Redis or ZooKeeper is woken by the connection itself, and not by the thread behind
    /// it: an acquisition takes one task switch less. Threads of
    /// [`blocking`](crate::primitives::blocking) have that anyway.
    ///
    /// # Panics
    /// An acquisition panics when it is awaited in a runtime without one; tokio leaves no way to
    /// ask.
    #[must_use]
    pub fn io_enabled(mut self) -> Self {
        self.settings.io = true;
        self
    }

    /// A text that is shown to others about every hold of this `Locks`.
    #[must_use]
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Who is shown as the holder and the waiter, where that is not this process: for a program
    /// that keeps locks for another.
    #[must_use]
    pub fn identity(mut self, who: Identity) -> Self {
        self.who = Some(who);
        self
    }

    /// Something that is told of everything that happens.
    #[must_use]
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.settings.observer = Some(observer);
        self
    }

    /// A clock of the caller's; for simulation and tests.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Runs the keeper on an executor of the caller's, without a thread; for simulation.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn host(mut self, host: Arc<dyn crate::test_util::Host>) -> Self {
        self.settings.host = Some(host);
        self
    }

    /// Opens the engine that the URL names.
    ///
    /// # Errors
    /// As [`Locks::open`].
    pub async fn open(mut self, url: &str) -> Result<Locks> {
        let mut url = EngineUrl::parse(url)?;
        Registration::of(&url.scheme)?.check(&url)?;
        self.take_common(&mut url)?;
        let engine = crate::open::table::engine(url, &self.settings)?;
        self.with_boxed(engine).await
    }

    /// Opens an engine of your own.
    ///
    /// # Errors
    /// What its `open` gives.
    pub async fn with_engine(self, engine: impl Engine) -> Result<Locks> {
        self.with_boxed(Arc::new(engine)).await
    }

    fn take_common(&mut self, url: &mut EngineUrl) -> Result<()> {
        if let Some(ttl) = url.take_duration("ttl")? {
            self.settings.ttl = ttl;
        }
        if let Some(turns) = url.take_number("handoff", 0..=64)? {
            self.settings.rules.turns_max = u8::try_from(turns).unwrap_or(64);
        }
        if let Some(time) = url.take_duration("handoff_time")? {
            self.settings.rules.pass_for = time;
        }
        if let Some(text) = url.take("drift") {
            self.settings.drift.per_mille =
                crate::open::url::percent("drift", &text, &(1..=50))? * 10;
        }
        Ok(())
    }

    async fn with_boxed(self, engine: Arc<dyn Engine>) -> Result<Locks> {
        check_ttl(self.settings.ttl)?;
        if self.settings.rules.turns_max > 64 {
            return Err(invalid("a hold has at most 64 turns"));
        }
        let mut who = self.who.unwrap_or_else(Identity::of_this_process);
        who.label = self.label.or(who.label);
        let keeper =
            Keeper::new(engine, self.clock.unwrap_or_default(), Arc::new(who), self.settings);
        let opening = keeper.engine.open(keeper.context());
        keeper.answer(opening).await?.map_err(|e| e.engine(keeper.facts.engine))?;
        keeper.note_session();
        tracing::info!(engine = keeper.facts.engine, "opened");
        Ok(Locks { keeper })
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder")
            .field("ttl", &self.settings.ttl)
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}
