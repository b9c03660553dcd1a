//! The keeper's work on an executor of the caller's, for simulation: no thread, no timer of the
//! kernel's.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;

use tokio::sync::Notify;

use crate::engine::BoxFuture;
use crate::words::clock::Ticks;

/// An executor that a keeper runs on in place of a thread of its own, so that a simulation decides
/// who goes next.
pub trait Host: Send + Sync + 'static {
    /// Runs a task to its end.
    fn spawn(&self, task: BoxFuture<()>);

    /// Completes when the keeper's clock has come to this reading.
    fn sleep_until(&self, at: Ticks) -> BoxFuture<()>;
}

/// What a `Locks` keeps at this moment: for tests that look for what is left behind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Residue {
    /// Names of which something is known: somebody has a primitive, a guard, or waits.
    pub names: usize,
    /// Claims that the engine may say something about.
    pub claims: usize,
    /// Leases that are renewed.
    pub leases: usize,
    /// Watches.
    pub watches: usize,
    /// Tasks on the keeper's thread, the engine's own among them.
    pub tasks: usize,
    /// Armed timers.
    pub timers: usize,
}

/// See the module.
pub(crate) struct Hosted {
    host: Arc<dyn Host>,
    started: AtomicBool,
    end: Arc<End>,
}

#[derive(Default)]
struct End {
    over: AtomicBool,
    told: Notify,
    alive: AtomicUsize,
}

impl Hosted {
    pub(super) fn new(host: Arc<dyn Host>) -> Self {
        Self { host, started: AtomicBool::new(false), end: Arc::default() }
    }

    pub(super) fn host(&self) -> Arc<dyn Host> {
        self.host.clone()
    }

    /// How many tasks are not over.
    pub(super) fn alive(&self) -> usize {
        self.end.alive.load(Ordering::SeqCst)
    }

    /// Starts what fires the timers, once; it is not counted among the tasks.
    pub(super) fn start(&self, drive: impl FnOnce() -> BoxFuture<()>) {
        if !self.started.swap(true, Ordering::SeqCst) {
            self.host.spawn(until_over(self.end.clone(), drive()));
        }
    }

    pub(super) fn run(&self, task: BoxFuture<()>) {
        struct Alive(Arc<End>);
        impl Drop for Alive {
            fn drop(&mut self) {
                self.0.alive.fetch_sub(1, Ordering::SeqCst);
            }
        }
        self.end.alive.fetch_add(1, Ordering::SeqCst);
        let alive = Alive(self.end.clone());
        let task = Box::pin(async move {
            task.await;
            drop(alive);
        });
        self.host.spawn(until_over(self.end.clone(), task));
    }

    /// Ends every task where it stands, as the end of the thread's runtime does.
    pub(super) fn stop(&self) {
        self.end.over.store(true, Ordering::SeqCst);
        self.end.told.notify_waiters();
    }
}

fn until_over(end: Arc<End>, mut task: BoxFuture<()>) -> BoxFuture<()> {
    Box::pin(async move {
        let mut told = std::pin::pin!(end.told.notified());
        told.as_mut().enable();
        std::future::poll_fn(|context| {
            if end.over.load(Ordering::SeqCst) || told.as_mut().poll(context).is_ready() {
                return Poll::Ready(());
            }
            task.as_mut().poll(context)
        })
        .await;
    })
}
