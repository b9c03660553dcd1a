//! Where answers come in, for callers that read them in their own threads.

use std::cell::Cell;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::words::id::fork_generation;

/// What came of reading an [`Inlet`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// Answers or events were dealt out.
    Something,
    /// There was nothing, or somebody else is reading.
    Nothing,
    /// Nothing more comes this way.
    Over,
}

/// Where an engine's answers come in.
///
/// The engine reads it by itself. A caller that waits for an answer may be woken by the socket too
/// and read it in its own thread: then the answer needs no detour over the keeper's.
pub trait Inlet: Send + Sync {
    /// What becomes readable; it is not read from but by [`Inlet::take`].
    fn socket(&self) -> Option<&Arc<OwnedFd>>;

    /// A thread is going to wait on the socket. False: another one does already, and everybody
    /// would wake up for everything.
    fn watch(&self) -> bool;

    /// The thread that watched does not any more.
    fn unwatch(&self);

    /// The promise to write what gathers, where nobody has given it yet; of the engines here only.
    #[doc(hidden)]
    fn promise(self: Arc<Self>) -> Option<Flush> {
        None
    }

    /// Reads what is there, without waiting for more, and deals it out. Never call it with the lock
    /// of an entry held. `patient`: waits while somebody else is reading.
    fn take(&self, patient: bool) -> Took;
}

/// A promise to write what callers of an engine ask, once those that were answered together have
/// asked again. Dropping it writes.
#[doc(hidden)]
pub struct Flush {
    write: Box<dyn FnMut() + Send + Sync>,
    born: u32,
}

impl Flush {
    /// This is called once.
    pub fn new(write: impl FnMut() + Send + Sync + 'static) -> Self {
        Self { write: Box::new(write), born: fork_generation() }
    }
}

impl Drop for Flush {
    fn drop(&mut self) {
        // A child has the parent's socket (R15).
        if self.born == fork_generation() {
            (self.write)();
        }
    }
}

impl fmt::Debug for Flush {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Flush")
    }
}

thread_local! {
    static LENDS: Cell<bool> = const { Cell::new(false) };
}

/// Asks for something in a caller that lends its thread until the answer is there.
pub(crate) fn while_lending<T>(ask: impl FnOnce() -> T) -> T {
    struct Over;
    impl Drop for Over {
        fn drop(&mut self) {
            LENDS.set(false);
        }
    }
    LENDS.set(true);
    let _over = Over;
    ask()
}

/// Whether whoever asks here writes what gathers ([`Inlet::promise`]).
#[cfg(feature = "redis")]
pub(crate) fn lends() -> bool {
    LENDS.try_with(Cell::get).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[test]
    fn r15_a_child_does_not_keep_the_promise_of_its_parent_to_write() {
        let written = Arc::new(AtomicU32::new(0));
        let promise = || {
            let written = written.clone();
            Flush::new(move || _ = written.fetch_add(1, Ordering::Relaxed))
        };
        drop(promise());
        let mut childs = promise();
        childs.born += 1;
        drop(childs);
        assert_eq!(written.load(Ordering::Relaxed), 1);
    }
}
