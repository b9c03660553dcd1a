//! A caller that waits lends its thread: it is woken by the socket on which its answer comes, and
//! reads it there.
//!
//! Otherwise the keeper's thread is woken by the socket and wakes the caller, which is one task
//! switch more. The keeper reads all the same: nothing depends on a caller that does not come back.

use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::{Handle, Id};

use super::follow::run_inline;
use crate::engine::{Engine, Flush, Inlet, Took, while_lending};
use crate::keeper::Keeper;
use crate::keeper::caller_io::park;

/// In how many runtimes the socket is watched at most; the oldest one makes room.
const RUNTIMES_MAX: usize = 4;

/// How often a task looks at the socket where the keeper was there first, before it leaves it at
/// that.
const LOOKS: u32 = 3;

/// The socket as one runtime watches it.
pub(in crate::keeper) struct Watched {
    runtime: Id,
    socket: AsyncFd<Arc<OwnedFd>>,
}

impl Keeper {
    /// Whether a caller in this thread reads answers.
    pub(in crate::keeper) fn is_lent(&self) -> bool {
        self.facts.early && (park::is_waiting() || self.settings.io)
    }

    /// Asks for what the caller waits for with [`Keeper::lend`]. A thread that sleeps until it is
    /// answered does not come back to write for others: of many, the driver writes what they ask.
    pub(crate) fn asking<T>(&self, ask: impl FnOnce() -> T) -> T {
        if self.is_lent() && !park::is_waiting() { while_lending(ask) } else { ask() }
    }

    /// Reads in this thread what has come for whoever it is, or watches the socket until something
    /// comes; answers whether something was read. What gathers meanwhile is written when the caller
    /// drops `flush`, at its next poll. The caller holds no lock of an entry.
    pub(crate) fn lend(
        self: &Arc<Self>,
        inlet: impl FnOnce(&dyn Engine) -> Option<Arc<dyn Inlet>>,
        context: &mut Context<'_>,
        flush: &mut Option<Flush>,
    ) -> bool {
        if !self.is_lent() {
            return false;
        }
        let Some(inlet) = inlet(&*self.engine) else { return false };
        if park::is_waiting() {
            return run_inline(|| park::read_or_watch(inlet)).unwrap_or(false);
        }
        if self.lend_task(context, &*inlet) {
            return true;
        }
        if let Some(promised) = inlet.promise() {
            // Behind all that were answered together and are still to run.
            *flush = Some(promised);
            context.waker().wake_by_ref();
        }
        false
    }

    fn lend_task(&self, context: &mut Context<'_>, inlet: &dyn Inlet) -> bool {
        let (Ok(runtime), Some(socket)) = (Handle::try_current(), inlet.socket()) else {
            return false;
        };
        let id = runtime.id();
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        // A connection that was made anew has another socket.
        watched.retain(|one| one.runtime != id || Arc::ptr_eq(one.socket.get_ref(), socket));
        if !watched.iter().any(|one| one.runtime == id) {
            // SAFETY: the descriptor is owned by the value that is registered, so it stays open for
            // as long as it is.
            let Ok(socket) =
                (unsafe { AsyncFd::register_with_interest(socket.clone(), Interest::READABLE) })
            else {
                return false;
            };
            if watched.len() >= RUNTIMES_MAX {
                watched.remove(0);
            }
            watched.push(Watched { runtime: id, socket });
        }
        for _ in 0..LOOKS {
            let Some(one) = watched.iter().find(|one| one.runtime == id) else { return false };
            let mut ready = match one.socket.poll_read_ready(context) {
                Poll::Pending => return false,
                Poll::Ready(Ok(ready)) => ready,
                Poll::Ready(Err(_)) => {
                    watched.retain(|one| one.runtime != id);
                    return false;
                }
            };
            // Cleared before it is read: what comes from now on makes it ready again.
            ready.clear_ready();
            drop(watched);
            match run_inline(|| inlet.take(false)) {
                Some(Took::Something) => return true,
                Some(Took::Nothing) => {
                    watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner)
                }
                Some(Took::Over) | None => return false,
            }
        }
        false
    }

    /// Nothing is watched any more.
    pub(in crate::keeper) fn unregister_sockets(&self) {
        let watched =
            std::mem::take(&mut *self.watched.lock().unwrap_or_else(PoisonError::into_inner));
        drop(watched);
    }
}
