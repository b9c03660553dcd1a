//! The memory engine: locks inside one process, private to a `Locks` or shared by name.
//!
//! Everything is answered at once, under one lock; grants to others are pushed from their own
//! keeper's thread.

mod registration;
mod store;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::engine::{
    Ability, Answer, Attempt, Change, Claim, ClaimId, Class, Context, Description, End, Engine,
    Entry, Error, ErrorKind, Event, HoldId, LeaseId, Line, Query, Released, Renewal, Result,
    Standing, WatchId,
};
pub(crate) use registration::registration;
use store::{Client, Push, Store};

/// One client of a store.
pub(crate) struct Memory {
    store: Arc<Mutex<Store>>,
    client: u64,
    context: OnceLock<Context>,
    shared: bool,
}

/// The stores that `memory:NAME` shares inside this process.
static SHARED: Mutex<Option<HashMap<String, Weak<Mutex<Store>>>>> = Mutex::new(None);

impl Memory {
    /// A store of its own.
    pub(crate) fn private() -> Self {
        Self::client(Arc::default(), false)
    }

    /// The store of this name in this process.
    pub(crate) fn shared(name: &str) -> Self {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let stores = shared.get_or_insert_default();
        stores.retain(|_, store| store.strong_count() > 0);
        let store = stores.get(name).and_then(Weak::upgrade).unwrap_or_default();
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        Self::client(store, true)
    }

    fn client(store: Arc<Mutex<Store>>, shared: bool) -> Self {
        let client = lock(&store).new_client();
        Self { store, client, context: OnceLock::new(), shared }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Store, &mut Vec<Push>) -> T) -> T {
        let mut pushes = Vec::new();
        let mut store = lock(&self.store);
        let answer = work(&mut store, &mut pushes);
        let sends: Vec<_> = pushes
            .into_iter()
            .filter_map(|push| Some((store.client(push.client)?, push.event)))
            .collect();
        drop(store);
        for (client, event) in sends {
            client.push(event);
        }
        answer
    }

    /// Takes the hold away, as an engine would that lost it; for tests of services.
    #[cfg(feature = "test-util")]
    pub(crate) fn lose(&self, name: &crate::Name, why: crate::Lost) -> bool {
        self.with(|store, pushes| store.take_away(crate::Kind::Lock, name, &[], why, pushes))
    }
}

fn lock(store: &Mutex<Store>) -> MutexGuard<'_, Store> {
    store.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Client {
    /// Delivers from the client's own keeper thread: never from inside an engine call.
    fn push(&self, event: Event) {
        let events = self.context.events.clone();
        self.context.spawner.spawn(async move { events.send(event) });
    }
}

impl Engine for Memory {
    fn open(&self, context: Context) -> Answer<Result<()>> {
        lock(&self.store).join(self.client, context.clone());
        let opened = self
            .context
            .set(context)
            .map_err(|_| Error::new(ErrorKind::InvalidArgument, "a memory engine is opened once"));
        Answer::Now(opened)
    }

    fn describe(&self) -> Description {
        let mut about = Description::new("memory", "memory", Class::OneKernel);
        about.server = if self.shared {
            "this process, shared by name".to_owned()
        } else {
            "this process, not shared".to_owned()
        };
        about.immediate = true;
        about.can = about.can.without(&[Ability::Delay]).with(&[Ability::Together]);
        about.breaks.push("nothing outside this process sees these locks".to_owned());
        about
    }

    fn attempt(&self, claim: &Claim, line: Line) -> Answer<Attempt> {
        Answer::Now(self.with(|store, pushes| store.attempt(self.client, claim, line, pushes)))
    }

    fn recheck(&self, claims: &[ClaimId]) -> Answer<Vec<Standing>> {
        let store = lock(&self.store);
        Answer::Now(claims.iter().map(|id| store.recheck(*id)).collect())
    }

    fn withdraw(&self, claim: ClaimId) -> Answer<End> {
        Answer::Now(self.with(|store, pushes| store.withdraw(claim, pushes)))
    }

    fn convert(&self, hold: HoldId, claim: &Claim) -> Answer<Attempt> {
        Answer::Now(self.with(|store, pushes| store.convert(hold, claim, pushes)))
    }

    fn renew(&self, leases: &[LeaseId]) -> Answer<Vec<Renewal>> {
        let none = || Renewal::Gone(crate::Lost::TakenAway);
        Answer::Now(leases.iter().map(|_| none()).collect())
    }

    fn release(&self, holds: &[HoldId], again: Option<&Claim>) -> Answer<Released> {
        Answer::Now(self.with(|store, pushes| {
            let ends = holds.iter().map(|hold| store.release(*hold, pushes)).collect();
            let again = again.map(|claim| store.attempt(self.client, claim, Line::Join, pushes));
            Released { ends, again }
        }))
    }

    fn read(&self, query: &Query) -> Answer<Result<Vec<Entry>>> {
        Answer::Now(Ok(lock(&self.store).read(query)))
    }

    fn write(&self, change: &Change) -> Answer<Result<bool>> {
        Answer::Now(self.with(|store, pushes| store.write(change, pushes)))
    }

    fn watch(&self, watch: WatchId, query: &Query) -> Answer<Result<()>> {
        lock(&self.store).watch(self.client, watch, query.clone());
        Answer::Now(Ok(()))
    }

    fn unwatch(&self, watch: WatchId) {
        lock(&self.store).unwatch(self.client, watch);
    }

    fn attempt_all(&self, claims: &[Claim]) -> Answer<Vec<Attempt>> {
        Answer::Now(self.with(|store, pushes| store.attempt_all(self.client, claims, pushes)))
    }

    fn close(&self) -> Answer<()> {
        self.with(|store, pushes| store.leave(self.client, pushes));
        Answer::Now(())
    }
}
