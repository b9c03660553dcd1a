//! An executor with virtual time that rolls who goes next.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use lockkeeper::test_util::Host;
use lockkeeper::{Clock, Ticks};

use lockkeeper_testkit::dice::Dice;

type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Stage {
    clock: Clock,
    state: Arc<Mutex<State>>,
    ready: Arc<Mutex<Vec<u64>>>,
}

struct State {
    tasks: BTreeMap<u64, Task>,
    timers: BTreeMap<(Ticks, u64), Waker>,
    next: u64,
    dice: Dice,
}

struct Ready {
    id: u64,
    ready: Arc<Mutex<Vec<u64>>>,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        let mut ready = locked(&self.ready);
        if !ready.contains(&self.id) {
            ready.push(self.id);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stage {
    /// An empty stage whose order of events follows from the seed.
    pub fn new(seed: u64) -> Self {
        let state = State {
            tasks: BTreeMap::new(),
            timers: BTreeMap::new(),
            next: 0,
            dice: Dice::new(seed),
        };
        Self {
            clock: Clock::virtual_at(Duration::from_secs(1000)),
            state: Arc::new(Mutex::new(state)),
            ready: Arc::default(),
        }
    }

    /// The clock of everybody on it.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// The time now.
    pub fn now(&self) -> Ticks {
        self.clock.now()
    }

    /// Adds a task.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let id = {
            let mut state = locked(&self.state);
            state.next += 1;
            let id = state.next;
            state.tasks.insert(id, Box::pin(task));
            id
        };
        locked(&self.ready).push(id);
    }

    /// Waits for virtual time to pass.
    pub fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send + 'static {
        self.until(self.now().plus(time))
    }

    /// Waits until the clock has come to `at`.
    pub fn until(&self, at: Ticks) -> impl Future<Output = ()> + Send + 'static {
        let stage = self.clone();
        std::future::poll_fn(move |context| {
            if stage.now() >= at {
                return Poll::Ready(());
            }
            let mut state = locked(&stage.state);
            state.next += 1;
            let order = state.next;
            state.timers.insert((at, order), context.waker().clone());
            Poll::Pending
        })
    }

    /// How many tasks are not over.
    pub fn tasks(&self) -> usize {
        locked(&self.state).tasks.len()
    }

    /// Runs whoever is ready, in an order that is rolled, until nobody is.
    fn run_ready(&self) {
        loop {
            let id = {
                let mut ready = locked(&self.ready);
                if ready.is_empty() {
                    return;
                }
                let at = locked(&self.state).dice.below(ready.len() as u64);
                ready.swap_remove(usize::try_from(at).unwrap_or(0))
            };
            let Some(mut task) = locked(&self.state).tasks.remove(&id) else { continue };
            let waker = Waker::from(Arc::new(Ready { id, ready: self.ready.clone() }));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                locked(&self.state).tasks.insert(id, task);
            }
        }
    }

    /// Moves the clock to the next timer; false when there is none before `end`.
    fn step(&self, end: Ticks) -> bool {
        let next = locked(&self.state).timers.first_key_value().map(|((at, _), _)| *at);
        let Some(at) = next.filter(|at| *at <= end) else { return false };
        self.clock.advance(at.since(self.now()));
        let due: Vec<Waker> = {
            let mut state = locked(&self.state);
            let mut due = Vec::new();
            while let Some(entry) = state.timers.first_entry().filter(|entry| entry.key().0 <= at) {
                due.push(entry.remove());
            }
            due
        };
        due.into_iter().for_each(Waker::wake);
        true
    }

    /// Runs until the future is done; `None` when it is not after `most` of virtual time, or nobody
    /// can go on.
    pub fn run<T: Send + 'static>(
        &self,
        most: Duration,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        let end = self.now().plus(most);
        let slot = Arc::new(Mutex::new(None));
        let done = slot.clone();
        self.spawn(async move {
            let value = future.await;
            *locked(&done) = Some(value);
        });
        loop {
            self.run_ready();
            if let Some(value) = locked(&slot).take() {
                return Some(value);
            }
            if !self.step(end) {
                return None;
            }
        }
    }
}

impl Host for Stage {
    fn spawn(&self, task: lockkeeper::engine::BoxFuture<()>) {
        Self::spawn(self, task);
    }

    fn sleep_until(&self, at: Ticks) -> lockkeeper::engine::BoxFuture<()> {
        Box::pin(self.until(at))
    }
}

impl std::fmt::Debug for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stage")
            .field("now", &self.now())
            .field("tasks", &self.tasks())
            .finish_non_exhaustive()
    }
}
