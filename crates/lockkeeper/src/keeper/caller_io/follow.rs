//! Following an answer that comes later, without waking the keeper's thread before it is there.

use std::cell::RefCell;
use std::future::Future;
use std::sync::{Arc, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};

use crate::engine::BoxFuture;
use crate::keeper::Keeper;
use crate::sync::{Mutex, MutexGuard};

/// What runs on the keeper's thread once its waker is called.
struct Parked {
    keeper: Weak<Keeper>,
    state: Mutex<State>,
}

enum State {
    /// The first poll is under way.
    Polling,
    /// The waker was called before the rest was parked.
    Woken,
    Waiting(BoxFuture<()>),
    Over,
}

thread_local! {
    /// What this thread will go on with itself, while it reads answers.
    static HERE: RefCell<Option<Vec<Arc<Parked>>>> = const { RefCell::new(None) };
}

/// Does something, and then goes on in this thread with what waited for an answer that it brought.
/// `None` inside another of these. The caller holds no lock of an entry.
pub(in crate::keeper) fn run_inline<T>(act: impl FnOnce() -> T) -> Option<T> {
    struct Here;
    impl Drop for Here {
        fn drop(&mut self) {
            for parked in HERE.try_with(RefCell::take).ok().flatten().unwrap_or_default() {
                parked.go_on_here();
            }
        }
    }
    // Nor in a thread that is ending.
    let first =
        HERE.try_with(|here| here.borrow().is_none() && here.replace(Some(Vec::new())).is_none());
    if first != Ok(true) {
        return None;
    }
    let here = Here;
    let done = act();
    drop(here);
    Some(done)
}

impl Parked {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is parked, and leaves this in its place. While it is polled, whoever polls it
    /// hears of the wake.
    fn take(&self, meanwhile: State) -> Option<BoxFuture<()>> {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, meanwhile) {
            State::Waiting(task) => Some(task),
            State::Polling | State::Woken => {
                *state = State::Woken;
                None
            }
            State::Over => {
                *state = State::Over;
                None
            }
        }
    }

    /// Parks what was polled and is not done; it goes to the keeper when the wake came meanwhile.
    fn park(&self, keeper: &Arc<Keeper>, task: BoxFuture<()>) {
        let mut state = self.lock();
        if matches!(*state, State::Polling) {
            *state = State::Waiting(task);
        } else {
            *state = State::Over;
            drop(state);
            keeper.run(task);
        }
    }

    fn go_on_here(self: Arc<Self>) {
        let Some(keeper) = self.keeper.upgrade() else { return };
        let Some(mut task) = self.take(State::Polling) else { return };
        let waker = Waker::from(self.clone());
        let polled = keeper
            .driver
            .within(&keeper, &mut || task.as_mut().poll(&mut Context::from_waker(&waker)));
        if let Some(Poll::Pending) = polled {
            return self.park(&keeper, task);
        }
        *self.lock() = State::Over;
        if polled.is_none() {
            keeper.run(task);
        }
    }
}

impl Wake for Parked {
    fn wake(self: Arc<Self>) {
        let later =
            HERE.try_with(|here| here.borrow_mut().as_mut().map(|here| here.push(self.clone())));
        if matches!(later, Ok(Some(()))) {
            return;
        }
        let Some(task) = self.take(State::Over) else { return };
        if let Some(keeper) = self.keeper.upgrade() {
            keeper.run(task);
        }
    }
}

impl Keeper {
    /// Takes the first look at something here, where the engine allows it; what is polled once more
    /// is parked. `None`: nobody has looked yet.
    fn first_look<T>(self: &Arc<Self>, at: &mut BoxFuture<T>) -> Option<(Arc<Parked>, Poll<T>)> {
        if !self.facts.early {
            return None;
        }
        let parked =
            Arc::new(Parked { keeper: Arc::downgrade(self), state: Mutex::new(State::Polling) });
        let waker = Waker::from(parked.clone());
        let mut look = || at.as_mut().poll(&mut Context::from_waker(&waker));
        let polled = self.driver.within(self, &mut look)?;
        Some((parked, polled))
    }

    /// Takes the first look at a task here, and goes on with it where what it waits for is read.
    /// What it does at once may be done with the lock of an entry held.
    pub(crate) fn begin(self: &Arc<Self>, mut task: BoxFuture<()>) {
        match self.first_look(&mut task) {
            Some((_, Poll::Ready(()))) => {}
            Some((parked, Poll::Pending)) => parked.park(self, task),
            None => self.run(task),
        }
    }

    /// Waits for an answer and does what follows from it on the keeper's thread.
    ///
    /// Where the engine allows it the first look is taken here: its request has left already, and
    /// waking the thread only to find that there is no answer yet would cost as much as the answer
    /// itself.
    pub(crate) fn follow<T, F>(
        self: &Arc<Self>,
        mut answer: BoxFuture<T>,
        then: impl FnOnce(T) -> F + Send + 'static,
    ) where
        T: Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        match self.first_look(&mut answer) {
            // Never here: the caller holds the lock of an entry that `then` takes.
            Some((_, Poll::Ready(value))) => self.run(then(value)),
            Some((parked, Poll::Pending)) => {
                parked.park(self, Box::pin(async move { then(answer.await).await }));
            }
            None => self.run(async move { then(answer.await).await }),
        }
    }
}
