//! Processes on one thread, under time that moves when nobody can go on: each has a keeper and an
//! engine of its own, and may stop, or be killed, between any two steps.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::engine::BoxFuture;
use crate::test_util::Host;
use crate::words::clock::{Clock, Ticks};

/// When the clock of the processes begins.
const BEGINS: Duration = Duration::from_secs(1_000);

/// See the module. Clones are the same.
#[derive(Clone)]
pub(super) struct Stage {
    handle: Handle,
    pub(super) clock: Clock,
    begun: Instant,
}

impl Stage {
    pub(super) fn new() -> Self {
        let (handle, clock) = (Handle::current(), Clock::virtual_at(BEGINS));
        Self { handle, clock, begun: Instant::now() }
    }

    /// Runs something from the beginning to its end, on time of its own.
    pub(super) fn play<T>(play: impl Future<Output = T>) -> T {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(play)
    }

    /// The clock of the processes follows the one that timers run on.
    fn catch_up(&self) {
        let now = Ticks(0).plus(BEGINS + self.begun.elapsed());
        let behind = now.since(self.clock.now());
        if !behind.is_zero() {
            self.clock.advance(behind);
        }
    }
}

/// Whether a process runs. Clones are the same.
#[derive(Clone)]
pub(super) struct Life {
    stage: Stage,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    stopped: bool,
    asleep: Vec<Waker>,
}

impl Life {
    pub(super) fn new(stage: &Stage) -> Self {
        Self { stage: stage.clone(), state: Arc::default() }
    }

    /// Nothing of it runs any more, until it goes on.
    pub(super) fn stop(&self, stopped: bool) {
        let asleep = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.stopped = stopped;
            if stopped { Vec::new() } else { std::mem::take(&mut state.asleep) }
        };
        asleep.into_iter().for_each(Waker::wake);
    }
}

impl Host for Life {
    fn spawn(&self, task: BoxFuture<()>) {
        self.stage.handle.spawn(Living { task, life: self.clone() });
    }

    fn sleep_until(&self, at: Ticks) -> BoxFuture<()> {
        let from = at.since(Ticks(0).plus(BEGINS));
        Box::pin(sleep_until(self.stage.begun + from))
    }
}

/// A task of a process.
struct Living {
    task: BoxFuture<()>,
    life: Life,
}

impl Future for Living {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        {
            let mut state = self.life.state.lock().unwrap_or_else(PoisonError::into_inner);
            if state.stopped {
                state.asleep.push(cx.waker().clone());
                return Poll::Pending;
            }
        }
        self.life.stage.catch_up();
        self.task.as_mut().poll(cx)
    }
}
