//! The threads that wait: one a waiting name, made when it is needed, kept for a moment for the
//! next wait, never more.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::Duration;

use tokio::sync::oneshot;

use super::wait::prepare_thread;
use crate::words::error::{Error, ErrorKind, Result};

type Job = Box<dyn FnOnce() + Send>;

/// Enough for the recipe and for what an event wakes; only touched pages count.
const STACK: usize = 256 * 1024;
/// How many threads without work are kept, and for how long: a hand-off between processes must not
/// pay for a new thread.
const IDLE_MAX: usize = 4;
const IDLE_FOR: Duration = Duration::from_secs(1);

/// The waiting threads of one engine.
#[derive(Clone, Default)]
pub(super) struct WaitThreads(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    work: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    threads: usize,
    closed: bool,
    /// Told when the last thread ends.
    leaving: Vec<oneshot::Sender<()>>,
}

impl State {
    fn one_left(&mut self) {
        self.threads -= 1;
        if self.threads == 0 {
            for left in self.leaving.drain(..) {
                let _ = left.send(());
            }
        }
    }
}

/// A thread that is not ours, for as long as it waits.
pub(super) struct Lent(WaitThreads);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.state().one_left();
    }
}

impl WaitThreads {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job that may block.
    pub(super) fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut state = self.state();
        if state.closed {
            return Err(Error::new(ErrorKind::Closed, "these locks were closed"));
        }
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() {
            drop(state);
            self.0.work.notify_one();
            return Ok(());
        }
        let wait_threads = self.clone();
        match start(move || wait_threads.work()) {
            Ok(()) => {
                state.threads += 1;
                Ok(())
            }
            Err(error) => {
                state.jobs.pop_back();
                Err(error)
            }
        }
    }

    /// A caller's thread waits itself: it counts until this is dropped.
    pub(super) fn lend(&self) -> Lent {
        self.state().threads += 1;
        Lent(self.clone())
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                // A panicking observer of an event must not take the thread from the next wait.
                let _ = catch_unwind(AssertUnwindSafe(job));
                state = self.state();
                continue;
            }
            if state.closed || state.idle >= IDLE_MAX {
                break;
            }
            state.idle += 1;
            let (woken, late) =
                self.0.work.wait_timeout(state, IDLE_FOR).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if late.timed_out() && state.jobs.is_empty() {
                break;
            }
        }
        state.one_left();
    }

    /// Takes no more work, and answers when the last thread has ended; waits must be called off by
    /// their owner.
    pub(super) fn close(&self) -> Option<oneshot::Receiver<()>> {
        let mut state = self.state();
        state.closed = true;
        self.0.work.notify_all();
        if state.threads == 0 {
            return None;
        }
        let (left, told) = oneshot::channel();
        state.leaving.push(left);
        Some(told)
    }

    #[cfg(test)]
    pub(super) fn threads(&self) -> usize {
        self.state().threads
    }
}

/// Starts a thread that may block in a wait.
pub(super) fn start(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let run = move || {
        prepare_thread();
        work();
    };
    Builder::new().name("lockkeeper-wait".into()).stack_size(STACK).spawn(run).map(drop).map_err(
        |e| {
            Error::new(
                ErrorKind::Refused,
                format!(
                    "no thread to wait in: {e}: raise `ulimit -u`, or wait for fewer names at once"
                ),
            )
            .temporary(true)
            .caused_by(e)
        },
    )
}
