//! Re-entrancy is a value: who carries the same [`Owner`] may acquire again what it holds.

use std::cell::RefCell;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use crate::words::id::ClaimId;

/// An explicit identity for re-entrant acquisition.
///
/// The same owner asking for a name that it holds counts up in memory: no round trip, the same
/// token, and the last guard to go releases. Nothing is guessed from threads or tasks.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> lockkeeper::Result<()> {
/// use lockkeeper::{Locks, Owner};
/// let locks = Locks::open("memory:").await?;
/// let me = Owner::new();
/// let outer = locks.mutex("stock").lock().owner(&me).await?;
/// let inner = locks.mutex("stock").lock().owner(&me).await?;
/// assert_eq!(outer.token()?, inner.token()?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Owner(Arc<Identity>);

struct Identity {
    id: ClaimId,
    strict: bool,
}

thread_local! {
    static CURRENT: RefCell<Vec<Owner>> = const { RefCell::new(Vec::new()) };
}

impl Owner {
    /// A new owner, equal only to its clones.
    #[allow(
        clippy::new_without_default,
        reason = "a default would hide that every call gives another identity"
    )]
    pub fn new() -> Self {
        Self(Arc::new(Identity { id: ClaimId::fresh(), strict: false }))
    }

    /// An owner whose second acquisition of a name is
    /// [`ErrorKind::WouldDeadlock`](crate::ErrorKind::WouldDeadlock), naming where the first was
    /// taken.
    pub fn strict() -> Self {
        Self(Arc::new(Identity { id: ClaimId::fresh(), strict: true }))
    }

    /// Gives everything that `future` awaits this owner, unless it names another.
    ///
    /// # Cancel safety
    /// As cancel-safe as `future` itself. What `future` spawns as a task of its own is outside the
    /// scope.
    pub fn scope<F: Future>(&self, future: F) -> Scope<F> {
        Scope { owner: self.clone(), future: Box::pin(future) }
    }

    /// Runs `work` with this owner, for threads.
    pub fn scope_blocking<T>(&self, work: impl FnOnce() -> T) -> T {
        let _entered = Entered::new(self.clone());
        work()
    }

    pub(crate) fn is_strict(&self) -> bool {
        self.0.strict
    }

    /// The owner of the innermost scope that is being polled on this thread.
    pub(crate) fn current() -> Option<Self> {
        CURRENT.with(|owners| owners.borrow().last().cloned())
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Self) -> bool {
        self.0.id == other.0.id
    }
}

impl Eq for Owner {}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:?}{})", self.0.id, if self.0.strict { ", strict" } else { "" })
    }
}

struct Entered;

impl Entered {
    fn new(owner: Owner) -> Self {
        CURRENT.with(|owners| owners.borrow_mut().push(owner));
        Self
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with(|owners| owners.borrow_mut().pop());
    }
}

/// What [`Owner::scope`] gives.
#[must_use = "futures do nothing unless awaited"]
pub struct Scope<F> {
    owner: Owner,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Scope<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let _entered = Entered::new(self.owner.clone());
        self.future.as_mut().poll(context)
    }
}
